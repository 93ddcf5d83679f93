"""From a record of a model's speed to the passes that the measured time was spent on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.workload import TokenGroup, decode_step, prefill_pass
from kvcalc.cost.roofline import step_time
from kvcalc.evidence.cases import Case, FirstToken, Unusable, pass_of
from kvcalc.evidence.names import exclusion, superseded, weights_in_name
from kvcalc.evidence.setups import Setup, near_setup, setup_of
from kvcalc.plan.rank_memory import memory_needed

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.evidence.cases import Pass
    from kvcalc.evidence.record import Record
    from kvcalc.plan.deployment import Deployment

__all__ = ["case_in", "case_of", "most_held"]

_MAX_SEQUENCES = 100_000
# Ranks of an engine that serves prompts and tokens alike, beyond which what was printed means something else.
_MOST_RANKS = 16
# Tokens of a context up to which attention is small beside the matrices, with or without flash attention.
_MAX_WITHOUT_FLASH = 1024


def case_of(record: Record) -> Case | Unusable:
    """Return a record of a model's speed as passes on an accelerator, or why it cannot be used."""
    reason = exclusion(record)
    case = _found(replace(record, weights=record.weights or weights_in_name(record.model)))
    if reason is None:
        return case
    return Unusable(status="excluded", reason=reason, guess=case if isinstance(case, Case) else case.guess)


def _found(record: Record) -> Case | Unusable:
    try:
        setup = setup_of(record)
        if isinstance(setup, Unusable):
            near = near_setup(record) if setup.status == "excluded" else None
            return setup if near is None else replace(setup, guess=_step(record, near))
        return _step(record, setup)
    except KvcalcError as error:
        return Unusable(status="excluded", reason=error.what)


def _step(record: Record, setup: Setup) -> Case:
    return _STEPS.get(record.phase, _unknown)(record, setup)


def case_in(record: Record, deployment: Deployment, hardware: HardwareProfile, *, limited: bool = False) -> Case:
    """Return a record as passes of a deployment that is known.

    Args:
        record: the record.
        deployment: the deployment that it was measured on.
        hardware: its accelerator.
        limited: whether no more sequences decode at once than the memory holds.

    Raises:
        InputError: a phase that is not known, or a record without what it takes.
    """
    setup = Setup(deployment=deployment, variants=(hardware,), assumed=(), weights_known=True, limited=limited)
    return _STEPS.get(record.phase, _unknown)(record, setup)


def _unknown(record: Record, setup: Setup) -> Case:
    del setup
    raise InputError(f"the phase {record.phase!r} is not known")


def _batch(record: Record) -> int:
    if not record.batch:
        raise InputError("the number of sequences at once was not printed")
    return record.batch


def _mean_context(record: Record) -> int:
    """Return the mean context of the decode steps: after the prompt, half of what was generated."""
    return record.depth_tokens + (record.prompt_tokens or 0) + 1 + (record.output_tokens or 0) // 2


