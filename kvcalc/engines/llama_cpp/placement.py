"""The placement of a model's layers on devices and the host, as llama.cpp derives it from its options.

Source: llama.cpp commit 0c1e57098bba, ``llama_model_base::load_tensors`` (``src/llama-model.cpp``),
``llama_model_loader::create_tensor``, ``llama_prepare_model_devices``, ``llama_context`` and ``common/arg.cpp``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.identity import ById
from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.overrides import EXPERTS, HOST, Override, check_patterns, overriding

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MAX_COPIES", "Placement", "PlacementOptions", "SplitMode", "place"]

SplitMode = Literal["none", "layer", "row", "tensor"]
_SPLIT_MODES = ("none", "layer", "row", "tensor")

# Copies of each split's inputs with pipeline parallelism: ``GGML_SCHED_MAX_COPIES``.
MAX_COPIES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """The options of llama.cpp that decide where layers go, as a user gives them.

    Args:
        gpu_layers: ``--gpu-layers``: layers on devices, counted from the last, the output layer included; none for
            all of them (``auto`` without ``--fit``, ``all``).
        tensor_split: ``--tensor-split``: share of each device; by free memory where empty or all zero.
        split_mode: ``--split-mode``.
        main_gpu: ``--main-gpu``: the one device of split mode ``none``.
        n_cpu_moe: ``--n-cpu-moe``: first layers whose experts stay on the host.
        cpu_moe: ``--cpu-moe``: whether the experts of all layers do.
        overrides: ``--override-tensor``, in the order given; before those of experts.
        kv_offload: false with ``--no-kv-offload``: cache and states stay on the host.
        op_offload: false with ``--no-op-offload``: large batches of host layers are computed on the host.

    Raises:
        InputError: a value that llama.cpp does not take.
    """

    gpu_layers: int | None = None
    tensor_split: tuple[float, ...] = ()
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    n_cpu_moe: int = 0
    cpu_moe: bool = False
    overrides: tuple[Override, ...] = ()
    kv_offload: bool = True
    op_offload: bool = True

    def __post_init__(self) -> None:
        if self.split_mode not in _SPLIT_MODES:
            raise InputError(f"split mode is {self.split_mode!r}", hint="none, layer or row", parameter="split-mode")
        if self.n_cpu_moe < 0:
            raise InputError(f"n-cpu-moe is {self.n_cpu_moe}", hint="a whole number from 0", parameter="n-cpu-moe")
        if any(not 0 <= share < float("inf") for share in self.tensor_split):
            raise InputError("a share of the tensor split is below 0", hint="as 3,1", parameter="tensor-split")
        check_patterns(self.overrides)

    @property
    def all_overrides(self) -> tuple[Override, ...]:
        """All overrides in the order they are tried: those given, then those of ``cpu_moe`` and ``n_cpu_moe``."""
        experts = (Override(pattern=EXPERTS),) if self.cpu_moe else ()
        layers = "|".join(map(str, range(self.n_cpu_moe)))
        first = (Override(pattern=rf"blk\.({layers}){EXPERTS}"),) if self.n_cpu_moe else ()
        return (*self.overrides, *experts, *first)


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Places of a model's layers, from which weights, caches and compute buffers of each device follow.

    A place is the index of a device, in the order the devices were given, or none for the host.

    Args:
        devices: number of devices given; with split mode ``none`` all but one of them hold nothing.
        layers: place of each layer's weights, layers that predict further tokens included (``n_layer_all``).
        output: place of the output layer: its norm and head. A tied head is a copy of the embedding, unless both are
            on the host. The input layer (embedding) is always on the host.
        overrides: tensors stored elsewhere; the first pattern that is found in a tensor's name counts.
        gpu_layers: layers on devices as llama.cpp counts them, the output layer included.
        kv_offload: whether a layer's cache and states stand where its weights do; else on the host.
        op_offload: whether the devices compute large batches of layers on the host.
        split_mode: split mode.
        main_gpu: the one device of split mode ``none``.
        tensor_split: cumulated shares of the devices in use, the last one 1.
        pipeline_parallel: whether `MAX_COPIES` copies of the inputs of each split are kept, so that devices overlap.
    """

    devices: int
    layers: tuple[int | None, ...]
    output: int | None
    overrides: tuple[Override, ...] = ()
    gpu_layers: int = 0
    kv_offload: bool = True
    op_offload: bool = True
    split_mode: SplitMode = "layer"
    main_gpu: int = 0
    tensor_split: tuple[float, ...] = ()
    pipeline_parallel: bool = False

    @property
    def copies(self) -> int:
        """Copies of the inputs of each split."""
        return MAX_COPIES if self.pipeline_parallel else 1

    @property
    def used(self) -> tuple[int, ...]:
        """The devices that llama.cpp uses, in order."""
        return (self.main_gpu,) if self.split_mode == "none" and self.devices else tuple(range(self.devices))

    @property
    def holding(self) -> tuple[int, ...]:
        """The devices that hold layers or the output, in order."""
        return tuple(sorted({home for home in (*self.layers, self.output) if home is not HOST}))

    def of_layer(self, layer: int) -> int | None:
        """Return the place of a layer's weights; that of the output for the layer after the last."""
        return self.output if layer == len(self.layers) else self.layers[layer]

    def of_cache(self, layer: int) -> int | None:
        """Return the place of a layer's cache and states."""
        return self.layers[layer] if self.kv_offload else HOST

    def of_tensor(self, name: str, home: int | None) -> int | None:
        """Return the place of a tensor: where its layer is (``home``), unless an override moves it.

        Args:
            name: its name in the GGUF file.
            home: the place of its layer.
        """
        return overriding(ById(self.overrides)).place(name, home) if self.overrides else home

    def of_layer_tensors(self, layer: int, names: tuple[str, ...]) -> tuple[int | None, ...]:
        """Return the places of a layer's tensors.

        Args:
            layer: the layer.
            names: their names in the GGUF file, behind the layer's number.
        """
        home = self.layers[layer]
        if not self.overrides:
            return (home,) * len(names)
        return overriding(ById(self.overrides)).of_layer(layer, names, home)


