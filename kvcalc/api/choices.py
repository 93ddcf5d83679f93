"""Choices: deployments side by side, and the one quantity that is left open."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.hardware import HardwareProfile
from kvcalc.sources import load_hardware

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.reports.compare import CompareReport
    from kvcalc.core.reports.solve import SolveReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.compare import Side
    from kvcalc.plan.deployment import Deployment

__all__ = ["compare", "side", "side_labels", "solve"]


def side(
    label: str, subject: Deployment | HardwareProfile | str | Path, *, context: int | None = None, batch: int = 1
) -> Side:
    """Return one side of a comparison.

    Args:
        label: what tells it from the others.
        subject: a model as it is run, or an accelerator (a profile, name or file) alone.
        context: tokens attended, and tokens of the prompt; 4,096 or the model's limit where left out.
        batch: sequences.
    """
    from kvcalc.plan.compare import Side

    compared = load_hardware(subject) if isinstance(subject, str | Path | HardwareProfile) else subject
    return Side(label=label, subject=compared, context=context, batch=batch)


def side_labels(sides: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each side what tells it from the others.

    Args:
        sides: the text of each option by its name as an argument: ``model``, ``gpu``, ``kv_dtype``.

    Raises:
        InputError: two of them are the same.
    """
    names = list(dict.fromkeys(name for side in sides for name in side))
    varied = [name for name in names if len({side.get(name) for side in sides}) > 1]
    shown = [name for name in varied if name not in ("gpu", "gpus")]
    labels = []
    for side in sides:
        told = [name for name in shown if name in side]
        parts = [side[name] if name == "model" else f"{name.replace('_', '-')}={side[name]}" for name in told]
        if {"gpu", "gpus"} & set(varied):
            count = f"{side['gpus']}x" if "gpus" in side else ""
            parts.insert("model" in varied and "model" in side, f"{count}{side.get('gpu', '')}")
        labels.append(" ".join(parts) or side.get("model") or side.get("gpu", ""))
    if len(set(labels)) < len(labels) and len(labels) > 1:
        raise InputError("two of the sides are the same", hint="name each once")
    return labels


def compare(sides: Sequence[Side], *, engine: str | None = None) -> CompareReport:
    """Return the quantities of several sides, with differences and ratios to the first, and the best of each.

    Args:
        sides: what is compared, as `side` makes them; the first is the measure of the others.
        engine: whose memory model says what fits; each side's own where left out.

    Raises:
        InputError: fewer than two sides, or accelerators alone among models.
    """
    from kvcalc.plan.compare import compare_report

    return compare_report(sides, engine=engine)


def solve(
    deployment: Deployment,
    unknown: str,
    *,
    context: int | None = None,
    batch: int = 1,
    tokens_per_s: float | None = None,
    tokens_per_s_per_sequence: float | None = None,
    ttft_s: float | None = None,
    usd_per_million_tokens: float | None = None,
    speedup: float | None = None,
    draft: Deployment | None = None,
    method: str | None = None,
    gamma: int | None = None,
    engine: str | None = None,
    options: EngineOptions | None = None,
    kv_memory_bytes: int | None = None,
) -> SolveReport:
    """Return the value of one quantity at the edge of what memory, speed and cost allow.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        unknown: ``batch``, ``context``, ``gpus``, ``bandwidth``, ``price`` or ``acceptance``.
        context: tokens of each sequence.
        batch: sequences.
        tokens_per_s: least decoding speed of all sequences together.
        tokens_per_s_per_sequence: least decoding speed of each.
        ttft_s: most time to first token of one prompt as long as the context.
        usd_per_million_tokens: most that a million decoded tokens may cost.
        speedup: least speed over plain decoding that speculation must reach; break-even where left out.
        draft: the draft model, as `draft_deployment` places it.
        method: the way to draft, where it is not a draft model.
        gamma: drafted tokens in a row; the best where left out.
        engine: another engine whose memory model says what fits.
        options: that engine's options.
        kv_memory_bytes: memory for the cache on each GPU; skips the budget.

    Raises:
        InputError: sizes that make no sense, or nothing that bounds the unknown.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    from kvcalc.plan.room import BudgetTerms
    from kvcalc.plan.solve import Drafting, Targets, solve_report

    return solve_report(
        deployment,
        unknown,
        context=context,
        batch=batch,
        targets=Targets(
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_sequence=tokens_per_s_per_sequence,
            ttft_s=ttft_s,
            usd_per_million_tokens=usd_per_million_tokens,
            speedup=speedup,
        ),
        engine=engine,
        options=options,
        terms=BudgetTerms(kv_bytes=kv_memory_bytes),
        drafting=Drafting(draft=draft, method=method, gamma=gamma),
    )
