"""Solving for the unknown: the largest batch, the longest context, the fewest GPUs, the rate that is needed.

Every trial is a question that `fit`, `decode` and `prefill` answer: nothing is computed here but where to look.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError, did_you_mean
from kvcalc.core.model import Chunked, Compressed
from kvcalc.core.reports.solve import SolveConstraint, SolveReport, SolveRow
from kvcalc.engines.options import EngineOptions
from kvcalc.plan.decode import decode_row
from kvcalc.plan.deployment import check_batch, check_context, default_context, format_names
from kvcalc.plan.economics import price_per_hour_usd
from kvcalc.plan.fit import BudgetTerms, FitQuestion, arrangements, fit_answer, largest
from kvcalc.plan.prefill import prefill_row
from kvcalc.plan.speculative import Acceptance, SpeculationOptions
from kvcalc.plan.speculative.report import ask
from kvcalc.plan.steps import pipeline_notes, required_hardware

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.reports.speed import DecodeRow
    from kvcalc.plan.deployment import Deployment

__all__ = ["UNKNOWNS", "Drafting", "Targets", "solve_report"]

# The unknowns, with the unit of the answer and which end of what meets the constraints it is.
UNKNOWNS: dict[str, tuple[str, str]] = {
    "batch": ("sequences", "largest"),
    "context": ("tokens", "longest"),
    "gpus": ("GPUs", "fewest"),
    "bandwidth": ("bytes/s", "least"),
    "price": ("USD/hour", "most"),
    "acceptance": ("share", "least"),
}
# Where searches stop: no cache holds so many sequences or tokens, and no memory moves so many bytes a second.
_MOST_BATCH = 2**40
_MOST_CONTEXT = 10**9
_MOST_BYTES_PER_S = 1e30
_LEAST_BYTES_PER_S = 1.0
# How far apart the two ends of a searched rate may lie, and a step below an answer that must fail.
_LEAST_RANGE = 1e-12
_LEAST_STEP = 1e-9
# From here on numbers are told without decimals.
_LEAST_WHOLE = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """What must be reached besides fitting into memory.

    Args:
        tokens_per_s: least decoding speed of all sequences together.
        tokens_per_s_per_sequence: least decoding speed of each.
        ttft_s: most time to first token of one prompt as long as the context.
        usd_per_million_tokens: most that a million decoded tokens may cost.
        speedup: least speed over plain decoding, of speculation.
    """

    tokens_per_s: float | None = None
    tokens_per_s_per_sequence: float | None = None
    ttft_s: float | None = None
    usd_per_million_tokens: float | None = None
    speedup: float | None = None

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and not 0 < value < _MOST_BYTES_PER_S:
                raise InputError(f"{name.replace('_', '-')} must be above 0, not {value}")

    @property
    def given(self) -> bool:
        """Whether there is any."""
        return any(getattr(self, name) is not None for name in self.__slots__)


_NO_TARGETS = Targets()


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How is drafted, where the acceptance is asked for.

    Args:
        draft: the draft model on the target's accelerators; none for methods without one.
        method: the way to draft; a draft model where left out.
        gamma: drafted tokens in a row; the best where left out.
    """

    draft: Deployment | None = None
    method: str | None = None
    gamma: int | None = None

    def speedup(self, trial: _Trial) -> float:
        """Return the speed over plain decoding at a trial's acceptance."""
        rate = Acceptance(rates=(trial.acceptance,), constant=True)
        gammas = None if self.gamma is None else (self.gamma,)
        options = SpeculationOptions(acceptance=rate, method=self.method, gammas=gammas)
        asked = ask(trial.deployment, self.draft, options)
        return asked.asked_for(trial.batch, trial.context, self.gamma).speedup


@dataclass(frozen=True, slots=True, kw_only=True)
class _Trial:
    """One value of every quantity."""

    deployment: Deployment
    batch: int
    context: int
    acceptance: float = 1.0


