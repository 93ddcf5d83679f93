"""The speculation demonstration: whatever the draft, the output is the target's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kvcalc


def test_the_passes_change_and_the_output_does_not():
    report = kvcalc.demo_speculate(output_tokens=20, gamma=4)
    perfect, half, poor = report.drafts
    assert perfect.target_passes == 4
    assert perfect.mean_tokens_per_pass == 5
    assert perfect.target_passes < half.target_passes < poor.target_passes <= 20
    assert all(draft.same_output for draft in report.drafts)


@given(
    st.integers(1, 24), st.integers(0, 6), st.integers(0, 5), st.lists(st.floats(0, 1), min_size=1, max_size=3, unique=True)
)  # fmt: skip
def test_rounds_add_up(tokens, gamma, seed, qualities):
    report = kvcalc.demo_speculate(output_tokens=tokens, gamma=gamma, seed=seed, qualities=qualities)
    assert len(report.output) == tokens
    for draft in report.drafts:
        rounds = [step for step in report.steps if step.draft == draft.name]
        assert draft.same_output
        assert sum((step.emitted for step in rounds), ()) == report.output
        assert len(rounds) == draft.target_passes
        for step in rounds:
            assert len(step.accepted) <= len(step.drafted) == gamma
            if gamma:
                assert step.ending == ("bonus" if step.accepted == step.drafted else "correction")


def test_nothing_drafted_is_a_pass_a_token():
    report = kvcalc.demo_speculate(output_tokens=7, gamma=0)
    assert {draft.target_passes for draft in report.drafts} == {7}


def test_a_draft_that_is_never_right_is_corrected_each_time():
    report = kvcalc.demo_speculate(output_tokens=9, gamma=3, qualities=[0])
    assert report.drafts[0].target_passes == 9
    assert report.drafts[0].accepted_tokens == 0
    assert {step.ending for step in report.steps} == {"correction"}


@pytest.mark.parametrize(
    "asked",
    [{"output_tokens": 0}, {"prompt_tokens": 0}, {"gamma": -1}, {"gamma": 99}, {"qualities": [1.5]}, {"seed": -1}],
)
def test_what_makes_no_sense_is_refused(asked):
    with pytest.raises(kvcalc.InputError):
        kvcalc.demo_speculate(**asked)
