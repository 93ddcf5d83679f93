"""Synthetic load: rates and shapes as asked for, the same for the same seed, and never all at once in memory."""

import math
import random
import statistics
from itertools import islice, pairwise

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Request, Segment
from kvcalc.simulate.workload import (
    Arrivals,
    ClosedLoop,
    Conversations,
    Lengths,
    Talk,
    arrival_times,
    parse_lengths,
    retimed,
    synthetic,
)

MANY = 20_000
PROMPT, OUTPUT = parse_lengths("uniform:5-10", what="prompt"), parse_lengths("20", what="output")


def _gaps(arrivals, seed=0):
    times = list(islice(arrival_times(arrivals, seed=seed, requests=MANY), MANY))
    assert times == sorted(times)
    return [later - earlier for earlier, later in pairwise([0.0, *times])]


# Of n gaps with variation v the mean is within 4 v / sqrt(n) of its expectation but once in 16,000 seeds.
@pytest.mark.parametrize(("process", "variation"), [("constant", 0.0), ("poisson", 1.0), ("gamma", 3.0)])
def test_arrivals_have_the_rate_and_the_variation_asked_for(process, variation):
    gaps = _gaps(Arrivals(process=process, rate_per_s=5.0, variation=variation or 1.0))
    mean = statistics.fmean(gaps)
    assert mean == pytest.approx(0.2, rel=4 * variation / MANY**0.5 + 1e-9)
    assert statistics.pstdev(gaps) / mean == pytest.approx(variation, rel=0.1, abs=1e-9)


def test_a_ramp_grows_from_one_rate_to_the_other():
    gaps = _gaps(Arrivals(process="ramp", rate_per_s=2.0, last_rate_per_s=10.0))
    assert 500 / sum(gaps[:500]) == pytest.approx(2.0, rel=0.25)
    assert 500 / sum(gaps[-500:]) == pytest.approx(10.0, rel=0.2)
    assert MANY / sum(gaps) == pytest.approx(6.0, rel=0.03)


def test_a_seed_decides_everything_and_each_question_apart():
    poisson = Arrivals(process="poisson", rate_per_s=1.0)
    assert _gaps(poisson, seed=3) == _gaps(poisson, seed=3) != _gaps(poisson, seed=4)
    one, other = (list(islice(synthetic(prompt=PROMPT, output=out, seed=1), 50)) for out in (OUTPUT, PROMPT))
    assert [request.prompt_tokens for request in one] == [request.prompt_tokens for request in other]


def test_the_first_numbers_of_a_seed_stay_what_they_are():
    times = arrival_times(Arrivals(process="poisson", rate_per_s=6.45), seed=0)
    assert list(islice(times, 2)) == pytest.approx([0.013412269096475716, 0.375897965882832], rel=1e-12)


def test_a_million_requests_are_made_one_by_one():
    times = arrival_times(Arrivals(process="poisson", rate_per_s=100.0), seed=0)
    stream = retimed(synthetic(prompt=PROMPT, output=OUTPUT, seed=0), times)
    assert next(stream).name == "1"
    assert next(islice(stream, 999, None)).name == "1001"


@pytest.mark.parametrize(
    ("text", "median", "most"),
    [
        ("512", 512, 512),
        ("uniform:100-300", 200, 300),
        ("exponential:1000", 693, None),
        ("lognormal:500,0.8", 500, None),
    ],
)
def test_lengths_follow_their_distribution(text, median, most):
    drawn = [
        request.prompt_tokens
        for request in islice(synthetic(prompt=parse_lengths(text, what="x"), output=OUTPUT, seed=0), MANY)
    ]
    assert statistics.median(drawn) == pytest.approx(median, rel=0.03)
    assert min(drawn) >= 1
    assert most is None or max(drawn) == most


def test_lengths_have_the_spread_asked_for():
    drawn = [
        request.prompt_tokens
        for request in islice(
            synthetic(prompt=parse_lengths("lognormal:5000,0.8", what="x"), output=OUTPUT, seed=0), MANY
        )
    ]
    assert statistics.pstdev(map(math.log, drawn)) == pytest.approx(0.8, rel=0.03)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "-5",
        "1.5",
        "uniform:5",
        "uniform:9-5",
        "gauss:5",
        "exponential:",
        "lognormal:5",
        "lognormal:5,-1",
        "lognormal:5,99",
        "exponential:0",
    ],
)
def test_lengths_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="prompt"):
        parse_lengths(text, what="prompt")


