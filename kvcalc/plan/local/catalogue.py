"""Models that a machine runs: for each, the largest quantization that fits, and the bound of its speed.

Weights and cache are counted layer by layer; compute buffers are taken to be of one size for all, since their graphs
would take longer than all the rest. ``kvcalc fit --device`` has them to the byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import KvcalcError, UnsupportedError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.reports.catalogue import ModelsFitReport, RunnableModel
from kvcalc.core.units import GIB, MIB, counted
from kvcalc.core.workload import Formats, decode_step
from kvcalc.cost.parameters import parameters
from kvcalc.engines.checkpoint import has_mxfp4_experts
from kvcalc.engines.llama_cpp import LlamaCppOptions, layout
from kvcalc.engines.llama_cpp.tensors import unlisted
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights
from kvcalc.plan.local.answer import SPARE_BYTES, OnMachine
from kvcalc.plan.local.choice import Memories, chosen
from kvcalc.plan.local.placing import LayerBytes, units_of
from kvcalc.plan.local.setup import LocalSetup

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.weights import Weight
    from kvcalc.plan.local.choice import Choice
    from kvcalc.plan.local.setup import Host, LocalDevice

__all__ = ["RECIPES", "models_fit"]

# Quantizations that are tried, from the largest, with bits of a weight in the mean, which decide what is looked at.
RECIPES = {"q8_0": 8.5, "q6_k": 6.6, "q5_k_m": 5.7, "q4_k_m": 4.9, "q3_k_m": 4.0, "q2_k": 3.2}
# The smallest that is taken as long as all of it fits on the devices, and the largest that spills to the host.
_SPILLING = "q4_k_m"
_OWN_MXFP4 = {"mxfp4_moe": 4.4}
# Compute buffers of a device, for all models alike.
_COMPUTE_BYTES = 640 * MIB
_BITS = 8
_NEARLY = 0.9


def models_fit(
    models: Iterable[ModelProfile], devices: Sequence[LocalDevice], host: Host, *, context: int, notes: tuple[str, ...]
) -> ModelsFitReport:
    """Return the models that a machine runs, those on its devices alone first.

    Args:
        models: the models to look at.
        devices: the machine's devices.
        host: its host; models spill into it where its memory is known.
        context: tokens of one sequence in the cache; less for models with a shorter limit.
        notes: what was assumed of the machine.
    """
    rows, too_large, unknown, shorter = [], 0, 0, 0
    for model in models:
        try:
            row = _runnable(model.text_only(), devices, host, context)
        except KvcalcError:
            unknown += 1
            continue
        if row is None:
            too_large += 1
        else:
            rows.append(row)
            shorter += (model.context_limit or context) < context
    order = ("devices", "devices and host", "host")
    rows.sort(key=lambda row: (order.index(row.stands), -row.total_bytes, row.model))
    own_notes = ["compute buffers are taken to be 640 MiB for each device: kvcalc fit --device has them to the byte"]
    if shorter:
        own_notes.append(
            f"{counted(shorter, 'model')} made for fewer tokens: counted with the context of their own limit"
        )
    if host.memory_bytes is None:
        own_notes.append("without --host-memory nothing spills into the host's memory")
    return ModelsFitReport(
        devices=tuple(device.name for device in devices),
        host_memory_bytes=host.memory_bytes,
        context=context,
        rows=tuple(rows),
        too_large_models=too_large,
        unknown_models=unknown,
        notes=(*notes, *own_notes),
    )


def _runnable(model: ModelProfile, devices: Sequence[LocalDevice], host: Host, context: int) -> RunnableModel | None:
    """Return a model with the largest quantization that fits: on the devices alone, else with a part on the host."""
    why = unlisted(model)
    if why is not None:
        raise UnsupportedError(why)
    recipes = _OWN_MXFP4 if has_mxfp4_experts(model) else RECIPES
    count = sum(parameters(model).values())
    tokens = min(context, model.context_limit or context)
    room = sum(device.free_bytes for device in devices)
    spills = (host.memory_bytes or 0) - host.used_bytes
    largest_spilling = next((name for name in recipes if name == _SPILLING), next(iter(recipes)))
    for spilling in (False, True):
        names = [name for name in recipes if not spilling or recipes[name] <= recipes[largest_spilling]]
        for name in names:
            smallest_bytes = _NEARLY * count * recipes[name] / _BITS
            if smallest_bytes > room + (spills if spilling else 0):
                continue
            placed = _placed(model, name, devices, host, tokens)
            row = _row(placed, model, name, count, spilling=spilling, spills=spills)
            if row is not None:
                return row
    return None


class _Placed:
    """A model by a recipe on the machine: its bytes, and the placement by its layers' times."""

    def __init__(self, on: OnMachine, sizes: list[LayerBytes], choice: Choice) -> None:
        self.on, self.sizes, self.choice = on, sizes, choice

    @property
    def host_bytes(self) -> int:
        """Bytes that stand on the host: whole layers, experts, and the table."""
        whole = sum(each.plain + each.experts for each in self.sizes[: self.choice.host_units])
        moved = sum(self.sizes[layer].experts for layer in self.choice.host_experts)
        table = sum(weight.size for weight in self.on.setup.weights if weight.name == "token_embd.weight")
        return whole + moved + table

    @property
    def stands(self) -> str:
        """The places that hold it, in words."""
        if self.choice.host_units == len(self.sizes):
            return "host"
        return "devices and host" if self.choice.host_units or self.choice.host_experts else "devices"


