"""Bytes read to generate: the closed form is the sum of the steps, for any model and any way to keep the cache."""

from dataclasses import replace
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.core.model import Block, Full, ModelProfile
from kvcalc.core.workload import Formats, Parallel, decode_step
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.forward import forward_cost
from kvcalc.plan.deployment import deploy
from kvcalc.plan.levers.catalogue import LEVERS, apply_levers, parse_levers
from kvcalc.plan.levers.changes import hierarchy
from kvcalc.plan.levers.layout import plain_layout
from kvcalc.plan.traffic import growth_exponent, kv_reads, traffic_report

from .strategies import formats, models

counts = st.integers(0, 90)
batches = st.integers(1, 3)
FULL = ModelProfile(
    name="full",
    architecture="full",
    hidden_size=8,
    context_limit=None,
    blocks=(Block(mixers=(Full(heads=2, kv_heads=1, head_dim=4),)),) * 2,
    embeddings=(),
    head=None,
)


def _read(model, formats_, context, batch, parallel=None):
    group = decode_step(batch=batch, context=context)
    return forward_cost(model, (group,), formats_, parallel=parallel or Parallel()).total("kv_read_bytes")


@given(models(), formats(), counts, counts, batches)
def test_the_closed_form_is_the_sum_of_the_steps(model, formats_, prompt, output, batch):
    layout = plain_layout(model, formats_, Parallel())
    stepwise = sum(_read(model, formats_, context, batch) for context in range(prompt + 1, prompt + output + 1))
    assert kv_reads(layout, prompt_tokens=prompt, output_tokens=output, batch=batch) == stepwise


@given(models(), formats(), st.integers(1, 60), st.integers(1, 2), st.integers(1, 2))
def test_it_is_so_over_several_gpus(model, formats_, output, tensor, data):
    parallel = Parallel(tensor=tensor, data=data)
    layout = plain_layout(model, formats_, parallel)
    stepwise = sum(_read(model, formats_, context, 3, parallel) for context in range(1, output + 1))
    assert kv_reads(layout, prompt_tokens=0, output_tokens=output, batch=3) == stepwise


@given(models(), formats(), st.integers(1, 60), batches)
def test_a_cache_as_it_is_holds_what_size_says_and_reads_what_decode_says(model, formats_, context, batch):
    layout = plain_layout(model, formats_, Parallel())
    held = cache_bytes(model, context, formats_)
    assert layout.held_bytes(context=context, batch=batch) == batch * (held.growing + held.state + held.cross)
    assert layout.read_bytes(context=context, batch=batch) == _read(model, formats_, context, batch)
    cost = layout.step_cost(context=context, batch=batch)
    plain = forward_cost(model, (decode_step(batch=batch, context=context),), formats_)
    for field in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "io_bytes"):
        assert cost.total(field) == pytest.approx(plain.total(field))


@given(models(), st.integers(1, 40), st.integers(1, 90), batches)
def test_no_more_than_a_budget_is_read_of_what_grows(model, budget, output, batch):
    deployment = deploy(model)
    levers = parse_levers(f"evict={budget}")
    try:
        layout, _ = apply_levers(deployment, levers, context=output)
    except InputError:
        return
    stepwise = sum(layout.read_bytes(context=context, batch=batch) for context in range(1, output + 1))
    assert kv_reads(layout, prompt_tokens=0, output_tokens=output, batch=batch) == stepwise
    assert layout.held_bytes(context=output, batch=batch) <= plain_layout(
        model, deployment.formats, Parallel()
    ).held_bytes(context=output, batch=batch)


def _spanned(stream, tokens):
    """Entries that a stream's step reads: with chunks, those of the one so far and of the one before."""
    step = tokens // stream.every
    if stream.chunk is not None and step > stream.chunk:
        step = stream.chunk + (step - 1) % stream.chunk + 1
    return step if stream.most is None else min(step, stream.most)


