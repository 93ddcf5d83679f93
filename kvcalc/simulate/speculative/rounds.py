"""Speculative decoding round after round, of one sequence or of a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kvcalc.core.errors import InputError
from kvcalc.core.speculation import DraftTree

__all__ = ["BatchRun", "NextToken", "Round", "Run", "Tokens", "Verify", "decode", "speculate", "speculate_batch"]

_MAX_TOKENS = 1_000_000

Tokens = tuple[int, ...]
# The next token of a context.
NextToken = Callable[[Tokens], int]
# One round: the tokens so far and the shape of the draft.
Verify = Callable[[Tokens, DraftTree], "Round"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One pass of the target: what was drafted, how far it was accepted, and the token the target added.

    Args:
        tree: which drafted token follows which.
        drafted: the token of each node.
        path: accepted nodes, from the context on.
        own: the target's own token behind them: a correction, or a bonus where nothing was left to reject.
        kept: how many of the accepted tokens and the own one were taken over.
    """

    tree: DraftTree
    drafted: Tokens
    path: tuple[int, ...]
    own: int
    kept: int

    @property
    def accepted(self) -> Tokens:
        """Accepted draft tokens."""
        return tuple(self.drafted[node] for node in self.path)

    @property
    def rejected(self) -> Tokens:
        """Draft tokens that were tried behind the accepted ones and refused."""
        last = self.path[-1] + 1 if self.path else 0
        return tuple(self.drafted[node] for node in self.tree.children[last])

    @property
    def ending(self) -> Literal["plain", "bonus", "correction"]:
        """The own token's kind: of a pass without draft, behind a draft accepted to its end, or instead of one."""
        if not self.drafted:
            return "plain"
        return "correction" if self.rejected else "bonus"

    @property
    def yielded(self) -> Tokens:
        """Tokens of the pass: accepted ones and the own one."""
        return (*self.accepted, self.own)

    @property
    def emitted(self) -> Tokens:
        """Tokens taken over from the pass: fewer in the last round, and where sequences are kept aligned."""
        return self.yielded[: self.kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The generation of one sequence."""

    prompt: Tokens
    rounds: tuple[Round, ...]

    @property
    def tokens(self) -> Tokens:
        """Generated tokens."""
        return tuple(token for each in self.rounds for token in each.emitted)

    @property
    def target_passes(self) -> int:
        """Passes of the target."""
        return len(self.rounds)

    @property
    def draft_steps(self) -> int:
        """Steps of the draft: one a level."""
        return sum(len(each.tree.level_widths) for each in self.rounds)

    @property
    def mean_tokens_per_pass(self) -> float:
        """Tokens that a pass gave on average, the target's own included; 0 without a pass."""
        return sum(len(each.yielded) for each in self.rounds) / len(self.rounds) if self.rounds else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """Sequences generated together: a pass of the target verifies one round of each that is not done."""

    runs: tuple[Run, ...]

    @property
    def target_passes(self) -> int:
        """Passes of the target: those of the sequence that needs most."""
        return max((run.target_passes for run in self.runs), default=0)

    @property
    def passes(self) -> tuple[tuple[int | None, ...], ...]:
        """For each pass how many tokens each sequence took over; none where it was done before."""
        return tuple(
            tuple(run.rounds[index].kept if index < run.target_passes else None for run in self.runs)
            for index in range(self.target_passes)
        )

    @property
    def mean_tokens_per_pass(self) -> float:
        """Tokens that a sequence took over in a pass on average; 0 without a pass."""
        kept = [tokens for taken in self.passes for tokens in taken if tokens is not None]
        return sum(kept) / len(kept) if kept else 0.0


def decode(target: NextToken, prompt: Sequence[int], *, tokens: int) -> Tokens:
    """Generate with the target alone, one token a pass."""
    context = tuple(prompt)
    for _ in range(_checked(tokens)):
        context = (*context, target(context))
    return context[len(prompt) :]


def _checked(tokens: int) -> int:
    if not 0 <= tokens <= _MAX_TOKENS:
        raise InputError(f"tokens to generate must be from 0 to {_MAX_TOKENS:,}, not {tokens}")
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
    wanted = _checked(tokens)
    if len(verify) != len(prompts):
        raise InputError(f"{len(verify)} ways to verify for {len(prompts)} prompts")
    contexts = [tuple(prompt) for prompt in prompts]
    left = [wanted] * len(contexts)
    rounds: list[list[Round]] = [[] for _ in contexts]
    while any(left):
        next_rounds = {index: verify[index](contexts[index], tree) for index, rest in enumerate(left) if rest}
        max_yield = min(len(taken.yielded) for taken in next_rounds.values()) if aligned else wanted
        for index, taken in next_rounds.items():
            kept = min(len(taken.yielded), max_yield, left[index])
            rounds[index].append(replace(taken, kept=kept))
            contexts[index] += rounds[index][-1].emitted
            left[index] -= kept
    runs = (Run(prompt=tuple(p), rounds=tuple(done)) for p, done in zip(prompts, rounds, strict=True))
    return BatchRun(runs=tuple(runs))
