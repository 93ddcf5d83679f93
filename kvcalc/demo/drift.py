"""A small generator that feeds on its own states, and how far it drifts.

The truth is a point that turns at a constant rate while its distance from the centre returns to 1: a cycle that a
generator can follow for ever if it is good enough. The generator, one hidden layer of tanh, learns from noisy
observations. It is measured *teacher-forced*, each step from the true state, and *free-running*, each from its own.
Trained on single steps alone, its errors add up. A consistency loss lets it run on its own states for a few steps in
training, and asks these to agree with the data too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvcalc.core.ranges import check_between
from kvcalc.core.reports.common import Report
from kvcalc.demo.decoder import MAX_SEED
from kvcalc.render.charts import Axis, chart, line_layer
from kvcalc.render.layout import Text
from kvcalc.render.tables import grid, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

    Array = NDArray[np.float64]
    # [2, width], [1, width], [width, 2], [1, 2], behind an axis of trainings; next: tanh(state @ a + b) @ c + d.
    Weights = list[Array]

__all__ = ["DriftReport", "DriftStep", "demo_drift", "next_states", "rollout", "train", "trajectories"]

_SEQUENCES, _LENGTH, _TESTS = 1024, 30, 64
_WIDTH, _BATCH, _ROUNDS, _RATE = 16, 64, 1000, 2e-2
_KEEP, _KEEP_SQUARE = 0.9, 0.999
_TURN, _PULL, _NOISE = 0.3, 0.1, 0.1
_MAX_STEPS, _MAX_HORIZON, _MAX_TRAININGS = 500, 24, 20
_MIN_WEIGHT, _MAX_WEIGHT = 1e-3, 100.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStep:
    """Distance from the truth at one step, by root mean square; the states lie on a circle of radius 1.

    Args:
        place: steps since the last true state, for the free-running generator.
        teacher_forced_error: each step from the true state before it.
        free_running_error: each step from the generator's own.
        teacher_forced_error_consistent: the same, trained with the consistency loss.
        free_running_error_consistent: the same, trained with the consistency loss.
    """

    place: int
    teacher_forced_error: float
    free_running_error: float
    teacher_forced_error_consistent: float
    free_running_error_consistent: float

    @property
    def errors(self) -> tuple[float, float, float, float]:
        """The four errors, in the order of the fields."""
        return (
            self.teacher_forced_error,
            self.free_running_error,
            self.teacher_forced_error_consistent,
            self.free_running_error_consistent,
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class DriftReport(Report):
    """A generator that feeds on its own states, trained on single steps and with a consistency loss.

    Args:
        horizon_steps: steps that it runs on its own states in training.
        consistency: weight of the consistency loss.
        trainings: trainings that errors are means over.
        seed: of all that is random.
        noise: standard deviation of the noise on what it learns from.
        final_error: free-running error at the last step, trained on single steps.
        final_error_consistent: the same with the consistency loss.
        reduction: the first over the second.
        steps: the errors of each step.
    """

    listed: ClassVar[str] = "steps"
    schema: str = "kvcalc.demo_drift/1"
    horizon_steps: int
    consistency: float
    trainings: int
    seed: int
    noise: float
    final_error: float
    final_error_consistent: float
    reduction: float
    steps: tuple[DriftStep, ...] = ()

    def parts(self) -> list[Part]:
        """Return the errors at a few steps."""
        last = len(self.steps)
        rows = [
            [str(step.place), *(f"{error:.3f}" for error in step.errors)]
            for step in self.steps
            if step.place in {1, 10, last // 2, last}
        ]
        columns = ["step", "teacher-forced", "free-running", "consistent, forced", "consistent, free"]
        title = "Drift: distance from a cycle of radius 1, for a generator that feeds on its own states"
        nearer = self.reduction >= 1
        times = f"{self.reduction:.1f} times nearer" if nearer else f"{1 / self.reduction:.1f} times farther off"
        over = f"Means over {self.trainings} trainings" if self.trainings > 1 else "One training"
        summary = (
            f"Trained on single steps its errors add up. Let run on its own for {self.horizon_steps} steps in training"
            f" (consistency loss, weight {self.consistency:g}), it is {times} after"
            f" {last} steps: {self.final_error_consistent:.3f} instead of {self.final_error:.3f}."
            f" {over}; noise {self.noise:g}."
        )
        if not nearer:
            summary += "\nThe loss does not help in every training: more --trainings show what it does on average."
        return [heading(title), grid(columns, rows, left=0), Text(), Text(summary)]

    def step_lines(self) -> list[list[str]]:
        """Return a line for each step."""
        return [
            [
                f"step {step.place}: teacher-forced {step.teacher_forced_error:.3f}",
                f"  free-running {step.free_running_error:.3f}, consistent {step.free_running_error_consistent:.3f}",
            ]
            for step in self.steps
        ]

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return the errors over steps."""
        steps = self.steps
        lines = {
            "teacher-forced": [(step.place, step.teacher_forced_error) for step in steps],
            "free-running": [(step.place, step.free_running_error) for step in steps],
            "free-running, consistency loss": [(step.place, step.free_running_error_consistent) for step in steps],
        }
        return line_chart(lines, x="steps", y="distance", width=width, plain=plain)

    def spec(self) -> Spec:
        """Return teacher-forced and free-running errors, without and with the consistency loss."""
        generators = ("teacher-forced", "free-running", "teacher-forced, consistency loss",
                      "free-running, consistency loss")  # fmt: skip
        rows = [
            {"step": step.place, "error": error, "generator": generator}
            for step in self.steps
            for generator, error in zip(generators, step.errors, strict=True)
        ]
        lines = line_layer(
            rows,
            x=Axis(field="step", title="steps since the last true state", whole=True),
            y=Axis(field="error", title="distance from the truth (the cycle has radius 1)", format="~g"),
            series="generator",
            title="generator",
            points=False,
        )
        subtitle = [
            f"means over {self.trainings} trainings; consistency loss over {self.horizon_steps} steps",
            "source: kvcalc, a generator of one hidden layer on a noisy cycle",
        ]
        return chart([lines], title="Drift of a generator that feeds on its own states", subtitle=subtitle)


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
    """Return the states that follow, [..., n, 2], and the hidden layer, [..., n, width]."""
    inner, shift, outer, offset = weights
    hidden = np.tanh(states @ inner + shift)
    return hidden @ outer + offset, hidden


