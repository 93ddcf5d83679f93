"""Greedy speculative decoding: the same tokens, whatever the draft proposes."""

import pytest

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.cost.speculation import expected_tokens_at_rate
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.library import find_device
from kvcalc.measure.scale import all_in, run_bytes
from kvcalc.measure.speculation import check_room, measured_speculation, plain_decode, speculative_decode
from kvcalc.plan.deployment import deploy

from .models import GQA, KINDS, MODELS, model_of, small_device

DEVICE = find_device("cpu")
PROMPT = list(range(5, 14))
COUNT = 40


def decoder_of(model, seed=0):
    return Decoder(model, weights="fp32", device=DEVICE, seed=seed)


@pytest.mark.parametrize("gamma", [1, 3, 7])
@pytest.mark.parametrize("acceptance", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("kind", ["GQA", "MLA", "experts"])
def test_the_tokens_are_those_of_plain_decoding(kind, gamma, acceptance):
    target, draft = decoder_of(MODELS[kind]), decoder_of(model_of(GQA), seed=9)
    plain = plain_decode(target, PROMPT, count=COUNT).tokens
    found = speculative_decode(
        target, draft, PROMPT, count=COUNT, gamma=gamma, hinted=plain, acceptance=acceptance, seed=1
    )
    assert found.tokens == plain
    assert len(set(plain)) > 3
    assert (found.accepted == found.drafted) == (acceptance == 1 and found.drafted > 0)


def test_a_draft_that_is_the_target_is_always_right():
    target = decoder_of(MODELS["GQA"])
    found = speculative_decode(target, decoder_of(MODELS["GQA"]), PROMPT, count=COUNT, gamma=4)
    assert found.accepted == found.drafted > 0
    assert found.passes == 8  # five tokens a pass after the first
    assert found.tokens == plain_decode(target, PROMPT, count=COUNT).tokens


def test_hints_that_went_wrong_are_looked_up_again():
    target, draft = decoder_of(MODELS["GQA"]), decoder_of(model_of(KINDS["GQA"]))
    plain = plain_decode(target, PROMPT, count=COUNT).tokens
    wrong = [*plain[:6], *((token + 1) % target.vocabulary for token in plain[6:])]
    found = speculative_decode(target, draft, PROMPT, count=COUNT, gamma=3, hinted=wrong, acceptance=1.0)
    assert found.tokens == plain
    assert found.accepted == found.drafted - 1  # the first wrong one


@pytest.mark.parametrize("kind", ["sliding window", "chunks", "Mamba-2", "gated delta"])
def test_a_cache_that_forgets_is_refused(kind):
    target = decoder_of(MODELS[kind])
    with pytest.raises(UnsupportedError, match="cannot be taken back"):
        speculative_decode(target, decoder_of(MODELS["GQA"]), PROMPT, count=4, gamma=2)


def test_models_of_other_tokens_are_refused():
    from dataclasses import replace

    other = model_of(KINDS["GQA"])
    table = replace(other.embeddings[0], rows=100)
    draft = decoder_of(replace(other, embeddings=(table,)))
    with pytest.raises(InputError, match="the draft knows 100 tokens"):
        speculative_decode(decoder_of(MODELS["GQA"]), draft, PROMPT, count=4, gamma=2)


def test_the_prediction_is_the_formula_at_what_was_measured():
    target, draft = (
        deploy(model, weights="fp32", kv="fp32", activations="fp32") for model in (MODELS["MHA"], model_of(GQA))
    )
    found = measured_speculation(target, draft, DEVICE, gamma=3, acceptance=0.7, count=48)
    assert found.identical
    assert 0.4 < found.acceptance < 0.95
    assert found.expected_tokens_per_pass == expected_tokens_at_rate(found.acceptance, 3)
    cost = (3 * found.draft_s + found.verify_s) / found.plain_s
    assert found.predicted_speedup == pytest.approx(found.expected_tokens_per_pass / cost)
    assert found.measured_speedup > 0


def test_both_models_must_fit_beside_each_other():
    target, draft = (
        deploy(model, weights="bf16", kv="bf16", activations="bf16") for model in (MODELS["MHA"], model_of(GQA))
    )
    tokens = 32 + 64 + 3 + 1
    needed = sum(run_bytes(found.model, all_in("fp32"), batch=1, context=tokens) for found in (target, draft))
    check_room(target, draft, small_device(needed), gamma=3)
    with pytest.raises(InputError, match=r"small in fp32 .* on cpu beside MHA"):
        check_room(target, draft, small_device(needed - 1), gamma=3)
    with pytest.raises(InputError, match=r"MHA in fp32 .* on cpu, where"):
        check_room(target, draft, small_device(2**20), gamma=3)
