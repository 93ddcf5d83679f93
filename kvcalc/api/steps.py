"""A scheduler's decisions, step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.steps import StepsReport

__all__ = ["replay_steps"]


def replay_steps(scenario: str | Path | Mapping[str, Any]) -> StepsReport:
    """Return what the scheduler does in each step of a scenario.

    Args:
        scenario: a JSON file, or what stands in it: ``inputs`` with the ``scheduler``'s options, ``block_size``,
            ``num_gpu_blocks`` and ``requests``.

    Raises:
        InputError: a file that is no such scenario.
        OSError: a file that cannot be read.
    """
    from kvcalc.core.reports.steps import StepsReport
    from kvcalc.simulate.replay import replay

    where = str(scenario) if isinstance(scenario, str | Path) else ""
    content = _read(where) if where else scenario
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), dict):
        raise InputError("no scenario: it has no inputs", where=where, hint="docs/scheduler.md shows the form")
    try:
        steps, totals = replay(content["inputs"])
    except InputError as error:
        raise InputError(error.what, where=": ".join(filter(None, (where, error.where))), hint=error.hint) from error
    return StepsReport(name=str(content.get("name", "")), steps=tuple(steps), totals=totals)


def _read(path: str) -> Any:
    try:
        return json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise InputError(f"not JSON: {error}", where=path) from error
