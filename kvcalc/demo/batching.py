"""The same requests decoded in fixed batches, and with a place given on as soon as its request is done.

A step makes one piece of text for every request that has a place. It reads the weights once for all of them, so that it
takes about as long with empty places as with full ones.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.common import Report
from kvcalc.core.units import ceil_div, number_text
from kvcalc.demo.paging import CONVERSATIONS
from kvcalc.render.charts import Axis, chart, line_layer
from kvcalc.render.layout import Text
from kvcalc.render.tables import grid, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["BatchingReport", "BatchingScheme", "BatchingStep", "demo_batching"]

# Tokens that a step of the demonstration stands for, so that answers of real lengths can be watched.
_PIECE_TOKENS = 40
_MAX_PLACES = 32
# A place that no request has.
_EMPTY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingScheme:
    """The same requests served by one way to fill places.

    Args:
        name: ``static`` or ``continuous``.
        steps: until all requests were done.
        useful_share: places that made text, of all places of all steps.
        mean_wait_steps: steps that a request waited for a place.
    """

    name: str
    steps: int
    useful_share: float
    mean_wait_steps: float

    def cells(self) -> list[str]:
        """Return the row of a table."""
        words = "until all of a batch are done" if self.name == "static" else "given on at once"
        return [words, number_text(self.steps), f"{self.useful_share:.1%}", f"{self.mean_wait_steps:.1f}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchingStep:
    """The places at one step.

    Args:
        place: steps done.
        static: the request in each place, from 0; -1 for an empty one. A request that is done keeps its place empty.
        continuous: likewise, with places given on.
    """

    place: int
    static: tuple[int, ...]
    continuous: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BatchingReport(Report):
    """The same requests in fixed batches, and with places given on.

    Args:
        places: sequences decoded together.
        requests: requests served.
        pieces: steps that each request takes; a piece stands for 40 tokens.
        static: in fixed batches.
        continuous: with places given on.
        speedup: steps of the first over those of the second.
        steps: the places over time.
    """

    listed: ClassVar[str] = "steps"
    schema: str = "kvcalc.demo_batching/1"
    places: int
    requests: int
    pieces: tuple[int, ...]
    static: BatchingScheme
    continuous: BatchingScheme
    speedup: float
    steps: tuple[BatchingStep, ...] = ()

    def parts(self) -> list[Part]:
        """Return both ways side by side."""
        return [
            heading(f"Batching: {self.requests} answers of real lengths, {self.places} decoded together"),
            grid(["a place is kept", "steps", "places in use", "mean wait"],
                 [scheme.cells() for scheme in (self.static, self.continuous)]),
            Text(f"{self.speedup:.2f} times as fast: a step reads the weights once, however many places are in use."),
        ]  # fmt: skip

    def step_lines(self) -> list[list[str]]:
        """Return the request in each place, at each step."""
        return [
            [f"step {step.place}", f"  kept      {_row(step.static)}", f"  given on  {_row(step.continuous)}"]
            for step in self.steps
        ]

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return the places in use over steps."""
        lines = {name: [(row["step"], row["used"]) for row in self._used() if row["way"] == name] for name in _WAYS}
        return line_chart(lines, x="steps", y="places", width=width, plain=plain)

    def spec(self) -> Spec:
        """Return the places in use at each step, for both ways."""
        lines = line_layer(
            self._used(),
            x=Axis(field="step", title="steps", format=",~r", whole=True),
            y=Axis(field="used", title="places in use", format=",~r", whole=True),
            series="way",
            title="places",
        )
        subtitle = [
            f"{self.requests} answers, {self.places} places: {self.static.steps} steps and {self.continuous.steps}",
            "source: kvcalc, lengths from the Azure LLM inference trace of 2023 (CC-BY)",
        ]
        return chart([lines], title="Places in use, kept for a batch and given on", subtitle=subtitle)

    def _used(self) -> list[dict[str, Any]]:
        ends = (self.static.steps, self.continuous.steps)
        return [
            {"step": step.place, "used": sum(each != _EMPTY for each in cells), "way": way}
            for step in self.steps
            for way, cells, end in zip(_WAYS, (step.static, step.continuous), ends, strict=True)
            if step.place < end
        ]


_WAYS = ("kept for a batch", "given on")


def _row(cells: Sequence[int]) -> str:
    return " ".join("  ." if each == _EMPTY else f"{each + 1:3}" for each in cells)


def _served(pieces: Sequence[int], places: int, *, at_once: bool) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the request in each place at each step, and the step at which each request got one.

    Args:
        pieces: steps that each request takes, in order of arrival.
        places: sequences decoded together.
        at_once: whether a place is given on as soon as its request is done, not when all of the batch are.

    Source: Yu et al. 2022, Orca, usenix.org/conference/osdi22/presentation/yu (iteration-level scheduling).
    """
    waiting = deque(range(len(pieces)))
    left = list(pieces)
    answers = [_EMPTY] * places
    rows: list[tuple[int, ...]] = []
    began = [0] * len(pieces)
    while waiting or any(each != _EMPTY for each in answers):
        if at_once or all(each == _EMPTY for each in answers):
            for index in range(places):
                if answers[index] == _EMPTY and waiting:
                    answers[index] = waiting.popleft()
                    began[answers[index]] = len(rows)
        rows.append(tuple(answers))
        for index, request in enumerate(answers):
            if request != _EMPTY:
                left[request] -= 1
                answers[index] = request if left[request] else _EMPTY
    return rows, began


def _scheme(name: str, rows: Sequence[tuple[int, ...]], began: Sequence[int], pieces: Sequence[int]) -> BatchingScheme:
    return BatchingScheme(
        name=name,
        steps=len(rows),
        useful_share=sum(pieces) / (len(rows) * len(rows[0])),
        mean_wait_steps=sum(began) / len(began),
    )


def demo_batching(*, places: int = 4, requests: int = 16) -> BatchingReport:
    """Serve requests in fixed batches, and with each place given on as soon as it is free.

    Args:
        places: sequences decoded together.
        requests: answers, of the lengths of a public trace.

    Raises:
        InputError: no place, no request, or more than the trace has here.

    Source: Yu et al. 2022, Orca, usenix.org/conference/osdi22/presentation/yu.
    """
    check_between("places", places, 1, _MAX_PLACES)
    check_between("requests", requests, 1, len(CONVERSATIONS))
    pieces = tuple(ceil_div(output, _PIECE_TOKENS) for _, output in CONVERSATIONS[:requests])
    kept, given_on = (_served(pieces, places, at_once=at_once) for at_once in (False, True))
    empty = (_EMPTY,) * places
    steps = tuple(
        BatchingStep(
            place=index,
            static=kept[0][index] if index < len(kept[0]) else empty,
            continuous=given_on[0][index] if index < len(given_on[0]) else empty,
        )
        for index in range(max(len(kept[0]), len(given_on[0])))
    )
    return BatchingReport(
        places=places,
        requests=requests,
        pieces=pieces,
        static=_scheme("static", *kept, pieces),
        continuous=_scheme("continuous", *given_on, pieces),
        speedup=len(kept[0]) / len(given_on[0]),
        steps=steps,
    )
