"""Step-clock replay: a scenario's requests arrive at given steps, and the record tells what each step did."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.core.units import ceil_div
from kvcalc.simulate.cache import PagedCache
from kvcalc.simulate.scheduler import Limits, Scheduler
from kvcalc.simulate.sequences import ServedSequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.simulate.scheduler import Step

__all__ = ["replay"]

Record = dict[str, Any]

# Where the tokens that a request generates stand in its stream.
_GENERATED = 500_000
# Streams of requests that name none: far from any that a scenario names.
_OWN_STREAMS = 2**41
_MAX_TOKENS = 10**12
# A record is kept of each step and of each sequence in it.
_MAX_STEPS = 100_000
_MAX_SCHEDULED = 500_000
_LONGEST_COUNT = 12
_MAX_BLOCKS = 500_000


def replay(inputs: Mapping[str, Any]) -> tuple[list[Record], Record]:
    """Return the record of every step of a scenario, and their totals.

    Args:
        inputs: ``scheduler`` (options), ``block_size``, ``num_gpu_blocks`` and ``requests``, as engines' scenarios
            are recorded: see ``docs/scheduler.md``.
    """
    return _Replay(inputs).run()


class _Replay:
    """One engine on a step clock."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        options, requests = _part(inputs, "scheduler", dict), _part(inputs, "requests", list)
        num_blocks = _whole(inputs, "num_gpu_blocks", "inputs", minimum=2, maximum=_MAX_BLOCKS)
        self.overlapped = "AsyncScheduler" in str(options.get("kind", ""))
        self.limits = _limits(options, num_blocks, overlapped=self.overlapped)
        self.accepted = _accepted(options.get("spec_accept"), self.limits.speculative_tokens)
        cache = PagedCache(
            num_blocks=num_blocks,
            block_size=_whole(inputs, "block_size", "inputs", minimum=1),
            prefix_caching=self.limits.prefix_caching,
        )
        self.scheduler: Scheduler[ServedSequence] = Scheduler(self.limits, cache)
        arrivals: dict[int, list[ServedSequence]] = {}
        for order, request in enumerate(requests):
            where = f"inputs.requests[{order}]"
            sequence = _sequence(order, request, where)
            self._check_fits(sequence, cache, where)
            arrival = _whole(request, "arrival_step", where, default=0, maximum=_MAX_STEPS)
            arrivals.setdefault(arrival, []).append(sequence)
        self.arrivals = arrivals
        self.flying: deque[tuple[int, Step[ServedSequence]]] = deque()
        self.steps: list[Record] = []
        self.totals = dict.fromkeys(
            ("preemptions", "computed_tokens", "hit_tokens", "hit_tokens_first_admission", "finished", "output_tokens"),
            0,
        )

    def run(self) -> tuple[list[Record], Record]:
        """Run until nothing is left to do."""
        clock = scheduled = 0
        while self.arrivals or self.scheduler.running or self.scheduler.waiting or self.flying:
            self.steps.append(self._step(clock))
            clock += 1
            scheduled += len(self.steps[-1]["scheduled"])
            if clock > _MAX_STEPS or scheduled > _MAX_SCHEDULED:
                raise InputError(f"the scenario goes on beyond {clock:,} steps", where="inputs")
        totals = {"steps": len(self.steps), **self.totals}
        del totals["hit_tokens_first_admission" if self.overlapped else "output_tokens"]
        return self.steps, totals

    def _step(self, clock: int) -> Record:
        arrived = self.arrivals.pop(clock, [])
        for sequence in arrived:
            self.scheduler.submit(sequence)
        step = self.scheduler.schedule()
        self._count(step)
        record = self._record(clock, step)
        if step.scheduled:
            self.flying.append((clock, step))
        processed, output = None, []
        if self.flying and (len(self.flying) == self.limits.in_flight_batches or not step.scheduled):
            processed, flown = self.flying.popleft()
            output = self.scheduler.process(flown, dict.fromkeys(flown.drafts, self.accepted))
        record["finished"] = _names(sequence for sequence, _, finished in output if finished)
        record["free_blocks_end"] = self.scheduler.cache.free
        self.totals["finished"] += len(record["finished"])
        self.totals["output_tokens"] += sum(tokens for _, tokens, _ in output)
        if self.overlapped:
            return record | {"processed_step": processed}
        if arrived:
            record["arrived"] = _names(arrived)
        if self.limits.speculative_tokens:
            record["spec"] = {sequence.name: drafts for sequence, drafts in step.drafts.items()}
            record["output_tokens"] = {sequence.name: tokens for sequence, tokens, _ in output}
        return record

    def _record(self, clock: int, step: Step[ServedSequence]) -> Record:
        return {
            "step": clock,
            "scheduled": {sequence.name: tokens for sequence, tokens in step.scheduled.items()},
            "new": _names(step.new),
            "resumed": _names(step.resumed),
            "preempted": _names(step.preempted),
            "running": len(self.scheduler.running),
            "waiting": len(self.scheduler.waiting),
            "free_blocks": self.scheduler.cache.free,
            "prefix_hit_tokens": {sequence.name: tokens for sequence, tokens in step.hits.items()},
        }

    def _count(self, step: Step[ServedSequence]) -> None:
        self.totals["preemptions"] += len(step.preempted)
        self.totals["computed_tokens"] += sum(step.scheduled.values())
        self.totals["hit_tokens"] += sum(step.hits.values())
        self.totals["hit_tokens_first_admission"] += sum(step.hits.get(sequence, 0) for sequence in step.new)

    def _check_fits(self, sequence: ServedSequence, cache: PagedCache, where: str) -> None:
        longest = self.limits.max_model_len
        if sequence.prompt_tokens >= longest:
            raise InputError(
                f"a prompt of {sequence.prompt_tokens} tokens, and max_model_len is {longest}", where=where
            )
        tokens = min(sequence.last_known, longest) - 1 + self.limits.speculative_tokens + self.limits.lookahead_tokens
        if ceil_div(min(tokens, longest), cache.block_size) > cache.usable:
            raise InputError(f"the cache does not hold its {tokens} tokens", where=where)


