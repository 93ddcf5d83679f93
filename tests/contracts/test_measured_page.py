"""The figures that docs/measure.md prints are those of the reports in tests/measurements."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "measure.md").read_text(encoding="utf-8")
MEASUREMENTS = ROOT / "tests" / "measurements"


def report_of(name):
    (path,) = MEASUREMENTS.glob(f"{name}_2026-11-30.json")
    return json.loads(path.read_text(encoding="utf-8"))


def printed_rows(heading):
    """Cells of the last table under a heading of the page."""
    section = re.split(r"\n##+ ", re.split(rf"\n##+ {re.escape(heading)}\n", PAGE, maxsplit=1)[1], maxsplit=1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    last = max(at for at, line in enumerate(lines) if set(line) <= set("|-"))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[last + 1 :]]


def ms(seconds):
    return f"{seconds * 1000:.1f} ms"


@pytest.mark.parametrize(("heading", "reports"), [("vLLM", "vllm_cpu"), ("llama.cpp", "llama_cpp")])
def test_an_engines_table_is_its_reports(heading, reports):
    rows = [row for model in ("smollm2-135m", "llama3.2-1b") for row in report_of(f"{reports}_{model}")["rows"]]
    wanted = [
        [row["model"], str(row["batch"]), str(row["context"]), ms(row["bound_s"]), ms(row["measured_s"]),
         ms(row["median_s"]), f"{row['ratio']:.2f}", f"{row['estimate_error'] or 0:+.0%}"]
        for row in rows
    ]  # fmt: skip
    printed = printed_rows(heading)
    assert printed == [row[: len(printed[0])] for row in wanted]


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_the_loops_table_is_its_reports(name):
    report = report_of(f"loop_cpu_{name}")
    ratios = sorted(row["ratio"] for row in report["rows"])
    shown = [row for row in report["rows"] if (row["model"], row["context"]) == ("llama3.2-1b", 256)]
    wanted = [
        name, str(len(ratios)), f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
        ", ".join(f"{row['measured_s'] * 1000:.0f} ms ({row['ratio']:.2f})" for row in shown),
        f"{report['median_abs_error'][name]:.1%}", f"{report['p90_abs_error'][name]:.1%}",
        f"{report['ceilings']['memory_bandwidth_bytes_per_s'] / 1e9:.1f} GB/s",
    ]  # fmt: skip
    assert wanted in printed_rows("Run on two threads")


def test_programs_side_by_side_are_their_repetitions_and_none_beats_the_fastest_read():
    (path,) = (MEASUREMENTS / "side_by_side").glob("*.json")
    run = json.loads(path.read_text(encoding="utf-8"))
    read_s = run["weight_bytes"]["loop"] / max(run["read_bytes_per_s"])
    wanted = []
    for batch in (1, 4, 16):
        for program, name in (("loop, sdpa", "loop, sdpa"), ("llama.cpp", "llama.cpp"), ("vllm", "vLLM")):
            rounds = [
                step["samples_s"] for step in run["steps"] if (step["batch"], step["program"]) == (batch, program)
            ]
            times_s = [time_s for samples in rounds for time_s in samples]
            assert len(times_s) == 30
            assert min(times_s) > read_s
            fastest, middle = (f"{time_s * 1000:.0f} ms" for time_s in (min(times_s), median(times_s)))
            wanted.append([str(batch), name, fastest, middle, f"{min(times_s) / read_s:.2f}"])
    assert printed_rows("Side by side") == wanted
