"""What every command does: read lists, print the report."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import parse_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.plan.deployment import Deployment

__all__ = ["command_output", "counts", "emit", "explain_first", "one_count", "tell_gpu"]


def counts(text: str | None, what: str) -> tuple[int, ...] | None:
    """Return the numbers of a list option, or none where it was not given."""
    return None if text is None else parse_counts(text, what=what)


def one_count(text: str | None, what: str) -> int | None:
    """Return the number of an option that takes one.

    Raises:
        InputError: a list.
    """
    found = counts(text, what)
    if found is not None and len(found) > 1:
        raise InputError(
            f"{what} takes one number here, not {len(found)}", hint="decode, prefill and roofline take lists"
        )
    return None if found is None else found[0]


def command_output(output: str, *, json: bool) -> str:
    """Return the output format that the two options ask for.

    Raises:
        InputError: they contradict each other, or there is no such format.
    """
    from kvcalc.render.output import check_output

    if json and output not in ("table", "json"):
        raise InputError(f"--json and --output {output} contradict each other")
    return "json" if json else check_output(output)


def emit(report: Any, output: str, explained: Callable[[], Sequence[ExplainedStep]] | None = None) -> None:
    """Print a report to standard output."""
    from kvcalc.render.output import render

    sys.stdout.write(render(report, output, explained=explained() if explained else ()))


def explain_first(
    report: Literal["decode", "prefill"], deployment: Deployment, batches: Sequence[int], lengths: Sequence[int] | None
) -> Callable[[], Sequence[ExplainedStep]]:
    """Return a function that explains a report's first row."""
    from kvcalc import api

    context = lengths[0] if lengths else None
    return lambda: api.explain(report, deployment, context=context, batch=batches[0])


def tell_gpu(asked: str, hardware: HardwareProfile | None) -> None:
    """Say on standard error which accelerator an alias meant."""
    if hardware is None or asked.lower().endswith((".yaml", ".yml")):
        return
    if asked.strip().lower() != hardware.name:
        sys.stderr.write(f"note: {asked} means {hardware.name}: {hardware.title}\n")
