"""The decisions of a real engine's scheduler, step by step.

`scheduler_cases.yaml` holds four scenarios, condensed; they are tested everywhere. Where ``KVCALC_TRUTH`` names a folder
with the full ground truth, every field of every step of every scenario there is held equal, order included.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc import api

HERE = Path(__file__).parent
OWN: dict[str, dict[str, Any]] = {
    case["name"]: case for case in yaml.safe_load((HERE / "scheduler_cases.yaml").read_text())
}
TRUTH = Path(os.environ["KVCALC_TRUTH"]) / "vllm" if os.environ.get("KVCALC_TRUTH") else None
FILES = sorted([*TRUTH.glob("sched/*.json"), *TRUTH.glob("sched_async/*.json")]) if TRUTH is not None else []
EVENTS = ("new", "resumed", "preempted", "finished", "prefix_hit_tokens")


@pytest.mark.parametrize("name", OWN)
def test_condensed_scenarios(name: str) -> None:
    case = OWN[name]
    report = api.replay_steps({"inputs": case["inputs"]})
    rows = [row for line in case["rows"] for row in line]
    told = [
        [
            sum(step["scheduled"].values()),
            *(step[key] for key in ("running", "waiting", "free_blocks", "free_blocks_end")),
        ]
        for step in report.steps
    ]
    assert told[: len(rows)] == rows
    events = {
        step["step"]: {key: step[key] for key in EVENTS if step[key]}
        for step in report.steps[: len(rows)]
        if any(step[key] for key in EVENTS)
    }
    assert events == case["events"]
    if "totals" in case:
        assert report.totals == case["totals"]
        assert len(report.steps) == len(rows)


@pytest.mark.skipif(TRUTH is None, reason="KVCALC_TRUTH names no folder")
def test_the_truth_holds_scenarios() -> None:
    assert len([path for path in FILES if path.parent.name == "sched"]) >= 24
    assert len([path for path in FILES if path.parent.name == "sched_async"]) >= 4


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_every_step_of_every_scenario(path: Path) -> None:
    scenario = json.loads(path.read_text())
    report = api.replay_steps(path)
    assert len(report.steps) == len(scenario["steps"])
    for ours, theirs in zip(report.steps, scenario["steps"], strict=True):
        assert ours == theirs
        assert list(ours["scheduled"].items()) == list(theirs["scheduled"].items())
    assert report.totals == scenario["totals"]
