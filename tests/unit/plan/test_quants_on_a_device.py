"""``models quants --memory`` and ``fit --device`` agree on what a memory holds, and up to which context."""

from __future__ import annotations

import pytest

import kvcalc
from kvcalc.plan.quants import quants_report


def _on_device(model, recipe, memory, tokens):
    asked = {"model": model, "weights": recipe, "devices": [memory], "gpu_layers": "all", "ctx_size": str(tokens)}
    return kvcalc.ask("fit", asked).fits


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "memory", "gib"), [("llama2-7b", "6GiB", 6), ("gemma-3-4b", "3GiB", 3), ("qwen3-30b-a3b", "16GiB", 16)]
)
def test_what_is_said_to_fit_fits_on_such_a_device(model, memory, gib):
    report = quants_report(kvcalc.load_model(model), memory_bytes=gib * 2**30)
    rows = [row for row in report.rows if row.recipe not in ("f32", "bf16", "f16")]
    assert {row.fits for row in rows} == {True, False}
    for row in rows[::4]:
        assert row.fits == _on_device(model, row.recipe, memory, report.context), row.recipe
    near = min((row for row in rows if row.max_context), key=lambda row: row.max_context)
    assert _on_device(model, near.recipe, memory, near.max_context)
    assert not _on_device(model, near.recipe, memory, near.max_context + 256)


def test_another_amount_of_memory_is_never_more_than_was_asked_for():
    for name in ("dgx-spark", "m2-max-38", "strix-halo", "rtx-4090"):
        card = kvcalc.load_hardware(name)
        for size in (16 * 2**30, 64 * 2**30, card.driver_memory_bytes):
            assert card.with_memory(size).usable_memory_bytes <= size
