"""A pass over unlike devices: the same operators as on one, sorted by place."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.core.hardware import Link
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.placed import HOST, Section, placed_cost, placed_stages
from kvcalc.cost.roofline import stages_time, step_time


@pytest.fixture(scope="module")
def deployment():
    return kvcalc.deployment("qwen3-30b-a3b", gpu="rtx-4090", weights="q4_k_m", engine="llama.cpp")


def _sections(deployment, *, host=0, moved=0, devices=1):
    """The first layers on the host, the rest shared by the devices, experts of the first of these on the host."""
    blocks, formats = deployment.model.blocks, deployment.formats
    sections = []
    for layer, block in enumerate(blocks):
        home = HOST if layer < host else (layer - host) * devices // (len(blocks) - host)
        experts = HOST if layer < host + moved else home
        sections.append(Section(blocks=(block,), formats=formats, home=home, cache=home, experts=experts))
    return sections


def _placed(deployment, group, sections, **places):
    output = places.pop("output", 0)
    return placed_cost(deployment.model, [group], sections, outer=deployment.formats, output=output, **places)


@pytest.mark.parametrize("group", [decode_step(batch=3, context=4000), prefill_pass(batch=1, prompt=512)])
def test_the_places_add_up_to_the_pass(deployment, group):
    whole = forward_cost(deployment.model, [group], deployment.formats)
    placed = _placed(deployment, group, _sections(deployment, host=5, moved=7, devices=2), output=1)
    every = [op for ops in placed.ops.values() for op in ops]
    for field in ("flop", "weight_bytes", "kv_read_bytes", "kv_write_bytes", "io_bytes", "activation_bytes"):
        assert sum(getattr(op, field) for op in every) == pytest.approx(whole.total(field), rel=1e-12)
    assert sum(placed.layers.values()) == deployment.model.layers


def test_one_device_takes_the_time_of_a_pass(deployment):
    group = decode_step(batch=1, context=4000)
    placed = _placed(deployment, group, _sections(deployment))
    stages = placed_stages(placed, {0: deployment.hardware, HOST: deployment.hardware}, {})
    alone = step_time(forward_cost(deployment.model, [group], deployment.formats), deployment.hardware)
    assert stages_time(stages).latency_s == pytest.approx(alone.latency_s, rel=1e-6)


def test_devices_and_host_add_their_times_each_at_its_own_rate(deployment):
    group = decode_step(batch=1, context=4000)
    card = deployment.hardware
    slow = replace(card, memory_bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s / 10)
    placed = _placed(deployment, group, _sections(deployment, moved=10, devices=2), output=1)
    bytes_at = {place: sum(op.compulsory_bytes for op in ops) for place, ops in placed.ops.items()}
    rate = card.memory_bandwidth_bytes_per_s
    seconds = stages_time(placed_stages(placed, {0: card, 1: card, HOST: slow}, {})).latency_s
    assert seconds == pytest.approx((bytes_at[0] + bytes_at[1] + 10 * bytes_at[HOST]) / rate)


def test_hidden_states_cross_there_and_back_for_experts_on_the_host(deployment):
    group = decode_step(batch=2, context=4000)
    placed = _placed(deployment, group, _sections(deployment, moved=10))
    hidden = 2 * deployment.formats.hidden.bytes(deployment.model.hidden_size)
    assert sum(op.link_bytes for op in placed.crossings[0]) == (1 + 2 * 10) * hidden
    link = Link(name="slow", bytes_per_s=1000)
    places = {0: deployment.hardware, HOST: deployment.hardware}
    more, less = (stages_time(placed_stages(placed, places, links)).latency_s for links in ({0: link}, {}))
    assert more - less == pytest.approx(21 * hidden / 1000)


def test_large_batches_send_the_weights_of_the_host_over_the_link(deployment):
    group = prefill_pass(batch=1, prompt=512)
    sections = _sections(deployment, moved=10)
    here, sent = (_placed(deployment, group, sections, computing=place) for place in (HOST, 0))
    experts = sum(op.weight_bytes for op in here.ops[HOST] if op.part == "experts")
    assert sum(op.link_bytes for op in sent.ops[0]) == experts > 0
    assert {op.part for op in sent.ops[HOST]} == {"embedding"}
