"""The decoder: cached decoding is full recomputation, byte for byte as large as predicted, for every kind of layer."""

import gc
import weakref
from pathlib import Path

import pytest
import torch

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Block, Compressed, Cross, Full, Indexer, Shared, State
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure import mlp
from kvcalc.measure.decoder import Decoder, check_supported, decode_n_tokens, decode_one_token, prefill, verify
from kvcalc.measure.engines.start import family_of
from kvcalc.measure.library import find_device
from kvcalc.measure.products import LINEAR, PACKED
from kvcalc.plan.formats import run_formats
from kvcalc.profiles.catalog import names
from kvcalc.sources import catalogue_model

from .models import GQA, HIDDEN, KINDS, MODELS, model_of

DEVICE = find_device("cpu")
COUNT = 12
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def decoder_of(model, weights="fp32", **more):
    return Decoder(model, weights=weights, device=DEVICE, **more)


def prompts(batch=2, tokens=9):
    return torch.randint(0, 211, (batch, tokens), generator=torch.Generator().manual_seed(5))


def recomputed(decoder, tokens):
    """Logits of the last token, everything computed anew."""
    cache = decoder.new_cache(batch=tokens.shape[0], capacity=tokens.shape[1])
    return decoder.forward(tokens, cache)[:, 0]


@every_model
def test_cached_decoding_is_full_recomputation(model):
    decoder, tokens = decoder_of(model), prompts()
    cache = decoder.new_cache(batch=2, capacity=tokens.shape[1] + COUNT)
    logits = prefill(decoder, tokens, cache)[:, -1]
    for _ in range(COUNT):
        torch.testing.assert_close(logits, recomputed(decoder, tokens), atol=2e-4, rtol=2e-4)
        following = logits.argmax(-1)
        assert following.equal(recomputed(decoder, tokens).argmax(-1))
        tokens = torch.cat((tokens, following[:, None]), dim=1)
        logits = decode_one_token(decoder, following, cache)
    assert len(tokens[:, 9:].unique()) > 2  # not one token over and over


@every_model
@pytest.mark.parametrize("pieces", [(3, 4, 2), (1, 8), (8, 1)])
def test_a_prompt_in_pieces_is_the_prompt(model, pieces):
    decoder, tokens = decoder_of(model), prompts()
    cache = decoder.new_cache(batch=2, capacity=9)
    found = [verify(decoder, piece, cache) for piece in tokens.split(pieces, dim=1)]
    whole = decoder.forward(tokens, decoder.new_cache(batch=2, capacity=9), logits=9)
    torch.testing.assert_close(torch.cat(found, dim=1), whole, atol=2e-4, rtol=2e-4)


@every_model
@pytest.mark.parametrize("weights", ["fp32", "bf16"])
@pytest.mark.parametrize(("batch", "tokens"), [(1, 1), (3, 5), (2, 40)])
def test_cache_and_weights_take_the_predicted_bytes(model, weights, batch, tokens):
    formats = run_formats(model, weights=weights, kv=weights, activations=weights)
    decoder = decoder_of(model, weights)
    held = cache_bytes(model, tokens, formats)
    assert decoder.new_cache(batch=batch, capacity=tokens).allocated_bytes == batch * (held.growing + held.state)
    assert decoder.weight_bytes == weight_bytes(model, formats)


@every_model
def test_the_cache_makes_projections_linear(model):
    decoder, tokens = decoder_of(model), prompts(batch=1, tokens=1)
    attending = sum(mixer.kind != "state" for block in model.blocks for mixer in block.mixers)
    cache = decoder.new_cache(batch=1, capacity=20)
    cached = 0
    for _ in range(20):
        run = decoder.new_pass(tokens, cache)
        decoder.forward(tokens, cache, run=run)
        cache.length += 1
        cached += run.projected
    anew = 0
    for length in range(1, 21):
        empty, sequence = decoder.new_cache(batch=1, capacity=length), tokens.expand(1, length)
        run = decoder.new_pass(sequence, empty)
        decoder.forward(sequence, empty, run=run)
        anew += run.projected
    assert (cached, anew) == (20 * attending, 20 * 21 // 2 * attending)


def test_decoding_many_is_decoding_one_by_one():
    decoder, tokens = decoder_of(MODELS["GQA"]), prompts()
    cache = decoder.new_cache(batch=2, capacity=20)
    first = prefill(decoder, tokens, cache)[:, -1].argmax(-1)
    many = decode_n_tokens(decoder, first, cache, count=5)
    again = decoder.new_cache(batch=2, capacity=20)
    prefill(decoder, torch.cat((tokens, first[:, None], many[:, :-1]), dim=1), again, chunk=4)
    assert many.shape == (2, 5)
    assert again.length == cache.length == 14
    torch.testing.assert_close(again.layers[1][0].keys[:, :, :14], cache.layers[1][0].keys[:, :, :14])


def test_the_same_seed_gives_the_same_weights():
    model, tokens = MODELS["hybrid"], prompts()
    one, same, other = (recomputed(decoder_of(model, seed=seed), tokens) for seed in (1, 1, 2))
    assert one.equal(same)
    assert not one.equal(other)


def test_packed_weights_multiply_as_they_stand():
    model, tokens = MODELS["tied"], prompts()
    packed, plain = (decoder_of(model, products=products) for products in (PACKED, LINEAR))
    torch.testing.assert_close(recomputed(packed, tokens), recomputed(plain, tokens), atol=1e-4, rtol=1e-4)
    assert plain.copied_bytes == 0
    assert packed.weight_bytes == plain.weight_bytes


def test_a_filled_cache_stands_before_its_last_token():
    decoder = decoder_of(MODELS["hybrid"])
    cache = decoder.new_cache(batch=2, capacity=12)
    cache.fill(decoder.make)
    assert cache.length == 11
    assert all(bool(tensor.ne(0).any()) for tensor in cache.tensors)


def test_experts_that_were_used_are_counted():
    decoder, tokens = decoder_of(MODELS["experts"]), prompts(batch=1, tokens=1)
    cache = decoder.new_cache(batch=1, capacity=4)
    run = decoder.new_pass(tokens, cache, touched=[])
    decoder.forward(tokens, cache, run=run)
    assert run.touched == [2, 2]


HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 16}
REFUSED = {
    "shared attention": Shared(**HEADS),
    "cross attention": Cross(**HEADS, encoder_tokens=4),
    "sparse indexer": Full(**HEADS, indexer=Indexer(heads=2, head_dim=8, top_k=4)),
    "projections of its own kind": Full(**HEADS, inputs=32),
    "compressed attention": Compressed(
        heads=4, head_dim=16, window=8, ratio=4, overlap=False, q_lora_rank=8, output_groups=1, output_rank=8
    ),
    "rwkv state layer": State(variant="rwkv", heads=4, key_dim=1, value_dim=3),
    "matrix parameters": State(variant="mamba2", heads=4, key_dim=8, value_dim=8, matrix_parameters=7),
}


