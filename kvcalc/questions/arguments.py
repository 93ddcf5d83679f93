"""Arguments of the Python functions: one habit for counts and deployments, and our errors for wrong kinds.

A count is a number or a text (``"8k"``); where several are taken, also a list of those or a range (``"1-256*2"``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.model import ModelProfile
from kvcalc.core.readers import count, count_from_zero, counts, memory
from kvcalc.plan.deployment import Deployment

if TYPE_CHECKING:
    from collections.abc import Sequence

    Count = int | str
    Counts = int | str | Sequence[int | str]

__all__ = ["bytes_or_none", "check_options", "deployed", "one", "one_or_none", "several", "several_or_none"]

_EXAMPLE = "kvcalc.deployment('llama3.1-8b', gpu='h100-sxm')"


def deployed(given: Any) -> Deployment:
    """Return a deployment; a model's name, file or profile is one without an accelerator.

    Raises:
        InputError: another kind of object.
        KvcalcError: a model that cannot be found.
    """
    if isinstance(given, Deployment):
        return given
    if isinstance(given, str | Path | ModelProfile):
        from kvcalc.questions.deployments import deployment

        return deployment(given)
    kind = type(given).__name__
    raise InputError(f"a deployment or a model is needed, not {kind} {given!r:.60}", hint=f"for example {_EXAMPLE}")


def check_options(given: Any) -> None:
    """Refuse what is given for the options of an engine and is none.

    Raises:
        InputError: another kind of object.
    """
    from kvcalc.engines.options import EngineOptions

    if given is not None and not isinstance(given, EngineOptions):
        kind = type(given).__name__
        raise InputError(f"options are a kvcalc.EngineOptions, not {kind} {given!r:.60}")


def bytes_or_none(given: Any, what: str) -> int | None:
    """Return bytes, of a number or a text such as ``"20GiB"``; none for none.

    Raises:
        InputError: not an amount of memory.
    """
    return None if given is None else memory(given, what)


def one(given: Any, what: str, *, from_zero: bool = False) -> int:
    """Return one count: ``8`` or ``"8k"``.

    Raises:
        InputError: a list, or no such number.
    """
    if _is_whole(given):
        return int(given)  # the question says which it takes
    return count_from_zero(given, what) if from_zero else count(given, what)


def _is_whole(given: Any) -> bool:
    return isinstance(given, int) and not isinstance(given, bool)


def one_or_none(given: Any, what: str) -> int | None:
    """Return one count, none for none; 0 is left to the question, which may mean something by it."""
    return None if given is None else one(given, what, from_zero=True)


def several(given: Any, what: str, old: Any = None) -> tuple[int, ...]:
    """Return counts in the order given: of a number, a text or a list of those.

    Args:
        given: the argument.
        what: its name.
        old: the same under its old name, which counts where it is given.

    Raises:
        InputError: something else.
    """
    asked = given if old is None else old
    if isinstance(asked, str):
        return counts(asked, what)
    try:
        each = tuple(asked) if not isinstance(asked, dict) and hasattr(asked, "__iter__") else (asked,)
    except TypeError:
        each = (asked,)
    if not each:
        raise InputError(f"{what} takes one number at least", hint="for example 8, '8k' or [1, 8, 32]")
    read = (counts(part, what) if isinstance(part, str) else (one(part, what),) for part in each)
    return tuple(number for numbers in read for number in numbers)


def several_or_none(given: Any, what: str, old: Any = None) -> tuple[int, ...] | None:
    """Return counts, as `several` does; none for none."""
    return None if given is None and old is None else several(given, what, old)
