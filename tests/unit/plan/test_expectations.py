"""What an expectation asks of a figure: the limit itself holds, and the next number beyond it does not."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import InputError
from kvcalc.plan.expectations import field_of, outcome


@pytest.mark.parametrize(
    ("actual", "expected", "holds"),
    [
        (30, {"min": 30}, True),
        (29, {"min": 30}, False),
        (30, {"max": 30}, True),
        (31, {"max": 30}, False),
        (30, {"min": 30, "max": 30}, True),
        (31, {"min": 30, "max": 30}, False),
        (29, {"min": 30, "max": 30}, False),
        (30, {"equals": 30}, True),
        (31, {"equals": 30}, False),
        (30, {"not": 30}, False),
        (31, {"not": 30}, True),
        (30, {"in": [29, 30]}, True),
        (31, {"in": [29, 30]}, False),
        (33, {"equals": 30, "within": "10%"}, True),
        (34, {"equals": 30, "within": "10%"}, False),
        (27, {"equals": 30, "within": 0.1}, True),
        (2**60 + 1, 2**60, False),  # whole numbers are not rounded
        (1.0 + 1e-10, 1.0, True),
        (1.0 + 1e-8, 1.0, False),
        (None, {"min": 0}, False),
        (1, {"equals": 1.0}, True),
    ],
)
def test_the_limit_belongs_to_what_is_asked_for(actual: Any, expected: Any, *, holds: bool) -> None:
    assert outcome(actual, expected, "batch")[0] is holds


@pytest.mark.parametrize(
    ("field", "asked", "value"),
    [
        ("kv.total_bytes", "2 GiB", 2 * 2**30),
        ("ideal_s", "5ms", 0.005),
        ("summary.ttft_s.p95", "2s", 2.0),
        ("kv_headroom", "10%", 0.1),
        ("kv_headroom", "2.5%", 0.025),
        ("link_bytes_per_s", "900GB/s", 900e9),
        ("context", "128k", 128_000),
    ],
)
def test_a_text_is_a_number_in_the_fields_own_unit(field: str, asked: str, value: float) -> None:
    assert outcome(value, asked, field)[0]
    assert not outcome(value * 1.001, asked, field)[0]


@pytest.mark.parametrize(
    ("actual", "expected", "field", "words"),
    [
        (1, "10%", "batch", "is a share, and this figure is none"),
        (1, "10%", "kv.total_bytes", "is a share"),
        (1, None, "batch", "is a number"),
        (1, [1], "batch", "is a number"),
        (True, 1, "fits", "is true or false"),
        ("x", [1], "name", "is not a value"),
        (1, {"mni": 1}, "batch", "an expectation is a value or has"),
        (1, {"within": 0.1}, "batch", "an expectation is a value or has"),
        (33, {"equals": 30, "within": "inf"}, "batch", "within: 'inf' is not a finite number"),
        (33, {"equals": 30, "within": "1e400%"}, "batch", "within: '1e400%' is not a finite number"),
        (33, {"equals": 30, "within": "nan"}, "batch", "within: 'nan' is not a finite number"),
        (33, {"equals": 30, "within": "100%"}, "batch", "within must be from 0 to less than 100%"),
        (33, {"equals": 30, "within": -0.1}, "batch", "within must be from 0 to less than 100%"),
        (33, {"min": "inf"}, "batch", "'inf' is not a finite number"),
        (33, {"max": "nan"}, "decode.tokens_per_s", "'nan' is not a finite number"),
        (33, {"not": "-Infinity"}, "batch", "'-Infinity' is not a finite number"),
        (0.5, {"max": "1e400%"}, "kv_headroom", "'1e400%' is not a finite number"),
        (33, {"max": "1e308h"}, "ttft_s", "'1e308h' is not a finite number"),
        (33, "9" * 400, "batch", "is not a finite number"),
        (1, "many", "batch", "batch"),
        (1, {"min": 1, "within": "5%"}, "batch", "within has nothing to be within of"),
        (1, {"in": []}, "batch", "no figure is one of none"),
        (1, {"min": 1, "max": 0}, "batch", "nothing is at least 1 and at most 0"),
        (5, {"min": "2k", "max": "1k"}, "context", "nothing is at least 2,000 and at most 1,000"),
        ("memory", {"min": 1}, "decode.limiter", "is a word, 'memory'"),
        ("qwen3-8b", {"max": "z"}, "size.model", "is a word, 'qwen3-8b'"),
        (None, {"min": "many"}, "decode.usd_per_million_tokens", "'many' is not a number"),
        ("memory", {"not": "memroy"}, "decode.limiter", "decode.limiter is never 'memroy'"),
        ("memory", {"in": ["compute", "link"]}, "prefill.limiter", "prefill.limiter is never 'link'"),
    ],
)
def test_an_expectation_that_cannot_be_read_is_refused(actual: Any, expected: Any, field: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        outcome(actual, expected, field)


@pytest.mark.parametrize(("path", "value"), [("rows.1.a", 2), ("rows.0.a", 1), ("b", 3)])
def test_a_row_is_named_by_its_place(path: str, value: int) -> None:
    assert field_of({"rows": [{"a": 1}, {"a": 2}], "b": 3}, path) == value


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rows.2.a", "there are 2 entries"),
        ("a", "a field of each of 2 rows"),
        ("c", "no field 'c'"),
        ("b.c", "nothing below"),
    ],
)
def test_what_is_not_there_is_refused(path: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        field_of({"rows": [{"a": 1}, {"a": 2}], "b": 3}, path)
