"""Does it fit: the memory of the fullest GPU term by term, and the largest batch, longest context and fewest GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Latent
from kvcalc.core.reports.fit import Budget, FitReport, FittingDeployment
from kvcalc.core.search import largest
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import rank_cache_bytes, splits_evenly
from kvcalc.engines.budget import Interval, activation_peak, budget_defaults, default_sequences, runtime_overhead
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.pools import pool
from kvcalc.plan.deployment import (
    check_batch,
    check_context,
    default_context,
    format_names,
    rank_weights,
    share_experts,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.budget import BudgetDefaults
    from kvcalc.engines.pools import Held, Pool
    from kvcalc.plan.deployment import Deployment

__all__ = ["BudgetTerms", "cache_memory", "fit_report"]

# GPUs that share a fast link: tensor parallelism stays inside them.
_NODE = 8
_MOST_GPUS = 64
# Engines whose data-parallel copies share the experts.
_SHARING_EXPERTS = ("vllm", "sglang")
# Where the search for the longest context of a model without a limit stops.
_MOST_CONTEXT = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """Terms of the budget that a user knows better.

    Args:
        kv_bytes: memory for the cache on each GPU; skips the budget.
        activation_bytes: peak of activations.
        overhead_bytes: context, buffers and graphs.
    """

    kv_bytes: int | None = None
    activation_bytes: int | None = None
    overhead_bytes: int | None = None


_NO_TERMS = BudgetTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitQuestion:
    """What is asked of an arrangement.

    Args:
        engine: whose memory model is used.
        options: the engine's options.
        terms: terms of the budget that are given.
        tokens: tokens of each sequence.
        batch: sequences.
    """

    engine: str
    options: EngineOptions
    terms: BudgetTerms
    tokens: int
    batch: int


def cache_memory(deployment: Deployment, *, engine: str, options: EngineOptions) -> int:
    """Return the bytes that an engine gives its cache on each GPU; none or fewer where the weights leave nothing.

    Raises:
        InputError: no accelerator, or a share of its memory that is none.
    """
    question = FitQuestion(engine=engine, options=options, terms=_NO_TERMS, tokens=1, batch=1)
    return _budget(deployment, question).kv_bytes_available


def fit_report(
    deployment: Deployment,
    *,
    engine: str = "vllm",
    options: EngineOptions | None = None,
    terms: BudgetTerms = _NO_TERMS,
    context: int | None = None,
    batch: int = 1,
) -> FitReport:
    """Return whether weights, cache and overhead fit, and what else would.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        engine: whose memory model is used.
        options: the engine's options.
        terms: terms of the budget that are given instead of computed.
        context: tokens of each sequence; the smaller of 4,096 and the longest length where left out.
        batch: sequences.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or a context longer than the engine's longest.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    options = options or EngineOptions()
    model = deployment.model
    longest = options.max_model_len
    tokens = min(default_context(model), longest or default_context(model)) if context is None else context
    notes = [*check_context(model, tokens), *_idle_terms(options, terms)]
    check_batch(batch)
    if longest is not None and tokens > longest:
        raise InputError(f"context {tokens} is longer than max-model-len {longest}")
    question = FitQuestion(engine=engine, options=options, terms=terms, tokens=tokens, batch=batch)
    answer = fit_answer(deployment, question)
    smallest = _smallest(deployment, question) if terms.kv_bytes is None else None
    formats, parallel = deployment.formats, deployment.parallel
    reserved = _reserved_bytes(answer.pool, options, tokens=tokens, batch=batch)
    return FitReport(
        model=model.name,
        engine=answer.pool.name,
        gpu="" if deployment.hardware is None else deployment.hardware.name,
        gpus=parallel.gpus,
        formats=format_names(formats),
        context=tokens,
        batch=batch,
        max_model_len=answer.longest,
        fits=not answer.reason,
        reason=answer.reason,
        budget=answer.budget,
        kv_bytes_available=max(0, answer.kv_bytes),
        logical_kv_bytes=rank_cache_bytes(model, formats, parallel, tokens=tokens, batch=batch),
        reserved_kv_bytes=reserved,
        kv_headroom=1 - reserved / answer.kv_bytes if answer.kv_bytes > 0 else None,
        kv_capacity_tokens=answer.held.tokens,
        max_concurrency=answer.held.concurrency,
        num_blocks=answer.held.num_blocks,
        block_size=answer.held.block_size,
        max_batch=answer.max_batch(tokens),
        max_context=largest(
            lambda length: answer.holds(context=length, batch=batch),
            longest or max(model.context_limit or _MOST_CONTEXT, tokens),
        ),
        min_gpus=None if smallest is None else smallest.gpus,
        smallest=smallest,
        notes=(*notes, *model.notes),
    )


