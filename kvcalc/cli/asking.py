"""Asking a question with the texts of a command line, and printing its answer.

Most commands are written plainly: ``--name value`` and flags, each once. Those are read here, by the declarations of
the question, since loading the command line library would take longer than the calculation. Whatever is written
otherwise, is wrong or asks for help is left to the library (`kvcalc.cli.app`), which has the rules and the messages.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.questions import QUESTIONS, question

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.questions.declared import Question

__all__ = ["CHARTS", "ask_and_print", "ask_plainly", "plain_texts"]

CHARTS = {
    "svg": "Write the chart as SVG.",
    "png": "Write the chart as PNG.",
    "html": "Write the chart as a page without network.",
}
# Questions that take long, or write files on the way, and the module whose ``run`` asks them.
_OWN_RUNS = {
    "simulate": "simulate",
    "sweep": "sweep",
    "check": "check",
    "demo": "demo",
    "bench": "measuring",
    "crosscheck": "measuring",
}
_OUTPUTS = ("--output", "-o")


def ask_and_print(name: str, asked: type[Question], texts: dict[str, Any]) -> bool:
    """Ask a question, print its answer, and return whether what was checked holds."""
    from kvcalc.cli.shared import check_charts, command_output, draw, emit, tell, waiting

    output = command_output(texts.pop("output", "table"), json=texts.pop("json", False))
    charts = {kind: texts.pop(kind, None) for kind in CHARTS if asked.has_chart}
    check_charts(charts)
    own = _OWN_RUNS.get(name.partition(" ")[0])
    if own is not None:
        import_module(f"kvcalc.cli.{own}").run(asked, texts, output, charts)
        return True
    is_explained = texts.pop("explain", False)
    question_asked = asked(**texts)
    with waiting("records" if name == "validate" else "") as progress:
        if progress is not None:
            question_asked.progress = progress  # type: ignore[method-assign]
        answer = question_asked.answer()
    for remark in answer.remarks:
        tell(remark)
    draw(answer.report, charts)
    emit(answer.report, output, answer.explained if is_explained else None)
    return answer.passed


def ask_plainly(words: Sequence[str]) -> int | None:
    """Run a command that is written plainly and return its exit code; none, and nothing done, for any other.

    Raises:
        KvcalcError: what the command raises.
    """
    name = words[0]
    if name not in QUESTIONS or name in _OWN_RUNS or "--help" in words:
        return None
    asked = question(name)
    texts = plain_texts(asked, words[1:])
    if texts is None:
        return None
    from kvcalc.core.units import print_bytes_as
    from kvcalc.profiles.origins import noting_origins

    print_bytes_as(texts.pop("units", "iec"))
    with noting_origins():
        return 0 if ask_and_print(name, asked, texts) else 1


def plain_texts(asked: type[Question], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values that the words of a command give, by parameter; none where they are not plain options.

    >>> from kvcalc.questions import question
    >>> plain_texts(question("size"), ["-m", "llama2-70b", "--batch=8", "--json"])
    {'model': 'llama2-70b', 'batch': '8', 'json': True}
    >>> plain_texts(question("size"), ["--model", "llama2-70b", "--batsch", "8"])
    """
    named = dict(_spellings(asked))
    texts: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        flag, has_value, value = word.partition("=") if word.startswith("--") else (word, "", "")
        name, switched = named.get(flag, ("", None))
        repeats = name in asked.params and asked.params[name].repeats
        if not name or (name in texts and not repeats) or (has_value and switched is not None):
            return None
        if switched is not None:
            texts[name] = switched
            continue
        value = value if has_value else next(rest, "-")
        if value.startswith("-"):
            return None
        texts[name] = (*texts.get(name, ()), value) if repeats else value
    if any(each.is_required and name not in texts for name, each in asked.params.items()):
        return None
    return texts


def _spellings(asked: type[Question]) -> Iterator[tuple[str, tuple[str, bool | None]]]:
    """Yield each option that may stand on a command line, with its parameter and, of a switch, what it sets."""
    for name, each in asked.params.items():
        if each.is_argument:
            continue
        for flag in each.flags:
            on, _, off = flag.partition("/")
            if on.strip():
                yield on, (name, True if each.kind == "flag" else None)
            if off:
                yield off, (name, False)
    yield "--json", ("json", True)
    if asked.explains:
        yield "--explain", ("explain", True)
    yield "--units", ("units", None)
    for flag in _OUTPUTS:
        yield flag, ("output", None)
