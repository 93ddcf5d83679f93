"""``kvcalc layers``: the kinds of layers add up to the pass that `decode` and `prefill` answer with."""

import pytest

import kvcalc
from kvcalc.core.sums import added
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.plan.layers import OUTSIDE

KINDS = ("llama3.1-8b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3", "qwen3-next-80b-a3b", "jamba-1.5-mini",
         "gemma-3n-e4b", "llama-3.3-nemotron-super-49b", "mamba2-2.7b")  # fmt: skip


@pytest.mark.parametrize("phase", ["decode", "prefill"])
@pytest.mark.parametrize("name", KINDS)
def test_kinds_add_up_to_the_pass_and_to_the_cache(name, phase):
    deployment = kvcalc.deployment(name, gpu="h200")
    report = kvcalc.layers(deployment, batch=3, context=2000, phase=phase)
    group = decode_step(batch=3, context=2000) if phase == "decode" else prefill_pass(batch=3, prompt=2000)
    cost = forward_cost(deployment.model, (group,), deployment.formats)
    for field in ("flop", "weight_bytes", "kv_read_bytes"):
        assert added(getattr(row, field) for row in report.rows) == pytest.approx(cost.total(field), rel=1e-12)
        for row in report.rows:
            assert added(getattr(part, field) for part in row.parts) == pytest.approx(getattr(row, field), rel=1e-12)
    assert added(row.moved_bytes for row in report.rows) == pytest.approx(cost.compulsory_bytes, rel=1e-12)
    assert sum(row.kv_bytes for row in report.rows) == kvcalc.size(deployment, batch=3, context=2000).kv.total_bytes
    assert sum(row.layers for row in report.rows) == sum(run.layers for run in report.order) == deployment.model.layers
    assert report.order[0].first == 0
    assert len({row.kind for row in report.rows}) == len(report.rows)
    assert report.rows[-1].kind == OUTSIDE


def test_a_kind_lies_on_the_roofline_where_its_intensity_puts_it():
    report = kvcalc.layers(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), batch=8, context=8192)
    decoder = report.rows[0]
    entries = 8 * 8192 * 2 * 8 * 128 * 2
    assert decoder.kv_read_bytes == 32 * entries
    scores = next(part for part in decoder.parts if part.part == "cache")
    assert scores.flop == 32 * 8 * 2 * 8192 * 32 * 256
    assert scores.intensity_flop_per_byte == pytest.approx(scores.flop / scores.moved_bytes)
    assert scores.attainable_flop_per_s == pytest.approx(scores.intensity_flop_per_byte * 3.35e12)
    assert (scores.limiter, decoder.limiter) == ("memory", "memory")


def test_ranks_share_what_they_share():
    one = kvcalc.layers(kvcalc.deployment("llama3.1-70b", gpu="h200"), batch=4, context=1000)
    four = kvcalc.layers(kvcalc.deployment("llama3.1-70b", gpu="h200", tensor_parallel=4), batch=4, context=1000)
    deal = kvcalc.layers(kvcalc.deployment("llama3.1-70b", gpu="h200", data_parallel=4), batch=4, context=1000)
    assert four.rows[0].kv_bytes * 4 == one.rows[0].kv_bytes == deal.rows[0].kv_bytes * 4
    assert four.rows[0].flop == pytest.approx(one.rows[0].flop / 4)
    assert deal.rows[0].weight_bytes == one.rows[0].weight_bytes


@pytest.mark.parametrize(
    ("given", "says"), [({"phase": "both"}, "decode or prefill"), ({"batch": 0}, "batch"), ({"context": 0}, "context")]
)
def test_what_cannot_be_asked_is_refused(given, says):
    with pytest.raises(kvcalc.InputError, match=says):
        kvcalc.layers(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), **given)


def test_without_an_accelerator_nothing_has_a_place():
    with pytest.raises(kvcalc.InputError, match="accelerator"):
        kvcalc.layers(kvcalc.deployment("llama3.1-8b"))
