"""SGLang's pools against what the engine's own code computes: tokens, windows, slots of states, requests, each buffer.

`sglang_layout.jsonl` holds settings of catalogue models, one a line: model, card where it is not Hopper's, SGLang's options, GiB set aside for
images, the cache's format, and the sizes; none where SGLang refuses. They were computed by SGLang 0.5.23's own configurator and
pool classes (the published wheel) on the meta device; ``tests/tools/sglang_layout.py`` picks them. Where ``KVCALC_TRUTH`` names a folder with the
full ground truth, every setting of its ``sglang/layout.jsonl`` is tested too, from the model's config.
"""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.core.errors import KvcalcError
from kvcalc.core.reports.fit import FitReport
from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.sglang.options import model_length

GIB = 2**30
TOOLS = Path(__file__).parents[1] / "tools"
CASES = [json.loads(line) for line in Path(__file__).with_name("sglang_layout.jsonl").read_text().splitlines()]
TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
# SGLang's options by the names that they have here; those that take something away are turned round.
RENAMED = {
    "context_length": "max_model_len", "page_size": "block_size", "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens", "swa_full_tokens_ratio": "swa_full_tokens_ratio",
    "mamba_full_memory_ratio": "mamba_full_memory_ratio", "max_total_tokens": "max_total_tokens",
    "max_mamba_cache_size": "max_mamba_cache_size", "mamba_radix_cache_strategy": "mamba_radix_cache_strategy",
    "mamba_ssm_dtype": "mamba_ssm_dtype",
}  # fmt: skip
DISABLED = {
    "disable_radix_cache": "prefix_caching", "disable_overlap_schedule": "overlap_schedule",
    "disable_hybrid_swa_memory": "hybrid_swa_memory",
}  # fmt: skip


def _slim(row: dict[str, Any], name: str) -> list[Any]:
    """Return a setting of the full truth as the tool that writes the slim copy makes it."""
    spec = importlib.util.spec_from_file_location("sglang_layout", TOOLS / "sglang_layout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    case: list[Any] = module.slim(row, name)
    return case


def answered(model: str | Path, card: str, asked: dict[str, Any], images_gib: float) -> FitReport:
    copies = asked.get("attn_dp_size", 1)
    given = {name: asked[key] for key, name in RENAMED.items() if key in asked}
    given |= {name: not asked[key] for key, name in DISABLED.items() if key in asked}
    if asked.get("disaggregation_mode") == "decode":
        given["prefix_caching"] = False
    deployment = kvcalc.deployment(
        model,
        gpu="b200" if "B200" in card else None,
        engine="sglang",
        kv_dtype=asked.get("kv_cache_dtype"),
        tensor_parallel=asked.get("tp_size", 1) // copies,
        data_parallel=copies,
    )
    if "speculative_num_draft_tokens" in asked:
        deployment = kvcalc.with_draft(deployment, method="mtp", gamma=asked["speculative_num_draft_tokens"] - 1)
    memory = int((asked["budget_gib"] - images_gib) * GIB)
    options = EngineOptions(**{"max_model_len": model_length(deployment.model), **given})
    return kvcalc.fit(deployment, options=options, kv_memory_bytes=memory, context=64)


def check(model: str | Path, case: list[Any]) -> None:
    _, card, asked, images_gib, _, held = case
    ranks = asked.get("tp_size", 1) // asked.get("attn_dp_size", 1)
    if held is not None and not splits_evenly(kvcalc.deployment(model).model, ranks):
        held = None  # heads that ranks do not share stop the server where it loads the weights
    try:
        report = answered(model, card, asked, images_gib)
    except KvcalcError:
        assert held is None
        return
    if held is None:
        assert not report.fits
        return
    tokens, windows, slots, requests, buffers = held
    assert report.fits, report.reason
    assert [
        report.kv_capacity_tokens,
        report.window_capacity_tokens,
        report.state_slots,
        report.max_running_requests,
        sorted(buffer.bytes for buffer in report.pool_buffers),
    ] == [tokens, windows, slots, requests, sorted(buffers)]


# Other words for one thing: EAGLE by the model's own head is what SGLang calls it of DeepSeek-V4, and it refuses the other.
UNNAMED = ("deepseek-v4", "NEXTN")


def is_one_thing(case: list[Any]) -> bool:
    model, algorithm = str(case[0]).lower(), case[2].get("speculative_algorithm")
    return not (UNNAMED[0] in model and algorithm == UNNAMED[1])


@pytest.mark.parametrize(
    "case", [case for case in CASES if is_one_thing(case)], ids=lambda case: f"{case[0]}-{case[2]}"
)
def test_a_catalogue_model_has_sglangs_pools(case: list[Any]) -> None:
    check(case[0], case)


def test_the_settings_are_many_and_of_every_kind() -> None:
    assert len(CASES) > 700
    assert sum(case[5] is None for case in CASES) > 30


# Refused for the class that a second-hand or default config names; served by the one that the published config has.
OTHER_CLASS = {"MiniMaxAI__MiniMax-M3", "_default__bailing_hybrid", "stepfun-ai__Step-3.7-Flash"}
# What no profile says: that a cache format is declared without a method, which SGLang passes over.
NOT_IN_PROFILES = {"Qwen__Qwen3-32B-FP8-Static-PerTensor"}
# A config without a limit of positions has SGLang's own class's, 131,072; its profile has that of transformers', 2,048.
OWN_LIMIT = ("ibm-granite__granite-4.0-h-small", "context_length")
WITHOUT_COUNTERPART = ("enable_unified_memory", "fp4_mx_block16")


def full_truth() -> list[list[Any]]:
    if TRUTH is None:
        return []
    rows = [json.loads(line) for line in (TRUTH / "sglang" / "layout.jsonl").read_text().splitlines()][1:]
    refused = {row["fact"] for row in rows if row.get("support") == "refused" and "+" not in row["fact"]}
    cases = []
    for row in rows:
        if "set" in row:
            case = _slim(row, row["model"])
            cases.append([*case[:5], None if row["model"] in refused else case[5]])
    return [
        case
        for case in cases
        if case[0] not in OTHER_CLASS | NOT_IN_PROFILES
        and not any(word in json.dumps(case[2]) for word in WITHOUT_COUNTERPART)
        and is_one_thing(case)
        and not (case[0] == OWN_LIMIT[0] and OWN_LIMIT[1] in case[2])
    ]


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
def test_every_setting_of_the_full_truth() -> None:
    cases = full_truth()
    assert len(cases) > 1220
    wrong = []
    for case in cases:
        assert TRUTH is not None
        path = TRUTH / "configs" / f"{case[0].partition('+')[0]}.json"
        try:
            check(path, case)
        except (AssertionError, KvcalcError) as error:
            wrong.append(f"{case[0]} {case[2]}: {str(error)[:200]}")
    assert not wrong, "\n".join(wrong[:40])
