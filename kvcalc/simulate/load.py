"""A load: requests of a trace or made ones, which can be made again and again, and at another rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from kvcalc.core.errors import InputError, about, did_you_mean
from kvcalc.core.units import number_text, request_rate, seconds_text
from kvcalc.simulate.workload import (
    Arrivals,
    ClosedLoop,
    Conversations,
    Talk,
    arrival_times,
    parse_lengths,
    retimed,
    synthetic,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from kvcalc.core.requests import Request
    from kvcalc.simulate.workload import FollowUps, Lengths

__all__ = ["STARTS", "Load"]

_MANY_REQUESTS = 1000
_MAX_REQUESTS = 100_000_000
# Requests that are kept to be served again, or because their number decides their times: some 250 bytes each.
_MAX_KEPT = 2_000_000
_PROCESSES = ("trace", "closed", "poisson", "gamma", "constant", "ramp")
# How the users of a closed loop begin.
STARTS = ("burst", "staggered")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Requests that can be made again and again, and at another rate.

    Args:
        trace: a file of requests: Azure's CSV, Mooncake's JSON lines, or any with ``columns``.
        columns: which column of the trace holds what: ``time=ts:ms,prompt=in,output=out,hashes=ids``,
            and ``priority``.
        window_s: of a trace, only the requests that come from one time to another, in seconds after its first;
            theirs then count from the first of the two.
        arrival: ``trace`` for the trace's own times; ``poisson``, ``gamma``, ``constant`` or ``ramp`` at ``rate``;
            ``closed`` for users who wait for their answers. Without a trace the default is ``poisson``.
        rate: requests a second; of a ramp, the first. With the trace's own times, they are stretched to it.
        last_rate: of a ramp, the last.
        variation: coefficient of variation of the gaps of ``gamma``.
        requests: how many; without a trace 1,000, with one all of it.
        prompt: lengths of prompts without a trace: ``512``, ``uniform:128-2048``, ``exponential:512``,
            ``lognormal:1020,0.9``. Of conversations, the new tokens of each turn.
        output_tokens: lengths of outputs, likewise.
        users: of a closed loop.
        start: how the users of a closed loop begin: ``burst``, all at once, or ``staggered``, spread over the time of
            an answer. Where it is left out the answer is that of a burst, with that of staggered users beside it.
        spacing_s: time between the first questions of two users; of staggered ones that of an answer over the users.
        think_s: mean time between an answer and the next question, in closed loops and conversations.
        turns: with it, conversations of so many turns; a distribution of lengths like the others.
        system_tokens: tokens of the system prompt that all conversations share.
        seed: of all random numbers.

    Raises:
        InputError: options that contradict each other, or are out of range.
    """

    # Yields the requests of a file, with their own times or others; a class that reads traces has one.
    trace_reader: ClassVar[Callable[..., Iterator[Request]]]

    trace: str | Path | None = None
    columns: str | None = None
    window_s: tuple[float, float] | None = None
    arrival: str | None = None
    rate: float | None = None
    last_rate: float | None = None
    variation: float = 2.0
    requests: int | None = None
    prompt: str | None = None
    output_tokens: str | None = None
    users: int | None = None
    start: str | None = None
    spacing_s: float = 0.0
    think_s: float = 0.0
    turns: str | None = None
    system_tokens: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        for parameter, wrong, what, hint in self._mistakes():
            if wrong:
                raise InputError(what, hint=hint, parameter=parameter)
        if self._needs_rate:
            self._arrivals()
        for name, text in (("prompt", self.prompt), ("output-tokens", self.output_tokens), ("turns", self.turns)):
            if text is not None:
                self._read_lengths(text, name)

    def _mistakes(self) -> Iterator[tuple[str, bool, str, str]]:
        """Yield possible mistakes: the parameter, whether it is one, the message and the hint."""
        process, traced = self.process, self.trace is not None
        known = did_you_mean(process, _PROCESSES) or f"arrivals: {', '.join(_PROCESSES)}"
        yield "arrival", process not in _PROCESSES, f"arrival {process!r} is not known", known
        lengths = self.prompt is not None or self.output_tokens is not None
        yield (
            "trace",
            traced and lengths,
            "the lengths of requests are the trace's",
            "leave out --trace, or the lengths",
        )
        yield (
            "turns",
            traced and self.turns is not None,
            "conversations are made, not read from a trace",
            "leave out --trace",
        )
        missing = not traced and (self.prompt is None or self.output_tokens is None)
        yield (
            "prompt",
            missing,
            "the lengths of requests are not known",
            "give --trace, or --prompt and --output-tokens",
        )
        yield "columns", not traced and self.columns is not None, "columns are those of a trace", "give --trace"
        yield "window", not traced and self.window_s is not None, "a window is that of a trace", "give --trace"
        yield (
            "arrival",
            not traced and process == "trace",
            "there is no trace whose times could be used",
            "give --trace",
        )
        closed = process == "closed"
        yield "users", closed and self.users is None, "a closed loop needs users", "give --users"
        yield (
            "users",
            not closed and self.users is not None,
            "users wait for answers in a closed loop",
            "--arrival closed",
        )
        known = did_you_mean(str(self.start), STARTS) or f"loads: {', '.join(STARTS)}"
        yield "load", self.start not in (None, *STARTS), f"load {self.start!r} is not known", known
        spread = self.start is not None or bool(self.spacing_s)
        yield "load", spread and not closed, "users begin together or apart in a closed loop", "give --users"
        yield "load", not 0 <= self.spacing_s < math.inf, f"users {self.spacing_s} s apart", "0 s or more"
        few = self.users is not None and self.users < 1
        yield "users", few, f"a closed loop of {self.users} users", "it has 1 or more"
        yield (
            "rate",
            closed and self.rate is not None,
            "the rate of a closed loop follows from its users",
            "leave out --rate",
        )
        yield (
            "turns",
            closed and self.turns is not None,
            "conversations begin at a rate",
            "give --rate instead of --users",
        )
        talks = self.turns is not None
        yield (
            "system-tokens",
            self.system_tokens != 0 and not talks,
            "a system prompt is that of conversations",
            "give --turns",
        )
        yield (
            "think",
            self.think_s != 0 and not (talks or closed),
            "nobody thinks in open arrivals",
            "give --users or --turns",
        )
        yield "think", not 0 <= self.think_s < math.inf, f"a time to think of {self.think_s:g} s", "it is 0 or more"
        rated = self._needs_rate and self.rate is None
        yield "rate", rated, f"{process} arrivals need a rate", "give --rate, in requests per second"
        few = self.requests is not None and not 1 <= self.requests <= _MAX_REQUESTS
        yield (
            "requests",
            few,
            f"requests must be from 1 to {_MAX_REQUESTS:,}, not {self.requests}",
            "it is a number of requests",
        )
        slow = self.rate is not None and not 0 < self.rate < math.inf
        yield "rate", slow, f"a rate of {self.rate} requests/s", "it is above 0"

    @property
    def process(self) -> str:
        """The arrival process."""
        if self.arrival is not None:
            return self.arrival
        if self.users is not None:
            return "closed"
        return "poisson" if self.trace is None else "trace"

    @property
    def _needs_rate(self) -> bool:
        return self.process not in ("trace", "closed")

    @property
    def text(self) -> str:
        """A description in words."""
        requests = (
            f"trace {Path(self.trace).name}{self._window_text}"
            if self.trace is not None
            else f"{self.prompt} in, {self.output_tokens} out"
        )
        if self.turns is not None:
            requests = f"conversations of {self.turns} turns, {self.system_tokens} system tokens, {requests}"
        if self.process == "closed":
            thinking = f" who think for {seconds_text(self.think_s)}" if self.think_s else ""
            began = "" if self.start is None else f", {self.start}"
            return f"{requests}, {self.users} users{thinking}{began}"
        when = "its own times" if self.process == "trace" else f"{self.process} arrivals"
        rate = "" if self.rate is None else f" at {request_rate(self.rate)}"
        last = "" if self.last_rate is None else f" to {number_text(self.last_rate)}"
        seed = f", seed {self.seed}" if self.process != "trace" else ""
        return f"{requests}, {when}{rate}{last}{seed}"

    @property
    def _window_text(self) -> str:
        if self.window_s is None:
            return ""
        begin_s, end_s = self.window_s
        return f", minute {begin_s / 60:.0f} to {end_s / 60:.0f}"

    def at_rate(self, rate: float) -> Self:
        """Return the same load at another rate; a ramp's last rate grows with its first.

        Raises:
            InputError: a closed loop, whose rate follows from the answers.
        """
        if self.process == "closed":
            raise InputError("the rate of a closed loop follows from its users", hint="search over --arrival poisson")
        last = None if self.last_rate is None or not self.rate else self.last_rate * rate / self.rate
        return replace(self, rate=rate, last_rate=last)

    def at_mean_rate(self, rate: float) -> Self:
        """Return the same load at the rate at which its requests come at another one on average over their number.

        Of a Poisson process n requests take 1/sqrt(n) more or less than n/rate: 1.4 % of 5,000, which near the capacity
        is much. Without that chance fewer requests tell as much.
        """
        if self.process not in ("poisson", "gamma") or self.turns is not None:
            return self.at_rate(rate)
        process: Any = self.process
        arrivals = Arrivals(process=process, rate_per_s=1.0, variation=self.variation)
        *_, last_s = islice(arrival_times(arrivals, seed=self.seed), self._many)
        return self.at_rate(rate * last_s / self._many)

    def bodies(self, times: Iterable[float] | None = None) -> Iterator[Request]:
        """Yield the requests with the trace's times, or with others; synthetic ones without others come at time 0."""
        if self.trace is None:
            prompt, output = self._lengths("prompt"), self._lengths("output_tokens")
            made = islice(synthetic(prompt=prompt, output=output, seed=self.seed), self._many)
            return made if times is None else retimed(made, times)
        if times is None and self.process != "trace":
            times = repeat(0.0)
        if self.window_s is None:
            return islice(self.trace_reader(self.trace, columns=self.columns, times=times), self.requests)
        inside = self._in_window(self.trace_reader(self.trace, columns=self.columns), *self.window_s)
        return islice(inside if times is None else retimed(inside, times), self.requests)

    @staticmethod
    def _in_window(requests: Iterable[Request], begin_s: float, end_s: float) -> Iterator[Request]:
        for request in requests:
            if request.arrival_s > end_s:
                return
            if request.arrival_s >= begin_s:
                yield request._replace(arrival_s=request.arrival_s - begin_s)

    def kept_bodies(self) -> tuple[Request, ...]:
        """Return the requests of `bodies` as a tuple, all kept in memory.

        Raises:
            InputError: more requests than are kept.
        """
        kept = tuple(islice(self.bodies(), _MAX_KEPT + 1))
        if len(kept) > _MAX_KEPT:
            hint = f"--requests {_MAX_KEPT} takes the first of them"
            raise InputError(f"more than {_MAX_KEPT:,} requests, which would all be kept in memory", hint=hint)
        return kept

    def source(self, bodies: Sequence[Request] | None = None) -> Iterable[Request] | FollowUps:
        """Return the requests with their times, or a source some of whose requests come only after answers.

        Args:
            bodies: what `bodies` yields, where it has been kept.
        """
        if self.turns is not None:
            talk = Talk(
                turns=self._lengths("turns"),
                system_tokens=self.system_tokens,
                prompt=self._lengths("prompt"),
                output=self._lengths("output_tokens"),
                think_s=self.think_s,
            )
            times = arrival_times(self._arrivals(), seed=self.seed, requests=self._many)
            return Conversations(times, talk=talk, requests=self._many, seed=self.seed)
        if self.process == "closed":
            asked = self.bodies() if bodies is None else bodies
            return ClosedLoop(
                asked, users=self.users or 1, think_s=self.think_s, seed=self.seed, spacing_s=self.spacing_s
            )
        if self.process == "trace" and self.rate is None:
            return self.bodies() if bodies is None else bodies
        if self.process in ("trace", "ramp"):
            bodies = self.kept_bodies() if bodies is None else bodies
            if self.process == "trace":
                return self._stretched(bodies)
        number = None if bodies is None else len(bodies)
        times = arrival_times(self._arrivals(), seed=self.seed, requests=number)
        return self.bodies(times) if bodies is None else retimed(bodies, times)

    def _stretched(self, bodies: Sequence[Request]) -> Iterator[Request]:
        """Yield a trace's requests with their times stretched so that as many come in a second as asked for."""
        last_s = bodies[-1].arrival_s
        if not last_s:
            raise InputError("all requests of the trace come at once: they have no rate", hint="give --arrival poisson")
        stretch = len(bodies) / (last_s * (self.rate or 1.0))
        return retimed(bodies, (request.arrival_s * stretch for request in bodies))

    @property
    def _many(self) -> int:
        return self.requests or _MANY_REQUESTS

    def _lengths(self, name: str) -> Lengths:
        return self._read_lengths(getattr(self, name), name)

    @staticmethod
    def _read_lengths(text: str, name: str) -> Lengths:
        with about(name.replace("_", "-")):
            return parse_lengths(text, what=name)

    def _arrivals(self) -> Arrivals:
        process: Any = self.process
        return Arrivals(
            process=process, rate_per_s=self.rate or 0.0, variation=self.variation, last_rate_per_s=self.last_rate
        )
