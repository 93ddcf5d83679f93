"""The help of engine options: which engines have them."""

import pytest

from kvcalc.engines import checkpoint
from kvcalc.engines.pools import ENGINES
from kvcalc.questions import question
from kvcalc.questions.groups import ENGINE_NAMES, Engine


def test_the_engines_of_the_help_are_those_there_are() -> None:
    assert set(ENGINE_NAMES.replace(" or ", ", ").split(", ")) == {*ENGINES, *checkpoint.FRONTS}
    assert set(checkpoint.ENGINES) == set(ENGINES)
    for command in ("size", "fit", "decode"):
        assert ENGINE_NAMES in question(command).params["engine"].help


@pytest.mark.parametrize("name", [name for name, each in Engine.params.items() if each.engines])
def test_the_help_of_an_option_names_the_engines_that_have_it(name: str) -> None:
    option = Engine.params[name]
    named = [engine for engine in ENGINES if engine in option.help.lower()]
    assert named == [engine for engine in ENGINES if engine in option.engines]
