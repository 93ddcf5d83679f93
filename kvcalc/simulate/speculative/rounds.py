"""What speculative decoding did: rounds of one sequence, and of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kvcalc.core.speculation import DraftTree

__all__ = ["BatchRun", "Round", "Run", "Tokens"]

Tokens = tuple[int, ...]


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
        """What the own token is: of a pass without draft, behind a draft accepted to its end, or instead of one."""
        if not self.drafted:
            return "plain"
        return "correction" if self.rejected else "bonus"

    @property
    def yielded(self) -> Tokens:
        """What the pass gave: accepted tokens and the own one."""
        return (*self.accepted, self.own)

    @property
    def emitted(self) -> Tokens:
        """What was taken over of it: less in the last round, and where sequences are kept aligned."""
        return self.yielded[: self.kept]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The generation of one sequence."""

    prompt: Tokens
    rounds: tuple[Round, ...]

    @property
    def tokens(self) -> Tokens:
        """Generated tokens."""
        return tuple(token for found in self.rounds for token in found.emitted)

    @property
    def target_passes(self) -> int:
        """Passes of the target."""
        return len(self.rounds)

    @property
    def draft_steps(self) -> int:
        """Steps of the draft: one a level."""
        return sum(len(found.tree.level_widths) for found in self.rounds)

    @property
    def mean_tokens_per_pass(self) -> float:
        """Tokens that a pass gave on average, the target's own included; 0 without a pass."""
        return sum(len(found.yielded) for found in self.rounds) / len(self.rounds) if self.rounds else 0.0


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
            tuple(run.rounds[place].kept if place < run.target_passes else None for run in self.runs)
            for place in range(self.target_passes)
        )

    @property
    def mean_tokens_per_pass(self) -> float:
        """Tokens that a sequence took over in a pass on average; 0 without a pass."""
        kept = [tokens for taken in self.passes for tokens in taken if tokens is not None]
        return sum(kept) / len(kept) if kept else 0.0
