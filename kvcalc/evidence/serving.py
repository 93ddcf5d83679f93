"""From served records to an engine's calibration, with the intervals that groups left out show."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

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
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.evidence.cases import Case, Pass
    from kvcalc.evidence.families import Family
    from kvcalc.evidence.kernel_reach import KernelTime

__all__ = ["Judgement", "fit_serving", "left_out_groups", "served_base", "served_kind"]

# Of attention in decode steps, one launch in a graph and the shares that kernels reach on long contexts: the tables of
# generation attention on B200 and H200 in aiconfigurator 0.12.0 give 9 to 12 µs and 0.88 to 0.95 of the bandwidth.
_ATTENTION = Reach(bandwidth_share=0.9, flop_share=0.6, call_s=1e-5, sum_share=0.8)
# A layer of latent attention or of a recurrent state runs several small kernels.
_SEVERAL = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=2e-5, sum_share=0.8)
# Kernels that were timed outside graphs show their launches, which served steps do not have.
_MOST_CALL_S = 3.5e-5
_EVEN = Interval(low=1, high=1)
_UNITS = ("bf16", "fp8", "fp4")
# Users up to which a first token hardly waits for others' prompts.
FEW_USERS = 4
_MOST_USERS = 64
_WIDE = Interval(low=0.5, high=3, records=0)


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
            found = kernel_reach(kernels, table=table, system=system, engine=engine, unit=unit)
            if found is not None:
                name = kind if unit == "bf16" else f"{kind}:{unit}"
                reach[name] = replace(found, call_s=min(_MOST_CALL_S, found.call_s))
    collective_s, link_share = collective_reach(kernels, system=system, engine=engine)
    return Calibration(
        name=family.name,
        engine=engine,
        applies_to=family.applies_to,
        reach=reach,
        memory_interval=_EVEN,
        compute_interval=_EVEN,
        collective_s=collective_s,
        link_share=link_share,
        joins_inputs=True,
        prompt_share=0.7,
        measured=Measured(device=""),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A served record against a fit that has not seen its group.

    Args:
        case: the record.
        kind: what was timed.
        group: model, accelerator and engine.
        ratio: measured / estimate.
    """

    case: Case
    kind: str
    group: str
    ratio: float


def _samples(cases: Iterable[Case]) -> list[tuple[Case, ServedSample | TokenSample]]:
    """Return served records as samples, each measurement once."""
    found, seen = [], set()
    for case in cases:
        key = (setting_of(case.record), f"{case.measured_s:.4g}")
        if case.record.phase in ("tpot", "decode", "ttft") and key not in seen:
            seen.add(key)
            found.append((case, _sample(case)))
    return found


def _sample(case: Case) -> ServedSample | TokenSample:
    group, kind, hardware = group_of(case.record), served_kind(case), case.hardware
    if case.first is not None:
        prompt, step = (pass_terms(each.cost, hardware) for each in (case.first.prompt, case.first.step))
        return TokenSample(group=group, kind=kind, prompt=prompt, step=step, others=case.first.others,
                           measured_s=case.measured_s)  # fmt: skip
    passes: tuple[Pass, ...] = case.likely or case.passes
    terms = tuple((pass_terms(each.cost, hardware), each.times, each.is_beside) for each in passes)
    return ServedSample(group=group, kind=kind, passes=terms, measured_s=case.measured_s)


def _fitted(
    base: Calibration, samples: Sequence[tuple[Case, ServedSample | TokenSample]], fits: Callable[[str], bool]
) -> Calibration:
    steps = [
        each for case, each in samples if isinstance(each, ServedSample) and fits(each.group) and _in_one_domain(case)
    ]
    tokens = [
        each
        for case, each in samples
        if isinstance(each, TokenSample) and fits(each.group) and (case.record.batch or 1) <= _MOST_USERS
    ]
    found = fit_served(base, steps)
    return fit_first_token(found, tokens) if tokens else found


def _in_one_domain(case: Case) -> bool:
    """Whether a step's ranks exchange over the scale-up link: across nodes collectives are other work."""
    return case.hardware.link_name(case.passes[0].cost.exchange_gpus) != "scale_out"


def _ratio(sample: ServedSample | TokenSample, calibration: Calibration) -> float:
    estimate = served_seconds if isinstance(sample, ServedSample) else first_token_seconds
    return sample.measured_s / estimate(sample, calibration)  # type: ignore[arg-type]


def left_out_groups(base: Calibration, cases: Iterable[Case]) -> list[Judgement]:
    """Return each record against a fit without its group; groups that judge are never fitted to."""
    samples, found = _samples(cases), []
    groups = sorted({sample.group for _, sample in samples})
    whole = _fitted(base, samples, lambda group: not judges(group))
    for left in groups:
        fitted = whole
        if not judges(left):
            fitted = _fitted(base, samples, lambda group, left=left: group != left and not judges(group))  # type: ignore[misc]
        found += [
            Judgement(case=case, kind=sample.kind, group=left, ratio=_ratio(sample, fitted))
            for case, sample in samples
            if sample.group == left
        ]
    return found


def fit_serving(
    family: Family, cases: Sequence[Case], kernels: Sequence[KernelTime]
) -> tuple[Calibration, list[Judgement]]:
    """Return the calibration of an engine that serves many requests, and the records that its intervals come from.

    Args:
        family: the engine and accelerators.
        cases: records that it would estimate.
        kernels: times of the engine's kernels on their own.
    """
    base = served_base(family, kernels)
    samples = _samples(cases)
    found = _fitted(base, samples, lambda group: not judges(group))
    unseen = left_out_groups(base, cases)
    training = [case for case, sample in samples if not judges(sample.group)]
    calibration = replace(
        found,
        memory_interval=_spread(unseen, "served"),
        compute_interval=_spread(unseen, "first token"),
        measured=_measured(training, [case for case, sample in samples if judges(sample.group)], kernels, base),
    )
    return calibration, unseen


def _spread(judged: Sequence[Judgement], timed: str) -> Interval:
    """Return the interval of all steps, or of all first tokens that hardly wait; a wide one without any."""
    ratios = [each.ratio for each in judged if each.kind.startswith(timed)]
    return even_interval(ratios) if ratios else _WIDE


def _measured(
    training: Sequence[Case], judging: Sequence[Case], kernels: Sequence[KernelTime], base: Calibration
) -> Measured:
    own = {each.version for each in kernels if each.engine == base.engine}
    # among versions with the same numbers the name decides: a set has no order
    printed = sorted({case.record.engine_version for case in training if case.record.engine_version})
    versions = sorted(printed, key=_version_key)
    return Measured(
        device=", ".join(sorted({case.hardware.name for case in training})),
        date="2026-12-01",
        versions={"served": f"{versions[0]} to {versions[-1]}" if versions else "", "kernels": ", ".join(sorted(own))},
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
