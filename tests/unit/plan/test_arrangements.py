"""Ways to spread a model: what a number of GPUs means, which layouts people rent, and the fewest GPUs that hold it."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Block, Full, Latent, Mixer
from kvcalc.core.workload import Parallel
from kvcalc.plan.arrangements import arrangements, is_practical, spread
from kvcalc.plan.deployment import Deployment
from kvcalc.plan.fit import fewest_gpus


def _model(layers: int, *, heads: int = 8, latent: bool = False) -> kvcalc.ModelProfile:
    mixer: Mixer = Full(heads=heads, kv_heads=heads, head_dim=64)
    if latent:
        mixer = Latent(heads=heads, kv_lora_rank=512, rope_dim=64, nope_dim=64, value_head_dim=64)
    return kvcalc.ModelProfile(
        name="x",
        architecture="x",
        hidden_size=64,
        context_limit=None,
        blocks=(Block(mixers=(mixer,)),) * layers,
        embeddings=(),
        head=None,
    )


@pytest.mark.parametrize(
    ("gpus", "layers", "tensor", "pipeline"),
    [
        (8, 4, 8, 1),  # its eight heads, one a rank
        (12, 4, 4, 3),  # not 12 heads, nor 6: the most ranks that share them evenly, times stages
        (12, 3, 4, 3),
        (3, 3, 1, 3),  # a layer a stage
        (1, 1, 1, 1),
    ],
)
def test_a_number_of_gpus_alone_takes_a_layout_that_exists(gpus: int, layers: int, tensor: int, pipeline: int) -> None:
    sizes, notes = spread(_model(layers), gpus=gpus)
    assert (sizes.tensor, sizes.pipeline, sizes.gpus) == (tensor, pipeline, gpus)
    assert bool(notes) is (pipeline > 1)
    if notes:
        assert (f"--tp {tensor} --pp {pipeline}" if tensor > 1 else f"as --pp {pipeline}") in notes[0]


@pytest.mark.parametrize(("gpus", "layers"), [(12, 2), (3, 2), (7, 6), (10**12 + 1, 80)])
def test_a_number_of_gpus_that_no_layout_uses_is_refused(gpus: int, layers: int) -> None:
    with pytest.raises(InputError, match=f"no layout of x uses {gpus} GPUs"):
        spread(_model(layers), gpus=gpus)


def test_sglang_counts_the_copies_of_the_attention_inside_its_tensor_ranks() -> None:
    sizes, notes = spread(_model(4, latent=True), gpus=8, tensor=8, data=4, engine="sglang")
    assert sizes == Parallel(tensor=2, data=4, expert=8)
    assert "--tp 8 --dp 4 on 8 GPUs" in notes[0]
    assert spread(_model(4, latent=True), gpus=8, tensor=8, data=4, expert=1, engine="sglang")[0].expert == 1
    assert spread(_model(4, latent=True), gpus=8, tensor=2, data=4, engine="vllm") == (Parallel(tensor=2, data=4), ())
    for options in (
        {"gpus": 8, "tensor": 8, "data": 3, "engine": "sglang"},
        {"gpus": 8, "tensor": 8, "data": 4, "engine": "vllm"},
    ):
        with pytest.raises(InputError):
            spread(_model(4, latent=True), **options)


def test_arrangements_end_with_one_layer_a_stage_eight_ranks_a_node_and_64_gpus() -> None:
    shapes = [(each.tensor, each.pipeline) for each in arrangements(_model(3))]
    assert shapes == [(1, 1), (2, 1), (1, 2), (1, 3), (4, 1), (2, 2), (2, 3), (8, 1), (4, 2), (4, 3), (8, 2), (8, 3)]
    assert max(each.gpus for each in arrangements(_model(8))) == 64
    assert max(each.gpus for each in arrangements(_model(100))) == 64
    assert {each.tensor for each in arrangements(_model(1, heads=6))} == {1, 2, 3, 6}


def test_latent_attention_may_be_replicated_on_more_than_one_gpu() -> None:
    spread = [each for each in arrangements(_model(1, latent=True)) if each.data > 1]
    assert [(each.data, each.expert) for each in spread] == [(gpus, gpus) for gpus in range(2, 65)]
    assert all(each.data == 1 for each in arrangements(_model(1)))


@pytest.mark.parametrize(
    ("parallel", "practical"),
    [
        (Parallel(), True),
        (Parallel(tensor=2), True),
        (Parallel(tensor=8), True),
        (Parallel(tensor=3), False),
        (Parallel(tensor=4, pipeline=2), False),  # eight GPUs are one node: tensor parallel
        (Parallel(tensor=8, pipeline=2), True),
        (Parallel(tensor=4, pipeline=4), False),
        (Parallel(tensor=4, pipeline=3), False),
        (Parallel(data=16, expert=16), True),
        (Parallel(data=12, expert=12), False),
    ],
)
def test_people_rent_whole_nodes_or_a_half_a_quarter_an_eighth(parallel: Parallel, *, practical: bool) -> None:
    assert is_practical(parallel) is practical


def _deployment(layers: int) -> Deployment:
    return replace(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), model=_model(layers))


def test_the_fewest_and_the_fewest_practical_gpus_are_both_found() -> None:
    found = fewest_gpus(_deployment(8), lambda each: each.parallel.gpus >= 3)
    assert found.smallest is not None
    assert found.practical is not None
    assert (found.smallest.gpus, found.smallest.flags) == (3, "--pp 3")
    assert (found.practical.gpus, found.practical.flags, found.reason) == (4, "--tp 4", "")


def test_without_any_the_reason_is_the_first_refusal_or_the_limit() -> None:
    def refused(each: Deployment) -> bool:
        raise UnsupportedError(f"{each.parallel.gpus} GPUs are not modelled")

    assert fewest_gpus(_deployment(2), refused).reason == "1 GPUs are not modelled"
    none = fewest_gpus(_deployment(2), lambda _: False)
    assert (none.smallest, none.practical, none.reason) == (None, None, "more than 64")


def test_the_users_own_arrangement_comes_before_others_on_as_many_gpus() -> None:
    own = replace(_deployment(8), parallel=Parallel(tensor=1, pipeline=4))
    found = fewest_gpus(own, lambda each: each.parallel.gpus == 4)
    assert found.smallest is not None
    assert found.smallest.flags == "--pp 4"
    outside = replace(_deployment(8), parallel=Parallel(tensor=2, data=2))
    assert outside.parallel not in set(arrangements(outside.model))
    found = fewest_gpus(outside, lambda each: each.parallel.data == 2)
    assert found.smallest is not None
    assert found.smallest.flags == "--tp 2 --dp 2"
