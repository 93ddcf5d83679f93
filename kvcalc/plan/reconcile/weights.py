"""The memory that a model took when vLLM loaded it, against the weights of a rank."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.core.units import GIB, bytes_text
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import rank_weight_bytes, stage_blocks
from kvcalc.engines.loaded import padding_bytes
from kvcalc.engines.vllm.positions import position_tables
from kvcalc.engines.vllm.releases import release_of
from kvcalc.plan.deployment import Deployment, share_experts
from kvcalc.plan.formats import run_formats
from kvcalc.plan.rank_memory import rank_weights
from kvcalc.plan.reconcile.findings import Finding, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.core.workload import Formats
    from kvcalc.engines.logs import Printed, StartUp

__all__ = ["reconcile_weights", "stored_otherwise"]

# What vLLM prints is the memory taken while it loaded: the weights, the tables of positions, and the allocator's
# rounding. Twelve public records of text models in 16 bits (Llama-3.1-8B, Qwen3-14B, Qwen2.5-7B, granite, phi-2 …)
# lie 0.02 to 0.46 % above the weights. Padded experts and towers are computed; beyond them gpt-oss-20b has 0.4 % and
# on two ranks 3.2 %, models with a tower up to 1.0 GiB (Gemma-3-27B 0.35, Gemma-3-4B 0.57, Qwen3-VL-8B 1.02).
_PLAIN_SHARE = 0.01
_REPACKED_SHARE = 0.04
_TOWER_BUFFERS_BYTES = GIB
# Tables of positions may be kept in 32 bits, twice the model's own type.
_TABLE_COPIES = 2
# Generations whose kernels pad experts differently: a log does not say which it was.
_ARCHITECTURES = ("hopper", "ampere", "blackwell")
_PLAIN = ("bf16", "fp16", "fp32")
_QUANTISED = re.compile(
    r"(?i)(?:^|[-_./])(?:awq|gptq|int[48]|w[48]a(?:8|16)|fp8|nvfp4|mxfp[48]|bnb|[48]bit|autoround|gguf|q\d)"
)
# Words of a method or a checkpoint's name, and the unit of the weights' format.
_UNITS = {
    "awq": "int4",
    "gptq": "int4",
    "int4": "int4",
    "w4a16": "int4",
    "int8": "int8",
    "fp8": "fp8",
    "fp4": "fp4",
    "bf16": "bf16",
}
# Options that add to the weights of a rank, or take from them.
_MORE_OR_LESS = {
    "enable_lora": "adapters are among them",
    "enable_eplb": "experts are held more than once",
    "cpu_offload_gb": "a part of them is kept in the memory of the CPU",
}
# Sizes of tensor parallelism that are tried where the log tells none.
_RANKS = (1, 2, 4, 8, 16)


def reconcile_weights(start_up: StartUp, model: ModelProfile) -> tuple[tuple[ReconcileRow, ...], tuple[str, ...]]:
    """Return the row of the memory that the model took, and a note where it cannot be computed."""
    printed = start_up.printed.get("loaded_gib") or start_up.printed.get("weights_gib")
    if not printed:
        return (), ()
    if start_up.options.get("language_model_only"):
        model = model.text_only("--language-model-only")
    why_not = _unknown(start_up, model)
    if why_not:
        return (), (f"the memory of the weights was not computed again: {why_not}",)
    printed_ranks = start_up.count("tensor_parallel_size")
    sizes = (printed_ranks,) if printed_ranks else _RANKS
    # each rank prints its own: one that disagrees is shown before those that agree
    ranks = [_nearest(each, start_up, model, sizes) for each in printed]
    finding = next((each for each in ranks if not each.agrees), ranks[0])
    why = "" if finding.agrees else f"{finding.reason}: the log's model is stored otherwise, or is another one"
    return (row_of(finding, start_up, why),), ()


def _nearest(printed: Printed, start_up: StartUp, model: ModelProfile, sizes: tuple[int, ...]) -> Finding:
    """Return the first finding that agrees, or the one of the first size."""
    findings = list(_findings(printed, start_up, model, sizes))
    return next((each for each in findings if each.agrees), findings[0])


def stored_otherwise(start_up: StartUp, model: ModelProfile) -> str:
    """Return why the log's model has other weights than the profile, or nothing."""
    asked = start_up.text("quantization")
    if _stored(model) and not _stored_so(model, asked or start_up.model or ""):
        return f"the log's model is stored otherwise ({asked or start_up.model}) than the profile of {model.name}"
    if not _stored(model) and (asked or _QUANTISED.search(start_up.model or "")):
        return f"the model is quantised ({asked or start_up.model}), and the profile of {model.name} is not"
    return ""