def _part(inputs: Mapping[str, Any], name: str, kind: type[dict[str, Any] | list[Any]]) -> Any:
    value = inputs.get(name)
    if not isinstance(value, kind) or (kind is list and not all(isinstance(entry, dict) for entry in value)):
        raise InputError(f"{name} is missing or of another form", where="inputs")
    return value


def _accepted(given: Any, drafts: int) -> int:
    """Return the most drafts that a verification accepts: all, none, or a number."""
    if given in (None, "none"):
        return 0
    if given == "all":
        return drafts
    if not isinstance(given, int | str) or not (str(given).isdecimal() and len(str(given)) <= _LONGEST_COUNT):
        raise InputError(
            f"spec_accept must be all, none or a number, not {str(given)[:40]!r}", where="inputs.scheduler"
        )
    return int(given)


def _names(sequences: Any) -> list[str]:
    return [sequence.name for sequence in sequences]


def _limits(options: Mapping[str, Any], num_blocks: int, *, overlapped: bool) -> Limits:
    where = "inputs.scheduler"
    budget = _whole(options, "max_num_batched_tokens", where, minimum=1)
    share = options.get("watermark", 0)
    if not isinstance(share, int | float) or not 0 <= share <= 1:
        raise InputError(f"watermark must be a share from 0 to 1, not {str(share)[:40]!r}", where=where)
    watermark = int(share * num_blocks)
    return Limits(
        max_num_batched_tokens=_whole(options, "max_num_scheduled_tokens", where, default=budget, minimum=1),
        max_num_seqs=_whole(options, "max_num_seqs", where, minimum=1),
        max_model_len=_whole(options, "max_model_len", where, minimum=1),
        policy=options.get("policy", "fcfs"),
        prefix_caching=bool(options.get("enable_prefix_caching", False)),
        long_prefill_token_threshold=_whole(options, "long_prefill_token_threshold", where, default=0),
        reserve_full_prompt=bool(options.get("scheduler_reserve_full_isl", True)),
        watermark_blocks=_whole(options, "watermark_blocks", where, default=watermark),
        speculative_tokens=_whole(options, "num_speculative_tokens", where, default=0),
        lookahead_tokens=_whole(options, "num_lookahead_tokens", where, default=0),
        in_flight_batches=2 if overlapped else 1,
    )


def _sequence(order: int, request: Mapping[str, Any], where: str) -> ServedSequence:
    prompt_tokens = _whole(request, "prompt_len", where, minimum=1)
    output_tokens = _whole(request, "max_tokens", where, minimum=1)
    prompt = _segments(request.get("prompt", []), f"{where}.prompt")
    if prompt and sum(segment.tokens for segment in prompt) != prompt_tokens:
        raise InputError(f"the segments of the prompt are not {prompt_tokens} tokens", where=f"{where}.prompt")
    stream = _whole(request, "gen_stream", where, default=_OWN_STREAMS + order, maximum=2 * _OWN_STREAMS)
    return ServedSequence(
        name=str(request.get("id", f"r{order}")),
        order=order,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        priority=_whole(request, "priority", where, default=0, minimum=-_MAX_TOKENS),
        content=(*(prompt or (Segment(stream, 0, prompt_tokens),)), Segment(stream, _GENERATED, output_tokens)),
    )


def _segments(segments: Any, where: str) -> tuple[Segment, ...]:
    if not isinstance(segments, list) or not all(
        isinstance(segment, list)
        and len(segment) == len(Segment._fields)
        and all(type(number) is int and 0 <= number <= _MAX_TOKENS for number in segment)
        for segment in segments
    ):
        raise InputError("a prompt is a list of [stream, start, tokens]", where=where)
    return tuple(Segment(*segment) for segment in segments)


def _whole(
    mapping: Mapping[str, Any],
    name: str,
    where: str,
    *,
    default: int | None = None,
    minimum: int = 0,
    maximum: int = _MAX_TOKENS,
) -> int:
    """Return a whole number of a scenario.

    Raises:
        InputError: it is missing, no whole number, or too small.
    """
    value = mapping.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not minimum <= value <= maximum:
        problem = (
            "is missing" if value is None else f"must be a whole number from {minimum} to {maximum:,}, not {value!r}"
        )
        raise InputError(f"{name} {problem}", where=where)
    return value
