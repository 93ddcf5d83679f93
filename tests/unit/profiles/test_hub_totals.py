"""Profiles count the parameters that their checkpoints hold, to the last one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

import kvcalc

# Ids with the parameters of their safetensors files, and the layers and hidden size of their config.json where it could
# be read (AlexsJones/llmfit, hf_models.json of version 1.1.17). Files whose extra layers, scales or tables a profile does
# not count are left out.
TOTALS = list(csv.DictReader(Path(__file__).with_name("hub_totals.csv").read_text(encoding="utf-8").splitlines()))


@pytest.mark.parametrize("row", TOTALS, ids=lambda row: row["id"])
def test_a_profile_counts_what_its_files_hold(row: dict[str, str]) -> None:
    model = kvcalc.load_model(row["id"])
    assert kvcalc.size(kvcalc.deployment(model)).weights.parameters == int(row["parameters"])
    if row["layers"]:
        assert (len(model.blocks), model.hidden_size) == (int(row["layers"]), int(row["hidden_size"]))
