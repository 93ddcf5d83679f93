"""State blocks of a request in vLLM: by version, by the card's kernels, and by what is kept for later prompts."""

import json

import pytest

import kvcalc
from kvcalc.api import load_hardware, load_model
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm import Layout, VllmOptions, layout
from kvcalc.engines.vllm.defaults import batch_defaults, caches_prefixes

DELTA, MAMBA2, KIMI, KIMI_LINEAR = "qwen3-next-80b-a3b", "nemotron-h-8b", "kimi-k3", "kimi-linear-48b-a3b"


def placed(model: str, **options: object) -> Layout:
    return layout(load_model(model), Formats(), VllmOptions(max_model_len=4096, **options))  # type: ignore[arg-type]


def states(found: Layout) -> set[int]:
    return {group.needed_blocks for group in found.groups if group.kind == "state"}


@pytest.mark.parametrize(
    ("model", "version", "generation", "held"),
    [
        (DELTA, "0.32", "hopper", 2),
        (DELTA, "0.33", "hopper", 3),
        (DELTA, "0.33", "blackwell", 3),
        (DELTA, "0.33", "blackwell-rtx", 3),
        (DELTA, "0.33", "ampere", 2),
        (DELTA, "0.33", "ada", 2),
        (DELTA, "0.33", "cdna3", 2),
        (DELTA, "0.33", "", 2),
        (MAMBA2, "0.31", "hopper", 2),
        (MAMBA2, "0.32", "ampere", 3),
        (KIMI, "0.28", "blackwell", 2),
        (KIMI, "0.29", "blackwell", 3),
        (KIMI, "0.33", "ada", 2),
        (KIMI_LINEAR, "0.33", "hopper", 2),
        (DELTA, "0.12", "hopper", 1),
    ],
)
def test_a_kernel_that_exports_states_takes_a_block_more(model: str, version: str, generation: str, held: int) -> None:
    assert states(placed(model, version=version, generation=generation)) == {held}


def test_nothing_is_exported_where_nothing_is_kept() -> None:
    found = placed(DELTA, generation="hopper", prefix_caching=False)
    assert (states(found), found.configured_block_size) == ({1}, 544)


# Tokens in 40 GiB at lengths of 4,096 and 32,768, as the engine's own code counts them.
@pytest.mark.parametrize(("backend", "block", "tokens"), [("auto", 576, 731015), ("triton", 544, 939739)])
def test_another_prefill_kernel_gives_the_tokens_back(backend: str, block: int, tokens: int) -> None:
    report = kvcalc.fit(
        kvcalc.deployment(DELTA, gpu="h100-sxm"),
        engine="vllm",
        options=EngineOptions(gdn_prefill_backend=backend, max_num_batched_tokens=4096, max_in_flight_batches=1),  # type: ignore[arg-type]
        context=4096,
        kv_memory_bytes=40 * GIB,
    )
    assert (report.block_size, report.kv_capacity_tokens) == (block, tokens)


def test_a_backend_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InputError, match="gdn-prefill-backend is auto, flashinfer, triton"):
        VllmOptions(max_model_len=1, gdn_prefill_backend="cutlass")  # type: ignore[arg-type]
    asked = ["fit", "--model", DELTA, "--engine", "vllm", "--kv-memory", "40GiB", "--gdn-prefill-backend", "cutlass"]
    with pytest.raises(SystemExit) as done:
        main(asked)
    assert done.value.code == 2
    assert "gdn-prefill-backend" in capsys.readouterr().err


def test_the_card_that_is_taken_is_said_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["fit", "--model", DELTA, "--engine", "vllm", "--kv-memory", "40GiB", "--context", "4096", "--json"]
    with pytest.raises(SystemExit):
        main(asked)
    assert "before Hopper" in json.loads(capsys.readouterr().out)["assumed"]
    with pytest.raises(SystemExit):
        main([*asked, "--gpu", "a100-80gb"])
    assert "before Hopper" not in json.loads(capsys.readouterr().out)["assumed"]


@pytest.mark.parametrize(
    ("model", "version", "kept"),
    [
        ("llama3.1-8b", "0.11.0", True),
        (DELTA, "0.25.1", False),
        (DELTA, "0.26.0", True),
        ("mamba-2.8b", "0.33", False),
        ("whisper-small", "0.33", False),
    ],
)
def test_prefixes_are_cached_by_default_where_the_engine_does(model: str, version: str, kept: bool) -> None:  # noqa: FBT001
    assert caches_prefixes(load_model(model), version=version) is kept


def test_a_model_without_a_limit_is_started_for_the_length_the_engine_assumes() -> None:
    deployment = kvcalc.deployment("mamba-2.8b", gpu="h100-sxm", engine="vllm")
    report = kvcalc.fit(deployment)
    assert (report.context, report.max_model_len) == (2048, 2048)


def test_a_unified_memory_is_seen_from_033_on() -> None:
    thor, spark = load_hardware("jetson-thor"), load_hardware("dgx-spark")
    passes = [
        batch_defaults(card, version=version).max_num_batched_tokens
        for card in (thor, spark)
        for version in ("0.32", "0.33")
    ]
    assert passes == [2048, 8192, 2048, 2048]
