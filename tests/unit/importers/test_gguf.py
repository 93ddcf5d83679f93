"""GGUF headers: geometry, exact bytes, split and broken files."""

from __future__ import annotations

import struct
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from gguf.constants import GGML_QUANT_SIZES
from gguf_files import llama_tensors, write_gguf

from kvcalc.core.errors import KvcalcError, ProfileError, UnsupportedError
from kvcalc.core.formats import FORMATS, GGML_TYPES, parse_format
from kvcalc.core.model import Full, Latent, Mixture, Shared, Sliding, State
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes, entry_bytes
from kvcalc.cost.parameters import parameters, weight_bytes
from kvcalc.importers.checkpoint import TensorTable
from kvcalc.importers.gguf import import_gguf, parse_header, read_gguf
from kvcalc.importers.gguf_families import gguf_profile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gguf.constants import GGMLQuantizationType

    from kvcalc.core.model import ModelProfile

_F16 = Formats(key=FORMATS["fp16"], value=FORMATS["fp16"], state=FORMATS["fp32"])
_SMALL = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "context_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
_SMALL_TENSORS = llama_tensors(2, 64, 128, 96, heads=4, kv=2, width=16)


def _stored_bytes(model: ModelProfile) -> int:
    parts = {part: parse_format(name) for part, name in model.weight_formats.items()}
    return weight_bytes(model, Formats(weights=parse_format(model.dtype), parts=parts))


def _from_keys(architecture: str, keys: dict[str, Any]) -> ModelProfile:
    metadata = {"general.architecture": architecture} | {f"{architecture}.{key}": keys[key] for key in keys}
    return gguf_profile(metadata, TensorTable("model.gguf", {}), name="model")


