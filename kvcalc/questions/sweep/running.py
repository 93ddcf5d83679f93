"""Questions over grids: calculators and simulations for every combination of what is varied."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.units import counted
from kvcalc.plan.sweep import pareto_front
from kvcalc.questions.sweep.inputs import Sweep, input_digests
from kvcalc.simulate.metrics import parse_slo

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.questions.sweep.inputs import Columns
    from kvcalc.simulate.metrics import Limit

    Row = Mapping[str, Any]

__all__ = ["Sweep", "sweep", "sweep_columns"]

# Rows that are kept to be returned together: with the text that is printed of them, within a GiB.
_MAX_KEPT = 120_000
# Reports whose points have both speeds: tokens/s of a sequence, and of an accelerator.
_WITH_SPEEDS = ("decode", "simulate")
Progress = Callable[[int, int], None]


def sweep(
    swept: Sweep,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    save: str | Path | None = None,
    resume: bool = False,
    pareto: bool = False,
    slo: str | None = None,
    progress: Progress | None = None,
) -> SweepReport:
    """Return a report's rows for every point of a grid, or save them to a file.

    Args:
        swept: the report and the grid.
        workers: processes; where left out, one for the calculators and as many as there are cores for simulations.
        scheduler: address of a Dask scheduler that does the work instead, such as ``tcp://10.0.0.1:8786``.
        save: a ``.csv``, ``.jsonl`` or ``.parquet`` file for the rows, which are then not kept. Each task's rows are
            written when they are there, into the folder ``FILE.parts`` until all are.
        resume: whether to go on with a sweep to that file which was stopped. A part counts where it is as it was
            written; profiles and traces must have the content that they had.
        pareto: keep the points that no other beats in both tokens/s of a sequence and tokens/s of an accelerator.
        slo: limits such as ``tpot_p95=50ms`` for the best point; those in ``options`` where left out.
        progress: is told after each task how many are done, and of how many.

    Raises:
        InputError: a report or axis that is not known, a cluster that is not there, parts of another sweep, a file that
            another run is saving to, or profiles or traces that have changed.
        KvcalcError: a cluster whose workers or scheduler are gone; worker processes that end again and again.
    """
    from kvcalc.core.reports.sweep import SweepReport

    if resume and save is None:
        raise InputError("a sweep that was not saved cannot be resumed", hint="give --save FILE")
    slo = slo or swept.options.get("slo")
    if save is not None and (pareto or (slo and swept.report != "simulate")):
        raise InputError("a saved sweep keeps no rows to choose from", hint="leave out --save")
    if pareto or slo:
        _check_choice(swept.report, slo)
    workforce: dict[str, Any] = {"workers": workers, "scheduler": scheduler, "progress": progress}
    if save is None:
        rows, notes = _rows(swept, **workforce)
    else:
        rows, notes, slo = [], _save_rows(swept, save, resume=resume, **workforce), None
    return SweepReport(
        report=swept.report,
        points=swept.grid.points,
        rows=_front_rows(swept.report, rows) if pareto else tuple(rows),
        slo=slo or "",
        best=_best_row(swept.report, rows, slo) if slo else None,
        saved="" if save is None else str(save),
        notes=notes,
    )


def _rows(
    swept: Sweep, *, workers: int | None, scheduler: str | None, progress: Progress | None
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows of a sweep in order, and what is to be said of them.

    Raises:
        InputError: as `sweep`; more rows than are kept.
    """
    if swept.grid.points > _MAX_KEPT:
        hint = "--save FILE, or --output csv or jsonl, takes more: rows are written as they come"
        raise InputError(f"{swept.grid.points:,} rows, more than the {_MAX_KEPT:,} kept in memory", hint=hint)
    rows: list[dict[str, Any]] = []
    with closing(sweep_columns(swept, workers=workers, scheduler=scheduler)) as done:
        for count, (_, columns) in enumerate(done, 1):
            rows += [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
            if progress is not None:
                progress(count, swept.grid.number_of_tasks)
    return rows, _failures(sum(row["error"] is not None for row in rows))


def _save_rows(
    swept: Sweep,
    path: str | Path,
    *,
    resume: bool,
    workers: int | None,
    scheduler: str | None,
    progress: Progress | None,
) -> tuple[str, ...]:
    """Save the rows of a sweep and return what is to be said of them.

    Raises:
        InputError: as `sweep`; what decides the rows changed while they were computed.
    """
    from kvcalc.render.records import plain
    from kvcalc.render.saved import SavedRows

    tasks, digests = swept.grid.number_of_tasks, input_digests(swept)
    axes = {name: list(values) for name, values in swept.axes.items()}
    run = {"options": plain(replace(swept, axes=axes)), **digests}
    with SavedRows(path, run=run, resume=resume) as saved:
        already = saved.numbers
        with closing(_computed(swept, digests, workers=workers, scheduler=scheduler, skip=already)) as done:
            for count, (number, columns) in enumerate(done, len(already) + 1):
                saved.save(number, columns)
                if progress is not None:
                    progress(count, tasks)
        failed = saved.failed
        saved.finish(tasks)
    again = f"{saved.rejected:,} parts were not as they had been written and were computed again"
    return (*((again,) if saved.rejected else ()), *_failures(failed))


def _failures(failed: int) -> tuple[str, ...]:
    return (
        (f"{counted(failed, 'point')} {'has' if failed == 1 else 'have'} no answer; the column error says why",)
        if failed
        else ()
    )


def sweep_columns(
    swept: Sweep, *, workers: int | None = None, scheduler: str | None = None
) -> Generator[tuple[int, Columns], None, None]:
    """Yield the number of each task and its rows as columns, in the order of the grid; arguments and errors as `sweep`.

    Args:
        swept: the report and the grid.
        workers: processes.
        scheduler: address of a Dask scheduler.
    """
    computed = _computed(swept, input_digests(swept), workers=workers, scheduler=scheduler)
    return _ordered(computed, range(swept.grid.number_of_tasks))


def _computed(
    swept: Sweep,
    digests: Mapping[str, str],
    *,
    workers: int | None,
    scheduler: str | None,
    skip: frozenset[int] = frozenset(),
) -> Generator[tuple[int, Columns], None, None]:
    """Yield the number of each task and its rows as columns, as they are done.

    Args:
        swept: the report and the grid.
        digests: of what the rows stand on; a name that is not known has been refused with them, before any work.
        workers: processes.
        scheduler: address of a Dask scheduler.
        skip: tasks that are not done.
    """
    from kvcalc.questions.sweep.tasks import Work, columns_of
    from kvcalc.workers import cluster_pool, process_pool, run_tasks

    if "gpu" not in swept.axes and swept.report in ("decode", "prefill", "simulate"):
        raise InputError("a speed needs an accelerator", hint="give --gpu, for example --gpu h100-sxm")
    if workers is None and swept.report != "simulate":
        workers = 1
    pool, number = process_pool(workers) if scheduler is None else cluster_pool(scheduler)
    tasks = (task for task in swept.grid.tasks() if task.number not in skip)
    work = Work(replace(swept, axes={}), digests)
    done = run_tasks(partial(columns_of, work), tasks, pool=pool, workers=number)
    return ((task.number, columns) for task, columns in done)


def _ordered(
    results: Iterator[tuple[int, Columns]], numbers: Iterable[int]
) -> Generator[tuple[int, Columns], None, None]:
    import heapq

    early: list[tuple[int, Columns]] = []
    for number in numbers:
        while not early or early[0][0] != number:
            heapq.heappush(early, next(results))
        yield heapq.heappop(early)


def _check_choice(report: str, slo: str | None) -> None:
    """Refuse what cannot be chosen by, before anything is computed.

    Raises:
        InputError: a report without these speeds, or limits that it says nothing of.
    """
    if report not in _WITH_SPEEDS:
        raise InputError(f"{report} has no two speeds to choose by", hint=f"reports: {', '.join(_WITH_SPEEDS)}")
    foreign = [str(limit) for limit in parse_slo(slo) if limit.latency != "tpot"] if slo and report == "decode" else []
    if foreign:
        raise InputError(f"slo: decode says nothing of {foreign[0]}", hint="limit tpot_p95, or add --report simulate")


def _front_rows(report: str, rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows that no other beats in both speeds, the fastest for one sequence first."""
    able = [row for row in rows if _speeds(report, row) is not None]
    return tuple(able[index] for index in pareto_front([_speeds(report, row) or (0.0, 0.0) for row in able]))


def _best_row(report: str, rows: Sequence[Row], slo: str) -> Row | None:
    """Return the row with the cheapest tokens among those within limits; none where none is.

    Without prices these are the most tokens/s of an accelerator.

    Args:
        report: the report of the rows.
        rows: rows of a sweep; those that do not fit are passed over.
        slo: limits such as ``tpot_p95=50ms``. In a decode step every sequence waits alike: its statistics are one.
    """
    limits = parse_slo(slo)
    kept = [(speeds, row) for row in rows if (speeds := _speeds(report, row)) and _within(report, row, limits)]
    if not kept:
        return None
    costs = [row.get(_COSTS[report]) for _, row in kept]
    priced = all(cost is not None for cost in costs)
    order = [
        (-(cost or 0.0) if priced else 0.0, speeds[1], speeds[0]) for cost, (speeds, _) in zip(costs, kept, strict=True)
    ]
    return kept[max(range(len(kept)), key=lambda index: order[index])][1]


# Dollars for a million tokens, by report.
_COSTS = {"decode": "usd_per_million_tokens", "simulate": "summary.usd_per_million_output_tokens"}


def _speeds(report: str, row: Row) -> tuple[float, float] | None:
    """Return tokens/s of a sequence and of an accelerator; none where a point has no answer or does not fit."""
    if row.get("error") is not None:
        return None
    if report == "decode":
        return (row["tokens_per_s_per_sequence"], row["tokens_per_s_per_gpu"]) if row["fits"] else None
    tpot_s = row.get("summary.tpot_s.p50")
    return (1 / tpot_s, row["summary.output_tokens_per_s_per_gpu"]) if tpot_s else None


def _within(report: str, row: Row, limits: Sequence[Limit]) -> bool:
    return all((latency := _latency(report, row, limit)) is not None and latency <= limit.most_s for limit in limits)


def _latency(report: str, row: Row, limit: Limit) -> float | None:
    if report == "decode":
        return float(1 / row["tokens_per_s_per_sequence"])
    return row.get(f"summary.{limit.latency}_s.{limit.statistic}")
