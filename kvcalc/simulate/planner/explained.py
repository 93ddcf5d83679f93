"""The formulas behind a plan's first option, with its numbers put in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.units import SECONDS_PER_HOUR, TOKENS_PER_MILLION, request_rate

if TYPE_CHECKING:
    from kvcalc.simulate.planner.candidates import Demand
    from kvcalc.simulate.planner.confirmed import Confirmed

__all__ = ["explain_plan"]


def explain_plan(confirmed: Confirmed, demand: Demand) -> tuple[ExplainedStep, ...]:
    """Return the steps from step times to replicas and dollars.

    Args:
        confirmed: the option.
        demand: what the plan must do.
    """
    candidate, traffic = confirmed.candidate, demand.traffic
    state, outputs = candidate.state, max(traffic.output_tokens - 1, 1.0)
    tpot = state.decode_s + state.added_s * state.running / outputs
    rate = state.running / (outputs * tpot)
    working = confirmed.replicas - demand.spare
    calibration = candidate.variant.calibration
    source = "bounds without overlap" if calibration is None else f"calibration {calibration.name}"
    cost, gpus = confirmed.cost()
    ranks, prefill = f"{confirmed.replicas} * {candidate.deployment.parallel.gpus}", confirmed.prefill
    if prefill is not None:
        ranks += f" + {confirmed.prefill_replicas} * {prefill.deployment.parallel.gpus}"
    added = f"{state.added_s!r} * {state.running} / {outputs!r}"
    one = confirmed.capacity_per_s / candidate.copies
    load = f"load {request_rate(traffic.rate_per_s, 'g')}, at most {demand.load_share:g} of the capacity"
    steps = [
        _step(
            "tpot_s",
            "decode step + time a prompt adds x running requests / output tokens",
            f"{state.decode_s!r} + {added}",
            tpot,
            "s",
            source,
        ),
        _step(
            "estimated_capacity_of_a_copy",
            "running requests / (output tokens x TPOT)",
            f"{state.running} / ({outputs!r} * {tpot!r})",
            rate,
            "requests/s",
            "Little 1961",
        ),
        _step(
            "capacity_of_a_replica",
            "copies x highest rate at which the simulator keeps the limits",
            f"{candidate.copies} * {one!r}",
            confirmed.capacity_per_s,
            "requests/s",
            "simulation",
        ),
        _step(
            "replicas",
            "ceil(load / (capacity x margin)), or more where the simulated load needs them, + those to spare",
            f"{working} + {demand.spare}",
            float(confirmed.replicas),
            "",
            load,
        ),
        _step(
            "gpus",
            "replicas x GPUs of each" + ("" if prefill is None else ", of those that decode and of those that prefill"),
            ranks,
            float(gpus),
            "",
        ),
    ]
    if candidate.variant.price is not None:
        per_s = traffic.rate_per_s * traffic.output_tokens
        usd = cost / SECONDS_PER_HOUR / per_s * TOKENS_PER_MILLION
        steps.append(_step("usd_per_million_output_tokens", "dollars an hour / 3600 / output tokens a second x 10^6",
                           f"{cost!r} / 3600 / {per_s!r} * 1000000", usd, "USD", "price given"))  # fmt: skip
    return tuple(steps)


def _step(quantity: str, formula: str, expression: str, value: float, unit: str, source: str = "") -> ExplainedStep:
    sources = (source,) if source else ()
    return ExplainedStep(
        quantity=quantity, formula=formula, expression=expression, value=value, unit=unit, sources=sources
    )
