"""The answer holds and the next value does not; it is what `fit` and `decode` say; what binds is named."""

import json

import pytest

import kvcalc
from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.engines.options import EngineOptions


def _solved(deployment, unknown, **targets):
    report = api.solve(deployment, unknown, **targets)
    (row,) = report.rows
    return row


def _printed(arguments, capsys):
    with pytest.raises(SystemExit):
        main(["solve", *arguments])
    return capsys.readouterr().out


def test_the_fewest_gpus_are_those_of_fit():
    for name, gpu in (
        ("llama3.1-70b", "h100-sxm"),
        ("llama3.1-405b", "h200"),
        ("deepseek-v3", "h200"),
        ("qwen3-8b", "l4"),
    ):
        deployment = kvcalc.deployment(name, gpu=gpu)
        row = _solved(deployment, "gpus", context=8192, batch=8)
        fitted = kvcalc.fit(deployment, context=8192, batch=8)
        assert row.answer == row.gpus == fitted.min_gpus
        assert row.fits
        assert (row.tensor, row.pipeline) == (fitted.smallest.tensor, fitted.smallest.pipeline)


@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma-3-27b", "qwen3-30b-a3b", "jamba-1.5-mini"])
@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_the_largest_batch_and_context_are_those_of_fit(name, engine):
    deployment = kvcalc.deployment(name, gpu="h200")
    fitted = kvcalc.fit(deployment, engine=engine, context=4096, batch=4)
    assert _solved(deployment, "batch", context=4096, engine=engine).answer == fitted.max_batch
    assert _solved(deployment, "context", batch=4, engine=engine).answer == fitted.max_context


def test_a_speed_for_each_sequence_can_bind_before_memory_does():
    deployment = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", gpus=4)
    row = _solved(deployment, "batch", context=8192, tokens_per_s_per_sequence=50)
    assert row.binding == ("tokens_per_s_per_sequence",)
    speeds = kvcalc.decode(deployment, batches=[row.answer, row.answer + 1], contexts=[8192]).rows
    assert speeds[0].tokens_per_s_per_sequence >= 50 > speeds[1].tokens_per_s_per_sequence
    assert _solved(deployment, "batch", context=8192).binding == ("memory_bytes",)


def test_the_longest_context_goes_to_the_models_limit_and_no_further():
    row = _solved(kvcalc.deployment("llama3.1-8b", gpu="b200"), "context")
    assert row.answer == 131072
    assert row.binding == ("context_limit",)


def test_chunked_attention_is_searched_to_its_very_end():
    deployment = kvcalc.deployment("llama4-scout", gpu="b200", gpus=4)

    def speed(tokens):
        return kvcalc.decode(deployment, contexts=[tokens]).rows[0].tokens_per_s_per_sequence

    target = speed(200_000)
    answer = _solved(deployment, "context", tokens_per_s_per_sequence=target).answer
    assert speed(answer) >= target
    assert all(speed(answer + step) < target for step in (1, 100, 8192, 8192 * 3 - answer % 8192 + 1, 20_000))


def test_more_gpus_are_needed_for_a_speed_than_for_memory():
    deployment = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm")
    plain = _solved(deployment, "gpus", options=EngineOptions(max_model_len=8192))
    fast = _solved(deployment, "gpus", options=EngineOptions(max_model_len=8192), tokens_per_s_per_sequence=80)
    assert plain.answer < fast.answer
    assert fast.tokens_per_s_per_sequence >= 80
    assert fast.binding == ("tokens_per_s_per_sequence",)


@pytest.mark.parametrize("target", [{"tokens_per_s": 50}, {"tokens_per_s_per_sequence": 50}])
def test_the_least_bandwidth_meets_the_target_and_a_little_less_does_not(target):
    deployment = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=2)
    row = _solved(deployment, "bandwidth", context=131_072, **target)

    def speed(rate):
        settings = [f"memory_bandwidth_bytes_per_s={rate!r}"]
        other = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=2, settings=settings)
        return kvcalc.decode(other, contexts=[131_072]).rows[0].tokens_per_s

    assert speed(row.answer) >= 50 > speed(row.answer * (1 - 1e-9))


def test_no_bandwidth_helps_where_compute_is_the_limit():
    row = _solved(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), "bandwidth", context=100_000, ttft_s=0.01)
    assert row.answer is None
    assert row.binding == ("ttft_s",)


def test_the_price_is_that_of_the_bound():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", gpus=2)
    row = _solved(deployment, "price", batch=32, usd_per_million_tokens=0.1)
    paid = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", gpus=2, price_per_hour_usd=row.answer)
    assert kvcalc.decode(paid, batches=[32]).rows[0].usd_per_million_tokens == pytest.approx(0.1)


def test_no_answer_is_said_with_its_reason():
    row = _solved(kvcalc.deployment("llama3.1-70b", gpu="h100-sxm"), "batch")
    assert row.answer is None
    assert row.binding == ("memory_bytes",)
    assert "nothing for the cache" in row.reason
    row = _solved(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), "batch", tokens_per_s=1e9)
    assert row.answer is None
    assert row.binding == ("tokens_per_s",)


