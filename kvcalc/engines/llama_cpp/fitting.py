"""The placement that llama.cpp's own ``--fit`` chooses: a context, layers for each device, and weights that overflow.

The search asks again and again how many bytes each device would take; `fitted` takes that as a function, so that it
knows nothing of tensors.

Source: llama.cpp commit 0c1e57098bba, ``common_params_fit_impl`` in ``common/fit.cpp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from kvcalc.core.records import dataclass
from kvcalc.core.units import GIB
from kvcalc.engines.llama_cpp.overrides import Override
from kvcalc.engines.llama_cpp.placement import PlacementOptions

__all__ = ["MARGIN_BYTES", "MIN_CONTEXT", "FitQuestion", "Measure", "Trial", "Use", "fitted"]

# What --fit leaves free on each device (``--fit-target``), and the shortest context that it takes (``--fit-ctx``).
MARGIN_BYTES = GIB
MIN_CONTEXT = 4096

# Tensors of a layer that leave its device, by what stays: ``attention``, with the up matrices, with up and gate; or
# everything but routed experts.
_PATTERNS = {
    "attention": r"blk\.{layer}\.ffn_(gate|up|gate_up|down).*",
    "up": r"blk\.{layer}\.ffn_(gate|gate_up|down).*",
    "gate": r"blk\.{layer}\.ffn_down.*",
    "experts": r"blk\.{layer}\.ffn_(up|down|gate_up|gate)_(ch|)exps",
}
_EVERY_LAYER = r"\d+"
_ALIGNED_TOKENS = 256
# Numbers of layers are unsigned 32-bit integers that wrap around.
_WRAP = 2**32
_EVERYWHERE = PlacementOptions()


class Use(NamedTuple):
    """Bytes that a device would take: of weights, and in all."""

    weight_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A placement to measure.

    Args:
        context: tokens of all sequences together.
        options: where layers and weights go.
    """

    context: int
    options: PlacementOptions = _EVERYWHERE

    @property
    def gpu_layers(self) -> int | None:
        """Layers on devices, the output counted as one; none for all."""
        return self.options.gpu_layers

    def flags(self, device_names: Sequence[str]) -> str:
        """Return the placement as llama.cpp's options, as its tool prints them; every layer is ``-ngl -1``."""
        options = self.options
        words = [f"-c {self.context} -ngl {-1 if options.gpu_layers is None else options.gpu_layers}"]
        used = max((index + 1 for index, layers in enumerate(options.tensor_split) if layers), default=0)
        if used > 1:
            words.append("-ts " + ",".join(str(int(layers)) for layers in options.tensor_split[:used]))
        if options.overrides:
            places = ("CPU" if each.device is None else device_names[each.device] for each in options.overrides)
            pairs = (f"{each.pattern}={device}" for each, device in zip(options.overrides, places, strict=True))
            words.append(f'-ot "{",".join(pairs)}"')
        return " ".join(words)


Measure = Callable[[Trial], Sequence[Use]]


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """The start of --fit.

    Args:
        layers: layers of the model, those that predict further tokens only where they are loaded.
        has_experts: whether it has routed experts.
        trained_context: tokens it was trained with.
        free_bytes: free memory of each device.
        context: tokens of all sequences that the user asked for; none where --fit may choose, 0 for the trained ones.
        margin_bytes: what stays free on each device; 1 GiB each where left out.
        min_context: the shortest context it may choose.
        streams: sequences that have a cache of their own.
    """

    layers: int
    has_experts: bool
    trained_context: int
    free_bytes: tuple[int, ...]
    context: int | None = None
    margin_bytes: tuple[int, ...] = ()
    min_context: int = MIN_CONTEXT
    streams: int = 1

    @property
    def targets(self) -> list[int]:
        """Bytes that each device may take."""
        margins = self.margin_bytes or (MARGIN_BYTES,) * len(self.free_bytes)
        return [free - margin for free, margin in zip(self.free_bytes, margins, strict=True)]

    @property
    def longest(self) -> int:
        """Tokens of all sequences at the trained length."""
        return self.trained_context * self.streams

    @property
    def shortest(self) -> int:
        """Tokens of all sequences at the shortest length that --fit may choose."""
        return self.min_context * self.streams


def fitted(question: FitQuestion, measure: Measure) -> Trial:
    """Return the placement that --fit ends with; every layer on the devices where that leaves the margins free.

    Args:
        question: model, memories and what was asked for.
        measure: returns the bytes of each device for a placement.

    Source: llama.cpp commit 0c1e57098bba, ``common_params_fit_impl``.

    >>> def measure(trial):
    ...     layers = 11 if trial.gpu_layers is None else trial.gpu_layers
    ...     return [Use(layers * 2**30, layers * (2**30 + trial.context * 2**12))]
    >>> asked = FitQuestion(layers=10, has_experts=False, trained_context=8192, free_bytes=(8 * 2**30,), context=8192)
    >>> fitted(asked, measure).gpu_layers
    6
    """
    full = Trial(context=question.context or question.longest)
    used = measure(full)
    targets = question.targets
    lacking = [use.total_bytes - target for use, target in zip(used, targets, strict=True)]
    if max(lacking) <= 0:
        return full
    context = full.context
    if question.context is None and sum(lacking) > 0 and question.longest > question.shortest:
        context, is_enough = _shorter(question, used, measure)
        if is_enough and len(targets) == 1:
            return replace(full, context=context)
    return _Search(question, context, measure).placement()


