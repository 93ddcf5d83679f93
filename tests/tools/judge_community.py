"""Judge decode estimates of single cards by anonymous desktop speeds: `python tests/tools/judge_community.py FILE.csv`.

The runs are unchecked, so that they are medians of groups (card, model, quantization, program) that count, and nothing is
fitted to them. Runs count that llama.cpp made on one card which holds the whole model, one sequence at a time, no drafts.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

from kvcalc.evidence.cases import Case
from kvcalc.evidence.estimates import predict_case
from kvcalc.evidence.gate import bound_s
from kvcalc.evidence.names import engine_rules
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import read_records
from kvcalc.plan.rank_memory import memory_needed

_PROGRAMS = ("lmstudio", "lm studio")
_TO_THE_HOST = ("cmoe", "cpu-moe", "-ot", "override-tensor", "-nkvo")


class Group(NamedTuple):
    """Runs of one model in one quantization on one card: medians of measured time, bound and estimate."""

    card: str
    model: str
    weights: str
    engine: str
    runs: int
    measured_s: float
    bound_s: float
    estimate_s: float
    low_s: float
    high_s: float
    calibration: str


def groups_of(path: Path) -> list[Group]:
    """Return the groups of a file."""
    records = {record.id: record for record in read_records(path)}
    found = defaultdict(list)
    with path.open(encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            record = records.get(f"row {line}/decode")
            case = None if record is None else _whole_on_a_card(record, row)
            if case is not None:
                key = (case.hardware.name, case.deployment.model.name, record.weights, record.engine)
                found[key].append((case.measured_s, bound_s(case), predict_case(case)))
    made = []
    for key, runs in found.items():
        estimates = [each for _, _, each in runs]
        medians = [statistics.median(run[place] for run in runs) for place in (0, 1)]
        medians += [
            statistics.median(getattr(each, name) for each in estimates) for name in ("estimate_s", "low_s", "high_s")
        ]
        made.append(Group(*key, len(runs), *medians, estimates[0].calibration))
    return made


def _whole_on_a_card(record, row) -> Case | None:
    """Return a run as a decode step, where it is one of llama.cpp on a card that holds the whole model."""
    engine = record.engine.lower()
    is_llama = engine_rules(engine).like == "llama.cpp" or engine.startswith(_PROGRAMS)
    alone = record.devices == 1 and row["mixed_gpus"] != "True" and record.batch == 1 and "cpu" not in engine
    if not is_llama or not alone or "with drafts" in record.note or any(word in record.note for word in _TO_THE_HOST):
        return None
    case = case_of(record)
    if not isinstance(case, Case):
        return None
    tokens = (record.prompt_tokens or 0) + (record.output_tokens or 0) + 1
    needed = memory_needed(case.deployment, tokens=tokens, batch=1)
    layers = row["gpu_layers"]
    moved = layers.isdigit() and int(layers) < case.deployment.model.layers
    held = needed < 0.97 * max(card.usable_memory_bytes for card in case.variants)
    return case if held and not moved else None


class Verdict(NamedTuple):
    """Over groups: medians of measured over estimated time and of its distance from 1, shares inside and below bounds."""

    groups: int
    runs: int
    median_ratio: float
    median_error: float
    inside: float
    beaten: int


def verdict_of(groups: list[Group]) -> Verdict:
    """Return what the groups say."""
    errors = [math.log(each.measured_s / each.estimate_s) for each in groups]
    return Verdict(
        groups=len(groups),
        runs=sum(each.runs for each in groups),
        median_ratio=math.exp(statistics.median(errors)),
        median_error=math.expm1(statistics.median(map(abs, errors))),
        inside=sum(each.low_s <= each.measured_s <= each.high_s for each in groups) / len(groups),
        beaten=sum(each.measured_s < each.bound_s for each in groups),
    )


def main() -> None:
    """Print the verdict over all groups and by calibration, then the groups that beat their bound."""
    groups = groups_of(Path(sys.argv[1]))
    by_calibration = defaultdict(list)
    for each in groups:
        by_calibration[each.calibration].append(each)
    for name, some in [("all", groups), *sorted(by_calibration.items())]:
        sys.stdout.write(f"{name}: {verdict_of(some)}\n")
    for each in groups:
        if each.measured_s < each.bound_s:
            sys.stdout.write(f"beats its bound: {each}\n")


if __name__ == "__main__":
    main()
