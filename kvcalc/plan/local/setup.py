"""A model to be run on one machine: devices in the engine's order, the host, and the options of the context."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.backends import MEMORY, Backend
from kvcalc.engines.llama_cpp.weights import all_layers

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile, Link
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions
    from kvcalc.engines.llama_cpp.weights import Weight

__all__ = ["Host", "LocalDevice", "LocalSetup", "SecondModel"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDevice:
    """A device.

    Args:
        name: its name, as it was given.
        memory_bytes: memory that programs can fill.
        used_bytes: of that, taken by other programs.
        overhead_bytes: what its runtime takes beside the engine's buffers, at the least.
        backend: the back end that runs it.
        hardware: its profile; none where its memory alone is known.
        link: what joins it to the host, where that is known.
    """

    name: str
    memory_bytes: int
    used_bytes: int = 0
    overhead_bytes: int = 0
    backend: Backend = MEMORY
    hardware: HardwareProfile | None = None
    link: Link | None = None

    @property
    def free_bytes(self) -> int:
        """Memory that the engine finds free when it starts."""
        return max(0, self.memory_bytes - self.used_bytes - self.overhead_bytes)

    @property
    def is_unified(self) -> bool:
        """Whether its memory is the host's."""
        return self.hardware is not None and self.hardware.unified_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """The host.

    Args:
        name: its name, as it was given.
        memory_bytes: its memory; none where it is not known.
        used_bytes: of that, taken by other programs.
        bandwidth_bytes_per_s: peak of its memory; none where it is not known.
        hardware: its profile, where one was named.
    """

    name: str = "host"
    memory_bytes: int | None = None
    used_bytes: int = 0
    bandwidth_bytes_per_s: float | None = None
    hardware: HardwareProfile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecondModel:
    """A model that is loaded beside the first: one that drafts for it.

    Args:
        model: the model.
        weights: its tensors.
        context: the options of its context.
        file: its file, for the command.
        tokens: tokens that it drafts at most; the engine's own number where left out.
    """

    model: ModelProfile
    weights: tuple[Weight, ...]
    context: LlamaCppOptions
    file: str
    tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSetup:
    """A model, what is asked of it, and the machine.

    Args:
        model: the model, without towers.
        weights: its tensors.
        format: the recipe or format of the weights, in words.
        file: its file, for the command.
        context: the options of the context, its length included.
        devices: the devices, in the engine's order.
        host: the host.
        draft: the model that drafts for it.
        projector_bytes: weights of the file of towers for images.
        projector: that file, for the command.
        notes: what was assumed.
    """

    model: ModelProfile
    weights: tuple[Weight, ...]
    format: str
    file: str
    context: LlamaCppOptions
    devices: tuple[LocalDevice, ...]
    host: Host = field(default_factory=Host)
    draft: SecondModel | None = None
    projector_bytes: int = 0
    projector: str = ""
    notes: tuple[str, ...] = ()

    @property
    def shared_free_bytes(self) -> int | None:
        """Memory that devices and host share and that is free; none where no device shares the host's."""
        unified = [device for device in self.devices if device.is_unified]
        if not unified or self.host.memory_bytes is None:
            return None
        taken = sum(device.used_bytes + device.overhead_bytes for device in unified)
        return max(0, self.host.memory_bytes - self.host.used_bytes - taken)

    @property
    def layers(self) -> int:
        """Layers that are placed."""
        return all_layers(self.model)
