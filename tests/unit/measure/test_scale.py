"""Cutting models down, and what a run needs."""

import pytest

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.core.model import Chunked, Full, Mixture, Sliding
from kvcalc.core.units import GIB
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.decoder import Decoder, check_supported
from kvcalc.measure.library import find_device
from kvcalc.measure.scale import all_in, check_memory, fit_layers, one_of_each, run_bytes, with_layers
from kvcalc.measure.vectors import final_layout, vector_layout
from kvcalc.plan.formats import run_formats

from .models import MODELS, model_of
from .models import block as layer_of

LLAMA = api.load_model("llama3.2-1b")
BF16 = run_formats(LLAMA, weights="bf16", kv="bf16")


@pytest.mark.parametrize(
    ("name", "layers", "kinds"),
    [
        ("llama3.2-1b", 5, [5]),
        ("deepseek-v3", 4, [1, 3]),
        ("qwen3-next-80b-a3b", 8, [6, 2]),
        ("gemma-3-27b", 6, [5, 1]),
        ("deepseek-v3", 1, [1]),
    ],
)
def test_a_cut_keeps_the_shares_of_the_kinds(name, layers, kinds):
    cut = with_layers(api.load_model(name), layers)
    assert cut.layers == layers
    assert sorted(cut.block_counts.values()) == sorted(kinds)


def test_a_whole_model_is_not_cut():
    assert with_layers(LLAMA, 16) is LLAMA


@pytest.mark.parametrize("layers", [0, 17, -1])
def test_more_layers_than_there_are_is_refused(layers):
    with pytest.raises(InputError, match=r"llama3\.2-1b has 16"):
        with_layers(LLAMA, layers)


def test_as_many_layers_as_fit():
    cut = fit_layers(LLAMA, BF16, batch=4, context=512, memory_bytes=2 * GIB)
    assert run_bytes(cut, BF16, batch=4, context=512) <= 2 * GIB
    one_more = with_layers(LLAMA, cut.layers + 1)
    assert run_bytes(one_more, BF16, batch=4, context=512) > 2 * GIB


def test_what_cannot_be_cut_to_fit_is_refused():
    with pytest.raises(InputError, match=r"one layer of llama3\.2-1b"):
        fit_layers(LLAMA, BF16, batch=1, context=512, memory_bytes=GIB // 2)


def test_a_run_that_would_not_fit_says_what_it_needs_and_what_fits():
    with pytest.raises(InputError, match=r"needs 2\.\d\d GiB of memory on cpu, where 2\.00 GiB are free") as error:
        check_memory(LLAMA, BF16, batch=1, context=512, free_bytes=2 * GIB, device="cpu")
    most = int(error.value.hint.split()[1])
    assert run_bytes(with_layers(LLAMA, most), BF16, batch=1, context=512) <= 2 * GIB


def test_a_run_that_fits_is_let_pass():
    check_memory(LLAMA, BF16, batch=1, context=512, free_bytes=8 * GIB, device="cpu")


@pytest.mark.parametrize("name", ["mixtral-8x7b", "gemma-3-27b", "llama4-scout", "deepseek-v2-lite", "gpt2"])
def test_the_small_model_has_one_layer_of_each_kind_of_the_same_shape(name):
    model = api.load_model(name)
    small = one_of_each(model)
    check_supported(small)
    assert [block.vector_parameters for block in small.blocks] == [b.vector_parameters for b in model.block_counts]
    for block in small.blocks:
        for mixer in block.mixers:
            assert not isinstance(mixer, Sliding) or mixer.window < 12
            assert not isinstance(mixer, Chunked) or mixer.chunk < 12
        if isinstance(block.mlp, Mixture):
            assert block.mlp.experts_per_token < block.mlp.experts


def test_the_loop_takes_no_more_than_is_said():
    for model in MODELS.values():
        formats = run_formats(model, weights="fp32", kv="fp32", activations="fp32")
        decoder = Decoder(model, weights="fp32", device=find_device("cpu"))
        cache = decoder.new_cache(batch=3, capacity=40)
        held = decoder.weight_bytes + decoder.copied_bytes + cache.allocated_bytes
        assert held <= run_bytes(model, formats, batch=3, context=40)


NORMS = {"norm_0", "norm_1"}
BIASES = {"qkv_bias", "output_bias", "up_bias", "down_bias"}


def layout_of(model, block):
    centred = "norm_bias" in final_layout(model.vector_parameters, model.hidden_size)
    return vector_layout(block, model.hidden_size, centred=centred)


@pytest.mark.parametrize(
    ("model", "vectors"),
    [
        ("gpt2", NORMS | BIASES | {"norm_0_bias", "norm_1_bias"}),
        ("pythia-1b", NORMS | BIASES | {"norm_0_bias", "norm_1_bias"}),
        ("phi-2", BIASES | {"norm_0", "norm_0_bias"}),
        ("qwen2.5-7b", NORMS | {"qkv_bias"}),
        ("qwen3-8b", NORMS | {"query_norm", "key_norm"}),
        ("gemma-3-27b", NORMS | {"post_norm_0", "post_norm_1", "query_norm", "key_norm"}),
        ("gpt-oss-20b", NORMS | {"qkv_bias", "output_bias", "sinks", "router_bias"}),
        ("llama2-7b", NORMS),
        ("olmo-7b", set()),
    ],
)
def test_vectors_are_what_their_number_says(model, vectors):
    profile = api.load_model(model)
    layout = layout_of(profile, profile.blocks[0])
    assert set(layout) == vectors
    assert sum(layout.values()) == profile.blocks[0].vector_parameters


def test_every_vector_of_the_catalogue_is_explained():
    """What no architecture explains is allocated but not used; among the models that are built there is none such."""
    from kvcalc.core.errors import UnsupportedError

    held, built = [], 0
    for name in api.profile_names("model"):
        model = api.load_model(name)
        try:
            check_supported(model)
        except UnsupportedError:
            continue
        built += 1
        held += [name for block in model.block_counts if "held" in layout_of(model, block)]
    assert not held
    assert built > 200


def test_the_scores_of_many_heads_on_one_cache_count():
    one = model_of(layer_of(Full(heads=1, kv_heads=1, head_dim=16)))
    many = model_of(layer_of(Full(heads=65, kv_heads=1, head_dim=16)))
    near = model_of(layer_of(Sliding(heads=65, kv_heads=1, head_dim=16, window=100)))
    formats, batch, context = all_in("bf16"), 100_000, 4096

    def beside(model):
        held = cache_bytes(model, context, formats)
        return (
            run_bytes(model, formats, batch=batch, context=context) / 1.03
            - batch * held.growing
            - weight_bytes(model, formats)
        )

    # two in fp32 and one in bf16 of each score
    assert beside(many) - beside(one) == pytest.approx(batch * 64 * context * 10)
    assert beside(many) - beside(near) == pytest.approx(batch * 65 * (context - 100) * 10)
