"""The importer and the shipped profiles against cache tensors counted in a real framework.

`cache_tensors.yaml` among the shipped facts holds a few dozen configs (only the keys that matter) with the bytes that transformers allocates for them;
it is tested everywhere. Where ``KVCALC_TRUTH`` names a folder with the full ground truth, every entry of it is tested too.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

import kvcalc
from kvcalc.importers.hugging_face import import_config, read_config_file

FACTS = Path(kvcalc.__file__).parent / "evidence" / "facts"
CASES: dict[str, Any] = yaml.safe_load((FACTS / "cache_tensors.yaml").read_text())["cases"]
TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None


def truth_entries() -> dict[str, Any]:
    if TRUTH is None:
        return {}
    loaded = yaml.load((TRUTH / "truth.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
    return {name: entry for name, entry in loaded["models"].items() if entry["method"] != "unsupported"}


ENTRIES = truth_entries()


def check(model: kvcalc.ModelProfile, expected: dict[str, Any]) -> None:
    deployment = kvcalc.deployment(model, kv_dtype="bf16")
    for tokens, wanted in expected["kv_bytes"].items():
        kv = kvcalc.size(deployment, context=int(tokens)).kv
        assert kv.bytes_per_sequence - kv.state_bytes_per_sequence == wanted, f"KV bytes at {tokens} tokens"
        if expected["state_bytes"] is not None:
            assert kv.state_bytes_per_sequence == expected["state_bytes"]
    for tokens, wanted in expected.get("transformers_kv_bytes", {}).items():
        reserved = kvcalc.size(deployment, context=int(tokens), engine="transformers").reserved
        assert reserved is not None
        assert reserved.kv_bytes == wanted, f"bytes that transformers allocates at {tokens} tokens"
    if expected["parameters"] is not None:
        weights = kvcalc.size(deployment).weights
        assert weights.parameters == expected["parameters"]
        assert sum(weights.parts.get(part, 0) for part in ("vision", "audio")) == expected.get("towers", 0)


@pytest.mark.parametrize("name", CASES)
def test_config_gives_the_bytes_that_were_counted(name: str) -> None:
    case = CASES[name]
    check(import_config(case["config"], name="case")[0], case)


def expected_of(entry: dict[str, Any]) -> dict[str, Any]:
    logical = entry.get("kv_bytes_window_W") or entry.get("engine_kv_bytes") or entry["kv_bytes"]
    total = entry["params_total"]
    return {
        "kv_bytes": {tokens: size for tokens, size in logical.items() if size is not None},
        "transformers_kv_bytes": {tokens: size for tokens, size in entry["kv_bytes"].items() if size is not None},
        "state_bytes": entry["state_bytes"],
        "parameters": total,
        "towers": None if total is None else entry["params_vision_audio"] or 0,
    }


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("name", ENTRIES)
def test_full_truth(name: str) -> None:
    assert TRUTH is not None
    entry = ENTRIES[name]
    model, _ = import_config(read_config_file(TRUTH / entry["config"]), name="truth")
    check(model, expected_of(entry))


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
def test_the_full_truth_was_found() -> None:
    assert len(ENTRIES) > 100
