"""A model on a machine as Ollama or LM Studio loads it with llama.cpp: its context, batch and devices."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.fronts import context_note, ollama_devices, own_context, started_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.local.setup import LocalDevice

__all__ = ["Loaded", "fit_note", "started_on"]

_NAMES = {"ollama": "Ollama", "lm-studio": "LM Studio"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A model as a program loads it.

    Args:
        deployment: the model with the options that the program starts llama.cpp with.
        devices: the devices that it takes, in their order.
        context: tokens of the context, of one sequence or of all together.
        together: whether of all together.
        notes: what the program did by itself.
    """

    deployment: Deployment
    devices: tuple[LocalDevice, ...]
    context: int | None
    together: bool
    notes: tuple[str, ...] = ()


def started_on(
    deployment: Deployment, devices: Sequence[LocalDevice], *, context: int | None, batch: int, together: bool
) -> Loaded:
    """Return a model as the program that was asked for loads it; as it is where llama.cpp was asked for itself.

    Args:
        deployment: the model as llama.cpp runs it.
        devices: the devices of the machine.
        context: tokens of the context; the program's own where left out.
        batch: sequences.
        together: whether the context is that of all sequences.

    Raises:
        InputError: a version of Ollama that is not described.
    """
    options, model, given = deployment.options, deployment.model.text_only(), tuple(devices)
    if not options.front:
        return Loaded(deployment=deployment, devices=given, context=context, together=together)
    notes = []
    asked = options.max_model_len or context
    total = sum(device.memory_bytes for device in given)
    if asked is None:
        notes.append(context_note(options, model, total))
    parallel = max(batch, options.parallel)
    length = asked or own_context(options, model, total)
    # one length for all sequences, where it was asked for so or they share its cells
    shared = (options.kv_unified and batch == 1) or (together and context is not None)
    each = max(1, length // parallel) if shared and not options.kv_unified else length
    free = [device.free_bytes for device in given]
    options = started_by(options, model, deployment.formats, sum(free), max_model_len=each)
    taken = given
    if options.front == "ollama":
        kinds = [device.backend.device for device in given]
        cells = length if shared else length * parallel
        taken = tuple(given[index] for index in ollama_devices(model, deployment.formats, cells, free, kinds))
        if len(taken) < len(given):
            names = ", ".join(device.name for device in taken)
            notes.append(f"Ollama loads this model on {names} alone (OLLAMA_SCHED_SPREAD=1: on all)")
    elif len(given) > 1:
        notes.append("how LM Studio divides a model among devices is not published: this is llama.cpp's division")
    return Loaded(
        deployment=replace(deployment, options=options),
        devices=taken,
        context=length if options.ctx_size is None else context,
        together=shared if options.ctx_size is None else together,
        notes=(*options.front_notes, *notes),
    )


def fit_note(front: str) -> str:
    """Return the note of a placement that a program left to llama.cpp."""
    return f"{_NAMES[front]} leaves the placement to llama.cpp's --fit: this is its choice"