@pytest.mark.parametrize(("words", "mixer"), REFUSED.items(), ids=REFUSED)
def test_what_is_not_built_is_refused_by_name(words, mixer):
    with pytest.raises(UnsupportedError, match=words):
        decoder_of(model_of(GQA, Block(mixers=(mixer,), mlp=GQA.mlp, vector_parameters=2 * HIDDEN)))


def test_a_format_it_does_not_run_in_is_refused():
    with pytest.raises(InputError, match="not in fp8"):
        decoder_of(MODELS["GQA"], "fp8")


def test_kinds_differ():
    """Each kind of layer is another function: none is built as one of the others."""
    found = {name: recomputed(decoder_of(model_of(kind)), prompts()).sum().item() for name, kind in KINDS.items()}
    assert len(set(found.values())) == len(found)


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this torch has no grouped multiplication")
@pytest.mark.parametrize("kind", ["experts", "experts, a shared one, biases"])
def test_grouped_experts_are_experts_one_by_one(kind):
    decoder = decoder_of(MODELS[kind], products=LINEAR)
    experts, run = decoder.layers[0].mlp, decoder.new_pass(prompts(), decoder.new_cache(batch=1, capacity=1))
    tokens = torch.randn(7, HIDDEN, generator=torch.Generator().manual_seed(2))
    chosen, shares = experts.routed(tokens)
    wanted = experts.mixed(tokens, chosen, shares, run, grouped=False)
    experts.stacks = [torch.stack([one.weight for one in matrices]) for matrices in (experts.ups, experts.downs)]
    torch.testing.assert_close(experts.mixed(tokens, chosen, shares, run, grouped=True), wanted)


@pytest.mark.parametrize(
    ("dtype", "capability", "groups"),
    [
        (torch.bfloat16, (9, 0), True),
        (torch.bfloat16, (10, 0), True),
        (torch.bfloat16, (12, 0), False),
        (torch.bfloat16, (12, 1), False),
        (torch.bfloat16, (8, 0), False),
        (torch.float32, (9, 0), False),
    ],
)
def test_experts_are_grouped_where_there_is_a_kernel_for_it(dtype, capability, groups, monkeypatch):
    monkeypatch.setattr(torch, "_grouped_mm", None, raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert mlp._can_group(dtype) is groups  # noqa: SLF001  its own test


@every_model
def test_a_decoder_goes_with_its_last_user(model):
    """Nothing refers in a circle: the next model's weights find the room of the last one's."""
    decoder = decoder_of(model)
    cache = decoder.new_cache(batch=1, capacity=4)
    decode_one_token(decoder, torch.zeros(1, dtype=torch.long), cache)
    held = [weakref.ref(thing) for thing in (decoder.tokens, decoder.layers[0], decoder.layers[0].mixers[0])]
    gc.disable()
    try:
        del decoder, cache
        assert [thing() for thing in held] == [None] * 3
    finally:
        gc.enable()


def test_the_page_counts_the_models_that_are_built_and_those_that_engines_get_a_config_of():
    page = " ".join((Path(__file__).parents[3] / "docs" / "measure.md").read_text(encoding="utf-8").split())
    models = [catalogue_model(name) for name in names("model")]
    built = sum(not _is_refused(check_supported, model) for model in models)
    configured = sum(not _is_refused(family_of, model) for model in models)
    assert f"That is {built} of the {len(models)} models of the catalogue" in page
    assert f"Llama, Qwen2 or Qwen3 ({configured} of the catalogue)" in page


def _is_refused(check, model):
    try:
        check(model)
    except UnsupportedError:
        return True
    return False
