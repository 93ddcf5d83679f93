"""Documents of profiles: strict YAML, or, for those of a wheel, what was made of it when the wheel was built.

Strict is: the numbers of YAML 1.2, no repeated keys, and the line of every value for messages.
"""

from __future__ import annotations

import json
import os
import re
from math import isfinite
from pathlib import Path
from typing import Any

from kvcalc.core.errors import ProfileError
from kvcalc.files import read_text

__all__ = [
    "MAX_BYTES",
    "Document",
    "compiled_text",
    "expanded",
    "plain_scalar",
    "read_profile",
    "read_yaml",
    "read_yaml_file",
]

# More than any profile, file of checks or list of measurements has.
MAX_BYTES = 4 * 2**20
# Folders whose folders of profiles may hold compiled ones: the package, and its own calibrations' parent.
_COMPILED = (Path(__file__).parents[1], Path(__file__).parent)
_MAX_NODES = 200_000
_MAX_DEPTH = 40
_MAX_NUMBER_CHARACTERS = 40

_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_TAGS = {"map", "seq", "str", "int", "float", "bool", "null", "timestamp", "value", "merge"}
_WORDS: dict[str, Any] = {
    "": None,
    "~": None,
    "null": None,
    "Null": None,
    "NULL": None,
    "true": True,
    "True": True,
    "TRUE": True,
    "false": False,
    "False": False,
    "FALSE": False,
}


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
    """Read the compiled form of a YAML file beside it, as a wheel has it: JSON, which is read without the YAML library.

    Raises:
        ProfileError: not strict YAML.
    """
    return json.dumps({"yaml_bytes": path.stat().st_size, "data": read_yaml_file(path).data}, separators=(",", ":"))


def read_profile(path: Path) -> Document:
    """Return the document of a profile file.

    Raises:
        ProfileError: it cannot be read or is not strict YAML; the place is ``file:line``.
    """
    if path.parent.parent in _COMPILED:
        try:
            compiled = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            if compiled["yaml_bytes"] == path.stat().st_size:  # else the file was edited since
                return Document(compiled["data"], str(path), {})
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return read_yaml_file(path)


def read_yaml_file(path: Path, *, list_key: str | None = None) -> Document:
    """Read a YAML file that holds one mapping.

    Args:
        path: the file.
        list_key: the key that a list is put under, where the file may hold one instead.

    Raises:
        ProfileError: it cannot be read or is not strict YAML; the place is ``file:line``.
    """
    text = read_text(path, max_bytes=MAX_BYTES, what="a profile")
    return read_yaml(text, where=str(path), list_key=list_key)


def read_yaml(text: str, *, where: str, list_key: str | None = None) -> Document:
    """Read YAML text that holds one mapping; arguments as `read_yaml_file`.

    Raises:
        ProfileError: not strict YAML, or not a mapping.
    """
    import yaml

    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ProfileError(f"not valid YAML: {problem}", where=f"{where}{line}") from error
    except (RecursionError, ValueError) as error:
        raise ProfileError(
            "not usable YAML: nested too deeply or with characters that YAML forbids", where=where
        ) from error
    builder = _Builder(where)
    listed = list_key if isinstance(root, yaml.SequenceNode) else None
    data = builder.build(root, listed or "", 0) if root is not None else None
    if listed is not None:
        data = {listed: data}
    if not isinstance(data, dict):
        raise ProfileError("the file holds no mapping", where=where, hint="it is a list of `key: value` lines")
    return Document(data, where, builder.lines)


class _Builder:
    """Turns YAML nodes into Python values and remembers their lines."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.lines: dict[str, int] = {}
        self.nodes = 0

    def error(self, node: Any, what: str, hint: str = "") -> ProfileError:
        return ProfileError(what, where=f"{self.where}:{node.start_mark.line + 1}", hint=hint)

    def build(self, node: Any, path: str, depth: int) -> Any:
        self.nodes += 1
        if self.nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise self.error(node, "the file is too large or nested too deeply to be a profile")
        self.lines[path] = node.start_mark.line + 1
        if node.tag.removeprefix("tag:yaml.org,2002:") not in _TAGS:
            raise self.error(node, f"the tag {node.tag!r} is not allowed here")
        if node.id == "mapping":
            return self.mapping(node, path, depth)
        if node.id == "sequence":
            return [
                self.build(entry, f"{path}.{index}" if path else str(index), depth + 1)
                for index, entry in enumerate(node.value)
            ]
        return self.scalar(node)

    def mapping(self, node: Any, path: str, depth: int) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if key_node.id != "scalar":
                raise self.error(key_node, "a key must be a word")
            key = key_node.value
            if key in content:
                raise self.error(key_node, f"the key {key!r} stands twice", "remove one of the two")
            content[key] = self.build(value_node, f"{path}.{key}" if path else key, depth + 1)
            self.lines[f"{path}.{key}" if path else key] = key_node.start_mark.line + 1
        return content

    def scalar(self, node: Any) -> Any:
        if node.style in ('"', "'", "|", ">"):
            return node.value
        value = plain_scalar(node.value)
        if isinstance(value, float) and not isfinite(value):
            raise self.error(node, f"{node.value} is too large for a number")
        return value


def plain_scalar(text: str) -> Any:
    """Read unquoted text as YAML 1.2 does: null, a truth value, a number, or itself.

    >>> plain_scalar("3.35e12"), plain_scalar("no"), plain_scalar("8")
    (3350000000000.0, 'no', 8)
    """
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _MAX_NUMBER_CHARACTERS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
