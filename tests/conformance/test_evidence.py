"""Every record of the full truth files: none beats its bound without a cause, and those left out are left out by name."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import kvcalc
from kvcalc.core.model import Mixture
from kvcalc.evidence.names import listed_rules

if TYPE_CHECKING:
    from kvcalc.core.reports.validate import ValidateReport

TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
# Records of each file, and how many of them are held against a bound.
FILES = {"speeds.yaml": (838, 804), "gemm.csv": (1200, 1200), "attention.csv": (1200, 755), "serving.csv": (716, 716)}

pytestmark = pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")


@cache
def report(name: str) -> ValidateReport:
    assert TRUTH is not None
    return kvcalc.validate(records=TRUTH / name)


@pytest.mark.parametrize("name", FILES)
def test_no_record_beats_its_bound_without_a_cause(name: str) -> None:
    found = report(name)
    assert (found.summary.records, found.summary.held) == FILES[name]
    assert [outcome.id for outcome in found.outcomes if outcome.status == "violates"] == []


def test_single_sequences_of_dense_models_reach_two_fifths_of_the_bound_or_are_listed() -> None:
    every = (*report("speeds.yaml").outcomes, *kvcalc.validate(suites=["decode"]).outcomes)
    held = [outcome for outcome in every if outcome.quantity == "decode"]
    alone = [outcome for outcome in held if outcome.batch == 1 and outcome.share and not mixture(outcome.model)]
    assert len(alone) > 150
    slow = {outcome.id for outcome in alone if outcome.share < 0.4}
    assert max(outcome.share for outcome in alone) <= 1
    assert slow == {outcome.id for outcome in alone if outcome.reason}
    assert len(listed_rules("slow")) <= len(slow)


def mixture(name: str) -> bool:
    return any(isinstance(block.mlp, Mixture) for block in kvcalc.load_model(name).block_counts)


def test_what_is_left_out_is_left_out_by_name() -> None:
    left = [outcome for outcome in report("speeds.yaml").outcomes if outcome.status == "excluded"]
    assert {outcome.id for outcome in left} == {
        *(f"trtllm06-{place:03d}" for place in range(17, 38)),
        *(f"nim-{place:03d}" for place in range(1, 28, 3)),
    }
    suspect = [outcome for outcome in report("attention.csv").outcomes if outcome.status == "excluded"]
    assert {outcome.reason for outcome in suspect} == {"the file it stands in is corrupt or unexplained (suspect_file)"}
