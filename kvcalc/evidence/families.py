"""The calibrations that are shipped: which records each is fitted to, which judge it, and which parameters are free."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.cost.estimate import pass_terms
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.estimates import estimated_passes
from kvcalc.evidence.fit import Sample, fit, interval, left_out, sample_seconds
from kvcalc.evidence.gate import judge
from kvcalc.plan.estimates import best_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.evidence.cases import Case

__all__ = ["FAMILIES", "Family", "fit_families"]

_FITTED = "2026-11-29"
# Records that an interval of their own needs: held-out ones, and any.
_ENOUGH, _FEWEST = 20, 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One calibration to be fitted.

    Args:
        name: its name.
        engine: the engine whose records it is fitted to.
        applies_to: accelerators or generations.
        free: the parameters that are fitted.
        held_out: patterns of the campaigns that judge it and that the fit does not see.
        reach: what the search starts from; what is not free stays.
        shares_of: the calibration whose shares stand where this one says nothing, without its time of a call.
        also_16_bit: give multiplications in 16 bits the FLOP/s that those in 8-bit integers reach: of a quantised file
            a user need not know in which of them the engine multiplies.
        notes: what a user should know.
    """

    name: str
    engine: str
    applies_to: tuple[str, ...]
    free: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    reach: Mapping[str, Reach]
    shares_of: str = ""
    also_16_bit: bool = False
    notes: tuple[str, ...] = ()

    def start(self, fitted: Mapping[str, Calibration]) -> Calibration:
        """Return the calibration that the search starts from."""
        reach = dict(self.reach)
        if self.shares_of:
            given = fitted[self.shares_of].reach.items()
            reach = {
                kind: replace(found, call_s=0.0)
                for kind, found in given
                if kind.partition(":")[0] not in self.reach
            } | reach
        reach.setdefault("matrix", _MATRIX)
        even = Interval(low=1, high=1)
        return Calibration(
            name=self.name,
            engine=self.engine,
            applies_to=self.applies_to,
            reach=reach,
            memory_interval=even,
            compute_interval=even,
            step_s=1e-3 if "step_s" in self.free else 0,
            layer_s=2e-5 if "layer_s" in self.free else 0,
            collective_s=1e-5 if "collective_s" in self.free else 0,
            link_share=0.5 if "link_share" in self.free else 1,
            measured=Measured(device="", date=_FITTED, notes=self.notes),
        )

    def judges(self, name: str) -> bool:
        """Whether a campaign is held out."""
        return any(fnmatchcase(name, pattern) for pattern in self.held_out)


_MATRIX = Reach(bandwidth_share=0.8, flop_share=0.6)
_EXPERTS = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=2e-5)
_KERNEL = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=5e-6)
_SERVED = ("step_s", "layer_s", "collective_s", "link_share", "experts.bandwidth_share")
_SHARES_OF_ATTENTION = ("attention.bandwidth_share", "attention.flop_share")
_LLAMA_CPP = ("step_s", "layer_s", "matrix.bandwidth_share", "matrix.flop_share", "experts.bandwidth_share",
              "experts.flop_share", "experts.call_s", *_SHARES_OF_ATTENTION)  # fmt: skip
# Where it multiplies its quantised files in 8-bit integers.
_IN_INT8 = ("step_s", "layer_s", "matrix:int8.bandwidth_share", "matrix:int8.flop_share",
            "experts:int8.bandwidth_share", "experts:int8.flop_share", "experts:int8.call_s")  # fmt: skip


def _shares(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}.{field}" for kind in kinds for field in ("bandwidth_share", "flop_share", "call_s"))


