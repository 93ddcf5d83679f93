"""Does it fit: the memory of the fullest GPU term by term, and the largest batch, longest context and fewest GPUs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.records import dataclass
from kvcalc.core.reports.fit import FitReport, FittingDeployment
from kvcalc.core.search import largest
from kvcalc.core.units import counted
from kvcalc.plan.arrangements import MAX_GPUS, candidates, flags_of, is_practical
from kvcalc.plan.contexts import check_batch, check_context, sequence_tokens, usual_context_notes
from kvcalc.plan.deployment import started
from kvcalc.plan.formats import format_names
from kvcalc.plan.loaded import loaded_notes
from kvcalc.plan.rank_memory import logical_cache
from kvcalc.plan.room import NO_TERMS, BudgetTerms, Room, assumed_capacity, budget, room
from kvcalc.plan.steps import link_notes

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.workload import Parallel
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "BudgetTerms",
    "Fewest",
    "cache_memory",
    "fewest_gpus",
    "fit_report",
    "holds_batch",
    "longest_length",
    "sequence_tokens",
]

# Where the search for the longest context of a model without a limit stops.
_MAX_CONTEXT = 1_000_000_000


def cache_memory(deployment: Deployment) -> int:
    """Return the bytes that an engine gives its cache on each GPU; none or fewer where the weights leave nothing.

    Raises:
        InputError: no accelerator, or an engine whose memory is not modelled.
    """
    return budget(deployment, deployment.start()).kv_bytes_available


def longest_length(deployment: Deployment, tokens: int, *, asked: bool) -> int:
    """Return the longest sequence that an engine is started for: max-model-len, else the context that was asked for.

    vLLM and SGLang are started for the model's limit, as they read it, where no context was asked for.
    """
    own = deployment.options.max_model_len
    if own is not None:
        return own
    start = deployment.start()
    limit = start.context_limit
    return tokens if asked or limit is None or not start.takes_limit else max(limit, tokens)


def fit_report(
    deployment: Deployment,
    *,
    engine: str | None = None,
    options: EngineOptions | None = None,
    terms: BudgetTerms = NO_TERMS,
    context: int | None = None,
    batch: int = 1,
) -> FitReport:
    """Return whether weights, cache and overhead fit, and what else would.

    Args:
        deployment: model, accelerator, formats, parallel sizes and engine.
        engine: another engine whose memory model is used.
        options: that engine's options.
        terms: terms of the budget that are given instead of computed.
        context: tokens of each sequence; the smaller of 4,096 and the longest length where left out.
        batch: sequences.

    Raises:
        InputError: neither an accelerator nor a memory for the cache, or a context longer than the engine's longest.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    deployment = started(deployment, engine or deployment.served_by, options)
    model, options = deployment.model, deployment.options
    tokens = sequence_tokens(deployment, context)
    context = None if context is None else tokens
    own = usual_context_notes(deployment) if context is None else ()
    notes = [*own, *check_context(model, tokens), *_idle_terms(options, terms)]
    check_batch(batch)
    longest = longest_length(deployment, tokens, asked=context is not None)
    here = room(deployment, max_model_len=longest, terms=terms)
    fewest = Fewest(smallest=None, practical=None, reason="")
    if here.refusal:
        fewest = replace(fewest, reason="no number of GPUs starts at this length")
    elif terms.kv_bytes is None:
        fewest = fewest_gpus(
            deployment, lambda at: holds_batch(at, longest=longest, tokens=tokens, batch=batch, terms=terms)
        )
    formats, parallel = deployment.formats, deployment.parallel
    reserved = _reserved_bytes(here, options, tokens=tokens, batch=batch)
    reason, pools = here.reason(context=tokens, batch=batch), here.held.pools
    return FitReport(
        model=model.name,
        engine=here.pool.name,
        gpu="" if deployment.hardware is None else deployment.hardware.name,
        gpus=parallel.gpus,
        layout=flags_of(parallel),
        formats=format_names(formats),
        context=tokens,
        batch=batch,
        max_model_len=here.max_model_len,
        fits=not reason,
        reason=reason,
        budget=here.budget,
        kv_bytes_available=max(0, here.kv_bytes),
        method="" if deployment.draft is None else deployment.draft.method,
        gamma=0 if deployment.draft is None else deployment.draft.tokens,
        logical_kv_bytes=logical_cache(deployment, tokens=tokens, batch=batch),
        reserved_kv_bytes=reserved,
        kv_headroom=1 - reserved / here.kv_bytes if here.kv_bytes > 0 else None,
        kv_capacity_tokens=here.held.tokens,
        max_concurrency=here.concurrency,
        num_blocks=here.held.num_blocks,
        block_size=here.held.block_size,
        max_running_requests=None if pools is None else pools.requests,
        window_capacity_tokens=None if pools is None else pools.window_tokens,
        state_slots=None if pools is None else pools.state_slots,
        pool_buffers=() if pools is None else pools.buffers,
        request_table_bytes=None if pools is None else pools.table_bytes,
        max_batch=here.max_batch(tokens),
        max_context=max(0 if reason else tokens, _longest_context(deployment, here, terms, batch=batch)),
        min_gpus=None if fewest.smallest is None else fewest.smallest.gpus,
        smallest=fewest.smallest,
        practical=fewest.practical,
        min_gpus_reason=fewest.reason,
        assumed=assumed_capacity(here, deployment, terms),
        notes=(
            *notes,
            *_length_notes(deployment, here, asked=context is not None),
            *_memory_notes(deployment, here),
            *loaded_notes(deployment),
            *here.pool.notes,
            *_draft_notes(deployment),
            *deployment.notes,
            *link_notes(deployment),
            *_other_layout(deployment, fewest.smallest, fits=not reason),
        ),
    )


