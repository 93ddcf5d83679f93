"""The steady state of a replica that batches continuously, from a few of its step times.

With B requests running on average, a step gives each a token, and each token given away lets a share of a prompt in: of
n output tokens a request, B/n prompts for each step. So TPOT(B) = d + x B/n, where d is the time of a step that only
decodes and x what a prompt's chunks add to the steps that they are in, and the load is B/(n TPOT(B)) (Little 1961).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.cost.speculation import host_seconds
from kvcalc.simulate.ticks import SECONDS_PER_TICK

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.speculation import RoundTerms
    from kvcalc.plan.planner.traffic import Traffic
    from kvcalc.simulate.metrics import Limit
    from kvcalc.simulate.timer import StepTimer

__all__ = ["Drafts", "State", "Steady"]

# Standard normal deviates of the statistics of a limit.
_DEVIATES = {"p50": 0.0, "mean": 0.0, "p90": 1.2816, "p95": 1.6449, "p99": 2.3263}
_ABOVE = {"p50": 0.5, "mean": 0.5, "p90": 0.1, "p95": 0.05, "p99": 0.01}
# Share of the time that prompts may add to steps: beyond it they wait for each other without end.
_MAX_PREFILL_SHARE = 0.97
# Running requests vary as a Poisson number does: so many deviates above the mean must find room.
_ROOM_DEVIATES = 1.6449
_MAX_RUNNING = 20_000
_GROWTH = 1.08


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """Speculative decoding in a steady state.

    Args:
        gamma: drafted tokens of a verification.
        tokens_per_pass: tokens that a verification gives on average.
        steps: the draft model's; none where drafting takes no time.
        terms: what a round takes besides its passes; nothing where times are bounds.
    """

    gamma: int
    tokens_per_pass: float
    steps: Steps | None
    terms: RoundTerms | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A replica with so many requests running on average.

    Args:
        running: their number.
        rate_per_s: requests a second that it then serves.
        decode_s: time of a step that only decodes, for each token.
        added_s: time that a prompt adds to the steps that compute it.
        prefill_s: time of the steps that compute a prompt.
        prefill_share: share of the time that prompts add.
        found_s: of ``added_s``, what attending to tokens that were found in the cache adds.
    """

    running: int
    rate_per_s: float
    decode_s: float
    added_s: float
    prefill_s: float
    prefill_share: float
    found_s: float

    @property
    def tpot_s(self) -> float:
        """Mean time per output token."""
        return self.decode_s / (1 - self.prefill_share)


@dataclass(slots=True)
class Steps:
    """Times of the steps that steady states are made of, each asked once.

    Args:
        timer: step times.
        context: tokens that a decoding request attends to.
    """

    timer: StepTimer
    context: int
    _known: dict[tuple[int, int, int], float] = field(default_factory=dict)

    def mixed(self, running: int, tokens: int = 0, past: int = 0) -> float:
        """Return the time of a step in which so many decode, beside a chunk of a prompt where there is one."""
        key = running, tokens, past
        known = self._known.get(key)
        if known is None:
            sums, slopes = _sums(self.timer, running, self.context), _slopes(self.timer, running)
            chunks = ((tokens, past),) if tokens else ()
            asked = self.timer.line(running + tokens, running + len(chunks), sums, slopes, chunks)
            known = self._known[key] = asked[0] * SECONDS_PER_TICK
        return known

    def verified(self, running: int, tokens: int) -> float:
        """Return the time of a step in which so many requests verify tokens each."""
        key = running, 0, -tokens
        known = self._known.get(key)
        if known is None:
            chunks, every = ((tokens, self.context - 1),) * running, running * tokens
            sums, slopes = _sums(self.timer, 0, self.context), _slopes(self.timer, 0)
            known = self._known[key] = self.timer.line(every, every, sums, slopes, chunks)[0] * SECONDS_PER_TICK
        return known


