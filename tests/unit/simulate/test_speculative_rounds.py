"""The simulator of speculative decoding: what it counts, whose distribution it keeps, and where it converges."""

import math
from collections import Counter
from fractions import Fraction

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.speculation import DraftTree, chain
from kvcalc.cost.speculation import expected_tokens_of_tree, tree_acceptance
from kvcalc.simulate.speculative import (
    by_chance,
    decode,
    greedy,
    greedy_tree,
    residual,
    sampled,
    seeded,
    speculate,
    speculate_batch,
)

VOCABULARY = 7


def count_up(context):
    return (3 * len(context) + sum(context[-2:])) % VOCABULARY


def never(context):
    return (count_up(context) + 1) % VOCABULARY


def half(context):
    return count_up(context) if len(context) % 2 else never(context)


@pytest.mark.parametrize("gamma", [0, 1, 3, 8])
@pytest.mark.parametrize("tokens", [0, 1, 17])
@pytest.mark.parametrize("prompt", [(), (1, 2, 3)])
@pytest.mark.parametrize("draft", [count_up, half, never])
def test_greedy_output_is_the_targets_own(draft, prompt, tokens, gamma):
    run = speculate(greedy(count_up, draft), prompt, tokens=tokens, tree=chain(gamma))
    assert run.tokens == decode(count_up, prompt, tokens=tokens)
    assert math.ceil(tokens / (gamma + 1)) <= run.target_passes <= tokens
    assert run.draft_steps == gamma * run.target_passes


@pytest.mark.parametrize("gamma", [0, 1, 4])
def test_a_perfect_draft_takes_fewest_passes_and_a_hopeless_one_as_many_as_tokens(gamma):
    perfect = speculate(greedy(count_up, count_up), (), tokens=23, tree=chain(gamma))
    hopeless = speculate(greedy(count_up, never), (), tokens=23, tree=chain(gamma))
    assert (perfect.target_passes, hopeless.target_passes) == (math.ceil(23 / (gamma + 1)), 23)
    assert perfect.mean_tokens_per_pass == gamma + 1
    assert hopeless.mean_tokens_per_pass == 1


def test_a_round_says_what_was_accepted_refused_and_added():
    run = speculate(greedy(lambda _: 5, lambda context: 5 if len(context) < 2 else 6), (), tokens=5, tree=chain(3))
    first, second, _ = run.rounds
    assert (first.drafted, first.accepted, first.rejected, first.own) == ((5, 5, 6), (5, 5), (6,), 5)
    assert (first.ending, first.emitted) == ("correction", (5, 5, 5))
    assert (second.accepted, second.ending, second.emitted) == ((), "correction", (5,))
    perfect = speculate(greedy(lambda _: 5, lambda _: 5), (), tokens=5, tree=chain(3)).rounds
    assert [(found.ending, found.emitted) for found in perfect] == [("bonus", (5, 5, 5, 5)), ("bonus", (5,))]
    assert speculate(greedy(never, never), (), tokens=1, tree=chain(0)).rounds[0].ending == "plain"


def test_a_tree_takes_the_child_that_the_target_would_choose():
    def ranked(context, wanted):
        return [never(context), count_up(context), VOCABULARY][:wanted]

    tree = DraftTree.branching((2, 2, 2))
    run = speculate(greedy_tree(count_up, ranked), (), tokens=12, tree=tree)
    assert run.tokens == decode(count_up, (), tokens=12)
    assert run.target_passes == 3
    assert run.rounds[0].path == (1, 5, 13)
    assert speculate(greedy_tree(count_up, ranked), (), tokens=12, tree=chain(3)).target_passes == 12


def test_a_draft_with_too_few_tokens_for_a_tree_is_refused():
    with pytest.raises(InputError, match="offers 1 different tokens where 2"):
        speculate(greedy_tree(count_up, lambda *_: (1, 1)), (), tokens=1, tree=DraftTree.branching((2,)))


class Player:
    """Chance that follows a script of choices and notes the others that it could have taken."""

    def __init__(self, script):
        self.script, self.place, self.chance, self.others = list(script), 0, Fraction(1), []

    def __call__(self, weights):
        assert sum(weights) == 1
        if self.place == len(self.script):
            first, *others = [pick for pick, weight in enumerate(weights) if weight]
            self.others += [(*self.script, other) for other in others]
            self.script.append(first)
        pick = self.script[self.place]
        self.chance *= weights[pick]
        self.place += 1
        return pick


