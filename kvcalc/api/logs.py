"""What engines print, held against the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.api.profiles import profile_names
from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.sources import catalogue_model, load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileReport

__all__ = ["reconcile"]


def reconcile(
    text: str,
    *,
    model: str | Path | ModelProfile | None = None,
    engine: str | None = None,
    settings: Sequence[str] = (),
) -> ReconcileReport:
    """Return the numbers that an engine's start-up log prints against those computed from its model and options.

    Args:
        text: the log of vLLM, SGLang or llama.cpp.
        model: the model, where the log does not tell or tells a name that is not known.
        engine: look at the start-ups of this engine alone.
        settings: fields of the model to replace, as ``path=value``.

    Raises:
        InputError: the log tells of no engine, or its model cannot be identified.
        UnsupportedError: the model's cache in that engine is not modelled.
    """
    from functools import cache

    from kvcalc.engines.logs import read_log
    from kvcalc.plan.reconcile import check_engine, reconcile_report

    if engine is not None:
        engine = check_engine(engine)
    given = None if model is None else load_model(model, settings=settings)
    named = cache(lambda printed: load_model(_logged_model(printed), settings=settings))
    return reconcile_report(read_log(text), lambda found: given or named(found.model), engine=engine)


def _logged_model(printed: str | None) -> ModelProfile:
    """Return the model that a log names, from the catalogue: nothing is fetched."""
    from kvcalc.engines.logs import model_names

    names, known = model_names(printed or ""), set(profile_names("model"))
    # the name as printed, then the catalogue's own names, then the aliases: a search in vain reads every profile
    for name in (*names[:1], *(name for name in names[1:] if name in known), *names[1:]):
        try:
            return catalogue_model(name)
        except UnknownNameError:
            continue
    told = f"the log names {printed!r}, which is in no catalogue" if printed else "the log names no model"
    raise InputError(told, hint="give it with --model")