@pytest.mark.parametrize(
    "options",
    [
        {"process": "poison", "rate_per_s": 1.0},
        {"process": "poisson", "rate_per_s": 0.0},
        {"process": "poisson", "rate_per_s": -1.0},
        {"process": "poisson", "rate_per_s": float("nan")},
        {"process": "constant", "rate_per_s": float("inf")},
        {"process": "gamma", "rate_per_s": 1.0, "variation": 0.0},
        {"process": "ramp", "rate_per_s": 1.0},
        {"process": "poisson", "rate_per_s": 1.0, "last_rate_per_s": 2.0},
        {"process": "ramp", "rate_per_s": 1.0, "last_rate_per_s": -2.0},
    ],
)
def test_arrivals_that_cannot_be_are_refused(options):
    with pytest.raises(InputError):
        Arrivals(**options)


def test_a_closed_loop_asks_again_after_each_answer():
    loop = ClosedLoop(islice(synthetic(prompt=PROMPT, output=OUTPUT, seed=0), 5), users=3, think_s=0.0, seed=0)
    first = list(loop.starts())
    assert [(request.name, request.arrival_s) for request in first] == [("1", 0.0), ("2", 0.0), ("3", 0.0)]
    fourth = loop.follow(first[1], 7.5)
    assert (fourth.name, fourth.arrival_s) == ("4", 7.5)
    assert loop.follow(fourth, 9.0).name == "5"
    assert loop.follow(first[0], 9.0) is None


def test_users_think_for_the_mean_time_asked_for():
    loop = ClosedLoop(synthetic(prompt=PROMPT, output=OUTPUT, seed=0), users=1, think_s=4.0, seed=0)
    (request,) = loop.starts()
    thought = [loop.follow(request, 10.0).arrival_s - 10.0 for _ in range(MANY)]
    assert statistics.fmean(thought) == pytest.approx(4.0, rel=4 / MANY**0.5)


@pytest.mark.parametrize(("users", "think_s"), [(0, 1.0), (1, -1.0), (1, float("inf")), (1, float("nan"))])
def test_a_loop_without_users_or_with_negative_thoughts_is_refused(users, think_s):
    with pytest.raises(InputError):
        ClosedLoop(iter(()), users=users, think_s=think_s, seed=0)


def _talk(turns="3", system=100):
    return Talk(
        turns=parse_lengths(turns, what="turns"), system_tokens=system, prompt=PROMPT, output=OUTPUT, think_s=1.0
    )


def test_a_turn_holds_all_that_was_said_before():
    talk = Conversations([0.0, 1.0], talk=_talk(), requests=99, seed=0)
    first, other = talk.starts()
    assert first.prompt == (Segment(0, 0, 100), Segment(1, 0, first.prompt_tokens - 100))
    assert other.prompt[0] == first.prompt[0]
    second = talk.follow(first, 5.0)
    assert second.arrival_s >= 5.0
    own = second.prompt[1]
    assert (own.stream, own.start) == (first.output_stream, 0)
    assert first.output_start == first.prompt[1].tokens
    assert 5 <= own.tokens - first.prompt[1].tokens - first.output_tokens <= 10
    third = talk.follow(second, 6.0)
    assert third.name == "1.3"
    assert talk.follow(third, 7.0) is None


def test_conversations_do_not_depend_on_the_order_of_answers():
    def lengths(first_served):
        talk = Conversations([0.0, 0.0], talk=_talk(), requests=99, seed=0)
        waiting = list(talk.starts())
        found = {}
        while waiting:
            request = waiting.pop(0 if first_served else -1)
            found[request.name] = (request.prompt_tokens, request.output_tokens)
            follow = talk.follow(request, 1.0)
            waiting += [] if follow is None else [follow]
        return found

    assert lengths(first_served=True) == lengths(first_served=False)


def test_conversations_end_with_the_requests_asked_for():
    talk = Conversations((float(n) for n in range(1000)), talk=_talk(turns="5", system=0), requests=7, seed=0)
    asked = 0
    for start in talk.starts():
        request = start
        while request is not None:
            asked += 1
            request = talk.follow(request, 0.0)
    assert asked == 7


def test_retiming_keeps_everything_else():
    request = Request(name="a", arrival_s=9.0, prompt_tokens=3, output_tokens=4, prompt=(Segment(1, 0, 3),), priority=2)
    (moved,) = retimed([request], iter([1.0, 2.0]))
    assert (moved.arrival_s, moved.prompt, moved.priority) == (1.0, request.prompt, 2)


def test_a_length_is_drawn_from_all_of_its_range():
    numbers = random.Random(0)  # noqa: S311
    assert {Lengths(kind="uniform", first=1, second=3).draw(numbers) for _ in range(100)} == {1, 2, 3}
