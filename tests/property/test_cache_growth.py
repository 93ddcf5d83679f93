"""The cache over the length of a sequence: straight lines, never shrinking."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.model import Block, Compressed, ModelProfile
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import affine_segments, cache_bytes, kv_heads_per_rank
from kvcalc.plan.deployment import deploy
from kvcalc.plan.size import size_report

from .strategies import MIXER_KINDS, formats, models

# With compressed entries bytes wait until `ratio` tokens are complete, then shrink to one entry: not monotone between.
STEADY = tuple(kind for kind in MIXER_KINDS if kind != "compressed")
lengths = st.integers(0, 400)


def _along_the_line(model, formats, tokens):
    segment = [line for line in affine_segments(model, formats) if line.from_tokens <= tokens][-1]
    return segment.base_bytes + segment.bytes_per_token * tokens


def _held(model, formats, tokens):
    held = cache_bytes(model, tokens, formats)
    return held.growing + held.state


def _within(model, tokens):
    """Lines are drawn up to the model's limit only."""
    return tokens if model.context_limit is None else tokens % (model.context_limit + 1)


@given(models(*STEADY), formats(), lengths)
def test_affine_form_equals_the_direct_sum(model, formats, tokens):
    tokens = _within(model, tokens)
    assert _along_the_line(model, formats, tokens) == _held(model, formats, tokens)


@given(models("compressed", "full", "state"), formats(), lengths)
def test_affine_form_equals_the_direct_sum_at_whole_compressed_entries(model, formats, tokens):
    ratio = math.lcm(*(m.ratio for block in model.blocks for m in block.mixers if isinstance(m, Compressed)))
    tokens = _within(model, tokens) // ratio * ratio
    assert _along_the_line(model, formats, tokens) == pytest.approx(_held(model, formats, tokens))


@given(models(*STEADY), formats(), lengths)
def test_a_token_never_frees_cache(model, formats, tokens):
    assert _held(model, formats, tokens) <= _held(model, formats, tokens + 1)


@given(models(), formats(), lengths)
def test_states_and_encoder_keys_do_not_grow(model, formats, tokens):
    now, later = cache_bytes(model, tokens, formats), cache_bytes(model, tokens + 1, formats)
    assert (now.state, now.cross) == (later.state, later.cross)


@given(models(), st.integers(1, 400))
def test_reported_bytes_per_token_are_the_next_tokens(model, context):
    deployment = deploy(model)
    now, after = (cache_bytes(model, tokens, deployment.formats).growing for tokens in (context, context + 1))
    assert size_report(deployment, context=context).kv.bytes_per_token == after - now


@given(st.integers(1, 130), st.integers(1, 130))
def test_every_kv_head_has_a_rank_and_every_rank_a_head(heads, ranks):
    on_rank = kv_heads_per_rank(heads, ranks)
    assert ranks * on_rank >= heads
    assert on_rank == 1 or ranks * (on_rank - 1) < heads


@given(models(), formats(), lengths, st.integers(1, 8))
def test_rank_cache_never_grows_with_tensor_parallelism_and_ranks_hold_all_of_it(model, formats, tokens, ranks):
    single, fewer, more = (cache_bytes(model, tokens, formats, tensor=t) for t in (1, ranks, ranks + 1))
    for field in ("growing", "state", "cross"):
        assert getattr(more, field) <= getattr(fewer, field)
        assert ranks * getattr(fewer, field) >= getattr(single, field)


@pytest.mark.parametrize("limit", [4, 8, 9, 12])
def test_affine_form_holds_at_the_models_limit(limit):
    layer = Compressed(
        heads=1, head_dim=4, window=8, ratio=4, overlap=True, q_lora_rank=2, output_groups=1, output_rank=2
    )
    model = ModelProfile(
        name="edge",
        architecture="edge",
        hidden_size=8,
        context_limit=limit,
        blocks=(Block(mixers=(layer,)),),
        embeddings=(),
        head=None,
    )
    tokens = limit // 4 * 4
    assert _along_the_line(model, Formats(), tokens) == _held(model, Formats(), tokens)
