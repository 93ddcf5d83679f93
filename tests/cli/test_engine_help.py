"""The help names the engines: all of them, and beside an option those that know it."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from kvcalc.api.engines import _OWN_OPTIONS
from kvcalc.cli import fit, size
from kvcalc.cli.options import ENGINE_NAMES
from kvcalc.engines.pools import ENGINES

COMMANDS = {"fit": fit.command, "size": size.command}


def help_of(command: str, option: str) -> str:
    hint = get_type_hints(COMMANDS[command], include_extras=True)[option]
    return str(hint.__metadata__[0].help)


def test_the_names_are_those_of_the_engines() -> None:
    assert set(ENGINE_NAMES.replace(" or ", ", ").split(", ")) == set(ENGINES)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_engine_names_every_engine(command: str) -> None:
    assert [name for name in ENGINES if name not in help_of(command, "engine")] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_an_option_names_the_engines_that_know_it(command: str) -> None:
    options = inspect.signature(COMMANDS[command]).parameters
    for names, owners in _OWN_OPTIONS.items():
        for name in names:
            assert name in options
            told = help_of(command, name).lower()
            assert [engine for engine in ENGINES if engine in told] == [e for e in ENGINES if e in owners], name
