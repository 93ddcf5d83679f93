"""Drafts on the accelerators of their target."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.drafts import Draft
from kvcalc.plan.deployment import deploy

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.methods import Drafter

__all__ = ["drafted", "place_draft"]


def place_draft(
    target: Deployment,
    model: ModelProfile,
    *,
    weights: str | None = None,
    kv: str | None = None,
    activations: str | None = None,
    tensor: int | None = None,
) -> Deployment:
    """Return a draft model on its target's accelerators.

    It is spread over as many of the target's tensor-parallel ranks as share its heads, not cut into pipeline stages.

    Args:
        target: the deployment of the target.
        model: the draft model.
        weights: its weight format; the checkpoint's own where left out.
        kv: format of its cache.
        activations: format its matrices are multiplied in.
        tensor: its own number of tensor-parallel ranks.

    Raises:
        InputError: more ranks than the target has, or than heads.
        UnknownNameError: no such format.
    """
    ranks = target.parallel.tensor
    if tensor is not None and not 1 <= tensor <= ranks:
        raise InputError(f"a draft on {tensor} tensor-parallel ranks of {ranks}", hint="from 1 to those of the target")
    spread = tensor or max(size for size in range(1, ranks + 1) if splits_evenly(model, size))
    same = spread == ranks
    return deploy(
        model,
        hardware=target.hardware,
        parallel=replace(target.parallel, tensor=spread, pipeline=1, expert=target.parallel.expert if same else 1),
        weights=weights,
        kv=kv,
        activations=activations,
        engine=target.engine,
        options=target.options,
    )


def drafted(target: Deployment, drafter: Drafter, *, gamma: int, nodes: int | None = None) -> Deployment:
    """Return a target with what drafts for it in its memory.

    Args:
        target: the model that verifies.
        drafter: the way to draft.
        gamma: levels of the draft.
        nodes: drafted tokens; as many as levels where left out.
    """
    kept, runs = drafter.held(gamma), drafter.runs(gamma)
    placed = kept or runs
    own = placed is not None and placed.formats is not target.formats
    draft = Draft(
        method=drafter.method,
        tokens=gamma if nodes is None else nodes,
        loaded=None if kept is None else kept.model,
        cached=runs.model if runs is not None and drafter.keeps_cache else None,
        formats=placed.formats if own and placed is not None else None,
        tensor=placed.parallel.tensor if own and placed is not None else None,
        notes=drafter.notes,
    )
    return replace(target, draft=draft)
