"""GGUF architectures: real headers of llama.cpp's own converter, its tensors by hand where it cannot be run, and its names one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.model import Full, ModelProfile, Sliding, State
from kvcalc.cost.parameters import parameters
from kvcalc.engines.llama_cpp import LlamaCppOptions, layout
from kvcalc.importers.checkpoint import Tensor, TensorTable
from kvcalc.importers.gguf_architectures import check_known
from kvcalc.importers.gguf_families import gguf_profile
from kvcalc.importers.hugging_face import import_config

HEADERS: dict[str, Any] = json.loads((Path(__file__).parent / "gguf_headers.json").read_text())
REAL = [name for name in HEADERS if name != "source"]
# llama.cpp 0c1e57098bba, LLM_ARCH_NAMES.
NAMES = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bert bitnet bloom chameleon chatglm clip
codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr deepseek32 deepseek4 dflash
dots1 dots3note dream eagle3 ernie4_5 ernie4_5-moe eurobert exaone exaone-moe exaone4 falcon falcon-h1 gemma
gemma-embedding gemma2 gemma3 gemma3n gemma4 gemma4-assistant glm-dsa glm4 glm4moe glm5-next gpt-oss gpt2 gptj gptneox
granite granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl
hy_v3 hy_v4 internlm2 jais jais2 jamba jina-bert-v2 jina-bert-v3 kimi-k3 kimi-linear laguna lfm2 lfm2moe llada
llada-moe llama llama-embed llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2
minimax-m3 mistral3 mistral4 modern-bert mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe neo-bert
nomic-bert nomic-bert-moe olmo olmo2 olmoe openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3
plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3tts qwen3vl qwen3vlmoe
qwen4exp refact rnd1 rwkv6 rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2
step35 t5 t5encoder talkie wavtokenizer-dec xverse
""".split()  # noqa: SIM905 - a list of its own line each says less
GENERATORS_NOT_READ = 14


def table_of(outer: dict[str, list[int]], layers: list[dict[str, Any]]) -> TensorTable:
    shapes = dict(outer)
    for group in layers:
        for layer in group["of"]:
            shapes |= {f"blk.{layer}.{name}": shape for name, shape in group["tensors"].items()}
    tensors = {}
    for name, shape in shapes.items():
        elements = 1
        for side in shape:
            elements *= side
        tensors[name] = Tensor("fp16", tuple(shape), 2 * elements)
    return TensorTable("model.gguf", tensors)


def imported(architecture: str, keys: dict[str, Any], table: TensorTable) -> ModelProfile:
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": keys[key] for key in keys}
    return gguf_profile(metadata, table, name="model")


def converted(architecture: str) -> tuple[ModelProfile, TensorTable]:
    header = HEADERS[architecture]
    table = table_of(header["outer"], header["layers"])
    return imported(architecture, header["keys"], table), table


@pytest.mark.parametrize("architecture", REAL)
def test_every_element_of_a_converted_file_is_counted(architecture: str) -> None:
    model, table = converted(architecture)
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    # no matrix is taken for a norm
    assert all(block.vector_parameters < 20 * model.hidden_size for block in model.blocks)
    assert layout(model, LlamaCppOptions(context=8192)).kv_bytes > 0


@pytest.mark.parametrize(
    ("architecture", "full"),
    [
        ("laguna", [0, 4]),
        ("mellum", [0, 1, 2, 3, 4]),
        ("granite_swa", [0, 4]),
        ("muse-glimmer", [3]),
        ("hy_v3", [0, 1, 2, 3, 4]),
    ],
)
def test_windowed_layers_are_those_of_llama_cpp(architecture: str, full: list[int]) -> None:
    # laguna.cpp: every fourth from the first on has no window; granite-swa.cpp and muse-glimmer.cpp read a list of the layers
    model, _ = converted(architecture)
    assert [index for index, block in enumerate(model.blocks) if isinstance(block.mixers[0], Full)] == full
    assert {block.mixers[0].window for block in model.blocks if isinstance(block.mixers[0], Sliding)} <= {37}