def _placed(model: ModelProfile, recipe: str, devices: Sequence[LocalDevice], host: Host, tokens: int) -> _Placed:
    weights = model_weights(model, recipe)
    options = LlamaCppOptions(context=tokens)
    setup = LocalSetup(
        model=model, weights=weights, format=recipe, file="", context=options, devices=tuple(devices), host=host
    )
    on = OnMachine(setup=setup, outer=_formats(weights))
    sizes = _layer_bytes(model, weights, options)
    units = units_of(on.local(sizes, (decode_step(batch=1, context=tokens),)))
    free = tuple(max(0, device.free_bytes - SPARE_BYTES) for device in devices)
    return _Placed(on, sizes, chosen(units, Memories(capacity_bytes=free, fixed_bytes=(_COMPUTE_BYTES,) * len(free))))


def _formats(weights: Sequence[Weight]) -> Formats:
    """Return the formats that the tensors outside the layers are stored in; layers have those of their own."""
    kinds = {weight.name: weight.kind for weight in weights}
    table = parse_format(kinds["token_embd.weight"])
    head = parse_format(kinds.get("output.weight", kinds["token_embd.weight"]))
    half = FORMATS["fp16"]
    return Formats(
        weights=table, parts={"vector": FORMATS["fp32"], "embedding": table, "head": head}, key=half, value=half
    )


def _layer_bytes(model: ModelProfile, weights: Sequence[Weight], options: LlamaCppOptions) -> list[LayerBytes]:
    """Return the bytes of each layer with its cache, and last of the output, as they stand in the file."""
    count = all_layers(model)
    plain, experts = [0] * (count + 1), [0] * (count + 1)
    head = "output.weight" if any(weight.name == "output.weight" for weight in weights) else "token_embd.weight"
    for weight in weights:
        layer = weight.tensor.layer
        if layer >= 0:
            (experts if "_exps." in weight.name else plain)[layer] += weight.size
        elif weight.name == head:
            plain[-1] += weight.size
    for kept in layout(model, options).tensors:
        plain[kept.layer] += kept.size
    return [LayerBytes(plain=own, experts=routed) for own, routed in zip(plain, experts, strict=True)]


def _row(
    placed: _Placed, model: ModelProfile, recipe: str, count: int, *, spilling: bool, spills: int
) -> RunnableModel | None:
    """Return a row where the machine holds the placement; without spilling, where the devices alone do."""
    alone = placed.stands == "devices"
    if not alone and (not spilling or placed.host_bytes + GIB > spills):
        return None
    known = all(device.hardware is not None for device in placed.on.setup.devices)
    return RunnableModel(
        model=model.name,
        parameters=count,
        weights=recipe.upper(),
        total_bytes=sum(weight.size for weight in placed.on.setup.weights),
        stands=placed.stands,
        tokens_per_s=1 / placed.choice.seconds if known and placed.choice.seconds else None,
    )
