"""Values of benchmark files: numbers that are positive and finite, counts, names."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.evidence.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Run", "at", "count", "positive", "word"]


def at(data: Any, path: str) -> Any:
    """Return the value at a dotted path of mappings and lists, or none.

    >>> at({"a": [{"b": 2}]}, "a.0.b"), at({"a": 1}, "a.b")
    (2, None)
    """
    for step in path.split("."):
        if isinstance(data, dict):
            data = data.get(step)
        elif isinstance(data, list) and step.isdigit() and int(step) < len(data):
            data = data[int(step)]
        else:
            return None
    return data


def positive(data: Any, *paths: str) -> float | None:
    """Return the first number of some fields that is there; none where none is, or where it is empty or 0.

    Raises:
        ProfileError: a field that is no number, negative or not finite.
    """
    for path in paths:
        value = at(data, path)
        if value in (None, "", 0, "0", "N/A"):
            continue
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise ProfileError(f"the field {path} is no number: {str(value)[:40]!r}") from None
        if isinstance(value, bool) or not math.isfinite(number) or number < 0:
            raise ProfileError(f"the field {path} must be a positive number, not {str(value)[:40]}")
        if number:
            return number
    return None


def count(data: Any, *paths: str) -> int | None:
    """Return the first count of some fields that is there, rounded; errors as `positive`."""
    value = positive(data, *paths)
    return None if value is None else max(1, round(value))


def word(data: Any, *paths: str) -> str:
    """Return the first text of some fields that is there."""
    return next(
        (str(value).strip() for path in paths if isinstance(value := at(data, path), str) and value.strip()), ""
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The setting of a run of a benchmark, as it prints it; empty where it does not.

    Args:
        name: what it is called.
        model: the model.
        hardware: the accelerator.
        engine: the engine.
        version: its version.
        weights: format of the weights.
        kv: format of the cache.
        devices: accelerators.
        tensor: tensor parallel size.
        batch: requests at once.
        prompt: tokens of a prompt.
        output: tokens of an answer.
        note: what else there is to know.
    """

    name: str
    model: str = ""
    hardware: str = ""
    engine: str = ""
    version: str = ""
    weights: str = ""
    kv: str = ""
    devices: int | None = None
    tensor: int | None = None
    batch: int | None = None
    prompt: int | None = None
    output: int | None = None
    note: str = ""

    def records(self, times: Mapping[str, float | None], *, unit: str = "s", depth: int = 0) -> Iterator[Record]:
        """Yield a record for each of some times that is there.

        Args:
            times: by what was timed: ``ttft``, ``tpot``, ``decode``, ``prefill``, ``end_to_end``.
            unit: their unit.
            depth: tokens in the cache before the prompt.
        """
        for phase, value in times.items():
            if value is None:
                continue
            yield Record(
                id=f"{self.name}/{phase}",
                row=self.name,
                phase=phase,
                value=value,
                unit=unit,
                hardware=self.hardware,
                model=self.model,
                engine=self.engine,
                engine_version=self.version,
                weights=self.weights or None,
                kv=self.kv or None,
                devices=self.devices or self.tensor or 1,
                tensor=self.tensor,
                batch=self.batch,
                prompt_tokens=self.prompt,
                output_tokens=self.output,
                depth_tokens=depth,
                ttft_s=times.get("ttft") if unit == "s" else None,
                note=self.note,
                source=self.name.partition(" ")[0],
                first_hand=True,
            )
