"""The numbers of SGLang's log, computed from the model and the options."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Latent, State
from kvcalc.core.units import GIB
from kvcalc.cost.sharding import stage_blocks
from kvcalc.engines.options import STATE_FORMATS
from kvcalc.engines.sglang.architectures import find_architecture
from kvcalc.engines.sglang.layers import rank_layers
from kvcalc.plan.formats import run_formats
from kvcalc.plan.reconcile.findings import Finding, row_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.core.workload import Formats
    from kvcalc.engines.logs import Printed, StartUp
    from kvcalc.engines.sglang.layers import RankLayers, TokenBuffer

__all__ = ["attention_ranks", "rank_buffers", "reconcile_sglang", "sglang_formats", "stage_models"]

_FLOATS = {"float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8"}
_SPARSE_PAGE = 64


def reconcile_sglang(start_up: StartUp, model: ModelProfile) -> tuple[ReconcileRow, ...]:
    """Return the rows of one start-up of SGLang.

    Raises:
        InputError: more pipeline stages than layers.
        UnsupportedError: the model's pools are not described.
        UnknownNameError: the log names a cache format that is not known.
    """
    formats = sglang_formats(start_up, model)
    stages = stage_models(start_up, model)
    findings = _best(start_up, model, stages, formats)
    other = parse_format("bf16" if formats.key.unit == "fp8" else "fp8")
    changed = _best(start_up, model, stages, replace(formats, key=other, value=other))
    why = "unexplained by any term tried"
    if all(finding.agrees for finding in changed):
        why = f"agrees with KV kept in {other.name}, not {formats.key.name}"
    return tuple(row_of(finding, start_up, "" if finding.agrees else why) for finding in findings)


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


def _best(start_up: StartUp, model: ModelProfile, stages: list[ModelProfile], formats: Formats) -> list[Finding]:
    """Return the findings of the stage that agrees best: which of them printed the numbers is not told."""
    tried = [list(_findings(start_up, model, stage, formats)) for stage in stages]
    return max(tried, key=lambda findings: sum(finding.agrees for finding in findings))


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


def rank_buffers(start_up: StartUp, model: ModelProfile, stage: ModelProfile, formats: Formats) -> RankLayers:
    """Return the buffers of a stage's layers; one pool for all where the log prints none for windows.

    Raises:
        UnsupportedError: a model whose pools are not described, or not in logs.
    """
    architecture = find_architecture(model)
    if architecture.pools == "compressed":
        raise UnsupportedError(f"SGLang's pools of compressed attention, as in {model.name}, are not described in logs")
    if "states" in start_up.events and not model.has(State):
        raise UnsupportedError(f"SGLang's pools for states and attention together do not describe {model.name}")
    asked = start_up.text("mamba_ssm_dtype")
    return rank_layers(
        stage,
        formats,
        architecture,
        tensor=attention_ranks(start_up),
        windows=start_up.first("window_tokens") is not None,
        state_format=None if asked is None else parse_format(STATE_FORMATS.get(asked, asked)),
    )


def _findings(start_up: StartUp, model: ModelProfile, stage: ModelProfile, formats: Formats) -> Iterator[Finding]:
    tokens, total = start_up.first("pool_tokens"), start_up.first("max_total_num_tokens")
    if tokens is not None and total is not None:
        reason = "the tokens of the pool"
        yield Finding(
            quantity="max_total_num_tokens", printed=total, least=tokens.value, most=tokens.value, reason=reason
        )
    layers = rank_buffers(start_up, model, stage, formats)
    page = start_up.count("page_size")
    pages = (page, page) if page else _pages(stage)
    if (tokens or total) is not None:
        yield from _pool_findings(start_up, layers.full, tokens or total, pages, prefix="")
    yield from _pool_findings(start_up, layers.windows, start_up.first("window_tokens"), pages, prefix="window_")
    slots = start_up.first("state_slots")
    if layers.slot is not None and slots is not None:
        reason = f"{int(slots.value):,} slots and one of padding, {{:,}} B each"
        for quantity, taken in (
            ("conv_state_gib", sum(layers.slot.conv_bytes)),
            ("ssm_state_gib", layers.slot.recurrent_bytes),
        ):
            printed = start_up.first(quantity)
            if printed is not None:
                size = (int(slots.value) + 1) * taken / GIB
                yield Finding(quantity=quantity, printed=printed, least=size, most=size, reason=reason.format(taken))


def _pool_findings(
    start_up: StartUp,
    buffers: tuple[TokenBuffer, ...],
    tokens: Printed | None,
    pages: tuple[int, int],
    *,
    prefix: str,
) -> Iterator[Finding]:
    """Return the printed sizes of one pool: its tokens and a page, times what each of them takes."""
    if tokens is None:
        return
    rows = tuple(int(tokens.value) + page for page in pages)
    for name in ("k", "v"):
        printed = start_up.first(f"{prefix}{name}_gib")
        if printed is not None:
            taken = sum(each.token_bytes for each in buffers if each.name.endswith(f"{name}_buffer"))
            yield _size(f"{prefix}{name}_gib", printed, rows, taken)
    printed = start_up.first(f"{prefix}kv_gib")
    if printed is not None:
        index = sum(each.token_bytes for each in buffers if "index" in each.name)
        whole = _size(f"{prefix}kv_gib", printed, rows, sum(each.token_bytes for each in buffers))
        plain = _size(f"{prefix}kv_gib", printed, rows, sum(each.token_bytes for each in buffers) - index)
        if not index:
            yield whole
        elif whole.agrees:
            yield replace(whole, reason=f"{whole.reason}, the index keys included")
        else:  # before 2025-10 it left out the keys of an indexer
            yield replace(plain, reason=f"{plain.reason}, less the index keys, which are not printed")


def _size(quantity: str, printed: Printed, rows: tuple[int, ...], token_bytes: int) -> Finding:
    sizes = [each * token_bytes / GIB for each in rows]
    reason = f"{rows[0]:,} tokens with a page of padding, {token_bytes:,} B a token"
    return Finding(quantity=quantity, printed=printed, least=min(sizes), most=max(sizes), reason=reason)


def _pages(model: ModelProfile) -> tuple[int, int]:
    """Return the smallest and largest page that may have been chosen, where none was printed."""
    mixers = model.mixers
    sparse = any(isinstance(mixer, Latent) and mixer.indexer is not None for mixer in mixers)
    return (_SPARSE_PAGE, _SPARSE_PAGE) if sparse else (1, _SPARSE_PAGE)