@dataclass(frozen=True, slots=True)
class _Check:
    """One constraint at one trial."""

    quantity: str
    relation: str
    target: float
    reached: float | None
    holds: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What must hold at a trial.

    Args:
        targets: speeds and costs.
        engine: whose memory model is used.
        options: its options.
        terms: terms of the budget that are given.
        memory: whether the batch must fit; a made-up bandwidth or price asks for the speed alone.
        starts_as_asked: whether the engine is started for the context of each trial, not for the model's longest.
        drafting: how is drafted, where a speed-up is a target.
    """

    targets: Targets
    engine: str
    options: EngineOptions
    terms: BudgetTerms
    memory: bool
    starts_as_asked: bool
    drafting: Drafting | None = None

    def checks(self, trial: _Trial) -> list[_Check]:
        found = [self.fit(trial)] if self.memory else []
        targets = self.targets
        if targets.ttft_s is not None:
            seconds = prefill_row(trial.deployment, batch=1, prompt=trial.context).ideal_s
            found.append(_Check("ttft_s", "at most", targets.ttft_s, seconds, seconds <= targets.ttft_s))
        if targets.speedup is not None and self.drafting is not None:
            gained = self.drafting.speedup(trial)
            found.append(_Check("speedup", "at least", targets.speedup, gained, gained >= targets.speedup))
        rated = ("tokens_per_s", "tokens_per_s_per_sequence", "usd_per_million_tokens")
        wanted = [(name, getattr(targets, name)) for name in rated if getattr(targets, name) is not None]
        row = decode_row(trial.deployment, batch=trial.batch, context=trial.context) if wanted else None
        for name, target in wanted:
            value = getattr(row, name)
            below = name == "usd_per_million_tokens"
            if value is None:
                raise InputError("a cost needs the price of a GPU-hour", hint="give --price")
            holds = value <= target if below else value >= target
            found.append(_Check(name, "at most" if below else "at least", target, value, holds))
        return found

    def fit(self, trial: _Trial) -> _Check:
        options = self.options
        if self.starts_as_asked and options.max_model_len is None:
            options = replace(options, max_model_len=trial.context)
        question = FitQuestion(
            engine=self.engine, options=options, terms=self.terms, tokens=trial.context, batch=trial.batch
        )
        answer = fit_answer(trial.deployment, question)
        needed = answer.pool.bytes_for(context=trial.context, batch=trial.batch)
        return _Check("memory_bytes", "at most", max(0, answer.kv_bytes), needed, not answer.reason, answer.reason)

    def holds(self, trial: _Trial) -> bool:
        return all(check.holds for check in self.checks(trial))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """The trial at the answer, or the closest to one, its neighbour beyond, and the answer if there is one."""

    answer: float | None
    trial: _Trial
    beyond: _Trial | None
    stop: str = ""


def solve_report(
    deployment: Deployment,
    unknown: str,
    *,
    context: int | None = None,
    batch: int = 1,
    targets: Targets = _NO_TARGETS,
    engine: str = "vllm",
    options: EngineOptions | None = None,
    terms: BudgetTerms | None = None,
    drafting: Drafting | None = None,
) -> SolveReport:
    """Return the value of one quantity at the edge of what memory, speed and cost allow.

    Args:
        deployment: model, accelerator, formats and parallel sizes; those of an unknown number of GPUs are searched.
        unknown: what is left open.
        context: tokens of each sequence; 4,096 or the model's limit where left out.
        batch: sequences.
        targets: what must be reached besides fitting into memory.
        engine: whose memory model is used.
        options: the engine's options.
        terms: terms of the budget that are given instead of computed.
        drafting: how is drafted, where the acceptance is the unknown.

    Raises:
        InputError: sizes that make no sense, or nothing that bounds the unknown.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    if unknown not in UNKNOWNS:
        hint = did_you_mean(unknown, UNKNOWNS) or f"it can be {', '.join(UNKNOWNS)}"
        raise InputError(f"{unknown!r} cannot be solved for", hint=hint)
    check_batch(batch)
    tokens = default_context(deployment.model) if context is None else context
    notes = check_context(deployment.model, tokens)
    if unknown == "acceptance":
        targets = replace(targets, speedup=targets.speedup or 1.0)
    elif targets.speedup is not None:
        raise InputError("a speed-up bounds the acceptance alone", hint="leave --acceptance as ?")
    question = _Question(
        targets=targets,
        engine=engine,
        options=options or EngineOptions(),
        terms=terms or BudgetTerms(),
        memory=unknown not in ("bandwidth", "price", "acceptance"),
        starts_as_asked=unknown == "context",
        drafting=drafting or Drafting(),
    )
    start = _Trial(deployment=deployment, batch=batch, context=tokens)
    found = _SOLVERS[unknown](start, question)
    return SolveReport(
        engine=engine,
        formats=format_names(deployment.formats),
        rows=(_row(unknown, found, question),),
        notes=(*notes, *_notes(question, found), *pipeline_notes(found.trial.deployment), *deployment.model.notes),
    )


