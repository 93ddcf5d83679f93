"""Bytes of a model on each device and the host for a placement, and whether the memories hold them."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.records import dataclass
from kvcalc.core.reports.local import LocalReport, LocalSizeReport, PlaceBytes, PlacementChoice
from kvcalc.core.units import bytes_text
from kvcalc.engines.llama_cpp import VERSION, layout, option_notes
from kvcalc.engines.llama_cpp.compute import compute_bytes
from kvcalc.engines.llama_cpp.devices import place_context
from kvcalc.engines.llama_cpp.overrides import HOST
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, place_weights
from kvcalc.plan.local.command import override_texts, server_command
from kvcalc.plan.local.words import layers_note, placement_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.size import SizeReport
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions
    from kvcalc.engines.llama_cpp.placement import Placement
    from kvcalc.engines.llama_cpp.weights import Weight
    from kvcalc.plan.local.setup import LocalSetup

__all__ = ["LocalMemory", "kept_memory", "local_memory", "local_report", "with_places"]

_EXACT, _ESTIMATE = "exact", "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalMemory:
    """Bytes by place: devices by index, the host under none.

    Args:
        placement: the placement.
        weights: weights, without those that the CPU repacks.
        context: caches and states.
        compute: compute buffers; none where they are not known.
        repacked_bytes: weights on the host that the CPU repacks into a buffer of its own.
        is_exact: whether compute buffers are those of the engine to the byte.
        unknown: why they are not known.
    """

    placement: Placement
    weights: Mapping[int | None, int]
    context: Mapping[int | None, int]
    compute: Mapping[int | None, int] | None = None
    repacked_bytes: int = 0
    is_exact: bool = False
    unknown: str = ""

    def total(self, home: int | None) -> int:
        """Return all bytes of a device or the host."""
        compute = 0 if self.compute is None else self.compute[home]
        repacked = self.repacked_bytes if home is HOST else 0
        return self.weights[home] + self.context[home] + compute + repacked

    def shared_bytes(self, setup: LocalSetup) -> int:
        """Return the bytes of the host and of the devices that share its memory."""
        unified = (index for index, device in enumerate(setup.devices) if device.is_unified)
        return self.total(HOST) + sum(map(self.total, unified))


def local_memory(setup: LocalSetup, options: PlacementOptions) -> LocalMemory:
    """Return the bytes of each device and the host for llama.cpp's options, all models together.

    Args:
        setup: model, context and machine.
        options: the options of the placement.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: a model whose memory is not described.
    """
    memory = _of_model(setup, setup.model, setup.weights, setup.context, options)
    if setup.draft is not None:
        alike = PlacementOptions(
            tensor_split=options.tensor_split, split_mode=options.split_mode, main_gpu=options.main_gpu
        )
        second = setup.draft
        memory = _together(memory, _of_model(setup, second.model, second.weights, second.context, alike))
    if setup.projector_bytes:
        home = next(iter(memory.placement.used), HOST)
        memory = _with_weights(memory, home, setup.projector_bytes)
    return memory


def _of_model(
    setup: LocalSetup,
    model: ModelProfile,
    weights: tuple[Weight, ...],
    context: LlamaCppOptions,
    options: PlacementOptions,
) -> LocalMemory:
    kept = kept_memory(setup, model, weights, context, options)
    backends = [device.backend for device in setup.devices]
    try:
        buffers = compute_bytes(model, kept.placement, context, weights=weights, backends=backends)
    except UnsupportedError as unknown:
        return replace(kept, unknown=unknown.what)
    compute: dict[int | None, int] = {**dict(enumerate(buffers.devices)), HOST: buffers.host}
    return replace(kept, compute=compute, is_exact=buffers.exact)


def kept_memory(
    setup: LocalSetup,
    model: ModelProfile,
    weights: tuple[Weight, ...],
    context: LlamaCppOptions,
    options: PlacementOptions,
) -> LocalMemory:
    """Return the bytes of weights and context of one model by place, without compute buffers.

    Args:
        setup: the machine.
        model: the model.
        weights: its tensors.
        context: the options of its context.
        options: the options of the placement.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: a model whose memory is not described.
    """
    free = [device.free_bytes for device in setup.devices]
    backends = [device.backend for device in setup.devices]
    placement = place(options, layers=all_layers(model), free_bytes=free)
    placed = place_weights(model, weights, placement, backends)
    return LocalMemory(
        placement=placement,
        weights=placed.by_place,
        context=place_context(layout(model, context), placement, backends),
        repacked_bytes=placed.repacked_bytes,
    )


def _together(first: LocalMemory, second: LocalMemory) -> LocalMemory:
    compute = None
    if first.compute is not None and second.compute is not None:
        compute = {home: size + second.compute[home] for home, size in first.compute.items()}
    return LocalMemory(
        placement=first.placement,
        weights={home: size + second.weights[home] for home, size in first.weights.items()},
        context={home: size + second.context[home] for home, size in first.context.items()},
        compute=compute,
        repacked_bytes=first.repacked_bytes + second.repacked_bytes,
        is_exact=first.is_exact and second.is_exact,
        unknown=first.unknown or second.unknown,
    )


def _with_weights(memory: LocalMemory, home: int | None, size: int) -> LocalMemory:
    return replace(memory, weights={**memory.weights, home: memory.weights[home] + size})


def local_report(setup: LocalSetup, options: PlacementOptions, *, memory: LocalMemory | None = None) -> LocalReport:
    """Return the bytes of a model on each place, and whether they fit.

    Args:
        setup: model, context and machine.
        options: the options of the placement.
        memory: the bytes by place, where they were counted already.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: a model whose memory is not described.
    """
    memory = memory or local_memory(setup, options)
    devices = tuple(_device(setup, memory, index) for index in range(len(setup.devices)))
    host = _host(setup, memory)
    reason = _reason(setup, memory, devices, host)
    known = memory.compute is not None
    return LocalReport(
        model=setup.model.name,
        engine=f"llama.cpp {VERSION}",
        weights=setup.format,
        context=setup.context.context // setup.context.parallel,
        parallel=setup.context.parallel,
        fits=not reason,
        reason=reason,
        devices=devices,
        host=host,
        placement=_choice(setup, options, memory.placement),
        command=server_command(setup, options, memory.placement),
        compute=(_EXACT if memory.is_exact else _ESTIMATE) if known else "",
        notes=(
            *setup.notes,
            *option_notes(setup.model, setup.context),
            *_idle_notes(setup, options),
            *_notes(setup, memory, host),
        ),
    )


def with_places(report: SizeReport, placed: LocalReport) -> LocalSizeReport:
    """Return a size report with the bytes of each place of a machine."""
    own = {each.name: getattr(report, each.name) for each in fields(report)}
    own["notes"] = tuple(dict.fromkeys((*report.notes, *placed.notes)))
    return LocalSizeReport(
        **own, devices=placed.devices, host=placed.host, placement=placed.placement, command=placed.command
    )


def _device(setup: LocalSetup, memory: LocalMemory, index: int) -> PlaceBytes:
    device = setup.devices[index]
    total = memory.total(index)
    homes = (*memory.placement.layers, memory.placement.output)
    return PlaceBytes(
        name=device.name,
        memory_bytes=device.memory_bytes,
        used_bytes=device.used_bytes,
        overhead_bytes=device.overhead_bytes,
        layers=homes.count(index),
        output_layers=int(memory.placement.output == index),
        mtp_layers=_mtp_layers(setup, memory.placement, index),
        weight_bytes=memory.weights[index],
        context_bytes=memory.context[index],
        compute_bytes=None if memory.compute is None else memory.compute[index],
        reserved_bytes=total,
        fits=total <= device.free_bytes,
        bandwidth_bytes_per_s=None if device.hardware is None else device.hardware.memory_bandwidth_bytes_per_s,
        link_bytes_per_s=None if device.link is None else device.link.bytes_per_s,
    )


def _host(setup: LocalSetup, memory: LocalMemory) -> PlaceBytes:
    """Return the host; a unified memory holds what its devices take, too."""
    host, placement = setup.host, memory.placement
    total = memory.total(HOST)
    moved = {
        weight.tensor.layer
        for weight in setup.weights
        if "_exps." in weight.name and placement.layers[weight.tensor.layer] is not HOST
        and placement.of_tensor(weight.name, placement.layers[weight.tensor.layer]) is HOST
    }  # fmt: skip
    room = setup.shared_free_bytes
    fits = None if host.memory_bytes is None else total <= host.memory_bytes - host.used_bytes
    if room is not None:
        fits = memory.shared_bytes(setup) <= room
    return PlaceBytes(
        name=host.name,
        memory_bytes=host.memory_bytes,
        used_bytes=host.used_bytes,
        layers=(*placement.layers, placement.output).count(HOST),
        output_layers=int(placement.output is HOST),
        mtp_layers=_mtp_layers(setup, placement, HOST),
        expert_layers=len(moved),
        weight_bytes=memory.weights[HOST],
        repacked_bytes=memory.repacked_bytes,
        context_bytes=memory.context[HOST],
        compute_bytes=None if memory.compute is None else memory.compute[HOST],
        reserved_bytes=total,
        fits=fits,
        bandwidth_bytes_per_s=host.bandwidth_bytes_per_s,
    )


def _mtp_layers(setup: LocalSetup, placement: Placement, home: int | None) -> int:
    """Count the layers for multi-token prediction at a place; they follow the model's own."""
    return placement.layers[setup.model.layers :].count(home)


