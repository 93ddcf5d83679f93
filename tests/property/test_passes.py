"""One formula for every pass: prefill, its chunks and decode steps must agree with each other."""

import math
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvcalc.core.formats import FORMATS
from kvcalc.core.model import Block, Encoder, Mixture, ModelProfile, Shared
from kvcalc.core.workload import Formats, Parallel, TokenGroup, decode_step
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.cache import entry_bytes, held_tokens, state_bytes
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.parameters import block_matrices, parameters, weight_bytes

from .strategies import formats, groups, mixers, models

# Latent attention is exempt where passes are cut: a pass of several tokens takes the cheaper of two forms, and one that
# expands the past expands it again in every chunk. Cross-attention has no past; its pairs are query x encoder tokens.
ADDITIVE = ("full", "sliding", "chunked", "shared", "compressed", "state")
tokens = st.integers(1, 60)


def _flop(cost, *, leave_out=()):
    return sum(op.flop for op in cost.ops if op.part not in leave_out)


@given(models(), formats(), tokens)
def test_prefill_costs_the_linear_flop_of_as_many_decode_steps(model, formats, count):
    prefill = forward_cost(model, [TokenGroup(sequences=2, query_tokens=count)], formats)
    step = forward_cost(model, [decode_step(batch=2, context=7)], formats)
    linear = _flop(step, leave_out=("cache", "head"))
    assert _flop(prefill, leave_out=("cache", "head")) == pytest.approx(count * linear)


@given(models(), formats(), tokens)
def test_prefill_runs_the_head_once_a_sequence(model, formats, count):
    prefill = forward_cost(model, [TokenGroup(sequences=2, query_tokens=count)], formats)
    step = forward_cost(model, [decode_step(batch=2, context=count)], formats)
    assert prefill.total("flop", part="head") == step.total("flop", part="head")


@given(mixers(*ADDITIVE), formats(), tokens)
def test_causal_prefill_is_the_sum_of_its_decode_steps(mixer, formats, count):
    whole = mixer_work(mixer, TokenGroup(sequences=1, query_tokens=count), formats).flop
    steps = (mixer_work(mixer, decode_step(batch=1, context=seen), formats).flop for seen in range(1, count + 1))
    assert whole == sum(steps)


def _in_chunks(cuts, last):
    start, passes = 0, []
    for size in cuts:
        ends = start + size == last
        passes.append(
            TokenGroup(
                sequences=3, query_tokens=size, past_tokens=start, logit_tokens=int(ends), encoder_pass=start == 0
            )
        )
        start += size
    return passes


