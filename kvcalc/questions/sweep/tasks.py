"""One task of a sweep: its rows as columns. Workers of any kind call `columns_of`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.plan.speculative.acceptance import FORMS
from kvcalc.questions.decode import decode
from kvcalc.questions.fit import fit
from kvcalc.questions.prefill import prefill
from kvcalc.questions.size import size
from kvcalc.questions.speculate import speculate
from kvcalc.questions.sweep.inputs import check_unchanged, read_profile, read_profiles
from kvcalc.render.records import records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.sweep import SweepTask
    from kvcalc.questions.sweep.inputs import Columns, Sweep

__all__ = ["PLACES", "Work", "columns_of"]

# The axes that say what runs where: arguments of `kvcalc.deployment`.
PLACES = (
    "model", "gpu", "gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "weights",
    "kv_dtype", "activations", "engine",
)  # fmt: skip

# Fields of a decode report that a sweep does not print: what it says itself, and estimates.
_NOT_OF_GRIDS = ("model", "gpu", "experts", "estimate_", "bound_share")


@dataclass(frozen=True, slots=True)
class Work:
    """The inputs that all tasks of a sweep share.

    Args:
        swept: the sweep, without its axes.
        digests: of the content of what the rows stand on, as `input_digests` returns them.
    """

    swept: Sweep
    digests: Mapping[str, str]


def columns_of(work: Work, task: SweepTask) -> Columns:
    """Return a task's rows as columns: what was varied, then the report's fields; or why it cannot be done.

    Raises:
        InputError: what the rows stand on is not what it was when the sweep began.
        KvcalcError: a profile that cannot be read here.
    """
    points = {name: [value] * task.points for name, value in task.point.items()}
    point = replace(work.swept, axes={name: (value,) for name, value in task.point.items()})
    read_profiles(point, work.digests)
    try:
        columns = _REPORTS[work.swept.report](work, task)
    except KvcalcError as error:
        return points | _cells(task) | {"error": [error.message] * task.points}
    finally:
        check_unchanged(point, work.digests)
    more = {name: values for name, values in columns.items() if name not in points}
    return points | more | {"error": [None] * task.points}


def _cells(task: SweepTask) -> Columns:
    """Return the inner axes of a task, the last fastest."""
    columns: Columns = {}
    inside, outside = task.points, 1
    for name, values in task.cells.items():
        inside //= len(values)
        columns[name] = [value for _ in range(outside) for value in values for _ in range(inside)]
        outside *= len(values)
    return columns


@lru_cache(maxsize=8)
def _deployed(given: tuple[tuple[str, Any], ...], digests: tuple[tuple[str, str], ...]) -> Deployment:
    from kvcalc.questions.deployments import deployment

    return deployment(**_with_profiles(dict(given), dict(digests)))


def _deployment(work: Work, task: SweepTask) -> Deployment:
    given = {**work.swept.deployment, **{name: value for name, value in task.point.items() if name in PLACES}}
    prices = dict(given.pop("prices", ()))
    if prices:
        given["price_per_hour_usd"] = prices.get("", prices.get(str(given.get("gpu")).lower()))
    given["settings"] = tuple(given.get("settings", ()))
    called = [f"{kind} {given[kind]}" for kind in ("model", "gpu") if kind in given]
    digests = tuple((name, work.digests[name]) for name in called if name in work.digests)
    return _deployed(tuple(sorted(given.items())), digests)


def _given(work: Work, task: SweepTask) -> dict[str, Any]:
    """Return the arguments of a task's report, besides its deployment."""
    point = {name: value for name, value in task.point.items() if name not in PLACES}
    return _with_profiles({**work.swept.options, **point}, work.digests)


def _with_profiles(given: dict[str, Any], digests: Mapping[str, str]) -> dict[str, Any]:
    """Return arguments with profiles in place of their names."""
    named = {kind: given[kind] for kind in ("model", "gpu", "draft", "calibration") if given.get(kind) is not None}
    return given | {kind: read_profile(kind, source, digests) for kind, source in named.items()}


