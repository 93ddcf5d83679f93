"""Names and docstrings say what their things are and do, in plain English: no riddles, no ``found`` and ``place``."""

import ast
import re
from pathlib import Path

import pytest

import kvcalc

FOLDER = Path(kvcalc.__file__).parent
RIDDLE = re.compile(r"(?:(?:return|yield|say|give|tell) )?(?:what|how|who|whose|which|where|when)\b", re.IGNORECASE)


def riddles_of(code: str) -> list[str]:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(code)) if isinstance(node, kinds)]
    return [text.splitlines()[0] for text in texts if RIDDLE.match(text)]


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda path: str(path.relative_to(FOLDER)))
def test_no_docstring_begins_with_a_riddle(path: Path) -> None:
    assert riddles_of(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("text", ["What a rank holds.", "Return what fits.", "Say which it is.", "How fast at most."])
def test_riddles_are_found(text: str) -> None:
    assert riddles_of(f'def f():\n    """{text}"""\n') == [text]


def test_plain_sentences_are_left_alone() -> None:
    assert riddles_of('def f():\n    """Count the tokens that a rank holds, whatever they are."""\n') == []


# Names that say where a value came from and not what it is; the package is free of them.
VAGUE = {"found", "place", "told", "held", "most", "least", "said"}
CLEAN = sorted(path.name for path in FOLDER.iterdir() if (path / "__init__.py").exists())
# Functions whose names of this kind are part of how others call them.
ALLOWED = {("cost/estimate.py", "most"), ("importers/config_reader.py", "least")}
WORKED_ON = ("explore/answers", "explore/endpoints")
ALLOWED |= {(f"{name}.py", each) for name in WORKED_ON for each in ("found", "held", "place", "told")}


def vague_names_of(code: str) -> set[str]:
    """Return vague names of variables and parameters; fields of a class are words of its reports."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    nodes = [node for each in ast.walk(ast.parse(code)) if isinstance(each, kinds) for node in ast.walk(each)]
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return VAGUE & (stored | {node.arg for node in nodes if isinstance(node, ast.arg)})


@pytest.mark.parametrize("package", CLEAN)
def test_a_name_says_what_it_holds(package: str) -> None:
    paths = {str(path.relative_to(FOLDER)): path for path in (FOLDER / package).rglob("*.py")}
    vague = {(name, each) for name, path in paths.items() for each in vague_names_of(path.read_text(encoding="utf-8"))}
    assert vague <= ALLOWED, "name the thing: rows, index, notes, capacity, max"


def test_vague_names_are_found() -> None:
    code = "class Step:\n    most: int = 0\n"
    assert vague_names_of(code) == set()
    assert vague_names_of("def f(place, index):\n    found = [place]\n    return found.most") == {"place", "found"}