@given(st.sampled_from(sorted(LEVERS)), models(), st.integers(2, 60), batches)
def test_a_levers_reads_add_up_where_it_applies(name, model, context, batch):
    deployment = deploy(model)
    (chosen,) = parse_levers(name)
    try:
        layout, _ = apply_levers(deployment, (chosen,), context=context)
    except InputError:
        return
    total = kv_reads(layout, prompt_tokens=0, output_tokens=context, batch=batch)
    stepwise = 0
    for tokens in range(1, context + 1):
        for stream in layout.streams:
            if tokens % stream.every == 0 and stream.entries(tokens):
                stepwise += _read(stream.model, layout.formats, _spanned(stream, tokens), batch)
    assert total == stepwise


@given(st.sampled_from([(4,), (3, 2), (4, 4)]), st.booleans(), st.integers(1, 30))
def test_a_steps_reads_of_a_hierarchy_are_the_mean_over_its_chunk(chunks, recursive, times):
    """Local decoders alone: what the coarse levels read grows from chunk to chunk."""
    layout = hierarchy(plain_layout(FULL, Formats(), Parallel()), chunks, recursive=recursive)
    local = replace(layout, streams=tuple(stream for stream in layout.streams if stream.chunk))
    period = prod(chunks)
    end = period * (times + 1)
    over = local.reads_up_to(end, batch=1) - local.reads_up_to(end - period, batch=1)
    assert local.read_bytes(context=end, batch=1) * period == pytest.approx(over)


@given(st.integers(1, 10_000), st.integers(0, 10_000))
def test_full_attention_reads_the_triangle(output, prompt):
    layout = plain_layout(FULL, Formats(), Parallel())
    entry = 2 * 1 * (4 + 4) * 2
    last = prompt + output
    triangles = last * (last + 1) // 2 - prompt * (prompt + 1) // 2
    assert kv_reads(layout, prompt_tokens=prompt, output_tokens=output, batch=1) == entry * triangles


@given(st.sampled_from([2, 3, 16, 64]), st.integers(2, 40))
def test_one_state_for_c_tokens_leaves_one_part_in_c_squared_of_the_quadratic_term(chunk, times):
    """Second differences leave the quadratic term alone: local decoders and single steps are linear."""
    whole = plain_layout(FULL, Formats(), Parallel())
    coarse, _ = apply_levers(deploy(FULL), parse_levers(f"hierarchy={chunk}"), context=chunk)

    def curvature(layout):
        reads = [kv_reads(layout, prompt_tokens=0, output_tokens=chunk * (times + step), batch=1) for step in (0, 1, 2)]
        return reads[0] - 2 * reads[1] + reads[2]

    assert curvature(coarse) * chunk**2 == curvature(whole)


def test_sixteen_tokens_to_a_state_leave_a_256th():
    whole = plain_layout(FULL, Formats(), Parallel())
    coarse, _ = apply_levers(deploy(FULL), parse_levers("hierarchy=16"), context=16)
    quadratic = [
        kv_reads(layout, prompt_tokens=0, output_tokens=2 * 4096, batch=1)
        - 2 * kv_reads(layout, prompt_tokens=0, output_tokens=4096, batch=1)
        for layout in (whole, coarse)
    ]
    # 2 * (n²/2) a, with the linear term gone but for the start of the local decoder's window
    assert quadratic[0] / quadratic[1] == pytest.approx(256, rel=0.01)


@given(models(), st.integers(1, 200), batches)
def test_the_exponent_lies_between_one_and_two_where_the_cache_only_grows(model, output, batch):
    blocks = tuple(
        replace(block, mixers=tuple(m for m in block.mixers if m.kind in ("full", "sliding", "state", "cross")))
        for block in model.blocks
    )
    layout = plain_layout(replace(model, blocks=blocks), Formats(), Parallel())
    found = growth_exponent(layout, prompt_tokens=0, output_tokens=output, batch=batch)
    assert found is None or 1 - 1e-9 <= found <= 2


def test_doubling_the_context_doubles_the_cache_and_quadruples_the_reads():
    report = traffic_report(deploy(FULL), output_tokens=8192)
    whole, half = report.rows[-1], report.rows[-2]
    assert (half.output_tokens, whole.output_tokens) == (4096, 8192)
    assert whole.kv_bytes == 2 * half.kv_bytes
    assert whole.kv_read_bytes / half.kv_read_bytes == pytest.approx(4, rel=1e-3)
    assert report.growth_exponent == pytest.approx(2, abs=1e-3)