def _decode(work: Work, task: SweepTask) -> Columns:
    from kvcalc.plan.contexts import default_context

    deployment = _deployment(work, task)
    contexts = task.cells.get("context") or (default_context(deployment.model, deployment.engine),)
    of_grid = _decode_columns if find_spec("numpy") else _decode_rows
    columns = of_grid(deployment, task.cells.get("batch", (1,)), contexts)
    gpus = deployment.parallel.gpus
    columns["tokens_per_s_per_gpu"] = [speed / gpus for speed in columns["tokens_per_s"]]
    return columns


def _decode_columns(deployment: Deployment, batches: Sequence[int], contexts: Sequence[int]) -> Columns:
    from kvcalc.simulate.decode_grid import decode_blocks

    columns: Columns = {}
    for block in decode_blocks(deployment, batches=batches, contexts=contexts):
        for name, values in block.items():
            columns.setdefault(name, []).extend(_plain_numbers(values))
    return columns


def _decode_rows(deployment: Deployment, batches: Sequence[int], contexts: Sequence[int]) -> Columns:
    """Return the columns of `_decode_columns` without NumPy: equal to the last digit but one, and slower."""
    rows = _rows(decode(deployment, batches=batches, contexts=contexts))
    return {name: values for name, values in rows.items() if not name.startswith(_NOT_OF_GRIDS)}


def _prefill(work: Work, task: SweepTask) -> Columns:
    prompts = task.cells.get("prompt")
    return _rows(prefill(_deployment(work, task), batches=task.cells.get("batch", (1,)), prompts=prompts))


def _speculate(work: Work, task: SweepTask) -> Columns:
    given = _given(work, task)
    if not given.keys() & set(FORMS):
        raise InputError("a sweep of speculation needs an acceptance", hint="for example --acceptance 0.6,0.8")
    gamma = given.pop("gamma", None)
    report = speculate(
        _deployment(work, task),
        given.pop("draft", None),
        gammas=None if gamma is None else (gamma,),
        batches=task.cells.get("batch", (1,)),
        contexts=task.cells.get("context"),
        **given,
    )
    return _rows(report)


def _simulate(work: Work, task: SweepTask) -> Columns:
    """Run one simulation; what is given goes to where there is a field of that name."""
    from kvcalc.engines.options import EngineOptions
    from kvcalc.questions.serving import Load, Serving, simulate_serving

    given = _given(work, task)
    load, serving, options = (
        {name: given[name] for name in (field.name for field in fields(kind)) if name in given}
        for kind in (Load, Serving, EngineOptions)
    )
    serving["options"] = EngineOptions(**options)
    asked = Load(**load)
    if asked.process == "closed" and asked.start is None:
        asked = replace(asked, start="burst")  # a row has one load
    report = simulate_serving(_deployment(work, task), asked, serving=Serving(**serving))
    return _rows(report)


def _each_cell(function: Callable[..., Any]) -> Callable[[Work, SweepTask], Columns]:
    """Ask a function that answers one context and batch for each cell of a task."""

    def ask(work: Work, task: SweepTask) -> Columns:
        deployment = _deployment(work, task)
        cells = _cells(task)
        rows: list[dict[str, Any]] = []
        for values in zip(*cells.values(), strict=True) if cells else [()]:
            report = function(deployment, **dict(zip(cells, values, strict=True)), **work.swept.options)
            rows += records(report)
        return _as_columns(rows)

    return ask


def _rows(report: Any) -> Columns:
    """Return a report's records as columns."""
    return _as_columns(records(report))


def _as_columns(rows: list[dict[str, Any]]) -> Columns:
    names = dict.fromkeys(name for row in rows for name in row if name != "schema")
    return {name: [row.get(name) for row in rows] for name in names}


def _plain_numbers(values: Any) -> list[Any]:
    """Return an array as a list as reports print it: what is absent as none, whole numbers as integers."""
    import numpy as np

    plain: list[Any] = values.tolist()
    if values.dtype.kind == "f":
        for index in np.flatnonzero((values == np.rint(values)) & (np.abs(values) < 2.0**53)).tolist():
            plain[index] = int(plain[index])
        for index in np.flatnonzero(~np.isfinite(values)).tolist():
            plain[index] = None
    return plain


_REPORTS: dict[str, Callable[[Work, SweepTask], Columns]] = {
    "decode": _decode,
    "prefill": _prefill,
    "size": _each_cell(size),
    "fit": _each_cell(fit),
    "speculate": _speculate,
    "simulate": _simulate,
}
