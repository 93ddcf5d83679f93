"""Models of the catalogue that a machine runs."""

from __future__ import annotations

import json

import pytest

from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError


def _rows(*devices, **more):
    return {row.model: row for row in api.models_fit(devices, search="qwen3-", **more).rows}


def test_models_stand_on_the_devices_alone_or_spill_over():
    alone, spilling = _rows("rtx-4070"), _rows("rtx-4070", host_memory_bytes=64 * 2**30)
    assert {row.stands for row in alone.values()} == {"devices"}
    assert "qwen3-30b-a3b" not in alone
    assert spilling["qwen3-30b-a3b"].stands == "devices and host"
    assert spilling["qwen3-30b-a3b"].weights == "Q4_K_M"
    assert spilling["qwen3-8b"] == alone["qwen3-8b"]
    assert spilling["qwen3-32b"].tokens_per_s < spilling["qwen3-14b"].tokens_per_s < alone["qwen3-8b"].tokens_per_s


def test_more_memory_takes_larger_quantizations():
    small, large = _rows("8GiB"), _rows("24GiB")
    assert small["qwen3-8b"].weights != large["qwen3-8b"].weights == "Q8_0"
    assert small["qwen3-8b"].total_bytes < large["qwen3-8b"].total_bytes
    assert large["qwen3-8b"].tokens_per_s is None


def test_the_bound_is_near_that_of_the_whole_fit(capsys):
    row = _rows("rtx-4070")["qwen3-8b"]
    with pytest.raises(SystemExit):
        main(
            [
                "fit",
                "--model",
                "qwen3-8b",
                "--weights",
                row.weights,
                "--device",
                "rtx-4070",
                "--context",
                "4096",
                "--json",
            ]
        )
    report = json.loads(capsys.readouterr().out)
    assert report["fits"]
    assert report["tokens_per_s"] == pytest.approx(row.tokens_per_s, rel=1e-3)


def test_the_command_lists_those_on_devices_first(capsys):
    with pytest.raises(SystemExit) as done:
        main(["models", "fit", "qwen3-", "--device", "12GiB", "--host-memory", "32GiB", "--json"])
    assert done.value.code == 0
    report = json.loads(capsys.readouterr().out)
    stands = [row["stands"] for row in report["rows"]]
    assert stands == sorted(stands, key=["devices", "devices and host", "host"].index)
    assert report["too_large_models"] > 0


def test_a_machine_without_devices_is_refused():
    with pytest.raises(InputError, match="which devices"):
        api.models_fit(())
