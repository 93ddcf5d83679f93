"""MLX's caches: room for tokens as mlx-lm itself allocates it, and what it does not keep."""

import pytest

import kvcalc
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.engines.mlx import ring_tokens, stepped

# Columns of the keys at most, in mlx-lm 0.32.2 on a CPU: prompts in parts of 2,048 tokens and a last one, by window.
PROMPTS = (1, 2, 100, 256, 257, 1000, 2048, 2049, 2050, 3000, 4096, 5000, 8192)
RINGS = {
    128: (128, 128, 128, 255, 256, 999, 2047, 2048, 2048, 2048, 2174, 2175, 2175),
    512: (256, 256, 355, 511, 512, 999, 2047, 2048, 2048, 2048, 2558, 2559, 2559),
    1024: (256, 256, 355, 511, 512, 1024, 2047, 2048, 2048, 2048, 3070, 3071, 3071),
    4096: (256, 256, 355, 511, 512, 1255, 2303, 2304, 2304, 3255, 4096, 4998, 6143),
}


def reserved(model: str, context: int, **formats: str) -> int:
    report = kvcalc.size(kvcalc.deployment(model, engine="mlx", **formats), context=context)
    assert report.reserved is not None
    return report.reserved.kv_bytes


@pytest.mark.parametrize("window", RINGS)
def test_a_ring_has_room_for_the_window_and_the_part_of_the_prompt(window: int) -> None:
    assert tuple(ring_tokens(tokens, window=window) for tokens in PROMPTS) == RINGS[window]


def test_other_caches_grow_by_steps() -> None:
    assert [stepped(tokens) for tokens in (1, 256, 257, 1030, 5100)] == [256, 256, 512, 1280, 5120]
    assert reserved("llama3.1-8b", 5001) == 5120 * 32 * 2 * 8 * 128 * 2


def test_windows_are_kept_where_the_model_has_rings() -> None:
    # gpt-oss-20b: 12 of 24 layers with 128 tokens; Mistral's and Gemma 2's windows are ignored
    entry = 2 * 8 * 64 * 2
    assert reserved("gpt-oss-20b", 5000) == 12 * entry * (5120 + 2175)
    assert reserved("mistral-7b", 16384) == 16384 * 32 * 2 * 8 * 128 * 2
    assert reserved("gemma-2-9b", 8192) == 8192 * 42 * 2 * 8 * 256 * 2


def test_latent_vectors_are_kept_where_the_model_keeps_them() -> None:
    # deepseek_v3.py caches the latent vector and the rotary key, deepseek_v2.py the keys and values of all heads
    assert reserved("deepseek-v3", 1024) == 1024 * 61 * 576 * 2
    assert reserved("deepseek-v2-lite", 1024) == 1024 * 27 * 16 * (192 + 128) * 2


def test_quantised_caches_have_a_scale_and_a_bias_for_64_elements() -> None:
    # QuantizedKVCache on a CPU: 36,864 bytes for 256 tokens of 2 heads of 64 in 4 bits, 69,632 in 8
    plain = reserved("llama3.1-8b", 256)
    assert reserved("llama3.1-8b", 256, kv_dtype="int4-g64-zp") == plain * 36864 // (256 * 2 * 2 * 64 * 2)
    assert reserved("llama3.1-8b", 256, kv_dtype="int8-g64-zp") == plain * 69632 // (256 * 2 * 2 * 64 * 2)
    with pytest.raises(InputError, match="windowed"):
        reserved("gpt-oss-20b", 256, kv_dtype="int4-g64-zp")
    with pytest.raises(InputError, match="keeps no cache in fp8"):
        reserved("llama3.1-8b", 256, kv_dtype="fp8")


def test_states_have_one_column_less_than_the_kernel_and_32_bit_matrices() -> None:
    # mlx-lm's own classes on a CPU: (kernel - 1) x channels in 16 bits, heads x keys x values in 32; LFM2 its columns alone
    for model, layers, state in (
        ("qwen3-next-80b-a3b", 36, 3 * 8192 * 2 + 32 * 128 * 128 * 4),
        ("qwen3.5-9b", 24, 3 * 8192 * 2 + 32 * 128 * 128 * 4),
        ("lfm2.5-vl-1.6b", 10, 2 * 2048 * 2),
    ):
        report = kvcalc.size(kvcalc.deployment(model, engine="mlx"), context=1024, batch=3)
        assert report.reserved is not None
        assert report.reserved.state_bytes == 3 * layers * state


@pytest.mark.parametrize("model", ["jamba-1.5-mini", "llama4-scout", "deepseek-v3.2", "opt-1.3b", "t5-base"])
def test_what_is_not_described_is_refused(model: str) -> None:
    with pytest.raises(UnsupportedError, match="how mlx-lm caches"):
        reserved(model, 256)


def test_it_fits_on_an_apple_gpu_and_an_engine_that_is_missing_says_what() -> None:
    report = kvcalc.fit(kvcalc.deployment("qwen3-8b", gpu="m3-max-40"), engine="mlx", context=8192)
    assert report.fits
    assert report.engine == "mlx-lm 0.32"
    with pytest.raises(InputError, match="tensorrt-llm is not modelled: it divides the memory that is left"):
        kvcalc.fit(kvcalc.deployment("qwen3-8b", gpu="h100-sxm"), engine="tensorrt-llm")