def rollout(weights: Weights, starts: Array, steps: int) -> Array:
    """Return the states that each generator makes from its own, [trainings, n, steps, 2]."""
    made = [starts]
    for _ in range(steps):
        made.append(next_states(weights, made[-1])[0])
    return np.stack(made[1:], axis=-2)


def train(observed: Array, *, consistency: float, horizon: int, seeds: Sequence[int]) -> Weights:
    """Train generators side by side, each on sequences of its own, by Adam (Kingma and Ba 2014, arXiv 1412.6980).

    Args:
        observed: the sequences, [trainings, n, T, 2].
        consistency: weight of the squared errors of steps 2 … horizon, each made from the generator's own states; 0
            trains on single steps alone.
        horizon: steps it runs on its own in training.
        seeds: of each training's first weights and order of examples.

    Returns:
        Their weights, [trainings, ...] each.
    """
    randoms = [np.random.default_rng(seed) for seed in seeds]
    shapes = (2, _WIDTH), (1, _WIDTH), (_WIDTH, 2), (1, 2)
    first = [[random.normal(scale=2**-0.5, size=shapes[0]), np.zeros(shapes[1]),
              random.normal(scale=0.1 * _WIDTH**-0.5, size=shapes[2]), np.zeros(shapes[3])]
             for random in randoms]  # fmt: skip
    # All in one row a training, [trainings, parameters]: Adam treats each number alike.
    ends = np.cumsum([height * width for height, width in shapes])
    row = np.stack([np.concatenate([array.ravel() for array in arrays]) for arrays in first])
    mean, square = np.zeros_like(row), np.zeros_like(row)
    each = np.arange(len(seeds))[:, None, None]
    for turn in range(_ROUNDS):
        drawn = [(random.integers(observed.shape[1], size=_BATCH),
                  random.integers(observed.shape[2] - horizon, size=_BATCH)) for random in randoms]  # fmt: skip
        sequences, starts = (np.stack(part)[:, :, None] for part in zip(*drawn, strict=True))
        window = observed[each, sequences, starts + np.arange(horizon + 1)]
        weights = _arrays(row, ends, shapes)
        slope = np.concatenate([part.reshape(len(seeds), -1) for part in _gradient(weights, window, consistency)], 1)
        mean = _KEEP * mean + (1 - _KEEP) * slope
        square = _KEEP_SQUARE * square + (1 - _KEEP_SQUARE) * slope**2
        rate = _RATE * (1 - turn / _ROUNDS) / (1 - _KEEP ** (turn + 1))
        row = row - rate * mean / (np.sqrt(square / (1 - _KEEP_SQUARE ** (turn + 1))) + 1e-8)
    return _arrays(row, ends, shapes)


