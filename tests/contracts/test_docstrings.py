"""Docstrings begin with what their things do, in plain English: never with a question word, or with "Return what"."""

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
