"""What printed names mean, and what they do not."""

import pytest

from kvcalc.api import load_model
from kvcalc.core.units import GIB
from kvcalc.evidence.gguf_types import gguf_weights
from kvcalc.evidence.names import find_hardware, find_model
from kvcalc.plan.deployment import deploy
from kvcalc.plan.rank_memory import held_weight_bytes


@pytest.mark.parametrize(
    ("printed", "names"),
    [
        ("Apple M1 Max (24-core GPU)", ["m1-max-24"]),
        ("M3 Max (14-core CPU, 30-core GPU)", ["m3-max-30"]),
        ("M2 Ultra 76c 192GB", ["m2-ultra-76"]),
        ("Apple M2 Ultra", ["m2-ultra-76", "m2-ultra-60"]),
        ("NVIDIA H100 80GB HBM3", ["h100-sxm"]),
        ("H100 80G", ["h100-sxm", "h100-pcie"]),
        ("H100", ["h100-sxm", "h100-nvl", "h100-pcie"]),
        ("A100 40GB", ["a100-40gb", "a100-40gb-pcie"]),
        ("8xH100 SXM", ["h100-sxm"]),
        ("h100_sxm", ["h100-sxm"]),
        ("RTX 4090 24GB", ["rtx-4090"]),
        ("NVIDIA GeForce RTX 4090", ["rtx-4090"]),
        ("Tesla V100-SXM2-32GB", ["v100-sxm2-32gb"]),
        ("RTX 4090 48GB", []),
        ("AMD MI250X, one GCD", ["mi250x-gcd"]),
        ("an abacus", []),
        ("", []),
    ],
)
def test_an_accelerator(printed, names):
    assert [hardware.name for hardware in find_hardware(printed)] == names


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("LLaMA 7B v2", "llama2-7b"),
        ("nvidia/Llama-3.3-70B-Instruct-FP4", "llama3.3-70b"),
        ("ggml-org/gemma-3-4b-it-qat-GGUF", "gemma-3-4b"),
        ("Qwen/Qwen3-32B", "qwen3-32b"),
        ("Qwen9.8-27B", None),
        ("Llama 9B", None),
        ("", None),
    ],
)
def test_a_model(printed, name):
    model = find_model(printed)
    assert (model and model.name) == name


# Sizes that llama-bench prints for files of llama.cpp's own types.
@pytest.mark.parametrize(
    ("model", "file_type", "gib", "digit"),
    [
        ("llama2-7b", "q4_0", 3.56, 0.005),
        ("llama2-13b", "q4_K - Medium", 7.33, 0.006),
        ("llama2-7b", "F16", 12.55, 0.005),
        ("llama-13b", "Q6_K", 9.95, 0.006),
        ("tinyllama-1.1b", "Q4_K_M", 0.6213, 0.00005),
        ("llama2-13b", "Q4_K_M", 7.33, 0.006),
        ("mistral-7b-v0.2", "q4_0", 3.83, 0.005),
        ("qwen2.5-7b", "q8_0", 7.54, 0.005),
        ("qwen3-30b-a3b", "q8_0", 30.25, 0.005),
        ("gpt-oss-20b", "mxfp4-moe", 11.27, 0.005),
    ],
)
def test_a_file_type_has_the_size_that_is_printed(model, file_type, gib, digit):
    found = load_model(model)
    weights = gguf_weights(found, file_type)
    assert abs(held_weight_bytes(deploy(found, weights=weights)) / GIB - gib) <= digit


def test_an_unknown_file_type_is_none():
    assert gguf_weights(load_model("llama2-7b"), "q9_z") is None
