"""Memory as programs see it: CUDA's, HIP's and Metal's totals, and memory of another size."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.core.units import GIB, MIB

# Printed by torch, vLLM or llama.cpp; the profiles name where.
PRINTED_MIB = {
    "h100-sxm": 81_089,
    "h200": 143_156,
    "b200": 182_642,
    "a100-80gb": 81_153,
    "l40s": 45_467,
    "a10": 22_731,
    "rtx-3090": 24_124,
    "rtx-4090": 24_080,
    "rtx-5090": 32_119,
    "rtx-pro-6000-workstation": 97_247,
    "v100-sxm2-16gb": 16_160,
    "dgx-spark": 124_610,
    "mi300x": 196_592,
}


@pytest.mark.parametrize(("name", "mib"), PRINTED_MIB.items())
def test_engines_divide_what_the_runtime_reports(name: str, mib: int) -> None:
    card = kvcalc.load_hardware(name)
    assert card.usable_memory_range == (mib * MIB, mib * MIB)
    budget = kvcalc.fit(kvcalc.deployment("llama3.2-1b", gpu=card)).budget
    assert budget is not None
    assert budget.memory_bytes == mib * MIB


def test_an_unknown_total_is_an_interval_below_the_drivers() -> None:
    card = kvcalc.load_hardware("rtx-4070-ti")
    assert card.runtime_memory_bytes is None
    least, most = card.usable_memory_range
    assert 12_282 * MIB - 800 * MIB < least < most < 12_282 * MIB
    budget = kvcalc.fit(kvcalc.deployment("llama3.2-1b", gpu=card)).budget
    assert budget is not None
    assert budget.memory_bytes == least
    assert budget.intervals["memory_bytes"] == (least, most)


def test_every_total_that_is_known_lies_where_an_unknown_one_would() -> None:
    """The reserve taken off cards without a known total is that of the cards with one."""
    for name in kvcalc.api.profile_names("hardware"):
        card = kvcalc.load_hardware(name)
        shared = name in ("dgx-spark", "jetson-thor")  # memory of the whole board
        if card.vendor == "nvidia" and card.runtime_memory_bytes is not None and not shared:
            reserve = card.driver_memory_bytes - card.runtime_memory_bytes
            assert 224 * MIB <= reserve <= max(768 * MIB, 0.004 * card.driver_memory_bytes), name


@pytest.mark.parametrize(
    ("name", "memory_gib", "seen_mib"),
    [
        ("m1-max-32", 32, 21_845),  # macOS 14 and older: https://github.com/ollama/ollama/issues/434 (an M2 Max)
        ("m3-8", 16, 12_124),  # 11.84 GiB under macOS 26: https://github.com/AlexsJones/llmfit/pull/754
        ("m1-max-32", 64, 49_152),  # https://github.com/ggml-org/llama.cpp/issues/1870
        ("m5-max-40", 128, 110_100),  # 107.52 GiB under macOS 26: https://github.com/antirez/ds4/pull/893
    ],
)
def test_metal_gives_a_share_of_a_macs_memory(name: str, memory_gib: int, seen_mib: int) -> None:
    least, most = kvcalc.load_hardware(name, memory_bytes=memory_gib * GIB).usable_memory_range
    assert least <= (seen_mib + 1) * MIB
    assert seen_mib * MIB <= most + MIB
    assert least < most


def test_another_size_keeps_what_the_runtime_keeps() -> None:
    card = kvcalc.load_hardware("rtx-5090")
    laptop = kvcalc.load_hardware("rtx-5090", memory_bytes=24 * GIB)
    assert laptop.driver_memory_bytes == 24 * GIB
    reserve = card.driver_memory_bytes - card.usable_memory_bytes
    assert laptop.usable_memory_bytes == 24 * GIB - reserve
    assert kvcalc.deployment("llama3.2-1b", gpu="rtx-5090", memory_bytes=24 * GIB).hardware == laptop


def test_no_memory_and_no_accelerator_are_refused() -> None:
    with pytest.raises(kvcalc.InputError, match="keeps for itself"):
        kvcalc.load_hardware("rtx-5090", memory_bytes=100 * MIB)
    with pytest.raises(kvcalc.InputError, match="keeps for itself"):
        kvcalc.load_hardware("m3-8", memory_bytes=0)
    with pytest.raises(kvcalc.InputError, match="none is given"):
        kvcalc.deployment("llama3.2-1b", memory_bytes=24 * GIB)
