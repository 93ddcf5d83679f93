"""``--estimate`` and ``--calibration``: what they print, and what they say where there is nothing to print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.render.charts import chart_spec
from kvcalc.sources import shipped_calibrations

if TYPE_CHECKING:
    from pathlib import Path

DECODE = ("decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm")
PREFILL = ("prefill", "--model", "llama3.1-8b", "--gpu", "m4-max-40", "--weights", "q4_0", "--prompt", "512,2048")


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stopped.value.code or 0) == code, err
    return out, err


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    return json.loads(run(capsys, *arguments, "--json")[0])  # type: ignore[no-any-return]


@pytest.mark.parametrize(("arguments", "name"), [(DECODE, "vllm-hopper"), (PREFILL, "llama.cpp-apple")])
def test_an_estimate_stands_beside_the_bound(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], name: str
) -> None:
    plain, found = data(capsys, *arguments), data(capsys, *arguments, "--estimate")
    assert found["calibration"]["name"] == name
    for before, row in zip(plain["rows"], found["rows"], strict=True):
        assert before["estimate_s"] is None
        assert (
            row["ideal_s"] == before["ideal_s"] <= row["estimate_low_s"] <= row["estimate_s"] <= row["estimate_high_s"]
        )
    assert plain["calibration"] is None


def test_the_estimated_speed_is_that_of_the_estimated_step(capsys: pytest.CaptureFixture[str]) -> None:
    for row in data(capsys, *DECODE, "--batch", "1,64", "--estimate")["rows"]:
        assert row["estimate_tokens_per_s"] == pytest.approx(row["batch"] / row["estimate_s"])
    (row,) = data(capsys, *DECODE, "--pp", "2", "--estimate")["rows"]
    assert row["estimate_tokens_per_s"] > 1.5 / row["estimate_s"]  # two batches are under way


@pytest.mark.parametrize("arguments", [DECODE, (*DECODE, "--batch", "1,8"), PREFILL])
def test_a_table_names_the_calibration(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    shown, _ = run(capsys, *arguments, "--estimate")
    assert "stimated with the calibration" in shown
    assert "80% interval" in shown
    assert "stimate" not in run(capsys, *arguments)[0]


@pytest.mark.parametrize("output", ["csv", "md", "jsonl"])
def test_flat_records_hold_the_estimate(capsys: pytest.CaptureFixture[str], output: str) -> None:
    shown, _ = run(capsys, *DECODE, "--estimate", "--output", output)
    assert "estimate_low_s" in shown


def test_where_none_applies_the_bound_stands_alone(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("decode", "--model", "llama3.1-8b", "--gpu", "tpu-v5e", "--estimate")
    found = data(capsys, *arguments)
    assert found["calibration"] is None
    assert [row["estimate_s"] for row in found["rows"]] == [None]
    assert "no calibration applies to tpu-v5e: bounds only" in " ".join(found["notes"])
    assert "no calibration applies" in " ".join(run(capsys, *arguments)[0].split())


def test_kernels_alone_leave_out_steps_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, *DECODE, "--calibration", "kernels-hopper")
    assert "overheads per step and layer are left out" in " ".join(found["notes"])


def test_a_calibration_of_other_accelerators_is_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    found = data(capsys, *DECODE, "--calibration", "llama.cpp-apple")
    assert found["calibration"]["name"] == "llama.cpp-apple"
    assert "not on h100-sxm: its estimate is a guess" in " ".join(found["notes"])


FILE = """
name: mine
engine: my-engine
applies_to: [h100-sxm]
reach:
  matrix: {bandwidth_share: 0.5, flop_share: 0.5}
memory_interval: {low: 0.9, high: 1.2}
compute_interval: {low: 0.8, high: 1.3}
measured: {device: my machine}
"""


def test_a_file_of_ones_own_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(FILE, encoding="utf-8")
    (row,) = data(capsys, *DECODE, "--calibration", str(path))["rows"]
    assert row["estimate_s"] == pytest.approx(2 * row["serial_s"])
    assert row["estimate_high_s"] == pytest.approx(1.2 * row["estimate_s"])
    shown, _ = run(capsys, *DECODE, "--calibration", str(path), "--explain")
    assert "calibration mine" in shown


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("bandwidth_share: 0.5", "bandwidth_share: 0", "bandwidth_share must be above 0"),
        ("bandwidth_share: 0.5", "bandwidth_share: 1.2", "at most 1"),
        ("  matrix:", "  experts:", "has no efficiency of matrix multiplications"),
        ("  matrix:", "  norms:", "reach.norms"),
        ("low: 0.9", "low: 2", "the interval from 2"),
        ("engine: my-engine", "engines: my-engine", "'engines' is not known"),
        (
            "measured: {device: my machine}",
            "layer_s: -1\nmeasured: {device: my machine}",
            "layer_s is -1, out of range",
        ),
        ("matrix: {bandwidth_share: 0.5,", "matrix: {bandwidth_share: .nan,", "bandwidth_share"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, old: str, new: str, told: str
) -> None:
    path = tmp_path / "mine.yaml"
    assert old in FILE
    path.write_text(FILE.replace(old, new), encoding="utf-8")
    _, error = run(capsys, *DECODE, "--calibration", str(path), code=2)
    assert told in error
    assert "mine.yaml" in error


@pytest.mark.parametrize(
    ("name", "told"),
    [("vllm-hoper", "did you mean vllm-hopper"), ("hardware_profiles/h100-sxm.yaml", "the profile of an accelerator")],
)
def test_a_name_that_is_not_known_is_refused(capsys: pytest.CaptureFixture[str], name: str, told: str) -> None:
    _, error = run(capsys, *DECODE, "--calibration", name, code=2)
    assert told in error


def test_a_chart_shows_the_estimates_in_the_unit_of_its_axis() -> None:
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    report = kvcalc.decode(deployment, batches=[1, 8], estimate=True)
    _, strokes, points = chart_spec(report)["layer"]
    assert [row["tokens_per_s"] for row in points["data"]["values"]] == pytest.approx(
        [row.estimate_tokens_per_s for row in report.rows]
    )
    for stroke, row in zip(strokes["data"]["values"], report.rows, strict=True):
        assert stroke["to"] == pytest.approx(row.batch / row.estimate_high_s)
    times = chart_spec(kvcalc.prefill(deployment, prompts=[512, 1024], estimate=True))["layer"][2]["data"]["values"]
    assert [row["ideal_s"] for row in times] == sorted(row["ideal_s"] for row in times)


def test_the_explanation_adds_up() -> None:
    deployment = kvcalc.deployment("qwen3-30b-a3b", gpu="h100-sxm", gpus=2)
    steps = {step.quantity: step for step in kvcalc.explain("decode", deployment, batch=4, calibration="vllm-hopper")}
    for name in ("reached_s", "estimate_s", "estimate_low_s", "estimate_high_s"):
        value = eval(steps[name].expression, {"__builtins__": {"max": max, "min": min}})  # noqa: S307  our own output
        assert value == pytest.approx(steps[name].value, rel=1e-9)
    (row,) = kvcalc.decode(deployment, batches=[4], calibration="vllm-hopper").rows
    assert steps["estimate_s"].value == row.estimate_s
    (used,) = (found for found in shipped_calibrations() if found.name == "vllm-hopper")
    assert f" * {used.collective_s}" in steps["reached_s"].expression