def _unknown(start_up: StartUp, model: ModelProfile) -> str:
    """Return why the bytes of the weights are not known, or nothing."""
    if not model.embeddings:
        return f"the profile of {model.name} does not describe its weights"
    otherwise = stored_otherwise(start_up, model)
    if otherwise:
        return otherwise
    if start_up.options.keys() & {"speculative_method", "speculative_tokens"}:
        return "a draft model may be among them"
    for option, why in _MORE_OR_LESS.items():
        if start_up.options.get(option):
            return why
    if not _stored(model) and not _dtype(start_up) and model.dtype == "fp32":
        return "the checkpoint has 32 bits, and the log does not say in which type it runs"
    return ""


def _dtype(start_up: StartUp) -> str:
    """Return the type the model runs in, as far as the log tells."""
    name = (start_up.text("dtype") or "").removeprefix("torch.")
    return "" if name == "auto" else name


def _formats(start_up: StartUp, model: ModelProfile) -> Formats:
    return run_formats(model, weights=None if _stored(model) else _dtype(start_up) or None)


def _stored(model: ModelProfile) -> bool:
    """Whether the profile says how the model is quantised."""
    return bool(model.weight_formats) or model.held_weight_bytes is not None or model.dtype not in _PLAIN


def _stored_so(model: ModelProfile, format_name: str) -> bool:
    """Whether what the log tells of the weights' format is one of the profile's; true where it tells none."""
    units = {parse_format(name).unit for name in model.weight_formats.values()} or {parse_format(model.dtype).unit}
    asked = {unit for word, unit in _UNITS.items() if word in format_name.lower()}
    return not asked or bool(asked & units)


def _inner_bytes(model: ModelProfile, formats: Formats, stages: int, spread: Parallel) -> int:
    """Return the bytes of the smallest pipeline stage without tables and head: which stage printed is not told."""
    bare = replace(model, embeddings=(), head=None, encoder=None)
    one = replace(spread, pipeline=1)
    parts = [replace(bare, blocks=blocks) for blocks in dict.fromkeys(stage_blocks(model, stages))]
    return min(rank_weight_bytes(part, formats, one) for part in parts)


def _findings(printed: Printed, start_up: StartUp, model: ModelProfile, sizes: tuple[int, ...]) -> Iterator[Finding]:
    stages, copies = start_up.count("pipeline_parallel_size") or 1, start_up.count("data_parallel_size") or 1
    share = _REPACKED_SHARE if _stored(model) else _PLAIN_SHARE
    formats = _formats(start_up, model)
    extra = _TABLE_COPIES * position_tables(model, formats).most + (_TOWER_BUFFERS_BYTES if model.towers else 0)
    for tensor in sizes:
        spread = share_experts(model, Parallel(tensor=tensor, pipeline=stages, data=copies))
        size = rank_weights(Deployment(model=model, formats=formats, parallel=spread))
        padded = [
            padding_bytes("vllm", model, formats, spread, architecture=name, version=_version(start_up))
            for name in _ARCHITECTURES
        ]
        fewest = size if stages == 1 else min(_inner_bytes(model, formats, stages, spread), size)
        largest = (size + max(padded)) * (1 + share) + extra
        padding = f", {min(padded):,} to {max(padded):,} B of padding by the card's kernels" if max(padded) else ""
        reason = f"{size:,} B of weights{padding}, and up to {share:.0%} and {bytes_text(extra)} more for buffers"
        assumed = f"; assumed: {tensor} tensor-parallel ranks" if len(sizes) > 1 and tensor > 1 else ""
        yield Finding(
            quantity="weights_gib",
            printed=printed,
            least=fewest / GIB,
            most=largest / GIB,
            value=(size + padded[0]) / GIB,
            reason=f"{reason} and positions{assumed}",
        )


def _version(start_up: StartUp) -> str | None:
    """Return the version that the log tells, where it is one."""
    version = start_up.version
    return version if release_of(version) is not None else None
