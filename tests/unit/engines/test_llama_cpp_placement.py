"""Placement of layers by llama.cpp's options: counted from the last layer, shared out in order, overridden by name."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.engines.llama_cpp.overrides import EXPERTS, Override
from kvcalc.engines.llama_cpp.placement import MAX_COPIES, PlacementOptions, place

GIB = 2**30


def test_all_layers_and_the_head_go_to_one_device():
    placed = place(PlacementOptions(), layers=4, free_bytes=(24 * GIB,))
    assert placed.layers == (0, 0, 0, 0)
    assert (placed.output, placed.gpu_layers, placed.copies) == (0, 5, 1)


@pytest.mark.parametrize(("count", "layers", "output"), [
    (0, (None, None, None, None), None),
    (1, (None, None, None, None), 0),
    (3, (None, None, 0, 0), 0),
    (5, (0, 0, 0, 0), 0),
    (99, (0, 0, 0, 0), 0),
])  # fmt: skip
def test_layers_are_counted_from_the_output_layer(count, layers, output):
    placed = place(PlacementOptions(gpu_layers=count), layers=4, free_bytes=(GIB,))
    assert (placed.layers, placed.output) == (layers, output)


def test_without_shares_layers_follow_free_memory():
    placed = place(PlacementOptions(), layers=8, free_bytes=(16 * GIB, 8 * GIB))
    assert (placed.layers.count(0), placed.layers.count(1)) == (6, 2)
    assert placed.output == 1
    assert placed.tensor_split[-1] == 1.0


def test_shares_that_are_all_zero_are_none():
    memory = (16 * GIB, 8 * GIB)
    assert place(PlacementOptions(tensor_split=(0.0, 0.0)), layers=8, free_bytes=memory) == place(
        PlacementOptions(), layers=8, free_bytes=memory
    )


def test_a_device_without_a_share_holds_nothing():
    placed = place(PlacementOptions(tensor_split=(1.0,)), layers=8, free_bytes=(GIB, GIB))
    assert set(placed.layers) == {0}


def test_shares_are_rounded_to_32_bits():
    """0.2 of 1.2 is above 1/6 in 64 bits and equal in 32: the second of six layers is the second device's."""
    placed = place(PlacementOptions(tensor_split=(0.2, 1.0)), layers=5, free_bytes=(GIB, GIB))
    assert 0.2 / 1.2 > 1 / 6 > placed.tensor_split[0]
    assert placed.layers == (0, 1, 1, 1, 1)


def test_one_device_alone():
    placed = place(PlacementOptions(split_mode="none", main_gpu=1), layers=2, free_bytes=(GIB, GIB))
    assert (placed.layers, placed.output, placed.used) == ((1, 1), 1, (1,))
    assert not placed.pipeline_parallel


@pytest.mark.parametrize("changed", [
    {"gpu_layers": 8}, {"kv_offload": False}, {"n_cpu_moe": 1}, {"cpu_moe": True},
    {"overrides": (Override(pattern="ffn"),)},
])  # fmt: skip
def test_pipelines_need_all_layers_caches_and_tensors_on_devices(changed):
    memory = (GIB, GIB)
    assert place(PlacementOptions(), layers=8, free_bytes=memory).copies == MAX_COPIES
    assert place(PlacementOptions(**changed), layers=8, free_bytes=memory).copies == 1


def test_experts_of_the_first_layers_stay_on_the_host():
    placed = place(PlacementOptions(n_cpu_moe=2), layers=12, free_bytes=(GIB,))
    stays = [layer for layer in range(12) if placed.of_tensor(f"blk.{layer}.ffn_up_exps.weight", 0) is None]
    assert stays == [0, 1]
    assert placed.of_tensor("blk.1.ffn_up_shexp.weight", 0) == 0
    assert placed.of_tensor("blk.1.ffn_gate_up_exps.weight", 0) is None


def test_the_first_pattern_that_matches_counts():
    overrides = (Override(pattern=r"blk\.1\.ffn_down_exps", device=1), Override(pattern=EXPERTS))
    placed = place(PlacementOptions(overrides=overrides), layers=3, free_bytes=(GIB, GIB))
    assert placed.of_tensor("blk.1.ffn_down_exps.weight", 0) == 1
    assert placed.of_tensor("blk.2.ffn_down_exps.weight", 0) is None
    assert placed.of_tensor("blk.2.attn_q.weight", 0) == 0


def test_caches_follow_their_layer_or_stay_on_the_host():
    moved = place(PlacementOptions(gpu_layers=2), layers=2, free_bytes=(GIB,))
    kept = place(PlacementOptions(gpu_layers=2, kv_offload=False), layers=2, free_bytes=(GIB,))
    assert [moved.of_cache(0), moved.of_cache(1)] == [None, 0]
    assert [kept.of_cache(0), kept.of_cache(1)] == [None, None]
    assert moved.of_layer(2) == 0


def test_no_device_means_the_host():
    placed = place(PlacementOptions(), layers=2, free_bytes=())
    assert (placed.layers, placed.output, placed.gpu_layers) == ((None, None), None, 0)


@pytest.mark.parametrize(("options", "message"), [
    ({"tensor_split": (1.0, 1.0, 1.0)}, "3 shares for 2 devices"),
    ({"main_gpu": 2}, "no device 2"),
    ({"overrides": (Override(pattern="x", device=5),)}, "no device 5"),
    ({"overrides": (Override(pattern="x", device=0),), "split_mode": "none", "main_gpu": 1}, "0 is not used"),
])  # fmt: skip
def test_devices_that_are_not_there(options, message):
    with pytest.raises(InputError, match=message):
        place(PlacementOptions(**options), layers=2, free_bytes=(GIB, GIB))


@pytest.mark.parametrize("options", [
    {"split_mode": "rows"}, {"n_cpu_moe": -1}, {"tensor_split": (-1.0,)}, {"overrides": (Override(pattern="("),)},
])  # fmt: skip
def test_values_that_llama_cpp_does_not_take(options):
    with pytest.raises(InputError):
        PlacementOptions(**options)


def test_a_split_by_rows_is_refused():
    with pytest.raises(UnsupportedError, match="row"):
        place(PlacementOptions(split_mode="row"), layers=2, free_bytes=(GIB, GIB))
