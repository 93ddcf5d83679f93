"""A speed beyond the bound: which assumption of the bound would have to be wrong for it, and by how much."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from kvcalc.core.formats import parse_format
from kvcalc.core.model import Part
from kvcalc.core.reports.check import Assumption
from kvcalc.core.search import largest
from kvcalc.core.units import bytes_text, rate_text
from kvcalc.core.workload import Parallel
from kvcalc.cost.roofline import step_time
from kvcalc.cost.sharding import splits_evenly
from kvcalc.evidence.cases import pass_of
from kvcalc.evidence.gate import bound_s
from kvcalc.profiles.catalog import names
from kvcalc.sources import catalogue_hardware

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcalc.core.formats import Format
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.cases import Case
    from kvcalc.plan.deployment import Deployment

__all__ = ["wrong_assumptions"]

# Formats of weights that are tried, with what they are multiplied by where that alone is not enough.
_WEIGHTS = (("fp8", "fp8"), ("mxfp4", "fp4"))
_MATRICES = ("attention", "mlp", "experts", "head")
# A format is wider than another from here on; a mixture of one format and a few biases is not.
_NARROWER = 1.02
_RANKS = (2, 4, 8)
_MAX_DRAFT = 16
_MAX_SEQUENCES = 2**16
# Accelerators that are named: those whose bound is nearest.
_NAMED = 3


def wrong_assumptions(case: Case) -> tuple[Assumption, ...]:
    """Return the single assumptions under which the measured time of one pass would be possible, and what each takes.

    Args:
        case: passes of a deployment, measured in less than their bound.
    """
    deployment = case.deployment
    if deployment is None or len(case.passes) != 1:
        return ()
    ways = (_weights, _cache, _speculation, _sequences, _accelerator, _gpus)
    return tuple(assumption for way in ways for assumption in way(case, deployment))


def _share(case: Case, other: Case) -> float | None:
    """Return the share of its bound that a measurement reaches in another case; none where it beats that one too."""
    share = bound_s(other) / case.measured_s
    return share if share <= 1 else None


def _deployed(case: Case, deployment: Deployment) -> Case:
    return replace(
        case,
        deployment=deployment,
        passes=tuple(pass_of(deployment, *step.groups, times=step.times) for step in case.passes),
    )


def _weights(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    """Yield narrower formats for the matrices, which of them would do, and how many bytes a pass may read at most."""
    cost, own = case.passes[0].cost, deployment.formats
    read = {part: cost.total("weight_bytes", part=part) for part in cost.parts}
    total = sum(read.values())
    # what the bound would have to lose on the way from memory, if all of it were weights
    saved = (bound_s(case) - case.measured_s) * case.hardware.memory_bandwidth_bytes_per_s * deployment.parallel.gpus
    max_bytes = max(0.0, total - saved)

    def share(parts: Iterable[str], narrow: Format, activations: Format) -> float | None:
        kept = {part: own.of(part) for part in get_args(Part)}
        formats = replace(own, parts=kept | dict.fromkeys(parts, narrow), activations=activations)
        return _share(case, _deployed(case, replace(deployment, formats=formats)))

    for name, multiplied in _WEIGHTS:
        narrow = parse_format(name)
        width = _NARROWER * narrow.bytes_per_element
        wide = [part for part in _MATRICES if read.get(part) and own.of(part).bytes_per_element > width]
        for activations in (own.activations, parse_format(multiplied)):
            reached = share(wide, narrow, activations) if wide else None
            if reached is None:
                continue
            alone = [part for part in wide if share((part,), narrow, activations) is not None]
            also = "" if activations is own.activations else f", multiplied in {activations.name}"
            text = f"narrower weights: {', '.join(wide)} in {name}{also}"
            text += f" ({' or '.join(alone)} alone would do)" if alone and len(wide) > 1 else ""
            if _limiter(case) == "memory":
                text += f"; a pass may read {bytes_text(max_bytes)} of weights at most, not {bytes_text(total)}"
            yield Assumption(assumption="weights", text=text, needed=max_bytes, unit="B a pass", bound_share=reached)
            break


def _limiter(case: Case) -> str:
    return step_time(case.passes[0].cost, case.hardware).limiter


def _cache(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    if deployment.formats.key.bytes_per_element <= 1:
        return
    share = _share(case, case.with_formats(cache="fp8"))
    if share is not None:
        text = "a narrower cache: --kv-dtype fp8"
        yield Assumption(assumption="cache", text=text, needed=1, unit="B an element", bound_share=share)


def _speculation(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    """Yield the tokens that a verification must give, for the shortest draft that can give so many."""
    if case.record.phase != "decode":
        return
    (group,) = case.passes[0].groups
    for drafted in range(1, _MAX_DRAFT + 1):
        verified = replace(group, query_tokens=drafted + 1, logit_tokens=drafted + 1)
        needed = bound_s(replace(case, passes=(pass_of(deployment, verified),))) / case.measured_s
        if needed <= drafted + 1:
            text = f"speculation: {needed:.2f} tokens a pass or more, {drafted} of them drafted at no cost"
            share = needed / (drafted + 1)
            yield Assumption(
                assumption="speculation", text=text, needed=needed, unit="tokens a pass", bound_share=share
            )
            return


def _sequences(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    """Yield the numbers of sequences that a rate would have to be the sum of."""
    if case.record.phase != "decode" or case.record.unit != "tok/s":
        return
    (group,) = case.passes[0].groups
    each_s = case.measured_s / group.sequences

    def needed_s(sequences: int) -> float:
        return bound_s(replace(case, passes=(pass_of(deployment, replace(group, sequences=sequences)),)))

    few = largest(lambda sequences: needed_s(sequences) > each_s * sequences, _MAX_SEQUENCES)
    if few < _MAX_SEQUENCES:
        text = f"several sequences: {few + 1:,} at once or more, the figure being their sum"
        share = needed_s(few + 1) / (each_s * (few + 1))
        yield Assumption(assumption="sequences", text=text, needed=few + 1, unit="sequences", bound_share=share)


def _accelerator(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    """Yield the rate that an accelerator would need more of, and the slowest of the catalogue that have it."""
    shares = []
    for hardware in _catalogue():
        tried = replace(case, deployment=replace(deployment, hardware=hardware), variants=(hardware,))
        share = _share(case, tried)
        if share is not None:
            shares.append((share, hardware.name))
    if not shares:
        return
    limiter = _limiter(case)
    factor = bound_s(case) / case.measured_s
    named = ", ".join(name for _, name in sorted(shares, reverse=True)[:_NAMED])
    what = {"memory": "bandwidth", "compute": "peak FLOP/s", "interconnect": "link"}[limiter]
    needed, unit = factor, f"times the {what}"
    text = f"another accelerator: {factor:.2f} times the {what} of {case.hardware.name}, as {named}"
    if limiter == "memory":
        own = case.hardware.memory_bandwidth_bytes_per_s
        text += f" ({rate_text(factor * own)}, not {rate_text(own)})"
    yield Assumption(assumption="accelerator", text=text, needed=needed, unit=unit, bound_share=max(shares)[0])


def _catalogue() -> Iterable[HardwareProfile]:
    return map(catalogue_hardware, names("hardware"))


def _gpus(case: Case, deployment: Deployment) -> Iterator[Assumption]:
    """Yield the fewest GPUs in tensor parallel that would do."""
    parallel = deployment.parallel
    for factor in _RANKS:
        ranks = parallel.tensor * factor
        if not splits_evenly(deployment.model, ranks):
            continue
        spread = Parallel(tensor=ranks, pipeline=parallel.pipeline, data=parallel.data)
        share = _share(case, _deployed(case, replace(deployment, parallel=spread)))
        if share is not None:
            text = f"more GPUs: {spread.gpus} of them (--tp {ranks}), not {parallel.gpus}"
            yield Assumption(assumption="gpus", text=text, needed=spread.gpus, unit="GPUs", bound_share=share)
            return
