"""One replica of a serving engine: requests come, are scheduled step by step, and leave."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.core.units import counted
from kvcalc.simulate.cache import GroupedCache, PagedCache
from kvcalc.simulate.observers import Observer, Run, Served
from kvcalc.simulate.policies import PolicyScheduler
from kvcalc.simulate.scheduler import Limits, Scheduler
from kvcalc.simulate.sequences import Job
from kvcalc.simulate.ticks import NEVER, SECONDS_PER_TICK, ticks
from kvcalc.simulate.timer import sums_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvcalc.core.requests import Request
    from kvcalc.simulate.cache import BlockGroup, Cache
    from kvcalc.simulate.drafting import Drafting
    from kvcalc.simulate.policies import SchedulingPolicy
    from kvcalc.simulate.scheduler import Step
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Replica", "ServingSetup"]

# What `Served._make` does, at half of its time.
_served: Callable[[tuple[Any, ...]], Served] = partial(tuple.__new__, Served)
# Runs are handed on in batches of so many.
_RUNS_AT_ONCE = 256
# Streams of requests that share nothing: far from any that a workload names.
_PRIVATE_STREAMS = 2**59


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingSetup:
    """Parts of a replica.

    Args:
        limits: what the engine is told of scheduling.
        num_blocks: blocks of its cache, the null block included.
        groups: groups of layers with a block table each.
        timer: how long steps take.
        swap_s_per_block: time to move a block between the accelerator's memory and the host's, where it preempts so.
        drafting: speculative decoding, where ``limits.speculative_tokens`` asks for it.
        unmodelled_prefix_tokens: tokens of the blocks in which the engine would find prefixes, where it keeps them and
            that is not modelled; 0 where it is, or where it keeps none.
        notes: what was taken for granted of the engine and its longest sequence.
        decisions: a class that decides in place of the engine's policy, where one is given.
    """

    limits: Limits
    num_blocks: int
    groups: tuple[BlockGroup, ...]
    timer: StepTimer
    swap_s_per_block: float = 0.0
    drafting: Drafting | None = None
    unmodelled_prefix_tokens: int = 0
    notes: tuple[str, ...] = ()
    decisions: type[SchedulingPolicy] | None = None

    def __post_init__(self) -> None:
        if self.limits.prefix_caching and (len(self.groups) > 1 or not self.groups[0].grows):
            raise InputError("prefixes are shared in a cache of one group that grows with the sequence")
        if self.limits.in_flight_batches > 1:
            raise InputError("a serving run processes each step before it schedules the next")
        if self.limits.speculative_tokens and self.drafting is None:
            raise InputError("speculative tokens need an acceptance")

    def blocks_for(self, tokens: int) -> int:
        """Return the most blocks that a sequence of so many tokens counts on."""
        return sum(max(group.admitted(tokens), group.held(computed=tokens - 1, tokens=tokens)) for group in self.groups)


class Replica:
    """A serving engine that is stepped one step at a time, exactly as the scheduler's policy reads.

    Args:
        setup: what it is made of.
        observer: who is told what happens.
    """

    def __init__(self, setup: ServingSetup, observer: Observer) -> None:
        self.setup = setup
        self.limits = setup.limits
        self.timer = setup.timer
        self.observer = observer
        self.cache = self._make_cache()
        self.scheduler: Scheduler[Job] = Scheduler(self.limits, self.cache)
        if setup.decisions is not None:
            self.scheduler = PolicyScheduler(self.limits, self.cache, setup.decisions())
        self.running = self.scheduler.running
        self.now = 0
        self._swap_ticks = ticks(setup.swap_s_per_block)
        self._source: Iterator[Request] = iter(())
        self._arrivals: deque[Job] = deque()
        # even if every group kept all tokens
        sizes = [group.block_size for group in setup.groups if group.constant is None]
        constant = sum(group.constant or 0 for group in setup.groups)
        self._surely_held = ((self.cache.usable - constant) // max(1, len(sizes)) - 1) * min(sizes, default=1)
        self._next_arrival = NEVER
        self._arrived = 0
        # requests that came and have neither finished nor been refused
        self.outstanding = 0
        self._last_arrival_s = 0.0
        self._runs: list[Run] = []
        self._level = (0,) * len(sums_of((), self.timer))

    @property
    def next_tick(self) -> int:
        """The tick at which a step begins that others may see something of; `NEVER` where there is nothing to do.

        Until then no request finishes and none is refused.
        """
        if self.running or self.scheduler.waiting:
            return self.now
        return max(self.now, self._next_arrival)

    def serve(self, requests: Iterable[Request]) -> None:
        """Serve requests, in order of arrival, until all have finished.

        Raises:
            InputError: lengths below 1, or a request that comes before the one ahead of it.
        """
        self._source = iter(requests)
        self._expect_next()
        self.drain()

    def submit(self, request: Request, *, computed_tokens: int = 0) -> None:
        """Hand over a request; it is seen by the steps that begin at its arrival or later.

        Args:
            request: the request. One that can never run is refused at once.
            computed_tokens: its first tokens that were computed elsewhere: their keys and values come with it.

        Raises:
            InputError: lengths below 1, or it comes before the one handed over last.
        """
        job = self._job(request)
        job.swapped = computed_tokens
        if self._is_refused(job):
            return
        self._arrivals.append(job)
        self._next_arrival = self._arrivals[0].arrival

    def advance(self, end: int) -> None:
        """Run the steps that begin before a tick; those of which nobody sees anything may be put off."""
        while True:
            if self._next_arrival <= self.now:
                self._take_arrivals()
            if not self.running and not self.scheduler.waiting:
                if self._next_arrival >= end:
                    return
                self.now = self._next_arrival
            elif self.now >= end:
                self._look_ahead()
                return
            elif not self._move(end):
                return

    def catch_up(self, end: int) -> None:
        """Run the steps that begin before a tick, those that were put off too."""
        self.advance(end)

    def drain(self) -> None:
        """Run until everything that was handed over has finished."""
        self.advance(NEVER)
        self._hand_on_runs()

    def prefix_hit(self, request: Request) -> int:
        """Count the tokens of a prompt that an admission now would find in the cache."""
        if not self.limits.prefix_caching:
            return 0
        job = Job(request, order=self._arrived, content=self._content(request, self._arrived))
        return self.cache.find_prefix(job)[1]

    def _make_cache(self) -> Cache:
        if self.limits.prefix_caching:
            return PagedCache(
                num_blocks=self.setup.num_blocks, block_size=self.setup.groups[0].block_size, prefix_caching=True
            )
        return GroupedCache(num_blocks=self.setup.num_blocks, groups=self.setup.groups)

    def _move(self, end: int) -> bool:
        """Run one step, or as many as begin before a tick; return whether any was run, or all are put off."""
        del end
        self._step()
        return True

    def _look_ahead(self) -> None:
        """Find out when others may see something of the next steps, where that is more than their beginning."""

    def _take_arrivals(self) -> None:
        while self._next_arrival <= self.now:
            self._receive(self._arrivals.popleft())
            self._expect_next()

    def _expect_next(self) -> None:
        """Look at the request that arrives next, if there is one."""
        if not self._arrivals:
            request = next(self._source, None)
            if request is None:
                self._next_arrival = NEVER
                return
            self._arrivals.append(self._job(request))
        self._next_arrival = self._arrivals[0].arrival

    def _receive(self, job: Job) -> None:
        if job.end or not self._is_refused(job):
            self.scheduler.submit(job)

    def _is_refused(self, job: Job) -> bool:
        """Refuse a request that can never run; of one that can, note where it ends."""
        reason = self._refusal(job)
        if reason:
            self.outstanding -= 1
            self.observer.refused(job.request, job.request.arrival_s, reason)
        return bool(reason)

    def _refusal(self, job: Job) -> str:
        """Say why a request can never run; nothing where it can."""
        longest = self.limits.max_model_len
        if job.prompt_tokens >= longest:
            prompt = counted(job.prompt_tokens, "token")
            return f"its prompt of {prompt} leaves no room in sequences of {counted(longest, 'token')}"
        job.end = min(job.last_known, longest)
        tokens = job.end - 1
        if tokens > self._surely_held and self.setup.blocks_for(tokens) > self.cache.usable:
            return f"the cache does not hold its {counted(tokens, 'token')}"
        return ""

    def _job(self, request: Request) -> Job:
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise InputError(
                f"request {request.name}: a prompt of {request.prompt_tokens} and an output of "
                f"{counted(request.output_tokens, 'token')}",
                hint="both are whole numbers of 1 or more",
            )
        if not request.arrival_s >= self._last_arrival_s:
            raise InputError(
                f"request {request.name} comes at {request.arrival_s} s, before the one ahead of it",
                hint="requests are served in the order of their arrival, from 0 s on",
            )
        self._last_arrival_s = request.arrival_s
        order = self._arrived
        self._arrived += 1
        self.outstanding += 1
        return Job(request, order=order, content=self._content(request, order) if self.limits.prefix_caching else ())

    def _content(self, request: Request, order: int) -> tuple[Segment, ...]:
        private = _PRIVATE_STREAMS + order
        prompt = request.prompt or (Segment(private, 0, request.prompt_tokens),)
        if request.output_stream is None:
            return (*prompt, Segment(private, request.prompt_tokens, request.output_tokens))
        return (*prompt, Segment(request.output_stream, request.output_start, request.output_tokens))

    def _step(self) -> None:
        """Run one step as the policy reads."""
        start = self.now
        step = self.scheduler.schedule()
        for job in step.preempted:
            self._note_preemption(job)
        self._note_admissions(step)
        taken, limiter = self._duration(step)
        self.now += taken
        drafts = step.drafts
        prefilled = sum(tokens - drafts.get(job, 0) for job, tokens in step.scheduled.items() if not job.decoding)
        held_tokens = sum(job.computed for job in self.running)
        running, waiting, blocks = len(self.running), len(self.scheduler.waiting), self.cache.usable - self.cache.free
        output = self.scheduler.process(step, {} if self.setup.drafting is None else self.setup.drafting.accepted(step))
        decodes = sum(self._note_token(job, start) for job, _, _ in output)
        self._log(
            Run(
                start * SECONDS_PER_TICK,
                self.now * SECONDS_PER_TICK,
                steps=1,
                first_s=taken * SECONDS_PER_TICK,
                slope_s=0.0,
                decodes=decodes,
                prefill_tokens=prefilled,
                output_tokens=sum(tokens for _, tokens, _ in output),
                running=running,
                waiting=waiting,
                blocks=blocks,
                end_blocks=blocks,
                held_tokens=held_tokens,
                limiter=limiter,
            )
        )
        for job, _, finished in output:
            if finished:
                self._note_finish(job)

    def _duration(self, step: Step[Job]) -> tuple[int, str]:
        """Return the ticks of a step, and what limits it."""
        contexts: list[int] = []
        chunks: list[tuple[int, int]] = []
        tokens = logits = 0
        for job, new in step.scheduled.items():
            tokens += new
            logits += 1 + step.drafts.get(job, 0) if job in step.yielding else 0
            if new == 1:
                contexts.append(job.computed)
            else:
                chunks.append((new, job.computed - new))
        taken, _, _, limiter = self.timer.line(tokens, logits, sums_of(contexts, self.timer), self._level, chunks)
        drafting = self.setup.drafting
        drafted = 0 if drafting is None or not step.drafts else drafting.ticks(step)
        return taken + drafted + self._swap_ticks * self._swapped_blocks(step), limiter

    def _swapped_blocks(self, step: Step[Job]) -> int:
        """Return the blocks that a step moves to the host's memory and back."""
        moved = [job.swapped for job in step.preempted] + list(step.swapped_in.values())
        return sum(self.setup.blocks_for(tokens) for tokens in moved if tokens)

    def _note_admissions(self, step: Step[Job]) -> None:
        for job in (*step.new, *step.resumed):
            self._note_admission(job, step.hits.get(job, 0))

    def _note_admission(self, job: Job, cached: int) -> None:
        if job.admitted is None:
            job.admitted, job.cached = self.now, cached
        self.observer.admitted(job.request, self.now * SECONDS_PER_TICK, cached)

    def _note_preemption(self, job: Job) -> None:
        job.decoding = False
        self.observer.preempted(job.request, self.now * SECONDS_PER_TICK)

    def _note_token(self, job: Job, start: int) -> bool:
        """Note that a step gave a token, and return whether the step before had given one too."""
        follows = job.first_token is not None and job.last_token == start
        if job.first_token is None:
            job.first_token = self.now
        elif not follows:
            self.observer.gap(job.request, (self.now - job.last_token) * SECONDS_PER_TICK)
        job.last_token = self.now
        job.decoding = True
        return follows

    def _note_finish(self, job: Job) -> None:
        admitted, first_token = job.admitted or 0, job.first_token or 0
        self.outstanding -= 1
        self.observer.finished(
            _served(
                (
                    job.request,
                    admitted * SECONDS_PER_TICK,
                    first_token * SECONDS_PER_TICK,
                    self.now * SECONDS_PER_TICK,
                    job.known - job.prompt_tokens,
                    job.preemptions,
                    job.cached,
                )
            )
        )

    def _log(self, run: Run) -> None:
        self._runs.append(run)
        if len(self._runs) >= _RUNS_AT_ONCE:
            self._hand_on_runs()

    def _hand_on_runs(self) -> None:
        if self._runs:
            self.observer.runs(self._runs)
            self._runs = []
