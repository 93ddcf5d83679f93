"""The decode bound over grids is that of single rows, whatever the model, the accelerator and the formats."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.model import Block, Chunked, ModelProfile
from kvcalc.core.workload import Formats, Parallel
from kvcalc.plan.decode import decode_row
from kvcalc.plan.deployment import Deployment
from kvcalc.simulate.decode_grid import decode_blocks, decode_costs

from .strategies import accelerators, formats, models, parallels

# Not in a grid: what is a list itself, and estimates.
LEFT_OUT = ("parts", "experts", "shares", "estimate")
grids = st.tuples(
    st.lists(st.integers(1, 70), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(1, 120), min_size=1, max_size=6, unique=True),
)


def _flat(row):
    plain = asdict(row)
    shares = {f"shares.{name}": share for name, share in plain["shares"].items()}
    return {name: value for name, value in plain.items() if not name.startswith(LEFT_OUT)} | shares


def _rows(blocks):
    for block in blocks:
        names = list(block)
        yield from (dict(zip(names, row, strict=True)) for row in zip(*block.values(), strict=True))


def _assert_same(found, expected):
    assert set(found) == set(expected)
    for name, value in expected.items():
        if value is None:
            assert np.isnan(found[name]), name
        elif isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-30), name
        elif name == "limiter" and found[name] != value:
            assert expected[f"shares.{found[name]}"] == pytest.approx(1)
        else:
            assert found[name] == value, name


def test_a_grid_begins_anew_where_a_chunk_does():
    layer = Block(mixers=(Chunked(heads=4, kv_heads=2, head_dim=8, chunk=4),))
    model = ModelProfile(
        name="chunks",
        architecture="x",
        hidden_size=32,
        context_limit=None,
        blocks=(layer,) * 2,
        embeddings=(),
        head=None,
    )
    card = HardwareProfile(
        name="x", title="x", vendor="x", memory_label_bytes=1e9, memory_bandwidth_bytes_per_s=1e9,
        peak_flop_per_s={"bf16": 1e12},
    )  # fmt: skip
    deployment = Deployment(model=model, formats=Formats(), parallel=Parallel(), hardware=card)
    contexts = tuple(range(1, 14))
    rows = list(_rows(decode_blocks(deployment, batches=(1,), contexts=contexts, most_rows=100)))
    for context, row in zip(contexts, rows, strict=True):
        _assert_same(row, _flat(decode_row(deployment, batch=1, context=context)))


@given(models(), accelerators(), formats(), parallels(stages=2), grids, st.integers(1, 9))
def test_every_row_of_a_grid_is_the_row_of_its_batch_and_context(model, hardware, used, parallel, grid, most_rows):
    parallel = replace(parallel, pipeline=min(parallel.pipeline, model.layers))
    deployment = Deployment(model=model, formats=used, parallel=parallel, hardware=hardware)
    batches, contexts = grid
    found = _rows(decode_blocks(deployment, batches=batches, contexts=contexts, most_rows=most_rows))
    for context in contexts:
        for batch in batches:
            _assert_same(next(found), _flat(decode_row(deployment, batch=batch, context=context)))
    assert next(found, None) is None


@given(models(), accelerators(), accelerators())
def test_costs_are_shared_by_accelerators(model, one, other):
    deployment = Deployment(model=model, formats=Formats(), parallel=Parallel(), hardware=one)
    costs, moved = decode_costs(deployment, batches=(1, 5), contexts=(3, 9)), replace(deployment, hardware=other)
    for row in _rows(costs.blocks(moved)):
        _assert_same(row, _flat(decode_row(moved, batch=int(row["batch"]), context=int(row["context"]))))