FAMILIES = (
    Family(
        name="kernels-ampere",
        engine="kernels",
        applies_to=("ampere",),
        free=_shares("matrix", "matrix:int8", "attention"),
        held_out=("*/vllm/* gemm",),
        reach={"matrix": _KERNEL, "matrix:int8": _KERNEL, "attention": _KERNEL},
    ),
    Family(
        name="kernels-ada",
        engine="kernels",
        applies_to=("ada",),
        free=_shares("matrix", "matrix:int8", "matrix:fp8", "attention"),
        held_out=("*/vllm/* gemm",),
        reach={"matrix": _KERNEL, "matrix:int8": _KERNEL, "matrix:fp8": _KERNEL, "attention": _KERNEL},
    ),
    Family(
        name="kernels-hopper",
        engine="kernels",
        applies_to=("hopper",),
        free=_shares("matrix", "matrix:fp8", "attention"),
        held_out=("*/vllm/*",),
        reach={"matrix": _KERNEL, "matrix:fp8": _KERNEL, "attention": _KERNEL},
    ),
    Family(
        name="vllm-hopper",
        engine="vllm",
        applies_to=("hopper",),
        free=_SERVED,
        held_out=("* h200_sxm vllm llama-3.1-70b *", "* h100_sxm vllm gpt-oss-120b *", "*qwen3-32b*", "*8b-instruct*"),
        reach={"experts": _MATRIX},
        shares_of="kernels-hopper",
    ),
    Family(
        name="tensorrt-llm-hopper",
        engine="tensorrt-llm",
        applies_to=("hopper",),
        free=_SERVED,
        held_out=("*h100_sxm tensorrt-llm gpt-oss*", "*nim*", "NVIDIA/*"),
        reach={"experts": _MATRIX},
        shares_of="kernels-hopper",
    ),
    Family(
        name="sglang-hopper",
        engine="sglang",
        applies_to=("hopper",),
        free=("step_s", "layer_s", "collective_s", "link_share"),
        reach={"experts": _MATRIX},
        shares_of="kernels-hopper",
    ),
    Family(
        name="vllm-blackwell",
        engine="vllm",
        applies_to=("blackwell", "blackwell-ultra"),
        free=(*_SERVED, "matrix:fp4.flop_share"),
        held_out=("*70b fp8",),
        reach={"experts": _MATRIX, "matrix:fp4": _MATRIX},
        shares_of="kernels-hopper",
    ),
    Family(
        name="tensorrt-llm-blackwell",
        engine="tensorrt-llm",
        applies_to=("blackwell", "blackwell-ultra"),
        free=(*_SERVED, "matrix:fp4.flop_share"),
        held_out=("*70b fp8", "*qwen3-32b*"),
        reach={"experts": _MATRIX, "matrix:fp4": _MATRIX},
        shares_of="kernels-hopper",
    ),
    Family(
        name="gpt-fast-ampere",
        engine="gpt-fast",
        applies_to=("ampere",),
        free=("step_s", "layer_s", "collective_s", "link_share", "matrix.bandwidth_share"),
        held_out=("*mixtral*",),
        reach={"matrix": _MATRIX},
        shares_of="vllm-hopper",
    ),
    Family(
        name="llama.cpp-apple",
        engine="llama.cpp",
        applies_to=("apple-g13", "apple-g14", "apple-g15", "apple-g16", "apple-g17"),
        free=_LLAMA_CPP,
        held_out=("ggml-org/llama.cpp/blob/*", "geerlingguy/*", "public*", "*10435"),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _MATRIX},
    ),
    Family(
        name="llama.cpp-dgx-spark",
        engine="llama.cpp",
        applies_to=("dgx-spark",),
        free=(*_IN_INT8, *_SHARES_OF_ATTENTION),
        held_out=("ggml-org/llama.cpp/*",),
        reach={"matrix:int8": _MATRIX, "experts:int8": _EXPERTS, "attention": _MATRIX},
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-rtx",
        engine="llama.cpp",
        applies_to=("ada", "blackwell-rtx"),
        free=_IN_INT8,
        held_out=("geerlingguy/*", "*14863"),
        reach={"matrix:int8": _MATRIX, "experts:int8": _EXPERTS},
        shares_of="llama.cpp-dgx-spark",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-cuda",
        engine="llama.cpp",
        applies_to=("pascal", "volta", "turing", "ampere", "hopper"),
        free=_IN_INT8,
        held_out=("geerlingguy/*",),
        reach={"matrix:int8": _MATRIX, "experts:int8": _EXPERTS},
        shares_of="llama.cpp-dgx-spark",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-radeon",
        engine="llama.cpp",
        applies_to=("rdna2", "rdna3", "rdna3.5", "rdna4"),
        free=_LLAMA_CPP,
        held_out=("*5835",),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _MATRIX},
    ),
    Family(
        name="llama.cpp-vulkan-radeon",
        engine="llama.cpp-vulkan",
        applies_to=("rdna2", "rdna3", "rdna3.5", "rdna4"),
        free=_LLAMA_CPP,
        held_out=("*5835",),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _MATRIX},
    ),
)


