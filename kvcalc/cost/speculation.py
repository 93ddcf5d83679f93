"""The gain of speculation: closed forms over acceptance, draft length and the costs of draft and verification.

c is the time of a draft step and v that of a verification, both over the time of the target's plain step; gamma is the
number of draft steps. Where one rate stands for all positions, acceptance is taken to be independent of what was
accepted before; measured acceptance falls with the position, which a list per position can say.
"""

from __future__ import annotations

import heapq
import math
from itertools import pairwise
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.speculation import DraftTree
from kvcalc.core.sums import added

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.speculation import RoundTerms

__all__ = [
    "acceptance_by_position",
    "acceptance_from_counts",
    "best_tree",
    "break_even_rate",
    "expected_tokens",
    "expected_tokens_at_rate",
    "expected_tokens_of_tree",
    "host_seconds",
    "kept_state_seconds",
    "largest_draft_ratio",
    "rate_for",
    "sibling_acceptance",
    "speedup",
    "tree_acceptance",
]


def expected_tokens_at_rate(rate: float, gamma: float) -> float:
    """Return the tokens that a pass gives on average: (1 - alpha^(gamma + 1)) / (1 - alpha), gamma + 1 for alpha = 1.

    The target's own token, correction or bonus, is one of them.

    Source: Leviathan et al. 2023, arXiv 2211.17192, equation 1 (acceptance independent and alike at all positions).

    >>> expected_tokens_at_rate(0.5, 2), expected_tokens_at_rate(1, 5), expected_tokens_at_rate(0, 5)
    (1.75, 6, 1)
    """
    if rate in (0, 1):
        return gamma + 1 if rate else 1
    return -math.expm1((gamma + 1) * math.log(rate)) / (1 - rate)


def expected_tokens(acceptance: Sequence[float]) -> float:
    """Return the tokens that a pass gives on average where each position has its own acceptance: 1 + a1 + a1 a2 + ...

    Args:
        acceptance: for each drafted position the probability that it is accepted if all before it were.

    Source: the expectation of a length is the sum of the probabilities that it is reached; Leviathan et al. 2023, arXiv
    2211.17192, equation 1, is the case of equal positions.

    >>> expected_tokens((0.5, 0.5)), expected_tokens((0.8, 0.5)), expected_tokens(())
    (1.75, 2.2, 1.0)
    """
    reached, tokens = 1.0, 1.0
    for share in acceptance:
        reached *= share
        tokens += reached
    return tokens


def expected_tokens_of_tree(tree: DraftTree, acceptance: Sequence[float]) -> float:
    """Return the tokens that the verification of a tree gives on average: 1 + the sum of the nodes' path products.

    Args:
        tree: the draft.
        acceptance: for each node the probability that it is accepted if its parent was; siblings exclude each other.

    Source: Chen et al. 2024 (Sequoia), arXiv 2402.12374, section 3.1; Cai et al. 2024 (Medusa), arXiv 2401.10774
    (optimised tree construction).

    >>> expected_tokens_of_tree(DraftTree.branching((2, 1)), (0.5, 0.25, 0.5, 0.5))
    2.125
    """
    products: list[float] = []
    for parent, share in zip(tree.parents, acceptance, strict=True):
        products.append(share if parent < 0 else products[parent] * share)
    return 1 + added(products)


def sibling_acceptance(rate: float, rank: int) -> float:
    """Return the probability that a child is the accepted one if each child tried has the same chance: a (1 - a)^rank.

    Source: Miao et al. 2023 (SpecInfer), arXiv 2305.09781, multi-step speculative sampling (children are tried one
    after another), with independent trials; real ones are worse, since a rejection makes the next less likely.

    >>> sibling_acceptance(0.5, 0), sibling_acceptance(0.5, 2), sibling_acceptance(1, 1)
    (0.5, 0.125, 0)
    """
    return rate * (1 - rate) ** rank


def tree_acceptance(tree: DraftTree, by_depth: Sequence[float]) -> tuple[float, ...]:
    """Return the acceptance of each node of a tree whose first children are accepted with ``by_depth``.

    Source: `sibling_acceptance` at each node's depth and place among its siblings.

    >>> tree_acceptance(DraftTree.branching((2, 1)), (0.5, 0.8))
    (0.5, 0.25, 0.8, 0.8)
    """
    places = zip(tree.depths, tree.ranks, strict=True)
    return tuple(sibling_acceptance(by_depth[depth - 1], rank) for depth, rank in places)


