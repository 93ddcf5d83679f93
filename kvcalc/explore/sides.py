"""Side by side: up to four configurations of a page, each a question of its own."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from kvcalc import api
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.explore.fields import FieldError, Values, of_field, read_fields
from kvcalc.explore.questions import asked_question
from kvcalc.questions.compare import SIDE_OPTIONS, OneSide

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["compare_sides"]

_FEWEST_SIDES, _MAX_SIDES = 2, 4
_MAX_CHARACTERS = 2000
# What the specification of a side can say.
_FIELDS = ("model", "gpu", *(name.replace("_", "-") for name in SIDE_OPTIONS))


def compare_sides(asked: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the data of ``kvcalc compare`` for sides that are each written as the query of a URL.

    Args:
        asked: ``side`` for each of them, the first the measure of the others; and ``engine``.

    Raises:
        FieldError: fewer than two sides or more than four, or a mistake in one of them.
    """
    asked = list(asked)
    queries = [text for name, text in asked if name == "side"]
    engine = read_fields([item for item in asked if item[0] != "side"], ("engine",), {}).get("engine")
    with of_field("side"):
        if not _FEWEST_SIDES <= len(queries) <= _MAX_SIDES:
            raise InputError(f"from {_FEWEST_SIDES} to {_MAX_SIDES} sides can be compared, not {len(queries)}")
        if max(map(len, queries)) > _MAX_CHARACTERS:
            raise InputError("a configuration is too long")
    sides = [_read(query) for query in queries]
    try:
        labels = api.side_labels([_named(values) for values in sides])
        placed = [asked_question(OneSide, values.read).side(label) for label, values in zip(labels, sides, strict=True)]
        report = api.compare(placed, engine=engine)
    except KvcalcError as error:
        raise FieldError(error, "side") from error
    words = " ".join(quote(_spec(values)) for values in sides)
    chosen = "" if engine is None else f" --engine {quote(engine)}"
    return api.report_data(report) | {"command": f"kvcalc compare {words}{chosen}"}


def _read(query: str) -> Values:
    try:
        items = parse_qsl(query, keep_blank_values=True, max_num_fields=32, errors="strict")
    except ValueError as error:
        raise FieldError(InputError("a configuration is not UTF-8, or has too many fields"), "side") from error
    return read_fields(items, _FIELDS, {})


def _named(values: Values) -> dict[str, str]:
    """Return a configuration as the command reads it from its spelling, so that both label it alike."""
    texts = {name.replace("-", "_"): text.strip() for name, text in values.given}
    first = [name for name in ("gpu", "gpus", "model") if name in texts]
    return {name: texts[name] for name in [*first, *texts]}


def _spec(values: Values) -> str:
    """Return a configuration as ``kvcalc compare`` takes it: ``llama3.1-8b@2xh100-sxm,kv-dtype=fp8``."""
    count = f"{values.get('gpus')}x" if "gpus" in values.read else ""
    gpu = f"@{count}{values.get('gpu')}" if "gpu" in values.read else ""
    named = ("model", "gpu", "gpus") if gpu else ("model",)
    rest = [f"{name}={text}" for name, text in values.given if name not in named]
    return ",".join([f"{values.get('model')}{gpu}", *rest])
