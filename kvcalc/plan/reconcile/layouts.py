"""The layouts of a setup: of all layers, of a pipeline stage, and of what the engine checks before it starts."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.cost.sharding import stage_blocks
from kvcalc.engines.vllm import layout, longest_context, stage_layouts

if TYPE_CHECKING:
    from kvcalc.engines.vllm import Layout
    from kvcalc.plan.reconcile.setups import Setup

__all__ = ["checked_layout", "checked_stage", "largest_length", "setup_layout"]


def setup_layout(setup: Setup, *, length: int | None = None, stage: bool = False) -> Layout:
    """Return the layout of a setup, for another length where asked for, of the fullest pipeline stage where asked for.

    The fullest stage has the largest blocks, and so the fewest: it decides for all.
    """
    options = setup.options if length is None else replace(setup.options, max_model_len=length)
    if not stage:
        return layout(setup.model, setup.formats, options, tensor=setup.tensor)
    stages = stage_layouts(setup.model, setup.formats, options, tensor=setup.tensor, pipeline=setup.pipeline)
    return max(stages, key=lambda placed: placed.bytes_per_block)


def checked_layout(setup: Setup) -> Layout:
    """Return the layout that the engine holds against a rank's memory before it starts."""
    return setup_layout(setup, stage=not setup.checks_all_layers)


def checked_stage(setup: Setup) -> Setup:
    """Return the setup with the layers that the engine holds against the memory of each rank before it starts."""
    if setup.pipeline == 1 or setup.checks_all_layers:
        return replace(setup, pipeline=1)
    stages = stage_layouts(setup.model, setup.formats, setup.options, tensor=setup.tensor, pipeline=setup.pipeline)
    index = max(range(len(stages)), key=lambda stage: stages[stage].bytes_per_block)
    blocks = stage_blocks(setup.model, setup.pipeline)[index]
    return replace(setup, model=replace(setup.model, blocks=blocks), pipeline=1)


def largest_length(setup: Setup, memory_bytes: int, *, null_block: bool) -> int:
    """Return the longest request whose blocks fit, beside the null block if asked for, up to the setup's own length."""
    return longest_context(
        setup.model,
        setup.formats,
        setup.options,
        kv_memory_bytes=memory_bytes,
        tensor=setup.tensor,
        null_block=null_block,
    )
