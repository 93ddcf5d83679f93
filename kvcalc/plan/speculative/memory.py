"""Memory of a GPU that speculation adds, as the tokens need it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.speculative import DraftMemory
from kvcalc.cost.sharding import rank_cache
from kvcalc.plan.rank_memory import memory_needed

if TYPE_CHECKING:
    from kvcalc.core.speculation import DraftTree
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.methods import Drafter

__all__ = ["draft_memory", "speculation_memory"]


def draft_memory(target: Deployment, drafter: Drafter, tree: DraftTree, *, batch: int, context: int) -> DraftMemory:
    """Return the memory of draft and drafted tokens on the fullest GPU.

    The slots that are looked ahead are one for each drafted token, in windowed layers too: a rejection must leave the
    window as it was. A recurrent state cannot be cut back, so each drafted token needs a copy of it (vLLM 0.32,
    MambaSpec.num_speculative_blocks).
    """
    gamma = len(tree.level_widths)
    runs = drafter.runs(gamma)
    weights = drafter.weight_bytes(gamma)
    cache = 0
    if runs is not None and drafter.keeps_cache:
        held = rank_cache(runs.model, runs.formats, runs.parallel, tokens=context + tree.nodes, batch=batch)
        cache = held.growing + held.state + held.cross
    ahead = rank_cache(target.model, target.formats, target.parallel, tokens=tree.nodes, batch=batch)
    lookahead = ahead.growing + tree.nodes * ahead.state
    return DraftMemory(
        weight_bytes=weights, kv_bytes=cache, lookahead_bytes=lookahead, total_bytes=weights + cache + lookahead
    )


def speculation_memory(target: Deployment, drafter: Drafter, tree: DraftTree, *, batch: int, context: int) -> int:
    """Return the bytes that the target and what speculation adds need on the fullest GPU."""
    added = draft_memory(target, drafter, tree, batch=batch, context=context).total_bytes
    return memory_needed(target, tokens=context, batch=batch) + added
