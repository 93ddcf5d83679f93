"""Scenarios of anybody: what is no scenario is refused with its place, and what would not end is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from kvcalc.core.errors import InputError
from kvcalc.simulate.replay import replay

_SCHEDULER = {"max_num_batched_tokens": 8192, "max_num_seqs": 8, "max_model_len": 10**9}


def _inputs(scheduler: dict[str, Any] | None = None, request: dict[str, Any] | None = None, **inputs: Any) -> Any:
    return {
        "scheduler": _SCHEDULER | (scheduler or {}),
        "block_size": 16,
        "num_gpu_blocks": 100,
        "requests": [{"prompt_len": 10, "max_tokens": 2} | (request or {})],
        **inputs,
    }


def test_a_request_needs_no_stream_of_its_own() -> None:
    steps, totals = replay(_inputs())
    assert (totals["steps"], totals["finished"]) == (len(steps), 1)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (_inputs({"watermark": "x"}), "watermark must be a share"),
        (_inputs({"watermark": float("nan")}), "watermark must be a share"),
        (_inputs({"spec_accept": "9" * 5000}), "spec_accept must be"),
        (_inputs({"spec_accept": [1]}), "spec_accept must be"),
        (_inputs({"policy": []}), "is not known"),
        (_inputs(request={"prompt": [[1, 2]]}), r"a list of \[stream, start, tokens\]"),
        (_inputs(request={"prompt": [[0, 0, "x"]]}), r"a list of \[stream, start, tokens\]"),
        (_inputs(request={"prompt": 5}), r"a list of \[stream, start, tokens\]"),
        (_inputs(request={"priority": "x"}), "priority must be a whole number"),
        (_inputs(requests=["x"]), "requests is missing or of another form"),
        (_inputs(num_gpu_blocks=10**12), "num_gpu_blocks must be"),
        (_inputs(request={"arrival_step": 10**6}), "arrival_step must be"),
    ],
)
def test_what_is_no_scenario_is_refused(inputs: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        replay(inputs)


def test_a_scenario_that_would_not_end_is_stopped() -> None:
    inputs = _inputs(request={"max_tokens": 10**7}, block_size=10**6)
    with pytest.raises(InputError, match="goes on beyond 100,001 steps"):
        replay(inputs)


def test_what_a_request_generated_is_found_by_a_later_one_that_continues_it() -> None:
    """Generated tokens stand in their stream from 500,000 on: a second turn names the first one's answer so."""
    scheduler = {"max_num_seqs": 4, "max_num_batched_tokens": 512, "max_model_len": 4096, "enable_prefix_caching": True}
    first = {"id": "a", "prompt_len": 32, "prompt": [[1, 0, 32]], "gen_stream": 7, "max_tokens": 33}
    turn = [[1, 0, 32], [7, 500_000, 32], [2, 0, 10]]
    second = {"id": "b", "prompt_len": 74, "prompt": turn, "max_tokens": 1, "arrival_step": 40}
    steps, _ = replay({"scheduler": scheduler, "block_size": 16, "num_gpu_blocks": 50, "requests": [first, second]})
    assert [step["prefix_hit_tokens"] for step in steps if step["new"]] == [{}, {"b": 64}]


# What holds where a scenario leaves a key out, with another value that these requests notice.
_LEFT_OUT = [
    ("scheduler", "policy", "fcfs", "priority"),
    ("scheduler", "enable_prefix_caching", False, True),
    ("scheduler", "long_prefill_token_threshold", 0, 8),
    ("scheduler", "scheduler_reserve_full_isl", True, False),
    ("scheduler", "watermark", 0, 0.2),
    ("scheduler", "watermark_blocks", 0, 4),
    ("scheduler", "num_speculative_tokens", 0, 1),
    ("scheduler", "num_lookahead_tokens", 0, 1),
    ("scheduler", "max_num_scheduled_tokens", 48, 47),
    ("a", "arrival_step", 0, 1),
    ("b", "priority", 0, 1),
    ("c", "priority", 0, -1),
    ("b", "gen_stream", 2**41 + 1, 7),
]


def _crowded(part: str, key: str, value: object) -> Any:
    """A crowded scenario with one key given; the second and third request continue and share the first's stream."""
    names = ("a", "b", "c")
    given = {name: {"id": name, "prompt_len": 32, "max_tokens": 18} for name in names}
    given["a"] |= {"gen_stream": 7, "prompt": [[7, 0, 32]]}
    given["b"] |= {"arrival_step": 1}
    given["c"] |= {"arrival_step": 1, "prompt": [[7, 0, 32]]}
    given["c"] |= {"priority": -2} if key == "policy" else {}
    scheduler: dict[str, Any] = {"max_num_batched_tokens": 48, "max_num_seqs": 3, "max_model_len": 64}
    scheduler |= {"policy": "priority", "max_num_seqs": 1} if key == "priority" else {}
    scheduler |= {"enable_prefix_caching": True} if key == "gen_stream" else {}
    parts = {"scheduler": scheduler, **given}
    if value is not None:
        parts[part][key] = value
    return {"scheduler": scheduler, "block_size": 4, "num_gpu_blocks": 24, "requests": [given[name] for name in names]}


@pytest.mark.parametrize(("part", "key", "default", "other"), _LEFT_OUT)
def test_a_key_that_is_left_out_has_its_default(part: str, key: str, default: object, other: object) -> None:
    left_out, given, changed = (replay(_crowded(part, key, value)) for value in (None, default, other))
    assert left_out == given != changed


@pytest.mark.parametrize(
    ("inputs", "least"),
    [
        (lambda value: _inputs({"max_num_batched_tokens": value}), 1),
        (lambda value: _inputs({"max_num_scheduled_tokens": value}), 1),
        (lambda value: _inputs({"max_num_seqs": value}), 1),
        (lambda value: _inputs({"max_model_len": value}, {"prompt_len": 1, "max_tokens": 1}), 2),
        (lambda value: _inputs(request={"prompt_len": value}), 1),
        (lambda value: _inputs(request={"max_tokens": value}), 1),
        (lambda value: _inputs(request={"arrival_step": value}), 0),
        (lambda value: _inputs(block_size=value), 1),
        (lambda value: _inputs(num_gpu_blocks=value), 2),
        (lambda value: _inputs({"watermark": value}), 0),
    ],
)
def test_the_least_that_a_scenario_may_say_is_taken_and_less_is_not(inputs: Any, least: int) -> None:
    assert replay(inputs(least))[1]["finished"] == 1
    with pytest.raises(InputError):
        replay(inputs(least - 1))
