"""Synthetic load: when requests come, how long they are, and conversations that share their beginnings.

Everything is a generator that takes its seed as an argument: the same seed gives the same requests, and a million of
them take no more memory than one. Each question has its own stream of random numbers, so that another arrival process
leaves the lengths as they were.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import count, islice
from typing import TYPE_CHECKING, Literal, Protocol

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.core.requests import Request, Segment
from kvcalc.core.units import parse_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "ARRIVALS",
    "Arrivals",
    "ClosedLoop",
    "Conversations",
    "FollowUps",
    "Lengths",
    "Talk",
    "arrival_times",
    "parse_lengths",
    "retimed",
    "synthetic",
]

Process = Literal["poisson", "gamma", "constant", "ramp"]
ARRIVALS = ("poisson", "gamma", "constant", "ramp")

_MAX_TOKENS = 10**9
_MAX_SPREAD = 10.0
_MIN_RATE = 1e-9
_MAX_RATE = 1e9


def _random(seed: int, what: str) -> random.Random:
    """Return the random numbers of one question, the same for a seed on every machine."""
    return random.Random(f"kvcalc {seed} {what}")  # noqa: S311  a simulation, not a secret


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """Arrival times of requests.

    Args:
        process: ``poisson``: independent of each other. ``gamma``: gaps of a gamma distribution, in bursts where their
            coefficient of variation is above 1. ``constant``: equal gaps. ``ramp``: Poisson at a rate that grows.
        rate_per_s: mean rate; of a ramp, the first.
        variation: coefficient of variation of the gaps, for ``gamma``.
        last_rate_per_s: for ``ramp``, the rate at the last request.

    Raises:
        InputError: a rate or variation that no arrivals have.
    """

    process: Process
    rate_per_s: float
    variation: float = 2.0
    last_rate_per_s: float | None = None

    def __post_init__(self) -> None:
        if self.process not in ARRIVALS:
            hint = did_you_mean(self.process, ARRIVALS) or f"processes: {', '.join(ARRIVALS)}"
            raise InputError(f"arrival {self.process!r} is not known", hint=hint)
        rates = [self.rate_per_s] if self.last_rate_per_s is None else [self.rate_per_s, self.last_rate_per_s]
        if not all(_MIN_RATE <= rate <= _MAX_RATE for rate in rates):
            span = " to ".join(f"{rate:g}" for rate in rates)
            raise InputError(f"a rate must be from {_MIN_RATE:g} to {_MAX_RATE:g} requests/s, not {span}")
        if (self.process == "ramp") != (self.last_rate_per_s is not None):
            raise InputError("a ramp, and only a ramp, has a last rate", hint="--arrival ramp --rate 1 --last-rate 10")
        if not 0 < self.variation <= _MAX_SPREAD:
            raise InputError(f"the variation of gaps must be above 0 and up to {_MAX_SPREAD:g}, not {self.variation:g}")


def arrival_times(arrivals: Arrivals, *, seed: int, requests: int | None = None) -> Iterator[float]:
    """Yield times in seconds without end, or for a ramp until its last request.

    Args:
        arrivals: the process.
        seed: of the random numbers.
        requests: how many requests a ramp is for.

    Source: of the ramp, Cinlar 1975, Introduction to Stochastic Processes, 4.7 (inversion of the mean): a unit
    Poisson process at places s gives times t with r0 t + (r1 - r0) t**2 / 2 D = s, where D = 2 n / (r0 + r1) is when
    n requests have come on average.

    >>> list(islice(arrival_times(Arrivals(process="constant", rate_per_s=4), seed=0), 3))
    [0.25, 0.5, 0.75]
    """
    rate, numbers = arrivals.rate_per_s, _random(seed, "arrivals")
    if arrivals.process == "constant":
        yield from (number / rate for number in count(1))
        return
    if arrivals.process == "ramp":
        yield from _ramp(numbers, rate, arrivals.last_rate_per_s or rate, requests or 1)
        return
    shape = 1.0 if arrivals.process == "poisson" else arrivals.variation**-2
    time_s = 0.0
    while True:
        gap = -math.log(1.0 - numbers.random()) if shape == 1 else numbers.gammavariate(shape, 1 / shape)
        time_s += gap / rate
        yield time_s


def _ramp(numbers: random.Random, first: float, last: float, requests: int) -> Iterator[float]:
    duration_s = 2 * requests / (first + last)
    growth = (last - first) / duration_s
    area = 0.0
    for _ in range(requests):
        area -= math.log(1.0 - numbers.random())
        beyond = area - requests
        if beyond > 0:  # after the ramp, the last rate
            yield duration_s + beyond / last
        else:
            yield 2 * area / (first + math.sqrt(first * first + 2 * growth * area))


def retimed(requests: Iterable[Request], times: Iterable[float]) -> Iterator[Request]:
    """Yield the requests with other arrival times, as long as there are both."""
    for request, time_s in zip(requests, times, strict=False):
        yield request._replace(arrival_s=time_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """A distribution of numbers of tokens, each drawn number rounded and at least 1.

    Args:
        kind: ``constant``; ``uniform`` from ``first`` to ``second``, both included; ``exponential`` with the mean
            ``first``; ``lognormal`` with the median ``first`` and the standard deviation ``second`` of its logarithm.
        first: tokens.
        second: see above.
    """

    kind: Literal["constant", "uniform", "exponential", "lognormal"]
    first: int
    second: float = 0.0

    def __post_init__(self) -> None:
        last = self.second if self.kind == "uniform" else self.first
        if not 1 <= self.first <= last <= _MAX_TOKENS:
            raise InputError(f"lengths must be from 1 to {_MAX_TOKENS:,} tokens in rising order")
        if self.kind == "lognormal" and not 0 <= self.second <= _MAX_SPREAD:
            raise InputError(f"the spread of a lognormal length must be from 0 to {_MAX_SPREAD:g}, not {self.second:g}")

    def draw(self, numbers: random.Random) -> int:
        """Return a length."""
        match self.kind:
            case "constant":
                return self.first
            case "uniform":
                return self.first + int(numbers.random() * (self.second - self.first + 1))
            case "exponential":
                drawn = -self.first * math.log(1.0 - numbers.random())
            case "lognormal":
                drawn = self.first * math.exp(self.second * numbers.gauss(0.0, 1.0))
        return min(max(1, round(drawn)), _MAX_TOKENS)


_KINDS = ("uniform", "exponential", "lognormal")
_HINT = "write 512, uniform:128-2048, exponential:256 or lognormal:1020,0.9 (median and spread of the logarithm)"


def parse_lengths(text: str, *, what: str) -> Lengths:
    """Read a distribution of lengths: ``512``, ``uniform:128-2048``, ``exponential:256``, ``lognormal:1020,0.9``.

    Raises:
        InputError: not a distribution, or lengths below 1.

    >>> parse_lengths("uniform:128-2048", what="prompt")
    Lengths(kind='uniform', first=128, second=2048)
    """
    kind, colon, numbers = text.partition(":")
    if not colon:
        kind, numbers = "constant", text
    elif kind not in _KINDS:
        raise InputError(f"{what}: {kind!r} is not a distribution of lengths", hint=did_you_mean(kind, _KINDS) or _HINT)
    try:
        if kind == "uniform":
            first, _, last = numbers.partition("-")
            return Lengths(kind="uniform", first=parse_count(first), second=parse_count(last))
        if kind == "lognormal":
            median, _, spread = numbers.partition(",")
            return Lengths(kind="lognormal", first=parse_count(median), second=float(spread))
        return Lengths(kind="constant" if not colon else "exponential", first=parse_count(numbers))
    except (InputError, ValueError) as error:
        reason = f": {error.what}" if isinstance(error, InputError) else ""
        raise InputError(f"{what}: {text!r} is not a distribution of lengths{reason}", hint=_HINT) from None


def synthetic(*, prompt: Lengths, output: Lengths, seed: int) -> Iterator[Request]:
    """Yield requests without end that share nothing, all at time 0; `retimed` spreads them."""
    prompts, outputs = _random(seed, "prompt lengths"), _random(seed, "output lengths")
    for number in count(1):
        yield Request(
            name=str(number), arrival_s=0.0, prompt_tokens=prompt.draw(prompts), output_tokens=output.draw(outputs)
        )


class FollowUps(Protocol):
    """A source of requests some of which come only after others have been answered."""

    def starts(self) -> Iterator[Request]:
        """Yield the requests that wait for no other, in the order of their times."""

    def follow(self, request: Request, finished_s: float) -> Request | None:
        """Return the request that comes after one was answered at that time, if any; it comes no earlier."""


class ClosedLoop:
    """Users who each wait for the answer and think before they ask again.

    Args:
        bodies: what is asked, in order; the loop ends with them. Their times are replaced.
        users: how many ask at once.
        think_s: mean of the time between an answer and the next question, exponentially distributed.
        seed: of the random numbers.
        spacing_s: time between the first questions of two users; at 0 all of them begin at time 0.

    Raises:
        InputError: no user, or a negative time.
    """

    def __init__(
        self, bodies: Iterable[Request], *, users: int, think_s: float, seed: int, spacing_s: float = 0.0
    ) -> None:
        if users < 1 or not 0 <= think_s < math.inf:
            raise InputError(
                f"a closed loop of {users} users who think for {think_s:g} s", hint="1 user or more, 0 s or more"
            )
        self._bodies = iter(bodies)
        self._users, self._think_s, self._spacing_s = users, think_s, spacing_s
        self._numbers = _random(seed, "thinking")

    def starts(self) -> Iterator[Request]:
        """Yield each user's first request."""
        return retimed(islice(self._bodies, self._users), (user * self._spacing_s for user in count()))

    def follow(self, request: Request, finished_s: float) -> Request | None:
        """Return the next question of the user whose request was answered."""
        del request
        body = next(self._bodies, None)
        thought_s = -self._think_s * math.log(1.0 - self._numbers.random())
        return None if body is None else body._replace(arrival_s=finished_s + thought_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Lengths and pauses of conversations.

    Args:
        turns: questions of a conversation.
        system_tokens: tokens of the system prompt that all conversations begin with; 0 for none.
        prompt: new tokens of each question.
        output: tokens of each answer.
        think_s: mean time between an answer and the next question, exponentially distributed.
    """

    turns: Lengths
    system_tokens: int
    prompt: Lengths
    output: Lengths
    think_s: float

    def __post_init__(self) -> None:
        if not 0 <= self.system_tokens <= _MAX_TOKENS or not 0 <= self.think_s < math.inf:
            raise InputError("a system prompt and the time to think cannot be negative")


class Conversations:
    """Conversations in turns: each prompt holds all that was said before, and all share a system prompt.

    A conversation's lengths follow from the seed and its number alone, not from the order in which answers come.

    Args:
        times: when conversations begin.
        talk: what they are like.
        requests: turns of all conversations together, after which no more come.
        seed: of the random numbers.
    """

    def __init__(self, times: Iterable[float], *, talk: Talk, requests: int, seed: int) -> None:
        self._times, self._talk, self._seed = iter(times), talk, seed
        self._left = requests
        self._open: dict[str, _Conversation] = {}

    def starts(self) -> Iterator[Request]:
        """Yield the first turn of each conversation."""
        for number, time_s in enumerate(self._times, 1):
            if not self._left:
                return
            conversation = _Conversation(number, self._talk, _random(self._seed, f"conversation {number}"))
            yield self._turn(conversation, time_s)

    def follow(self, request: Request, finished_s: float) -> Request | None:
        """Return the next turn of the request's conversation, unless it was the last."""
        conversation = self._open.pop(request.name)
        if not self._left or conversation.turn == conversation.turns:
            return None
        thought_s = -self._talk.think_s * math.log(1.0 - conversation.numbers.random())
        return self._turn(conversation, finished_s + thought_s)

    def _turn(self, conversation: _Conversation, arrival_s: float) -> Request:
        self._left -= 1
        request = conversation.ask(arrival_s)
        self._open[request.name] = conversation
        return request


class _Conversation:
    """One conversation. Stream 0 is the system prompt, stream n what was said in conversation n."""

    def __init__(self, number: int, talk: Talk, numbers: random.Random) -> None:
        self.number, self.talk, self.numbers = number, talk, numbers
        self.turns = talk.turns.draw(numbers)
        self.turn = 0
        self._said = 0

    def ask(self, arrival_s: float) -> Request:
        self.turn += 1
        system = self.talk.system_tokens
        spoken_tokens = self._said + self.talk.prompt.draw(self.numbers)
        output = self.talk.output.draw(self.numbers)
        self._said = spoken_tokens + output
        own = Segment(self.number, 0, spoken_tokens)
        return Request(
            name=f"{self.number}.{self.turn}",
            arrival_s=arrival_s,
            prompt_tokens=system + spoken_tokens,
            output_tokens=output,
            prompt=(Segment(0, 0, system), own) if system else (own,),
            output_stream=self.number,
            output_start=spoken_tokens,
        )