def _notes(question: _Question, found: _Solution) -> tuple[str, ...]:
    limit = found.trial.deployment.model.context_limit
    unasked = question.options.max_model_len is None and not question.starts_as_asked and question.memory
    if not unasked or limit is None or limit <= found.trial.context or question.engine not in ("vllm", "sglang"):
        return ()
    return (f"{question.engine} is started for the model's {limit:,} tokens unless --max-model-len says fewer",)


def _row(unknown: str, found: _Solution, question: _Question) -> SolveRow:
    trial = found.trial
    deployment, parallel = trial.deployment, trial.deployment.parallel
    here = question.checks(trial)
    there = {check.quantity: check for check in question.checks(found.beyond)} if found.beyond is not None else {}
    failing = {check.quantity for check in here if not check.holds}
    failing = failing or {name for name, check in there.items() if not check.holds}
    binding = [check.quantity for check in here if check.quantity in failing] or [found.stop] * bool(found.stop)
    speed: DecodeRow | None = None
    if deployment.hardware is not None:
        speed = decode_row(deployment, batch=trial.batch, context=trial.context)
    unit, extreme = UNKNOWNS[unknown]
    return SolveRow(
        unknown=unknown,
        answer=found.answer,
        unit=unit,
        extreme=extreme,
        binding=tuple(binding),
        reason=_reason(unknown, here, there, found),
        model=deployment.model.name,
        gpu="" if deployment.hardware is None else deployment.hardware.name,
        gpus=parallel.gpus,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        expert=parallel.expert,
        data=parallel.data,
        batch=trial.batch,
        context=trial.context,
        fits=question.fit(trial).holds,
        tokens_per_s=None if speed is None else speed.tokens_per_s,
        tokens_per_s_per_sequence=None if speed is None else speed.tokens_per_s_per_sequence,
        usd_per_million_tokens=None if speed is None else speed.usd_per_million_tokens,
        acceptance=trial.acceptance if unknown == "acceptance" else None,
        constraints=tuple(
            SolveConstraint(
                quantity=check.quantity,
                relation=check.relation,
                target=check.target,
                reached=check.reached,
                beyond=there[check.quantity].reached if check.quantity in there else None,
                holds=check.holds,
                binds=check.quantity in binding,
                reason=check.reason or (there[check.quantity].reason if check.quantity in there else ""),
            )
            for check in here
        ),
    )


