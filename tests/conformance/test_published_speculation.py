"""Published results of speculative decoding: what their authors expected, and what they measured.

The shipped ones are tested everywhere. Where ``KVCALC_TRUTH`` names a folder with the full ground truth, every row of it is.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pytest
import yaml

import kvcalc
from kvcalc.evidence.speculative import held, published

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.reports.validate import Outcome

TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None


def rows() -> list[dict[str, Any]]:
    shipped = [dict(row) for row in published()]
    if TRUTH is None:
        return shipped
    return shipped + yaml.safe_load((TRUTH / "speculative.yaml").read_text(encoding="utf-8"))


ROWS = rows()


def outcomes() -> Iterator[Outcome]:
    for row in ROWS:
        yield from held(row)


EXPECTED = [row for row in ROWS if "expected_speedup" in row]


@pytest.mark.parametrize("row", EXPECTED, ids=lambda row: f"{row['task']}-{row['draft']}-{row['temperature']}")
def test_the_factor_that_authors_expected_is_what_the_formula_gives(row: dict[str, Any]) -> None:
    found = next(iter(held(row)))
    assert found.quantity == "expected speed-up"
    assert found.status == "holds", found.reason
    assert found.covered


def test_all_of_leviathans_table_is_there() -> None:
    assert len({(row["task"], row["draft"], row["temperature"]) for row in EXPECTED}) == 12


def test_no_formula_with_another_exponent_gives_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "kvcalc.evidence.speculative.expected_tokens_at_rate", lambda rate, gamma: (1 - rate**gamma) / (1 - rate)
    )
    assert sum(next(iter(held(row))).status == "violates" for row in EXPECTED) > len(EXPECTED) / 2


def test_every_row_is_scored_or_says_why_not() -> None:
    found = list(outcomes())
    assert len(found) >= len(ROWS) - sum("speedup" not in row and "baseline_tok_s" not in row for row in ROWS)
    for outcome in found:
        assert outcome.status != "violates", outcome
        assert outcome.estimate or outcome.bound or outcome.reason, outcome
        if outcome.error is not None and abs(outcome.error) > 0.25:
            assert outcome.reason, outcome


def test_a_measured_speedup_stays_near_what_its_passes_allow() -> None:
    """At batch 1 a round cannot be cheaper than a plain step, so no measured speed-up is far above the prediction."""
    errors = [o.error for o in outcomes() if o.quantity == "speed-up" and o.first_hand and o.error is not None]
    assert len(errors) >= 33
    assert min(errors) > -0.25
    assert 0 < median(errors) < 0.25


def test_the_suite_is_part_of_validate() -> None:
    report = kvcalc.validate(suites=["speculative"])
    figures = report.suites["speculative"]
    assert (figures.records, figures.scored, figures.bound_violations) == (100, 79, 0)
    assert report.holds