def _cells(mixer: object, tokens: int, batch: int) -> int:
    """Cells llama.cpp keeps for one sequence."""
    window = mixer.window if isinstance(mixer, Sliding) else getattr(mixer, "chunk", tokens)
    return -(-min(tokens, window + batch) // 256) * 256 if window < tokens else tokens


def test_llama2_7b_file_counts_parameters_and_bytes_exactly(tmp_path: Path) -> None:
    keys = _SMALL | {"block_count": 32, "embedding_length": 4096, "feed_forward_length": 11008, "context_length": 4096}
    keys |= {"attention.head_count": 32, "attention.head_count_kv": 32}
    tensors = llama_tensors(32, 4096, 11008, 32000, heads=32, kv=32, width=128)
    path = write_gguf(tmp_path / "llama2-7b.Q4_0.gguf", "llama", keys, tensors, vocabulary=32000)
    model = import_gguf(path, "llama2-7b")
    assert sum(parameters(model).values()) == 6_738_415_616
    linear = 32 * (3 * 4096 * 4096 + 3 * 4096 * 11008) + 4096 * 32000
    assert model.held_weight_bytes == (
        linear * 18 // 32 + 32 * 4096 * 4096 * 34 // 32 + 4096 * 32000 * 210 // 256 + (2 * 32 + 1) * 4096 * 4
    )
    assert _stored_bytes(model) == model.held_weight_bytes
    assert cache_bytes(model, 4096, _F16).growing == 2**31


@pytest.mark.parametrize("kind", [kind for kind in GGML_QUANT_SIZES if kind.name != "Q8_1"], ids=lambda kind: kind.name)
def test_a_block_of_each_type_has_the_bytes_that_ggml_lays_out(kind: GGMLQuantizationType) -> None:
    """Every type that a file may hold, in the reader's table and among the formats alike (Q8_1 is never stored in one)."""
    elements, size = GGML_QUANT_SIZES[kind]
    name, *block = GGML_TYPES[kind.value]
    assert block == [elements, size]
    assert name not in FORMATS or FORMATS[name].bytes(elements) == size


def test_vocabulary_of_128k_tokens_reads_in_50_ms(tmp_path: Path, usual_s: Callable[[float], float]) -> None:
    keys = _SMALL | {"embedding_length": 64}
    tensors = llama_tensors(2, 64, 128, 128256, heads=4, kv=2, width=16)
    path = write_gguf(tmp_path / "model.gguf", "llama", keys, tensors, vocabulary=128256)
    times = []
    for _ in range(10):
        start = time.process_time()
        read_gguf(path)
        times.append(time.process_time() - start)
    assert min(times) < usual_s(0.05)


def test_layers_with_heads_of_their_own_keep_them() -> None:
    keys = {
        **_SMALL,
        "attention.head_count": [12, 20],
        "attention.head_count_kv": [3, 5],
        "feed_forward_length": [8, 16],
    }
    model = _from_keys("openelm", keys | {"attention.key_length": 64, "attention.value_length": 64})
    assert [block.mixers[0].kv_heads for block in model.blocks] == [3, 5]
    assert [block.mlp.width for block in model.blocks] == [8, 16]


@pytest.mark.parametrize(
    ("architecture", "layers", "full"),
    [
        ("gemma2", 4, [1, 3]),
        ("gemma3", 7, [5]),
        ("cohere2", 4, [3]),
        ("gpt-oss", 4, [1, 3]),
        ("smallthinker", 5, [0, 4]),
    ],
)
def test_window_pattern_follows_the_architecture(architecture: str, layers: int, full: list[int]) -> None:
    model = _from_keys(architecture, _SMALL | {"block_count": layers, "attention.sliding_window": 4096})
    kinds = [type(block.mixers[0]) for block in model.blocks]
    assert [layer for layer, kind in enumerate(kinds) if kind is Full] == full


def test_phi3_window_is_left_out_as_llama_cpp_does() -> None:
    model = _from_keys("phi3", _SMALL | {"attention.sliding_window": 2047})
    assert {type(block.mixers[0]) for block in model.blocks} == {Full}


# Geometry and bytes that llama.cpp printed for 32768 tokens, one sequence, micro-batch 512, f16.
@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        (
            "deepseek2",
            {"block_count": 61, "attention.head_count": 8, "attention.head_count_kv": 1, "attention.key_length": 576,
             "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
             "attention.kv_lora_rank": 512},
            61 * 32768 * 576 * 2,
        ),
        (
            "gemma4",
            {"block_count": 35, "attention.head_count": 8, "attention.head_count_kv": 1, "attention.key_length": 512,
             "attention.value_length": 512, "attention.sliding_window": 512, "attention.key_length_swa": 256,
             "attention.value_length_swa": 256, "attention.shared_kv_layers": 20,
             "attention.sliding_window_pattern": [True, True, True, True, False] * 7},
            3 * 32768 * 1024 * 2 + 12 * 1024 * 512 * 2,
        ),
        (
            "lfm2",
            {"block_count": 16, "embedding_length": 2048, "attention.head_count": 32, "shortconv.l_cache": 3,
             "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0], "attention.key_length": 64,
             "attention.value_length": 64},
            6 * 32768 * 1024 * 2,
        ),
    ],
)  # fmt: skip
def test_cache_is_what_the_engine_allocates(architecture: str, keys: dict[str, Any], expected: int) -> None:
    model = _from_keys(architecture, _SMALL | keys)
    mixers = [mixer for block in model.blocks for mixer in block.mixers]
    assert sum(entry_bytes(mixer, _F16) * _cells(mixer, 32768, 512) for mixer in mixers) == expected


def test_hybrids_keep_states_where_there_are_no_kv_heads() -> None:
    ssm = {
        "ssm.conv_kernel": 4,
        "ssm.inner_size": 128,
        "ssm.state_size": 16,
        "ssm.time_step_rank": 8,
        "ssm.group_count": 2,
    }
    keys = {**_SMALL, **ssm, "block_count": 3, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 32, 0]}
    model = _from_keys("nemotron_h", keys)
    kinds = [tuple(type(mixer) for mixer in block.mixers) for block in model.blocks]
    assert kinds == [(State,), (), (Full,)]
    state = model.blocks[0].mixers[0]
    assert (state.heads, state.key_dim, state.value_dim, state.conv_channels) == (8, 16, 16, 128 + 2 * 2 * 16)


def test_shared_layers_and_gated_queries_are_told_from_the_keys() -> None:
    shared = _from_keys("gemma3n", _SMALL | {"block_count": 25, "attention.sliding_window": 512})
    assert [type(block.mixers[0]) for block in shared.blocks].count(Shared) == 5
    keys = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 8, "ssm.group_count": 2, "block_count": 4}
    hybrid = _from_keys("qwen3next", _SMALL | keys)
    assert [block.name for block in hybrid.blocks] == ["state", "state", "state", "attention"]
    assert hybrid.blocks[3].mixers[0].output_gate == 16