def fit_families(cases: Sequence[Case], families: Sequence[Family] = FAMILIES) -> tuple[Calibration, ...]:
    """Return the calibrations of the families, fitted to the cases that are not held out.

    A case belongs to the family that would estimate it; those that beat their bound are left out.
    """
    fitted: dict[str, Calibration] = {}
    starts = [family.start({other.name: _BLANK for other in families}) for family in families]
    for family in families:
        own = [
            case
            for case in cases
            if (best := best_calibration(starts, case.hardware, (engine_of(case.record),))) is not None
            and best.name == family.name
            and estimated_passes(case)
            and not judge(case).beaten
        ]
        fitted[family.name] = _fit(family, family.start(fitted), own)
    return tuple(fitted.values())


_BLANK = Calibration(name="blank", engine="", applies_to=(), reach={"matrix": _MATRIX}, measured=Measured(device=""),
                     memory_interval=Interval(low=1, high=1), compute_interval=Interval(low=1, high=1))  # fmt: skip


def _fit(family: Family, start: Calibration, cases: Sequence[Case]) -> Calibration:
    training = [case for case in cases if not family.judges(campaign(case.record))]
    samples = [sample_of(case) for case in training]
    judging = [sample_of(case) for case in cases if family.judges(campaign(case.record))]
    found = fit(start, samples, family.free)
    judged = [(sample, sample.measured_s / sample_seconds(sample, found)) for sample in judging]
    others = left_out(found, samples, family.free)
    compute, memory = (_spread(judged, others, compute=compute) for compute in (True, False))
    measured = replace(
        start.measured,
        device=", ".join(sorted({case.hardware.name for case in training})),
        versions={engine: ", ".join(versions) for engine, versions in _versions(training).items()},
        trained_on=tuple(sorted({sample.campaign for sample in samples})),
        held_out=tuple(sorted({campaign(case.record) for case in cases} - {sample.campaign for sample in samples})),
        records=len(samples),
    )
    reach = {**found.reach, **_in_16_bit(found.reach)} if family.also_16_bit else found.reach
    return replace(found, reach=reach, memory_interval=memory, compute_interval=compute, measured=measured)


def _in_16_bit(reach: Mapping[str, Reach]) -> dict[str, Reach]:
    """Return what operators reach of the 16-bit peak, which is half that of 8-bit integers."""
    narrow = {kind.removesuffix(":int8"): found for kind, found in reach.items() if kind.endswith(":int8")}
    return {kind: replace(found, flop_share=min(1.0, 2 * found.flop_share)) for kind, found in narrow.items()}


def _spread(
    judged: Sequence[tuple[Sample, float]], others: Sequence[tuple[Sample, float]], *, compute: bool
) -> Interval:
    """Return the interval of passes that are limited by compute, or of the rest.

    It is that of the held-out records if they are enough. If they are few, it is widened to that of all records: those
    of the training are put to them, each as a fit without its campaign has it. Where even these are too few, passes
    with the other limiter are taken as well. The estimate itself is always inside.
    """
    own, with_others = (
        [pair for pair in pairs if (pair[0].limiter == "compute") == compute] for pairs in (judged, [*judged, *others])
    )
    if len(own) >= _ENOUGH:
        taken = [own]
    elif len(with_others) >= _FEWEST:
        taken = [own, with_others] if len(own) >= _FEWEST else [with_others]
    else:
        taken = [[*judged, *others]]
    found = [interval([(sample.campaign, ratio) for sample, ratio in pairs]) for pairs in taken]
    return Interval(low=min(1, *(one.low for one in found)), high=max(1, *(one.high for one in found)))


def _versions(cases: Sequence[Case]) -> dict[str, list[str]]:
    found: dict[str, set[str]] = {}
    for case in cases:
        if case.record.engine_version:
            found.setdefault(case.record.engine, set()).add(case.record.engine_version)
    return {engine: sorted(versions) for engine, versions in sorted(found.items())}


def sample_of(case: Case) -> Sample:
    """Return a case as what a fit needs of it."""
    hardware, passes = case.hardware, []
    shares: dict[str, float] = {}
    for step in estimated_passes(case):
        bound = step_time(step.cost, hardware)
        passes.append((pass_terms(step.cost, hardware), bound.latency_s, step.times))
        shares[bound.limiter] = shares.get(bound.limiter, 0) + step.times * bound.latency_s
    return Sample(
        campaign=campaign(case.record),
        measured_s=case.measured_s,
        passes=tuple(passes),
        limiter=max(shares, key=shares.__getitem__),
    )
