"""From served records to an engine's calibration, with the intervals that groups left out show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.cost.estimate import pass_kind, pass_terms
from kvcalc.evidence.books import group_of, judges, setting_of
from kvcalc.evidence.fit import even_interval
from kvcalc.evidence.kernel_reach import collective_reach, kernel_reach
from kvcalc.evidence.served import (
    ServedSample,
    TokenSample,
    first_token_seconds,
    fit_first_token,
    fit_served,
    served_seconds,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.evidence.cases import Case, Pass
    from kvcalc.evidence.families import Family
    from kvcalc.evidence.kernel_reach import KernelTime

__all__ = [
    "Judgement",
    "Served",
    "fit_serving",
    "group_interval",
    "inside_others",
    "left_out_groups",
    "served_base",
    "served_kind",
    "served_records",
]

# Of attention in decode steps, one launch in a graph and the shares that kernels reach on long contexts: the tables of
# generation attention on B200 and H200 in aiconfigurator 0.12.0 give 9 to 12 µs and 0.88 to 0.95 of the bandwidth.
_ATTENTION = Reach(bandwidth_share=0.9, flop_share=0.6, call_s=1e-5, sum_share=0.8)
# A layer of latent attention or of a recurrent state runs several small kernels.
_SEVERAL = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=2e-5, sum_share=0.8)
# Kernels that were timed outside graphs show their launches, which served steps do not have.
_MOST_CALL_S = 3.5e-5
_EVEN = Interval(low=1, high=1)
# Groups that an interval of their own needs.
_ENOUGH_GROUPS = 10
_UNITS = ("bf16", "fp8", "fp4")
# Users up to which a first token hardly waits for others' prompts.
FEW_USERS = 4
_MOST_USERS = 64


def served_kind(case: Case) -> str:
    """Return the kind of a served time that intervals are kept by, as ``served, mixture`` or ``first token, dense``."""
    timed = "served" if case.first is None else "first token"
    if case.first is not None and case.first.others >= FEW_USERS:
        timed = "queued first token"
    return f"{timed}, {pass_kind(case.passes[0].cost).partition(', ')[2]}"


def served_base(family: Family, kernels: Sequence[KernelTime]) -> Calibration:
    """Return the calibration of the engine's kernels on their own, with the usual floors."""
    system, engine = family.kernels_of, family.engine
    reach = {"attention": _ATTENTION, "latent": _SEVERAL, "state": _SEVERAL}
    for table, kind in (("gemm", "matrix"), ("moe", "experts")):
        for unit in _UNITS:
            own = kernel_reach(kernels, table=table, system=system, engine=engine, unit=unit)
            if own is not None:
                name = kind if unit == "bf16" else f"{kind}:{unit}"
                reach[name] = replace(own, call_s=min(_MOST_CALL_S, own.call_s))
    base = Calibration(
        name=family.name,
        engine=engine,
        applies_to=family.applies_to,
        reach=reach,
        memory_interval=_EVEN,
        compute_interval=_EVEN,
        joins_inputs=True,
        prompt_share=0.7,
        measured=Measured(device=""),
    )
    return collective_reach(kernels, base, system=system)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """Served records of an engine on accelerators with the same kernels.

    Args:
        family: the engine and accelerators.
        base: its kernels on their own, with the usual floors.
        samples: its records, each with what a fit needs of it.
    """

    family: Family
    base: Calibration
    samples: Sequence[tuple[Case, ServedSample | TokenSample]]

    @property
    def groups(self) -> list[str]:
        """Groups of its records, in order."""
        return sorted({sample.group for _, sample in self.samples})


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A served record against a fit that has not seen its group.

    Args:
        family: the calibration's name.
        case: the record.
        kind: what was timed.
        group: model, accelerator and engine.
        ratio: measured / estimate.
    """

    family: str
    case: Case
    kind: str
    group: str
    ratio: float


def served_records(family: Family, cases: Iterable[Case], kernels: Sequence[KernelTime]) -> Served:
    """Return a family's served records as samples, each measurement once."""
    samples, seen = [], set()
    for case in cases:
        key = (setting_of(case.record), f"{case.measured_s:.4g}")
        if case.record.phase in ("tpot", "decode", "ttft") and key not in seen:
            seen.add(key)
            samples.append((case, _sample(case)))
    return Served(family=family, base=served_base(family, kernels), samples=tuple(samples))


def _sample(case: Case) -> ServedSample | TokenSample:
    group, kind, hardware = group_of(case.record), served_kind(case), case.hardware
    if case.first is not None:
        prompt, step = (pass_terms(each.cost, hardware) for each in (case.first.prompt, case.first.step))
        return TokenSample(group=group, kind=kind, prompt=prompt, step=step, others=case.first.others,
                           measured_s=case.measured_s)  # fmt: skip
    passes: tuple[Pass, ...] = case.likely or case.passes
    terms = tuple((pass_terms(each.cost, hardware), each.times, each.is_beside) for each in passes)
    return ServedSample(group=group, kind=kind, passes=terms, measured_s=case.measured_s)


def _steps(served: Served, left: str = "") -> Calibration:
    """Return the base with floors and factors of steps, fitted without a group and without those that judge."""
    samples = [
        each
        for case, each in served.samples
        if isinstance(each, ServedSample) and _is_fitted(each.group, left) and _in_one_domain(case)
    ]
    return fit_served(served.base, samples)


def _is_fitted(group: str, left: str) -> bool:
    return group != left and not judges(group)