def test_rwkv_7_keeps_two_shifts_and_a_matrix_a_head() -> None:
    # rwkv7.cpp: tensors of a layer; llama_hparams: n_embd_r = token_shift_count * n_embd, n_embd_s = n_embd * wkv_head_size
    hidden, inner, decay, gate = 256, 896, 64, 128
    mix = {f"time_mix_{name}.weight": [hidden, hidden] for name in ("key", "value", "receptance", "output")}
    for name, rank in (("w", decay), ("a", decay), ("v", 32), ("g", gate)):
        mix |= {f"time_mix_{name}1.weight": [hidden, rank], f"time_mix_{name}2.weight": [rank, hidden]}
    vectors = {f"time_mix_{name}.weight": [hidden] for name in ("w0", "a0", "v0", "k_k", "k_a", "r_k", "ln")}
    vectors |= {"time_mix_lerp_fused.weight": [hidden, 1, 1, 6], "channel_mix_lerp_k.weight": [hidden, 1, 1]}
    channel = {"channel_mix_key.weight": [hidden, inner], "channel_mix_value.weight": [inner, hidden]}
    table = table_of(
        {"token_embd.weight": [hidden, 300], "output.weight": [hidden, 300]},
        [{"of": [0, 1], "tensors": mix | vectors | channel}],
    )
    keys = {
        "block_count": 2,
        "embedding_length": hidden,
        "feed_forward_length": inner,
        "wkv.head_size": 64,
        "token_shift_count": 2,
    }
    model = imported("rwkv7", keys, table)
    state = model.blocks[0].mixers[0]
    assert isinstance(state, State)
    assert state.matrix_parameters == 4 * hidden**2 + 2 * hidden * (2 * decay + 32 + gate)
    assert model.blocks[0].matrix_parameters == 2 * hidden * inner
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    memory = layout(model, LlamaCppOptions(context=4096, parallel=3))
    assert memory.recurrent is not None
    assert (memory.kv_bytes, memory.recurrent.r_bytes, memory.recurrent.s_bytes) == (
        0,
        3 * 2 * 4 * 2 * hidden,
        3 * 2 * 4 * hidden * 64,
    )


T5_KEYS = {
    "block_count": 2, "decoder_block_count": 3, "embedding_length": 64, "feed_forward_length": 160, "context_length": 512,
    "attention.head_count": 3, "attention.key_length": 16, "attention.value_length": 16, "attention.relative_buckets_count": 32,
}  # fmt: skip


def t5_table(*, gated: bool, inner: int = 160) -> TensorTable:
    """Make the tensors of t5.cpp's load_arch_tensors: position biases in the first layer of either stack."""
    hidden, width = 64, 48
    square = {f"attn_{name}.weight": [hidden, width] for name in "qkv"} | {"attn_o.weight": [width, hidden]}
    feed = {"ffn_up.weight": [hidden, inner], "ffn_down.weight": [inner, hidden]}
    feed |= {"ffn_gate.weight": [hidden, inner]} if gated else {}
    norms = {"attn_norm.weight": [hidden], "ffn_norm.weight": [hidden]}
    cross = {f"cross_{name}": shape for name, shape in (square | {"attn_norm.weight": [hidden]}).items()}
    shapes = {
        "token_embd.weight": [hidden, 300],
        "enc.output_norm.weight": [hidden],
        "dec.output_norm.weight": [hidden],
    }
    shapes |= {"output.weight": [hidden, 300]} if gated else {}
    for side, layers, own in (("enc", 2, square | feed | norms), ("dec", 3, square | feed | norms | cross)):
        for layer in range(layers):
            tensors = own | ({} if layer else {"attn_rel_b.weight": [3, 32]})
            shapes |= {f"{side}.blk.{layer}.{name}": shape for name, shape in tensors.items()}
    return table_of(shapes, [])


