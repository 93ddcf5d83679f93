"""vLLM's layouts and capacities against what the engine's own code computes.

`vllm.yaml` among the shipped facts and ``vllm_033.json`` here hold telling cases of catalogue models; they are tested everywhere. Where
``KVCALC_TRUTH`` names a folder with the full ground truth, every record of its ``vllm/layout.yaml`` (0.32) and ``vllm/layout_033.jsonl``
(0.33) is tested too, from the model's config.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcalc
from kvcalc.api import load_model
from kvcalc.core.formats import parse_format
from kvcalc.core.model import ModelProfile
from kvcalc.core.workload import Formats
from kvcalc.engines.vllm import Layout, VllmOptions, capacity, layout
from kvcalc.importers.hugging_face import import_config, read_config_file

FACTS = Path(kvcalc.__file__).parent / "evidence" / "facts"
LOADED: dict[str, list[dict[str, Any]]] = yaml.safe_load((FACTS / "vllm.yaml").read_text())
SLIM: list[dict[str, Any]] = json.loads((Path(__file__).parent / "vllm_033.json").read_text())["cases"]
CASES, PRINTED = LOADED["cases"], LOADED["printed"]
TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None

# Run by transformers' own code, for want of a class in the registry or an architecture in the config: a start of the engine's own classes
# has 20 layers with a cache of gemma-3n and latent attention in Mistral-4, as 0.32's records say.
WITHOUT_OWN_CLASS = {("0.33.0", "_default__gemma3n_text"), ("0.33.0", "_default__mistral4")}
# Recorded without the step of a start-up that sets max_num_encoder_input_tokens to the encoder's 1,500 tokens.
WITHOUT_ENCODER = {"openai__whisper-large-v2"}
FULL_TRUTH, FULL_TRUTH_033 = 403, 452
# Whether the machine was made to look like one of these, in the words of the records.
EMULATED = {"GDN prefill backend forced to flashinfer": "hopper", "AMX reported as present": "emerald-rapids"}
GIB = 2**30


def formats(kv_dtype: str) -> Formats:
    form = parse_format("bf16" if kv_dtype == "auto" else kv_dtype)
    return Formats(key=form, value=form)


def check_capacity(found: Layout, memory_bytes: int, expected: dict[str, Any]) -> None:
    held = capacity(found, kv_memory_bytes=memory_bytes)
    assert held.starts is not expected.get("refused", False)
    if "needed_blocks" in expected:
        assert sorted(group.needed_blocks for group in found.groups) == expected["needed_blocks"]
    computed = {
        "bytes_per_block": found.bytes_per_block,
        "needed_bytes": found.needed_bytes,
        "num_blocks": held.num_blocks,
        "kv_tokens": held.kv_tokens,
        "max_concurrency": held.max_concurrency,
    }
    assert computed == computed | {key: value for key, value in expected.items() if key in computed}


# Catalogue models.


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['model']}: {case['about']}")
def test_catalogue_model(case: dict[str, Any]) -> None:
    found = layout(load_model(case["model"]), formats(case["kv_dtype"]), VllmOptions(**case["options"]))
    check_capacity(found, case["kv_memory_bytes"], case["expected"])
    assert found.block_size == case["expected"].get("block_size", found.block_size)


def slim_name(case: dict[str, Any]) -> str:
    return f"{case['model']} {case['kv_dtype']} {' '.join(map(str, case['options'].values()))}"


@pytest.mark.parametrize("case", SLIM, ids=slim_name)
def test_catalogue_model_on_033(case: dict[str, Any]) -> None:
    options = VllmOptions(**case["options"], version="0.33")
    found = layout(load_model(case["model"]), formats(case["kv_dtype"]), options)
    check_capacity(found, case["kv_memory_bytes"], case["expected"])
    assert found.configured_block_size == case["block_size"]


def test_some_cases_are_of_each_kind() -> None:
    kinds = {
        "FlashInfer": [case for case in SLIM if case["options"].get("generation") == "hopper"],
        "caching off": [case for case in SLIM if not case["options"].get("prefix_caching", True)],
        "CPU": [case for case in SLIM if case["options"].get("platform") == "cpu"],
        "blocks outermost": [case for case in SLIM if case["model"] == "deepseek-v4-flash"],
    }
    assert all(kinds.values())


# What real engines printed; the printed memory stands for all that rounds to it.


@pytest.mark.parametrize("case", PRINTED, ids=lambda case: f"{case['model']} {case['version']} tp{case['tensor']}")
def test_printed_at_start_up(case: dict[str, Any]) -> None:
    options = VllmOptions(**case["options"])
    found = layout(load_model(case["model"]), formats(case["kv_dtype"]), options, tensor=case["tensor"])
    assert found.block_size == case.get("block_size", found.block_size)
    least, most = (
        capacity(found, kv_memory_bytes=int((case["kv_memory_gib"] + error) * GIB), version=case["version"])
        for error in (-0.005, 0.005)
    )
    assert least.kv_tokens <= case["kv_tokens"] <= most.kv_tokens
    assert round(least.max_concurrency, 2) <= case["max_concurrency"] <= round(most.max_concurrency, 2)


# The full ground truth: really started engines, and the engine's functions over the real model classes.


@cache
def truth() -> dict[str, list[dict[str, Any]]]:
    if TRUTH is None:
        return {}
    text = (TRUTH / "vllm" / "layout.yaml").read_text()
    loaded: dict[str, Any] = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    lines = (TRUTH / "vllm" / "layout_033.jsonl").read_text().splitlines()
    return {**loaded, "0.33": [json.loads(line) for line in lines]}


RECORDS = [(method, record) for method, records in truth().items() for record in records]


def record_name(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return None
    variant = entry.get("variant", f"{entry['block_size_arg']}, {entry['max_model_len']}" if "shrunk" in entry else "")
    return f"{entry['model']}-{variant}-{entry['kv_cache_dtype']}"


@cache
def model_of(config_file: str) -> ModelProfile:
    assert TRUTH is not None
    return import_config(read_config_file(TRUTH / config_file), name="truth")[0]


def options_of(record: dict[str, Any], *, max_model_len: int, in_flight_tokens: int) -> VllmOptions:
    return VllmOptions(
        max_model_len=max_model_len,
        block_size=None if record["block_size_arg"] == "default" else record["block_size_arg"],
        max_num_batched_tokens=in_flight_tokens,
        max_in_flight_batches=1,
        prefix_caching=record.get("prefix_caching", True),
        platform="gpu" if "GPU-like" in record.get("variant", "") else "cpu",
        version=record.get("engine_version", "0.32"),
        generation=next((card for words, card in EMULATED.items() if words in str(record.get("emulation"))), ""),
    )


def layout_of(record: dict[str, Any], row: dict[str, Any], *, max_model_len: int) -> Layout:
    in_flight = row.get("max_in_flight_tokens") or record.get("max_in_flight_tokens")
    in_flight = in_flight or record["max_num_batched_tokens"]
    options = options_of(record, max_model_len=max_model_len, in_flight_tokens=in_flight)
    return layout(model_of(record["config_file"]), formats(record["kv_cache_dtype"]), options)


def check_groups(found: Layout, record: dict[str, Any]) -> None:
    for field in ("scheduler_block_size", "hash_block_size"):
        if record[field] is not None:
            assert getattr(found, field) == record[field], field
    if not record["groups"]:
        return
    expected = []
    for group in record["groups"]:
        together = group["type"].startswith("Uniform")
        pages = group["page_size_bytes"] * (1 if together else group["n_layers"])
        expected.append((group["n_layers"], group["block_size"], pages))
    computed = [(group.layers, group.block_size, group.bytes_per_block) for group in found.groups]
    assert sorted(computed) == sorted(expected)


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize(("method", "record"), RECORDS, ids=record_name)
def test_full_truth(method: str, record: dict[str, Any]) -> None:
    if (record.get("engine_version"), record["model"]) in WITHOUT_OWN_CLASS:
        pytest.skip("not the engine's own class")
    for row in record.get("capacity", [record]) if record["model"] not in WITHOUT_ENCODER else []:
        expected = {key: value for key, value in row.items() if value is not None}
        if "needed_bytes_one_request" in row:
            expected["needed_bytes"] = row["needed_bytes_one_request"]
        if "needed_blocks_per_group" in row:
            expected["needed_blocks"] = sorted(row["needed_blocks_per_group"])
        found = layout_of(record, row, max_model_len=row["max_model_len"])
        check_capacity(found, row["kv_memory_bytes"], expected)
    length = record.get("derived_max_model_len") or record["max_model_len"]
    found = layout_of(record, {}, max_model_len=length)
    check_groups(found, record)
    # a started engine holds the smallest group's block, its functions the one configured before groups are formed
    held = found.block_size if method == "engine" else found.configured_block_size
    assert held == record["block_size"]


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
def test_the_full_truth_was_found() -> None:
    assert len(RECORDS) == FULL_TRUTH + FULL_TRUTH_033