def _in_one_domain(case: Case) -> bool:
    """Whether a step's ranks exchange over the scale-up link: across nodes collectives are other work."""
    return case.hardware.link_name(case.passes[0].cost.exchange_gpus) != "scale_out"


def _requests(engine: Sequence[Served], steps: Sequence[Calibration], left: str = "") -> dict[str, float]:
    """Return the times of a request besides its passes, fitted without a group.

    It is the engine's work on the host, so the same on all accelerators. Where prompts are read by other engines, the
    time until these take a request and send its cache is in it: such runs are left out.
    """
    samples = [
        (each, known)
        for served, known in zip(engine, steps, strict=True)
        for case, each in served.samples
        if isinstance(each, TokenSample) and _is_fitted(each.group, left) and _is_of_a_request(case)
    ]
    return fit_first_token(samples) if samples else {}


def _is_of_a_request(case: Case) -> bool:
    return case.record.prefill_parallel is None and (case.record.batch or 1) <= _MOST_USERS


def _ratio(sample: ServedSample | TokenSample, calibration: Calibration) -> float:
    estimate = served_seconds if isinstance(sample, ServedSample) else first_token_seconds
    return sample.measured_s / estimate(sample, calibration)  # type: ignore[arg-type]


def left_out_groups(engine: Sequence[Served]) -> list[Judgement]:
    """Return each record of an engine against a fit without its group; groups that judge are never fitted to."""
    whole, judgements = [_steps(served) for served in engine], []
    for index, served in enumerate(engine):
        for left in served.groups:
            steps = list(whole)
            if not judges(left):
                steps[index] = _steps(served, left)
            fitted = replace(steps[index], **_requests(engine, steps, left))  # type: ignore[arg-type]
            judgements += [
                Judgement(family=served.family.name, case=case, kind=sample.kind, group=left,
                          ratio=_ratio(sample, fitted))
                for case, sample in served.samples
                if sample.group == left
            ]  # fmt: skip
    return judgements


def fit_serving(
    engine: Sequence[Served], kernels: Sequence[KernelTime]
) -> tuple[dict[str, Calibration], list[Judgement]]:
    """Return the calibrations of an engine that serves many requests, and each record against a fit without its group.

    Args:
        engine: its records, by accelerators with the same kernels.
        kernels: times of kernels on their own.
    """
    steps = [_steps(served) for served in engine]
    requests: dict[str, Any] = _requests(engine, steps)
    fitted = {}
    for served, own in zip(engine, steps, strict=True):
        training, judging = (
            [case for case, sample in served.samples if judges(sample.group) is is_judged]
            for is_judged in (False, True)
        )
        measured = _measured(served.family, training, judging, kernels)
        fitted[served.family.name] = replace(own, **requests, measured=measured)
    return fitted, left_out_groups(engine)


def group_interval(judged: Iterable[Judgement], kind: str) -> Interval:
    """Return the interval of a kind of served time, of any engine and accelerators; groups weigh as in the fit.

    How far an estimate is off is the group's, much more than its engine's: on groups left out of intervals too, this
    one holds more nearly four of five than that of the engine's own records (docs/estimates.md). A kind of few groups
    takes those of dense models and mixtures together.
    """
    timed = kind.partition(",")[0]
    alike = [each for each in judged if each.kind.partition(",")[0] == timed and _is_scored(each)]
    own = [each for each in alike if each.kind == kind]
    taken = own if len({each.group for each in own}) >= _ENOUGH_GROUPS else alike
    return even_interval([each.ratio for each in taken], [each.group for each in taken]) if taken else _EVEN


def _is_scored(judged: Judgement) -> bool:
    """Whether an estimate is of what was timed: a first token between engines waits for its cache's transfer too."""
    return judged.kind.startswith("served") or judged.case.record.prefill_parallel is None


def inside_others(judged: Sequence[Judgement]) -> list[bool | None]:
    """Return whether each record lies in the interval of the other groups, as one of a group to come would.

    None where it is no time that intervals are made of.
    """
    spreads = {
        (kind, group): group_interval((each for each in judged if each.group != group), kind)
        for kind, group in {(each.kind, each.group) for each in judged}
    }
    own = ((spreads[each.kind, each.group], each) for each in judged)
    return [spread.low <= each.ratio <= spread.high if _is_scored(each) else None for spread, each in own]


def _measured(
    family: Family, training: Sequence[Case], judging: Sequence[Case], kernels: Sequence[KernelTime]
) -> Measured:
    own = {each.version for each in kernels if (each.engine, each.system) == (family.engine, family.kernels_of)}
    # among versions with the same numbers the name decides: a set has no order
    printed = sorted({case.record.engine_version for case in training if case.record.engine_version})
    versions = sorted(printed, key=_version_key)
    served = {"served": f"{versions[0]} to {versions[-1]}"} if versions else {}
    return Measured(
        device=", ".join(sorted({case.hardware.name for case in training})) or family.kernels_of,
        date="2026-12-01",
        versions=served | {"kernels": ", ".join(sorted(own))},
        trained_on=tuple(sorted({group_of(case.record) for case in training})),
        held_out=tuple(sorted({group_of(case.record) for case in judging})),
        records=len(training),
        operators=tuple(sorted({kind for case in training for kind in _operators(case)})),
    )


def _version_key(version: str) -> tuple[int, ...]:
    import re

    return tuple(int(part) for part in re.findall(r"\d+", version)[:4])


def _operators(case: Case) -> Iterable[str]:
    if case.deployment is None:
        return ()
    return {mixer.kind for mixer in case.deployment.model.mixers} | {
        block.mlp.kind for block in case.deployment.model.blocks if block.mlp is not None
    }
