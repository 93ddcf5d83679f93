"""Drift: errors grow where a generator feeds on its own states, and a consistency loss shrinks them."""

import numpy as np
import pytest

import kvcalc
from kvcalc import api
from kvcalc.demo import drift

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def report():
    return kvcalc.demo_drift()


def test_free_running_errors_grow_and_teacher_forced_ones_do_not(report):
    first, last = report.steps[19], report.steps[-1]
    assert last.free_running_error > 3 * first.free_running_error
    assert last.teacher_forced_error < 2 * first.teacher_forced_error
    assert last.free_running_error > 5 * last.teacher_forced_error


def test_both_ways_to_measure_agree_on_the_first_step(report):
    first = report.steps[0]
    assert first.free_running_error == pytest.approx(first.teacher_forced_error)
    assert first.free_running_error_consistent == pytest.approx(first.teacher_forced_error_consistent)


def test_the_consistency_loss_shrinks_the_drift(report):
    assert report.final_error == report.steps[-1].free_running_error
    assert report.reduction == pytest.approx(report.final_error / report.final_error_consistent)
    assert report.reduction > 2


def test_it_does_so_from_another_seed_too():
    assert kvcalc.demo_drift(seed=1, trainings=2).reduction > 1.5


def test_the_same_seed_gives_the_same_numbers():
    one, again, other = (kvcalc.demo_drift(steps=5, trainings=1, seed=seed) for seed in (3, 3, 4))
    assert one == again
    assert one.steps != other.steps


def test_the_truth_is_a_cycle_of_radius_one():
    states = drift.trajectories(5, 60, seed=0)
    radius = np.sqrt((states**2).sum(axis=-1))
    assert radius[:, -1] == pytest.approx(1, abs=1e-4)
    angles = np.unwrap(np.arctan2(states[..., 1], states[..., 0]))
    assert np.diff(angles) == pytest.approx(0.3)


@pytest.mark.parametrize("consistency", [0.0, 0.7])
def test_the_gradient_is_that_of_the_loss(consistency):
    random = np.random.default_rng(0)
    weights = [random.normal(size=shape) for shape in ((2, 16), (16,), (16, 2), (2,))]
    window = random.normal(size=(3, 4, 2))

    def loss():
        state, total = window[:, 0], 0.0
        for step in range(3 if consistency else 1):
            state, _ = drift.next_states(weights, state)
            total += (consistency if step else 1) * ((state - window[:, step + 1]) ** 2).sum() / len(window)
        return total

    slopes = drift._gradient(weights, window, consistency)  # noqa: SLF001  its own test
    for array, slope in zip(weights, slopes, strict=True):
        place = tuple(size // 2 for size in array.shape)
        step = 1e-6
        array[place] += step
        above = loss()
        array[place] -= 2 * step
        below = loss()
        array[place] += step
        assert slope[place] == pytest.approx((above - below) / (2 * step), rel=1e-5)


@pytest.mark.parametrize(
    "asked", [{"steps": 0}, {"steps": 10**6}, {"horizon_steps": 1}, {"horizon_steps": 99}, {"trainings": 0},
              {"consistency": 0}, {"seed": -1}, {"consistency": -1.0}, {"consistency": float("nan")}]
)  # fmt: skip
def test_what_cannot_be_trained_is_refused(asked):
    with pytest.raises(kvcalc.InputError):
        kvcalc.demo_drift(**asked)


def test_the_numbers_of_a_seed_stay_what_they_are():
    """Everything of the training is in them: the truth, the noise, the weights, the loss, its gradient and the steps taken."""
    report = api.demo_drift(steps=6, horizon_steps=3, trainings=1, seed=0)
    forced, free, consistent = zip(
        *(
            (step.teacher_forced_error, step.free_running_error, step.free_running_error_consistent)
            for step in report.steps
        ),
        strict=True,
    )
    assert forced == pytest.approx(
        [0.0854822974, 0.0682220059, 0.0552067124, 0.0473434035, 0.0412940121, 0.0348127943], rel=1e-6
    )
    assert free == pytest.approx(
        [0.0854822974, 0.1117122277, 0.1187028547, 0.1161692957, 0.1084739373, 0.0978238573], rel=1e-6
    )
    assert consistent == pytest.approx(
        [0.0530039817, 0.0744782702, 0.0847511751, 0.0881484597, 0.0863233534, 0.0810095431], rel=1e-6
    )
    assert report.reduction == pytest.approx(free[-1] / consistent[-1])
