"""Dataclasses of `kvcalc.core.records` behave as Python's own."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import ClassVar

import pytest

from kvcalc.core import records

OPTIONS = {"frozen": True, "slots": True, "kw_only": True}


def pair(decorate, **options):
    """A class and one that inherits from it, with every kind of field."""

    @decorate(**options)
    class Base:
        """A base."""

        count: int
        kind: ClassVar[str] = "base"
        name: str = "plain"

    @decorate(**options)
    class Child(Base):
        """A child."""

        parts: list[int] = dataclasses.field(default_factory=list)
        remark: str = dataclasses.field(default="", compare=False, repr=False)
        total: int = dataclasses.field(init=False, default=0)
        doubled: int = dataclasses.field(init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", 2 * self.count)

    return Base, Child


OWN, PYTHON = (pair(decorate, **OPTIONS) for decorate in (records.dataclass, dataclasses.dataclass))


def test_repr_fields_and_signature_are_the_same():
    for own, python in zip(OWN, PYTHON, strict=True):
        assert repr(own(count=3)) == repr(python(count=3))
        assert [each.name for each in dataclasses.fields(own)] == [each.name for each in dataclasses.fields(python)]
        assert own.__slots__ == python.__slots__
        assert own.__match_args__ == python.__match_args__
        ours, theirs = inspect.signature(own), inspect.signature(python)
        assert [(each.name, each.kind, str(each.annotation)) for each in ours.parameters.values()] == [
            (each.name, each.kind, str(each.annotation)) for each in theirs.parameters.values()
        ]


@pytest.mark.parametrize("kinds", [OWN, PYTHON], ids=["own", "python"])
def test_values_are_compared_hashed_and_replaced(kinds):
    base, child = kinds
    one = child(count=3, parts=(1,), remark="a")
    assert one == child(count=3, parts=(1,), remark="b")
    assert hash(one) == hash(child(count=3, parts=(1,), remark="b"))
    assert one != child(count=4, parts=(1,))
    assert base(count=3) != child(count=3)
    assert base(count=3) != 3
    assert dataclasses.replace(one, count=5).doubled == 10
    assert child(count=1).parts == []
    assert child(count=1).kind == base.kind == "base"
    assert child(count=1).parts is not child(count=1).parts
    assert dataclasses.asdict(base(count=1)) == {"count": 1, "name": "plain"}


@pytest.mark.parametrize("kinds", [OWN, PYTHON], ids=["own", "python"])
def test_frozen_instances_refuse_changes(kinds):
    one = kinds[1](count=3)
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'count'"):
        one.count = 4
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'count'"):
        del one.count
    with pytest.raises(TypeError):
        kinds[0](3)
    with pytest.raises(TypeError):
        kinds[0]()


@records.dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """At module level, so that it can be pickled."""

    count: int
    parts: tuple[int, ...] = ()


def test_frozen_slots_are_copied_and_pickled():
    one = Kept(count=1, parts=(2, 3))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one  # noqa: S301  our own bytes


def test_mutable_classes_change_and_have_no_hash():
    base, _ = pair(records.dataclass, slots=True)
    one = base(1, "x")
    one.count = 2
    assert one == base(2, "x")
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_one_field_and_none_are_compared_by_value():
    @records.dataclass(frozen=True)
    class Empty:
        """Nothing."""

    @records.dataclass(frozen=True)
    class One:
        """One field."""

        value: float

    nan = float("nan")
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert One(nan) == One(nan), "as tuples are compared: the same object is equal"


def test_methods_that_a_class_writes_itself_are_kept():
    @records.dataclass(frozen=True, slots=True)
    class Named:
        """A name, compared without case."""

        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named) and self.name.lower() == other.name.lower()

        def __hash__(self) -> int:
            return hash(self.name.lower())

    assert repr(Named("a")) == "<a>"
    assert Named("A") == Named("a")
    assert hash(Named("A")) == hash(Named("a"))