def test_the_cache_memory_of_a_log_is_enough():
    deployment = kvcalc.deployment("llama3.1-8b")
    options = EngineOptions(max_model_len=32768)
    row = _solved(deployment, "batch", context=32768, options=options, kv_memory_bytes=25_179_245_773)
    fitted = kvcalc.fit(deployment, context=32768, options=options, kv_memory_bytes=25_179_245_773)
    assert row.answer == fitted.max_batch == int(fitted.max_concurrency)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--gpu", "h200"], "nothing is left open"),
        (["--gpu", "h200", "--batch", "?", "--gpus", "?"], "gpus and batch are left open"),
        (["--gpu", "h200", "--gpus", "?", "--tp", "2"], "--tensor-parallel"),
        (["--gpu", "h200", "--bandwidth", "?"], "speed"),
        (["--gpu", "h200", "--price", "?"], "cost per 1M tokens"),
        (["--gpu", "h200", "--batch", "?", "--usd-per-million-tokens", "1"], "--price"),
        (["--gpu", "h200", "--batch", "?", "--tokens-per-s", "-1"], "above 0"),
        (["--batch", "?"], "accelerator"),
        (["--gpu", "h200", "--batch", "?", "--gamma", "5"], "belongs to --acceptance"),
        (["--gpu", "h200", "--batch", "?", "--acceptance", "0.8"], "belongs to --acceptance"),
        (["--gpu", "h200", "--acceptance", "?"], "draft"),
    ],
)
def test_mistakes_are_told(arguments, told, capsys):
    with pytest.raises(SystemExit) as done:
        main(["solve", "--model", "llama3.1-8b", *arguments])
    printed = capsys.readouterr()
    assert done.value.code == 2
    assert told in printed.err + printed.out


def test_the_command_of_the_contract(capsys):
    arguments = [
        "--model",
        "llama3.1-70b",
        "--gpu",
        "h100-sxm",
        "--gpus",
        "?",
        "--context",
        "8192",
        "--batch",
        "8",
        "--json",
    ]
    with pytest.raises(SystemExit):
        main(["solve", *arguments])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["answer"] == row["gpus"] == 3
    assert row["binding"] == ["memory_bytes"]


@pytest.mark.parametrize(("gamma", "speedup"), [(5, 1.5), (None, 1.5), (5, None), (3, 1.2)])
def test_the_least_acceptance_gains_what_it_should_and_a_little_less_does_not(gamma, speedup):
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    draft = kvcalc.draft_deployment(target, "llama3.1-8b")
    row = _solved(target, "acceptance", batch=8, draft=draft, gamma=gamma, speedup=speedup)

    def gain(rate):
        gammas = None if gamma is None else [gamma]
        return kvcalc.speculate(target, draft, acceptance=rate, gammas=gammas, batches=[8]).speedup

    assert gain(row.answer) >= (speedup or 1) > gain(row.answer - 1e-6)
    assert row.binding == ("speedup",)


def test_break_even_is_that_of_speculate():
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    draft = kvcalc.draft_deployment(target, "llama3.1-8b")
    report = kvcalc.speculate(target, draft, acceptance=0.8, gammas=[5], batches=[8])
    assert _solved(target, "acceptance", batch=8, draft=draft, gamma=5).answer == pytest.approx(
        report.break_even_acceptance
    )


def test_the_least_acceptance_is_told_as_engines_print_it():
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    row = _solved(target, "acceptance", batch=8, draft=kvcalc.draft_deployment(target, "llama3.1-8b"), gamma=5)
    assert row.gamma == 5
    again = kvcalc.speculate(
        target, "llama3.1-8b", accepted_length=row.expected_tokens_per_pass, gammas=[5], batches=[8]
    )
    assert again.speedup == pytest.approx(1)
    assert again.acceptance[0] == pytest.approx(row.answer)


def test_no_acceptance_helps_a_draft_as_slow_as_its_target():
    target = kvcalc.deployment("llama3.1-8b", gpu="h200")
    row = _solved(target, "acceptance", draft=kvcalc.draft_deployment(target, "llama3.1-8b"), speedup=2)
    assert row.answer is None
    assert row.binding == ("speedup",)


def test_a_recurrence_is_bounded_by_nothing():
    row = _solved(kvcalc.deployment("falcon-mamba-7b", gpu="h100-sxm"), "context")
    assert row.answer is None
    assert row.reason == "nothing bounds the context"


def test_pipeline_stages_are_told_for_their_batches_under_way():
    report = kvcalc.solve(kvcalc.deployment("llama3.1-70b", gpu="h100-sxm"), "gpus", context=8192, batch=8,
                          options=EngineOptions(max_model_len=8192))  # fmt: skip
    assert report.rows[0].pipeline == report.rows[0].gpus == 3
    assert any("3 pipeline stages" in note for note in report.notes)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            "--context 8192 --batch ? --tokens-per-s-per-sequence 50",
            "The largest batch for llama3.1-8b on h100-sxm at context 8,192 is 48 sequences.",
        ),
        ("--context ? --ttft 500ms", "The longest context for llama3.1-8b on h100-sxm at batch 1 is 24,326 tokens."),
        ("--price ? --usd-per-million-tokens 0.2 --context 8192 --batch 32", "at batch 32, context 8,192 is $1.56."),
        ("--bandwidth ? --tokens-per-s 1e7", "NO ANSWER for the memory bandwidth of llama3.1-8b: tokens/s would be"),
        ("--batch ? --context 1k --ttft 10ms", "TTFT would be 0.0143745, not at most 0.01"),
    ],
)
def test_answers_are_told_in_words(arguments, told, capsys):
    with pytest.raises(SystemExit):
        main(["solve", "--model", "llama3.1-8b", "--gpu", "h100-sxm", *arguments.split()])
    shown = capsys.readouterr().out
    assert told in shown
    assert "_" not in shown


