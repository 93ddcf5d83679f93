"""A small generator that feeds on its own states, and how far it drifts.

The truth is a point that turns at a constant rate while its distance from the centre returns to 1: a cycle that a
generator can follow for ever if it is good enough. The generator, one hidden layer of tanh, learns from noisy
observations. It is measured *teacher-forced*, each step from the true state, and *free-running*, each from its own.
Trained on single steps alone, its errors add up. A consistency loss lets it run on its own states for a few steps in
training, and asks these to agree with the data too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.lessons import DriftReport, DriftStep
from kvcalc.simulate.attention import MOST_SEED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    # [2, width], [width], [width, 2], [2]: the next state is tanh(state @ a + b) @ c + d.
    Weights = list[Array]

__all__ = ["drift_report", "next_states", "rollout", "train", "trajectories"]

_SEQUENCES, _LENGTH, _TESTS = 1024, 30, 64
_WIDTH, _BATCH, _ROUNDS, _RATE = 16, 64, 1000, 2e-2
_KEEP, _KEEP_SQUARE = 0.9, 0.999
_TURN, _PULL, _NOISE = 0.3, 0.1, 0.1
_MOST_STEPS, _MOST_HORIZON, _MOST_TRAININGS = 500, 24, 20
_LEAST_WEIGHT, _MOST_WEIGHT = 1e-3, 100.0


def trajectories(count: int, steps: int, *, seed: int) -> Array:
    """Return true states, [count, steps + 1, 2], from random starts."""
    random = np.random.default_rng(seed)
    angle, radius = random.uniform(0, 2 * np.pi, count), random.uniform(0.5, 1.5, count)
    states = []
    for _ in range(steps + 1):
        states.append(np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1))
        angle, radius = angle + _TURN, radius + _PULL * radius * (1 - radius**2)
    return np.stack(states, axis=1)


def next_states(weights: Weights, states: Array) -> tuple[Array, Array]:
    """Return the states that follow, [n, 2], and the hidden layer, [n, width]."""
    inner, shift, outer, offset = weights
    hidden = np.tanh(states @ inner + shift)
    return hidden @ outer + offset, hidden


def rollout(weights: Weights, starts: Array, steps: int) -> Array:
    """Return what the generator makes of its own states, [n, steps, 2]."""
    made = [starts]
    for _ in range(steps):
        made.append(next_states(weights, made[-1])[0])
    return np.stack(made[1:], axis=1)


def train(observed: Array, *, consistency: float, horizon: int, seed: int) -> Weights:
    """Return a generator trained on observed sequences, [n, T, 2], by Adam (Kingma and Ba 2014, arXiv 1412.6980).

    Args:
        observed: the sequences.
        consistency: weight of the squared errors of steps 2 … horizon, each made from the generator's own states; 0
            trains on single steps alone.
        horizon: steps it runs on its own in training.
        seed: of the first weights and of the order of examples.
    """
    random = np.random.default_rng(seed)
    weights = [
        random.normal(scale=2**-0.5, size=(2, _WIDTH)),
        np.zeros(_WIDTH),
        random.normal(scale=0.1 * _WIDTH**-0.5, size=(_WIDTH, 2)),
        np.zeros(2),
    ]
    means, squares = ([np.zeros_like(array) for array in weights] for _ in range(2))
    for turn in range(_ROUNDS):
        rows = random.integers(len(observed), size=_BATCH)
        starts = random.integers(observed.shape[1] - horizon, size=_BATCH)
        window = observed[rows[:, None], starts[:, None] + np.arange(horizon + 1)]
        rate = _RATE * (1 - turn / _ROUNDS)
        for place, slope in enumerate(_gradient(weights, window, consistency)):
            means[place] = _KEEP * means[place] + (1 - _KEEP) * slope
            squares[place] = _KEEP_SQUARE * squares[place] + (1 - _KEEP_SQUARE) * slope**2
            mean = means[place] / (1 - _KEEP ** (turn + 1))
            square = squares[place] / (1 - _KEEP_SQUARE ** (turn + 1))
            weights[place] = weights[place] - rate * mean / (np.sqrt(square) + 1e-8)
    return weights


def _gradient(weights: Weights, window: Array, consistency: float) -> Weights:
    """Return the slope of the loss, through all steps that the generator ran on its own."""
    steps = window.shape[1] - 1 if consistency else 1
    states, layers = [window[:, 0]], []
    for _ in range(steps):
        made, hidden = next_states(weights, states[-1])
        states.append(made)
        layers.append(hidden)
    inner, _, outer, _ = weights
    slopes = [np.zeros_like(array) for array in weights]
    back = np.zeros_like(window[:, 0])
    for step in reversed(range(steps)):
        share = (consistency if step else 1.0) * 2 / len(window)
        back = back + share * (states[step + 1] - window[:, step + 1])
        slopes[2] += layers[step].T @ back
        slopes[3] += back.sum(axis=0)
        below = (back @ outer.T) * (1 - layers[step] ** 2)
        slopes[0] += states[step].T @ below
        slopes[1] += below.sum(axis=0)
        back = below @ inner.T
    return slopes


def drift_report(
    *, steps: int = 100, horizon: int = 8, consistency: float = 1.0, trainings: int = 3, seed: int = 0
) -> DriftReport:
    """Train the generator without and with a consistency loss and measure both on sequences they have not seen.

    Args:
        steps: steps that it runs free.
        horizon: steps that it runs on its own states in training.
        consistency: weight of the consistency loss.
        trainings: trainings from different first weights and data; errors are means over them.
        seed: of all that is random.

    Raises:
        InputError: sizes below one or above what a demonstration should take.
    """
    check_between("steps", steps, 1, _MOST_STEPS)
    check_between("horizon", horizon, 2, _MOST_HORIZON)
    check_between("trainings", trainings, 1, _MOST_TRAININGS)
    check_between("the weight of the consistency loss", consistency, _LEAST_WEIGHT, _MOST_WEIGHT)
    check_between("seed", seed, 0, MOST_SEED)
    runs = [_measured(steps, horizon, consistency, 1 + trainings * seed + run) for run in range(trainings)]
    forced, free, kept_forced, kept_free = (np.mean([run[kind] for run in runs], axis=0) for kind in range(4))
    return DriftReport(
        horizon_steps=horizon,
        consistency=consistency,
        trainings=trainings,
        seed=seed,
        noise=_NOISE,
        final_error=float(free[-1]),
        final_error_consistent=float(kept_free[-1]),
        reduction=float(free[-1] / kept_free[-1]),
        steps=tuple(
            DriftStep(
                place=place + 1,
                teacher_forced_error=float(forced[place]),
                free_running_error=float(free[place]),
                teacher_forced_error_consistent=float(kept_forced[place]),
                free_running_error_consistent=float(kept_free[place]),
            )
            for place in range(steps)
        ),
    )


def _measured(steps: int, horizon: int, consistency: float, seed: int) -> list[Array]:
    """Return errors by step, teacher-forced and free-running, without and with the consistency loss."""
    clean = trajectories(_SEQUENCES, _LENGTH, seed=seed)
    observed = clean + np.random.default_rng([seed, 1]).normal(scale=_NOISE, size=clean.shape)
    truth = trajectories(_TESTS, steps, seed=-seed % 2**32)
    errors = []
    for weight in (0.0, consistency):
        weights = train(observed, consistency=weight, horizon=horizon, seed=seed)
        forced = next_states(weights, truth[:, :-1])[0]
        errors += [_errors(made, truth) for made in (forced, rollout(weights, truth[:, 0], steps))]
    return errors


def _errors(made: Array, truth: Array) -> Array:
    """Root of the mean squared distance at each step."""
    return np.asarray(np.sqrt(((made - truth[:, 1:]) ** 2).sum(axis=-1).mean(axis=0)))
