"""A load: what it says of itself, which options contradict each other, and the requests it stands for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kvcalc
from kvcalc.api import Serving, simulate_serving
from kvcalc.core.errors import InputError
from kvcalc.engines.options import EngineOptions

if TYPE_CHECKING:
    from pathlib import Path

LENGTHS = {"prompt": "100", "output_tokens": "5"}
TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(f"{second},{10 + second},3\n" for second in (0, 1, 1, 4))


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"rate": 2.5}, "100 in, 5 out, poisson arrivals at 2.50 requests/s, seed 0"),
        ({"rate": 2.5, "arrival": "ramp", "last_rate": 5.0, "seed": 3},
         "100 in, 5 out, ramp arrivals at 2.50 requests/s to 5, seed 3"),
        ({"users": 4}, "100 in, 5 out, 4 users"),
        ({"users": 4, "think_s": 0.5}, "100 in, 5 out, 4 users who think for 500.00 ms"),
        ({"rate": 1.0, "turns": "3", "system_tokens": 20, "think_s": 2.0},
         "conversations of 3 turns, 20 system tokens, 100 in, 5 out, poisson arrivals at 1 request/s, seed 0"),
    ],
)  # fmt: skip
def test_a_load_says_what_is_asked(options: dict[str, Any], text: str) -> None:
    assert kvcalc.Load(**LENGTHS, **options).text == text


def test_a_trace_is_named_and_keeps_its_times_or_not(trace: Path) -> None:
    assert kvcalc.Load(trace=trace).text == "trace trace.csv, its own times"
    assert kvcalc.Load(trace=trace, rate=2.0).text == "trace trace.csv, its own times at 2 requests/s"
    assert kvcalc.Load(trace=trace, users=2).text == "trace trace.csv, 2 users"
    assert "poisson arrivals at 2 requests/s, seed 0" in kvcalc.Load(trace=trace, arrival="poisson", rate=2.0).text


def test_a_window_of_a_trace_counts_from_its_beginning(trace: Path) -> None:
    load = kvcalc.Load(trace=trace, window_s=(0.5, 4.0))
    assert load.text == "trace trace.csv, minute 0 to 0, its own times"
    assert [(each.arrival_s, each.prompt_tokens) for each in load.bodies()] == [(0.5, 11), (0.5, 11), (3.5, 14)]
    assert [each.arrival_s for each in load.bodies([7.0, 8.0])] == [7.0, 8.0]
    assert len(list(replace(load, requests=2).bodies())) == 2
    assert [each.prompt_tokens for each in replace(load, window_s=(0.0, 0.5)).bodies()] == [10]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"arrival": "possion", "rate": 1.0}, "'possion' is not known"),
        ({"prompt": None, "rate": 1.0}, "lengths of requests are not known"),
        ({"output_tokens": None, "rate": 1.0}, "lengths of requests are not known"),
        ({"columns": "time=t,prompt=p,output=o", "rate": 1.0}, "columns are those of a trace"),
        ({"window_s": (0.0, 1.0), "rate": 1.0}, "a window is that of a trace"),
        ({"arrival": "trace"}, "no trace whose times"),
        ({"arrival": "closed"}, "needs users"),
        ({"arrival": "poisson", "rate": 1.0, "users": 3}, "users wait for answers"),
        ({"users": 0}, "a closed loop of 0 users"),
        ({"users": 1, "rate": 1.0}, "follows from its users"),
        ({"users": 1, "turns": "2"}, "conversations begin at a rate"),
        ({"rate": 1.0, "system_tokens": 1}, "a system prompt is that of conversations"),
        ({"rate": 1.0, "think_s": 1.0}, "nobody thinks in open arrivals"),
        ({"users": 1, "think_s": -1.0}, "a time to think"),
        ({"users": 1, "think_s": float("inf")}, "a time to think"),
        ({}, "need a rate"),
        ({"rate": 0.0}, "a rate of 0.0"),
        ({"rate": float("inf")}, "a rate of inf"),
        ({"rate": 1.0, "requests": 0}, "requests must be from 1"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        kvcalc.Load(**LENGTHS | options)


@pytest.mark.parametrize("options", [{"prompt": "5"}, {"output_tokens": "5"}, {"turns": "2"}])
def test_a_traces_requests_have_their_own_lengths(trace: Path, options: dict[str, str]) -> None:
    with pytest.raises(InputError, match="trace"):
        kvcalc.Load(trace=trace, **options)


def test_one_user_and_one_request_are_enough() -> None:
    requests = list(kvcalc.Load(**LENGTHS, rate=1.0, requests=1).source())
    assert [(each.prompt_tokens, each.output_tokens) for each in requests] == [(100, 5)]
    assert kvcalc.Load(**LENGTHS, users=1, think_s=0.0).users == 1


def test_a_trace_is_stretched_to_the_rate_asked_for(trace: Path) -> None:
    own, stretched = kvcalc.Load(trace=trace), kvcalc.Load(trace=trace, rate=2.0)
    assert [each.arrival_s for each in own.source()] == [0.0, 1.0, 1.0, 4.0]
    # four requests at two a second take two seconds
    assert [each.arrival_s for each in stretched.source()] == [0.0, 0.5, 0.5, 2.0]
    assert [each.prompt_tokens for each in stretched.source()] == [10, 11, 11, 14]
    assert len(list(kvcalc.Load(trace=trace, requests=3).source())) == 3


def test_a_trace_whose_requests_all_come_at_once_has_no_rate(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n5,1,1\n5,1,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="all requests of the trace come at once"):
        list(kvcalc.Load(trace=path, rate=1.0).source())


@pytest.mark.parametrize("options", [{"rate": 2.0}, {"arrival": "ramp", "rate": 1.0, "last_rate": 2.0}])
def test_more_requests_than_are_kept_are_refused(
    trace: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvcalc.simulate.load._MAX_KEPT", 1)
    with pytest.raises(InputError, match="more than 1 requests, which would all be kept"):
        list(kvcalc.Load(trace=trace, **options).source())
    first = kvcalc.Load(trace=trace, requests=1, arrival="ramp", rate=1.0, last_rate=2.0)
    assert len(list(first.source())) == 1


def test_another_rate_moves_both_ends_of_a_ramp() -> None:
    ramp = kvcalc.Load(**LENGTHS, arrival="ramp", rate=2.0, last_rate=6.0)
    assert (ramp.at_rate(3.0).rate, ramp.at_rate(3.0).last_rate) == (3.0, 9.0)
    assert replace(ramp, arrival="poisson", last_rate=None).at_rate(3.0).last_rate is None
    with pytest.raises(InputError, match="follows from its users"):
        kvcalc.Load(**LENGTHS, users=1).at_rate(3.0)


def test_a_run_says_how_it_was_served() -> None:
    """Every number of the setup is another, so that none can stand in the place of another."""
    options = EngineOptions(max_num_batched_tokens=700, max_num_seqs=5, max_model_len=900, block_size=32)
    serving = Serving(
        options=options,
        num_blocks=333,
        replicas=3,
        prefill_replicas=2,
        routing="least-loaded",
        transfer_bytes_per_s=50e9,
    )
    load = kvcalc.Load(prompt="100", output_tokens="4", rate=20.0, requests=8)
    report = simulate_serving(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), load, serving=serving)
    setup = report.setup
    assert (setup.engine, setup.replicas, setup.prefill_replicas, setup.routing) == ("vllm", 3, 2, "least-loaded")
    assert (setup.num_blocks, setup.block_size, setup.max_num_batched_tokens, setup.max_num_seqs) == (333, 32, 700, 5)
    assert (setup.max_model_len, setup.policy, setup.preemption) == (900, "fcfs", "recompute")
    assert (setup.gamma, setup.acceptance, setup.draft, setup.step_times) == (0, None, "", "ideal")
    assert (report.gpus, report.summary.requests) == (5, 8)
    alone = simulate_serving(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), load).setup
    assert (alone.replicas, alone.prefill_replicas, alone.routing) == (1, 0, "")


def test_a_mean_rate_is_that_of_the_requests_themselves() -> None:
    load = kvcalc.Load(prompt="10", output_tokens="5", rate=3.0, requests=500, seed=4)
    *_, last = load.at_mean_rate(8.0).source()
    assert last.arrival_s == pytest.approx(500 / 8.0)
    *_, chance = load.at_rate(8.0).source()
    assert chance.arrival_s != pytest.approx(500 / 8.0, rel=1e-3)
