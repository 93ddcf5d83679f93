"""Questions: one room each, which holds its parameters, its answer and its Python function.

Command lines, check files, pages and Python ask them by the same declarations (`declared`).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import UnknownNameError, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.questions.declared import Question

__all__ = ["QUESTIONS", "ask", "question"]

# The class of each question, in the module of its first word; the words are those of its command.
QUESTIONS = {
    "size": "Size",
    "decode": "Decode",
    "prefill": "Prefill",
    "roofline": "Roofline",
    "fit": "Fit",
    "compare": "Compare",
    "solve": "Solve",
    "speculate": "Speculate",
    "traffic": "Traffic",
    "layers": "Layers",
    "levers": "Levers",
    "plan": "Plan",
    "simulate": "Simulate",
    "sweep": "Swept",
    "reconcile": "Reconcile",
    "validate": "Validate",
    "calibrate": "Calibrate",
    "check": "Checks",
    "devices": "Devices",
    "bench": "Bench",
    "crosscheck": "Crosscheck",
    "demo kv-cache": "KvCacheDemo",
    "demo speculate": "SpeculationDemo",
    "demo paging": "PagingDemo",
    "demo batching": "BatchingDemo",
    "demo drift": "DriftDemo",
}


def question(name: str) -> type[Question]:
    """Return a question by its name, a key of `QUESTIONS`."""
    kind: type[Question] = getattr(import_module(f"{__name__}.{name.partition(' ')[0]}"), QUESTIONS[name])
    return kind


def ask(name: str, given: Mapping[str, Any]) -> Any:
    """Return the report that answers a question.

    Args:
        name: a key of `QUESTIONS`.
        given: values of its parameters by name (``kv_dtype``, ``max-model-len``), as texts of a command line or as
            Python objects.

    Raises:
        KvcalcError: no such question or parameter, a value that cannot be read, or what cannot be computed.
    """
    if name not in QUESTIONS:
        hint = did_you_mean(name, QUESTIONS) or f"questions: {', '.join(QUESTIONS)}"
        raise UnknownNameError(f"there is no question {name!r}", hint=hint)
    kind = question(name)
    spelled = kind.spelled()
    keys = {key: key.replace("-", "_") for key in given}
    return kind(**{spelled.get(keys[key], key): value for key, value in given.items()}).answer().report