def _idle_terms(options: EngineOptions, terms: BudgetTerms) -> tuple[str, ...]:
    """Return a note where terms of a budget are given that is not computed."""
    given = (options.utilization, terms.activation_bytes, terms.overhead_bytes) != (None, None, None)
    if terms.kv_bytes is None or not given:
        return ()
    return ("the memory for the cache is given: utilization, activations and overhead have no part in the answer",)


@dataclass(frozen=True, slots=True)
class FitAnswer:
    """One arrangement, its budget and what its cache holds."""

    pool: Pool
    budget: Budget | None
    kv_bytes: int
    held: Held
    longest: int
    reason: str

    def holds(self, *, context: int, batch: int) -> bool:
        held = batch <= self.pool.most_sequences
        return held and self.pool.bytes_for(context=context, batch=batch) <= self.kv_bytes

    @property
    def starts(self) -> bool:
        """Whether the engine starts: some want room for one sequence of the longest length."""
        return self.kv_bytes > 0 and (self.held.starts or not self.pool.starts_whole)

    def max_batch(self, context: int) -> int:
        """Return the sequences of that length it holds at once; none if it does not start."""
        return largest(lambda size: self.holds(context=context, batch=size), self.pool.most_sequences) * self.starts


def _reserved_bytes(cache: Pool, options: EngineOptions, *, tokens: int, batch: int) -> int:
    """Return what the engine sets aside: with ``--parallel``, llama.cpp's context is that of all slots together."""
    if options.parallel > 1:
        tokens = max(tokens, options.max_model_len or 0) * options.parallel
    return cache.reserved(context=tokens, batch=batch).total_bytes


def fit_answer(deployment: Deployment, question: FitQuestion) -> FitAnswer:
    cache = pool(question.engine, deployment.model, deployment.formats, deployment.parallel, question.options)
    tokens, batch, options = question.tokens, question.batch, question.options
    # an engine that starts whole is started for the model's limit unless it is told otherwise
    unasked = deployment.model.context_limit if cache.starts_whole else None
    longest = options.max_model_len or max(unasked or 0, tokens)
    budget = None
    kv_bytes = question.terms.kv_bytes
    if kv_bytes is None:
        budget = _budget(deployment, question)
        kv_bytes = budget.kv_bytes_available
    held = cache.held(max(0, kv_bytes), max_model_len=longest)
    answer = FitAnswer(pool=cache, budget=budget, kv_bytes=kv_bytes, held=held, longest=longest, reason="")
    return replace(answer, reason=_reason(answer, tokens=tokens, batch=batch))


def _holds(deployment: Deployment, question: FitQuestion) -> bool:
    """Whether an answer would have no reason against it: most arrangements fall at what is computed first."""
    cache = pool(question.engine, deployment.model, deployment.formats, deployment.parallel, question.options)
    kv_bytes = _budget(deployment, question).kv_bytes_available
    if kv_bytes <= 0 or cache.bytes_for(context=question.tokens, batch=question.batch) > kv_bytes:
        return False
    return not fit_answer(deployment, question).reason


def _reason(answer: FitAnswer, *, tokens: int, batch: int) -> str:
    """Say why a batch does not fit; nothing where it does."""
    if answer.kv_bytes <= 0:
        return "weights and overhead leave nothing for the cache"
    if not answer.starts:
        return f"the cache does not hold one sequence of max-model-len {answer.longest:,}"
    if batch > answer.pool.most_sequences:
        return f"the engine takes at most {answer.pool.most_sequences:,} sequences at once"
    if not answer.holds(context=tokens, batch=batch):
        return f"the cache does not hold {batch:,} sequences of {tokens:,} tokens"
    return ""


