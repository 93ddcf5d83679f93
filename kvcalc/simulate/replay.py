"""Step-clock replay: a scenario's requests arrive at given steps, and the record tells what each step did."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from kvcalc.core.requests import Segment
from kvcalc.simulate.cache import PagedCache
from kvcalc.simulate.scheduler import Limits, Scheduler, ServedSequence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.simulate.scheduler import Step

__all__ = ["replay"]

Record = dict[str, Any]

# Where the tokens that a request generates stand in its stream.
_GENERATED = 500_000


def replay(inputs: Mapping[str, Any]) -> tuple[list[Record], Record]:
    """Return the record of every step of a scenario, and their totals.

    Args:
        inputs: ``scheduler`` (options), ``block_size``, ``num_gpu_blocks`` and ``requests``, as engines' scenarios
            are recorded: see ``docs/simulate.md``.
    """
    return _Replay(inputs).run()


class _Replay:
    """One engine on a step clock."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        options = inputs["scheduler"]
        self.overlapped = "AsyncScheduler" in options.get("kind", "")
        self.limits = _limits(options, overlapped=self.overlapped)
        self.accept = options.get("spec_accept")
        cache = PagedCache(
            num_blocks=inputs["num_gpu_blocks"],
            block_size=inputs["block_size"],
            prefix_caching=self.limits.prefix_caching,
        )
        self.scheduler: Scheduler[ServedSequence] = Scheduler(self.limits, cache)
        arrivals: dict[int, list[ServedSequence]] = {}
        for order, request in enumerate(inputs["requests"]):
            arrivals.setdefault(request["arrival_step"], []).append(_sequence(order, request))
        self.arrivals = arrivals
        self.flying: deque[tuple[int, Step[ServedSequence]]] = deque()
        self.steps: list[Record] = []
        self.totals = dict.fromkeys(
            ("preemptions", "computed_tokens", "hit_tokens", "hit_tokens_first_admission", "finished", "output_tokens"),
            0,
        )

    def run(self) -> tuple[list[Record], Record]:
        """Run until nothing is left to do."""
        clock = 0
        while self.arrivals or self.scheduler.running or self.scheduler.waiting or self.flying:
            self.steps.append(self._step(clock))
            clock += 1
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
            output = self.scheduler.process(flown, self._accepted(flown))
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

    def _accepted(self, step: Step[ServedSequence]) -> dict[ServedSequence, int]:
        """Return how many drafts are accepted: all, none, or so many of each sequence."""
        if self.accept in (None, "none"):
            return {}
        most = self.limits.speculative_tokens if self.accept == "all" else int(self.accept)
        return dict.fromkeys(step.drafts, most)


def _names(sequences: Any) -> list[str]:
    return [sequence.name for sequence in sequences]


def _limits(options: Mapping[str, Any], *, overlapped: bool) -> Limits:
    return Limits(
        max_num_batched_tokens=options["max_num_scheduled_tokens"],
        max_num_seqs=options["max_num_seqs"],
        max_model_len=options["max_model_len"],
        policy=options["policy"],
        prefix_caching=options["enable_prefix_caching"],
        long_prefill_token_threshold=options["long_prefill_token_threshold"],
        reserve_full_prompt=options["scheduler_reserve_full_isl"],
        watermark_blocks=options["watermark_blocks"],
        speculative_tokens=options["num_speculative_tokens"],
        lookahead_tokens=options["num_lookahead_tokens"],
        in_flight_batches=2 if overlapped else 1,
    )


def _sequence(order: int, request: Mapping[str, Any]) -> ServedSequence:
    generated = Segment(request["gen_stream"], _GENERATED, request["max_tokens"])
    return ServedSequence(
        name=request["id"],
        order=order,
        prompt_tokens=request["prompt_len"],
        output_tokens=request["max_tokens"],
        priority=request["priority"],
        content=(*(Segment(*segment) for segment in request["prompt"]), generated),
    )
