"""Weights and work over ranks: a rank never gets more as ranks are added, and nothing is lost between them."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kvcalc.core.identity import ById
from kvcalc.core.workload import Formats, Parallel
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.parameters import active_parameters, block_matrices, parameters, weight_bytes
from kvcalc.cost.sharding import _stage_parameters, rank_matrix, rank_weight_bytes, stage_blocks

from .strategies import formats, groups, mixers, models


@given(models(), formats())
def test_one_rank_holds_all_weights(model, formats):
    assert rank_weight_bytes(model, formats, Parallel()) == weight_bytes(model, formats)


@given(models(), formats(), st.integers(1, 8))
def test_rank_weights_never_grow_with_tensor_parallelism_and_ranks_hold_all_of_them(model, formats, ranks):
    fewer, more = (rank_weight_bytes(model, formats, Parallel(tensor=t)) for t in (ranks, ranks + 1))
    assert more <= fewer
    assert ranks * fewer >= weight_bytes(model, formats)


@given(models(), st.integers(1, 8))
def test_matrix_slices_cover_the_matrix(model, ranks):
    for block in model.blocks:
        for matrix in block_matrices(block, model.hidden_size):
            inputs, outputs, elements = rank_matrix(matrix, ranks)
            assert elements <= matrix.elements <= ranks * elements
            assert (inputs, outputs) == (matrix.inputs, matrix.outputs) or matrix.split != "none"


@given(models(), groups, formats(), st.integers(2, 6))
def test_ranks_together_do_at_least_the_work_of_one_device(model, group, formats, ranks):
    single = forward_cost(model, [group], formats)
    spread = forward_cost(model, [group], formats, parallel=Parallel(tensor=ranks))
    for field in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
        assert spread.total(field) >= single.total(field) * (1 - 1e-9), field


@given(models(), groups, formats(), st.integers(1, 6))
def test_a_rank_never_does_more_as_ranks_are_added(model, group, formats, ranks):
    fewer, more = (forward_cost(model, [group], formats, parallel=Parallel(tensor=t)) for t in (ranks, ranks + 1))
    for field in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes"):
        on_fewer, on_more = fewer.total(field) / fewer.ranks, more.total(field) / more.ranks
        assert on_more <= on_fewer * (1 + 1e-9), field


@given(mixers("full", "sliding", "chunked", "shared", "latent", "cross"), groups)
def test_attention_is_cut_by_query_heads(mixer, group):
    assume(getattr(mixer, "indexer", None) is None)  # every rank runs the whole index
    single, rank = (mixer_work(mixer, group, Formats(), tensor=ranks).flop for ranks in (1, mixer.heads))
    assert mixer.heads * rank == single


@given(models(), st.data())
def test_stages_hold_every_layer_once_in_order(model, data):
    stages = stage_blocks(model, data.draw(st.integers(1, model.layers)))
    assert sum(stages, ()) == model.blocks
    assert max(map(len, stages)) - min(map(len, stages)) <= 1


@given(models())
def test_active_parameters_are_among_all(model):
    parts = parameters(model)
    assert active_parameters(model) <= sum(parts.values()) - parts.get("embedding", 0)


@given(models(), groups, formats(), st.integers(2, 4))
def test_data_parallel_ranks_deal_out_the_sequences(model, group, formats, ranks):
    single = forward_cost(model, [group], formats)
    spread = forward_cost(model, [group], formats, parallel=Parallel(data=ranks))
    assert spread.total("kv_read_bytes") == pytest.approx(single.total("kv_read_bytes"))
    assert spread.flop == pytest.approx(single.flop)
    fullest = -(-group.sequences // ranks)
    on_fullest = sum(op.kv_read_bytes for op in spread.ops)
    assert on_fullest == pytest.approx(fullest * single.total("kv_read_bytes") / group.sequences)


@given(models())
def test_a_tied_table_is_counted_once(model):
    token, *others = model.embeddings
    held = sum(table.parameters for table in others) + (
        model.encoder.embeddings[0].parameters if _own_tables(model) else 0
    )
    tied = model.head is not None and model.head.tied
    assert parameters(model).get("embedding", 0) == held + (0 if tied else token.parameters)
    if tied:
        assert parameters(model)["head"] == token.parameters


@given(models(), st.integers(2, 4), st.integers(1, 3))
def test_the_first_stage_looks_up_the_table_that_the_last_multiplies_by(model, stages, tensor):
    """A tied table stands on both ends of a pipeline, as it does in Megatron and vLLM; one that is not tied on its own end."""
    assume(model.head is not None and model.layers >= stages and model.encoder is None)
    parallel = Parallel(tensor=tensor, pipeline=stages)
    ends = _stage_parameters(ById(model), parallel)
    table = -(-parameters(model)["head"] // tensor)
    assert ends[-1]["head"] == table
    assert ends[0]["head"] == (table if model.head.tied else 0)
    assert sum(stage["embedding"] for stage in ends) == -(-parameters(model).get("embedding", 0) // tensor)


def _own_tables(model):
    return model.encoder is not None and model.encoder.embeddings
