"""Bytes that llama.cpp's ``--fit`` finds for the placements it tries: compute buffers are replayed where they decide.

Weights and context are counted for each trial. Compute buffers are taken from a trial with alike layers at alike
places, or from the largest that is known; the graph is replayed where a device's bytes come near to what it may take.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.units import MIB
from kvcalc.engines.llama_cpp.compute import layer_places
from kvcalc.engines.llama_cpp.fitting import Use
from kvcalc.plan.local.memory import kept_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.engines.llama_cpp.fitting import FitQuestion, Trial
    from kvcalc.plan.local.memory import LocalMemory
    from kvcalc.plan.local.setup import LocalSetup

__all__ = ["Trials"]

# How far the buffers of a trial may be from those taken for it: those of alike layers at alike places by a part of
# them, those of other layers at the same places by as much again but no more than this, any others by a multiple.
_ALIKE_PART, _MOST_OTHERWISE_BYTES, _OTHER_TIMES = 16, 512 * MIB, 8
_SLACK_BYTES = 32 * MIB


class _Known(NamedTuple):
    """Buffers of a trial that was replayed.

    Args:
        places: kinds of layers and their places.
        holds: the places of layers and output, and those that tensors are moved to.
        buffers: compute buffers of each device.
    """

    places: Hashable
    holds: Hashable
    buffers: tuple[int, ...]


class Trials:
    """Trials of one search.

    Args:
        setup: model and machine.
        question: what --fit is asked.
        exact: returns the bytes of a trial with its compute buffers.
    """

    def __init__(self, setup: LocalSetup, question: FitQuestion, exact: Callable[[Trial], LocalMemory]) -> None:
        self.setup, self.question, self.exact = setup, question, exact
        self.known: dict[int, list[_Known]] = {}
        self.devices = range(len(setup.devices))

    def used(self, trial: Trial) -> list[Use]:
        """Return the bytes of each device for a trial: its weights, and all of them."""
        setup, known = self.setup, self.known.get(trial.context)
        if not known or setup.draft is not None or setup.projector_bytes:
            return self._exact(trial)
        context = replace(setup.context, context=trial.context)
        kept = kept_memory(setup, setup.model, setup.weights, context, trial.options)
        places, holds = self._places(trial.context, kept), _holds(kept)
        lacking, slack = [], []
        for device, target in zip(self.devices, self.question.targets, strict=True):
            buffer, near = _taken(known, places, holds, device)
            lacking.append(kept.total(device) + buffer - target)
            slack.append(near + _SLACK_BYTES)
        if any(abs(over) <= room for over, room in zip(lacking, slack, strict=True)) or abs(sum(lacking)) <= sum(slack):
            return self._exact(trial)
        uses = zip(self.devices, lacking, self.question.targets, strict=True)
        return [Use(kept.weights[device], over + target) for device, over, target in uses]

    def learn(self, context: int, memory: LocalMemory) -> None:
        """Keep the compute buffers of a placement that were replayed, if they are described.

        Args:
            context: tokens of all sequences together.
            memory: its bytes.
        """
        if memory.compute is not None:
            buffers = tuple(memory.compute[device] for device in self.devices)
            known = _Known(self._places(context, memory), _holds(memory), buffers)
            self.known.setdefault(context, []).insert(0, known)

    def _exact(self, trial: Trial) -> list[Use]:
        memory = self.exact(trial)
        self.learn(trial.context, memory)
        return [Use(memory.weights[device], memory.total(device)) for device in self.devices]

    def _places(self, tokens: int, memory: LocalMemory) -> Hashable:
        setup = self.setup
        context = replace(setup.context, context=tokens)
        backends = [device.backend for device in setup.devices]
        return layer_places(setup.model, memory.placement, context, weights=setup.weights, backends=backends)


def _holds(memory: LocalMemory) -> Hashable:
    """Return the places of a placement's layers, and those that it moves tensors to."""
    placement = memory.placement
    homes = frozenset((*placement.layers, placement.output))
    return homes, frozenset(override.device for override in placement.overrides)


def _taken(known: Sequence[_Known], places: Hashable, holds: Hashable, device: int) -> tuple[int, int]:
    """Return the buffer that is taken for a device, and how far the true one may be from it, in bytes."""
    for each in known:
        if each.places == places:
            return each.buffers[device], each.buffers[device] // _ALIKE_PART
    for each in known:
        if each.holds == holds:
            return each.buffers[device], min(each.buffers[device], _MOST_OTHERWISE_BYTES)
    largest = max(each.buffers[device] for each in known)
    return largest, _OTHER_TIMES * largest
