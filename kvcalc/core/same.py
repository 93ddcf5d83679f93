"""Objects told apart by identity, so that what follows from a whole model can be remembered without hashing it."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Same"]

_T = TypeVar("_T")


class Same(Generic[_T]):
    """An object that equals only itself, for ``functools.lru_cache``, which keeps it alive as long as its result.

    Args:
        it: the object; it must never change.

    >>> one, other = (1, 2), tuple([1, 2])
    >>> Same(one) == Same(one), Same(one) == Same(other)
    (True, False)
    """

    __slots__ = ("it",)

    def __init__(self, it: _T) -> None:
        self.it = it

    def __hash__(self) -> int:
        return id(self.it)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.it is self.it