def _shorter(question: FitQuestion, used: Sequence[Use], measure: Measure) -> tuple[int, bool]:
    """Return a shorter context, and whether all layers are expected to stay on the devices with it.

    Bytes are taken to be linear in the context between the shortest and the longest. On several devices some memory
    is expected to be wasted: half a layer each, or a third of that with routed experts, and one more.
    """
    target = sum(question.targets)
    devices = len(question.targets)
    if devices > 1:
        layer = sum(use.weight_bytes for use in used) // question.layers
        target -= (devices + 1) * layer // (6 if question.has_experts else 2)
    shortest_bytes = sum(use.total_bytes for use in measure(Trial(context=question.shortest)))
    used_bytes = sum(use.total_bytes for use in used)
    if target <= shortest_bytes:
        return question.shortest, False
    more = (question.longest - question.shortest) * (target - shortest_bytes) // (used_bytes - shortest_bytes)
    context = question.shortest + more
    return max(context - context % (_ALIGNED_TOKENS * question.streams), question.shortest), True


@dataclass(frozen=True, slots=True)
class _Filling:
    """Layers of one device.

    Args:
        layers: how many.
        partial: the last of them, whose experts overflow.
        stays: what stays of the first partial layer; of all others everything but routed experts does.
    """

    layers: int = 0
    partial: int = 0
    stays: str = "experts"

    @property
    def whole(self) -> int:
        return (self.layers - self.partial) % _WRAP

    def plus(self, layers: int = 0, partial: int = 0) -> _Filling:
        """Return it with more or fewer layers; as the engine's numbers, they wrap around below none."""
        return replace(self, layers=(self.layers + layers) % _WRAP, partial=(self.partial + partial) % _WRAP)


@dataclass(frozen=True, slots=True)
class _State:
    """Layers of every device, the devices that first partial layers overflow to, and the bytes this takes.

    Args:
        fillings: layers of each device.
        overflow: for each device, the one that its first partial layer overflows to; none for the host.
        used: bytes of each device.
        dense_from: first device with partial layers that could be made whole.
    """

    fillings: tuple[_Filling, ...]
    overflow: tuple[int | None, ...]
    used: tuple[int, ...] = ()
    dense_from: int = 0


