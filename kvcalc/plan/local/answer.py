"""Our own placement on a machine, the speed of any placement, and the one that llama.cpp's ``--fit`` would choose."""

from __future__ import annotations

from dataclasses import field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvcalc.core.model import Mixture
from kvcalc.core.records import dataclass
from kvcalc.core.reports.local_speed import EngineFit, LocalSpeed, MovedTensors
from kvcalc.core.units import GIB, MIB, bytes_text, rate_text
from kvcalc.core.workload import decode_step
from kvcalc.engines.checkpoint import as_multiplied
from kvcalc.engines.llama_cpp import layout
from kvcalc.engines.llama_cpp.devices import place_context
from kvcalc.engines.llama_cpp.fitting import FitQuestion, Trial, fitted
from kvcalc.engines.llama_cpp.options import context_sizes
from kvcalc.engines.llama_cpp.overrides import EXPERTS, HOST, Override
from kvcalc.engines.llama_cpp.placement import Placement, PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, place_weights
from kvcalc.plan.estimates import few_measurements
from kvcalc.plan.local.command import buffer_name
from kvcalc.plan.local.hosts import beyond_note
from kvcalc.plan.local.machine import Machine, host_profile, yielding_host
from kvcalc.plan.local.memory import LocalMemory, local_memory, local_report
from kvcalc.plan.local.placing import LayerBytes, Local, Tried, choose
from kvcalc.plan.local.sections import layer_formats, placed_model, splits_layers
from kvcalc.plan.local.speed import Course, machine_speed
from kvcalc.plan.local.trials import Trials
from kvcalc.plan.local.words import headline, placement_words

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.calibration import Calibration, Phase
    from kvcalc.core.reports.local import LocalReport
    from kvcalc.core.workload import Formats, TokenGroup
    from kvcalc.plan.local.setup import LocalSetup

__all__ = ["SPARE_BYTES", "OnMachine", "local_answer", "taken_placement"]

# Memory that our own placement leaves free on each device beside what is counted: CUDA takes some while it runs.
SPARE_BYTES = 256 * MIB
# The same where the compute buffers are not known.
_SPARE_UNKNOWN_BYTES = GIB
# The host's memory where none is said: two channels of DDR5-5600, as desktops of 2024 have.
_HOST_TRANSFERS_PER_S, _HOST_CHANNELS, _CHANNEL_BYTES = 5_600_000_000, 2, 8
# Rate of a device of which the memory alone is known, as a multiple of the host's: placements are chosen as if so.
_TIMES_HOST = 10.0


