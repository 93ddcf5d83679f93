"""`dataclass` as the standard library has it, made in a quarter of the time.

Python's own writes and compiles six methods for each class, and everyday commands define fifty classes before they
compute anything: half of their start-up. This one compiles ``__init__`` alone; the other methods are closures over the
names of the fields. Fields, slots, inheritance, `dataclasses.replace` and pickling are those of the standard library.
"""

from __future__ import annotations

from dataclasses import MISSING, FrozenInstanceError, fields
from dataclasses import dataclass as plain_dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from dataclasses import Field, dataclass

__all__ = ["dataclass"]


def _dataclass(
    *,
    frozen: bool = False,
    slots: bool = False,
    kw_only: bool = False,
    repr: bool = True,  # noqa: A002  as Python's own names it
    eq: bool = True,
) -> Callable[[type], type]:
    """Return a decorator that makes a class a dataclass; arguments as those of `dataclasses.dataclass`.

    A frozen class inherits from others of this decorator only: Python's own does not know that they are frozen.

    >>> @dataclass(frozen=True, slots=True, kw_only=True)
    ... class Point:
    ...     'A point.'
    ...     x: int
    ...     y: int = 0
    >>> Point(x=1), Point(x=1) == Point(x=1, y=0), hash(Point(x=1)) == hash(Point(x=1, y=0))
    (Point(x=1, y=0), True, True)
    >>> Point(x=1).x = 2
    Traceback (most recent call last):
    dataclasses.FrozenInstanceError: cannot assign to field 'x'
    """

    def decorate(original: type) -> type:
        own = {name for name in ("__repr__", "__eq__", "__hash__") if vars(original).get(name) is not None}
        made: Any = plain_dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(original)
        made.__init__ = _initialiser(made, frozen=frozen)
        if eq:
            values = _values(tuple(each.name for each in fields(made) if each.compare))
            if "__eq__" not in own:
                made.__eq__ = _equality(values)
            if "__hash__" not in own:
                made.__hash__ = _hashing(values) if frozen else None
        if repr and "__repr__" not in own:
            made.__repr__ = _shown
        if frozen:
            made.__setattr__, made.__delattr__ = _refuse_assignment, _refuse_deletion
            if slots:
                made.__getstate__, made.__setstate__ = _state, _restore
        return made  # type: ignore[no-any-return]

    return decorate


def _initialiser(made: Any, *, frozen: bool) -> Callable[..., None]:
    """Compile ``__init__``: the one method whose arguments differ from class to class."""
    known: dict[str, Any] = {"_set": object.__setattr__, "_left_out": MISSING}
    ordered: Sequence[Field[Any]] = sorted(fields(made), key=lambda each: bool(each.kw_only))
    arguments, lines, seen_keyword = ["self"], [], False
    for each in ordered:
        name, value = each.name, each.name
        if each.default is not MISSING:
            known[f"_default_{name}"] = each.default
        if each.default_factory is not MISSING:
            known[f"_make_{name}"] = each.default_factory
            value = f"_make_{name}() if {name} is _left_out else {name}"
        if each.init:
            if each.kw_only and not seen_keyword:
                seen_keyword = True
                arguments.append("*")
            arguments.append(name + _default_text(each))
        elif each.default_factory is not MISSING:
            value = f"_make_{name}()"
        elif each.default is not MISSING:
            value = f"_default_{name}"
        else:
            continue
        lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
    if hasattr(made, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec(f"def __init__({', '.join(arguments)}):\n" + ("\n".join(lines) or " pass"), known)  # noqa: S102  names of fields
    function: Any = known["__init__"]
    function.__qualname__ = f"{made.__qualname__}.__init__"
    function.__module__ = made.__module__
    function.__annotations__ = {**{each.name: each.type for each in ordered if each.init}, "return": None}
    return function  # type: ignore[no-any-return]


def _default_text(each: Field[Any]) -> str:
    if each.default is not MISSING:
        return f"=_default_{each.name}"
    return "=_left_out" if each.default_factory is not MISSING else ""


def _values(names: tuple[str, ...]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function from an instance to the values of some of its fields, as a tuple."""
    if len(names) > 1:
        return attrgetter(*names)
    return lambda self: tuple(getattr(self, name) for name in names)


def _equality(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any, object], bool]:
    def __eq__(self: Any, other: object) -> bool:  # noqa: N807  it becomes the method
        return values(self) == values(other) if other.__class__ is self.__class__ else NotImplemented

    return __eq__


def _hashing(values: Callable[[Any], tuple[Any, ...]]) -> Callable[[Any], int]:
    def __hash__(self: Any) -> int:  # noqa: N807  it becomes the method
        return hash(values(self))

    return __hash__


def _shown(self: Any) -> str:
    shown = ", ".join(f"{each.name}={getattr(self, each.name)!r}" for each in fields(self) if each.repr)
    return f"{self.__class__.__qualname__}({shown})"


def _refuse_assignment(self: Any, name: str, value: object) -> None:
    del self, value
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_deletion(self: Any, name: str) -> None:
    del self
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _restore(self: Any, state: Sequence[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


if not TYPE_CHECKING:
    dataclass = _dataclass
