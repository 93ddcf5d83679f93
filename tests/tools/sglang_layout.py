"""Write the settings of catalogue models that tests hold SGLang's pools against.

    KVCALC_TRUTH=folder python tests/tools/sglang_layout.py

The folder holds ``sglang/layout.jsonl``: what SGLang 0.5.23's own sizing and pool classes compute on the meta device. Of the models that the
catalogue has under the checkpoint's own name, all settings of those with pools of their own are kept, and three of the others.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import kvcalc
from kvcalc.core.errors import KvcalcError

TARGET = Path(__file__).parents[1] / "conformance" / "sglang_layout.jsonl"
PLAIN = 3
# Catalogue names of checkpoints that it has under another, or with another limit.
NAMES = {
    "meta-llama/Llama-2-13b": None,
    "MiniMaxAI__MiniMax-M3+edited": "minimax-m3", "mistralai/Mamba-Codestral-7B-v0.1": "mamba-codestral-7b", "nvidia/MiniMax-M3-NVFP4": None,
    "nvidia/Qwen3.6-27B-NVFP4": None, "nvidia/Gemma-4-31B-IT-NVFP4": None,
}  # fmt: skip


def catalogue_name(fact: str) -> str | None:
    """Return the catalogue's name of a model; none where it has none with the same limit and layers."""
    identifier = fact.replace("__", "/", 1)
    name = NAMES.get(fact, NAMES.get(identifier, identifier))
    if name is None or "+" in name:
        return None
    try:
        return kvcalc.deployment(name).model.name
    except KvcalcError:
        return None


def slim(row: dict[str, Any], name: str) -> list[Any]:
    """Return a setting as one line: model, card, options, what is taken for images, sizes and buffers."""
    sizes = row.get("sizes")
    held = None
    if sizes is not None:
        held = [
            sizes["max_total_num_tokens"],
            sizes.get("swa_max_total_num_tokens"),
            sizes.get("max_mamba_cache_size"),
            sizes["max_running_requests"],
            [buffer[4] for buffer in row["buffers"]],
        ]
    return [name, row.get("gpu", ""), row["set"], row.get("mm_reserved_gib", 0), row.get("kv_dtype"), held]


def main() -> None:
    """Write the file."""
    truth = Path(os.environ["KVCALC_TRUTH"]) / "sglang" / "layout.jsonl"
    rows = [json.loads(line) for line in truth.read_text(encoding="utf-8").splitlines()][1:]
    facts = {row["fact"]: row for row in rows if "fact" in row and "gpu" not in row}
    kept: dict[str, int] = {}
    lines = []
    for row in rows:
        if "set" not in row or "enable_unified_memory" in row["set"]:
            continue
        fact = facts[row["model"]]
        name = catalogue_name(row["model"])
        if name is None or fact["support"] == "refused":
            continue
        kept[name] = kept.get(name, 0) + 1
        if fact["kind"] != "plain" or kept[name] <= PLAIN:
            lines.append(json.dumps(slim(row, name), separators=(",", ":")))
    TARGET.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