def best_tree(acceptance: Sequence[Sequence[float]], *, nodes: int) -> DraftTree:
    """Return the tree of so many nodes that gives most tokens: those whose path products are largest.

    No product exceeds that of the parent or of an earlier sibling, so the largest ones form a tree, and no other tree
    has a larger sum.

    Args:
        acceptance: for each depth the acceptance of a node's first, second, ... child, falling.
        nodes: the budget.

    Source: Chen et al. 2024 (Sequoia), arXiv 2402.12374, section 3.1 (the same optimum by dynamic programming).

    Raises:
        InputError: an acceptance that rises from one child to the next, or a budget below 0.

    >>> best_tree(((0.6, 0.3), (0.6, 0.3)), nodes=3).parents
    (-1, 0, -1)
    """
    if nodes < 0 or any(left < right for row in acceptance for left, right in pairwise(row)):
        raise InputError("a draft tree needs 0 nodes or more, and acceptance that falls from child to child")
    parents: list[int] = []
    open_nodes: list[_OpenNode] = []
    _open(open_nodes, 1.0, 0, 0, -1, acceptance)
    while open_nodes and len(parents) < nodes:
        lost, depth, rank, parent, before = heapq.heappop(open_nodes)
        _open(open_nodes, before, depth, rank + 1, parent, acceptance)
        _open(open_nodes, -lost, depth + 1, 0, len(parents), acceptance)
        parents.append(parent)
    return DraftTree(parents=tuple(parents))


# The path product with its sign turned, depth, place among siblings, parent, and the parent's path product.
_OpenNode = tuple[float, int, int, int, float]


def _open(
    open_nodes: list[_OpenNode],
    before: float,
    depth: int,
    rank: int,
    parent: int,
    acceptance: Sequence[Sequence[float]],
) -> None:
    """Add a node to those that may be taken next, unless the acceptance ends before it."""
    if depth < len(acceptance) and rank < len(acceptance[depth]):
        heapq.heappush(open_nodes, (-before * acceptance[depth][rank], depth, rank, parent, before))


def speedup(*, expected: float, gamma: float, draft_ratio: float, verify_ratio: float) -> float:
    """Return the speed over plain decoding: E / (gamma c + v).

    Args:
        expected: E, tokens of a pass.
        gamma: draft steps of a pass.
        draft_ratio: c.
        verify_ratio: v; 1 in the source, which takes a verification to cost as much as a plain step.

    Source: Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8, with v in place of 1.

    >>> speedup(expected=4.0, gamma=4, draft_ratio=0.125, verify_ratio=1.5)
    2.0
    """
    return expected / (gamma * draft_ratio + verify_ratio)


def host_seconds(terms: RoundTerms, sequences: int) -> float:
    """Return the time of the host in a round that no pass hides.

    Source: the loops over requests that follow a verification in SGLang (``eagle_worker.py: verify``) and vLLM
    (``scheduler.py: update_from_output``); the times are those of `kvcalc.engines.rounds`.

    >>> from kvcalc.core.calibration import Interval
    >>> from kvcalc.core.speculation import RoundTerms
    >>> all_of_it = Interval(low=1, high=1)
    >>> host_seconds(RoundTerms(engine="x", round_s=0.5, sequence_s=0.25, alone=all_of_it, batched=all_of_it), 2)
    1.0
    """
    return terms.round_s + sequences * terms.sequence_s


def kept_state_seconds(state_bytes: float, *, nodes: int, bytes_per_s: float) -> float:
    """Return the time in which a verification writes a recurrent state for each drafted token, to return to.

    Source: SGLang 0.5.23, ``hybrid_linear_attn_backend.py`` (intermediate states of a verification); vLLM 0.33,
    ``MambaSpec.num_speculative_blocks``: both store the state behind each token of a draft.

    Args:
        state_bytes: states of all sequences on a rank.
        nodes: drafted tokens of a sequence.
        bytes_per_s: the rate at which states are written.

    >>> kept_state_seconds(8.0, nodes=3, bytes_per_s=12.0)
    2.0
    """
    return nodes * state_bytes / bytes_per_s


