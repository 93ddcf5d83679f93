"""Greedy speculation with drafts of several qualities, on a small decoder: passes change, the output does not."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.lessons import DecoderShape, SpeculationDraft, SpeculationReport, SpeculationRound
from kvcalc.core.speculation import chain
from kvcalc.simulate.attention import forward, random_decoder
from kvcalc.simulate.speculative import decode, greedy, speculate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.simulate.speculative import NextToken, Run, Tokens

__all__ = ["QUALITIES", "draft_of", "speculation_report", "target_of"]

# Share of contexts at which the draft proposes what the target would choose.
QUALITIES = {"perfect": 1.0, "half": 0.5, "poor": 0.1}
_MOST_TOKENS = 200
_MOST_GAMMA = 16


def target_of(shape: DecoderShape, *, seed: int) -> NextToken:
    """Return the greedy choice of a small random decoder."""
    decoder = random_decoder(shape, seed=seed)

    @cache
    def choose(context: Tokens) -> int:
        return int(forward(decoder, np.array([context])).logits.argmax())

    return choose


def draft_of(target: NextToken, *, quality: float, vocabulary: int, seed: int) -> NextToken:
    """Return a draft that proposes the target's choice at a share of all contexts, and another token at the rest."""

    def propose(context: Tokens) -> int:
        chance = random.Random(f"{seed} {context}")  # noqa: S311  a demonstration, not a secret
        right = target(context)
        return right if chance.random() < quality else (right + 1 + chance.randrange(vocabulary - 1)) % vocabulary

    return propose


def speculation_report(
    *, prompt_tokens: int = 3, output_tokens: int = 20, gamma: int = 4, seed: int = 0,
    qualities: Sequence[float] | None = None,
) -> SpeculationReport:  # fmt: skip
    """Make the same text with drafts of several qualities.

    Args:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens to make.
        gamma: tokens drafted for a pass; 0 drafts nothing.
        seed: of the target's weights and of the drafts' errors.
        qualities: the share of contexts at which each draft is right; those of `QUALITIES` where left out.

    Raises:
        InputError: no tokens, more than a demonstration should make, or a share outside 0 to 1.
    """
    check_between("prompt", prompt_tokens, 1, _MOST_TOKENS)
    check_between("output-tokens", output_tokens, 1, _MOST_TOKENS)
    check_between("gamma", gamma, 0, _MOST_GAMMA)
    named = QUALITIES if qualities is None else {f"{share:g}": share for share in qualities}
    for share in named.values():
        check_between("the quality of a draft", share, 0, 1)
    shape = DecoderShape()
    target = target_of(shape, seed=seed)
    prompt = tuple(int(t) for t in np.random.default_rng(seed).integers(shape.vocabulary, size=prompt_tokens))
    output = decode(target, prompt, tokens=output_tokens)
    drafts, steps = [], []
    for name, share in named.items():
        draft = draft_of(target, quality=share, vocabulary=shape.vocabulary, seed=seed)
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
        drafted_tokens=sum(len(found.drafted) for found in run.rounds),
        accepted_tokens=sum(len(found.accepted) for found in run.rounds),
        mean_tokens_per_pass=run.mean_tokens_per_pass,
        same_output=run.tokens == output,
    )


def _rounds(name: str, run: Run) -> list[SpeculationRound]:
    return [
        SpeculationRound(
            draft=name,
            place=place,
            drafted=found.drafted,
            accepted=found.accepted,
            rejected=found.rejected,
            own=found.own,
            ending=found.ending,
            emitted=found.emitted,
        )
        for place, found in enumerate(run.rounds, 1)
    ]
