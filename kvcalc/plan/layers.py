"""A pass by kinds of layers: bytes, FLOP, intensity and the place of each on the roofline."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from kvcalc.core.layers import Attention, State
from kvcalc.core.mlps import Mixture
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.layers import LayerPart, LayerRow, LayerRun, LayersReport
from kvcalc.core.sums import added
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.cache import block_cache_bytes
from kvcalc.cost.forward import section_ops
from kvcalc.cost.roofline import intensity_flop_per_byte, ridge_flop_per_byte, stage_seconds
from kvcalc.plan.contexts import check_batch, check_context, default_context
from kvcalc.plan.formats import format_names
from kvcalc.plan.steps import hardware_notes, required_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.cost_types import OpCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.core.workload import TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = ["OUTSIDE", "PHASES", "layers_report"]

PHASES = ("decode", "prefill")
# The name of the row of all else.
OUTSIDE = "embedding and head"
_MAX_TOKENS = 10**9


def layers_report(
    deployment: Deployment, *, batch: int = 1, context: int | None = None, phase: str = "decode"
) -> LayersReport:
    """Return the costs of each kind of layer in a pass.

    The sums over the rows are those of `kvcalc.cost.forward.forward_cost` on one GPU, collectives apart.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        batch: sequences.
        context: tokens attended by the new token, itself included; of a prefill, tokens of the prompt.
        phase: one of `PHASES`.

    Raises:
        InputError: no accelerator, or a batch or context below one.
    """
    model, hardware = deployment.model, required_hardware(deployment)
    tokens = default_context(model, deployment.engine) if context is None else context
    check_batch(batch)
    check_between("context", tokens, 1, _MAX_TOKENS)
    is_decode = phase == "decode"
    group = decode_step(batch=batch, context=tokens) if is_decode else prefill_pass(batch=batch, prompt=tokens)
    names = _names(model)
    rows = [_block_row(deployment, block, names[block], group, tokens) for block in model.block_counts]
    peaks = {unit: hardware.peak(unit) for unit in hardware.peak_flop_per_s}
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    return LayersReport(
        model=model.name,
        gpu=hardware.name,
        gpus=deployment.parallel.gpus,
        formats=format_names(deployment.formats),
        phase=phase,
        batch=batch,
        context=tokens,
        memory_bandwidth_bytes_per_s=bandwidth,
        peak_flop_per_s=peaks,
        ridge_flop_per_byte={unit: ridge_flop_per_byte(peak, bandwidth) for unit, peak in peaks.items()},
        rows=(*rows, _outside_row(deployment, group)),
        order=_order(model, names),
        notes=(
            *check_context(model, tokens, what="context" if is_decode else "prompt"),
            *deployment.notes,
            *hardware_notes(deployment),
            *model.notes,
        ),
    )


def _names(model: ModelProfile) -> dict[Block, str]:
    """Return a name for each kind of layer; kinds of one name are numbered."""
    names: dict[Block, str] = {}
    for block in model.block_counts:
        name = block.name or "layer"
        alike = sum((each.name or "layer") == name for each in names)
        names[block] = f"{name} {alike + 1}" if alike else name
    return names


def _order(model: ModelProfile, names: dict[Block, str]) -> tuple[LayerRun, ...]:
    runs: list[LayerRun] = []
    for name, alike in groupby(names[block] for block in model.blocks):
        first = runs[-1].first + runs[-1].layers if runs else 0
        runs.append(LayerRun(kind=name, first=first, layers=sum(1 for _ in alike)))
    return tuple(runs)


def _block_row(deployment: Deployment, block: Block, name: str, group: TokenGroup, tokens: int) -> LayerRow:
    layers = deployment.model.block_counts[block]
    cache = block_cache_bytes(block, tokens, deployment.formats, tensor=deployment.parallel.tensor)
    sequences = ceil_div(group.sequences, deployment.parallel.data)
    return _row(
        required_hardware(deployment),
        _ops(deployment, (block,) * layers, group),
        kind=name,
        what=_words(block),
        layers=layers,
        kv_bytes=cache.total * layers * sequences,
    )


def _outside_row(deployment: Deployment, group: TokenGroup) -> LayerRow:
    what = "rows looked up, an encoder's pass where it runs, and the logits"
    ops = _ops(deployment, (), group, ends=True)
    return _row(required_hardware(deployment), ops, kind=OUTSIDE, what=what, layers=0, kv_bytes=0)


def _ops(deployment: Deployment, blocks: tuple[Block, ...], group: TokenGroup, *, ends: bool = False) -> list[OpCost]:
    """Return the operators of layers on the rank with the most sequences; what crosses links is not among them."""
    parallel = deployment.parallel
    dealt = replace(group, sequences=ceil_div(group.sequences, parallel.data))
    ops = section_ops(
        deployment.model,
        blocks,
        [dealt],
        deployment.formats,
        parallel=parallel,
        all_groups=[group],
        is_first=ends,
        is_last=ends,
    )
    return [op for op in ops if op.part != "interconnect"]


def _row(hardware: HardwareProfile, ops: Sequence[OpCost], **about: Any) -> LayerRow:
    parts = [
        LayerPart(part=part, **_costs(hardware, [op for op in ops if op.part == part]))
        for part in dict.fromkeys(op.part for op in ops)
    ]
    return LayerRow(parts=tuple(parts), **about, **_costs(hardware, ops))


def _costs(hardware: HardwareProfile, ops: Sequence[OpCost]) -> dict[str, Any]:
    flop, moved = added(op.flop for op in ops), added(op.compulsory_bytes for op in ops)
    compute, memory, _ = stage_seconds(ops, hardware, None)
    ideal = max(compute, memory)
    return {
        "flop": flop,
        "weight_bytes": added(op.weight_bytes for op in ops),
        "kv_read_bytes": added(op.kv_read_bytes for op in ops),
        "moved_bytes": moved,
        "intensity_flop_per_byte": intensity_flop_per_byte(flop=flop, moved_bytes=moved) if moved else None,
        "attainable_flop_per_s": flop / ideal if flop else None,
        "ideal_s": ideal,
        "limiter": "compute" if compute > memory else "memory",
    }


def _words(block: Block) -> str:
    return ", then ".join([*(_mixer_words(mixer) for mixer in block.mixers), _mlp_words(block.mlp)]) or "nothing"


def _mixer_words(mixer: Mixer) -> str:
    if isinstance(mixer, State):
        return f"{mixer.variant.replace('_', ' ')} state"
    span = next((f" of {size:,}" for name in ("window", "chunk") if (size := getattr(mixer, name, None))), "")
    if isinstance(mixer, Attention):
        return f"{mixer.kind} attention{span}: {mixer.heads} heads, {mixer.kv_heads} KV heads of {mixer.head_dim}"
    rank = getattr(mixer, "kv_lora_rank", None)
    return f"{mixer.kind} attention{span}: {mixer.heads} heads" + (f", rank {rank}" if rank else "")


def _mlp_words(mlp: Any) -> str:
    if mlp is None:
        return "no MLP"
    if isinstance(mlp, Mixture):
        return f"{mlp.experts_per_token} of {mlp.experts} experts, width {mlp.width:,}"
    return f"{mlp.kind} MLP, width {mlp.width:,}"