def outcomes(generate):
    """The exact probability of each result of a function of chance: every sequence of choices is played through."""
    found, pending = Counter(), [()]
    while pending:
        player = Player(pending.pop())
        result = generate(player)
        found[result] += player.chance
        pending += player.others
    return dict(found)


def target_of(context):
    return [Fraction(n, 12) for n in ((6, 4, 2), (1, 3, 8), (0, 12, 0))[sum(context) % 3]]


def draft_of(context):
    return [Fraction(n, 12) for n in ((2, 4, 6), (12, 0, 0), (4, 4, 4))[(sum(context) + len(context)) % 3]]


def target_alone(tokens):
    exact = {(): Fraction(1)}
    for _ in range(tokens):
        exact = {
            (*text, token): chance * share
            for text, chance in exact.items()
            for token, share in enumerate(target_of(text))
            if share
        }
    return exact


SHAPES = {
    "plain": chain(0),
    "chain": chain(2),
    "two ways": DraftTree.branching((2,)),
    "tree": DraftTree(parents=(-1, -1, 0)),
    "more ways than tokens": DraftTree.branching((4,)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_sampled_output_has_exactly_the_targets_distribution(shape):
    found = outcomes(
        lambda choose: speculate(sampled(target_of, draft_of, choose), (), tokens=2, tree=SHAPES[shape]).tokens
    )
    assert sum(found.values()) == 1
    assert found == target_alone(2)


def test_aligned_batches_keep_the_distribution_of_each_sequence():
    def both(choose):
        verify = [sampled(target_of, draft_of, choose), sampled(target_of, lambda _: target_of((1,)), choose)]
        return speculate_batch(verify, [(), (1,)], tokens=1, tree=chain(1), aligned=True).runs

    first, second = Counter(), Counter()
    for runs, chance in outcomes(both).items():
        first[runs[0].tokens] += chance
        second[runs[1].tokens] += chance
    assert dict(first) == target_alone(1)
    assert dict(second) == {(token,): share for token, share in enumerate(target_of((1,))) if share}


def test_without_the_residual_the_distribution_is_another(monkeypatch):
    monkeypatch.setattr("kvcalc.simulate.speculative.verify.residual", lambda p, _: tuple(p))
    found = outcomes(lambda choose: speculate(sampled(target_of, draft_of, choose), (), tokens=2, tree=chain(1)).tokens)
    assert found != target_alone(2)


def exceeded(chi_square):
    """How likely chi-square with 6 degrees of freedom is that large or larger."""
    half_of_it = chi_square / 2
    return math.exp(-half_of_it) * (1 + half_of_it + half_of_it**2 / 2)


# A right simulator fails one seed of 10,000.
FALSE_ALARMS = 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_sampled_frequencies_fit_the_target(seed):
    run = 4000
    verify = sampled(target_of, draft_of, seeded(seed))
    seen = Counter(speculate(verify, (), tokens=2, tree=chain(3)).tokens for _ in range(run))
    expected = {text: run * float(chance) for text, chance in target_alone(2).items()}
    assert set(seen) <= set(expected)
    assert len(expected) == 7
    assert exceeded(sum((seen[text] - count) ** 2 / count for text, count in expected.items())) > FALSE_ALARMS


@pytest.mark.slow
def test_the_chi_square_test_notices_a_wrong_distribution(monkeypatch):
    monkeypatch.setattr("kvcalc.simulate.speculative.verify.residual", lambda p, _: tuple(p))
    with pytest.raises(AssertionError):
        test_sampled_frequencies_fit_the_target(0)


def test_the_residual_of_equal_distributions_is_the_target():
    assert residual((0.5, 0.5), (0.5, 0.5)) == (0.5, 0.5)


def test_distributions_over_other_vocabularies_are_refused():
    with pytest.raises(InputError, match="the target has 3 tokens and the draft 2"):
        speculate(sampled(target_of, lambda _: (1, 0), seeded(0)), (), tokens=1, tree=chain(1))


def test_the_same_seed_gives_the_same_run():
    runs = [speculate(sampled(target_of, draft_of, seeded(7)), (), tokens=50, tree=chain(2)) for _ in range(2)]
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("rates", [(0.8,) * 5, (0.9, 0.6, 0.3), (0.0, 1.0), (1.0,) * 4])
def test_the_mean_of_a_chain_converges_to_the_closed_form(rates):
    run = speculate(by_chance(rates, seeded(1)), (), tokens=20_000, tree=chain(len(rates)))
    exact = 1 + sum(math.prod(rates[: place + 1]) for place in range(len(rates)))
    # five standard errors of a length that lies between 1 and gamma + 1
    assert abs(run.mean_tokens_per_pass - exact) <= 5 * len(rates) / 2 / math.sqrt(run.target_passes)


@pytest.mark.slow
def test_the_mean_of_a_tree_converges_to_the_closed_form():
    tree = DraftTree.branching((3, 2))
    acceptance = tree_acceptance(tree, (0.6, 0.5))
    run = speculate(by_chance(acceptance, seeded(2)), (), tokens=20_000, tree=tree)
    assert abs(run.mean_tokens_per_pass - expected_tokens_of_tree(tree, acceptance)) <= 5 / math.sqrt(run.target_passes)


def test_a_batch_takes_as_many_passes_as_its_worst_sequence():
    verify = [by_chance((rate,) * 3, seeded(rate)) for rate in (1, 0)]
    ragged = speculate_batch(verify, [(), ()], tokens=8, tree=chain(3))
    assert ragged.passes == ((4, 1), (4, 1)) + ((None, 1),) * 6
    assert ragged.target_passes == 8
    assert ragged.mean_tokens_per_pass == 16 / 10
    aligned = speculate_batch(verify, [(), ()], tokens=8, tree=chain(3), aligned=True)
    assert aligned.passes == ((1, 1),) * 8


def test_a_batch_gives_each_sequence_what_it_would_get_alone():
    drafts = (count_up, half, never)
    together = speculate_batch([greedy(count_up, d) for d in drafts], [(), (1,), ()], tokens=9, tree=chain(2))
    alone = [
        speculate(greedy(count_up, draft), prompt, tokens=9, tree=chain(2))
        for draft, prompt in zip(drafts, [(), (1,), ()], strict=True)
    ]
    assert list(together.runs) == alone
    aligned = speculate_batch(
        [greedy(count_up, d) for d in drafts], [(), (1,), ()], tokens=9, tree=chain(2), aligned=True
    )
    assert [run.tokens for run in aligned.runs] == [run.tokens for run in alone]


def test_nothing_to_generate_takes_no_pass():
    assert speculate_batch([], [], tokens=5, tree=chain(2)).target_passes == 0
    assert speculate(greedy(never, never), (), tokens=0, tree=chain(2)).mean_tokens_per_pass == 0


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda: chain(-1), "gamma must be 0 or more, not -1"),
        (lambda: speculate(greedy(never, never), (), tokens=-1, tree=chain(1)), "from 0 to 1,000,000, not -1"),
        (lambda: by_chance((1.2,), seeded(0)), "a probability from 0 to 1"),
        (lambda: speculate(by_chance((0.5,), seeded(0)), (), tokens=1, tree=chain(2)), "given for 1 nodes of 2"),
        (
            lambda: speculate(by_chance((0.6, 0.6), seeded(0)), (), tokens=1, tree=DraftTree.branching((2,))),
            "siblings are accepted with 1.2 in all",
        ),
        (lambda: speculate_batch([], [()], tokens=1, tree=chain(1)), "0 ways to verify for 1 prompts"),
        (lambda: residual((0.5, 0.5), (1.0,)), "the target has 2 tokens and the draft 1"),
        (lambda: residual((0.5, 0.5), (0.5, 0.4)), "probabilities of the draft"),
        (lambda: residual((-1, 2), (0.5, 0.5)), "probabilities of the target"),
        (
            lambda: speculate(sampled(lambda _: (0, 0), lambda _: (1, 0), seeded(0)), (), tokens=1, tree=chain(1)),
            "probabilities of the target",
        ),
        (lambda: DraftTree(parents=(0,)), "node 0 of a draft tree follows 0"),
        (lambda: DraftTree.branching((0,)), "has 0 children a node"),
        (lambda: DraftTree.branching((99, 99)), "more than 1,024 nodes"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(ask, words):
    with pytest.raises(InputError, match=words):
        ask()
