"""The numbers of vLLM's log, computed from the model and the options."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.model import State
from kvcalc.core.units import GIB
from kvcalc.engines.vllm.releases import FIRST_WITH_GRAPHS, release_of
from kvcalc.engines.vllm.specs import layer_specs
from kvcalc.plan.reconcile.findings import Finding, row_of
from kvcalc.plan.reconcile.layouts import checked_layout, checked_stage, largest_length, setup_layout
from kvcalc.plan.reconcile.pool import blocks_of, concurrency, memory_range, pool_findings
from kvcalc.plan.reconcile.setups import OWN_DRAFT_LAYER, base_setups, term_setups

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.engines.logs import Printed, StartUp
    from kvcalc.engines.vllm import Layout
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["Outcome", "reconcile_vllm"]

# A rank whose memory was not printed may have less, by so much of the printed at most.
_MIN_OF_OTHER_RANK = 0.95
# One number alone agrees with some pair of terms by chance.
_MIN_FOR_TWO_TERMS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one start-up: its rows, and the setup that they agree with best."""

    rows: tuple[ReconcileRow, ...]
    setup: Setup


def reconcile_vllm(start_up: StartUp, model: ModelProfile) -> Outcome:
    """Return the rows of one start-up of vLLM.

    Raises:
        KvcalcError: the model's cache in vLLM is not modelled, or the log's options cannot be used.
    """
    ranks = start_up.count("decode_context_parallel_size") or 1
    if ranks > 1:
        raise UnsupportedError(
            f"decode context parallelism (decode_context_parallel_size={ranks}) spreads a sequence over ranks, which "
            "is not modelled"
        )
    bases = base_setups(start_up, model)
    tried = [(setup, list(_findings(setup, start_up))) for setup in bases]
    best, findings = max(tried, key=lambda entry: (all(f.agrees for f in entry[1]), sum(f.agrees for f in entry[1])))
    if all(finding.agrees for finding in findings):
        return Outcome(rows=_rows(best, findings, start_up, ""), setup=best)
    explained = _explained(bases, start_up, 1)
    why = "" if explained else _other_rank(best, start_up)
    if not explained and not why and len(findings) >= _MIN_FOR_TWO_TERMS:
        explained = _explained(bases, start_up, 2)
    if explained:
        why = f"agrees with {', '.join((*explained.terms, *explained.assumed))}"
    rows = _rows(best, findings, start_up, why or _unexplained(start_up))
    return Outcome(rows=rows, setup=explained or best)


def _unexplained(start_up: StartUp) -> str:
    method = start_up.text("speculative_method")
    if method in (None, *OWN_DRAFT_LAYER):
        return "unexplained by any term tried"
    return f"unexplained by any term tried; the cache of the draft model ({method}) is not modelled"


def _explained(bases: list[Setup], start_up: StartUp, terms: int) -> Setup | None:
    return next((setup for setup in term_setups(bases, start_up, terms) if _agrees(setup, start_up)), None)


def _rows(setup: Setup, findings: list[Finding], start_up: StartUp, why: str) -> tuple[ReconcileRow, ...]:
    assumed = f"; assumed: {', '.join(setup.assumed)}" if setup.assumed else ""
    return tuple(
        row_of(finding, start_up, f"{finding.reason}{assumed}" if finding.agrees else why) for finding in findings
    )


def _agrees(setup: Setup, start_up: StartUp) -> bool:
    try:
        return all(finding.agrees for finding in _findings(setup, start_up))
    except KvcalcError:
        return False


def _findings(setup: Setup, start_up: StartUp) -> Iterator[Finding]:
    """Yield the printed numbers with their predictions; a number narrows what the following may be."""
    yield from _budget(start_up)
    placed = setup_layout(setup, stage=True)
    yield from pool_findings(setup, placed, start_up)
    needed = start_up.first("needed_kv_gib")
    if needed is not None:
        asked = checked_layout(setup)
        size = asked.needed_bytes / GIB
        tokens = f"{asked.needed_blocks:,} blocks of {asked.bytes_per_block:,} B for {asked.max_model_len:,} tokens"
        if setup.pipeline > 1:
            tokens += " of all layers, on every rank" if setup.checks_all_layers else " of a rank's layers"
        yield Finding(quantity="needed_kv_gib", printed=needed, least=size, most=size, reason=tokens)
    yield from _block_size(setup, placed, start_up)
    longest, memory = start_up.first("estimated_max_model_len"), memory_range(start_up)
    if longest is not None and memory is not None:
        stage = checked_stage(setup)
        low = largest_length(stage, memory[0], null_block=setup.null_block is not False)
        high = largest_length(stage, memory[1], null_block=setup.null_block is True)
        reason = "the longest request whose blocks fit into the memory printed"
        yield Finding(
            quantity="estimated_max_model_len",
            printed=longest,
            least=low,
            most=max(low, high),
            reason=reason,
            impossible=_no_estimate(stage, int(longest.value)),
        )