def place(options: PlacementOptions, *, layers: int, free_bytes: Sequence[int]) -> Placement:
    """Return the placement of a model by llama.cpp's rule.

    The last ``gpu_layers`` layers, the output layer counted as one of them, go to devices; each device gets its share
    of them in order.

    Args:
        options: the options.
        layers: all layers of the file, those that predict further tokens included.
        free_bytes: free memory of each device, by which layers are shared where no tensor split is given.

    Raises:
        InputError: a device that is not there, or more shares than devices.
        UnsupportedError: a split that is not described.

    >>> split = PlacementOptions(gpu_layers=4, tensor_split=(3.0, 1.0))
    >>> placed = place(split, layers=6, free_bytes=(24 * 2**30, 12 * 2**30))
    >>> placed.layers, placed.output
    ((None, None, None, 0, 0, 0), 1)
    """
    _check(options, len(free_bytes))
    used = list(range(len(free_bytes)))
    if options.split_mode == "none" and used:
        used = [options.main_gpu]
    shares = _cumulated(_shares(options, used, free_bytes))
    whole = layers + 1
    count = whole if options.gpu_layers is None or options.gpu_layers < 0 else min(options.gpu_layers, whole)
    count = count if used else 0
    first = whole - count
    homes = [HOST if layer < first else used[_share_of(layer - first, count, shares)] for layer in range(whole)]
    overrides = options.all_overrides
    piped = len(used) > 1 and count > layers and options.split_mode == "layer" and options.kv_offload
    return Placement(
        devices=len(free_bytes),
        layers=tuple(homes[:-1]),
        output=homes[-1],
        overrides=overrides,
        gpu_layers=count,
        kv_offload=options.kv_offload,
        op_offload=options.op_offload,
        split_mode=options.split_mode,
        main_gpu=options.main_gpu,
        tensor_split=shares,
        pipeline_parallel=piped and not overrides,
    )


def _check(options: PlacementOptions, devices: int) -> None:
    if options.split_mode in ("row", "tensor"):
        raise UnsupportedError(
            f"split mode {options.split_mode} is not described: at this version of llama.cpp CUDA has no buffers split "
            "by rows, and tensors are an experiment",
            hint="take --split-mode layer or none",
        )
    if len(options.tensor_split) > devices:
        raise InputError(
            f"{len(options.tensor_split)} shares for {devices} devices",
            hint="give one share for each --device",
            parameter="tensor-split",
        )
    if devices and not 0 <= options.main_gpu < devices:
        raise InputError(
            f"there is no device {options.main_gpu}", hint=f"devices are 0 to {devices - 1}", parameter="main-gpu"
        )
    for override in options.overrides:
        if override.device is None:
            continue
        if not 0 <= override.device < devices:
            raise InputError(f"there is no device {override.device} to override to", parameter="override-tensor")
        if options.split_mode == "none" and override.device != options.main_gpu:
            raise InputError(
                f"device {override.device} is not used with split mode none: nothing can be overridden to it",
                hint=f"--main-gpu {override.device}, or --split-mode layer",
                parameter="override-tensor",
            )


def _shares(options: PlacementOptions, used: Sequence[int], free_bytes: Sequence[int]) -> list[float]:
    given = [*options.tensor_split, *[0.0] * len(free_bytes)][: len(used)]
    free = [float(free_bytes[device]) for device in used]
    return given if any(given) else free if any(free) else [1.0] * len(used)


def _share_of(index: int, count: int, shares: Sequence[float]) -> int:
    """Return the share that a layer falls into: the first that ends above its part of all layers."""
    return bisect_right(shares, _single(index / count))


def _cumulated(shares: Iterable[float]) -> tuple[float, ...]:
    """Return the end of each share in the whole, in the 32-bit numbers that llama.cpp computes with."""
    ends, total = [], 0.0
    for share in shares:
        total = _single(total + _single(share))
        ends.append(total)
    return tuple(_single(end / total) for end in ends)


def _single(number: float) -> float:
    """Round to a 32-bit float."""
    rounded: float = struct.unpack("f", struct.pack("f", number))[0]
    return rounded
