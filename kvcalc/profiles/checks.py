"""Files of checks: what is asserted of which setup, with the line of each assertion."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, ProfileError, did_you_mean
from kvcalc.core.ranges import parse_counts
from kvcalc.profiles.reader import Document, read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

__all__ = ["Assertion", "Check", "checks_schema", "read_checks"]

_TOP = ("defaults", "checks", "allow_shadowing")
_OWN = ("name", "matrix", "expect", "record")
_COUNTED = ("batch", "context", "prompt", "output_tokens", "gpus")
_MAX_CHECKS = 10_000


@dataclass(frozen=True, slots=True)
class Assertion:
    """A figure and what is expected of it.

    Args:
        field: the report and the field.
        expected: what it must be; none where it is only recorded.
        recorded: whether it is only recorded.
        where: file and line.
    """

    field: str
    expected: Any
    recorded: bool
    where: str


@dataclass(frozen=True, slots=True)
class Check:
    """One setup and what is asserted of it.

    Args:
        name: what it is called, its place in the matrix included.
        settings: options of the command line, by name, with ``_`` for ``-``.
        defaults: the same, for the reports that have such an option.
        assertions: what must hold.
        where: file and line.
        may_shadow: names that a user's own profile may have in place of kvcalc's.
    """

    name: str
    settings: Mapping[str, Any]
    defaults: Mapping[str, Any]
    assertions: tuple[Assertion, ...]
    where: str
    may_shadow: frozenset[str] = frozenset()


def read_checks(path: Path) -> tuple[Check, ...]:
    """Return the checks of a file, its matrices spelled out.

    Raises:
        ProfileError: what is wrong, with file and line.
    """
    document = read_yaml_file(path)
    data = document.data
    _known(document, "", data, _TOP)
    defaults = _settings(document, "defaults", data.get("defaults") or {})
    entries = data.get("checks")
    if not isinstance(entries, list) or not entries:
        raise ProfileError(
            "there are no checks", where=document.place("checks"), hint="`kvcalc check --init` writes some"
        )
    checks: list[Check] = []
    for index, entry in enumerate(entries):
        checks += _expanded(document, f"checks.{index}", entry, defaults, index, max_checks=_MAX_CHECKS - len(checks))
    may_shadow = _names(document, "allow_shadowing", data.get("allow_shadowing") or [])
    return tuple(replace(check, may_shadow=may_shadow) for check in checks)


def _names(document: Document, path: str, data: Any) -> frozenset[str]:
    if not isinstance(data, list) or not all(isinstance(name, str) for name in data):
        hint = "for example allow_shadowing: [h100-sxm]"
        raise ProfileError(f"{path} is a list of names", where=document.place(path), hint=hint)
    return frozenset(name.strip().lower() for name in data)


def _known(document: Document, path: str, data: Mapping[str, Any], names: Iterable[str]) -> None:
    for key in data:
        if key not in names:
            hint = did_you_mean(str(key), names) or f"keys here: {', '.join(names)}"
            where = document.place(f"{path}.{key}" if path else str(key))
            raise ProfileError(f"the key {key!r} is not known here", where=where, hint=hint)


def _mapping(document: Document, path: str, data: Any) -> Mapping[str, Any]:
    if not isinstance(data, dict):
        raise ProfileError(f"{path} must be a mapping of names and values", where=document.place(path))
    return data


def _settings(document: Document, path: str, data: Any) -> dict[str, Any]:
    return {str(key).replace("-", "_"): value for key, value in _mapping(document, path, data).items()}


def _expanded(
    document: Document, path: str, entry: Any, defaults: dict[str, Any], index: int, *, max_checks: int
) -> list[Check]:
    """Return a check for each cell of its matrix, which are counted first."""
    data = _mapping(document, path, entry)
    settings = _settings(document, path, {key: value for key, value in data.items() if key not in _OWN})
    assertions = tuple(_assertions(document, path, data))
    if not assertions:
        hint = "expect: {fits: true}"
        raise ProfileError("this check expects nothing", where=document.place(path), hint=f"for example {hint}")
    matrix = {
        name: _cells(document, f"{path}.matrix.{name}", name, values)
        for name, values in _settings(document, f"{path}.matrix", data.get("matrix") or {}).items()
    }
    cells = prod(map(len, matrix.values()))
    if cells > max_checks:
        raise ProfileError(
            f"{cells:,} checks, where a file may have {_MAX_CHECKS:,} in all",
            where=document.place(path),
            hint="take larger steps in its matrix",
        )
    name = data.get("name") or settings.get("model") or f"check {index + 1}"
    if not isinstance(name, str):
        raise ProfileError(f"a check's name is text, not {name!r}", where=document.place(f"{path}.name"))
    checks = []
    for cell in product(*matrix.values()):
        chosen = dict(zip(matrix, cell, strict=True))
        point = ", ".join(f"{key}={value}" for key, value in chosen.items())
        full = f"{name} [{point}]" if point else name
        checks.append(Check(full, {**settings, **chosen}, defaults, assertions, document.place(path)))
    return checks


def _cells(document: Document, path: str, name: str, values: Any) -> list[Any]:
    if isinstance(values, str) and name in _COUNTED:
        try:
            return list(parse_counts(values, what=name))
        except InputError as error:
            raise ProfileError(error.what, where=document.place(path), hint=error.hint) from None
    if not isinstance(values, list) or not values or any(isinstance(value, dict | list) for value in values):
        hint = "for example gpu: [h100-sxm, h200], or batch: 1-64*2"
        raise ProfileError(f"{name} in a matrix is a list of values", where=document.place(path), hint=hint)
    if len(set(values)) < len(values):
        twice = next(value for value in values if values.count(value) > 1)
        raise ProfileError(f"{name} in a matrix has {twice!r} twice", where=document.place(path))
    return values


def _assertions(document: Document, path: str, data: Mapping[str, Any]) -> Iterable[Assertion]:
    for field, expected in _mapping(document, f"{path}.expect", data.get("expect") or {}).items():
        yield Assertion(str(field), expected, recorded=False, where=document.place(f"{path}.expect.{field}"))
    recorded = data.get("record") or []
    if not isinstance(recorded, list):
        raise ProfileError("record is a list of fields", where=document.place(f"{path}.record"))
    for index, field in enumerate(recorded):
        yield Assertion(str(field), None, recorded=True, where=document.place(f"{path}.record.{index}"))


def checks_schema(options: Mapping[str, str], fields: Mapping[str, str], operators: Iterable[str]) -> dict[str, Any]:
    """Return the JSON Schema of files of checks, from which editors complete and check them.

    Args:
        options: names of options, with their help.
        fields: fields that can be asserted, with what they are; others are allowed.
        operators: what an expectation may have.
    """
    value = {"type": ["string", "number", "boolean", "null"]}
    setting = {"type": ["string", "number", "boolean", "array"]}
    settings = {name: {**setting, "description": text} for name, text in options.items()}
    expectation = {
        "anyOf": [
            value,
            {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": False,
                "properties": {
                    name: {"type": "array", "items": value} if name == "in" else value for name in operators
                },
            },
        ]
    }
    expect = {"type": "object", "additionalProperties": expectation, "minProperties": 1,
              "properties": {name: {**expectation, "description": text} for name, text in fields.items()}}  # fmt: skip
    check = {
        "type": "object",
        "additionalProperties": False,
        "anyOf": [{"required": ["expect"]}, {"required": ["record"]}],
        "properties": {
            "name": {"type": "string", "description": "What the check is called."},
            "matrix": {
                "type": "object",
                "additionalProperties": False,
                "properties": {name: {**setting, "description": text} for name, text in options.items()},
                "description": "Lists of values of options; every combination is a check.",
            },
            "expect": {**expect, "description": "Fields of reports, and what they must be."},
            "record": {"type": "array", "items": {"type": "string"},
                       "description": "Fields that are only written down, for `--against`."},
            **settings,
        },
    }  # fmt: skip
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Checks of kvcalc",
        "type": "object",
        "additionalProperties": False,
        "required": ["checks"],
        "properties": {
            "defaults": {"type": "object", "additionalProperties": False, "properties": settings,
                         "description": "Options of all checks."},
            "checks": {"type": "array", "minItems": 1, "items": check},
            "allow_shadowing": {"type": "array", "items": {"type": "string"},
                                "description": "Names of kvcalc's own that a profile of yours may stand in for."},
        },
    }  # fmt: skip
