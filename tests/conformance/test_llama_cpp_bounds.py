"""The bound that a user of ``--engine llama.cpp`` is told is beaten by no published run, whatever the card multiplies in."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import kvcalc
from kvcalc.evidence.cases import Case
from kvcalc.evidence.gate import judge
from kvcalc.evidence.names import engine_rules
from kvcalc.evidence.passes import case_in, case_of
from kvcalc.evidence.read import read_records, shipped_records
from kvcalc.plan.deployment import started

# Prompts of 512 tokens on a Tesla P40, llama 7B, tokens/s. https://github.com/ggml-org/llama.cpp/pull/4766
P40_PROMPTS = {"q3_k_s": 592.36, "q4_0": 934.74, "q4_1": 934.87, "q4_k_s": 870.33, "q5_0": 880.04}


@pytest.mark.parametrize("engine", [None, "llama.cpp", "ollama"])
@pytest.mark.parametrize("weights", P40_PROMPTS)
def test_prompts_on_a_card_without_16_bit_units_take_its_8_bit_ones(weights, engine):
    asked = kvcalc.deployment("llama-7b", gpu="p40", weights=weights, engine=engine)
    (row,) = kvcalc.prefill(asked, prompts=[512]).rows
    assert row.tokens_per_s > P40_PROMPTS[weights]
    point = next(each for each in kvcalc.roofline("p40", [asked]).points if each.phase == "prefill")
    assert point.attainable_flop_per_s > row.flop * P40_PROMPTS[weights] / 512


def _speeds() -> list[object]:
    truth = os.environ.get("KVCALC_TRUTH")
    records = [*shipped_records(), *(read_records(Path(truth) / "speeds.yaml") if truth else ())]
    return [record for record in records if engine_rules(record.engine).like == "llama.cpp"]


@pytest.mark.parametrize("suite", ["decode", "prefill"])
def test_no_published_run_beats_what_a_user_is_told(suite):
    seen, beaten = 0, []
    for record in _speeds():
        case = case_of(record) if record.suite == suite else None
        if not isinstance(case, Case) or case.deployment is None:
            continue
        told = []
        for hardware in case.variants:
            asked = started(replace(case.deployment, hardware=hardware), "llama.cpp")
            told.append(judge(replace(case_in(record, asked, hardware), timing=case.timing)))
        seen += 1
        if all(verdict.beaten and not verdict.cause for verdict in told):
            beaten.append((record.id, record.hardware, record.model, min(verdict.bound_s for verdict in told)))
    assert seen > 100
    assert not beaten
