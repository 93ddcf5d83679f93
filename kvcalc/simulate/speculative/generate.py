"""Generating sequences: round after round, alone or in a batch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.simulate.speculative.rounds import BatchRun, Round, Run, Tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.speculation import DraftTree
    from kvcalc.simulate.speculative.verify import NextToken, Verify

__all__ = ["decode", "speculate", "speculate_batch"]

_MOST_TOKENS = 1_000_000


def decode(target: NextToken, prompt: Sequence[int], *, tokens: int) -> Tokens:
    """Return what the target alone generates, one token a pass."""
    context = tuple(prompt)
    for _ in range(_wanted(tokens)):
        context = (*context, target(context))
    return context[len(prompt) :]


def _wanted(tokens: int) -> int:
    if not 0 <= tokens <= _MOST_TOKENS:
        raise InputError(f"tokens to generate must be from 0 to {_MOST_TOKENS:,}, not {tokens}")
    return tokens


def speculate(verify: Verify, prompt: Sequence[int], *, tokens: int, tree: DraftTree) -> Run:
    """Generate a sequence by speculation.

    Args:
        verify: how a round decides.
        prompt: tokens to begin with; may be empty.
        tokens: how many to generate; 0 takes no pass.
        tree: the shape of each draft; without nodes it is plain decoding, a token a pass.

    Raises:
        InputError: a negative number of tokens, or what ``verify`` refuses.
    """
    return speculate_batch([verify], [prompt], tokens=tokens, tree=tree).runs[0]


def speculate_batch(
    verify: Sequence[Verify],
    prompts: Sequence[Sequence[int]],
    *,
    tokens: int,
    tree: DraftTree,
    aligned: bool = False,
) -> BatchRun:
    """Generate sequences by speculation, each with its own acceptance.

    Args:
        verify: how a round of each sequence decides.
        prompts: the sequences' prompts.
        tokens: how many to generate for each.
        tree: the shape of each draft.
        aligned: whether the sequences stay equally long: a pass then gives each of them only what the worst one got, as
            in implementations without ragged batches.

    Raises:
        InputError: a negative number of tokens, not one ``verify`` for each prompt, or what one of them refuses.
    """
    wanted = _wanted(tokens)
    if len(verify) != len(prompts):
        raise InputError(f"{len(verify)} ways to verify for {len(prompts)} prompts")
    contexts = [tuple(prompt) for prompt in prompts]
    left = [wanted] * len(contexts)
    rounds: list[list[Round]] = [[] for _ in contexts]
    while any(left):
        found = {place: verify[place](contexts[place], tree) for place, rest in enumerate(left) if rest}
        most = min(len(taken.yielded) for taken in found.values()) if aligned else wanted
        for place, taken in found.items():
            kept = min(len(taken.yielded), most, left[place])
            rounds[place].append(replace(taken, kept=kept))
            contexts[place] += rounds[place][-1].emitted
            left[place] -= kept
    runs = (Run(prompt=tuple(p), rounds=tuple(done)) for p, done in zip(prompts, rounds, strict=True))
    return BatchRun(runs=tuple(runs))