def _reason(setup: LocalSetup, memory: LocalMemory, devices: Sequence[PlaceBytes], host: PlaceBytes) -> str:
    for device, taken in zip(setup.devices, devices, strict=True):
        if not taken.fits:
            return f"{device.name} needs {bytes_text(taken.reserved_bytes)} of {bytes_text(device.free_bytes)} free"
    if host.fits is False and host.memory_bytes is not None:
        room = setup.shared_free_bytes
        if room is not None:
            return f"device and host together need {bytes_text(memory.shared_bytes(setup))} of {bytes_text(room)}"
        free = host.memory_bytes - host.used_bytes
        return f"{host.name} needs {bytes_text(host.reserved_bytes)} of {bytes_text(free)}"
    return ""


def _choice(setup: LocalSetup, options: PlacementOptions, placement: Placement) -> PlacementChoice:
    return PlacementChoice(
        gpu_layers=placement.gpu_layers,
        all_layers=setup.layers + 1,
        tensor_split=options.tensor_split,
        n_cpu_moe=options.n_cpu_moe,
        cpu_moe=options.cpu_moe,
        overrides=override_texts(setup, options.overrides),
        split_mode=options.split_mode,
        main_gpu=options.main_gpu,
        kv_offload=options.kv_offload,
        copies=placement.copies,
        words=placement_words(setup, placement),
    )


