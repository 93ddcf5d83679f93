"""Scheduling policies of one's own: the engine's where nothing is overridden, and mistakes in one line."""

import json

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError

LOAD = {"rate": 6.0, "prompt": "uniform:100-900", "output_tokens": "uniform:20-200", "requests": 120}


def served(policy, *, num_blocks=None, max_num_seqs=6, **load):
    deployment = kvcalc.deployment("llama3.1-8b", gpu="l4", engine="vllm")
    options = kvcalc.EngineOptions(max_num_seqs=max_num_seqs, max_model_len=2048)
    serving = kvcalc.Serving(options=options, policy=policy, num_blocks=num_blocks)
    return kvcalc.simulate_serving(deployment, kvcalc.Load(**{**LOAD, **load}), serving=serving)


class Last(kvcalc.SchedulingPolicy):
    def order(self, request):
        return -request.order


class One(kvcalc.SchedulingPolicy):
    def admit(self, request, running):
        return not running or request.order < 0


class First(kvcalc.SchedulingPolicy):
    def evict(self, running):
        return running[0]


def test_a_policy_that_overrides_nothing_is_first_come_first_served():
    own, plain = served(kvcalc.SchedulingPolicy), served("fcfs")
    for name in ("ttft_s", "tpot_s", "e2e_s", "queue_s"):
        assert getattr(own.summary, name) == pytest.approx(getattr(plain.summary, name))
    assert (own.setup.policy, plain.setup.policy) == ("SchedulingPolicy", "fcfs")


def test_each_decision_is_the_policys():
    plain = served("fcfs").summary
    assert served(Last).summary.queue_s["p99"] > plain.queue_s["p99"]
    assert served(One, requests=20).summary.most_running_requests == 1
    tight = {"num_blocks": 220, "max_num_seqs": 32, "requests": 60}
    first, last = served(First, **tight).summary, served("fcfs", **tight).summary
    assert first.preemptions > 0 < last.preemptions
    assert first.e2e_s["mean"] != last.e2e_s["mean"]


def test_a_policy_that_fails_is_told():
    class Broken(kvcalc.SchedulingPolicy):
        def order(self, request):
            return request.none_such

    class Foreign(kvcalc.SchedulingPolicy):
        def evict(self, running):
            return running and None

    with pytest.raises(InputError, match=r"Broken.order failed: AttributeError"):
        served(Broken)
    with pytest.raises(InputError, match="does not run"):
        served(Foreign, num_blocks=220, max_num_seqs=32, requests=60)


ASKED = ["simulate", "--model", "llama3.1-8b", "--gpu", "l4", "--prompt", "100", "--output-tokens", "20", "--rate", "5",
         "--requests", "30"]  # fmt: skip


def run(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main([*ASKED, *words])
    return done.value.code, capsys.readouterr()


def test_the_command_line_takes_a_file(capsys, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("from kvcalc import SchedulingPolicy\nclass Mine(SchedulingPolicy):\n    pass\n")
    code, printed = run(capsys, "--policy", str(file), "--json")
    assert code == 0
    assert json.loads(printed.out)["setup"]["policy"] == "Mine"


@pytest.mark.parametrize(
    ("text", "said"),
    [("x = (", "mine.py:1"), ("x = 1", "no class of kvcalc.SchedulingPolicy"), ("1 / 0", "ZeroDivisionError"), (None, "no such file")],
)  # fmt: skip
def test_files_that_are_no_policy_are_refused_in_a_line(capsys, tmp_path, text, said):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)
    code, printed = run(capsys, "--policy", str(file))
    assert code == 2
    assert said in printed.err
    assert "Traceback" not in printed.err


def test_a_page_never_runs_a_file(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("raise SystemExit(3)")
    asked = {"model": "llama3.1-8b", "gpu": "l4", "prompt": "100", "output_tokens": "20", "rate": "5", "policy": str(file)}  # fmt: skip
    with pytest.raises(InputError, match="policy"):
        kvcalc.ask("simulate", asked)
