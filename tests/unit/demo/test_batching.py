"""Batching: places kept for a batch, and given on."""

import pytest

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.demo.batching import demo_batching


@pytest.mark.parametrize(("places", "requests"), [(1, 5), (4, 16), (3, 80), (32, 10)])
def test_every_piece_is_made_once_by_both_ways(places, requests):
    report = demo_batching(places=places, requests=requests)
    for way in ("static", "continuous"):
        made = [request for step in report.steps for request in getattr(step, way) if request >= 0]
        assert [made.count(request) for request in range(requests)] == list(report.pieces)
    assert report.speedup == report.static.steps / report.continuous.steps >= 1
    assert report.continuous.useful_share == pytest.approx(sum(report.pieces) / (report.continuous.steps * places))


def test_a_fixed_batch_takes_its_longest_answer_and_a_place_given_on_never_idles_while_some_wait():
    report = demo_batching(places=4, requests=16)
    batches = [report.pieces[first : first + 4] for first in range(0, 16, 4)]
    assert report.static.steps == sum(map(max, batches))
    begun = 0
    for step in report.steps[: report.continuous.steps]:
        begun = max(begun, *(request + 1 for request in step.continuous))
        assert begun == 16 or -1 not in step.continuous


def test_one_place_leaves_nothing_to_gain():
    assert demo_batching(places=1, requests=7).speedup == 1


def test_it_is_the_same_from_the_api_and_refuses_what_cannot_be():
    assert api.demo_batching() == demo_batching(places=4, requests=16)
    for wrong in ({"places": 0}, {"requests": 0}, {"requests": 81}, {"places": 33}):
        with pytest.raises(InputError):
            demo_batching(**wrong)