def _idle_notes(setup: LocalSetup, options: PlacementOptions) -> list[str]:
    """Name the options for experts that a model without any was given."""
    given = {"-ncmoe": options.n_cpu_moe, "-cmoe": options.cpu_moe}
    idle = [] if setup.model.is_mixture else [name for name, value in given.items() if value]
    return [f"{name} changes nothing: {setup.model.name} has no experts" for name in idle]


def _notes(setup: LocalSetup, memory: LocalMemory, host: PlaceBytes) -> list[str]:
    notes = []
    if memory.compute is None:
        notes.append(f"{memory.unknown}; they are not counted, and usually take some hundred MiB on each device")
    elif not memory.is_exact:
        notes.append("compute buffers are estimated: the graph of this architecture is not described")
    notes += layers_note(setup, memory.placement)
    if memory.placement.pipeline_parallel and len(memory.placement.holding) > 1:
        notes.append(f"pipeline parallelism: devices keep {memory.placement.copies} copies of their inputs")
    if host.repacked_bytes:
        notes.append(
            f"the CPU repacks {bytes_text(host.repacked_bytes)} of the host's weights into a buffer of its own "
            "(CPU_REPACK), which llama.cpp's own tables of memory leave out"
        )
    if host.memory_bytes is None:
        notes.append("the host's memory is not known: --host-memory says whether it holds its part")
    overheads = [device for device in setup.devices if device.overhead_bytes]
    if overheads:
        context_size = bytes_text(overheads[0].overhead_bytes)
        notes.append(
            f"a CUDA or HIP context takes {context_size} or more in addition to these buffers; "
            "already subtracted from the free memory"
        )
    return notes
