"""A round of drafts in a simulated server: which passes the drafter runs, and how many drafts are accepted."""

from dataclasses import replace

import pytest

from kvcalc.core.calibration import Interval
from kvcalc.core.requests import Request
from kvcalc.core.speculation import RoundTerms
from kvcalc.plan.speculative.acceptance import Acceptance
from kvcalc.simulate.drafting import Drafting
from kvcalc.simulate.scheduler import Step
from kvcalc.simulate.sequences import Job
from kvcalc.simulate.timer import ticks


class Timer:
    """Keeps what it is asked; a step takes a tick for each token and a thousand for each token of a chunk's past."""

    caps, periods = (100,), ()

    def __init__(self):
        self.asked = []

    def line(self, tokens, logits, sums, slopes, chunks):
        self.asked.append((tokens, logits, sums, slopes, list(chunks)))
        return tokens + 1000 * sum(past for _, past in chunks), 0, 1, ""


def step_of(*rows):
    """A step of sequences, each with its new tokens, drafts among them, and tokens computed with this step."""
    step, jobs = Step(), []
    for order, (new, drafts, computed) in enumerate(rows):
        job = Job(Request(str(order), 0.0, 500, 500), order=order, content=())
        job.computed = computed
        step.scheduled[job] = new
        if drafts:
            step.drafts[job] = drafts
        jobs.append(job)
    return step, jobs


def drafting(*rates, seed=0, timer=None, constant=False):
    return Drafting(acceptance=Acceptance(rates=rates, constant=constant), timer=timer, seed=seed)


def test_a_pass_for_each_draft_and_new_prompts_are_taken_in_with_the_first():
    """A prompt that ends with one token is no chunk, and a sequence with drafts is none however many these are."""
    timer = Timer()
    step, _ = step_of((4, 3, 83), (3, 2, 202), (50, 0, 80), (2, 0, 2), (1, 0, 40))
    spent = drafting(0.5, timer=timer, constant=True).ticks(step)
    sums = (2, 80 + 200, 80 + 100)
    alone = (2, 2, sums, (0, 0, 0), [])
    whole = (2 + 50 + 2, 2, sums, (0, 0, 0), [(50, 30), (2, 0)])
    assert sorted(timer.asked, key=lambda each: each[0]) == [alone, whole]
    assert spent == (54 + 1000 * 30) + (3 - 1) * 2


def test_the_host_takes_its_time_once_a_round_and_for_each_sequence_with_drafts():
    step, _ = step_of((4, 3, 83), (3, 2, 202), (50, 0, 80))
    own = Interval(low=1, high=1)
    terms = RoundTerms(engine="x", round_s=0.5, sequence_s=0.125, alone=own, batched=own)
    timer = Timer()
    beside = replace(drafting(0.5, timer=timer, constant=True), terms=terms).ticks(step)
    assert beside - drafting(0.5, timer=timer, constant=True).ticks(step) == ticks(0.5 + 2 * 0.125)


def test_drafts_that_cost_nothing_take_no_time():
    step, _ = step_of((4, 3, 83))
    assert drafting(0.5, constant=True).ticks(step) == 0


@pytest.mark.parametrize(
    ("rates", "accepted"), [((1.0, 1.0, 1.0), 3), ((1.0, 1.0, 0.0), 2), ((1.0, 0.0, 1.0), 1), ((0.0, 1.0, 1.0), 0)]
)
def test_a_draft_is_accepted_only_if_all_before_it_were(rates, accepted):
    step, (first, second) = step_of((4, 3, 83), (3, 2, 50))
    assert drafting(*rates).accepted(step) == {first: accepted, second: min(accepted, 2)}


def test_each_request_draws_on_its_own_and_a_seed_gives_the_same_again():
    rows = [(5, 4, 83)] * 64

    def drawn(seed):
        step, _ = step_of(*rows)
        return list(drafting(0.5, constant=True, seed=seed).accepted(step).values())

    assert drawn(1) == drawn(1) != drawn(2)
    assert set(drawn(1)) == {0, 1, 2, 3, 4}
    # half of all stop at the first draft, a quarter at the second
    assert drawn(1).count(0) == pytest.approx(32, abs=12)
