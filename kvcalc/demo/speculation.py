"""Greedy speculation with drafts of several qualities, on a small decoder: passes change, the output does not."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.common import Report
from kvcalc.core.speculation import chain
from kvcalc.core.units import counted, number_text
from kvcalc.demo.decoder import DecoderShape, forward, random_decoder
from kvcalc.render.charts import Axis, chart, line_layer
from kvcalc.render.layout import Text
from kvcalc.render.tables import grid, heading
from kvcalc.render.terminal import line_chart
from kvcalc.simulate.speculative import decode, greedy, speculate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part
    from kvcalc.simulate.speculative import NextToken, Run, Tokens

__all__ = ["SpeculationDraft", "SpeculationReport", "SpeculationRound", "demo_speculate"]

# Share of contexts at which the draft proposes what the target would choose.
_QUALITIES = {"perfect": 1.0, "half": 0.5, "poor": 0.1}
_MAX_TOKENS = 200
_MAX_GAMMA = 16
_RULE = (
    "A drafted token is accepted while it is what the target would choose. At the first that is not, the target's\n"
    "own token takes its place; behind a draft accepted to its end it comes as a bonus: at least one token a pass."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRound:
    """One pass of the target.

    Args:
        draft: which draft.
        place: of the pass, from 1.
        drafted: tokens of the draft.
        accepted: those that the target would have chosen too.
        rejected: the first that it would not have chosen; the rest of the draft falls with it.
        own: the target's own token behind them.
        ending: ``correction`` of a rejected token, or ``bonus`` behind a draft accepted to its end.
        emitted: tokens taken over.
    """

    draft: str
    place: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    rejected: tuple[int, ...]
    own: int
    ending: str
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationDraft:
    """A draft, and what it did for the same text.

    Args:
        name: what it is called.
        quality: share of contexts at which it proposes what the target would choose.
        target_passes: passes of the target.
        drafted_tokens: tokens drafted.
        accepted_tokens: of these, accepted.
        mean_tokens_per_pass: tokens that a pass gave, the target's own included.
        same_output: whether the text is the one that the target makes alone.
    """

    name: str
    quality: float
    target_passes: int
    drafted_tokens: int
    accepted_tokens: int
    mean_tokens_per_pass: float
    same_output: bool


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SpeculationReport(Report):
    """Greedy speculation with drafts of several qualities: the passes change, the output does not.

    Args:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens made, and passes that the target takes alone.
        gamma: tokens drafted for a pass.
        seed: of the target's weights and of the drafts' errors.
        output: the tokens made.
        drafts: what each draft did.
        steps: each pass of each of them.
    """

    listed: ClassVar[str] = "steps"
    schema: str = "kvcalc.demo_speculate/1"
    prompt_tokens: int
    output_tokens: int
    gamma: int
    seed: int
    output: tuple[int, ...]
    drafts: tuple[SpeculationDraft, ...]
    steps: tuple[SpeculationRound, ...] = ()

    def parts(self) -> list[Part]:
        """Return a row for each draft."""
        rows = [
            ["none", "-", number_text(self.output_tokens), "-", "-", "1", "the reference"],
            *(
                [
                    draft.name,
                    f"{draft.quality:.0%}",
                    number_text(draft.target_passes),
                    number_text(draft.drafted_tokens),
                    number_text(draft.accepted_tokens),
                    f"{draft.mean_tokens_per_pass:.2f}",
                    "identical" if draft.same_output else "DIFFERENT",
                ]
                for draft in self.drafts
            ),
        ]
        columns = ["draft", "right", "target passes", "drafted", "accepted", "tokens a pass", "output"]
        title = (
            f"Speculation: {counted(self.output_tokens, 'token')} after a prompt of {self.prompt_tokens},"
            f" {self.gamma} drafted for each pass"
        )
        output = Text(f"output: {_tokens_text(self.output)}")
        return [heading(title), grid(columns, rows), Text(), Text(_RULE), output]

    def step_lines(self) -> list[list[str]]:
        """Return the lines of each pass."""
        return [
            [
                f"draft {step.draft}, pass {step.place}: drafted {_tokens_text(step.drafted)}",
                f"  accepted {_tokens_text(step.accepted)}; {step.ending} {step.own}"
                + (f" instead of {_tokens_text(step.rejected)}" if step.rejected else ""),
                f"  emitted {_tokens_text(step.emitted)}",
            ]
            for step in self.steps
        ]

    def _progress(self) -> dict[str, list[tuple[int, int]]]:
        """Tokens made after each pass of the target, for each draft."""
        progress: dict[str, list[tuple[int, int]]] = {}
        for step in self.steps:
            points = progress.setdefault(step.draft, [(0, 0)])
            points.append((step.place, points[-1][1] + len(step.emitted)))
        return progress

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return tokens emitted over passes of the target."""
        lines: dict[str, list[tuple[float, float]]] = {
            "without a draft": [(tokens, tokens) for tokens in range(self.output_tokens + 1)]
        }
        lines |= {f"draft {draft}": list(points) for draft, points in self._progress().items()}
        return line_chart(lines, x="passes", y="tokens", width=width, plain=plain)

    def spec(self) -> Spec:
        """Return a line for each draft and one without."""
        rows: list[dict[str, Any]] = [
            {"pass": tokens, "tokens": tokens, "draft": "none"} for tokens in range(self.output_tokens + 1)
        ]
        for draft, points in self._progress().items():
            rows += [{"pass": passes, "tokens": tokens, "draft": draft} for passes, tokens in points]
        lines = line_layer(
            rows,
            x=Axis(field="pass", title="passes of the target", whole=True),
            y=Axis(field="tokens", title="tokens made", whole=True),
            series="draft",
            title="draft",
        )
        subtitle = [
            f"{counted(self.gamma, 'token')} drafted for a pass; the output is the same each time",
            "source: kvcalc, a small decoder with random weights",
        ]
        return chart([lines], title="Speculation: the passes change, the output does not", subtitle=subtitle)


