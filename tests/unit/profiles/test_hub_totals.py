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


def _prediction_layer(hidden: int) -> int:
    """Return what a layer of multi-token prediction of MiMo-V2.5-Pro holds: both inputs joined, attention, MLP, norms, sinks."""
    attention = hidden * (128 * 192 + 8 * (192 + 128) + 128 * 128)
    return 2 * hidden * hidden + attention + 3 * hidden * 16384 + 5 * hidden + 128


# Ids with the parameters of their files (of Inkling those of mlx-community's, without multi-token prediction), and what
# of these a profile leaves out: correction biases of routers, layers of multi-token prediction.
LEFT_OUT = [
    ("thinkingmachines/Inkling", 947117177922, 64 * 256),
    ("thinkingmachines/Inkling-Small", 263724526634, 40 * 256),
    ("XiaomiMiMo/MiMo-V2.5-Pro", 1023182841600, 69 * 384 + 3 * _prediction_layer(6144)),
]


@pytest.mark.parametrize(
    ("name", "held", "left_out"), LEFT_OUT, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_profile_leaves_out_is_known_to_the_last_parameter(name: str, held: int, left_out: int) -> None:
    assert kvcalc.size(kvcalc.deployment(name)).weights.parameters == held - left_out
