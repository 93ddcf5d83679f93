"""Under each heading of a table stands the figure that the heading names, whatever columns stand beside it."""

from __future__ import annotations

from typing import Any

import kvcalc
from kvcalc.core.units import bytes_text, number_text
from kvcalc.render.layout import Grid
from kvcalc.render.tables import table_module, table_text

LLAMA = kvcalc.deployment("llama2-7b")


def columns(report: Any, *, first: str) -> dict[str, list[str]]:
    """The cells under each heading of the table whose first heading this is."""
    grids = [part for part in table_module(report).parts(report) if isinstance(part, Grid)]
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
    assert table["read a step"] == [bytes_text(row.read_total_bytes) for row in rows]
    assert table["reserved"] == [bytes_text(row.reserved_bytes) for row in rows]
    # the top 512 of 4,096 tokens are read, and all are held
    assert table["read a step"][1] != table["held"][1]


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
