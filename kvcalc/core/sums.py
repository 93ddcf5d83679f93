"""Sums that every Python rounds alike."""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any, TypeVar, cast

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["added"]

_Number = TypeVar("_Number")


def added(numbers: Iterable[_Number]) -> _Number:
    """Add numbers up from left to right, floats too; 0 where there are none.

    The built-in ``sum`` rounds floats otherwise from Python 3.12 on, and an answer must not depend on the Python.

    >>> added([0.1] * 10), added([])
    (0.9999999999999999, 0)
    """
    summed: Any = 0
    return cast("_Number", reduce(add, numbers, summed))