def _no_estimate(setup: Setup, length: int) -> str:
    """Return why a length cannot be the longest: one token more needs no more blocks."""
    if not 1 <= length < setup.options.max_model_len:
        return ""
    needed = [setup_layout(setup, length=tokens).needed_bytes for tokens in (length, length + 1)]
    return "" if needed[0] < needed[1] else f"{length + 1:,} tokens need no more blocks than {length:,}"


def _budget(start_up: StartUp) -> Iterator[Finding]:
    """Yield the memory left for the cache, where all that it is left over from was printed."""
    left, share = start_up.first("available_kv_gib"), start_up.first("gpu_memory_utilization")
    total, asked = start_up.first("total_gpu_gib"), start_up.first("requested_gib")
    if left is None:
        return
    if asked is not None:
        low, high, reason = asked.least, asked.most, "memory requested"
        taken, words = _taken(start_up, ("non_kv_gib",)), "all that is not KV cache"
        graphs = start_up.first("estimated_graphs_gib")
        if graphs is not None and (release_of(start_up.version) or FIRST_WITH_GRAPHS) >= FIRST_WITH_GRAPHS:
            taken, words = (*taken, graphs) if taken else (), f"{words} and the estimate for CUDA graphs"
    elif total is not None and share is not None:
        # the share is taken as printed: it was given with two digits, as far as one can tell
        low, high, reason = total.least * share.value, total.most * share.value, "memory of the GPU x utilization"
        taken = _taken(start_up, ("non_torch_gib", "peak_torch_gib"))
        taken = taken or _taken(start_up, ("non_torch_gib", "weights_gib", "activation_gib"))
        words = "weights, activations and memory outside PyTorch"
    else:
        return
    if taken:
        yield Finding(
            quantity="available_kv_gib",
            printed=left,
            least=low - sum(part.most for part in taken),
            most=high - sum(part.least for part in taken),
            reason=f"{reason}, less {words}",
        )


def _taken(start_up: StartUp, quantities: tuple[str, ...]) -> tuple[Printed, ...]:
    """Return the numbers printed for some quantities, or nothing where one is missing."""
    numbers = [start_up.first(quantity) for quantity in quantities]
    return () if None in numbers else tuple(number for number in numbers if number is not None)


def _block_size(setup: Setup, placed: Layout, start_up: StartUp) -> Iterator[Finding]:
    """Yield the block of attention beside states, the padding of states, and of short groups."""
    size = start_up.first("attention_block_tokens")
    if size is not None:
        tokens = placed.configured_block_size
        reason = "the fewest tokens whose page holds one state"
        yield Finding(quantity="attention_block_tokens", printed=size, least=tokens, most=tokens, reason=reason)
    padding, page = start_up.first("state_padding_percent"), _state_page(setup)
    states = [group.page_bytes for group in placed.groups if group.kind == "state"]
    if padding is not None and page and states:
        share = 100 * (states[0] - page) / page
        reason = f"a page of {states[0]:,} B for a state of {page:,} B"
        yield Finding(quantity="state_padding_percent", printed=padding, least=share, most=share, reason=reason)
    yield from _padding_layers(placed, start_up.first("padding_waste_percent"))


def _state_page(setup: Setup) -> int | None:
    """Return the bytes of one state, from the model without its attention."""
    blocks = [
        replace(block, mixers=tuple(mixer for mixer in block.mixers if isinstance(mixer, State)))
        for block in setup.model.block_counts
    ]
    model = replace(setup.model, blocks=tuple(block for block in blocks if block.mixers))
    specs = layer_specs(model, setup.formats, setup.options, tensor=setup.tensor)
    return max((spec.page_bytes for spec in specs), default=None)


def _padding_layers(placed: Layout, printed: Printed | None) -> Iterator[Finding]:
    size = max(group.layers for group in placed.groups)
    alike: dict[tuple[str, int], list[int]] = {}
    for group in placed.groups:
        alike.setdefault((group.kind, group.block_size), []).append(group.layers)
    shares = [100 * (len(layers) * size - sum(layers)) / sum(layers) for layers in alike.values()]
    if printed is None or not any(shares):
        return
    nearest = min(shares, key=lambda share: abs(share - printed.value))
    reason = f"groups of {size} layers, the shorter ones padded"
    yield Finding(quantity="padding_waste_percent", printed=printed, least=nearest, most=nearest, reason=reason)


def _other_rank(setup: Setup, start_up: StartUp) -> str:
    """Return the memory of another rank, where that explains the tokens: several ranks, one of them printed."""
    memory, tokens = memory_range(start_up), start_up.smallest("kv_cache_tokens")
    ranks = setup.tensor * setup.pipeline
    if memory is None or tokens is None or len(start_up.printed["available_kv_gib"]) >= ranks or ranks == 1:
        return ""
    placed = setup_layout(setup, stage=True)
    _, blocks = blocks_of(setup, placed, int(tokens.value))
    left = blocks * placed.bytes_per_block
    if not _MIN_OF_OTHER_RANK * memory[0] <= left < memory[0]:
        return ""
    requests = start_up.smallest("max_concurrency")
    if requests is not None and not requests.least <= concurrency(setup, placed, blocks) <= requests.most:
        return ""
    return (
        f"agrees with {left / GIB:.2f} GiB on another rank: the smallest of {ranks} decides, and not all were printed"
    )
