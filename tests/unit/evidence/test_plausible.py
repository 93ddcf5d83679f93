"""Whether a figure from anywhere can be."""

import json

import pytest

from kvcalc import api
from kvcalc.cli.main import main

MODEL = ("--model", "llama3.1-8b", "--gpu", "h100-sxm")


def run(measured, *arguments):
    with pytest.raises(SystemExit) as done:
        main(["check", "--measured", measured, *MODEL, *arguments])
    return done.value.code


@pytest.fixture
def bound():
    deployment = api.deployment("llama3.1-8b", gpu="h100-sxm")
    return api.decode(deployment, batches=[32], contexts=[2048]).rows[0].tokens_per_s


@pytest.mark.parametrize(
    ("share", "code", "verdict"), [(0.71, 0, "plausible: 71%"), (2.2, 1, "impossible as assumed: 2.2x")]
)
def test_a_share_of_the_bound(bound, share, code, verdict, capsys):
    assert run(f"{bound * share}tok/s", "--batch", "32", "--context", "2048") == code
    assert f"{verdict} {'of' if code == 0 else 'above'} the bandwidth bound" in capsys.readouterr().out


def test_a_rate_of_each_user_and_a_time_are_the_same_claim(bound, capsys):
    claims = (f"{bound / 2}tok/s", f"{bound / 64}tok/s/user", f"{1000 * 64 / bound}ms")
    for claim in claims:
        assert run(claim, "--batch", "32", "--context", "2048") == 0
        assert "plausible: 50%" in capsys.readouterr().out


def test_the_bound_is_that_of_decode_at_the_same_context_to_the_last_token():
    """The context counts the new token: 2,048 of them are 2,047 in the cache and the one that is made."""
    deployment = api.deployment("llama3.1-8b", gpu="h100-sxm")
    for batch, context in ((32, 2048), (512, 2), (1, 1)):
        check = api.check_measured(deployment, measured="1s", batch=batch, tokens=context).checks[0]
        assert check.bound_s == api.decode(deployment, batches=[batch], contexts=[context]).rows[0].ideal_s
    check = api.check_measured(deployment, measured="1s", phase="prefill", tokens=100).checks[0]
    assert check.bound_s == api.prefill(deployment, prompts=[100]).rows[0].ideal_s


def test_a_prefill(capsys):
    least = api.prefill(api.deployment("llama3.1-8b", gpu="h100-sxm"), prompts=[4096]).rows[0].ideal_s
    assert run(f"{least * 2}s", "--phase", "prefill", "--prompt", "4096") == 0
    assert "50% of the compute bound" in capsys.readouterr().out
    assert run(f"{least / 2}s", "--phase", "prefill", "--prompt", "4096") == 1


def test_a_context_that_was_not_told_is_taken_so_that_the_bound_holds_whatever_it_was(capsys):
    deployment = api.deployment("llama3.1-8b", gpu="h100-sxm")
    least = api.decode(deployment, batches=[1], contexts=[1]).rows[0].ideal_s
    assert run(f"{least * 1.001}s") == 0
    assert "no --context" in capsys.readouterr().out
    assert run(f"{least * 1.001}s", "--context", "4096") == 1
    assert "no --context" not in capsys.readouterr().out


@pytest.mark.parametrize("claim", ["4k tok/s", "4,000 tok/s", "4 ktok/s", "0.004M tokens per second"])
def test_ways_to_write_a_rate(claim, capsys):
    assert run(claim, "--batch", "64", "--context", "1024") == 0
    assert "= 4,000 tokens/s" in capsys.readouterr().out


def test_json(capsys):
    assert run("1000ktok/s", "--json") == 1
    (check,) = json.loads(capsys.readouterr().out)["checks"]
    assert {"name", "passed", "expected", "actual"} <= set(check)
    assert check["passed"] is False


def assumptions(claim, *arguments, model="llama3.1-8b", gpu="h100-sxm"):
    deployment = api.deployment(model, gpu=gpu)
    (check,) = api.check_measured(deployment, claim, **dict(arguments)).checks
    assert not check.passed
    return {each.assumption: each for each in reversed(check.assumptions)}


def test_a_speed_of_a_requantised_checkpoint_names_what_would_have_to_be_otherwise():
    # gpt-oss-120b on a DGX Spark, measured twice at 59.5 tok/s by a recipe that keeps the dense parts in mxfp4 too:
    # 4.70 GiB of a step at 273 GB/s allow 54.1 tok/s, so 10 % less must be read.
    found = assumptions("59.5tok/s", ("tokens", 1024), model="gpt-oss-120b", gpu="dgx-spark")
    assert set(found) == {"weights", "speculation", "sequences", "accelerator", "gpus"}
    assert found["weights"].text.startswith(
        "narrower weights: attention, head in fp8 (attention or head alone would do)"
    )
    assert found["weights"].needed == pytest.approx((4.664 - 0.426) * 2**30, rel=2e-3)
    assert found["accelerator"].needed == pytest.approx(59.5 / 54.10, rel=1e-3)
    assert (found["sequences"].needed, found["gpus"].needed) == (2, 2)


def test_each_assumption_named_is_enough_and_less_is_not(bound):
    given = (("batch", 32), ("tokens", 2048))
    found = assumptions(f"{bound * 1.3}tok/s", *given)
    assert set(found) == {"weights", "speculation", "sequences", "accelerator", "gpus"}

    def best(model="llama3.1-8b", batch=32, **deployed):
        deployment = api.deployment(model, **{"gpu": "h100-sxm"} | deployed)
        return api.decode(deployment, batches=[batch], contexts=[2048]).rows[0].tokens_per_s

    assert best(weights="fp8,head=fp8,embedding=bf16,vector=bf16") * found["weights"].bound_share == pytest.approx(
        bound * 1.3
    )
    more = int(found["sequences"].needed)
    assert best(batch=more) >= bound * 1.3 > best(batch=more - 1)
    assert best(gpus=int(found["gpus"].needed)) * found["gpus"].bound_share == pytest.approx(bound * 1.3)
    nearest = found["accelerator"].text.partition(", as ")[2].split(",")[0].split(" ")[0]
    assert best(gpu=nearest) * found["accelerator"].bound_share == pytest.approx(bound * 1.3)
    # a verification of two tokens takes a little more than a step
    assert 1.3 < found["speculation"].needed < 1.4


def test_a_time_or_the_rate_of_each_user_is_no_sum_of_sequences():
    for claim in ("4ms", "250tok/s/user"):
        assert "sequences" not in assumptions(claim, ("tokens", 1024))


def test_what_no_single_assumption_explains_is_said(capsys):
    assert run("1ns", "--context", "1024") == 1
    assert "no single change of format, draft, batch, accelerator or GPU count" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("measured", "arguments", "told"),
    [
        ("fast", (), "not a speed"),
        ("0tok/s", (), "not a positive speed"),
        ("-5tok/s", (), "not a positive speed"),
        ("1,5tok/s", (), "not a speed"),
        ("12ms", ("--phase", "prefill"), "length of the prompt"),
        ("12parsec", (), "neither a rate of tokens nor a time"),
        ("12ms", ("--phase", "training"), "unknown phase"),
        ("12ms", ("--prompt", "5"), "no prompt"),
        ("12ms", ("--phase", "prefill", "--context", "5"), "no context"),
        ("12ms", ("--batch", "1,2"), "one number"),
    ],
)
def test_bad_input(measured, arguments, told, capsys):
    assert run(measured, *arguments) == 2
    assert told in capsys.readouterr().err