def break_even_rate(*, tree: DraftTree, gamma: float, draft_ratio: float, verify_ratio: float) -> float | None:
    """Return the acceptance at which the speed-up is 1; none where no acceptance reaches it, 0 where none is needed.

    Source: Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8 set to 1: E(alpha) = gamma c + v, which rises in alpha.

    >>> from kvcalc.core.speculation import chain
    >>> round(break_even_rate(tree=chain(1), gamma=1, draft_ratio=0.25, verify_ratio=1.25), 9)
    0.5
    >>> break_even_rate(tree=chain(1), gamma=1, draft_ratio=1.5, verify_ratio=1)
    """
    return rate_for(gamma * draft_ratio + verify_ratio, tree)


def rate_for(expected: float, tree: DraftTree) -> float | None:
    """Return the rate at which a pass gives so many tokens; none for more than it can, 0 for 1 or less.

    Source: Leviathan et al. 2023, arXiv 2211.17192, equation 1, or `expected_tokens_of_tree` with `tree_acceptance`,
    solved for alpha by bisection.

    >>> from kvcalc.core.speculation import chain
    >>> round(rate_for(1.75, chain(2)), 9), round(rate_for(3, chain(2)), 9), rate_for(4, chain(2))
    (0.5, 1.0, None)
    """
    levels = len(tree.level_widths)
    if expected > levels + 1:
        return None
    low, high = 0.0, 1.0
    if expected <= 1:
        return low
    while low < (middle := (low + high) / 2) < high:
        if tree.is_chain:
            tokens = expected_tokens_at_rate(middle, levels)
        else:
            tokens = expected_tokens_of_tree(tree, tree_acceptance(tree, (middle,) * levels))
        low, high = (middle, high) if tokens < expected else (low, middle)
    return high


def largest_draft_ratio(*, expected: float, gamma: float, verify_ratio: float) -> float:
    """Return the c at which the speed-up is 1: (E - v) / gamma; below 0 not even a free draft pays.

    Source: Leviathan et al. 2023, arXiv 2211.17192, theorem 3.8 set to 1 and solved for c.

    >>> largest_draft_ratio(expected=3.0, gamma=4, verify_ratio=1.0)
    0.5
    """
    return (expected - verify_ratio) / gamma


def acceptance_from_counts(drafts: int, accepted: Sequence[int]) -> tuple[float, ...]:
    """Return the acceptance of each position, given all before it, from how often it was accepted.

    Args:
        drafts: how many drafts were verified.
        accepted: for each position how many of them were accepted there.

    Source: the ratio of the counts of neighbouring positions; engines count them so (vLLM's
    ``spec_decode_num_accepted_tokens_per_pos`` beside ``spec_decode_num_drafts``).

    Raises:
        InputError: counts that rise from one position to the next, or no draft.

    >>> acceptance_from_counts(100, (80, 60, 0, 0))
    (0.8, 0.75, 0.0, 0.0)
    """
    if drafts < 1 or not _falling((drafts, *accepted)):
        raise InputError(f"accepted {', '.join(map(str, accepted))} of {drafts} drafts cannot be", hint=_FALLING)
    return _neighbour_ratios((drafts, *accepted))


def acceptance_by_position(shares: Sequence[float]) -> tuple[float, ...]:
    """Return the acceptance of each position, given all before it, from the share of all drafts accepted there.

    Args:
        shares: for each position the share of drafts of which it was accepted, and so all before it.

    Source: vLLM 0.32, ``v1/spec_decode/metrics.py``, "Per-position acceptance rate": accepted at a position over the
    number of drafts, so that 1 + the sum of the shares is the mean acceptance length.

    Raises:
        InputError: shares outside 0 to 1, or that rise from one position to the next.

    >>> acceptance_by_position((0.5, 0.25, 0))
    (0.5, 0.5, 0.0)
    """
    if not _falling((1, *shares)):
        listed = ", ".join(f"{share:g}" for share in shares)
        raise InputError(f"acceptance by position {listed} cannot be", hint=_FALLING)
    return _neighbour_ratios((1, *shares))


_FALLING = "a position is accepted at most as often as the one before it, and at most once a draft"


def _falling(amounts: Sequence[float]) -> bool:
    return all(left >= right >= 0 for left, right in pairwise(amounts))


def _neighbour_ratios(amounts: Sequence[float]) -> tuple[float, ...]:
    return tuple(right / left if left else 0.0 for left, right in pairwise(amounts))
