"""Estimates of records: with which calibration, of which passes, and whether its fit has seen them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from kvcalc.core.workload import TokenGroup, decode_step
from kvcalc.cost.estimate import estimate_time
from kvcalc.cost.forward import forward_cost
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.cases import Pass, most_held
from kvcalc.plan.estimates import best_calibration
from kvcalc.sources import shipped_calibrations

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.cases import Case
    from kvcalc.plan.deployment import Deployment

__all__ = ["CaseEstimate", "estimate_case", "estimated_passes", "is_estimable"]

# Engines that read new prompts in the steps in which other sequences decode.
_IN_FLIGHT = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseEstimate:
    """The estimated time of a case.

    Args:
        estimate_s: the estimate.
        low_s: lower end of its interval.
        high_s: upper end.
        calibration: the name of the calibration.
        seen: whether the calibration was fitted to this campaign's records, so that they cannot judge it.
    """

    estimate_s: float
    low_s: float
    high_s: float
    calibration: str
    seen: bool


def estimate_case(case: Case) -> CaseEstimate | None:
    """Return the estimate of a case, or none where no calibration applies or its time holds more than passes."""
    record = case.record
    if not is_estimable(case):
        return None
    found = best_calibration(_calibrations(), case.hardware, engines=(engine_of(record),))
    if found is None:
        return None
    parts = [(step.times, estimate_time(step.cost, case.hardware, found)) for step in estimated_passes(case)]
    return CaseEstimate(
        estimate_s=sum(times * part.estimate_s for times, part in parts),
        low_s=sum(times * part.low_s for times, part in parts),
        high_s=sum(times * part.high_s for times, part in parts),
        calibration=found.name,
        seen=campaign(record) in found.measured.trained_on,
    )


def is_estimable(case: Case) -> bool:
    """Whether the measured time is that of passes: a first token among others' waits, a pipeline's prompts overlap."""
    record, parallel = case.record, case.deployment.parallel if case.deployment is not None else None
    if record.phase == "ttft" and record.batch != 1:
        return False
    return parallel is None or parallel.pipeline == 1 or case.one_by_one


@cache
def _calibrations() -> tuple[Calibration, ...]:
    return tuple(shipped_calibrations())


def estimated_passes(case: Case) -> tuple[Pass, ...]:
    """Return the passes that a measured time is estimated from.

    They are those of the bound, but where requests come and go while others decode: there, while one sequence generates
    its tokens, the prompts of all the others are read, each whole and within a step. So some steps hold a prompt more.
    """
    record, deployment = case.record, case.deployment
    prompt, output, batch = record.prompt_tokens or 0, record.output_tokens or 0, record.batch or 1
    is_step = record.phase in ("decode", "tpot") and engine_of(record) in _IN_FLIGHT
    if deployment is None or not is_step or not prompt or not output:
        return case.passes
    context = prompt + 1 + output // 2
    running = most_held(deployment, context, batch)
    prompts, more = divmod((running - 1) / output, 1)
    steps = ((int(prompts), 1 - more), (int(prompts) + 1, more))
    return tuple(
        _step(deployment, decode_step(batch=running, context=context), prompts=count, prompt=prompt, times=times)
        for count, times in steps
        if times
    )


def _step(deployment: Deployment, decoding: TokenGroup, *, prompts: int, prompt: int, times: float) -> Pass:
    """Return the steps in which so many prompts are read beside the sequences that decode."""
    read = [TokenGroup(sequences=prompts, query_tokens=prompt)] if prompts else []
    groups = (decoding, *read)
    cost = forward_cost(deployment.model, groups, deployment.formats, parallel=deployment.parallel)
    return Pass(cost=cost, groups=groups, times=times)