def test_experts_with_biases_and_mxfp4_are_exact(tmp_path: Path) -> None:
    keys = _SMALL | {"block_count": 1, "expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": 96}
    tensors = {
        name: entry
        for name, entry in llama_tensors(1, 64, 128, 96, heads=4, kv=2, width=16, kind="Q8_0").items()
        if "ffn_gate" not in name and "ffn_up" not in name and "ffn_down" not in name
    }
    for name, shape in {"gate": (64, 96, 4), "up": (64, 96, 4), "down": (96, 64, 4)}.items():
        tensors[f"blk.0.ffn_{name}_exps.weight"] = (shape, "MXFP4")
        tensors[f"blk.0.ffn_{name}_exps.bias"] = (shape[1:], "F32")
    tensors["blk.0.ffn_gate_inp.weight"] = ((64, 4), "F32")
    model = import_gguf(
        write_gguf(tmp_path / "m.gguf", "gpt-oss", keys | {"attention.sliding_window": 128}, tensors), "m"
    )
    mixture = model.blocks[0].mlp
    assert isinstance(mixture, Mixture)
    assert (mixture.experts, mixture.experts_per_token, mixture.width, mixture.expert_bias) == (4, 2, 96, True)
    matrices, biases = 3 * 4 * 64 * 96, 4 * (2 * 96 + 64)
    assert model.weight_formats["experts"] == f"mixed-{matrices * 17 // 32 + biases * 4}/{matrices + biases}:fp4"
    assert _stored_bytes(model) == model.held_weight_bytes


def test_latent_attention_counts_its_own_matrices(tmp_path: Path) -> None:
    keys = {
        **_SMALL, "block_count": 1, "attention.head_count_kv": 1, "attention.key_length": 48, "attention.value_length": 32,
        "attention.key_length_mla": 32, "attention.value_length_mla": 24, "attention.kv_lora_rank": 32,
        "rope.dimension_count": 16,
    }  # fmt: skip
    tensors = _SMALL_TENSORS | {
        "blk.0.attn_q.weight": ((64, 4 * 32), "F16"),
        "blk.0.attn_kv_a_mqa.weight": ((64, 48), "F16"),
        "blk.0.attn_k_b.weight": ((16, 32, 4), "F16"),
        "blk.0.attn_v_b.weight": ((32, 24, 4), "F16"),
        "blk.0.attn_output.weight": ((96, 64), "F16"),
    }
    tensors = {name: entry for name, entry in tensors.items() if "attn_k.w" not in name and "attn_v.w" not in name}
    tensors = {name: entry for name, entry in tensors.items() if not name.startswith("blk.1")}
    model = import_gguf(write_gguf(tmp_path / "m.gguf", "deepseek2", keys, tensors), "m")
    mixer = model.blocks[0].mixers[0]
    assert isinstance(mixer, Latent)
    assert (mixer.kv_lora_rank, mixer.rope_dim, mixer.nope_dim, mixer.value_head_dim) == (32, 16, 16, 24)
    assert parameters(model)["attention"] == 64 * 128 + 64 * 48 + 32 * 4 * (16 + 24) + 96 * 64


def test_tied_head_is_the_token_table(tmp_path: Path) -> None:
    tensors = {name: entry for name, entry in _SMALL_TENSORS.items() if name != "output.weight"}
    model = import_gguf(write_gguf(tmp_path / "m.gguf", "llama", _SMALL, tensors), "m")
    assert model.head is not None
    assert model.head.tied
    assert model.weight_formats["head"] == "q4_0"


def test_tensors_of_unknown_names_count_as_vectors(tmp_path: Path) -> None:
    tensors = _SMALL_TENSORS | {"blk.x": ((32,), "F32"), "extra.weight": ((32,), "F32")}
    model = import_gguf(write_gguf(tmp_path / "m.gguf", "llama", _SMALL, tensors), "m")
    assert _stored_bytes(model) == model.held_weight_bytes
    assert parameters(model)["vector"] == 5 * 64 + 2 * 32


def test_prediction_layers_are_not_counted(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "glm4moe", _SMALL | {"nextn_predict_layers": 1}, _SMALL_TENSORS)
    model = import_gguf(path, "m")
    assert model.layers == 1
    assert "1 multi-token-prediction layer is not counted" in model.notes