@pytest.mark.parametrize("gated", [False, True])
def test_t5_is_the_model_of_its_config(*, gated: bool) -> None:
    table = t5_table(gated=gated)
    model = imported("t5", T5_KEYS, table)
    config = {
        "model_type": "t5", "d_model": 64, "d_kv": 16, "d_ff": 160, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 3,
        "relative_attention_num_buckets": 32, "vocab_size": 300, "n_positions": 512,
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }  # fmt: skip
    known, _ = import_config(config, name="model")
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    # the modelling code ties the head; the file of a checkpoint that has one of its own stores it
    assert parameters(model) == parameters(known) | ({"embedding": 300 * 64} if gated else {})
    options = LlamaCppOptions(context=8192)
    assert layout(model, options).kv_bytes == layout(known, options).kv_bytes > 0
    assert [block.name for block in model.blocks] == [block.name for block in known.blocks]


def test_a_t5_file_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(ProfileError, match="decoder layer 0: mlp tensors of 16384 elements"):
        imported("t5", T5_KEYS, t5_table(gated=False, inner=128))
    with pytest.raises(ProfileError, match="decoder layer 3 has no tensor"):
        imported("t5", T5_KEYS | {"decoder_block_count": 4}, t5_table(gated=False))
    with pytest.raises(ProfileError, match="at most 10000 layers"):
        imported("t5", T5_KEYS | {"block_count": 10**6}, t5_table(gated=False))


def test_plamo_2_has_states_where_there_are_no_kv_heads() -> None:
    # plamo2.cpp: dt_dim = max(64, n_embd / 16); conv1d over the inner width alone
    hidden, inner, size, heads = 256, 512, 16, 8
    mamba = {
        "ssm_in.weight": [hidden, 2 * inner], "ssm_conv1d.weight": [4, inner], "ssm_x.weight": [inner, 64 + 2 * size],
        "ssm_dt.weight": [64, heads], "ssm_dt.bias": [heads], "ssm_a": [heads], "ssm_d": [heads], "ssm_out.weight": [inner, hidden],
    }  # fmt: skip
    attention = {"attn_qkv.weight": [hidden, (4 + 2) * 64], "attn_output.weight": [4 * 64, hidden]}
    mlp = {"ffn_up.weight": [hidden, 2 * 384], "ffn_down.weight": [384, hidden]}
    layers = [{"of": [0], "tensors": mamba | mlp}, {"of": [1], "tensors": attention | mlp}]
    table = table_of({"token_embd.weight": [hidden, 300]}, layers)
    keys = {
        "block_count": 2, "embedding_length": hidden, "feed_forward_length": 384, "attention.head_count": [0, 4],
        "attention.head_count_kv": [0, 1], "attention.key_length": 64, "attention.value_length": 64, "ssm.inner_size": inner,
        "ssm.state_size": size, "ssm.time_step_rank": heads, "ssm.conv_kernel": 4, "ssm.group_count": 0,
    }  # fmt: skip
    model = imported("plamo2", keys, table)
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    memory = layout(model, LlamaCppOptions(context=4096))
    assert memory.recurrent is not None
    assert (memory.recurrent.r_bytes, memory.recurrent.s_bytes) == (4 * 3 * inner, 4 * size * inner)
    assert memory.kv_bytes == 4096 * 2 * 64 * 2


