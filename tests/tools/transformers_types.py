"""Condense exact bytes and parameters of transformers' model types into what the tests ship.

    python tests/tools/transformers_types.py TRUTH ... > tests/conformance/transformers_types.json

``TRUTH`` is a folder, such as ``tests/tools/measure_transformers.py`` makes, with ``truth.json`` (parameters and cache bytes of each type, counted from transformers' own classes) and
``configs/`` (the config each was built from); where several have a type, the first counts. A type that kvcalc imports becomes one line: the keys that its rule reads, its
parameters with and without towers, and its bytes after prompts of some lengths.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kvcalc.core.errors import KvcalcError
from kvcalc.importers.hugging_face import import_config, read_config_file

TEXT = ("language_model", "text_model", "lm_head")
# Below this module stand towers and a text model together.
MIXED = ("thinker.model",)


def text_parameters(entry: dict[str, Any]) -> int | None:
    """Parameters of the text model alone; none where they are counted together with towers."""
    modules = entry["params_by_module"]
    if any(name in MIXED for name in modules):
        return None
    parts = [size for name, size in modules.items() if any(part in name.split(".") for part in TEXT)]
    wrapped = any(part in name.split(".") for name in modules for part in TEXT[:2])
    return sum(parts) if wrapped else entry["params_total"]


def counter_bytes(entry: dict[str, Any]) -> int:
    """Bytes of the counters that windowed layers keep beside their cache, 8 a layer."""
    counters = [line for line in entry.get("layout_at_150", []) if "_sliding_window_tensor" in line]
    return sum(int(re.search(r"= (\d+) B", line)[1]) for line in counters)


def cache_bytes(entry: dict[str, Any]) -> dict[str, list[int]]:
    """Bytes of keys and values, and of states, after each prompt; the counters of windowed layers are no cache."""
    found, counters = {}, counter_bytes(entry)
    for tokens, sizes in entry.get("bytes_after_prefill", {}).items():
        if sizes["total"] and "other" not in sizes:
            kv = sizes.get("kv", 0)
            found[tokens] = [kv - counters if kv else 0, sizes.get("state", 0)]
    return found


def read_keys(config: dict[str, Any], used: set[str], path: str = "") -> dict[str, Any]:
    """The part of a config that was read, with the types that say which rule reads it."""
    kept = {}
    for key, value in config.items():
        name = f"{path}.{key}" if path else key
        below = isinstance(value, dict) and any(each.startswith(f"{name}.") for each in used)
        if below:
            kept[key] = read_keys(value, used, name)
        elif name in used or key == "model_type":
            kept[key] = value
    return kept


def condensed(name: str, entry: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """What the tests need of one type, or none where kvcalc refuses it."""
    config = read_config_file(folder / entry["config"])
    try:
        whole, uses = import_config(config, name=name)
    except KvcalcError:
        return None
    used = {key for key, use in uses.items() if use.use == "used"}
    kept = read_keys(config, used)
    if import_config(kept, name=name)[0] != whole:
        kept = config
    text, whole = text_parameters(entry), entry["params_total"]
    found = {"config": kept, "parameters": whole, "text": None if text == whole else text, "bytes": cache_bytes(entry)}
    return {key: value for key, value in found.items() if value}


def condensed_file(folders: Iterable[Path]) -> str:
    """The text of the file that the tests ship."""
    entries: dict[str, tuple[dict[str, Any], Path]] = {}
    for folder in folders:
        types = json.loads((folder / "truth.json").read_text(encoding="utf-8"))["types"]
        entries = {name: (entry, folder) for name, entry in types.items()} | entries
    lines = []
    for name, (entry, folder) in sorted(entries.items()):
        found = condensed(name, entry, folder) if "params_total" in entry else None
        if found is not None:
            lines.append(f"{json.dumps(name)}: {json.dumps(found)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def main() -> None:
    """Print the condensed file."""
    sys.stdout.write(condensed_file(map(Path, sys.argv[1:])))


if __name__ == "__main__":
    main()