def _longest_context(deployment: Deployment, here: Room, terms: BudgetTerms, *, batch: int) -> int:
    """Return the longest context of a batch up to the model's limit unless an engine takes more.

    SGLang, whose pools follow its length, is started for each that is tried, unless it starts for the one asked for.
    """
    own, limit = deployment.options.max_model_len, here.start.context_limit
    longest = (None if here.refusal and limit is not None else own) or limit or _MAX_CONTEXT
    if here.start.engine != "sglang" or not (own is None or here.refused):
        return largest(lambda length: here.holds(context=length, batch=batch), longest)
    unsaid = replace(deployment, options=replace(deployment.options, max_model_len=None))

    def starts(length: int) -> bool:
        return not room(unsaid, max_model_len=length, terms=terms).reason(context=length, batch=batch)

    return largest(starts, longest)


def _draft_notes(deployment: Deployment) -> tuple[str, ...]:
    """Return the notes of the draft and of the model, whose prediction layers are counted where they draft."""
    draft, notes = deployment.draft, deployment.model.notes
    if draft is None:
        return notes
    counted = draft.method == "mtp"
    return (*draft.notes, *(note for note in notes if not (counted and "multi-token-prediction" in note)))


def _other_layout(deployment: Deployment, smallest: FittingDeployment | None, *, fits: bool) -> tuple[str, ...]:
    """Say that another layout of as many GPUs holds what the one asked for does not."""
    gpus = deployment.parallel.gpus
    if fits or smallest is None or gpus == 1 or smallest.gpus > gpus:
        return ()
    taken = flags_of(deployment.parallel)
    return (f"{gpus} GPUs are taken as {taken}, which does not hold it; {smallest.flags or 'one of them'} does",)


def _memory_notes(deployment: Deployment, here: Room) -> tuple[str, ...]:
    """Note the size taken for the accelerator's memory where it counts and is not known exactly."""
    note = "" if deployment.hardware is None or here.budget is None else deployment.hardware.memory_note
    return (note,) if note else ()