def _reason(unknown: str, here: list[_Check], there: dict[str, _Check], found: _Solution) -> str:
    """Say what stops at the answer, or what cannot be met."""
    missed = [check for check in here if not check.holds]
    beyond = [check for check in there.values() if not check.holds]
    if not missed and not beyond:
        return found.stop
    if not missed and unknown in ("bandwidth", "price", "acceptance"):
        return f"{' and '.join(check.quantity for check in beyond)} would miss the target by a little"
    told = "; ".join(
        check.reason
        or f"{check.quantity} would be {_digits(check.reached)}, not {check.relation} {_digits(check.target)}"
        for check in missed or beyond
    )
    fewer = found.beyond.deployment.parallel.gpus if found.beyond is not None else 0
    return f"on {fewer}: {told}" if unknown == "gpus" and not missed else told


def _digits(value: float | None) -> str:
    """Return six digits, never as a power of ten unless it is a small number."""
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if abs(value) >= _LEAST_WHOLE else f"{value:.6g}"


def _solve_batch(start: _Trial, question: _Question) -> _Solution:
    """The largest batch: memory and the speed of a sequence fall with it, what all do together and its price rise."""

    def at(size: int) -> _Trial:
        return replace(start, batch=size)

    ends = ("memory_bytes", "tokens_per_s_per_sequence", "ttft_s")

    def upper(size: int) -> bool:
        return all(check.holds for check in question.checks(at(size)) if check.quantity in ends)

    size = largest(upper, _MOST_BATCH)
    if size == 0:
        return _Solution(answer=None, trial=at(1), beyond=None)
    if size == _MOST_BATCH:
        return _Solution(answer=None, trial=at(1), beyond=None, stop="nothing bounds the batch")
    answer = size if question.holds(at(size)) else None
    return _Solution(answer=answer, trial=at(size), beyond=at(size + 1))


def _solve_context(start: _Trial, question: _Question) -> _Solution:
    """The longest context, up to the model's limit or the max-model-len that was asked for."""
    known = question.options.max_model_len or start.deployment.model.context_limit
    limit = known or _MOST_CONTEXT

    def at(tokens: int) -> _Trial:
        return replace(start, context=tokens)

    tokens = _longest(lambda length: question.holds(at(length)), limit, start.deployment)
    if tokens == 0:
        return _Solution(answer=None, trial=at(1), beyond=None)
    if tokens == limit and known is None:
        return _Solution(answer=None, trial=start, beyond=None, stop="nothing bounds the context")
    if tokens == limit:
        return _Solution(answer=tokens, trial=at(tokens), beyond=None, stop="context_limit")
    return _Solution(answer=tokens, trial=at(tokens), beyond=at(tokens + 1))