def _decode(record: Record, setup: Setup) -> Case:
    batch, context = -(-_batch(record) // (record.decode_engines or 1)), _mean_context(record)
    running, assumed = float(batch), []
    if record.is_time and record.ttft_s is not None and record.output_tokens:
        # Little's law: a sequence decodes for output * step seconds and waits for its first token before
        decoding_s = record.output_tokens * record.seconds_per_token
        running = max(1.0, batch * decoding_s / (decoding_s + record.ttft_s))
    room = most_held(setup.deployment, tokens=context, limit=batch) if setup.limited else batch
    if room < running:
        assumed.append(f"the memory holds {room:,} of the {batch:,} sequences of {context:,} tokens at once")
    together = max(1, min(int(running), room))
    if record.decode_engines is None:
        assumed.append("the number of engines or requests was not printed: compared with the bound of one sequence")
        together = 1
    measured_s = record.seconds_per_token * (1 if record.is_time else together)
    step = decode_step(batch=together, context=context)
    return Case(
        record=record,
        variants=setup.variants,
        passes=(pass_of(setup.deployment, step),),
        measured_s=measured_s,
        deployment=setup.deployment,
        likely=_with_prompts(record, setup.deployment, room),
        timing="one by one" if batch == 1 else "alone",
        assumed=(*setup.assumed, *assumed),
        bound_only=_unscored(setup, record, context) or _unread(record, setup, room),
    )


def _unread(record: Record, setup: Setup, together: int) -> str:
    """Return why the prompts beside the steps cannot be told: they were not all read in the time of a request.

    While a request waits for its first token and generates the others, an engine that computes everything reads as many
    prompts as it holds sequences, and makes all those steps.
    """
    prompt, output = record.prompt_tokens, record.output_tokens
    if not record.is_time or record.ttft_s is None or together == 1 or not prompt or not output:
        return ""
    if record.prefill_parallel is not None:
        return ""
    work = (
        pass_of(setup.deployment, prefill_pass(batch=1, prompt=prompt), times=together),
        pass_of(setup.deployment, decode_step(batch=together, context=_mean_context(record)), times=output),
    )
    least_s = sum(step.times * step_time(step.cost, setup.variants[0]).ideal_s for step in work)
    if record.ttft_s + output * record.seconds_per_token >= least_s:
        return ""
    return "its prompts cannot all have been read in that time: the engine kept them from earlier requests"


def _with_prompts(record: Record, deployment: Deployment, together: int) -> tuple[Pass, ...]:
    """Return the step of a server that is kept full, and the prompts of others that it reads between.

    While one sequence generates its tokens, the prompts of all the others are read; in data parallel, one on each
    copy at once.
    """
    prompt, output = record.prompt_tokens, record.output_tokens
    if not record.is_time or together == 1 or not prompt or not output:
        return ()
    decoding = pass_of(deployment, decode_step(batch=together, context=_mean_context(record)))
    copies = min(deployment.parallel.data, together)
    times = (together / copies - 1) / output
    if record.prefill_parallel is not None or not times:
        return (decoding,)
    return decoding, pass_of(deployment, prefill_pass(batch=copies, prompt=prompt), times=times, is_beside=True)


def _unscored(setup: Setup, record: Record, context: int) -> str:
    """Return why a record gets no estimate; empty if it does."""
    if "-fa 0" in record.engine and context > _MAX_WITHOUT_FLASH:
        return "without flash attention the scores of a long context go through memory, which the estimate leaves out"
    if record.prefill_parallel is not None and record.decode_engines is None:
        return "how many engines decode, or requests in all, was not printed: taken as one engine's"
    ranks = setup.deployment.parallel.gpus
    if record.prefill_parallel is None and ranks > _MOST_RANKS:
        return f"{ranks} ranks of one engine are more than such a run has: the size is that of something else"
    return superseded(record) or ("" if setup.weights_known else "the weights' format was not printed")


def _prefill(record: Record, setup: Setup) -> Case:
    batch, prompt = _batch(record), _prompt(record)
    group = TokenGroup(
        sequences=batch, query_tokens=prompt, past_tokens=record.depth_tokens, encoder_pass=not record.depth_tokens
    )
    return Case(
        record=record,
        variants=setup.variants,
        passes=(pass_of(setup.deployment, group),),
        measured_s=record.seconds_per_token * (1 if record.is_time else prompt * batch),
        deployment=setup.deployment,
        assumed=setup.assumed,
        bound_only=_unscored(setup, record, record.depth_tokens + prompt),
    )


def _prompt(record: Record) -> int:
    if not record.prompt_tokens:
        raise InputError("the length of the prompt was not printed")
    return record.prompt_tokens


def _first_token(record: Record, setup: Setup) -> Case:
    """A request's first token comes no sooner than its own prompt is read, whatever the others do."""
    group = prefill_pass(batch=1, prompt=_prompt(record))
    deployment = setup.prefill or setup.deployment
    batch = record.batch or 1
    copies = deployment.parallel.data * (record.prefill_engines or 1)
    steps = decode_step(batch=-(-batch // (record.decode_engines or 1)), context=_mean_context(record))
    return Case(
        record=record,
        variants=setup.variants,
        passes=(pass_of(deployment, group),),
        measured_s=record.seconds_per_token,
        deployment=deployment,
        first=FirstToken(
            prompt=pass_of(deployment, group),
            step=pass_of(setup.deployment, steps),
            others=max(0.0, batch / copies - 1),
        ),
        assumed=setup.assumed,
        bound_only=_unscored(setup, record, _prompt(record)),
    )


def _whole(record: Record, setup: Setup) -> Case:
    """A batch of requests: their prompts, then a step for each further token.

    Under a load whose concurrency was not printed, as many requests as the memory holds, mixed with each other.
    """
    prompt, output = _prompt(record), record.output_tokens or 1
    deployment, assumed = setup.deployment, list(setup.assumed)
    counted = prompt + output if record.counts_prompts else output
    batch = most_held(deployment, tokens=prompt + output, limit=record.batch or _MAX_SEQUENCES)
    if record.is_time:
        batch = 1
        assumed.append("the request time is compared with that of a single request")
    elif record.batch is None:
        assumed.append(
            f"the number of sequences at once was not printed: taken as {batch:,}, the most that fit the memory"
        )
    elif batch < record.batch:
        assumed.append(
            f"the memory holds {batch:,} of the {record.batch:,} requests of {prompt + output:,} tokens at once"
        )
    passes = [pass_of(deployment, prefill_pass(batch=batch, prompt=prompt))]
    if output > 1:
        step = decode_step(batch=batch, context=_mean_context(record))
        passes.append(pass_of(deployment, step, times=output - 1))
    return Case(
        record=record,
        variants=setup.variants,
        passes=tuple(passes),
        measured_s=record.seconds_per_token * (1 if record.is_time else batch * counted),
        deployment=deployment,
        timing="alone" if batch in (record.batch, 1) else "mixed",
        assumed=tuple(assumed),
        bound_only=_unscored(setup, record, prompt)
        if batch == record.batch
        else "how many requests ran at once is not known",
    )


def most_held(deployment: Deployment, *, tokens: int, limit: int) -> int:
    """Count the sequences of that many tokens that fit beside the weights: 1 at least, no more than ``limit``."""
    if memory_needed(deployment, tokens=tokens, batch=limit) <= deployment.memory_bytes:
        return limit
    empty, one = (memory_needed(deployment, tokens=tokens, batch=size) for size in (0, 1))
    return max(1, (deployment.memory_bytes - empty) // max(1, one - empty))


_STEPS = {"decode": _decode, "tpot": _decode, "prefill": _prefill, "ttft": _first_token, "end_to_end": _whole}
