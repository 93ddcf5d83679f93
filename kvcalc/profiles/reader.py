"""Documents of profiles: from YAML, or, for those of a wheel, from what was made of it when the wheel was built."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["MAX_BYTES", "Document", "compiled_text", "expanded", "read_profile"]

# More than any profile, file of checks or list of measurements has.
MAX_BYTES = 4 * 2**20
_PACKAGE = Path(__file__).parents[1]


class Document:
    """A YAML mapping with the line that each value stands on.

    Args:
        data: the mapping.
        where: the file, for messages.
        lines: dotted path to line number.
    """

    __slots__ = ("data", "lines", "where")

    def __init__(self, data: dict[str, Any], where: str, lines: dict[str, int]) -> None:
        self.data = data
        self.where = where
        self.lines = lines

    def place(self, path: str) -> str:
        """Return ``file:line`` of a dotted path, or of its nearest parent."""
        parts = path.split(".") if path else []
        while parts:
            line = self.lines.get(".".join(parts))
            if line is not None:
                return f"{self.where}:{line}"
            parts.pop()
        return self.where


def expanded(path: str | Path) -> Path:
    """Return a path with the home folder in place of ``~``; as it is where no home is known."""
    return Path(os.path.expanduser(path))  # noqa: PTH111  pathlib's own raises where there is none


def compiled_text(path: Path) -> str:
    """Return what a wheel holds of a YAML file beside it: its content as JSON, which is read without the YAML library.

    Raises:
        ProfileError: not strict YAML.
    """
    from kvcalc.profiles.yaml_reader import read_yaml_file

    return json.dumps({"yaml_bytes": path.stat().st_size, "data": read_yaml_file(path).data}, separators=(",", ":"))


def read_profile(path: Path) -> Document:
    """Return the document of a profile file.

    Raises:
        ProfileError: it cannot be read or is not strict YAML; the place is ``file:line``.
    """
    if path.parent.parent == _PACKAGE:
        try:
            compiled = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if compiled["yaml_bytes"] == path.stat().st_size:  # else the file was edited since
                return Document(compiled["data"], str(path), {})
        except (OSError, ValueError, KeyError, TypeError):
            pass
    from kvcalc.profiles.yaml_reader import read_yaml_file

    return read_yaml_file(path)
