"""Verification of a draft by the target: greedily, by rejection with the residual, or by chance alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from kvcalc.core.errors import InputError
from kvcalc.core.speculation import DraftTree
from kvcalc.simulate.speculative.rounds import NextToken, Round, Tokens, Verify

__all__ = [
    "Candidates",
    "Choose",
    "NextDistribution",
    "by_chance",
    "greedy",
    "greedy_tree",
    "residual",
    "sampled",
    "seeded",
]

# Several next tokens of a context, best first; the probability of each token of the vocabulary.
Candidates = Callable[[Tokens, int], Sequence[int]]
NextDistribution = Callable[[Tokens], Sequence[float]]
# Takes weights that add up to 1 and returns the place of the one that chance picked.
Choose = Callable[[Sequence[float]], int]

# How far siblings may exceed 1, and a distribution be from it, by rounding; a softmax in 32 bits is within the second.
_MAX_EXCESS = 1e-9
_MAX_OFF = 1e-4


def seeded(seed: int) -> Choose:
    """Return chance that repeats itself: the same seed, the same choices."""
    source = random.Random(seed)  # noqa: S311  a simulation, not a secret
    return lambda weights: source.choices(range(len(weights)), weights)[0]


def residual(target: Sequence[float], draft: Sequence[float]) -> tuple[float, ...]:
    """Return the distribution after a draft's token was rejected: max(p - q, 0), scaled to add up to 1.

    Where nothing is left, which happens only if p equals q and so without a rejection, the target's own.

    Source: Leviathan et al. 2023, arXiv 2211.17192, section 2.3.

    Args:
        target: p, the probability of each token under the target.
        draft: q, the same under the draft.

    Raises:
        InputError: distributions over vocabularies of different sizes, or what is no distribution.

    >>> residual((0.5, 0.25, 0.25), (0.25, 0.75, 0.0))
    (0.5, 0.0, 0.5)
    """
    _comparable(target, draft)
    left = [max(p - q, 0) for p, q in zip(target, draft, strict=True)]
    whole = sum(left)
    return tuple(part / whole for part in left) if whole else tuple(target)


def _comparable(target: Sequence[float], draft: Sequence[float]) -> None:
    if len(target) != len(draft):
        raise InputError(
            f"the target has {len(target)} tokens and the draft {len(draft)}",
            hint="rejection sampling compares probabilities of the same tokens",
        )
    for name, given in (("target", target), ("draft", draft)):
        if not (all(share >= 0 for share in given) and abs(sum(given) - 1) <= _MAX_OFF):
            raise InputError(f"the probabilities of the {name} are below 0, or do not add up to 1")


def _checked(tokens: Sequence[int], wanted: int) -> Sequence[int]:
    if len(set(tokens)) < wanted:
        raise InputError(f"the draft offers {len(set(tokens))} different tokens where {wanted} are wanted")
    return tokens


def _tokens_before(node: int, tree: DraftTree, drafted: Sequence[int]) -> Tokens:
    """Return the drafted tokens that lead to a node, itself included; none for the context."""
    counts: list[int] = []
    while node >= 0:
        counts.append(drafted[node])
        node = tree.parents[node]
    return tuple(reversed(counts))


def _draft(context: Tokens, tree: DraftTree, offer: Candidates) -> Tokens:
    """Fill a tree level by level with the tokens that the draft offers behind each node."""
    drafted = [0] * tree.nodes
    for index, nodes in enumerate(tree.children):
        if nodes:
            offered = offer(context + _tokens_before(index - 1, tree, drafted), len(nodes))
            for node, token in zip(nodes, offered, strict=False):
                drafted[node] = token
    return tuple(drafted)


def _walk(
    context: Tokens,
    tree: DraftTree,
    drafted: Tokens,
    decide: Callable[[Tokens, tuple[int, ...]], tuple[bool, int]],
) -> Round:
    """Follow accepted nodes until the target has a token of its own.

    Args:
        context: tokens before the draft.
        tree: the draft's shape.
        drafted: its tokens.
        decide: takes the tokens so far and the nodes that may follow; returns true and the accepted node, or false and
            the own token.
    """
    path: list[int] = []
    children, reached = tree.children, context
    while True:
        accepted, node = decide(reached, children[path[-1] + 1 if path else 0])
        if not accepted:
            return Round(tree=tree, drafted=drafted, path=tuple(path), own=node, kept=len(path) + 1)
        path.append(node)
        reached = (*reached, drafted[node])


def greedy(target: NextToken, draft: NextToken) -> Verify:
    """Return greedy verification of a chain: a drafted token is accepted if it is the one the target would choose.

    Source: Leviathan et al. 2023, arXiv 2211.17192, section 2.2 (argmax as the temperature goes to 0).
    """
    return greedy_tree(target, lambda context, _: (draft(context),))


def greedy_tree(target: NextToken, draft: Candidates) -> Verify:
    """Return greedy verification of a tree: at each node the child is taken that the target would choose.

    Source: Miao et al. 2023 (SpecInfer), arXiv 2305.09781, section 4.3, greedy decoding.

    Raises:
        InputError: when run, a draft that offers fewer different tokens than the tree has children.
    """

    def verify(context: Tokens, tree: DraftTree) -> Round:
        drafted = _draft(context, tree, lambda reached, wanted: _checked(draft(reached, wanted), wanted))

        def decide(reached: Tokens, nodes: tuple[int, ...]) -> tuple[bool, int]:
            own = target(reached)
            chosen = [node for node in nodes if drafted[node] == own]
            return (True, chosen[0]) if chosen else (False, own)

        return _walk(context, tree, drafted, decide)

    return verify


def sampled(target: NextDistribution, draft: NextDistribution, choose: Choose) -> Verify:
    """Return verification that keeps the target's distribution: rejection with the residual, child after child.

    A child drawn from q is accepted with probability min(1, p / q); otherwise p becomes the residual of p and q, and
    the next child is tried. Children of a node are drawn independently. For a chain this is speculative sampling.

    Source: Leviathan et al. 2023, arXiv 2211.17192, section 2.3 and appendix A.1; Chen et al. 2023, arXiv 2302.01318,
    theorem 1; for several children Miao et al. 2023 (SpecInfer), arXiv 2305.09781, multi-step speculative sampling.

    Raises:
        InputError: when run, distributions over vocabularies of different sizes, or what is no distribution.
    """

    def distributions(reached: Tokens) -> tuple[Sequence[float], Sequence[float]]:
        p, q = target(reached), draft(reached)
        _comparable(p, q)
        return p, q

    def verify(context: Tokens, tree: DraftTree) -> Round:
        drafted = _draft(
            context, tree, lambda reached, wanted: [choose(distributions(reached)[1]) for _ in range(wanted)]
        )

        def decide(reached: Tokens, nodes: tuple[int, ...]) -> tuple[bool, int]:
            left, q = distributions(reached)
            for node in nodes:
                token = drafted[node]
                share = min(1, left[token] / q[token])
                if choose((share, 1 - share)) == 0:
                    return True, node
                left = residual(left, q)
            return False, choose(left)

        return _walk(context, tree, drafted, decide)

    return verify


def by_chance(acceptance: Sequence[float], choose: Choose) -> Verify:
    """Return verification without models: each node is accepted by chance, the tokens are all 0.

    Args:
        acceptance: for each node of the tree the probability that it is accepted if its parent was; those of siblings
            exclude each other, so they add up to 1 at most. May be longer than the tree.
        choose: chance.

    Raises:
        InputError: a probability outside 0 to 1; when run, siblings beyond 1 or a tree with more nodes.
    """
    if any(not 0 <= share <= 1 for share in acceptance):
        raise InputError("an acceptance is a probability from 0 to 1")

    def verify(_: Tokens, tree: DraftTree) -> Round:
        if tree.nodes > len(acceptance):
            raise InputError(f"acceptance is given for {len(acceptance)} nodes of {tree.nodes}")

        def decide(_: Tokens, nodes: tuple[int, ...]) -> tuple[bool, int]:
            shares = [acceptance[node] for node in nodes]
            refused = 1 - sum(shares)
            if refused < -_MAX_EXCESS:
                raise InputError(f"siblings are accepted with {sum(shares):g} in all, more than 1")
            index = choose([*shares, max(refused, 0)])
            return (True, nodes[index]) if index < len(nodes) else (False, 0)

        return _walk((), tree, (0,) * tree.nodes, decide)

    return verify
