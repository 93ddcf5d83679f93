"""The numbers of SGLang's log, computed from the model and the options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Latent
from kvcalc.core.units import GIB
from kvcalc.cost.sharding import stage_blocks
from kvcalc.engines.sglang import buffers, token_bytes
from kvcalc.plan.formats import run_formats
from kvcalc.plan.reconcile.findings import Finding, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.core.workload import Formats
    from kvcalc.engines.logs import Printed, StartUp
    from kvcalc.engines.sglang import Buffers

__all__ = ["attention_ranks", "reconcile_sglang", "sglang_formats", "stage_models"]

_FLOATS = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_SPARSE_PAGE = 64


def reconcile_sglang(start_up: StartUp, model: ModelProfile) -> tuple[ReconcileRow, ...]:
    """Return the rows of one start-up of SGLang.

    Raises:
        InputError: more pipeline stages than layers.
        UnsupportedError: the model's pools are not described.
        UnknownNameError: the log names a cache format that is not known.
    """
    if "states" in start_up.events:
        raise UnsupportedError(f"SGLang's pools of states beside attention, as in {model.name}, are not described")
    formats = sglang_formats(start_up, model)
    stages = stage_models(start_up, model)
    found = _best(start_up, stages, formats)
    other = parse_format("bf16" if formats.key.unit == "fp8" else "fp8")
    changed = _best(start_up, stages, replace(formats, key=other, value=other))
    why = "none of the terms tried explains it"
    if all(finding.agrees for finding in changed):
        why = f"agrees with KV kept in {other.name}, not {formats.key.name}"
    return tuple(row_of(finding, start_up, "" if finding.agrees else why) for finding in found)


def stage_models(start_up: StartUp, model: ModelProfile) -> list[ModelProfile]:
    """Return the model with the layers of each pipeline stage, each kind of stage once.

    Raises:
        InputError: more stages than layers.
    """
    stages = start_up.count("pp_size") or 1
    if stages > model.layers:
        raise InputError(f"the {model.layers} layers of {model.name} cannot be split over {stages} pipeline stages")
    if stages == 1:
        return [model]
    return [replace(model, blocks=blocks) for blocks in dict.fromkeys(stage_blocks(model, stages))]


def _best(start_up: StartUp, stages: list[ModelProfile], formats: Formats) -> list[Finding]:
    """Return the findings of the stage that agrees best: which of them printed the numbers is not told."""
    tried = [list(_findings(start_up, stage, formats)) for stage in stages]
    return max(tried, key=lambda found: sum(finding.agrees for finding in found))


def sglang_formats(start_up: StartUp, model: ModelProfile) -> Formats:
    """Return the formats of a start-up: as stored, as asked for, or the model's own."""
    asked = start_up.text("kv_cache_dtype")
    name = start_up.text("stored_dtype") or (asked if asked not in (None, "auto") else start_up.text("dtype"))
    name = (name or "").removeprefix("torch.")
    return run_formats(model, kv=_FLOATS.get(name, name) if name not in ("", "auto") else None, engine="sglang")


def attention_ranks(start_up: StartUp) -> int:
    """Return the ranks that share one sequence's attention."""
    tensor, data = start_up.count("tp_size") or 1, start_up.count("dp_size") or 1
    return max(1, tensor // data) if start_up.flag("enable_dp_attention") else tensor


def _findings(start_up: StartUp, model: ModelProfile, formats: Formats) -> Iterator[Finding]:
    tokens, total = start_up.first("pool_tokens"), start_up.first("max_total_num_tokens")
    if tokens is not None and total is not None:
        reason = "the tokens of the pool"
        yield Finding(
            quantity="max_total_num_tokens", printed=total, least=tokens.value, most=tokens.value, reason=reason
        )
    tokens = tokens or total
    if tokens is None:
        return
    token = token_bytes(model, formats, tensor=attention_ranks(start_up))
    page = start_up.count("page_size")
    pages = (page, page) if page else _pages(model)
    reserved = [buffers(token, tokens=int(tokens.value), page_size=size) for size in pages]
    reason = f"{int(tokens.value):,} tokens and a page, {{}} B a token"
    for quantity, each, field in (("k_gib", token.keys, "key_bytes"), ("v_gib", token.values, "value_bytes")):
        printed = start_up.first(quantity)
        if printed is not None:
            yield _size(quantity, printed, reserved, (field,), reason.format(f"{each:,}"))
    printed = start_up.first("kv_gib")
    if printed is not None:
        yield _whole(printed, reserved, indexed=token.index > 0, reason=reason.format(f"{token.total:,}"))


def _pages(model: ModelProfile) -> tuple[int, int]:
    """Return the smallest and largest page that may have been chosen, where none was printed."""
    mixers = [mixer for block in model.block_counts for mixer in block.mixers]
    sparse = any(isinstance(mixer, Latent) and mixer.indexer is not None for mixer in mixers)
    return (_SPARSE_PAGE, _SPARSE_PAGE) if sparse else (1, _SPARSE_PAGE)


def _size(quantity: str, printed: Printed, reserved: list[Buffers], fields: tuple[str, ...], reason: str) -> Finding:
    sizes = [sum(getattr(size, field) for field in fields) / GIB for size in reserved]
    return Finding(quantity=quantity, printed=printed, least=min(sizes), most=max(sizes), reason=reason)


def _whole(printed: Printed, reserved: list[Buffers], *, indexed: bool, reason: str) -> Finding:
    """Return the one size printed for latent attention; before 2025-10 it left out the keys of an indexer."""
    plain = _size("kv_gib", printed, reserved, ("key_bytes", "value_bytes"), reason)
    if not indexed:
        return plain
    with_index = _size("kv_gib", printed, reserved, ("key_bytes", "value_bytes", "index_bytes"), reason)
    if with_index.agrees:
        return replace(with_index, reason=f"{reason}, the index keys included")
    return replace(plain, reason=f"{reason}, less the index keys, which are not printed")
