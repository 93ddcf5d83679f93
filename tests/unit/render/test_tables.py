"""Under each heading of a table stands the figure that the heading names, whatever columns stand beside it."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

import kvcalc
from kvcalc import api
from kvcalc.core.units import bytes_text, number_text
from kvcalc.render.layout import Grid
from kvcalc.render.tables import table_parts, table_text

LLAMA = kvcalc.deployment("llama2-7b")
LLAMA_ON_H200 = kvcalc.deployment("llama2-7b", gpu="h200")


def columns(report: Any, *, first: str) -> dict[str, list[str]]:
    """The cells under each heading of the table whose first heading this is."""
    grids = [part for part in table_parts(report) if isinstance(part, Grid)]
    grid = next(each for each in grids if each.columns[0].name == first)
    return {column.name: [row[index] for row in grid.rows] for index, column in enumerate(grid.columns)}


def test_traffic_reads_weights_with_every_token_and_the_cache_as_it_grows() -> None:
    report = kvcalc.traffic(LLAMA, prompt_tokens=0, output_tokens=4096)
    table = columns(report, first="tokens")
    rows = report.rows
    assert table["weights read"] == [bytes_text(row.weight_bytes) for row in rows]
    assert table["cache read"] == [bytes_text(row.kv_read_bytes) for row in rows]
    assert table["cache then"] == [bytes_text(row.kv_bytes) for row in rows]
    assert table["context"] == [number_text(row.context) for row in rows]
    assert table["weights read"][0] != table["cache read"][0] != table["cache then"][1]


def test_levers_tell_what_is_held_from_what_a_step_reads() -> None:
    report = kvcalc.levers(LLAMA, with_levers="topk=512,offload=0.5", context=4096)
    table = columns(report, first="lever")
    rows = [row for row in report.rows if row.applies]
    assert [cell.split(" + ")[0] for cell in table["held"]] == [bytes_text(row.kv_total_bytes) for row in rows]
    assert table["read per step"] == [bytes_text(row.read_total_bytes) for row in rows]
    assert table["reserved"] == [bytes_text(row.reserved_bytes) for row in rows]
    # the top 512 of 4,096 tokens are read, and all are held
    assert table["read per step"][1] != table["held"][1]


def test_speculation_tells_the_drafts_share_from_the_verifications() -> None:
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    draft = kvcalc.deployment("llama3.1-8b", gpu="h200", gpus=2)
    report = kvcalc.speculate(target, draft, batches=[8, 512], gammas=[5], acceptance=0.8)
    table = columns(report, first="batch")
    assert table["c"] == [f"{row.draft_ratio:.3f}" for row in report.rows]
    assert table["v"] == [f"{row.verify_ratio:.3f}" for row in report.rows]
    assert table["speed-up"] == [f"{row.speedup:.3f}" for row in report.rows]
    assert table["serial"] == [f"{row.serial_speedup:.3f}" for row in report.rows]
    assert all(c != v for c, v in zip(table["c"], table["v"], strict=True))
    facts = table_text(report)
    row = report.rows[0]
    assert f"c = {row.draft_ratio:.3f} plain steps each" in facts
    assert f"v = {row.verify_ratio:.3f} plain steps" in facts


SPEEDS = {
    "batch": "batch", "tokens_per_s": "tokens/s", "limiter": "limiter", "intensity_flop_per_byte": "FLOP/B", "serial_s": "serial",
    "memory_needed_bytes": "memory",
}  # fmt: skip
GAINS = {
    "gamma": "gamma", "expected_tokens_per_pass": "tokens/pass", "speedup": "speed-up", "serial_speedup": "serial",
    "break_even_acceptance": "breaks even",
}  # fmt: skip
# What stands under which heading; a mark beside what does not fit shows in every column of speeds, which is not said here.
SHOWN = {
    "decode": ("rows", SPEEDS | {"context": "context", "ideal_s": "ideal", "tokens_per_s_per_sequence": "per seq.",
                                 "tokens_per_s_per_gib": "tok/s/GiB"}),
    "prefill": ("rows", SPEEDS | {"prompt": "prompt", "flop": "FLOP", "ideal_s": "TTFT ideal"}),
    "roofline": ("points", {"model": "model", "phase": "phase", "batch": "batch", "context": "context", "limiter": "limiter",
                            "intensity_flop_per_byte": "FLOP/B", "attainable_flop_per_s": "attainable", "fits": "fits"}),
    "traffic": ("rows", {"output_tokens": "tokens", "context": "context", "kv_bytes": "cache then", "weight_bytes": "weights read",
                         "kv_read_bytes": "cache read", "growth_exponent": "exponent"}),
    "levers": ("rows", {"cuts": "cuts", "kv_total_bytes": "held", "host_bytes": "held", "reserved_bytes": "reserved",
                        "read_total_bytes": "read per step", "kv_factor": "less", "read_factor": "less", "retrofit": "retrofit",
                        "quality": "quality", "tokens_per_s": "tokens/s", "tokens_per_s_per_gib": "tok/s/GiB"}),
    "speculate": ("rows", GAINS | {"batch": "batch", "context": "context", "draft_ratio": "c", "verify_ratio": "v",
                                   "tokens_per_s": "tokens/s", "fits": "fits"}),
    "lengths": ("by_gamma", GAINS | {"draft_tokens": "drafted"}),
    "drafts": ("drafts", {"name": "draft", "quality": "right", "target_passes": "target passes", "drafted_tokens": "drafted",
                          "accepted_tokens": "accepted", "mean_tokens_per_pass": "tokens a pass", "same_output": "output"}),
}  # fmt: skip


@pytest.fixture(scope="module")
def reports() -> dict[str, Any]:
    h100 = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    pair = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    speculative = kvcalc.speculate(pair, "llama3.1-8b", acceptance=0.8, batches=[8, 64], gammas=[3, 5])
    return {
        "decode": kvcalc.decode(h100, batches=[1, 8], contexts=[1024, 2048]),
        "prefill": kvcalc.prefill(h100, batches=[1, 8], prompts=[1024, 2048]),
        "roofline": kvcalc.roofline("h100-sxm", [h100], batches=(1, 8), contexts=(1024,)),
        "traffic": kvcalc.traffic(h100, output_tokens=64, prompt_tokens=3),
        "levers": kvcalc.levers(h100, with_levers="fp8,topk=512", context=4096),
        "speculate": speculative,
        "lengths": speculative,
        "drafts": api.demo_speculate(),
    }


def _cells(report: Any) -> list[tuple[int, int, str, str]]:
    """Every cell: its grid, its row, what stands above it, and its text."""
    grids = [part for part in table_parts(report) if isinstance(part, Grid)]
    return [
        (number, index, column.name, cell)
        for number, grid in enumerate(grids)
        for index, row in enumerate(grid.rows)
        for column, cell in zip(grid.columns, row, strict=True)
    ]


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return f"{value}, or not" if isinstance(value, str) else value * 3 + 17


@pytest.mark.parametrize("name", SHOWN)
def test_another_figure_changes_the_cell_under_its_own_heading_alone(name: str, reports: dict[str, Any]) -> None:
    report, (rows_of, headings) = reports[name], SHOWN[name]
    rows, before = getattr(report, rows_of), _cells(report)
    shown = {}
    for field in (field.name for field in fields(rows[1])):
        if isinstance(getattr(rows[1], field), tuple | dict | None) or field in {"applies", "lever"}:
            continue
        changed = replace(rows[1], **{field: _other(getattr(rows[1], field))})
        after = _cells(replace(report, **{rows_of: (rows[0], changed, *rows[2:])}))
        assert len(after) == len(before)
        differing = {cell[2] for cell, other in zip(before, after, strict=True) if cell != other}
        if differing:
            shown[field] = differing
    marked = {field for field, differing in shown.items() if len(differing) > 1}
    assert marked <= {"fits"}
    assert {field: differing.pop() for field, differing in shown.items() if field not in marked} == headings


@pytest.mark.parametrize(
    ("engine", "capacity", "limit"),
    [
        ("llama.cpp", "capacity in whole sequences", "needs --ctx-size 2048 or less"),
        ("vllm", "capacity ", "needs --max-model-len 2032 or less"),
    ],
)
def test_fit_names_capacity_and_longest_context_as_the_engine_has_them(engine: str, capacity: str, limit: str) -> None:
    shown = table_text(kvcalc.fit(LLAMA, engine=engine, context=4096, kv_memory_bytes=2**30))
    assert f"\n{capacity}" in shown
    assert limit in shown


def test_acceptance_by_position_is_shown_as_the_conditional_rates_it_becomes() -> None:
    def shown(**acceptance: Any) -> str:
        return table_text(kvcalc.speculate(LLAMA_ON_H200, method="ngram", gammas=[3], **acceptance))

    # 0.357 / 0.543 and 0.264 / 0.357
    assert "0.543, 0.6575, 0.7395 (conditional)" in shown(acceptance_by_position="0.543,0.357,0.264")
    assert "0.5, 0.6, 0.5 (conditional)" in shown(acceptance_conditional="0.5,0.6,0.5")
    assert "conditional" not in shown(acceptance=0.8)


def test_one_of_something_is_in_the_singular() -> None:
    assert "1, 1 token\n" in table_text(kvcalc.decode(LLAMA_ON_H200, batches=[1], contexts=[1]))
    assert ", 1 x 1 token: 8.00 MiB of" in table_text(kvcalc.fit(LLAMA_ON_H200, context=1))
    assert ", 2 x 2 tokens: " in table_text(kvcalc.fit(LLAMA_ON_H200, context=2, batch=2))
