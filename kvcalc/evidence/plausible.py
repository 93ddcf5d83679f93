"""Whether a speed that someone claims can be: the gate, for a figure from anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.core.reports.check import Check, CheckReport
from kvcalc.core.units import bytes_text, number_text, parse_speed, seconds_text
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.assumptions import wrong_assumptions
from kvcalc.evidence.gate import judge
from kvcalc.evidence.passes import case_in
from kvcalc.evidence.record import Record
from kvcalc.plan.contexts import check_batch, check_context
from kvcalc.plan.formats import format_names
from kvcalc.plan.rank_memory import memory_needed
from kvcalc.plan.steps import hardware_notes, required_hardware

if TYPE_CHECKING:
    from kvcalc.evidence.cases import Case
    from kvcalc.plan.deployment import Deployment

__all__ = ["PHASES", "plausibility"]

PHASES = ("decode", "prefill")
_BOUNDS = {"memory": "bandwidth bound", "compute": "compute bound", "interconnect": "interconnect bound"}
# Of a context that was not told, what no measurement can undercut.
_MIN_CONTEXT = 1
_CLOSE, _SMALL = 1.1, 0.1


def plausibility(
    deployment: Deployment, *, measured: str, phase: str = "decode", batch: int = 1, tokens: int | None = None
) -> CheckReport:
    """Return whether a measured speed is possible at all, and how near it comes to the bound.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        measured: tokens/s over all sequences (``3000tok/s``; ``50tok/s/user`` is of each), or a time:
            of a decode step, or to the first token (``12ms``).
        phase: ``decode`` or ``prefill``.
        batch: sequences at once.
        tokens: context of the decode step, one token if not given; or length of the prompt.

    Raises:
        InputError: a figure that cannot be read, another phase, or no accelerator.
    """
    if phase not in PHASES:
        raise InputError(f"unknown phase {phase!r}", hint=did_you_mean(phase, PHASES) or f"phases: {', '.join(PHASES)}")
    hardware = required_hardware(deployment)
    check_batch(batch)
    if tokens is None and phase == "prefill":
        raise InputError("the length of the prompt is needed", hint="--prompt 2048, the tokens that were read")
    length = tokens or _MIN_CONTEXT
    beyond = check_context(deployment.model, length, what="context" if phase == "decode" else "prompt")
    value, unit = parse_speed(measured)
    formats = format_names(deployment.formats)
    record = Record(id="measured", phase=phase, value=value, unit=unit, hardware=hardware.name, batch=batch,
                    model=deployment.model.name, weights=formats.weights, kv=formats.kv,
                    devices=deployment.parallel.gpus, prompt_tokens=length - (phase == "decode"))  # fmt: skip
    case = case_in(record, deployment, hardware)
    untold = () if tokens is not None else ("no --context: compared with a context of one token",)
    notes = [*untold, *case.assumed, *beyond, *_fit_note(deployment, length, batch), *hardware_notes(deployment)]
    check = _check(case, measured.strip())
    return CheckReport(checks=(check,), notes=tuple(notes))


def _check(case: Case, measured: str) -> Check:
    verdict = judge(case)
    time = step_time(case.passes[0].cost, case.hardware)
    share, bound = verdict.bound_s / case.measured_s, _BOUNDS[time.limiter]
    if not verdict.beaten:
        verdict_text = f"plausible: {_percent(share)} of the {bound}"
    else:
        times = f"{share:.1f}" if share >= _CLOSE else f"{share:.3f}"
        verdict_text = (
            f"{'possible only for a cause' if verdict.cause else 'impossible as assumed'}: {times}x above the {bound}"
        )
        verdict_text += f" ({verdict.cause})" if verdict.cause else ""
    tokens = case.passes[0].cost.tokens
    passed = not verdict.beaten or bool(verdict.cause)
    return Check(
        name=f"{case.record.phase} speed of {case.record.model} on {case.record.devices} x {case.hardware.name}",
        passed=passed,
        expected=f"at most {_speed(tokens, verdict.bound_s)}",
        actual=f"{measured} = {_speed(tokens, case.measured_s)}",
        verdict=verdict_text,
        bound_s=verdict.bound_s,
        measured_s=case.measured_s,
        limiter=time.limiter,
        assumptions=() if passed else wrong_assumptions(case),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= _SMALL else f"{share:.2%}"


def _speed(tokens: int, seconds: float) -> str:
    return f"{number_text(tokens / seconds)} tokens/s, {seconds_text(seconds)}"


def _fit_note(deployment: Deployment, tokens: int, batch: int) -> tuple[str, ...]:
    needed = memory_needed(deployment, tokens=tokens, batch=batch)
    if needed <= deployment.memory_bytes:
        return ()
    sizes = f"{bytes_text(needed)} of the {bytes_text(deployment.memory_bytes)} of each accelerator"
    return (f"does not fit: {sizes}; the bound is as if it had more",)
