"""Public traces, where ``KVCALC_TRUTH`` names the folder that holds them: read whole, and their shared prefixes found."""

import json
import os
from itertools import islice
from pathlib import Path

import pytest

import kvcalc
from kvcalc.api import Load, Serving, simulate_serving
from kvcalc.demo.paging import CONVERSATIONS
from kvcalc.importers.traces import read_trace

TRUTH = os.environ.get("KVCALC_TRUTH")
pytestmark = pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH names no folder")
MANY = 300


def _path(name):
    return Path(TRUTH or "") / "traces" / name


@pytest.mark.parametrize(
    ("name", "requests", "output_tokens", "last_s"),
    [("azure_conv.csv", 19_366, 4_088_665, 3501.721937), ("azure_code.csv", 8_819, 245_896, 3435.948056)],
)
def test_azure_traces_are_read_whole(name, requests, output_tokens, last_s):
    found = list(read_trace(_path(name)))
    assert len(found) == requests
    assert sum(request.output_tokens for request in found) == output_tokens
    assert found[-1].arrival_s == pytest.approx(last_s, abs=1e-6)


def test_the_shipped_lengths_are_those_of_every_242nd_conversation():
    requests = list(read_trace(_path("azure_conv.csv")))[::242][: len(CONVERSATIONS)]
    assert tuple((request.prompt_tokens, request.output_tokens) for request in requests) == CONVERSATIONS


def _shared_tokens(rows, block_size):
    """Count the prompt tokens that a cache without end holds already, in whole blocks and never a whole prompt."""
    seen, shared = set(), 0
    for row in rows:
        known = 0
        for block in row["hash_ids"]:
            if block not in seen:
                break
            known += 512
        shared += min(known, (row["input_length"] - 1) // block_size * block_size)
        seen.update(row["hash_ids"])
    return shared


def test_a_cache_large_enough_finds_every_prefix_that_mooncakes_trace_shares():
    path = _path("mooncake_conversation.jsonl")
    with path.open() as file:
        rows = [json.loads(line) for line in islice(file, MANY)]
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h200")
    report = simulate_serving(deployment, Load(trace=path, requests=MANY), serving=Serving(num_blocks=400_000))
    shared = _shared_tokens(rows, report.setup.block_size)
    assert shared > 0
    assert report.summary.prefix_hit_ratio == shared / sum(row["input_length"] for row in rows)