def _longest(holds: Callable[[int], bool], limit: int, deployment: Deployment) -> int:
    """Return the largest context for which something holds.

    Chunks and compressed entries come in periods, inside which costs rise and at whose end they fall back a little: the
    last period is found by its cheapest place, then the place in it.
    """
    mixers = [mixer for block in deployment.model.block_counts for mixer in block.mixers]
    chunks = [mixer.chunk for mixer in mixers if isinstance(mixer, Chunked)]
    ratios = [mixer.ratio for mixer in mixers if isinstance(mixer, Compressed)]
    period = max([*chunks, *ratios], default=1)
    first = 1 if chunks else 0
    if period == 1:
        return largest(holds, limit)
    last = largest(lambda place: holds(min(limit, place * period + first)), limit // period)
    start = max(1, last * period + first)
    places = range(start, min(limit, start + period - 1) + 1)
    if chunks:
        return largest(lambda length: holds(start - 1 + length), len(places)) + start - 1 if holds(start) else 0
    return next((tokens for tokens in reversed(places) if holds(tokens)), 0)


def _solve_gpus(start: _Trial, question: _Question) -> _Solution:
    """The fewest GPUs, over the ways to spread the model that `fit` tries."""
    before: _Trial | None = None
    trial = start
    for parallel in arrangements(start.deployment.model):
        trial = replace(start, deployment=replace(start.deployment, parallel=parallel))
        try:
            met = question.holds(trial)
        except UnsupportedError:
            if parallel.gpus == 1:
                raise
            continue
        if met:
            fewer = before if before is not None and before.deployment.parallel.gpus < parallel.gpus else None
            return _Solution(answer=parallel.gpus, trial=trial, beyond=fewer)
        before = _closer(before, trial, question)
    return _Solution(answer=None, trial=before or trial, beyond=None)


def _closer(one: _Trial | None, other: _Trial, question: _Question) -> _Trial:
    """Return the arrangement on more GPUs, or the one that fails less on as many."""
    if one is None or other.deployment.parallel.gpus > one.deployment.parallel.gpus:
        return other

    def failures(trial: _Trial) -> int:
        return sum(not check.holds for check in question.checks(trial))

    return other if failures(other) < failures(one) else one


def _solve_bandwidth(start: _Trial, question: _Question) -> _Solution:
    """The least memory bandwidth at which the targets are met, whether or not the batch fits."""
    if not question.targets.given:
        raise InputError("a bandwidth is bounded by a speed", hint="give --tokens-per-s, --ttft or another target")

    def at(rate: float) -> _Trial:
        hardware = replace(required_hardware(start.deployment), memory_bandwidth_bytes_per_s=rate)
        return replace(start, deployment=replace(start.deployment, hardware=hardware))

    low, high = _LEAST_BYTES_PER_S, _MOST_BYTES_PER_S
    if not question.holds(at(high)):
        return _Solution(answer=None, trial=at(high), beyond=None)
    if question.holds(at(low)):
        return _Solution(answer=None, trial=at(low), beyond=None, stop="any bandwidth is enough")
    while high / low > 1 + _LEAST_RANGE:
        middle = (low * high) ** 0.5
        low, high = (low, middle) if question.holds(at(middle)) else (middle, high)
    return _Solution(answer=high, trial=at(high), beyond=at(high * (1 - _LEAST_STEP)))


def _solve_price(start: _Trial, question: _Question) -> _Solution:
    """The most that a GPU-hour may cost for a million tokens to cost what they may."""
    target = question.targets.usd_per_million_tokens
    if target is None:
        raise InputError("a price is bounded by what a million tokens may cost", hint="give --usd-per-million-tokens")

    def at(price: float) -> _Trial:
        hardware = replace(required_hardware(start.deployment), price_per_hour_usd=price)
        return replace(start, deployment=replace(start.deployment, hardware=hardware))

    speed = decode_row(start.deployment, batch=start.batch, context=start.context).tokens_per_s
    gpus = start.deployment.parallel.gpus
    price = price_per_hour_usd(usd_per_million_tokens=target, gpus=gpus, tokens_per_s=speed) * (1 - _LEAST_RANGE)
    answer = price if question.holds(at(price)) else None
    return _Solution(answer=answer, trial=at(price), beyond=at(price * (1 + _LEAST_STEP)))


def _solve_acceptance(start: _Trial, question: _Question) -> _Solution:
    """The least acceptance at which speculation gains what it should; break-even where no speed-up is asked for."""

    def at(rate: float) -> _Trial:
        return replace(start, acceptance=rate)

    if not question.holds(at(1.0)):
        return _Solution(answer=None, trial=at(1.0), beyond=None)
    low, high = 0.0, 1.0
    if question.holds(at(low)):
        return _Solution(answer=low, trial=at(low), beyond=None, stop="any acceptance is enough")
    while high - low > _LEAST_RANGE:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        low, high = (low, middle) if question.holds(at(middle)) else (middle, high)
    return _Solution(answer=high, trial=at(high), beyond=at(high * (1 - _LEAST_STEP)))


_SOLVERS: dict[str, Callable[[_Trial, _Question], _Solution]] = {
    "batch": _solve_batch,
    "context": _solve_context,
    "gpus": _solve_gpus,
    "bandwidth": _solve_bandwidth,
    "price": _solve_price,
    "acceptance": _solve_acceptance,
}
