"""Laws of speculative decoding, over random functions, drafts and trees."""

import math

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.speculation import DraftTree, chain
from kvcalc.simulate.speculative import decode, greedy, greedy_tree, speculate, speculate_batch

VOCABULARY = 4


@st.composite
def functions(draw):
    """A next-token function: any table over the last two tokens and the length."""
    table = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=64, max_size=64))
    return lambda context: table[(16 * len(context) + sum(4**place * t for place, t in enumerate(context[-2:]))) % 64]


@st.composite
def trees(draw):
    """A draft tree of up to eight nodes in which no node has more children than there are tokens."""
    parents = []
    for node in range(draw(st.integers(0, 8))):
        open_ones = [place for place in range(-1, node) if parents.count(place) < VOCABULARY]
        parents.append(draw(st.sampled_from(open_ones)))
    return DraftTree(parents=tuple(parents))


@given(functions(), functions(), st.lists(st.integers(0, 3), max_size=4), st.integers(0, 20), st.integers(0, 5))
def test_greedy_speculation_generates_what_the_target_would(target, draft, prompt, tokens, gamma):
    run = speculate(greedy(target, draft), prompt, tokens=tokens, tree=chain(gamma))
    assert run.tokens == decode(target, prompt, tokens=tokens)
    assert math.ceil(tokens / (gamma + 1)) <= run.target_passes <= tokens
    assert all(found.ending == "correction" for found in run.rounds if len(found.accepted) < gamma)


@given(functions(), functions(), trees(), st.integers(0, 12), st.booleans())
def test_a_tree_and_an_aligned_batch_generate_what_the_target_would(target, draft, tree, tokens, aligned):
    def ranked(context, wanted):
        return [(draft(context) + place) % VOCABULARY for place in range(wanted)]

    batch = speculate_batch([greedy_tree(target, ranked)] * 2, [(), (1,)], tokens=tokens, tree=tree, aligned=aligned)
    assert [run.tokens for run in batch.runs] == [decode(target, prompt, tokens=tokens) for prompt in ((), (1,))]
    assert math.ceil(tokens / (len(tree.level_widths) + 1)) <= batch.target_passes
