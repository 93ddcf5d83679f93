"""The shipped profiles are what the importer makes of the same models' configs."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

import kvcalc
from kvcalc.importers.hugging_face import import_config, read_config_file
from kvcalc.profiles.catalog import lookup

TRUTH = Path(os.environ["KVCALC_TRUTH"]) if os.environ.get("KVCALC_TRUTH") else None
# Copies that differ from the published config in some fields, and how.
DIFFERENT = {
    "meta-llama/Llama-2-70b": {"context_limit"},  # an early copy with half the limit
    # the copies leave out the tower's sizes: the defaults of its class are not the published model's
    "meta-llama/Llama-4-Scout-17B-16E-Instruct": {"towers"},
    "MiniMaxAI/MiniMax-M3": {"towers"},  # a copy of the text model's keys alone
    "ibm-granite/granite-4.0-h-small": {"context_limit"},  # the copy leaves it out: the class's default
    # the copy is the class's default: its state size and vocabulary are not the published model's
    "ibm-ai-platform/Bamba-9B": {"blocks", "embeddings", "head"},
}


def configs_in_the_catalogue() -> list[tuple[str, Path]]:
    found = []
    for path in sorted((TRUTH / "configs").glob("*.json")) if TRUTH is not None else ():
        hub_id = path.stem.replace("__", "/")
        entry = lookup(hub_id, "model")
        if entry is not None and not kvcalc.load_model(entry.path).alias_fields.get(hub_id, {}).get("weights"):
            found.append((entry.path.stem, path))
    return found


CONFIGS = configs_in_the_catalogue()


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize(("name", "path"), CONFIGS, ids=[name for name, _ in CONFIGS])
def test_profile_equals_its_config(name: str, path: Path) -> None:
    shipped = kvcalc.load_model(name)
    imported, _ = import_config(read_config_file(path), name=name)
    about = {
        "aliases",
        "alias_fields",
        "sources",
        "provenance",
        "notes",
        "dtype",
        *DIFFERENT.get(path.stem.replace("__", "/"), ()),
    }
    about = {field: getattr(shipped, field) for field in about}
    assert replace(imported, **about) == shipped


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH is not set")
def test_most_configs_are_in_the_catalogue() -> None:
    assert len(CONFIGS) >= 60
