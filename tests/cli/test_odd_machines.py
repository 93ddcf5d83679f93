"""Machines and rates that cannot be: ``kvcalc fit --device`` says so in one line, and what it knows of odd ones."""

from __future__ import annotations

import json
import shlex
from typing import Any

import pytest

from kvcalc.cli.main import main

LLAMA = "--model llama3.1-8b --weights q4_k_m"


def run(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(line))
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


def answer(capsys: pytest.CaptureFixture[str], line: str) -> Any:
    code, out, err = run(capsys, f"{line} --json")
    assert code == 0, err
    return json.loads(out)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--device 24GiB --host-bandwidth 80", "has no unit"),
        ("--device 24GiB --host ddr5-5600x0", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-000x2", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-6000", "kind-transfers x channels"),
        ("--device 24GiB --host ddr9-1", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-5600x9999999", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-5600x2 --host-bandwidth 80GB/s", "two bandwidths"),
        ("--device 24GiB --used 30GiB", "is more than the 24.00 GiB"),
        ("--device rtx-4090 --device cpu", "stands for no device"),
        ("--device m3-max-40 --device m3-max-40", "are no one machine"),
        ("--device m3-max-40 --device rtx-4090", "are no one machine"),
        ("--device dgx-spark --device strix-halo", "are no one machine"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(capsys, options, said):
    code, out, err = run(capsys, f"fit {LLAMA} {options}")
    assert (code, out) == (2, "")
    assert said in err, err
    assert "Traceback" not in err


def test_a_bandwidth_with_a_unit_is_taken(capsys):
    report = answer(capsys, f"fit {LLAMA} --device 24GiB --host-bandwidth 80GB/s")
    assert report["host"]["bandwidth_bytes_per_s"] == 80e9


def test_a_rate_to_other_nodes_needs_a_unit(capsys):
    code, _, err = run(
        capsys,
        f"plan {LLAMA} --gpu h100-sxm --prompt 2000 --output-tokens 300 --rate 9 --slo tpot_p95=40ms --price h100-sxm=2.5 --scale-out 50",
    )
    assert code == 2
    assert "has no unit" in err
