"""Typed access to a config: the first and last value that each kind takes, what null means, and what is noted."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import ProfileError
from kvcalc.importers.config_reader import Config


def _config(value: Any, key: str = "hidden_size") -> Config:
    return Config({key: value})


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [("hidden_size", 1, 1), ("hidden_size", 10**12, 1), ("hidden_size", 8.0, 8), ("offset", 0, 0), ("offset", -1, -1),
     ("num_hidden_layers", 10_000, 1), ("n_layer", 10_000, 1)],
)  # fmt: skip
def test_the_first_and_the_last_whole_number_are_taken(key: str, value: float, least: int) -> None:
    found = _config(value, key).integer(key, least=least)
    assert (found, type(found)) == (value, int)


@pytest.mark.parametrize(
    ("key", "value", "least"),
    [("hidden_size", 0, 1), ("hidden_size", 10**12 + 1, 1), ("hidden_size", 8, 9), ("offset", -1, 0), ("hidden_size", 1.5, 1),
     ("num_hidden_layers", 10_001, 1), ("n_layer", 10_001, 1), ("hidden_size", True, 1), ("hidden_size", "8", 1)],
)  # fmt: skip
def test_the_next_one_is_refused(key: str, value: object, least: int) -> None:
    with pytest.raises(ProfileError, match=f"{key} is .* not a whole number from {least}"):
        _config(value, key).integer(key, least=least)


@pytest.mark.parametrize("value", [0, 0.0, 0.5, 10**12])
def test_a_number_is_zero_or_more_and_finite(value: float) -> None:
    assert _config(value).number("hidden_size") == value


@pytest.mark.parametrize("value", [-1e-9, 10**12 + 1, float("nan"), float("inf"), True, None, "1"])
def test_other_numbers_are_refused(value: object) -> None:
    with pytest.raises(ProfileError, match="a number of zero or more"):
        _config(value).number("hidden_size")


def test_null_is_false_empty_or_absent() -> None:
    config = _config(None)
    assert config.flag("hidden_size") is False
    assert config.text("hidden_size") == ""
    assert config.sequence("hidden_size", length=3) == []
    assert config.maybe_integer("hidden_size") is None
    assert config.integer_or(7, "hidden_size") == 7
    assert config.child("hidden_size").data == {}
    assert not config.has("hidden_size")
    assert not config.has("absent")
    assert _config(0).has("hidden_size")


@pytest.mark.parametrize(("length", "fits"), [(2, False), (3, True), (4, False)])
def test_a_list_has_an_entry_for_each_layer(length: int, *, fits: bool) -> None:
    config = _config([0] * length)
    if fits:
        assert config.sequence("hidden_size", length=3) == [0, 0, 0]
    else:
        with pytest.raises(ProfileError, match=f"{length} entries.* not 3 entries"):
            config.sequence("hidden_size", length=3)


def test_a_file_comes_before_its_class_and_the_class_before_the_rule() -> None:
    given = Config({"a": 1}, defaults={"a": 2, "b": 3})
    assert [given.integer(key, default=4) for key in "abc"] == [1, 3, 4]
    assert [given.uses[key].use for key in "abc"] == ["used", "defaulted", "defaulted"]
    assert [given.uses[key].why for key in "abc"] == ["", "the config class's default", "absent"]
    with pytest.raises(ProfileError, match="no 'x' or 'y'"):
        given.integer("x", "y")


def test_two_spellings_agree_or_are_refused_and_null_gives_way() -> None:
    spelt = {"n_head": "num_attention_heads"}
    assert Config({"n_head": 4}, spellings=spelt).integer("num_attention_heads") == 4
    same = Config({"n_head": 4, "num_attention_heads": 4}, spellings=spelt)
    assert same.integer("num_attention_heads") == 4
    assert set(same.uses) == {"n_head", "num_attention_heads"}
    assert Config({"n_head": 4, "num_attention_heads": None}, spellings=spelt).integer("num_attention_heads") == 4
    with pytest.raises(ProfileError, match="is 8, but n_head, another name for it, is 4"):
        Config({"n_head": 4, "num_attention_heads": 8}, spellings=spelt).integer("num_attention_heads")


def test_a_long_value_is_cut_in_a_message() -> None:
    with pytest.raises(ProfileError) as caught:
        _config("x" * 58).integer("hidden_size")
    assert f"is '{'x' * 58}', not" in caught.value.what
    with pytest.raises(ProfileError) as caught:
        _config("x" * 59).integer("hidden_size")
    assert f"is '{'x' * 59}..., not" in caught.value.what


def test_a_mapping_inside_is_a_config_with_a_path_of_its_own() -> None:
    outer = Config({"text_config": {"a": 1}}, where="f.json")
    inner = outer.child("text_config", defaults={"b": 2})
    assert (inner.integer("a"), inner.integer("b")) == (1, 2)
    assert set(outer.uses) == {"text_config", "text_config.a", "text_config.b"}
    with pytest.raises(ProfileError, match="text_config is 7, not a mapping"):
        Config({"text_config": 7}).child("text_config")


def test_what_is_passed_over_is_noted_once() -> None:
    config = Config({"a": 1, "b": 2})
    config.integer("a")
    config.pass_over("a", "no effect")
    config.pass_over("b", "no effect")
    config.pass_over("c", "no effect")
    assert {key: use.use for key, use in config.uses.items()} == {"a": "used", "b": "ignored"}


def test_a_null_in_place_of_a_list_of_two_is_refused() -> None:
    with pytest.raises(ProfileError, match="channels"):
        Config({"channels": None}).integers("channels", length=2)
