"""Simulations of a candidate: its requests, made once, and its replicas at any number and rate."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Segment
from kvcalc.plan.deployment import started
from kvcalc.plan.room import room
from kvcalc.simulate.capacity import StationaryRuns
from kvcalc.simulate.run import Serving, ServingRun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.requests import Request
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.load import Load
    from kvcalc.simulate.maxima import AffineRun
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.planner.candidates import Candidate
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Bodies", "CandidateRuns"]

# Times the usual requests of a run with speculative decoding, whose every verification is a step of its own.
_DRAFTED = 0.4
# The tokens of a block where another engine than vLLM keeps the cache.
_BLOCK = 16


class Bodies:
    """Requests of a load, made once and asked for again and again at other rates.

    Args:
        load: the load.
        prefix_share: share of each prompt that all prompts begin with.
    """

    def __init__(self, load: Load, *, prefix_share: float) -> None:
        self.load, self._share = load, prefix_share
        self._made: dict[int | None, tuple[Request, ...]] = {}

    def first(self, requests: int | None) -> tuple[Request, ...]:
        """Return so many requests; of a trace, all that it has."""
        many = None if self.load.trace is not None else self.load.requests or requests
        if many not in self._made:
            kept = replace(self.load, requests=many if many is not None else self.load.requests).kept_bodies()
            shared = (_sharing(request, number, self._share) for number, request in enumerate(kept, 1))
            self._made[many] = tuple(shared) if self._share else kept
        return self._made[many]


def _sharing(request: Request, number: int, share: float) -> Request:
    """Return a request whose prompt begins with the tokens that all share."""
    shared = int(share * request.prompt_tokens)
    own = Segment(number, 0, request.prompt_tokens - shared)
    return request._replace(prompt=(Segment(0, 0, shared), own) if shared else (own,))


class CandidateRuns:
    """Simulations of one candidate, which only decodes where another prefills."""

    def __init__(
        self,
        candidate: Candidate,
        bodies: Bodies,
        limits: Sequence[Limit],
        *,
        slo: str,
        prefill: Candidate | None = None,
    ) -> None:
        self.candidate, self.made = candidate, 0
        self._prefill = None if prefill is None else prefill.deployment
        self._prefill_timer = None if prefill is None else prefill.variant.timer(prefill.deployment)
        self._bodies, self._limits, self._slo = bodies, limits, slo
        deployment = candidate.deployment
        self._timer = candidate.variant.timer(deployment)
        self._draft = candidate.variant.draft_on(deployment.parallel)
        self._draft_timer = None if self._draft is None else candidate.variant.draft_timer(self._draft)
        self._terms = candidate.variant.round_terms(deployment)
        self._served, self._blocks, self.notes = _as_vllm(candidate)

    def at(
        self,
        *,
        copies: int,
        prefills: int = 0,
        slower: tuple[float, ...] = (),
        seed: int = 0,
        factor: float = 1.0,
        tries_short: bool = False,
        running: float = 0.0,
    ) -> StationaryRuns:
        """Return runs of so many copies at any rate.

        Args:
            copies: engines.
            prefills: engines beside them that only prefill.
            slower: times that steps take so many times as long: those that decode, and those with a prompt.
            seed: of the arrivals, beside the load's own.
            factor: times the usual number of requests.
            tries_short: whether a shorter run may do, far below the limits.
            running: requests that are expected in all of them at once.
        """
        drafting = self.candidate.variant.drafting
        timer = Slowed(self._timer, decode=slower[0], prefill=slower[1]) if slower else self._timer
        serving = Serving(
            options=self._served.options,
            num_blocks=self._blocks,
            replicas=copies,
            prefill_replicas=prefills,
            routing="least-loaded" if copies > 1 else "round-robin",
            slo=self._slo,
            gamma=0 if drafting is None else drafting.gamma,
            accepted_length=None if drafting is None else drafting.tokens_per_pass,
        )

        def make_run() -> ServingRun:
            self.made += 1
            return ServingRun(
                self._served,
                serving,
                timer=timer,
                draft=self._draft,
                draft_timer=self._draft_timer,
                round_terms=self._terms,
                is_reported=False,
                prefill=self._prefill,
                prefill_timer=self._prefill_timer,
            )

        load = replace(self._bodies.load, seed=self._bodies.load.seed + seed)
        factor *= 1.0 if drafting is None else _DRAFTED
        return StationaryRuns(
            make_run,
            load,
            self._limits,
            bodies=self._bodies.first,
            factor=factor,
            tries_short=tries_short,
            running=running,
        )


def _as_vllm(candidate: Candidate) -> tuple[Deployment, int | None, tuple[str, ...]]:
    """Return a deployment whose scheduler is simulated, the blocks of its cache, and notes.

    Another engine's cache is that of its own memory model, in blocks of 16 tokens; its requests are scheduled as vLLM
    does it.
    """
    deployment = candidate.deployment
    options = deployment.options
    if deployment.served_by == "vllm":
        return deployment, None, ()
    here = room(deployment, max_model_len=options.max_model_len or 1)
    blocks = here.held.tokens // _BLOCK + 1
    asked = replace(options, max_num_seqs=candidate.slots, max_num_batched_tokens=here.start.pass_tokens)
    asked = replace(asked, block_size=None, utilization=None)
    note = f"scheduled as vLLM does it, with the cache of {deployment.served_by}"
    try:
        return started(deployment, "vllm", asked), blocks, (note,)
    except InputError:
        return replace(deployment, engine="vllm", options=asked), blocks, (note,)


class Slowed:
    """A timer whose every step takes so many times as long.

    Args:
        timer: the timer.
        decode: of steps that only decode; 1.1 for a tenth longer.
        prefill: of steps with a part of a prompt.
    """

    def __init__(self, timer: StepTimer, *, decode: float, prefill: float) -> None:
        self._timer, self._decode, self._prefill = timer, round(100 * decode), round(100 * prefill)
        self.caps, self.periods = timer.caps, timer.periods

    def line(
        self, tokens: int, logits: int, sums: Sequence[int], slopes: Sequence[int], chunks: Sequence[tuple[int, int]]
    ) -> AffineRun:
        """Return the duration of a step, and of those that follow while the same sequences advance."""
        first, slope, steps, limiter = self._timer.line(tokens, logits, sums, slopes, chunks)
        percent = self._prefill if chunks else self._decode
        return first * percent // 100, slope * percent // 100, steps, limiter
