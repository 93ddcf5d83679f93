"""The speed of a placement: bounds of decode and prefill, and estimates where every place has a calibration."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kvcalc.core.records import dataclass
from kvcalc.core.reports.local_speed import LocalSpeed
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.estimate import estimate_stages, reached_seconds, stage_terms
from kvcalc.cost.roofline import stages_time
from kvcalc.engines.llama_cpp.overrides import HOST
from kvcalc.plan.local.hosts import slowed
from kvcalc.plan.local.machine import pass_stages

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.cost_types import PlacedStage, StepEstimate
    from kvcalc.plan.local.machine import Machine
    from kvcalc.plan.local.sections import PlacedModel

__all__ = ["Course", "machine_speed"]


@dataclass(frozen=True, kw_only=True)
class Course:
    """Stages that passes of a placed model run through.

    Args:
        placed: the model and its places.
        machine: rates of devices and host.
        context: tokens attended by a decoded token.
        sequences: sequences that decode together.
        micro_batch: tokens of a prompt that are computed at once.
        batch: tokens of a prompt that are handed over at once, in one micro-batch or more.
        is_known: whether the rates of all devices in use are known.
    """

    placed: PlacedModel
    machine: Machine
    context: int
    sequences: int
    micro_batch: int
    batch: int
    is_known: bool = True

    @cached_property
    def decode(self) -> tuple[PlacedStage, ...]:
        """Stages of a decode step of one sequence."""
        return self.decoded_on(self.machine)

    @cached_property
    def prefill(self) -> tuple[PlacedStage, ...]:
        """Stages of the first micro-batch of a prompt."""
        return pass_stages(self.placed, (prefill_pass(batch=1, prompt=self.micro_batch),), self.machine)

    @property
    def micro_batches(self) -> int:
        """Micro-batches that are on their way together: one after another unless two devices or more overlap.

        Source: llama.cpp commit 0c1e57098bba, ``llama_context`` (pipeline parallelism), pull request 6017.
        """
        placement = self.placed.placement
        overlap = placement.pipeline_parallel and len(placement.holding) > 1
        return ceil_div(self.batch, self.micro_batch) if overlap else 1

    def decoded_on(self, machine: Machine, *, sequences: int = 1) -> tuple[PlacedStage, ...]:
        """Return the stages of a decode step on a machine; all sequences are of one context."""
        return pass_stages(self.placed, (decode_step(batch=sequences, context=self.context),), machine)


def machine_speed(course: Course, calibrations: Mapping[int | None, Calibration]) -> LocalSpeed | None:
    """Return bounds and estimates of decode and prefill; none where the rates of a device in use are not known.

    Args:
        course: the placed model and the machine.
        calibrations: measured efficiencies by place.
    """
    if not course.is_known:
        return None
    step_s = stages_time(course.decode).latency_s
    together_s = stages_time(course.decoded_on(course.machine, sequences=course.sequences)).latency_s
    return LocalSpeed(
        context=course.context,
        decode_ideal_s=step_s,
        tokens_per_s=1 / step_s,
        sequences=course.sequences,
        all_tokens_per_s=course.sequences / together_s,
        micro_batch=course.micro_batch,
        host_bytes_per_s=course.machine.host.memory_bandwidth_bytes_per_s,
        **_decode_estimate(course, calibrations),
        **_prefill(course, calibrations),
    )


def _decode_estimate(course: Course, calibrations: Mapping[int | None, Calibration]) -> dict[str, Any]:
    """Return the fields of an estimate of decode; none where a place has no calibration.

    A host that is faster than all that were measured may be as slow as the fastest of them.
    """
    own = _of_stages(course.decode, calibrations)
    if own is None:
        return {}
    estimate = estimate_stages(course.decode, own, "decode")
    slower, high_s = slowed(course.machine.host), estimate.high_s
    if slower is not None:
        same = course.decoded_on(replace(course.machine, host=slower))
        high_s = max(high_s, estimate_stages(same, own, "decode").high_s)
    return {
        "estimate_s": estimate.estimate_s,
        "estimate_low_s": estimate.low_s,
        "estimate_high_s": high_s,
        "estimated_tokens_per_s": 1 / estimate.estimate_s,
        "calibrations": tuple(dict.fromkeys(each.name for each in own)),
    }


def _prefill(course: Course, calibrations: Mapping[int | None, Calibration]) -> dict[str, Any]:
    """Return the fields of prefill: no bound where the host multiplies, no estimate where its weights cross a link."""
    stages, tokens = course.prefill, course.micro_batch
    if _computes(stages):
        return {"prefill_tokens_per_s": None}
    time = stages_time(stages)
    # many micro-batches on their way: the slowest device alone sets the pace
    bound_s = time.latency_s if course.micro_batches == 1 else time.ideal_s
    fields = {"prefill_tokens_per_s": tokens / bound_s, "overlapping_micro_batches": course.micro_batches}
    own = _of_stages(stages, calibrations)
    sections = course.placed.sections
    if own is None or any(each.home is HOST or each.experts != each.home for each in sections):
        return fields
    estimate = _overlapped(stages, own, course.micro_batches)
    return fields | {
        "prefill_estimated_tokens_per_s": tokens / estimate.estimate_s,
        "prefill_estimate_low_tokens_per_s": tokens / estimate.high_s,
        "prefill_estimate_high_tokens_per_s": tokens / estimate.low_s,
    }


def _overlapped(stages: Sequence[PlacedStage], calibrations: Sequence[Calibration], micro_batches: int) -> StepEstimate:
    """Return the estimate of one of several micro-batches that follow each other through the stages.

    The first passes all stages; each further one takes as long as the slowest of them.
    """
    whole = estimate_stages(stages, calibrations, "prefill")
    pairs = zip(stages, calibrations, strict=True)
    slowest_s = max(reached_seconds(stage_terms(stage), each) for stage, each in pairs)
    share = (whole.estimate_s + (micro_batches - 1) * slowest_s) / (micro_batches * whole.estimate_s)
    share = min(1.0, share)
    return replace(whole, estimate_s=share * whole.estimate_s, low_s=share * whole.low_s, high_s=share * whole.high_s)


def _of_stages(
    stages: Sequence[PlacedStage], calibrations: Mapping[int | None, Calibration]
) -> list[Calibration] | None:
    """Return the calibration of each stage, none where one has none; crossings to the host are in the host's."""
    known = []
    for stage in stages:
        own = calibrations.get(stage.place)
        crosses = all(op.part == "interconnect" for op in stage.ops)
        known.append(calibrations.get(HOST, own) if crosses else own)
    usable = [each for each in known if each is not None]
    return usable if usable and len(usable) == len(known) else None


def _computes(stages: Sequence[PlacedStage]) -> bool:
    """Whether the host multiplies with matrices: how fast it does is not known."""
    host = next((stage for stage in stages if stage.place is HOST), None)
    return host is not None and any(op.flop and op.part != "cache" for op in host.ops)