def test_tensors_that_contradict_the_metadata_are_an_error(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", _SMALL | {"attention.head_count_kv": 4}, _SMALL_TENSORS)
    with pytest.raises(ProfileError, match="layer 0: attention tensors"):
        import_gguf(path, "m")


def test_split_file_is_read_whole_from_any_part(tmp_path: Path) -> None:
    names = sorted(_SMALL_TENSORS)
    for part in range(2):
        keys = {".split.no": part, ".split.count": 2, ".split.tensors.count": len(names)}
        chosen = {name: _SMALL_TENSORS[name] for name in names[part::2]}
        write_gguf(tmp_path / f"m-0000{part + 1}-of-00002.gguf", "llama", keys | (_SMALL if part == 0 else {}), chosen)
    whole = import_gguf(write_gguf(tmp_path / "m.gguf", "llama", _SMALL, _SMALL_TENSORS), "m")
    second = tmp_path / "m-00002-of-00002.gguf"
    assert import_gguf(second, "m").held_weight_bytes == whole.held_weight_bytes
    (tmp_path / "m-00001-of-00002.gguf").unlink()
    with pytest.raises(ProfileError, match=r"'m-00001-of-00002\.gguf' of the split file is missing"):
        import_gguf(second, "m")


def test_unknown_architecture_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedError, match=r"'lama'.*not guessed"):
        _from_keys("lama", _SMALL)


def _array(number: int) -> bytes:
    """A key with as many numbers as are kept of one array."""
    key = f"{number:04}".encode()
    return struct.pack("<Q", len(key)) + key + struct.pack("<IIQ", 9, 2, 4096) + bytes(2 * 4096)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "magic"),
        (b"GGML" + bytes(20), "magic"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(16), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 10**9, 0), "1000000000 tensors"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1), "ends inside"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63), "more bytes than the file"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, 2**62), "array of"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQQ", 9, 8, 1, 2**63),
            "more bytes than the file",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, 1), "array of arrays"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "unknown type 99"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 2) + (struct.pack("<Q", 1) + b"k" + struct.pack("<IB", 0, 1)) * 2,
            "twice",
        ),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<I", 2**31), "dimensions"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IIQ", 0, 0, 0), "has 0 dimensions"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 300) + b"".join(map(_array, range(300))), "numbers in all"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IqIQ", 1, -1, 0, 0), "has a size of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 1, 0, 1) + b"t" + struct.pack("<IQIQ", 1, 33, 2, 0), "rows of 33"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_broken_header_is_one_clear_error(data: bytes, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        parse_header(data, len(data), where="model.gguf")


def test_every_truncation_of_the_header_is_an_error(tmp_path: Path) -> None:
    data = write_gguf(tmp_path / "m.gguf", "llama", _SMALL, _SMALL_TENSORS).read_bytes()
    header = len(data) - parse_header(data, len(data), where="m.gguf").table.total_bytes
    for length in range(0, header - 64, 37):
        with pytest.raises(KvcalcError):
            parse_header(data[:length], length, where="m.gguf")


@pytest.mark.parametrize(
    ("key_length", "mla", "fits"),
    [(576, 192, True), (576, 64, True), (576, 63, False), (513, 128, True), (512, 128, False)],
)
def test_parts_of_a_latent_key_have_no_width_below_zero(key_length: int, mla: int, *, fits: bool) -> None:
    keys = _SMALL | {"attention.key_length": key_length, "attention.value_length": 512, "attention.kv_lora_rank": 512,
                     "attention.key_length_mla": mla, "attention.value_length_mla": 128}  # fmt: skip
    if not fits:
        with pytest.raises(ProfileError, match=r"key_length_mla|rope\.dimension_count"):
            _from_keys("deepseek2", keys)
        return
    mixer = _from_keys("deepseek2", keys).blocks[0].mixers[0]
    assert isinstance(mixer, Latent)
    assert (mixer.rope_dim, mixer.nope_dim) == (key_length - 512, mla - (key_length - 512))


def test_a_header_without_its_weights_is_read_and_says_so(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", "llama", _SMALL, _SMALL_TENSORS)
    whole, data = import_gguf(path, "m"), path.read_bytes()
    stored = whole.held_weight_bytes or 0
    path.write_bytes(data[:-stored])
    cut = import_gguf(path, "m")
    assert cut == replace(whole, notes=cut.notes)
    assert cut.notes[-1] == f"the file ends {stored:,} bytes before its weights do: only its header was read"