def _arrays(row: Array, ends: NDArray[np.int64], shapes: Sequence[tuple[int, int]]) -> Weights:
    """Split rows of parameters, [trainings, parameters], into weights."""
    parts = np.split(row, ends[:-1], axis=1)
    return [part.reshape(-1, *shape) for part, shape in zip(parts, shapes, strict=True)]


def _gradient(weights: Weights, window: Array, consistency: float) -> Weights:
    """Return the slope of the loss on windows, [..., n, T, 2], through all steps that the generator ran on its own."""
    steps = window.shape[-2] - 1 if consistency else 1
    states, layers = [window[..., 0, :]], []
    for _ in range(steps):
        made, hidden = next_states(weights, states[-1])
        states.append(made)
        layers.append(hidden)
    inner, _, outer, _ = (array.swapaxes(-1, -2) if array.ndim > 1 else array for array in weights)
    backs, belows = [], []
    back = np.zeros_like(states[0])
    for step in reversed(range(steps)):
        share = (consistency if step else 1.0) * 2 / window.shape[-3]
        back = back + share * (states[step + 1] - window[..., step + 1, :])
        below = (back @ outer) * (1 - layers[step] ** 2)
        backs.append(back)
        belows.append(below)
        back = below @ inner
    # Steps and examples alike are rows that a slope is a sum over.
    state, layer, back, below = (np.concatenate(rows, axis=-2)
                                 for rows in (states[-2::-1], layers[::-1], backs, belows))  # fmt: skip
    slopes = (state.swapaxes(-1, -2) @ below, below.sum(axis=-2), layer.swapaxes(-1, -2) @ back, back.sum(axis=-2))
    return [slope.reshape(array.shape) for slope, array in zip(slopes, weights, strict=True)]


def demo_drift(
    *, steps: int = 100, horizon_steps: int = 8, consistency: float = 1.0, trainings: int = 3, seed: int = 0
) -> DriftReport:
    """Train a small generator without and with a consistency loss, and let it feed on its own states.

    Args:
        steps: steps that it runs free, on sequences that it has not seen.
        horizon_steps: steps that the consistency loss lets it run in training.
        consistency: weight of that loss.
        trainings: trainings from different first weights and data, that errors are means over.
        seed: of all that is random.

    Raises:
        InputError: sizes below one or above what a demonstration takes.
    """
    check_between("steps", steps, 1, _MAX_STEPS)
    check_between("horizon", horizon_steps, 2, _MAX_HORIZON)
    check_between("trainings", trainings, 1, _MAX_TRAININGS)
    check_between("the weight of the consistency loss", consistency, _MIN_WEIGHT, _MAX_WEIGHT)
    check_between("seed", seed, 0, MAX_SEED)
    seeds = [1 + trainings * seed + run for run in range(trainings)]
    forced, free, kept_forced, kept_free = _measured(steps, horizon_steps, consistency, seeds)
    return DriftReport(
        horizon_steps=horizon_steps,
        consistency=consistency,
        trainings=trainings,
        seed=seed,
        noise=_NOISE,
        final_error=float(free[-1]),
        final_error_consistent=float(kept_free[-1]),
        reduction=float(free[-1] / kept_free[-1]),
        steps=tuple(
            DriftStep(
                place=step + 1,
                teacher_forced_error=float(forced[step]),
                free_running_error=float(free[step]),
                teacher_forced_error_consistent=float(kept_forced[step]),
                free_running_error_consistent=float(kept_free[step]),
            )
            for step in range(steps)
        ),
    )


def _measured(steps: int, horizon: int, consistency: float, seeds: Sequence[int]) -> list[Array]:
    """Return mean errors by step, teacher-forced and free-running, without and with the consistency loss."""
    clean = np.stack([trajectories(_SEQUENCES, _LENGTH, seed=seed) for seed in seeds])
    noise = [np.random.default_rng([seed, 1]).normal(scale=_NOISE, size=clean.shape[1:]) for seed in seeds]
    observed = clean + np.stack(noise)
    truth = np.stack([trajectories(_TESTS, steps, seed=-seed % 2**32) for seed in seeds])
    errors = []
    for weight in (0.0, consistency):
        weights = train(observed, consistency=weight, horizon=horizon, seeds=seeds)
        forced = next_states(weights, truth[:, :, :-1].reshape(len(seeds), -1, 2))[0].reshape(len(seeds), -1, steps, 2)
        errors += [_errors(made, truth) for made in (forced, rollout(weights, truth[:, :, 0], steps))]
    return errors


def _errors(made: Array, truth: Array) -> Array:
    """Root of the mean squared distance at each step, mean over the trainings."""
    return np.asarray(np.sqrt(((made - truth[:, :, 1:]) ** 2).sum(axis=-1).mean(axis=1)).mean(axis=0))
