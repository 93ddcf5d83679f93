"""What vLLM's own cache formats take: slots of keys and values together, layers left out, and the card's kernels."""

from typing import Any

import pytest

import kvcalc
from kvcalc.api import load_model
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.formats import cache_formats
from kvcalc.core.model import Block, Full, Latent, ModelProfile
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import Formats
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm import VllmOptions, layout
from kvcalc.engines.vllm.cache_formats import boundary_layers, check_cache_format, token_bytes

# Bytes of a token and KV head, keys and values together, for heads of 64, 128 and 256: vLLM 0.33, customize_spec of its backends run.
SLOTS = {
    "bf16": (256, 512, 1024),
    "fp8": (128, 256, 512),
    "int8_per_token_head": (136, 264, 520),
    "fp8_per_token_head": (136, 264, 520),
    "int4_per_token_head": (72, 136, 264),
    "nvfp4": (72, 144, 288),
    "nvfp4_4over6": (72, 144, 288),
    "turboquant_k8v4": (100, 196, 388),
    "turboquant_4bit_nc": (70, 134, 262),
    "turboquant_k3v4_nc": (62, 118, 230),
    "turboquant_3bit_nc": (54, 102, 198),
    "ultraquant_4bit": (68, 136, 272),
    "octave_k3v4": (72, 136, 272),
    "octave_k3v3": (64, 120, 240),
    "octave_k3v3_compact": (52, 100, 196),
}


def formats_of(name: str) -> Formats:
    key, value = cache_formats(name)
    return Formats(key=key, value=value)


def model_of(*mixers: Any, architecture: str = "llama") -> ModelProfile:
    blocks = tuple(Block(mixers=(mixer,)) for mixer in mixers)
    return ModelProfile(
        name="m",
        architecture=architecture,
        hidden_size=1,
        context_limit=None,
        blocks=blocks,
        embeddings=(),
        head=None,
    )


@pytest.mark.parametrize(
    ("name", "width", "slot"),
    [(name, width, slot) for name, row in SLOTS.items() for width, slot in zip((64, 128, 256), row, strict=True)],
)
def test_slot_of_a_token_and_head(name: str, width: int, slot: int) -> None:
    mixer = Full(heads=32, kv_heads=8, head_dim=width)
    assert [token_bytes(mixer, formats_of(name), tensor=ranks) for ranks in (1, 8)] == [8 * slot, slot]


@pytest.mark.parametrize(
    ("name", "generation", "entry"),
    [
        ("bf16", "hopper", 1152),
        ("bf16", "blackwell-rtx", 656),
        ("fp8", "", 656),
        ("fp8", "hopper", 656),
        ("fp8", "blackwell", 576),
        ("fp8", "blackwell-ultra", 576),
        ("fp8_ds_mla", "blackwell", 656),
        ("nvfp4_ds_mla", "blackwell", 352),
    ],
)
def test_entry_of_sparse_latent_attention(name: str, generation: str, entry: int) -> None:
    # vLLM 0.33: 656 where FlashMLA's sparse kernel reads it, flat where FlashInfer's does
    model = load_model("deepseek-v3.2")
    mixer = next(mixer for mixer in model.blocks[0].mixers if isinstance(mixer, Latent))
    assert token_bytes(mixer, formats_of(name), tensor=8, generation=generation) == entry
    options = VllmOptions(max_model_len=4096, generation=generation)
    assert layout(model, formats_of(name), options).bytes_per_block == 61 * 64 * (entry + 132)


def test_two_layers_at_each_end_keep_the_models_own_format() -> None:
    # blocks grow until a packed page covers a plain one of 16 tokens: 16 * ceil(16 * 4,096 / (16 * 8 * 134))
    model, formats = load_model("llama3.1-8b"), formats_of("turboquant_4bit_nc")
    assert boundary_layers(model, formats) == {0, 1, 30, 31}
    found = layout(model, formats, VllmOptions(max_model_len=4096))
    block = 16 * ceil_div(16 * 4096, 16 * 8 * 134)
    assert (block, found.block_size, len(found.groups)) == (64, 64, 1)
    assert found.bytes_per_block == block * (28 * 8 * 134 + 4 * 4096)
    assert boundary_layers(load_model("qwen3-next-80b-a3b"), formats) == frozenset()
    assert boundary_layers(model, formats_of("octave_k3v3_compact")) == frozenset()
    with pytest.raises(UnsupportedError, match="pipeline stages"):
        layout(model, formats, VllmOptions(max_model_len=4096), blocks=model.blocks[:16])


@pytest.mark.parametrize(
    ("name", "version", "words"),
    [
        ("octave_k3v4", "0.32", "keeps no cache in"),
        ("ultraquant_4bit", "0.31", "keeps no cache in"),
        ("q8_0", "0.33", "keeps no cache in q8_0"),
        ("fp8/bf16", "0.33", "keeps no cache in fp8 and bf16"),
        ("nvfp4_ds_mla", "0.33", "sparse latent attention"),
    ],
)
def test_formats_that_the_version_or_the_model_lacks_are_refused(name: str, version: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        check_cache_format(load_model("llama3.1-8b"), formats_of(name), version=version, generation="")


def test_what_is_not_known_of_a_packed_cache_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="full attention alone"):
        check_cache_format(load_model("gpt-oss-20b"), formats_of("turboquant_k8v4"), version="0.33", generation="")
    with pytest.raises(UnsupportedError, match="rotated part"):
        check_cache_format(load_model("glm-4-9b"), formats_of("octave_k3v4"), version="0.33", generation="")
    check_cache_format(load_model("glm-4-9b"), formats_of("octave_k3v3_compact"), version="0.33", generation="")
    with pytest.raises(InputError, match="not for a hopper card"):
        check_cache_format(load_model("glm-5"), formats_of("nvfp4_ds_mla"), version="0.33", generation="hopper")


def test_models_have_a_cache_format_of_their_own() -> None:
    names = {
        (model, gpu): kvcalc.deployment(model, gpu=gpu, gpus=8, engine="vllm").formats.key.name
        for model in ("deepseek-v4-flash", "glm-5", "deepseek-v3.2")
        for gpu in ("h200", "b200")
    }
    assert names == {
        ("deepseek-v4-flash", "h200"): "fp8_ds_mla",
        ("deepseek-v4-flash", "b200"): "fp8_ds_mla",
        ("glm-5", "h200"): "bf16",
        ("glm-5", "b200"): "fp8_e4m3",
        ("deepseek-v3.2", "h200"): "bf16",
        ("deepseek-v3.2", "b200"): "bf16",
    }
    with pytest.raises(InputError, match="in fp8_ds_mla, not in bf16"):
        kvcalc.fit(
            kvcalc.deployment("deepseek-v4-flash", gpu="h200", gpus=8, engine="vllm", kv_dtype="bf16"),
            options=EngineOptions(block_size=64),
        )


def test_logical_bytes_of_packed_entries() -> None:
    # 656 of a latent vector and 132 of an index key; DeepSeek-V4's window of 512 elements takes 584
    sparse = kvcalc.size(kvcalc.deployment("deepseek-v3.2", kv_dtype="fp8_ds_mla"), context=4096)
    assert sparse.kv.bytes_per_token == 61 * (656 + 132)
    model = load_model("deepseek-v4-flash")
    from kvcalc.cost.cache import entry_bytes

    compressed = next(mixer for block in model.blocks for mixer in block.mixers if mixer.kind == "compressed")
    assert entry_bytes(compressed, formats_of("fp8_ds_mla")) == 584
