"""The compute buffers of llama.cpp: memory of each device and the host for the values between operations.

The graph of a worst-case prompt is built, split over the devices and given memory as llama.cpp's scheduler and
allocator do it, so that the peaks are equal to the byte where the architecture's graph is described.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.identity import ById
from kvcalc.core.model import Attention, Shared, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.engines.llama_cpp.architectures import architecture_key, find_architecture
from kvcalc.engines.llama_cpp.graphs.allocator import peak_bytes, requests
from kvcalc.engines.llama_cpp.graphs.model import Plan, build, check_described, is_described, layer_kinds
from kvcalc.engines.llama_cpp.graphs.places import Places, stored_type
from kvcalc.engines.llama_cpp.graphs.repeats import ROUNDS, Rounds, kept_layers, replayed
from kvcalc.engines.llama_cpp.graphs.scheduler import schedule
from kvcalc.engines.llama_cpp.graphs.shapes import Batch
from kvcalc.engines.llama_cpp.layers import shape_layers
from kvcalc.engines.llama_cpp.layout import layout
from kvcalc.engines.llama_cpp.options import context_sizes

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.backends import Backend
    from kvcalc.engines.llama_cpp.graphs.allocator import Requests
    from kvcalc.engines.llama_cpp.graphs.repeats import Run
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions
    from kvcalc.engines.llama_cpp.placement import Placement
    from kvcalc.engines.llama_cpp.weights import Weight

    _Four = tuple[int, int, int, int]

__all__ = ["ComputeBytes", "compute_bytes", "layer_places"]

# Tokens below which norms are fixed to their layers.
_LARGE_BATCH = 32
# Widths of heads that CUDA has fused attention for.
_FUSED_WIDTHS = frozenset({40, 64, 72, 80, 96, 112, 128, 256, 512})
# Architectures with rotary factors for long and for short contexts.
_LONG_AND_SHORT = frozenset({"phi3", "phimoe"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeBytes:
    """Compute buffers.

    Args:
        devices: bytes on each device, in order.
        host: bytes on the host.
        exact: whether the graph is described, so that they are equal to the engine's; else they are an estimate.
    """

    devices: tuple[int, ...]
    host: int
    exact: bool


def compute_bytes(
    model: ModelProfile,
    placement: Placement,
    options: LlamaCppOptions,
    *,
    weights: tuple[Weight, ...],
    backends: Sequence[Backend],
    outputs: int | None = None,
) -> ComputeBytes:
    """Return the compute buffers of a model under a placement.

    With CUDA they hold what fused attention turns a quantised cache into; its own pool, for matrices and activations
    in other types, grows beyond them while it runs.

    Source: llama.cpp commit 0c1e57098bba, ``llama_context::sched_reserve``.

    Args:
        model: the model.
        placement: where its layers stand.
        options: the context's options.
        weights: the tensors of its file, as `model_weights` has them.
        backends: the back end of each device.
        outputs: ``n_outputs_max``, the most tokens of a batch whose logits are computed. Left out, it is the batch, as
            for the library and llama-fit-params; llama-server asks for one a sequence, and more for its drafts.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: a model whose graph cannot be described.
    """
    return _compute_bytes(ById(model), placement, options, ById(weights), tuple(backends), outputs)


def layer_places(
    model: ModelProfile,
    placement: Placement,
    options: LlamaCppOptions,
    *,
    weights: tuple[Weight, ...],
    backends: Sequence[Backend],
) -> Hashable:
    """Return the kinds of layers and their places in order, however many are alike in a row.

    Compute buffers of placements that share them are the same, or nearly so: the largest layer makes the peak.

    Raises:
        UnsupportedError: a model whose graph cannot be described.
    """
    types = _types(ById(weights))
    places = Places(placement, types, tuple(backends))
    plan = _plan(ById(model), options, types, options.batch)
    return places.signature(plan.kinds, range(len(plan.layers)), once=True)


@lru_cache(maxsize=1024)
def _compute_bytes(
    same: ById[ModelProfile],
    placement: Placement,
    options: LlamaCppOptions,
    weights: ById[tuple[Weight, ...]],
    backends: tuple[Backend, ...],
    outputs: int | None,
) -> ComputeBytes:
    model, types = same.value, _types(weights)
    places = Places(placement, types, backends)
    plan = _plan(same, options, types, outputs or options.batch)
    if options.flash_attn == "auto" and not _stays_fused(plan, places):
        plan = _unfused(ById(plan))
    peaks = _peaks(plan, places)
    at = places.numbers
    return ComputeBytes(
        devices=tuple(peaks[at[device]] if device in at else 0 for device in range(placement.devices)),
        host=peaks[places.host],
        exact=is_described(model) and all(_runs_fused(plan, backend) for backend in backends),
    )


@lru_cache(maxsize=64)
def _types(weights: ById[tuple[Weight, ...]]) -> ById[Mapping[str, Weight]]:
    return ById({weight.name: weight for weight in weights.value})


def _peaks(plan: Plan, places: Places) -> list[int]:
    """Return the peak of each backend; of layers that repeat a few are built, unless they are not alike."""
    runs = places.runs(plan.kinds)
    asked, rounds = _asked(plan, places, runs)
    events = replayed(asked.events, rounds, asked.sizes)
    if events is None:
        asked, _ = _asked(plan, places, ())
        events = asked.events
    return peak_bytes(events, asked.sizes, alignments=[backend.alignment for backend in places.backends])


def _asked(plan: Plan, places: Places, runs: Sequence[Run]) -> tuple[Requests, list[Rounds]]:
    """Return the requests to the allocator, and the rounds among them; computed once for layers that stand alike."""
    order = kept_layers(len(plan.layers), runs)
    known, key = _known_requests(ById(plan)), (_signature(plan, places, order), _shape(order, runs))
    if key not in known:
        known[key] = _requested(plan, places, runs, order)
    asked, begins = known[key]
    rounds = [Rounds(*four, run.times - ROUNDS) for four, run in zip(begins, runs, strict=True)]
    return replace(asked, sizes=list(asked.sizes)), rounds


def _signature(plan: Plan, places: Places, order: Sequence[int]) -> Hashable:
    """Return a key of the graph of the layers that are built; for models that share caches with all their places."""
    shares = any(isinstance(mixer, Shared) for mixer in plan.model.mixers)
    return places.signature(plan.kinds, order), places.placement.layers if shares else ()


@lru_cache(maxsize=16)
def _known_requests(plan: ById[Plan]) -> dict[Hashable, tuple[Requests, list[_Four]]]:
    """Return the requests of a plan that are known: by the places of the layers that are built."""
    del plan
    return {}


def _shape(order: Sequence[int], runs: Sequence[Run]) -> tuple[tuple[int, int], ...]:
    """Return the beginnings of runs among the layers that are built, and the lengths of their rounds."""
    return tuple((order.index(run.first), run.length) for run in runs)


def _requested(plan: Plan, places: Places, runs: Sequence[Run], order: Sequence[int]) -> tuple[Requests, list[_Four]]:
    graph = build(plan, places.homes(), order)
    split = schedule(graph, places.all)
    asked = requests(split, backends=places.backends)

    def begin(layer: int) -> int:
        return asked.begins[split.places[graph.begins[layer]]]

    begins = []
    for run in runs:
        first, second, third, fourth = (begin(run.first + number * run.length) for number in range(ROUNDS))
        begins.append((first, second, third, fourth))
    return asked, begins


def _stays_fused(plan: Plan, places: Places) -> bool:
    """Whether llama.cpp keeps flash attention: only if it runs where each layer's weights are.

    It looks at a graph of one token a sequence, in which norms are fixed to their layers.

    Source: llama.cpp commit 0c1e57098bba, ``llama_context::resolve_fused_ops``.
    """
    placement = places.placement
    if placement.kv_offload and (None not in placement.layers or _stands_together(plan, places)):
        return True
    order = kept_layers(len(plan.layers), places.runs(plan.kinds))
    known, key = _known_fused(ById(plan)), _signature(plan, places, order)
    if key not in known:
        known[key] = _is_fused(plan, places, order)
    return known[key]


def _stands_together(plan: Plan, places: Places) -> bool:
    """Whether the matrices before and behind each attention are computed right beside it, at the place of its cache.

    States come between: what updates them may be computed before the output of the attention in front of them.
    """
    return not plan.model.has(State) and places.moves_only("ffn_")


@lru_cache(maxsize=16)
def _known_fused(plan: ById[Plan]) -> dict[Hashable, bool]:
    """Return for places of the layers that are built whether attention stays fused, where that is known."""
    del plan
    return {}


def _is_fused(plan: Plan, places: Places, order: Sequence[int]) -> bool:
    count = plan.batch.sequences
    probe = replace(plan, batch=replace(plan.batch, tokens=count, outputs=count))
    fixed = count < _LARGE_BATCH or places.placement.gpu_layers > len(places.placement.layers)
    graph = build(probe, places.homes(fixed=fixed), order)
    fused = [node for node in graph.nodes if node.op == "flash_attn_ext"]
    schedule(graph, places.all)
    layers = [number for number in order if plan.layers[number].entry is not None]
    return all(node.backend == places.layer(number) for node, number in zip(fused, layers, strict=True))


def _runs_fused(plan: Plan, backend: Backend) -> bool:
    """Whether fused attention runs on a device, as the graph has it: CUDA lacks kernels for some heads and types."""
    if not backend.halves_cache or not plan.batch.flash:
        return True
    kinds = {plan.batch.key.name, plan.batch.value.name}
    widths = {(layer.entry.head_dim, layer.entry.value_dim) for layer in plan.layers if layer.entry is not None}
    return "iq4_nl" not in kinds and all(key in _FUSED_WIDTHS or value == 0 for key, value in widths)


@lru_cache(maxsize=16)
def _unfused(plan: ById[Plan]) -> Plan:
    """Return a plan without flash attention."""
    return replace(plan.value, batch=replace(plan.value.batch, flash=False))


@lru_cache(maxsize=64)
def _plan(
    same: ById[ModelProfile], options: LlamaCppOptions, types: ById[Mapping[str, Weight]], most_outputs: int
) -> Plan:
    model = same.value
    check_described(model)
    layers = shape_layers(model, find_architecture(model.architecture), options)
    sizes = context_sizes(options, trained=model.context_limit)
    tokens = min(sizes.n_ctx, sizes.n_ubatch)
    outputs = min(tokens, most_outputs)
    memory = layout(model, options)
    return Plan(
        model=model,
        layers=layers,
        batch=Batch(
            tokens=ceil_div(tokens, options.parallel) * options.parallel,
            sequences=options.parallel,
            outputs=outputs,
            streams=sizes.streams,
            flash=options.flash,
            transposed=not options.flash,
            key=stored_type(options.cache_type_k),
            value=stored_type(options.cache_type_v),
        ),
        cells={cache.role: cache.cells for cache in memory.caches},
        widest=max((layer.entry.kv_heads * layer.entry.value_dim for layer in layers if layer.entry), default=0),
        slots=options.parallel,
        kinds=layer_kinds(model, layers),
        factors=_rotary_factors(model, types.value),
    )


def _rotary_factors(model: ModelProfile, types: Mapping[str, Weight]) -> int:
    """Return the elements of the rotary factors that each layer reads: those for long or those for short contexts."""
    for name in ("rope_freqs.weight", "rope_factors_long.weight"):
        if name in types:
            return types[name].tensor.elements
    if architecture_key(model.architecture) == "gemma4":  # of half a head of the layers without a window
        return max(mixer.head_dim for mixer in model.mixers if isinstance(mixer, Attention)) // 2
    return model.rotary_factors // (2 if architecture_key(model.architecture) in _LONG_AND_SHORT else 1)