def _budget(deployment: Deployment, question: FitQuestion) -> Budget:
    hardware = deployment.hardware
    if hardware is None:
        raise InputError(
            "whether it fits depends on the accelerator", hint="give --gpu, or --kv-memory for the cache alone"
        )
    memory = hardware.usable_memory_bytes
    defaults = budget_defaults(question.engine, question.options)
    asked = question.options.utilization
    utilization = defaults.utilization if asked is None else asked
    if not 0 < utilization <= 1:
        raise InputError(f"utilization must be above 0 and at most 1, not {utilization}")
    served = deployment
    if question.engine in _SHARING_EXPERTS:
        served = replace(deployment, parallel=share_experts(deployment.model, deployment.parallel))
    weights = rank_weights(served)
    activations, overhead = _overheads(deployment, question, defaults, memory)
    usable = int(utilization * memory) - weights
    beside = activations.plus(overhead)
    return Budget(
        memory_bytes=memory,
        utilization=utilization,
        weight_bytes=weights,
        activation_bytes=activations.most,
        overhead_bytes=overhead.most,
        kv_bytes_available=usable - beside.most,
        intervals={
            "activation_bytes": (activations.least, activations.most),
            "overhead_bytes": (overhead.least, overhead.most),
            "kv_bytes_available": (usable - beside.most, usable - beside.least),
        },
    )


def _overheads(
    deployment: Deployment, question: FitQuestion, defaults: BudgetDefaults, memory: int
) -> tuple[Interval, Interval]:
    """Return activations and overhead: as given, else what is expected of the engine."""
    parallel = deployment.parallel
    activations = overhead = Interval(least=0, most=0)
    if defaults.pass_tokens is not None:
        activations = activation_peak(
            deployment.model,
            deployment.formats,
            tokens=defaults.pass_tokens,
            sequences=question.options.max_num_seqs or default_sequences(memory),
            tensor=parallel.tensor,
        )
    if defaults.has_runtime:
        overhead = runtime_overhead(ranks=parallel.gpus)
    terms = question.terms
    return _given(terms.activation_bytes, activations), _given(terms.overhead_bytes, overhead)


def _given(term: int | None, computed: Interval) -> Interval:
    return computed if term is None else Interval(least=term, most=term)


def _smallest(deployment: Deployment, question: FitQuestion) -> FittingDeployment | None:
    """Return the arrangement on the fewest GPUs that holds the batch; none if there is none up to 64, or the user's."""
    own = deployment.parallel
    tried_in_turn = [own, *(each for each in arrangements(deployment.model) if each != own)]
    # in order of GPUs, the user's own first
    for parallel in sorted(tried_in_turn, key=lambda each: each.gpus):
        tried = replace(deployment, parallel=parallel)
        try:
            fits = _holds(tried, question)
        except UnsupportedError:
            if parallel.gpus == 1:
                raise
            continue
        if fits:
            return FittingDeployment(
                gpus=parallel.gpus,
                tensor=parallel.tensor,
                pipeline=parallel.pipeline,
                expert=parallel.expert,
                data=parallel.data,
            )
    return None


def arrangements(model: ModelProfile) -> Iterator[Parallel]:
    """Yield ways to spread a model, fewest GPUs first: tensor parallel inside a node, and pipeline stages.

    A model with latent attention may also replicate its attention and share out its experts (attention data parallel).
    """
    latent = any(isinstance(mixer, Latent) for block in model.block_counts for mixer in block.mixers)
    sizes = [size for size in range(_NODE, 0, -1) if splits_evenly(model, size)]
    for gpus in range(1, _MOST_GPUS + 1):
        for tensor in sizes:
            if gpus % tensor == 0 and gpus // tensor <= model.layers:
                yield Parallel(tensor=tensor, pipeline=gpus // tensor)
        if gpus > 1 and latent:
            yield Parallel(data=gpus, expert=gpus)
