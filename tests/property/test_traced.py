"""A number that remembers how it came about has the value of a plain one, and both of its texts say how."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvcalc.core.cost_types import OpCost
from kvcalc.core.model import ModelProfile
from kvcalc.core.traced import TracedFloat, TracedInt, called, chance_of_any, named, plain, smaller, term_of, whole
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import Formats, Parallel, decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.plan.explain.named import named_formats, named_model, named_parallel

from .strategies import formats, models, parallels

JOINS = {
    "+": lambda one, other: one + other,
    "-": lambda one, other: one - other,
    "*": lambda one, other: one * other,
    "/": lambda one, other: one / other,
    "//": lambda one, other: one // other,
    "%": lambda one, other: one % other,
    "ceil": ceil_div,
    "min": smaller,
    "quotient": lambda one, other: divmod(one, other)[0],
    "rest": lambda one, other: divmod(one, other)[1],
}
SIZES = {"heads": 32, "layers": 7, "width": 96, "one": 1}
Tree = Any
trees: st.SearchStrategy[Tree] = st.recursive(
    st.one_of(st.sampled_from(sorted(SIZES)), st.integers(0, 3)),
    lambda inner: st.tuples(st.sampled_from(sorted(JOINS)), inner, inner),
    max_leaves=12,
)


def _computed(tree: Tree, sizes: dict[str, Any]) -> Any:
    if not isinstance(tree, tuple):
        return sizes.get(tree, tree)
    join, *terms = tree
    parts = [_computed(term, sizes) for term in terms]
    # what is rounded is whole in every formula; of floats the last digit would decide
    assume(join in ("+", "-", "*", "/", "min") or all(isinstance(part, int) for part in parts))
    return JOINS[join](*parts)


@given(trees)
def test_value_and_both_texts_are_those_of_plain_numbers(tree: Tree) -> None:
    try:
        value = _computed(tree, SIZES)
    except ZeroDivisionError:
        return
    traced = _computed(tree, {name: named(size, name) for name, size in SIZES.items()})
    assert plain(traced) == value
    assert type(plain(traced)) is type(value)
    term = term_of(traced)
    assert eval(term.expression, {"__builtins__": {"min": min}}) == pytest.approx(value, rel=1e-9, abs=1e-9)  # noqa: S307
    # a quotient and a rest of their own are named by a formula whose division need not be exact
    if not re.search(r"'(quotient|rest|ceil|//)'", repr(tree)):
        text = re.sub(r"(?<= )x(?= )", "*", term.formula)
        names = {**SIZES, "__builtins__": {"min": min}}
        assert eval(text, names) == pytest.approx(value, rel=1e-9, abs=1e-9)  # noqa: S307  our own output


def _size(value: int, name: str) -> Any:
    return named(value, name)


def test_nothing_zero_and_one_drop_out_and_a_common_factor_is_shortened() -> None:
    heads, ranks, hidden = _size(32, "heads"), _size(4, "ranks"), _size(4096, "hidden")
    assert term_of(0 + heads * 1 - 0).formula == "heads"
    assert heads * 0 == 0
    assert not isinstance(heads * 0, TracedInt)
    assert term_of(hidden * heads / heads).formula == "hidden"
    assert term_of(hidden * ceil_div(heads, ranks) // heads).formula == "hidden / ranks"
    assert term_of((_size(100, "context") - 1) + 1).formula == "context"
    assert term_of(hidden + heads - heads).formula == "hidden"


def test_a_division_is_rounded_up_only_where_it_leaves_a_rest() -> None:
    heads, ranks = _size(9, "heads"), _size(4, "ranks")
    assert term_of(ceil_div(heads, ranks)).formula == "ceil(heads / ranks)"
    assert term_of(ceil_div(heads, ranks)).expression == "(-(-9 // 4))"
    assert term_of(ceil_div(_size(8, "heads"), ranks)).expression == "8 / 4"


def test_brackets_stand_where_the_order_needs_them() -> None:
    one, other, third = _size(5, "a"), _size(3, "b"), _size(2, "c")
    assert term_of((one + other) * third).formula == "(a + b) x c"
    assert term_of(one * (other * third)).formula == "a x b x c"
    assert term_of(one * (other / third)).formula == "a x (b / c)"
    assert term_of(one - (other - third)).formula == "a - (b - c)"
    assert term_of(one / (other * third)).formula == "a / (b x c)"
    assert term_of(-(one + other) * third).formula == "(-(a + b)) x c"
    assert term_of(2 * called(one * other, "area")).formula == "2 x area"
    assert term_of(2 * called(one * other, "area")).expression == "2 * (5 * 3)"


def test_a_whole_number_is_rounded_down_and_a_rounded_one_to_the_nearest() -> None:
    share = _size(7, "a") / _size(2, "b")
    assert isinstance(share, TracedFloat)
    assert (whole(share), term_of(whole(share)).expression) == (3, "7 / 2 // 1")
    assert (round(share), term_of(round(share)).expression) == (4, "(-(-(7 / 2) // 1))")
    assert (round(share - 1), term_of(round(share - 1)).expression) == (2, "(7 / 2 - 1) // 1")  # half to even
    assert type(whole(_size(8, "a") / 2)) is TracedInt


def test_the_chance_of_any_is_spelled_as_a_power() -> None:
    chance = chance_of_any(_size(1, "k") / _size(4, "E"), _size(2, "tokens"))
    assert term_of(chance).formula == "1 - (1 - k / E) ^ tokens"
    assert eval(term_of(chance).expression) == pytest.approx(chance) == 0.4375  # noqa: S307  our own output


FIELDS = tuple(field.name for field in fields(OpCost) if field.name not in ("name", "part", "unit"))


@given(models(), formats(), parallels(stages=2), st.integers(1, 9), st.integers(1, 150))
def test_a_pass_of_any_model_spells_every_cost_of_its_operators(
    model: ModelProfile, used: Formats, parallel: Parallel, batch: int, tokens: int
) -> None:
    parallel = replace(parallel, pipeline=min(parallel.pipeline, model.layers))
    spread = (
        {"formats": used, "parallel": parallel},
        {
            "formats": named_formats(used),
            "parallel": named_parallel(parallel),
        },
    )
    for step, length in ((decode_step, "context"), (prefill_pass, "prompt")):
        plain_cost = forward_cost(model, (step(batch=batch, **{length: tokens}),), **spread[0])
        sizes = {"batch": named(batch, "batch"), length: named(tokens, length)}
        spelled = forward_cost(named_model(model), (step(**sizes),), **spread[1])
        for op, same in zip(plain_cost.ops, spelled.ops, strict=True):
            for name in FIELDS:
                value, term = getattr(op, name), term_of(getattr(same, name))
                assert plain(getattr(same, name)) == value
                assert type(plain(getattr(same, name))) is type(value)
                found = eval(term.expression, {"__builtins__": {"min": min, "max": max}})  # noqa: S307  our own output
                assert found == pytest.approx(value, rel=1e-9), (op.name, name, term.formula)