def _length_notes(deployment: Deployment, here: Room, *, asked: bool) -> tuple[str, ...]:
    """Say that the engine's own longest length is another than the context that was asked for."""
    length, limit = here.max_model_len, here.start.context_limit
    if not asked or limit is None or limit <= length or deployment.options.max_model_len is not None:
        return ()
    if not here.start.takes_limit:
        return ()
    option = "--context-length" if here.start.engine == "sglang" else "--max-model-len"
    return (f"started for the {counted(length, 'token')} asked for; without {option} the engine takes {limit:,}",)


def _idle_terms(options: EngineOptions, terms: BudgetTerms) -> tuple[str, ...]:
    """Return a note where terms of a budget are given that is not computed."""
    given = (options.utilization, terms.activation_bytes, terms.overhead_bytes) != (None, None, None)
    if terms.kv_bytes is None or not given:
        return ()
    return ("the memory for the cache is given: utilization, activations and overhead have no part in the answer",)


def _reserved_bytes(here: Room, options: EngineOptions, *, tokens: int, batch: int) -> int:
    """Return the bytes the engine sets aside: with ``--parallel``, llama.cpp's context is that of all slots."""
    if options.parallel > 1:
        length, slots = options.max_model_len or 0, options.parallel
        tokens = max(tokens * batch, length * slots) if options.kv_unified else max(tokens, length) * slots
    return here.pool.reserved(context=tokens, batch=batch).total_bytes


def holds_batch(
    deployment: Deployment, *, longest: int, tokens: int, batch: int, terms: BudgetTerms = NO_TERMS
) -> bool:
    """Whether an arrangement holds a batch: most fall at what is computed first.

    Raises:
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    space = room(deployment, max_model_len=longest, terms=terms)
    if space.kv_bytes <= 0 or not space.holds(context=tokens, batch=batch):
        return False
    return not space.reason(context=tokens, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fewest:
    """The end of a search over arrangements.

    Args:
        smallest: the arrangement on the fewest GPUs; none where none that was tried holds.
        practical: the smallest that people rent and start so.
        reason: why there is no smallest.
    """

    smallest: FittingDeployment | None
    practical: FittingDeployment | None
    reason: str


def fewest_gpus(deployment: Deployment, holds: Callable[[Deployment], bool]) -> Fewest:
    """Return the arrangement on the fewest GPUs for which something holds, and the smallest practical one.

    The user's own arrangement is tried too, before others on as many GPUs; up to 64 GPUs are tried.
    """
    own = deployment.parallel
    tried_in_turn = [own, *(each for each in candidates(deployment) if each != own)]
    smallest: FittingDeployment | None = None
    refusal, answered = "", 0
    for parallel in sorted(tried_in_turn, key=lambda each: each.gpus):
        practical = is_practical(parallel)
        if smallest is not None and not practical:
            continue
        try:
            fits = holds(replace(deployment, parallel=parallel))
        except UnsupportedError as error:
            refusal = refusal or error.what
            continue
        answered = parallel.gpus
        if fits:
            option = _described(parallel)
            # of two layouts on as many GPUs the practical one is the answer, unless the other was asked for
            better = smallest is not None and practical and smallest.gpus == option.gpus
            if smallest is None or (better and smallest.flags != flags_of(own)):
                smallest = option
            if practical:
                return Fewest(smallest=smallest, practical=option, reason="")
    # a refusal of some arrangements is no reason for all
    none = refusal if answered < MAX_GPUS and refusal else f"more than {MAX_GPUS}"
    reason = "" if smallest is not None else none
    return Fewest(smallest=smallest, practical=None, reason=reason)


def _described(parallel: Parallel) -> FittingDeployment:
    return FittingDeployment(
        gpus=parallel.gpus,
        tensor=parallel.tensor,
        pipeline=parallel.pipeline,
        expert=parallel.expert,
        data=parallel.data,
        flags=flags_of(parallel),
    )
