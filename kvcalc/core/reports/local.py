"""A model on one machine's devices and host: the answer of ``kvcalc fit --device`` and ``kvcalc size --device``."""

from __future__ import annotations

from dataclasses import field

from kvcalc.core.figures import figure
from kvcalc.core.records import dataclass
from kvcalc.core.reports.common import Report
from kvcalc.core.reports.local_speed import EngineFit, LocalSpeed
from kvcalc.core.reports.size import SizeReport

__all__ = ["LocalReport", "LocalSizeReport", "PlaceBytes", "PlacementChoice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceBytes:
    """A device or the host, and the bytes that the engine takes there.

    Args:
        name: its name, as it was given.
        memory_bytes: memory that programs can fill; none where it is not known.
        used_bytes: of that, taken by other programs.
        overhead_bytes: what the device's runtime takes beside the engine's buffers, at the least.
        layers: layers whose weights it holds as llama.cpp counts them: the output and layers that predict further
            tokens (MTP) are among them.
        output_layers: of these, the output: 1 or 0.
        mtp_layers: of these, those that predict further tokens.
        expert_layers: layers of devices whose experts stand here instead: of the host.
        weight_bytes: weights.
        repacked_bytes: of the host: weights in a buffer of the CPU's own, which llama.cpp's tables of memory leave out.
        context_bytes: KV cache and recurrent states.
        compute_bytes: compute buffers; none where they are not known.
        reserved_bytes: all of these together.
        fits: whether the memory holds them; none where it is not known.
        bandwidth_bytes_per_s: peak of the memory; none where it is not known.
        link_bytes_per_s: of a device: PCIe to the host, in one direction; none where it is not known.
    """

    name: str
    memory_bytes: int | None
    used_bytes: int = 0
    overhead_bytes: int = 0
    layers: int
    output_layers: int = 0
    mtp_layers: int = 0
    expert_layers: int = 0
    weight_bytes: int = field(metadata=figure("weights", "lower"))
    repacked_bytes: int = 0
    context_bytes: int = field(metadata=figure("context", "lower"))
    compute_bytes: int | None = field(metadata=figure("compute buffers", "lower"))
    reserved_bytes: int = field(metadata=figure("in all", "lower"))
    fits: bool | None = field(metadata=figure("fits", "higher"))
    bandwidth_bytes_per_s: float | None = None
    link_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementChoice:
    """A placement in the engine's own options.

    Args:
        gpu_layers: layers on devices, the output layer counted as one.
        all_layers: all layers, counted so.
        tensor_split: share of each device; empty where free memory decides.
        n_cpu_moe: first layers whose experts stay on the host.
        cpu_moe: whether those of all layers do.
        overrides: further tensors and where they go, as ``pattern=CPU``.
        split_mode: ``layer`` or ``none``.
        main_gpu: the device of split mode ``none``.
        kv_offload: whether the cache stands beside its layers' weights.
        copies: copies of inputs that devices keep to overlap: 4 with pipeline parallelism.
        words: where the model's own layers and their experts are, in words.
    """

    gpu_layers: int
    all_layers: int
    tensor_split: tuple[float, ...] = ()
    n_cpu_moe: int = 0
    cpu_moe: bool = False
    overrides: tuple[str, ...] = ()
    split_mode: str = "layer"
    main_gpu: int = 0
    kv_offload: bool = True
    copies: int = 1
    words: str = ""


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LocalReport(Report):
    """Bytes of a model on each place of a machine, and whether they fit.

    Args:
        model: the model.
        engine: the engine and the version it is described of.
        weights: the recipe or format of the weights.
        context: tokens of each sequence.
        parallel: sequences.
        fits: whether all memories that are known hold what they are given.
        reason: why not.
        devices: the devices, in the order given.
        host: the host.
        placement: the placement as options.
        command: the line that starts the engine so.
        compute: how the compute buffers are known: ``exact``, ``estimate``, or empty where they are not.
        headline: the answer in one line.
        chosen: whether the placement is kvcalc's own choice: the fastest by the bound that the devices hold.
        tokens_per_s: decoded tokens a second of one sequence at most; none where a device's rates are not known.
        speed: the speed in full.
        engine_fit: what the engine's own ``--fit`` would choose at this context; none where options of the placement
            were given.
        notes: what a user should know.
    """

    schema: str = "kvcalc.fit_devices/1"
    model: str
    engine: str
    weights: str
    context: int
    parallel: int
    fits: bool = field(metadata=figure("fits", "higher"))
    reason: str
    devices: tuple[PlaceBytes, ...]
    host: PlaceBytes
    placement: PlacementChoice
    command: str
    compute: str = ""
    headline: str = ""
    chosen: bool = False
    tokens_per_s: float | None = field(default=None, metadata=figure("tokens/s at most", "higher"))
    speed: LocalSpeed | None = None
    engine_fit: EngineFit | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LocalSizeReport(SizeReport):
    """A model's cache and weights, and where their bytes go on a machine; fields as those of both reports."""

    devices: tuple[PlaceBytes, ...]
    host: PlaceBytes
    placement: PlacementChoice
    command: str
