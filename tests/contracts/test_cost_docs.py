"""Every formula says where it comes from and shows a number that can be checked by hand."""

import ast
import importlib
import inspect
import pkgutil

import pytest

import kvcalc.cost

# What is too large for an example of a few lines.
WHOLE = ("ModelProfile", "HardwareProfile", "StepCost", "OpCost")


def _formulas():
    for module in pkgutil.iter_modules(kvcalc.cost.__path__, "kvcalc.cost."):
        found = importlib.import_module(module.name)
        for name in found.__all__:
            if inspect.isfunction(getattr(found, name)):
                yield pytest.param(getattr(found, name), id=f"{module.name.removeprefix('kvcalc.')}.{name}")


FORMULAS = list(_formulas())


@pytest.mark.parametrize("function", FORMULAS)
def test_every_formula_cites_its_source(function):
    _, found, citation = inspect.getdoc(function).partition("Source: ")
    assert found
    assert len(citation.split("\n\n")[0]) > 20


@pytest.mark.parametrize("function", FORMULAS)
def test_every_formula_has_an_example(function):
    if not any(kind in str(note) for note in function.__annotations__.values() for kind in WHOLE):
        assert ">>> " in inspect.getdoc(function)


@pytest.mark.parametrize("function", FORMULAS)
def test_no_formula_is_unfinished(function):
    source = inspect.getsource(function)
    assert not [word for word in ("TODO", "FIXME", "XXX") if word in source]
    assert ast.parse(source).body[0].returns is not None


def test_formulas_are_found():
    assert {"forward_cost", "mixer_work", "entry_bytes", "step_time"} <= {
        found.values[0].__name__ for found in FORMULAS
    }
