"""Rules of thumb beside the exact answer: each claims what its formula says, and agrees where the truth says the same."""

from __future__ import annotations

import math

import pytest

import kvcalc
from kvcalc.cost.speculation import expected_tokens_at_rate, speedup

TARGET = {"gpu": "h200", "gpus": 2}


def _report(batch: int, acceptance: float, gamma: int = 4, context: int = 4096) -> kvcalc.SpeculativeReport:
    target = kvcalc.deployment("llama3.1-70b", **TARGET)
    return kvcalc.speculate(
        target, "llama3.1-8b", acceptance=acceptance, batches=[batch], contexts=[context], gammas=[gamma]
    )


@pytest.mark.parametrize("batch", [1, 64, 512])
@pytest.mark.parametrize("acceptance", [0.05, 0.2, 0.6, 0.95])
def test_a_rule_claims_what_its_formula_says_and_is_held_against_the_exact_answer(
    batch: int, acceptance: float
) -> None:
    report = _report(batch, acceptance)
    row = report.rows[0]
    product, free, corollary, tenth = report.rules
    size = kvcalc.size(kvcalc.deployment("llama3.1-8b")).weights.parameters
    size /= kvcalc.size(kvcalc.deployment("llama3.1-70b")).weights.parameters
    assert product.speedup == pytest.approx((1 + acceptance * 4) / (4 * size + 1))
    assert free.speedup == pytest.approx(expected_tokens_at_rate(acceptance, 4) / (4 * row.draft_ratio + 1))
    assert corollary.speedup == pytest.approx((1 + acceptance) / (1 + row.draft_ratio))
    assert tenth.speedup is None
    assert [rule.pays for rule in report.rules] == [
        product.speedup > 1,
        free.speedup > 1,
        acceptance > row.draft_ratio,
        size <= 0.1,
    ]
    best = max(each.speedup for each in report.by_gamma)
    truths = [row.speedup, row.speedup, max(best, row.speedup), row.speedup]
    assert [rule.agrees for rule in report.rules] == [
        rule.pays == (truth > 1) for rule, truth in zip(report.rules, truths, strict=True)
    ]


@pytest.mark.parametrize("gpus", [1, 2, 4])
@pytest.mark.parametrize("batch", [1, 400])
def test_the_largest_draft_reads_and_multiplies_its_weights_in_the_time_it_may_take(gpus: int, batch: int) -> None:
    """On each rank its share of the weights is read, two bytes each, and multiplied, two FLOP for each sequence."""
    target = kvcalc.deployment("llama3.1-8b", gpu="h200", gpus=gpus)
    report = kvcalc.speculate(
        target, None, method="ngram", acceptance=0.8, batches=[batch], contexts=[1024], gammas=[1, 2, 3]
    )
    largest, hardware = report.largest_draft, target.hardware
    assert hardware is not None
    # at v = (E - 1) / gamma - c it breaks even
    row = kvcalc.speculate(
        target, None, method="ngram", acceptance=0.8, batches=[batch], contexts=[1024], gammas=[largest.gamma]
    ).rows[0]
    gain = speedup(
        expected=row.expected_tokens_per_pass,
        gamma=largest.gamma,
        draft_ratio=largest.draft_ratio,
        verify_ratio=row.verify_ratio,
    )
    assert gain == pytest.approx(1) or largest.draft_ratio == 0
    read = largest.step_s * hardware.memory_bandwidth_bytes_per_s / 2 * gpus
    multiplied = largest.step_s * hardware.peak("bf16") / (2 * batch) * gpus
    assert largest.parameters == math.floor(min(read, multiplied))
