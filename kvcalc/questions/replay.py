"""A scheduler's decisions, step by step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.files import read_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.simulate import StepsReport

__all__ = ["replay_steps"]

# Ten thousand requests take some 2 MB.
_MAX_BYTES = 16 * 2**20


def replay_steps(scenario: str | Path | Mapping[str, Any]) -> StepsReport:
    """Replay a scenario: the scheduler's decisions in each step.

    Args:
        scenario: a JSON file, or what stands in it: ``inputs`` with the ``scheduler``'s options, ``block_size``,
            ``num_gpu_blocks`` and ``requests``.

    Raises:
        InputError: a file that is no such scenario.
        ProfileError: a file that cannot be read.
    """
    from kvcalc.core.reports.simulate import StepsReport
    from kvcalc.simulate.replay import replay

    where = str(scenario) if isinstance(scenario, str | Path) else ""
    content = read_json(Path(where), max_bytes=_MAX_BYTES, what="a scenario") if where else scenario
    if not isinstance(content, dict) or not isinstance(content.get("inputs"), dict):
        raise InputError("no scenario: it has no inputs", where=where, hint="docs/scheduler.md shows the form")
    try:
        steps, totals = replay(content["inputs"])
    except InputError as error:
        raise InputError(error.what, where=": ".join(filter(None, (where, error.where))), hint=error.hint) from error
    return StepsReport(name=str(content.get("name", "")), steps=tuple(steps), totals=totals)