class _Search:
    """The search for layers and overflow at a fixed context."""

    def __init__(self, question: FitQuestion, context: int, measure: Measure) -> None:
        self.question, self.context, self.measure = question, context, measure
        self.targets = question.targets
        self.last = len(self.targets) - 1

    def placement(self) -> Trial:
        """Fill devices from the last to the first; then make layers whole from the first to the last."""
        devices = len(self.targets)
        state = self.measured(_State((_Filling(),) * devices, (None,) * devices))
        for device in reversed(range(devices)):
            state = self.filled(state, device)
        if self.question.has_experts and self.holds_all_but_experts():
            state = self.all_whole(state)
        return self.trial(state)

    def trial(self, state: _State) -> Trial:
        """Return the options of a state."""
        split = tuple(filling.layers for filling in state.fillings)
        gpu_layers = sum(split) % _WRAP
        overrides = []
        layer = (self.question.layers + 1 - gpu_layers) % _WRAP
        for filling, target in zip(state.fillings, state.overflow, strict=True):
            layer = (layer + filling.whole) % _WRAP
            after = (layer + filling.partial) % _WRAP
            for index in range(layer, after):
                first = index == layer
                pattern = _PATTERNS[filling.stays if first else "experts"].replace("{layer}", str(index))
                overrides.append(Override(pattern=pattern, device=target if first else None))
            layer = after
        shares = tuple(map(float, split)) if self.last else ()
        options = PlacementOptions(gpu_layers=gpu_layers, tensor_split=shares, overrides=tuple(overrides))
        return Trial(context=self.context, options=options)

    def measured(self, state: _State) -> _State:
        """Return a state with its bytes."""
        used = self.measure(self.trial(state))
        return replace(state, used=tuple(use.total_bytes for use in used))

    def holds_all_but_experts(self) -> bool:
        """Whether the devices together hold the model where all routed experts are the host's."""
        everywhere = Override(pattern=_PATTERNS["experts"].replace("{layer}", _EVERY_LAYER))
        used = self.measure(Trial(context=self.context, options=PlacementOptions(overrides=(everywhere,))))
        return sum(self.targets) > sum(use.total_bytes for use in used)

    def filled(self, state: _State, device: int) -> _State:
        """Return the most of the layers that are left on a device; with routed experts, those are the host's."""
        layers = self.question.layers + 1 - sum(filling.layers for filling in state.fillings[device + 1 :])
        if layers == 0:
            return state
        high = self.measured(self.with_dense(state, device, layers))
        if high.used[device] <= self.targets[device]:
            return high

        def more(low: _State, step: int) -> _State:
            return self.with_dense(low, device, low.fillings[device].layers + step)

        return self.closest(state, high, device, count=lambda each: each.fillings[device].layers, more=more)

    def with_dense(self, state: _State, device: int, layers: int) -> _State:
        """Return a state with so many layers of a device, all partial with routed experts but the output's."""
        output = 1 if device == self.last else 0
        partial = layers - output if self.question.has_experts else 0
        fillings = list(state.fillings)
        fillings[device] = _Filling(layers=layers, partial=partial)
        return replace(state, fillings=tuple(fillings))

    def closest(
        self, low: _State, high: _State, device: int, *, count: Callable[[_State], int],
        more: Callable[[_State, int], _State],
    ) -> _State:  # fmt: skip
        """Return the state nearest to a device's target by the method of false position: ``low`` fits, ``high`` not."""
        target = self.targets[device]
        while (delta := count(high) - count(low)) > 1:
            step = _truncated(delta * (target - low.used[device]), high.used[device] - low.used[device]) % _WRAP
            test = self.measured(more(low, min(max(step, 1), delta - 1)))
            if test.used[device] <= target:
                low = test
            else:
                high = test
        return low

    def all_whole(self, state: _State) -> _State:
        """Return a state with partial layers made whole, and a part of one more, until each device is full."""
        dense = self.last
        while dense > 0 and state.fillings[dense - 1].layers:
            dense -= 1
        state = replace(state, dense_from=dense)
        device = 0
        while device <= state.dense_from <= self.last:
            state = self.part_of_one_more(self.whole_on(state, device), device)
            device += 1
        return state

    def whole_on(self, state: _State, device: int) -> _State:
        """Return the most partial layers of later devices made whole on this one."""
        fillings = list(state.fillings)
        for donor in range(state.dense_from, self.last + 1):
            moved = fillings[donor].layers - (1 if donor == self.last else 0)
            fillings[device] = fillings[device].plus(layers=moved)
            fillings[donor] = replace(fillings[donor].plus(layers=-moved), partial=0)
        high = self.measured(replace(state, fillings=tuple(fillings), dense_from=self.last))
        if high.used[device] <= self.targets[device]:
            return high
        return self.closest(
            state,
            high,
            device,
            count=lambda each: each.fillings[device].whole,
            more=lambda low, step: self.converted(low, device, step),
        )

    def converted(self, state: _State, device: int, layers: int) -> _State:
        """Return a state with so many partial layers, from the first that there are, made whole on a device."""
        fillings = list(state.fillings)
        donor = state.dense_from
        while donor <= self.last:
            taken = min(layers, fillings[donor].partial)
            layers -= taken
            fillings[donor] = fillings[donor].plus(layers=-taken, partial=-taken)
            fillings[device] = fillings[device].plus(layers=taken)
            if fillings[donor].partial > 0:
                break
            donor += 1
        return replace(state, fillings=tuple(fillings), dense_from=donor)

    def part_of_one_more(self, state: _State, device: int) -> _State:
        """Return a state with attention, or up and gate matrices, of one more layer on a device where they fit."""
        if state.fillings[state.dense_from].layers <= (1 if device == self.last else 0):
            return state
        with_up = self.overflowing(state, device, "up")
        if not self.leaves_room(with_up, device):
            with_attention = self.overflowing(state, device, "attention", like=with_up)
            return with_attention if self.leaves_room(with_attention, device) else state
        with_gate = self.overflowing(state, device, "gate", like=with_up)
        return with_gate if self.leaves_room(with_gate, device) else with_up

    def overflowing(self, state: _State, device: int, stays: str, *, like: _State | None = None) -> _State:
        """Return a state with one more partial layer on a device, whose rest goes to the next device, else the host."""
        if like is not None:
            fillings = list(like.fillings)
            fillings[device] = replace(fillings[device], stays=stays)
            return self.measured(replace(like, fillings=tuple(fillings)))
        fillings, overflow = list(state.fillings), list(state.overflow)
        donor = state.dense_from
        fillings[donor] = fillings[donor].plus(layers=-1, partial=-1)
        fillings[device] = replace(fillings[device].plus(layers=1, partial=1), stays=stays)
        if device < self.last:
            overflow[device] = device + 1
        dense = donor + (fillings[donor].partial == 0)
        return self.measured(replace(state, fillings=tuple(fillings), overflow=tuple(overflow), dense_from=dense))

    def leaves_room(self, state: _State, device: int) -> bool:
        """Whether a device, and the next one, stay below their targets."""
        checked = range(device, min(device + 2, self.last + 1))
        return all(state.used[index] < self.targets[index] for index in checked)


def _truncated(number: int, divisor: int) -> int:
    """Divide as C does, towards zero."""
    quotient = abs(number) // abs(divisor)
    return quotient if (number < 0) == (divisor < 0) else -quotient