def _tokens_text(tokens: Sequence[int]) -> str:
    return " ".join(map(str, tokens)) or "nothing"


def _target(shape: DecoderShape, *, seed: int) -> NextToken:
    """Return the greedy choice of a small random decoder."""
    decoder = random_decoder(shape, seed=seed)

    @cache
    def choose(context: Tokens) -> int:
        return int(forward(decoder, np.array([context])).logits.argmax())

    return choose


def _draft(target: NextToken, *, quality: float, vocabulary: int, seed: int) -> NextToken:
    """Return a draft that proposes the target's choice at a share of all contexts, and another token at the rest."""

    def propose(context: Tokens) -> int:
        chance = random.Random(f"{seed} {context}")  # noqa: S311  a demonstration, not a secret
        right = target(context)
        return right if chance.random() < quality else (right + 1 + chance.randrange(vocabulary - 1)) % vocabulary

    return propose


def demo_speculate(
    *,
    prompt_tokens: int = 3,
    output_tokens: int = 20,
    gamma: int = 4,
    seed: int = 0,
    qualities: Sequence[float] | None = None,
) -> SpeculationReport:
    """Make the same text with drafts that are always, half the time and seldom right, round by round.

    Args:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens to make.
        gamma: tokens drafted for a pass; 0 drafts nothing.
        seed: of the target's weights and of the drafts' errors.
        qualities: shares of contexts at which a draft proposes the target's choice; 1, 0.5 and 0.1 where left out.

    Raises:
        InputError: no tokens, more than a demonstration makes, or a share outside 0 to 1.
    """
    check_between("prompt", prompt_tokens, 1, _MAX_TOKENS)
    check_between("output-tokens", output_tokens, 1, _MAX_TOKENS)
    check_between("gamma", gamma, 0, _MAX_GAMMA)
    named = _QUALITIES if qualities is None else {f"{share:g}": share for share in qualities}
    for share in named.values():
        check_between("the quality of a draft", share, 0, 1)
    shape = DecoderShape()
    target = _target(shape, seed=seed)
    prompt = tuple(int(t) for t in np.random.default_rng(seed).integers(shape.vocabulary, size=prompt_tokens))
    output = decode(target, prompt, tokens=output_tokens)
    drafts, steps = [], []
    for name, share in named.items():
        draft = _draft(target, quality=share, vocabulary=shape.vocabulary, seed=seed)
        run = speculate(greedy(target, draft), prompt, tokens=output_tokens, tree=chain(gamma))
        drafts.append(_summary(name, share, run, output))
        steps += _rounds(name, run)
    return SpeculationReport(
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        gamma=gamma,
        seed=seed,
        output=output,
        drafts=tuple(drafts),
        steps=tuple(steps),
    )


def _summary(name: str, quality: float, run: Run, output: Tokens) -> SpeculationDraft:
    return SpeculationDraft(
        name=name,
        quality=quality,
        target_passes=run.target_passes,
        drafted_tokens=sum(len(each.drafted) for each in run.rounds),
        accepted_tokens=sum(len(each.accepted) for each in run.rounds),
        mean_tokens_per_pass=run.mean_tokens_per_pass,
        same_output=run.tokens == output,
    )


def _rounds(name: str, run: Run) -> list[SpeculationRound]:
    return [
        SpeculationRound(
            draft=name,
            place=number,
            drafted=each.drafted,
            accepted=each.accepted,
            rejected=each.rejected,
            own=each.own,
            ending=each.ending,
            emitted=each.emitted,
        )
        for number, each in enumerate(run.rounds, 1)
    ]
