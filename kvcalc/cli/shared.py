"""What every command does: read lists, print the report."""

from __future__ import annotations

import sys
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import parse_counts
from kvcalc.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "command_output",
    "counts",
    "draw",
    "emit",
    "engine_settings",
    "explain_first",
    "memory",
    "number",
    "one_count",
    "share",
    "tell",
    "tell_gpu",
]


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


def draw(report: Any, files: dict[str, str | None]) -> None:
    """Write a report's chart to the files that were asked for, and say so on standard error.

    Args:
        report: a report that has a chart.
        files: for ``svg``, ``png`` and ``html`` the file, or none.

    Raises:
        InputError: a file whose ending says another kind.
        OSError: a file that cannot be written.
    """
    wanted = {kind: path for kind, path in files.items() if path is not None}
    if not wanted:
        return
    from kvcalc.render.charts import chart_spec, write_chart

    spec = chart_spec(report)
    for kind, path in wanted.items():
        write_chart(spec, path, kind)
        sys.stderr.write(f"chart: {path}\n")


def explain_first(
    report: Literal["decode", "prefill"], deployment: Deployment, batches: Sequence[int], lengths: Sequence[int] | None
) -> Callable[[], Sequence[ExplainedStep]]:
    """Return a function that explains a report's first row."""
    from kvcalc import api

    context = lengths[0] if lengths else None
    return lambda: api.explain(report, deployment, context=context, batch=batches[0])


# Options that only some engines know.
_OWN_OPTIONS = {
    ("max_num_batched_tokens", "max_in_flight_batches", "max_num_seqs", "prefix_caching", "platform"): ("vllm",),
    ("block_size",): ("vllm", "sglang"),
    ("version",): ("vllm", "transformers"),
    ("parallel", "kv_unified", "cache_type_k", "cache_type_v", "swa_full", "ubatch", "flash_attn"): ("llama.cpp",),
}
_COUNTS = ("max_model_len", "max_num_batched_tokens")


def engine_settings(
    engine: str | None, given: dict[str, Any], deployment_options: dict[str, Any]
) -> EngineOptions | None:
    """Return the engine's options; for llama.cpp, also put its cache types into the deployment's formats.

    Raises:
        InputError: an option that the engine does not have.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    for names, owners in _OWN_OPTIONS.items():
        foreign = [name for name in names if name in asked] if engine not in owners else []
        if foreign:
            option = foreign[0].replace("_", "-").replace("version", "engine-version")
            engines = " or ".join(owners)
            raise InputError(f"--{option} is an option of {engines}", hint=f"add --engine {owners[0]}, or leave it out")
    for name in _COUNTS:
        if name in asked:
            asked[name] = one_count(asked[name], name.replace("_", "-"))
    if engine == "llama.cpp":
        for side, name in (("key_dtype", "cache_type_k"), ("value_dtype", "cache_type_v")):
            asked.setdefault(name, deployment_options["kv_dtype"] or "f16")
            deployment_options[side] = asked[name]
    if not asked:
        return None
    from kvcalc.engines.options import EngineOptions

    return EngineOptions(**asked)


def memory(text: str | None) -> int | None:
    """Return the bytes of an option such as ``23.45GiB``, or none where it was not given.

    Raises:
        InputError: not an amount of memory.
    """
    return None if text is None else parse_bytes(text)


def number(text: str | None, what: str) -> float | None:
    """Return the number of an option, or none where it was not given.

    Raises:
        InputError: not a finite number.
    """
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not isfinite(value):
        raise InputError(f"{what} must be a number, not {text!r}")
    return value


def share(text: str, what: str) -> float:
    """Return a share of one, written as ``0.01`` or ``1%``.

    Raises:
        InputError: not a share from 0 to 1.
    """
    percent = text.strip().endswith("%")
    value = number(text.strip().removesuffix("%"), what) or 0.0
    value = value / 100 if percent else value
    if not 0 <= value <= 1:
        raise InputError(f"{what} must be from 0 to 1 (or 100%), not {text}")
    return value


def tell_gpu(asked: str, hardware: HardwareProfile | None) -> None:
    """Say on standard error which accelerator an alias meant."""
    if hardware is None or asked.lower().endswith((".yaml", ".yml")):
        return
    if asked.strip().lower() != hardware.name:
        tell(f"{asked} means {hardware.name}: {hardware.title}")


def tell(note: str) -> None:
    """Say on standard error what was taken for granted."""
    sys.stderr.write(f"note: {note}\n")
