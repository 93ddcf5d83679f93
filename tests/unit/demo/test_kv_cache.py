"""The KV cache demonstration: the same tokens and outputs, counted work, and where it fails."""

import numpy as np
import pytest

import kvcalc
from kvcalc import api
from kvcalc.demo.decoder import DecoderShape, KeyValueCache, forward, generate, random_decoder

SHAPES = [
    DecoderShape(layers=1, heads=1, kv_heads=1),
    DecoderShape(layers=1, heads=4, kv_heads=4),
    DecoderShape(layers=3, heads=6, kv_heads=2),
    DecoderShape(layers=2, heads=4, kv_heads=1),
]
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.layers}x{s.heads}over{s.kv_heads}")


def test_three_prompt_tokens_and_twenty_new_ones_take_250_projections_or_22():
    report = kvcalc.demo_kv_cache(prompt_tokens=3, output_tokens=20)
    assert report.projections_without == sum(range(3, 23)) == 250
    assert report.projections_with == 3 + 19 == 22
    assert [step.projections_with for step in report.steps] == [3, *[1] * 19]
    assert [step.projections_without for step in report.steps] == list(range(3, 23))


@every_shape
@pytest.mark.parametrize("batch", [1, 3])
def test_both_runs_make_the_same_tokens_and_outputs(shape, batch):
    report = kvcalc.demo_kv_cache(shape=shape, batch=batch, prompt_tokens=4, output_tokens=8, seed=1)
    assert report.same_tokens
    assert 0 <= report.difference <= 1e-12
    assert report.by_row_difference == 0
    assert report.steps[0].difference == 0


@every_shape
def test_a_decoder_without_the_mask_cannot_keep_its_keys(shape):
    report = kvcalc.demo_kv_cache(shape=shape)
    assert report.both_ways_difference > 1e-3


def test_with_one_layer_even_an_unmasked_decoder_keeps_the_last_tokens_output():
    """Keys and values of the first layer depend on the tokens alone: the lesson needs two layers to show."""
    decoder = random_decoder(DecoderShape(layers=1), seed=0, causal=False)
    prompt = np.array([[1, 2, 3]])
    plain, _, _ = generate(decoder, prompt, 5, cached=False)
    kept, _, _ = generate(decoder, prompt, 5, cached=True)
    assert (plain == kept).all()


def test_a_mask_hides_what_comes_after():
    decoder = random_decoder(DecoderShape(), seed=0)
    one, other = np.array([[1, 2, 3, 4]]), np.array([[1, 2, 3, 9]])
    caches = [KeyValueCache([], []), KeyValueCache([], [])]
    for tokens, cache in zip((one, other), caches, strict=True):
        forward(decoder, tokens, cache)
    for kept, changed in zip(caches[0].keys, caches[1].keys, strict=True):
        assert (kept[:, :, :3] == changed[:, :, :3]).all()
        assert (kept[:, :, 3] != changed[:, :, 3]).any()


def test_shapes_of_prefill_and_decode():
    shape = DecoderShape(layers=2, heads=6, kv_heads=2, head_dim=4)
    report = kvcalc.demo_kv_cache(shape=shape, prompt_tokens=5, output_tokens=3, batch=2)
    prefill, second, third = report.steps
    assert prefill.shapes == prefill.shapes_without
    assert prefill.shapes["hidden"] == (2, 5, 24)
    assert prefill.shapes["scores"] == (2, 6, 5, 5)
    assert second.shapes["hidden"] == (2, 1, 24)
    assert second.shapes["query"] == (2, 6, 1, 4)
    assert second.shapes["key"] == second.shapes["value"] == (2, 2, 6, 4)
    assert second.shapes["scores"] == (2, 6, 1, 6)
    assert (second.past_tokens, third.past_tokens) == (5, 6)
    assert third.shapes["scores"] == (2, 6, 1, 7)
    assert third.shapes_without["scores"] == (2, 6, 7, 7)


def test_bytes_of_the_cache_are_those_of_its_keys_and_values():
    shape = DecoderShape(layers=3, heads=6, kv_heads=2, head_dim=4)
    report = kvcalc.demo_kv_cache(shape=shape, prompt_tokens=5, output_tokens=3, batch=2)
    assert report.cache_bytes == 2 * 3 * (5 + 2) * 2 * (4 + 4) * 8


def test_the_same_seed_gives_the_same_report_and_another_one_another_text():
    one, again, other = (kvcalc.demo_kv_cache(output_tokens=5, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert [step.tokens for step in one.steps] != [step.tokens for step in other.steps]


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"output_tokens": 0}, "output-tokens must be from 1"),
        ({"prompt_tokens": 0}, "prompt must be from 1"),
        ({"prompt_tokens": 10_000}, "prompt must be from 1 to 512"),
        ({"batch": 0}, "batch must be from 1"),
        ({"seed": -1}, "seed must be from 0"),
        ({"output_tokens": 512}, "attention scores without a cache"),
        ({"shape": DecoderShape(layers=0)}, "layers must be from 1"),
        ({"shape": DecoderShape(heads=4, kv_heads=3)}, "3 key-value heads do not divide 4"),
        ({"shape": DecoderShape(heads=4, kv_heads=8)}, "do not divide"),
        ({"shape": DecoderShape(head_dim=0)}, "head-dim must be"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, says):
    with pytest.raises(kvcalc.InputError, match=says):
        kvcalc.demo_kv_cache(**asked)


def test_a_refusal_counts_the_scores_that_would_be_computed():
    squares = sum(length * length for length in range(512, 1024))
    with pytest.raises(kvcalc.InputError, match=f"{2 * 4 * squares:,} attention scores"):
        kvcalc.demo_kv_cache(prompt_tokens=512, output_tokens=512)


def test_the_text_of_a_seed_stays_what_it_is():
    report = api.demo_kv_cache(output_tokens=8, seed=3)
    other = api.demo_kv_cache(output_tokens=8, seed=4)
    assert [step.tokens for step in report.steps] == [(2,), (2,), (2,), (2,), (2,), (2,), (31,), (6,)]
    assert [step.tokens for step in other.steps] == [(36,), (30,), (47,), (42,), (42,), (42,), (42,), (42,)]
