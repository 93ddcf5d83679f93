"""Sources of numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Source", "SourceKind", "source_of"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}

SourceKind = Literal["datasheet", "model_config", "measured", "derived", "third_party"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of numbers.

    Args:
        kind: what sort of source it is.
        url: where it can be read; may be left out only for what is derived or not verified.
        date: the day it was read or published, ISO 8601.
        note: what exactly it prints, or the arithmetic of a derived number.
        verified: false for a number from memory that no document was found for.
    """

    __pydantic_config__ = _STRICT
    kind: SourceKind
    url: str = ""
    date: str = ""
    note: str = ""
    verified: bool = True

    def __str__(self) -> str:
        if not self.url and self.note:
            return f"{self.kind}: {self.note}"
        mark = "" if self.verified else ", unverified"
        address = f" {self.url}" if self.url else ""
        return f"{self.kind}{mark}{address}{f' ({self.date})' if self.date else ''}"


def source_of(path: str, sources: Mapping[str, Source], provenance: Mapping[str, str]) -> Source | None:
    """Return the source of a field: of the longest prefix of its dotted path, else the default.

    >>> table = {"sheet": Source(kind="datasheet", url="https://example.com"), "log": Source(kind="third_party")}
    >>> source_of("peak_flop_per_s.bf16", table, {"default": "sheet", "memory_bytes": "log"}).kind
    'datasheet'
    """
    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        name = provenance.get(".".join(parts[:end]))
        if name is not None:
            return sources.get(name)
    return sources.get(provenance.get("default", ""))