@dataclass(slots=True)
class Steady:
    """The steady states of one replica, or of one of its data-parallel copies.

    Args:
        steps: step times.
        traffic: what is asked.
        pass_tokens: tokens of a step at most.
        drafts: speculative decoding, where there is some.
    """

    steps: Steps
    traffic: Traffic
    pass_tokens: int
    drafts: Drafts | None = None
    _states: dict[int, State | None] = field(default_factory=dict)
    _prompts: dict[tuple[int, int], float] = field(default_factory=dict)

    def state(self, running: int) -> State | None:
        """Return the steady state with so many requests running; none where steps have no room for their prompts."""
        if running not in self._states:
            self._states[running] = self._state(running)
        return self._states[running]

    def _state(self, running: int) -> State | None:
        traffic, drafts = self.traffic, self.drafts
        of_each = 1 if drafts is None else drafts.gamma + 1
        chunk = self.pass_tokens - running * of_each
        outputs = max(traffic.output_tokens - 1, 1.0)
        if chunk < 1 or running * traffic.computed_tokens / outputs > chunk:
            return None
        step_s = self._decode(running)
        prefill_s, steps = self._prefill(running, traffic.prompt_tokens, chunk)
        added_s = max(0.0, prefill_s - steps * step_s)
        decode_s = step_s if drafts is None else step_s / drafts.tokens_per_pass
        tpot_s = decode_s + added_s * running / outputs
        rate = running / (outputs * tpot_s)
        share = rate * added_s
        if share > _MAX_PREFILL_SHARE:
            return None
        return State(
            running=running,
            rate_per_s=rate,
            decode_s=decode_s,
            added_s=added_s,
            prefill_s=prefill_s,
            prefill_share=share,
            found_s=max(0.0, prefill_s - self._prefill(running, traffic.computed_tokens, chunk, is_cached=False)[0])
            if traffic.hit_tokens
            else 0.0,
        )

    def _decode(self, running: int) -> float:
        """Return the time of a step in which all of them decode, with what drafts for it."""
        drafts = self.drafts
        if drafts is None:
            return self.steps.mixed(running)
        drafted_s = 0.0 if drafts.steps is None else drafts.steps.mixed(running)
        beside_s = 0.0 if drafts.terms is None else host_seconds(drafts.terms, running)
        return self.steps.verified(running, drafts.gamma + 1) + drafts.gamma * drafted_s + beside_s

    def _prefill(self, running: int, prompt: float, chunk: int, *, is_cached: bool = True) -> tuple[float, int]:
        """Return the time of the steps that compute a prompt beside the others, and how many these are."""
        traffic = self.traffic
        past = round(traffic.hit_tokens * prompt / traffic.prompt_tokens) if is_cached else 0
        tokens = max(2, round(prompt) - past)
        steps = -(-tokens // chunk)
        if steps == 1:
            return self.steps.mixed(running, tokens, past), 1
        # what a chunk takes grows in a straight line with the tokens before it
        whole, rest = divmod(tokens, chunk)
        size = max(2, chunk)
        first = self.steps.mixed(running, size, past)
        last = self.steps.mixed(running, size, past + (whole - 1) * chunk)
        ended = 0.0
        if rest > 1:
            ended = self.steps.mixed(running, rest, past + whole * chunk)
        return whole * (first + last) / 2 + ended, steps

    def latency(self, state: State, latency: str, statistic: str, *, slots: int) -> float:
        """Return a latency's statistic in a steady state.

        TPOT varies with how many prompts come while a request runs, TTFT with the prompts before it: an M/G/1 queue's
        mean wait, with an exponential tail; where few may run at once, requests wait for one to end.

        Args:
            state: the steady state.
            latency: ``ttft``, ``tpot``, ``inter_token``, ``e2e`` or ``queue``.
            statistic: ``p50`` and so on.
            slots: requests that may run at once.

        Source: Kleinrock 1975, Queueing Systems I, 5.6 (Pollaczek and Khinchin); Sakasegawa 1977, doi
        10.1007/BF02911659 (the wait for one of several servers); the tails are this project's.
        """
        deviate = _DEVIATES[statistic]
        if latency in ("tpot", "inter_token"):
            return self._tpot(state, deviate, slots=slots, per_request=latency == "tpot")
        queued_s = self._wait(state, statistic, slots)
        if latency == "queue":
            return queued_s
        ttft_s = queued_s + self._own(_grid(self._busier(state, deviate, slots)), self.traffic.prompts[statistic])
        if latency == "ttft":
            return ttft_s
        return ttft_s + self.traffic.output_tokens * self._tpot(state, 0, slots=slots, per_request=True)

    @staticmethod
    def _busier(state: State, deviate: float, slots: int) -> int:
        """Return the requests that run at a moment so many deviates above the mean."""
        return max(1, min(slots, round(state.running + deviate * math.sqrt(state.running))))

    def _own(self, running: int, prompt: int) -> float:
        """Return the time of the steps that compute a prompt of a length."""
        known = self._prompts.get((running, prompt))
        if known is None:
            chunk = max(2, self.pass_tokens - running)
            known = self._prompts[running, prompt] = self._prefill(
                max(1, min(running, self.pass_tokens - 2)), prompt, chunk
            )[0]
        return known

    def _tpot(self, state: State, deviate: float, *, slots: int, per_request: bool) -> float:
        """Return the time per output token that so many deviates lie below."""
        busier = self.state(_grid(self._busier(state, deviate, slots))) or state
        if not per_request and state.prefill_share > 0 and deviate > 0:
            return max(busier.tpot_s, state.prefill_s)
        outputs = max(self.traffic.output_tokens - 1, 1.0)
        prompts = state.rate_per_s * outputs * state.tpot_s
        lucky = deviate * math.sqrt(prompts) * state.added_s / outputs
        return max(busier.tpot_s, state.tpot_s + lucky)

    def _wait(self, state: State, statistic: str, slots: int) -> float:
        """Return the time until the step that begins a request's prompt."""
        share, above = state.prefill_share, _ABOVE[statistic]
        residual = state.tpot_s * (0.5 if statistic in ("p50", "mean") else 1.0)
        prompts_s = share * state.added_s * (1 + self.traffic.variation) / (2 * (1 - share))
        busy = state.running / slots
        if busy >= 1:
            return math.inf
        waits = math.pow(busy, math.sqrt(2 * (slots + 1)) - 1)
        freed_s = self.traffic.output_tokens * state.tpot_s / slots / (1 - busy)
        if statistic == "mean":
            return residual + prompts_s + waits * freed_s
        queued_s = _tail(share, prompts_s, above) + _tail(waits, waits * freed_s, above)
        return residual + queued_s

    def highest(
        self, limits: Sequence[Limit], *, slots: int, cache_requests: int, least_per_s: float = 0.0
    ) -> State | None:
        """Return the busiest steady state within limits; none where none is, or none of those that are wanted.

        Args:
            limits: what must hold.
            slots: requests that may run at once.
            cache_requests: requests whose tokens the cache holds at once.
            least_per_s: a rate below which no state is wanted: the more requests run, the more are served, but for less
                than a hundredth near saturation.
        """
        last = _place(_usual(cache_requests)) if cache_requests < slots else _place(min(slots, _usual(cache_requests)))
        low, high = self._serving(least_per_s, last), last + 1
        lowest = self.state(_GRID[low])
        if lowest is None or lowest.rate_per_s < least_per_s or not self._holds(_GRID[low], limits, slots):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._holds(_GRID[middle], limits, slots) else (low, middle)
        return self.state(_GRID[low])

    def at_rate(self, rate_per_s: float, *, busiest: State) -> State:
        """Return the least busy steady state that serves a rate, and none above the busiest."""
        return self.state(_GRID[self._serving(rate_per_s, _place(busiest.running))]) or busiest

    def _serving(self, rate_per_s: float, last: int) -> int:
        """Return the place of the fewest requests that serve a rate, or the last place where none before it do."""
        low, high = 0, last
        while rate_per_s > 0 and low < high:
            middle = (low + high) // 2
            state = self.state(_GRID[middle])
            low, high = (low, middle) if state is None or state.rate_per_s >= rate_per_s else (middle + 1, high)
        return low

    def _holds(self, running: int, limits: Sequence[Limit], slots: int) -> bool:
        state = self.state(running)
        if state is None:
            return False
        return all(self.latency(state, each.latency, each.statistic, slots=slots) <= each.most_s for each in limits)

    def breaks(self, state: State, limits: Sequence[Limit], *, slots: int) -> str:
        """Name the limit that is closest to breaking in a steady state; empty where there is none."""
        shares = {
            str(each): self.latency(state, each.latency, each.statistic, slots=slots) / each.most_s for each in limits
        }
        return max(shares, key=lambda name: shares[name], default="")


def _grown() -> tuple[int, ...]:
    """Return numbers of requests that are tried: each 8 % above the one before."""
    grid = [1]
    while grid[-1] < _MAX_RUNNING:
        grid.append(max(grid[-1] + 1, round(grid[-1] * _GROWTH)))
    return tuple(grid)


_GRID = _grown()


def _place(running: int) -> int:
    """Return the place of the largest number that is tried and no more than so many."""
    return max(0, bisect_right(_GRID, running) - 1)


def _grid(running: int) -> int:
    """Return the smallest number that is tried and no less than so many."""
    return _GRID[min(len(_GRID) - 1, bisect_left(_GRID, running))]


def _usual(cap: int) -> int:
    """Return the mean number of running requests whose usual highs are no more than so many.

    >>> _usual(100), _usual(1)
    (84, 1)
    """
    root = (-_ROOM_DEVIATES + math.sqrt(_ROOM_DEVIATES**2 + 4 * cap)) / 2
    return max(1, int(root * root))


def _tail(waits: float, mean_s: float, above: float) -> float:
    """Return the wait that so small a share exceeds, where a share waits and their waits are exponential."""
    if waits <= above or not mean_s:
        return 0.0
    return mean_s / waits * math.log(waits / above)


def _sums(timer: StepTimer, running: int, context: int) -> list[int]:
    capped = [running * min(context, cap) for cap in timer.caps]
    return [running, running * context, *capped, *(running * ((context - 1) % period + 1) for period in timer.periods)]


def _slopes(timer: StepTimer, running: int) -> list[int]:
    return [0, running, *(0 for _ in timer.caps), *(running for _ in timer.periods)]
