"""Objects told apart by identity, so that what follows from a whole model can be remembered without hashing it."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["ById"]

_T = TypeVar("_T")


class ById(Generic[_T]):
    """An object that equals only itself, for ``functools.lru_cache``, which keeps it alive as long as its result.

    Args:
        value: the object; it must never change.

    >>> one, other = (1, 2), tuple([1, 2])
    >>> ById(one) == ById(one), ById(one) == ById(other)
    (True, False)
    """

    __slots__ = ("value",)

    def __init__(self, value: _T) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ById) and other.value is self.value
