"""Towers whose lists do not fit each other are not counted, and the note names the key."""

import json
from pathlib import Path

import pytest

from kvcalc.importers.hugging_face import import_config

TYPES = json.loads((Path(__file__).parents[2] / "conformance" / "transformers_types.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("key", ["patch_size", "depths", "patch_prenorm"])
def test_a_list_of_florences_tower_has_an_entry_for_each_stage(key: str) -> None:
    config = json.loads(json.dumps(TYPES["florence2"]["config"]))
    stages = len(config["vision_config"]["embed_dim"])
    config["vision_config"][key] = [1] * (stages - 1)
    model, _ = import_config(config, name="damaged")
    assert model.towers == ()
    assert f"the vision tower is not counted among the weights: vision_config.{key}" in " ".join(model.notes)