@pytest.mark.parametrize(
    ("unknown", "arguments"),
    [
        # one GPU is enough; two are, and another arrangement of two was tried before
        ("gpus", {"context": 8192}),
        ("gpus", {"context": 8192, "batch": 64}),
        ("batch", {"context": 8192}),
        ("context", {"batch": 1}),
        ("context", {"batch": 64}),
    ],
)
@pytest.mark.parametrize("name", ["llama3.1-8b", "qwen3-next-80b-a3b", "gpt-oss-120b", "deepseek-v3"])
def test_what_stops_at_an_answer_is_never_empty(name, unknown, arguments):
    row = _solved(kvcalc.deployment(name, gpu="h200"), unknown, **arguments)
    assert row.reason
    assert row.binding


def test_what_stops_at_an_acceptance_near_zero_is_told():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    row = _solved(deployment, "acceptance", method="ngram")
    assert 0 < row.answer < 1e-4
    assert (row.binding, row.reason) == (("speedup",), "speedup would miss the target by a little")


def test_gpus_that_are_not_modelled_are_the_reason_of_no_answer():
    deployment = kvcalc.deployment("llama3.1-70b", gpu="rtx-4090", weights="q4_k")
    row = _solved(deployment, "gpus", context=4096)
    assert row.answer is None
    assert row.reason.startswith("llama.cpp on several GPUs is not modelled")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--acceptance", "?", "--draft", "llama3.1-8b"],
        ["--bandwidth", "?", "--tokens-per-s", "30"],
        ["--price", "?", "--usd-per-million-tokens", "5"],
    ],
)
def test_an_answer_for_a_model_that_does_not_fit_is_hypothetical_from_its_first_line(arguments, capsys):
    command = ["--model", "llama3.1-70b", "--gpu", "h100-sxm", *arguments]
    first = "DOES NOT FIT: weights and overhead leave nothing for the cache. The answer is hypothetical."
    assert _printed(command, capsys).startswith(first[:-1] + ": ")
    assert "FIT" not in _printed([*command, "--gpus", "4"], capsys)


def test_a_draft_that_takes_the_last_memory_makes_the_least_acceptance_hypothetical():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="l4")
    draft = api.draft_deployment(deployment, "qwen3-8b")
    row = _solved(deployment, "acceptance", context=4096, draft=draft, gamma=1, speedup=0.1)
    assert _solved(deployment, "batch", context=4096).answer >= 1
    assert not row.fits
    assert row.misfit


def test_a_smaller_number_of_gpus_is_shown_with_its_own_bound(capsys):
    deployment = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm")
    row = _solved(deployment, "gpus", context=8192, batch=8)
    (memory,) = row.constraints
    fewer = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=row.answer - 1)
    assert memory.beyond_target == max(0, kvcalc.fit(fewer, context=8192, batch=8).kv_bytes_available)
    assert memory.beyond_target < memory.target
    command = ["--model", "llama3.1-70b", "--gpu", "h100-sxm", "--gpus", "?", "--context", "8192", "--batch", "8"]
    assert "10.00 GiB, at most 0 B" in _printed(command, capsys)


TOO_LONG = {"model": "llama3.1-8b", "gpu": "h100-sxm", "context": 8192}


@pytest.mark.parametrize(
    "unknown",
    [
        {"batch": "?"},
        {"gpus": "?"},
        {"bandwidth": "?", "tokens_per_s": 100},
        {"price": "?", "usd_per_million_tokens": 1},
    ],
)
@pytest.mark.parametrize("length", [{"max_model_len": 4096}, {"engine": "llama.cpp", "ctx_size": 8192, "parallel": 2}])
def test_a_context_beyond_the_longest_length_is_refused_as_fit_refuses_it(unknown, length):
    with pytest.raises(kvcalc.InputError, match="context 8192 is longer than max-model-len 4096"):
        kvcalc.ask("fit", TOO_LONG | length)
    with pytest.raises(kvcalc.InputError, match="context 8192 is longer than max-model-len 4096"):
        kvcalc.ask("solve", TOO_LONG | length | unknown)


def test_without_a_context_the_longest_length_bounds_it():
    asked = {"model": "llama3.1-8b", "gpu": "h100-sxm", "max_model_len": 2048}
    (row,) = kvcalc.ask("solve", asked | {"batch": "?"}).rows
    assert row.context == 2048
    assert row.answer == kvcalc.ask("fit", asked).max_batch
