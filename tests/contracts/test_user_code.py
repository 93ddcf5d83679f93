"""The type-checked example of user code runs and returns what it says."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def test_what_users_write_runs() -> None:
    spec = importlib.util.spec_from_file_location("user_code", Path(__file__).parents[1] / "typing" / "api.py")
    code = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(code)
    assert code.kv_bytes_of_a_batch() == 32 * 8192 * 65_536
    seconds, limiter = code.fastest_step_s("llama3.1-8b", "h100-sxm")
    assert 0.004 < seconds < 0.005
    assert limiter == "memory"
    assert code.time_to_first_token_s(1000) > 0
    assert round(code.ridge_points()["bf16"]) == 206
    assert code.batch_up_to_which_speculation_pays(512) > 8
    assert code.largest_batch(40 * 2**30) > 1
    assert any("512 + 64" in line for line in code.explained())
    assert code.bytes_read("fp8") * 2 == code.bytes_read("") == 524_288 * 4096 * 4097 // 2
    assert code.held_with_levers()["gqa"] * 4 == code.held_with_levers()["none"]
    assert code.projections() == (250, 22)
    assert code.is_plausible("1000tok/s")
    assert not code.is_plausible("10000tok/s")
    assert 0.4 < code.trusted() < 0.8
    assert "did you mean llama2-70b" in code.refused("lama2-70b")
    assert code.fewest_gpus("llama3.1-70b", "h200") == 2
    assert code.better_format() == (1,)
