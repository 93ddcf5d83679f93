"""Questions over grids: calculators and simulations for every combination of what is varied."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.sources import load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.plan.sweep import Grid

__all__ = ["SWEPT", "Sweep", "sweep", "sweep_columns"]

# The axes that each report's tasks run through by themselves; every other axis makes a task of each value.
SWEPT: dict[str, tuple[str, ...]] = {
    "decode": ("context", "batch"),
    "prefill": ("prompt", "batch"),
    "size": ("context", "batch"),
    "fit": ("context", "batch"),
    "speculate": ("context", "batch"),
    "simulate": (),
}
Columns = dict[str, list[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A report over a grid.

    Args:
        report: a key of `SWEPT`.
        axes: what is varied, by name, the last one fastest: ``model``, ``gpu`` and other arguments of
            `kvcalc.deployment`; ``batch`` and ``context`` or ``prompt``; for ``speculate`` also ``draft``, ``method``,
            ``gamma`` and ``acceptance``, ``accepted_length`` or ``draft_rate``; for ``simulate`` those of
            `kvcalc.simulate_serving`.
        deployment: arguments of `kvcalc.deployment` that stay the same.
        options: arguments of the report's function that stay the same.

    Raises:
        InputError: a report that cannot be swept.
    """

    report: str = "decode"
    axes: Mapping[str, Sequence[Any]]
    deployment: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.report not in SWEPT:
            hint = did_you_mean(self.report, SWEPT) or f"reports: {', '.join(SWEPT)}"
            raise InputError(f"no sweep of {self.report!r}", hint=hint)

    @property
    def grid(self) -> Grid:
        """The grid of its tasks."""
        from kvcalc.plan.sweep import Grid

        inner = SWEPT[self.report]
        return Grid(
            outer={name: values for name, values in self.axes.items() if name not in inner},
            inner={name: self.axes[name] for name in inner if name in self.axes},
        )


def sweep(
    swept: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    save: str | Path | None = None,
    resume: bool = False,
    pareto: bool = False,
    slo: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SweepReport:
    """Return a report's rows for every point of a grid, or save them to a file.

    Args:
        swept: the report and the grid.
        workers: processes; where left out, one for the calculators and as many as there are cores for simulations. A
            script that asks for more than one needs the guard ``if __name__ == "__main__"``.
        scheduler: address of a Dask scheduler that does the work instead, such as ``tcp://10.0.0.1:8786``.
        save: a ``.csv``, ``.jsonl`` or ``.parquet`` file for the rows, which are then not kept. Each task's rows are
            written when they are there, into the folder ``FILE.parts`` until all are.
        resume: whether to go on with a sweep to that file which was stopped.
        pareto: keep the points that no other beats in both tokens/s of a sequence and tokens/s of an accelerator.
        slo: limits such as ``tpot_p95=50ms`` for the best point; those in ``options`` where left out.
        progress: is told after each task how many are done, and of how many.

    Raises:
        InputError: a report or axis that is not known, a cluster that is not there, or parts of another sweep.
        KvcalcError: worker processes that end again and again.
    """
    from kvcalc.api.sweep_choice import best_row, check_choice, front_rows
    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.render.saved import SavedRows

    if resume and save is None:
        raise InputError("a sweep that was not saved cannot be resumed", hint="give --save FILE")
    slo = slo or swept.options.get("slo")
    if save is not None and (pareto or (slo and swept.report != "simulate")):
        raise InputError("a sweep that is saved keeps no rows to choose from", hint="leave out --save")
    if pareto or slo:
        check_choice(swept.report, slo)
    tasks = swept.grid.number_of_tasks
    parts = None if save is None else SavedRows(save, run=_fingerprint(swept), resume=resume)
    there = frozenset() if parts is None else parts.there()
    rows: list[dict[str, Any]] = []
    found = sweep_columns(swept, workers=workers, scheduler=scheduler, skip=there, in_order=parts is None)
    failed = 0
    for done, (number, columns) in enumerate(found, len(there) + 1):
        failed += sum(error is not None for error in columns["error"])
        if parts is None:
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        else:
            parts.save(number, columns)
        if progress is not None:
            progress(done, tasks)
    if parts is not None:
        parts.finish(tasks)
    best = best_row(swept.report, rows, slo) if slo and save is None else None
    return SweepReport(
        report=swept.report,
        points=swept.grid.points,
        rows=front_rows(swept.report, rows) if pareto else tuple(rows),
        slo=slo if slo and save is None else "",
        best=best,
        saved="" if save is None else str(save),
        notes=(f"{failed:,} points have no answer; the column error says why",) if failed else (),
    )


def _fingerprint(swept: Sweep) -> dict[str, Any]:
    """Return what decides every row: the sweep, what its traces hold, and the version."""
    import hashlib
    from pathlib import Path

    from kvcalc import __version__
    from kvcalc.render.records import plain

    axes = {name: list(values) for name, values in swept.axes.items()}
    traces = [swept.options["trace"]] if swept.options.get("trace") else swept.axes.get("trace", ())
    held = {str(trace): hashlib.sha256(Path(trace).read_bytes()).hexdigest() for trace in traces}
    return {"version": __version__, "traces": held, **plain(replace(swept, axes=axes))}


def sweep_columns(
    swept: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    skip: frozenset[int] = frozenset(),
    in_order: bool = True,
) -> Iterator[tuple[int, Columns]]:
    """Yield the number of each task and its rows as columns; arguments and errors as `sweep`.

    Args:
        swept: the report and the grid.
        workers: processes.
        scheduler: address of a Dask scheduler.
        skip: tasks that are not done.
        in_order: whether they come in the order of the grid, or as they are done.
    """
    from kvcalc.api.sweep_tasks import columns_of
    from kvcalc.workers import cluster_pool, process_pool, run_tasks

    if workers is None and swept.report != "simulate":
        workers = 1
    pool, number = process_pool(workers) if scheduler is None else cluster_pool(scheduler)
    _check_names(swept)
    tasks = (task for task in swept.grid.tasks() if task.number not in skip)
    found = run_tasks(partial(columns_of, replace(swept, axes={})), tasks, pool=pool, workers=number)
    results = ((task.number, columns) for task, columns in found)
    numbers = (number for number in range(swept.grid.number_of_tasks) if number not in skip)
    return _ordered(results, numbers) if in_order else results


def _check_names(swept: Sweep) -> None:
    """Refuse a name that is not known before anything is computed: a mistake, not a point that has no answer."""
    for model in swept.axes.get("model", ()):
        load_model(model)
    for gpu in swept.axes.get("gpu", ()):
        load_hardware(gpu)
    if "gpu" not in swept.axes and swept.report in ("decode", "prefill", "simulate"):
        raise InputError("a speed needs an accelerator", hint="give --gpu, for example --gpu h100-sxm")


def _ordered(results: Iterator[tuple[int, Columns]], numbers: Iterable[int]) -> Iterator[tuple[int, Columns]]:
    import heapq

    early: list[tuple[int, Columns]] = []
    for number in numbers:
        while not early or early[0][0] != number:
            heapq.heappush(early, next(results))
        yield heapq.heappop(early)