def test_minimax_01_has_full_attention_every_eighth_layer() -> None:
    # minimax-01.cpp: attn_qkv and attn_gate of linear layers; n_embd_s = n_embd_head_la^2 * n_head
    keys = {"block_count": 16, "embedding_length": 256, "feed_forward_length": 64, "attention.head_count": 4}
    keys |= {"attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32}
    keys |= {"expert_count": 4, "expert_used_count": 2}
    model = imported("minimax-01", keys, TensorTable("model.gguf", {}))
    full = [index for index, block in enumerate(model.blocks) if isinstance(block.mixers[0], Full)]
    assert full == [7, 15]
    memory = layout(model, LlamaCppOptions(context=4096))
    assert memory.recurrent is not None
    assert (memory.recurrent.layers, memory.recurrent.r_bytes, memory.recurrent.s_bytes) == (
        14,
        0,
        14 * 4 * 32 * 32 * 4,
    )
    state = model.blocks[0].mixers[0]
    assert isinstance(state, State)
    assert state.matrix_parameters == 5 * 256 * 128


def test_minicpm_3_keeps_the_heads_of_its_latent_attention() -> None:
    # minicpm3.cpp: the keys of MiniCPM3-4B; n_embd_head_k = key_length, n_embd_head_v = n_embd / n_head
    keys = {
        "block_count": 62, "embedding_length": 2560, "feed_forward_length": 6400, "attention.head_count": 40,
        "attention.head_count_kv": 40, "attention.q_lora_rank": 768, "attention.kv_lora_rank": 256,
        "attention.key_length": 96, "rope.dimension_count": 32,
    }  # fmt: skip
    model = imported("minicpm3", keys, TensorTable("model.gguf", {}))
    assert layout(model, LlamaCppOptions(context=4096)).kv_bytes == 4096 * 62 * 40 * (96 + 64) * 2
    projections = 2560 * 768 + 768 * 40 * 96 + 2560 * (256 + 32) + 256 * 40 * (64 + 64) + 40 * 64 * 2560
    assert parameters(model)["attention"] == 62 * projections


def test_deepseek_4_has_a_window_and_entries_for_several_tokens() -> None:
    # deepseek4.cpp: tensors of a layer; DeepSeek-V4's config gives the same layers
    hidden, heads, width, rank, groups, output, streams, inner, experts, index = 256, 4, 512, 64, 2, 32, 4, 48, 8, 128
    mixing = (2 + streams) * streams
    common = {
        "attn_norm.weight": [hidden], "attn_sinks.weight": [heads], "attn_q_a.weight": [hidden, rank],
        "attn_q_b.weight": [rank, heads * width], "attn_kv.weight": [hidden, width],
        "attn_output_a.weight": [heads * width // groups, output * groups], "attn_output_b.weight": [groups * output, hidden],
        "hc_attn_fn.weight": [streams * hidden, mixing], "hc_ffn_fn.weight": [streams * hidden, mixing],
        "ffn_gate_inp.weight": [hidden, experts], "ffn_gate_exps.weight": [hidden, inner, experts],
        "ffn_up_exps.weight": [hidden, inner, experts], "ffn_down_exps.weight": [inner, hidden, experts],
        "ffn_gate_shexp.weight": [hidden, inner], "ffn_up_shexp.weight": [hidden, inner], "ffn_down_shexp.weight": [inner, hidden],
    }  # fmt: skip

    def compressor(branches: int, ratio: int) -> dict[str, list[int]]:
        kept = branches * width
        matrices = {f"attn_compressor_{name}.weight": [hidden, kept] for name in ("kv", "gate")}
        return matrices | {"attn_compressor_ape.weight": [kept, ratio], "attn_compressor_norm.weight": [width]}

    chosen = {f"indexer_compressor_{name}.weight": [hidden, 2 * index] for name in ("kv", "gate")}
    chosen |= {
        "indexer.proj.weight": [hidden, 4],
        "indexer.attn_q_b.weight": [rank, 4 * index],
        "indexer_compressor_ape.weight": [2 * index, 4],
    }
    layers = [
        {"of": [0], "tensors": common | {"ffn_gate_tid2eid.weight": [2, 300]}},
        {"of": [1], "tensors": common | compressor(2, 4) | chosen},
        {"of": [2], "tensors": common | compressor(1, 128)},
    ]
    outer = {
        "token_embd.weight": [hidden, 300],
        "output.weight": [hidden, 300],
        "output_hc_fn.weight": [streams * hidden, streams],
    }
    keys = {
        "block_count": 3, "embedding_length": hidden, "attention.head_count": heads, "attention.head_count_kv": 1,
        "attention.key_length": width, "attention.q_lora_rank": rank, "attention.sliding_window": 128,
        "attention.output_group_count": groups, "attention.output_lora_rank": output, "attention.compress_ratios": [0, 4, 128],
        "attention.indexer.head_count": 4, "attention.indexer.key_length": index, "attention.indexer.top_k": 512,
        "expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner, "expert_shared_count": 1,
    }  # fmt: skip
    table = table_of(outer, layers)
    model = imported("deepseek4", keys, table)
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    assert [block.mixers[0].kind for block in model.blocks] == ["sliding", "compressed", "compressed"]
    assert all(block.matrix_parameters == 2 * streams * hidden * mixing for block in model.blocks)
    assert [(table.name, table.rows, table.width) for table in model.embeddings[1:]] == [("routes-0", 300, 2)]
    # llama_kv_cache_dsv4: a window in all layers, one entry for 4 and one for 128 tokens
    memory = layout(model, LlamaCppOptions(context=8192))
    assert {cache.role: (cache.cells, cache.layers) for cache in memory.caches if cache.layers} == {
        "swa": (768, 3), "csa": (2048, 1), "hca": (256, 1), "indexer": (2048, 1),
    }  # fmt: skip


@pytest.mark.parametrize("architecture", ["kimi-k3", "bailingmoe3"])
def test_delta_attention_with_gates_of_full_rank(architecture: str) -> None:
    # kimi-k3.cpp and bailingmoe3.cpp: tensors of a layer
    hidden, heads, width, rank, rope, inner, experts, latent = 256, 4, 32, 64, 16, 48, 8, 128
    wide, k3 = heads * width, architecture == "kimi-k3"
    delta = {f"attn_{name}.weight": [hidden, wide] for name in "qkv"} | {
        "attn_output.weight": [wide, hidden],
        "ssm_beta.weight": [hidden, heads],
    }
    delta |= {f"ssm_conv1d_{name}.weight": [4, 1, wide, 1] for name in "qkv"} | {
        "ssm_a": [1, heads],
        "ssm_dt.bias": [wide],
    }
    delta |= (
        {"ssm_f_a.weight": [hidden, width], "ssm_f_b.weight": [width, wide], "ssm_g.weight": [hidden, wide]}
        if k3
        else {"ssm_f_a.weight": [hidden, wide], "ssm_g_a.weight": [hidden, wide]}
    )
    attention = {
        "attn_q.weight": [hidden, heads * (width + rope)], "attn_kv_a_mqa.weight": [hidden, rank + rope],
        "attn_k_b.weight": [width, rank, heads], "attn_v_b.weight": [rank, width, heads],
        "attn_gate.weight": [hidden, wide if k3 else heads], "attn_output.weight": [wide, hidden],
    }  # fmt: skip
    inputs = latent if k3 else hidden
    mixture = {
        "ffn_gate_inp.weight": [hidden, experts], "ffn_gate_exps.weight": [inputs, inner, experts],
        "ffn_up_exps.weight": [inputs, inner, experts], "ffn_down_exps.weight": [inner, inputs, experts],
    }  # fmt: skip
    if k3:
        mixture |= {"ffn_routed_down.weight": [hidden, latent], "ffn_routed_up.weight": [latent, hidden]}
    keys = {
        "block_count": 2, "embedding_length": hidden, "attention.head_count": heads, "attention.head_count_kv": [0, 1],
        "attention.key_length": rank + rope, "attention.key_length_mla": width + rope, "attention.value_length_mla": width,
        "attention.kv_lora_rank": rank, "rope.dimension_count": rope, "kda.head_dim": width, "ssm.conv_kernel": 4,
        "expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner,
    }  # fmt: skip
    outer = {"token_embd.weight": [hidden, 300], "output.weight": [hidden, 300]}
    table = table_of(outer, [{"of": [0], "tensors": delta | mixture}, {"of": [1], "tensors": attention | mixture}])
    model = imported(architecture, keys, table)
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    # llama_hparams: 3 * (d_conv - 1) * heads * head_dim and heads * head_dim^2 in 32 bits, as often as tokens are taken back
    memory = layout(model, LlamaCppOptions(context=4096, rollback_tokens=1))
    assert memory.recurrent is not None
    assert (memory.recurrent.r_bytes, memory.recurrent.s_bytes) == (2 * 4 * 3 * 3 * wide, 2 * 4 * wide * width)
    assert memory.kv_bytes == 4096 * (rank + rope) * 2


def test_minimax_m3_chooses_blocks_of_tokens_by_an_index() -> None:
    # minimax-m3.cpp: an indexer in all but the leading dense layers, which chooses top_k blocks of tokens
    hidden, inner, experts = 256, 48, 8
    common = {
        "attn_q.weight": [hidden, 8 * 32], "attn_k.weight": [hidden, 2 * 32], "attn_v.weight": [hidden, 2 * 32],
        "attn_output.weight": [8 * 32, hidden], "attn_norm.weight": [hidden],
    }  # fmt: skip
    dense = {"ffn_gate.weight": [hidden, 512], "ffn_up.weight": [hidden, 512], "ffn_down.weight": [512, hidden]}
    sparse = {
        "ffn_gate_inp.weight": [hidden, experts], "ffn_gate_exps.weight": [hidden, inner, experts],
        "ffn_up_exps.weight": [hidden, inner, experts], "ffn_down_exps.weight": [inner, hidden, experts],
        "ffn_gate_shexp.weight": [hidden, inner], "ffn_up_shexp.weight": [hidden, inner], "ffn_down_shexp.weight": [inner, hidden],
        "indexer.q_proj.weight": [hidden, 4 * 32], "indexer.k_proj.weight": [hidden, 32],
        "indexer.q_norm.weight": [32], "indexer.k_norm.weight": [32],
    }  # fmt: skip
    keys = {
        "block_count": 3, "embedding_length": hidden, "feed_forward_length": 512, "attention.head_count": 8,
        "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32, "leading_dense_block_count": 1,
        "expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": inner, "expert_shared_count": 1,
        "attention.indexer.head_count": 4, "attention.indexer.key_length": 32, "attention.indexer.top_k": 16,
        "attention.indexer.block_size": 128,
    }  # fmt: skip
    table = table_of(
        {"token_embd.weight": [hidden, 300], "output.weight": [hidden, 300]},
        [{"of": [0], "tensors": common | dense}, {"of": [1, 2], "tensors": common | sparse}],
    )
    model = imported("minimax-m3", keys, table)
    assert sum(parameters(model).values()) == sum(tensor.elements for tensor in table.tensors.values())
    indexers = [mixer.indexer for block in model.blocks for mixer in block.mixers if isinstance(mixer, Full)]
    assert [None if indexer is None else indexer.top_k for indexer in indexers] == [None, 2048, 2048]
    memory = layout(model, LlamaCppOptions(context=4096))
    assert [(cache.role, cache.layers) for cache in memory.caches] == [("main", 3), ("indexer", 2)]


def test_layers_that_are_run_several_times_are_refused() -> None:
    # nanbeige.cpp: every loop has a cache of its own
    keys = {"block_count": 2, "embedding_length": 64, "feed_forward_length": 128, "attention.head_count": 4}
    table = TensorTable("model.gguf", {})
    assert imported("nanbeige", keys | {"num_loops": 1}, table).layers == 2
    with pytest.raises(UnsupportedError, match="run several times"):
        imported("nanbeige", keys | {"num_loops": 2}, table)


def test_each_name_of_llama_cpp_is_read_or_refused_for_its_reason() -> None:
    refused = {}
    for name in NAMES:
        try:
            check_known(name, where="model.gguf")
        except UnsupportedError as refusal:
            refused[name] = str(refusal)
    assert not [name for name, text in refused.items() if "not known" in text]
    generators = [
        text for text in refused.values() if "no model that generates text" not in text and "drafter" not in text
    ]
    assert (len(NAMES), len(generators)) == (153, GENERATORS_NOT_READ)
    with pytest.raises(UnsupportedError, match="not known to kvcalc, and is not guessed"):
        check_known("no-such", where="model.gguf")
