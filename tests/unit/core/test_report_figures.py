"""Figures declared beside the fields of reports."""

from dataclasses import fields

import pytest

from kvcalc.core.figures import REPORTS, figure_at, figures_of
from kvcalc.core.reports.fit import FitReport
from kvcalc.core.reports.size import KvSize
from kvcalc.core.reports.speed import DecodeRow, PrefillRow


@pytest.mark.parametrize(
    ("field", "end"),
    [
        ("decode.ideal_s", "lower"),
        ("prefill.serial_s", "lower"),
        ("simulate.summary.tpot_s.p99", "lower"),
        ("fit.min_gpus", "lower"),
        ("decode.tokens_per_s_per_sequence", "higher"),
        ("fit.fits", "higher"),
        ("fit.kv_bytes_available", "higher"),
        ("decode.flop", ""),
        ("fit.context", ""),
    ],
)
def test_times_and_bytes_should_fall_and_rates_and_capacities_rise(field: str, end: str) -> None:
    declared = figure_at(field)
    assert ("" if declared is None else declared.better) == end


@pytest.mark.parametrize("kind", [DecodeRow, PrefillRow, FitReport, KvSize])
def test_every_time_rate_and_size_of_a_row_says_which_end_is_better(kind: type) -> None:
    measured = [each.name for each in fields(kind) if each.name.endswith(("_s", "bytes", "_per_gib"))]
    assert measured
    assert [name for name in measured if not figures_of(kind)[name].better] == []


@pytest.mark.parametrize("report", REPORTS)
def test_each_report_is_found(report: str) -> None:
    assert figure_at(f"{report}.no_such_field") is None