@given(models(*ADDITIVE, "cross"), formats(), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_cutting_a_prefill_leaves_its_flop(model, formats, cuts):
    chunks = [forward_cost(model, [chunk], formats) for chunk in _in_chunks(cuts, sum(cuts))]
    whole = forward_cost(model, _in_chunks([sum(cuts)], sum(cuts)), formats)
    assert sum(chunk.flop for chunk in chunks) == pytest.approx(whole.flop)


@given(models("full", "latent"), formats(), st.lists(st.integers(1, 20), min_size=1, max_size=5))
def test_cutting_a_prefill_leaves_the_entries_it_writes(model, formats, cuts):
    chunks = [forward_cost(model, [chunk], formats) for chunk in _in_chunks(cuts, sum(cuts))]
    whole = forward_cost(model, _in_chunks([sum(cuts)], sum(cuts)), formats)
    assert sum(chunk.total("kv_write_bytes") for chunk in chunks) == whole.total("kv_write_bytes")


@given(models(), formats(plain=True), groups, groups)
def test_a_mixed_pass_does_the_work_of_its_groups_and_reads_weights_once(model, formats, one, other):
    apart = [forward_cost(model, [group], formats) for group in (one, other)]
    mixed = forward_cost(model, [one, other], formats)
    assert mixed.flop == pytest.approx(sum(cost.flop for cost in apart))
    assert mixed.total("kv_read_bytes") == pytest.approx(sum(cost.total("kv_read_bytes") for cost in apart))
    assert mixed.total("weight_bytes") <= sum(cost.total("weight_bytes") for cost in apart) * (1 + 1e-12)


def _without_unused(model):
    """A model without the projections that its checkpoint holds for layers that share a cache."""

    def lean(mixer):
        return replace(mixer, projects=False) if isinstance(mixer, Shared) else mixer

    return replace(model, blocks=tuple(replace(block, mixers=tuple(map(lean, block.mixers))) for block in model.blocks))


_EXPERTS_IN_ENCODER = ModelProfile(
    name="experts-in-encoder",
    architecture="random",
    hidden_size=8,
    context_limit=None,
    blocks=(Block(name="layer"),),
    embeddings=(),
    head=None,
    encoder=Encoder(
        hidden_size=8, tokens=3, blocks=(Block(name="layer", mlp=Mixture(experts=2, experts_per_token=1, width=4)),)
    ),
)


@given(models().map(_without_unused), formats(plain=True))
@example(_EXPERTS_IN_ENCODER, Formats())
def test_a_pass_that_uses_everything_reads_every_weight_but_the_tables_once(model, formats):
    group = TokenGroup(sequences=4, query_tokens=8, encoder_pass=True)  # 32 tokens: more than any layer has experts
    cost = forward_cost(model, [group], formats, routing="worst")
    read = cost.total("weight_bytes") - cost.total("weight_bytes", part="embedding")
    tables = formats.of("embedding").bytes(parameters(model).get("embedding", 0))
    assert read == pytest.approx(weight_bytes(model, formats) - tables)


@given(models(encoder=False).map(_without_unused), formats(), groups)
def test_linear_flop_is_two_for_each_active_weight_and_token(model, formats, group):
    layers = sum(
        _matrix_flop(block, model.hidden_size, group) for block in model.blocks if not isinstance(block.mlp, Mixture)
    )
    plain = replace(model, blocks=tuple(block for block in model.blocks if not isinstance(block.mlp, Mixture)))
    cost = forward_cost(plain, [group], formats)
    outside = 2 * group.tokens * model.matrix_parameters
    assert _flop(cost, leave_out=("cache", "head")) == layers + outside


def _matrix_flop(block, hidden, group):
    """FLOP of a layer's matrices, by hand: cross-attention's keys and values once an encoder's token, else by token."""
    encoded = group.sequences * max((getattr(m, "encoder_tokens", 0) for m in block.mixers), default=0)
    once = encoded if group.encoder_pass else 0
    return sum(
        2 * (once if matrix.encoder else group.tokens) * matrix.elements for matrix in block_matrices(block, hidden)
    )


@given(models(), formats(plain=True), groups)
def test_projections_that_are_not_used_cost_nothing(model, formats, group):
    lean = _without_unused(model)
    assert forward_cost(model, [group], formats).flop == forward_cost(lean, [group], formats).flop


@given(models(), formats(), groups, st.data())
def test_pipeline_stages_do_the_work_of_one_device(model, formats, group, data):
    stages = data.draw(st.integers(1, model.layers))
    single = forward_cost(model, [group], formats)
    piped = forward_cost(model, [group], formats, parallel=Parallel(pipeline=stages))
    assert piped.flop == pytest.approx(single.flop)
    assert piped.total("kv_read_bytes") == pytest.approx(single.total("kv_read_bytes"))


@given(mixers("full", "sliding", "latent", "state"), groups)
def test_sequences_multiply_a_mixers_work(mixer, group):
    one = mixer_work(mixer, replace(group, sequences=1), Formats())
    many = mixer_work(mixer, group, Formats())
    for field in ("flop", "read_bytes", "write_bytes", "reread_bytes"):
        assert getattr(many, field) == group.sequences * getattr(one, field)


@given(mixers("full", "sliding", "latent"), st.integers(1, 300))
def test_a_decode_step_reads_what_the_cache_then_holds(mixer, context):
    work = mixer_work(mixer, decode_step(batch=1, context=context), Formats())
    held = held_tokens(mixer, context) * entry_bytes(mixer, Formats())
    indexer = getattr(mixer, "indexer", None)
    if indexer is None:
        assert work.read_bytes == held
    else:
        keys = FORMATS["bf16"].bytes(indexer.kept_dim) if indexer.stored else 0
        chosen = min(context, indexer.top_k) * (entry_bytes(mixer, Formats()) - keys)
        assert work.read_bytes == context * keys + chosen
    assert work.write_bytes == entry_bytes(mixer, Formats())


@given(mixers("chunked"), st.integers(1, 300))
def test_a_chunked_step_reads_its_own_chunk_only(mixer, context):
    work = mixer_work(mixer, decode_step(batch=1, context=context), Formats())
    assert work.read_bytes == ((context - 1) % mixer.chunk + 1) * entry_bytes(mixer, Formats())


@given(mixers("state"), st.integers(1, 300), tokens)
def test_a_state_is_read_and_written_whole_whatever_the_context(mixer, context, count):
    held = state_bytes(mixer, Formats())
    step = mixer_work(mixer, decode_step(batch=1, context=context), Formats())
    chunk = mixer_work(mixer, TokenGroup(sequences=1, query_tokens=count, past_tokens=context), Formats())
    assert (step.read_bytes, step.write_bytes) == (chunk.read_bytes, chunk.write_bytes) == (held, held)
    assert math.isclose(chunk.flop, count * step.flop)
