"""llama.cpp's compute buffers: what the allocator reuses, what is copied between backends, and what both add up to."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.model import Block, Full, Gated, Head, ModelProfile, State, Table
from kvcalc.core.provenance import Source
from kvcalc.engines.llama_cpp import LlamaCppOptions, compute
from kvcalc.engines.llama_cpp.backends import BACKENDS, CPU, MEMORY, Backend
from kvcalc.engines.llama_cpp.compute import ComputeBytes, compute_bytes
from kvcalc.engines.llama_cpp.graphs.allocator import Memory, peak_bytes, requests
from kvcalc.engines.llama_cpp.graphs.places import Places
from kvcalc.engines.llama_cpp.graphs.repeats import Run, find_runs, kept_layers
from kvcalc.engines.llama_cpp.graphs.scheduler import Backends, schedule
from kvcalc.engines.llama_cpp.graphs.tensors import F32, Graph, Tensor
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights

_MIB = 2**20


def _given(*ne: int) -> Tensor:
    tensor = Tensor("none", F32, (*ne, *(1,) * (4 - len(ne))))  # type: ignore[arg-type]
    tensor.given = True
    return tensor


def _weight(home: int, *ne: int, repacked: bool = False) -> Tensor:
    tensor = Tensor("none", F32, (*ne, *(1,) * (4 - len(ne))))  # type: ignore[arg-type]
    tensor.home, tensor.weight, tensor.repacked = home, True, repacked
    return tensor


def _peaks(graph: Graph, backends: Backends) -> list[int]:
    count = backends.devices + 1
    asked = requests(schedule(graph, backends), backends=[CPU] * count)
    return peak_bytes(asked.events, asked.sizes, alignments=[32] * count)


class TestMemory:
    def test_the_smallest_block_that_holds_it_is_taken(self):
        memory = Memory(32)
        wide, _, narrow, _ = (memory.take(size) for size in (96, 32, 64, 32))
        memory.free(wide, 96)
        memory.free(narrow, 64)
        assert memory.take(64) == narrow

    def test_the_open_end_grows_only_if_no_block_is_wide_enough(self):
        memory = Memory(32)
        first, _ = memory.take(64), memory.take(64)
        memory.free(first, 64)
        assert (memory.take(96), memory.peak) == (128, 224)

    def test_blocks_that_touch_become_one(self):
        memory = Memory(32)
        first, second, _ = (memory.take(64) for _ in range(3))
        memory.free(first, 64)
        memory.free(second, 64)
        assert memory.take(128) == first

    def test_blocks_of_no_size_may_stand_out_of_order_and_the_first_behind_an_address_counts(self):
        memory = Memory(32)
        memory.blocks = [[256, 64], [128, 0], [1024, 2**62]]
        memory.free(96, 32 - 32)
        memory.free(160, 32)
        assert memory.blocks == [[96, 0], [160, 32], [256, 64], [128, 0], [1024, 2**62]]


class TestAllocation:
    def test_a_sum_is_written_over_its_argument_and_a_product_is_not(self):
        graph = Graph()
        table = _weight(0, 1024, 1024)
        once = graph.matmul(table, graph.matmul(table, _given(1024, 8)))
        graph.expand(graph.like("add", once, _weight(0, 1024)))
        size = 1024 * 8 * 4
        device, host = _peaks(graph, Backends(devices=1))
        assert (device, host) == (2 * size, size)  # the copied input is free when the second product is computed

    def test_an_output_is_never_written_over(self):
        graph = Graph()
        product = graph.matmul(_weight(0, 1024, 1024), _given(1024, 8))
        product.kept = True
        graph.expand(graph.like("scale", product))
        assert _peaks(graph, Backends(devices=1))[0] == 2 * 1024 * 8 * 4  # the input's copy makes way for the result


class TestSplits:
    @pytest.mark.parametrize(("tokens", "where"), [(31, 1), (32, 0)])
    def test_a_device_takes_over_products_with_host_matrices_from_32_tokens_on(self, tokens, where):
        graph = Graph()
        graph.expand(graph.matmul(_weight(1, 64, 64), _given(64, tokens)))
        schedule(graph, Backends(devices=1))
        assert graph.nodes[0].backend == where

    def test_not_with_matrices_that_the_host_repacked_nor_if_told_not_to(self):
        for weight, offload in ((_weight(1, 64, 64, repacked=True), True), (_weight(1, 64, 64), False)):
            graph = Graph()
            graph.expand(graph.matmul(weight, _given(64, 512)))
            schedule(graph, Backends(devices=1, op_offload=offload))
            assert graph.nodes[0].backend == 1

    def test_what_a_device_takes_over_is_copied_to_it_whole(self):
        graph = Graph()
        graph.expand(graph.matmul(_weight(1, 1024, 4096), _given(1024, 32)))
        assert _peaks(graph, Backends(devices=1))[0] == 4 * (1024 * 4096 + 1024 * 32 + 4096 * 32)

    def test_four_copies_of_inputs_are_kept_where_devices_overlap(self):
        peaks = []
        for copies in (1, 4):
            graph = Graph()
            hidden = graph.matmul(_weight(0, 64, 64), _given(64, 8))
            graph.expand(graph.matmul(_weight(1, 64, 64), hidden))
            peaks.append(_peaks(graph, Backends(devices=2, copies=copies)))
        size = 64 * 8 * 4
        assert peaks == [[2 * size, 2 * size, size], [5 * size, 5 * size, 4 * size]]


def test_of_a_long_run_of_alike_layers_four_rounds_are_built():
    runs = find_runs("swwwswwwswwwswwwswwwswwwx")
    assert runs == (Run(first=0, length=4, times=6),)
    assert len(kept_layers(25, runs)) == 17


def _compute(
    model: ModelProfile,
    *,
    backend: Backend = MEMORY,
    memories: tuple[int, ...] = (24 * 2**30,),
    recipe: str | None = "q4_k_m",
    outputs: int | None = None,
    placed: PlacementOptions | None = None,
    **options: object,
) -> ComputeBytes:
    placement = place(placed or PlacementOptions(), layers=all_layers(model), free_bytes=memories)
    context = LlamaCppOptions(**{"context": 8192, **options})  # type: ignore[arg-type]
    weights = model_weights(model, recipe)
    kinds = [backend] * len(memories)
    return compute_bytes(model, placement, context, weights=weights, backends=kinds, outputs=outputs)


@pytest.mark.parametrize("name", ["deepseek-v3.2", "qwen3-30b-a3b"])
@pytest.mark.parametrize("placed", [PlacementOptions(), PlacementOptions(cpu_moe=True)], ids=["devices", "experts"])
def test_layers_that_are_left_out_take_what_they_would_if_they_were_built(name, placed, monkeypatch):
    """Of DeepSeek-V3.2 each layer has an input of its own, which is there from the start."""
    built = []
    plain = compute.build
    monkeypatch.setattr(compute, "build", lambda plan, homes, order: built.append(order) or plain(plan, homes, order))
    model = kvcalc.load_model(name)
    replayed = _compute(model, placed=placed)
    assert len(built) == 1
    assert len(built[0]) < 40
    monkeypatch.setattr(Places, "runs", lambda *_: ())
    assert _compute(replace(model, name="another"), placed=placed) == replayed
    assert len(built[-1]) == model.layers


class TestModels:
    def test_llama_takes_what_logs_of_cuda_print(self):
        """258.50 MiB on CUDA0 and 24.01 MiB on its host: logits of 512 tokens, then masks and the embedded tokens."""
        for backend in (MEMORY, BACKENDS["nvidia"]):
            answer = _compute(kvcalc.load_model("llama3.1-8b"), backend=backend)
            assert [round(size / _MIB, 2) for size in (*answer.devices, answer.host)] == [258.5, 24.01]
            assert answer.exact

    def test_logits_of_a_micro_batch_are_the_peak_of_a_small_model(self):
        model = kvcalc.load_model("qwen3-0.6b")
        logits = 151_936 * 512 * 4
        assert 0 < _compute(model).devices[0] - logits < 8 * _MIB
        assert 0 < _compute(model, ubatch=1024).devices[0] - 2 * logits < 16 * _MIB

    def test_a_server_computes_the_logits_of_one_token_a_sequence(self):
        """`llama-fit-params` with one output for each of four sequences in one buffer reserves so much."""
        answer = _compute(kvcalc.load_model("llama3.1-8b"), parallel=4, kv_unified=True, outputs=4)
        assert (*answer.devices, answer.host) == (121_645_088, 25_178_144)

    def test_without_flash_attention_the_scores_of_all_heads_are_held(self):
        model = kvcalc.load_model("llama3.1-8b")
        scores = 32 * 512 * 32_768 * 4  # heads, tokens, cells
        fused = _compute(model, context=32_768, flash_attn="on").devices[0]
        assert scores < _compute(model, context=32_768, flash_attn="off").devices[0] < scores + fused

    def test_a_longer_context_costs_only_its_mask_with_flash_attention(self):
        model = kvcalc.load_model("llama3.1-8b")
        short, long = (_compute(model, context=context) for context in (8192, 16_384))
        assert long.host - short.host == 8192 * 512 * 2

    def test_with_cuda_products_with_host_matrices_move_to_the_device(self):
        model = kvcalc.load_model("llama2-7b")
        placed = PlacementOptions(gpu_layers=0)
        repacked, pinned = (_compute(model, backend=kind, placed=placed) for kind in (MEMORY, BACKENDS["nvidia"]))
        assert repacked.host > pinned.host

    def test_cuda_turns_a_quantised_cache_into_16_bits_behind_the_result_of_attention(self):
        model = kvcalc.load_model("llama3.1-8b")
        plain, cuda = (
            _compute(model, backend=kind, context=131_072, cache_type_k="q8_0", cache_type_v="q8_0", flash_attn="on")
            for kind in (MEMORY, BACKENDS["nvidia"])
        )
        both = 2 * 131_072 * 8 * 128 * 2  # keys and values, cells, heads, width, bytes
        assert both < cuda.devices[0] < both + plain.devices[0]
        assert plain.devices[0] < both

    def test_fused_attention_that_cuda_has_no_kernel_for_makes_an_estimate(self):
        model = kvcalc.load_model("llama3.1-8b")
        odd = {"cache_type_k": "iq4_nl", "cache_type_v": "q8_0", "flash_attn": "on"}
        assert not _compute(model, backend=BACKENDS["nvidia"], **odd).exact
        assert _compute(model, **odd).exact

    def test_all_layers_on_two_devices_keep_four_copies_of_their_inputs(self):
        model = kvcalc.load_model("llama3.1-8b")
        pair = (24 * 2**30,) * 2
        piped = _compute(model, memories=pair)
        plain = _compute(model, memories=pair, placed=PlacementOptions(n_cpu_moe=1))  # an override forbids overlap
        assert piped.host > 3 * plain.host
        assert all(more > less for more, less in zip(piped.devices, plain.devices, strict=True))

    def test_a_device_that_holds_nothing_needs_nothing(self):
        model = kvcalc.load_model("llama3.1-8b")
        alone = PlacementOptions(split_mode="none")
        answer = _compute(model, memories=(24 * 2**30,) * 2, placed=alone)
        assert answer.devices[1] == 0


def _model(architecture: str, *mixers: Full | State) -> ModelProfile:
    return ModelProfile(
        name="x",
        architecture=architecture,
        hidden_size=1024,
        context_limit=8192,
        blocks=(Block(mixers=mixers, mlp=Gated(width=4096)),) * 4,
        embeddings=(Table(name="token", rows=32_000, width=1024),),
        head=Head(rows=32_000),
    )


def test_a_plain_architecture_without_a_description_is_an_estimate():
    plain = Full(heads=8, kv_heads=2, head_dim=128)
    known, other = (
        compute_bytes(
            model,
            place(PlacementOptions(), layers=4, free_bytes=[2**33]),
            LlamaCppOptions(context=4096),
            weights=(),
            backends=[MEMORY],
        )
        for model in (_model("llama", plain), _model("maincoder", plain))
    )
    assert (known.exact, other.exact) == (True, False)
    assert known.devices == other.devices


def test_files_of_glm_without_layers_that_predict_get_the_positions_of_a_model_that_sees():
    plain = Full(heads=8, kv_heads=2, head_dim=128)
    source = Source(kind="model_config", note="glm.gguf")
    hosts = []
    for layers in (0, 1):
        model = replace(_model("glm4moe", plain), sources={"file": source}, prediction_layers=layers)
        placement = place(PlacementOptions(), layers=4 + layers, free_bytes=[2**33])
        answer = compute_bytes(model, placement, LlamaCppOptions(context=4096), weights=(), backends=[MEMORY])
        assert answer.exact is (layers == 1)
        hosts.append(answer.host)
    assert hosts[0] - hosts[1] == 3 * 512 * 4


def test_recurrent_layers_of_an_undescribed_architecture_are_refused():
    model = _model("rwkv6", State(variant="rwkv", heads=8, key_dim=64, value_dim=64))
    with pytest.raises(UnsupportedError, match=r"compute buffers of rwkv6.*layers of kind state"):
        compute_bytes(
            model,
            place(PlacementOptions(), layers=4, free_bytes=[2**33]),
            LlamaCppOptions(context=4096),
            weights=(),
            backends=[MEMORY],
        )