@dataclass(frozen=True, kw_only=True)
class OnMachine:
    """A model that llama.cpp loads on a machine.

    Args:
        setup: model, context and machine.
        outer: formats of the whole model, as it runs.
        calibrations: measured efficiencies by place.
        sequences: sequences that share the context; as many as may run at once where left out.
    """

    setup: LocalSetup
    outer: Formats
    calibrations: Mapping[int | None, Calibration] = field(default_factory=dict)
    sequences: int | None = None

    @property
    def context(self) -> int:
        """Tokens of one sequence."""
        return max(1, self.setup.context.context // (self.sequences or self.setup.context.parallel))

    @property
    def host_is_assumed(self) -> bool:
        """Whether the bandwidth of the host's memory was not said."""
        return self.setup.host.bandwidth_bytes_per_s is None

    @cached_property
    def machine(self) -> Machine:
        """Rates of devices and host; of a device of which the memory alone is known, a guess to choose by."""
        assumed = float(_HOST_TRANSFERS_PER_S * _HOST_CHANNELS * _CHANNEL_BYTES)
        host = host_profile(self.setup.host.bandwidth_bytes_per_s or assumed)
        unknown = replace(host, memory_bandwidth_bytes_per_s=_TIMES_HOST * host.memory_bandwidth_bytes_per_s)
        devices = self.setup.devices
        links = {}
        for index, device in enumerate(devices):
            # nothing crosses a link where host and device share a memory: a network is no link between them
            own = device.hardware.links.get("scale_out") if device.hardware and not device.is_unified else None
            link = device.link or own
            if link is not None:
                links[index] = link
        return Machine(devices=tuple(each.hardware or unknown for each in devices), host=host, links=links)

    @cached_property
    def machine_to_choose_by(self) -> Machine:
        """The machine where a device of unified memory is preferred to its host, whose memory is the same."""
        shared = next((each.hardware for each in self.setup.devices if each.is_unified), None)
        if shared is None:
            return self.machine
        return replace(self.machine, host=yielding_host(shared, self.machine.host))

    @cached_property
    def run(self) -> Formats:
        """Formats as llama.cpp multiplies on these devices."""
        cards = [device.hardware for device in self.setup.devices if device.hardware is not None]
        return as_multiplied("llama.cpp", self.outer, cards)

    @cached_property
    def by_layer(self) -> Sequence[Formats]:
        """Formats of each layer."""
        return layer_formats(self.setup.model, self.setup.weights, self.run)

    @cached_property
    def _memories(self) -> dict[tuple[int, PlacementOptions], LocalMemory]:
        """Bytes by place of the placements that were asked for."""
        return {}

    def memory(self, options: PlacementOptions, *, context: int | None = None) -> LocalMemory:
        """Return the bytes by place for a placement, counted once.

        Args:
            options: the options of the placement.
            context: tokens of all sequences together, where they are others than the setup's.
        """
        tokens = self.setup.context.context if context is None else context
        key = (tokens, options)
        if key not in self._memories:
            setup = replace(self.setup, context=replace(self.setup.context, context=tokens))
            self._memories[key] = local_memory(setup, options)
        return self._memories[key]

    def chosen(self) -> PlacementOptions:
        """Return the fastest placement that all devices hold with some memory to spare."""
        return self._choice(self.spare_bytes, self._tried)

    @property
    def spare_bytes(self) -> int:
        """Bytes that our own placement leaves free on each device."""
        known = self.memory(PlacementOptions()).compute is not None
        return SPARE_BYTES if known else _SPARE_UNKNOWN_BYTES

    def _choice(self, spare_bytes: int, measure: Callable[[PlacementOptions], Tried]) -> PlacementOptions:
        groups = (decode_step(batch=1, context=self.context),)
        local = self.local(self._layer_bytes, groups, spare_bytes=spare_bytes)
        return choose(replace(local, measure=measure)).options

    @cached_property
    def _layer_bytes(self) -> list[LayerBytes]:
        return _layer_bytes(self.setup)

    def spare_note(self, chosen: Placement) -> str:
        """Return a note on the memory that the choice leaves free; empty where it decided nothing.

        Args:
            chosen: the placement that was chosen.
        """
        trials = self._trials(replace(self._question(self.setup.context.context), margin_bytes=(0,) * chosen.devices))

        def nearly(options: PlacementOptions) -> Tried:
            # whether devices hold it is certain, which is all that is asked
            used = trials.used(Trial(context=self.setup.context.context, options=options))
            sizes = tuple(each.total_bytes for each in used)
            return Tried(options=options, placement=_placed(self, options), device_bytes=sizes)

        filled = _placed(self, self._choice(0, nearly))
        if filled == chosen:
            return ""
        before, after = (placement_words(self.setup, each) for each in (chosen, filled))
        other = f": filled to the last byte it would be {after}" if before != after else ""
        return f"the choice leaves {bytes_text(self.spare_bytes)} of each device free for what is not counted{other}"

    def local(
        self, layer_bytes: Sequence[LayerBytes], groups: Sequence[TokenGroup], *, spare_bytes: int = SPARE_BYTES
    ) -> Local:
        """Return the model, the machine and the measure for the search for a placement.

        Args:
            layer_bytes: bytes of each layer, and last of the output.
            groups: the pass whose time counts.
            spare_bytes: bytes that are left free on each device.
        """
        return Local(
            model=self.setup.model,
            by_layer=self.by_layer,
            outer=self.run,
            machine=self.machine_to_choose_by,
            capacity_bytes=tuple(max(0, device.free_bytes - spare_bytes) for device in self.setup.devices),
            layer_bytes=layer_bytes,
            groups=groups,
            measure=self._tried,
            shared_bytes=self.setup.shared_free_bytes,
        )

    def _tried(self, options: PlacementOptions) -> Tried:
        memory = self.memory(options)
        totals = tuple(memory.total(index) for index in range(len(self.setup.devices)))
        shared = memory.shared_bytes(self.setup)
        return Tried(options=options, placement=memory.placement, device_bytes=totals, shared_bytes=shared)

    def speed(self, placement: Placement, *, estimated: bool = True) -> LocalSpeed | None:
        """Return the speed; none where the rates of a device that is used are not known.

        Args:
            placement: the places of layers.
            estimated: whether estimates are wanted beside the bounds.
        """
        if not estimated or splits_layers(self.setup.model, self.setup.weights, placement):
            return machine_speed(self.course(placement), {})
        calibrations = self.calibrations
        if self.host_is_unmeasured and _computes_on_host(self.setup, placement):
            calibrations = {device: each for device, each in calibrations.items() if device is not HOST}
        return machine_speed(self.course(placement), calibrations)

    @property
    def host_is_unmeasured(self) -> bool:
        """Whether a device reads the host's memory: no such host was measured beside its device."""
        return any(device.is_unified for device in self.setup.devices)

    def course(self, placement: Placement) -> Course:
        """Return the stages that passes of the model run through with a placement."""
        sizes = context_sizes(self.setup.context, trained=self.setup.model.context_limit)
        return Course(
            placed=placed_model(self.setup.model, self.by_layer, placement, outer=self.run),
            machine=self.machine,
            context=self.context,
            sequences=self.sequences or self.setup.context.parallel,
            micro_batch=min(sizes.n_ubatch, self.context),
            batch=min(self.setup.context.batch, self.context),
            is_known=all(self.setup.devices[device].hardware is not None for device in placement.holding),
        )

    @property
    def _free_bytes(self) -> tuple[int, ...]:
        return tuple(device.free_bytes for device in self.setup.devices)

    def fitted(self, *, context: int | None) -> Trial | None:
        """Return the placement that llama.cpp's own ``--fit`` ends with; arguments and none as in `engine_fit`."""
        question = self._question(context)
        try:
            return fitted(question, self._trials(question).used)
        except ZeroDivisionError:
            return None

    def _question(self, context: int | None) -> FitQuestion:
        """Return the start of --fit with its own margins; arguments as in `engine_fit`."""
        model, asked = self.setup.model, self.setup.context
        return FitQuestion(
            layers=model.layers,
            has_experts=any(isinstance(block.mlp, Mixture) for block in model.block_counts),
            trained_context=model.context_limit or asked.context,
            free_bytes=self._free_bytes,
            context=context,
            streams=1 if asked.kv_unified else asked.parallel,
        )

    def engine_fit(self, *, context: int | None) -> EngineFit | None:
        """Return the placement of llama.cpp's own ``--fit``; none where its search divides by zero.

        Args:
            context: tokens of all sequences together; none where the engine may choose.
        """
        model, fitted = self.setup.model, self.fitted(context=context)
        if fitted is None:
            return None
        names = [buffer_name(self.setup, index) for index in range(len(self.setup.devices))]
        overrides = (
            MovedTensors(pattern=each.pattern, place="CPU" if each.device is None else names[each.device])
            for each in fitted.options.overrides
        )
        placement = place(fitted.options, layers=all_layers(model), free_bytes=self._free_bytes)
        speed = self.speed(placement, estimated=False)
        return EngineFit(
            context=fitted.context,
            gpu_layers=model.layers + 1 if fitted.gpu_layers is None else fitted.gpu_layers,
            tensor_split=fitted.options.tensor_split,
            overrides=tuple(overrides),
            flags=fitted.flags(names),
            tokens_per_s=None if speed is None else speed.tokens_per_s,
        )

    def _trials(self, question: FitQuestion) -> Trials:
        """Return the trials of a search, with the buffers of all placements that were replayed before."""
        trials = Trials(self.setup, question, lambda trial: self.memory(trial.options, context=trial.context))
        for (context, _), memory in self._memories.items():
            trials.learn(context, memory)
        return trials

    def headline(self, placement: Placement, speed: LocalSpeed | None) -> str:
        """Return the answer in one line."""
        return headline(
            self.setup,
            placement,
            context=self.context,
            parallel=self.sequences or self.setup.context.parallel,
            speed=speed,
        )


def _layer_bytes(setup: LocalSetup) -> list[LayerBytes]:
    """Return the bytes of each layer on a device, and last of the output: each as if on a device of its own."""
    count = setup.layers
    backends = [device.backend for device in setup.devices[:1]] * (count + 1)
    alone = Placement(devices=count + 1, layers=tuple(range(count)), output=count)
    without = replace(alone, overrides=(Override(pattern=EXPERTS),))
    whole, plain = (place_weights(setup.model, setup.weights, each, backends).by_place for each in (alone, without))
    kept = place_context(layout(setup.model, setup.context), alone, backends)
    return [
        LayerBytes(plain=plain[index] + kept[index], experts=whole[index] - plain[index]) for index in range(count + 1)
    ]


def local_answer(on: OnMachine, options: PlacementOptions | None) -> LocalReport:
    """Return the bytes of a model by place, its speed on a machine, and the choice of the engine's own ``--fit``.

    Args:
        on: model and machine.
        options: the placement; our own choice where left out.

    Raises:
        InputError: options that llama.cpp refuses.
        UnsupportedError: a model whose memory is not described.
    """
    chosen = options is None and bool(on.setup.devices)
    taken = _taken(on, options)
    report = local_report(on.setup, taken, memory=on.memory(taken))
    placement = _placed(on, taken)
    speed = on.speed(placement)
    compared = chosen and report.compute and on.setup.draft is None
    return replace(
        report,
        headline=on.headline(placement, speed) if report.fits else f"does not fit: {report.reason}",
        context=on.context,
        chosen=chosen,
        tokens_per_s=None if speed is None else speed.tokens_per_s,
        speed=speed,
        engine_fit=on.engine_fit(context=on.setup.context.context) if compared else None,
        notes=(
            *report.notes,
            *_spare_notes(on, placement, chosen=chosen),
            *_speed_notes(on, placement, speed),
            *_few_notes(on, speed),
        ),
    )


def taken_placement(on: OnMachine, options: PlacementOptions | None) -> Placement:
    """Return the placement that `local_answer` is about; arguments as there."""
    return _placed(on, _taken(on, options))


def _taken(on: OnMachine, options: PlacementOptions | None) -> PlacementOptions:
    return on.chosen() if options is None and on.setup.devices else options or PlacementOptions()


def _placed(on: OnMachine, options: PlacementOptions) -> Placement:
    return place(options, layers=on.setup.layers, free_bytes=[device.free_bytes for device in on.setup.devices])


def _spare_notes(on: OnMachine, placement: Placement, *, chosen: bool) -> list[str]:
    note = on.spare_note(placement) if chosen else ""
    return [note] if note else []


def _computes_on_host(setup: LocalSetup, placement: Placement) -> bool:
    """Whether the host computes with layers, or with tensors of layers that options move to it."""
    if HOST in placement.layers:
        return True
    moves = any(override.device is HOST for override in placement.overrides)
    homes = dict(enumerate(placement.layers[: setup.model.layers]))
    return moves and any(
        placement.of_tensor(weight.name, homes[weight.tensor.layer]) is HOST
        for weight in setup.weights
        if weight.tensor.layer in homes
    )


def _few_notes(on: OnMachine, speed: LocalSpeed | None) -> list[str]:
    """Return notes on calibrations that have too few measurements of what is estimated."""
    if speed is None or speed.estimate_s is None:
        return []
    phases: tuple[Phase, ...] = ("decode",) if speed.prefill_estimated_tokens_per_s is None else ("decode", "prefill")
    used = {each.name: each for each in on.calibrations.values() if each.name in speed.calibrations}
    return [note for each in used.values() for note in few_measurements(each, on.setup.model, *phases)]


def _speed_notes(on: OnMachine, placement: Placement, speed: LocalSpeed | None) -> list[str]:
    if speed is not None and splits_layers(on.setup.model, on.setup.weights, placement):
        return ["no estimate: the bound takes tensors that -ot moves, but for whole experts, where their layer is"]
    if speed is None or not _computes_on_host(on.setup, placement):
        return []
    if on.host_is_unmeasured:
        return ["no estimate: a CPU that shares the memory of its GPU was not measured beside it"]
    bandwidth = on.machine.host.memory_bandwidth_bytes_per_s
    if on.host_is_assumed:
        rate = rate_text(bandwidth)
        return [f"the host's memory is taken to read {rate} (two channels of DDR5-5600): --host ddr5-6000x2 says yours"]
    beyond = beyond_note(bandwidth)
    return [beyond] if beyond and speed.estimate_s is not None else []
