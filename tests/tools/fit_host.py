"""Fit the calibration of llama.cpp's host part: `python tests/tools/fit_host.py` writes ``llama.cpp-host.yaml``.

Two numbers are fitted to ``tests/conformance/split_speeds.yaml``: the share of its memory's peak that the host reaches,
and the time of a crossing between device and host. Errors are of sources that were left out of the fit, one by one.
"""

from __future__ import annotations

import math
import statistics
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

import kvcalc
from kvcalc import sources
from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.hardware import Link
from kvcalc.core.workload import decode_step
from kvcalc.cost.estimate import estimate_stages
from kvcalc.cost.roofline import stages_time
from kvcalc.engines.llama_cpp.overrides import Override
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights
from kvcalc.plan.estimates import best_calibration
from kvcalc.plan.local.machine import Machine, host_profile, pass_stages
from kvcalc.plan.local.sections import layer_formats, placed_model

ROOT = Path(__file__).parents[2]
RECORDS = ROOT / "tests/conformance/split_speeds.yaml"
TARGET = ROOT / "kvcalc/profiles/calibrations/llama.cpp-host.yaml"
# PCIe 3.0 x16, of which a decode step hardly takes notice.
LINK = Link(name="PCIe 3.0 x16", bytes_per_s=15.75e9)
SHARES = [share / 50 for share in range(15, 45)]
CROSSINGS = [0.0, 2e-5, 5e-5, 1e-4, 2e-4]


def read_records() -> list[dict]:
    """Return the records, each with its stages."""
    records = yaml.safe_load(RECORDS.read_text(encoding="utf-8"))
    for record in records:
        record["stages"] = stages_of(record)
    return records


def stages_of(record: dict) -> tuple:
    """Return the stages of a decode step as a record describes it."""
    deployment = kvcalc.deployment(record["model"], engine="llama.cpp", weights=record["weights"])
    model = deployment.model.text_only()
    weights = model_weights(model, record["weights"])
    cards = tuple(card_of(name, record) for name in record["cards"])
    options = PlacementOptions(
        gpu_layers=record.get("gpu_layers"),
        n_cpu_moe=record.get("n_cpu_moe", 0),
        overrides=tuple(Override(pattern=pattern) for pattern in record.get("overrides", ())),
    )
    placement = place(options, layers=all_layers(model), free_bytes=[24 * 2**30] * len(cards))
    placed = placed_model(model, layer_formats(model, weights, deployment.formats), placement, outer=deployment.formats)
    links = dict.fromkeys(range(len(cards)), LINK)
    machine = Machine(devices=cards, host=host_profile(record["host_bytes_per_s"]), links=links)
    return pass_stages(placed, (decode_step(batch=1, context=record["context"]),), machine)


def card_of(name: str, record: dict):
    """Return a card, with the memory's rate that the record gives."""
    card = sources.load_hardware(name)
    rate = record.get("card_bytes_per_s")
    return replace(card, memory_bandwidth_bytes_per_s=rate) if rate else card


def made(share: float, crossing_s: float, *, low: float = 1.0, high: float = 1.0, **measured) -> Calibration:
    """Return a calibration with these numbers."""
    spread = Interval(low=low, high=high)
    return Calibration(
        name="llama.cpp-host",
        engine="llama.cpp",
        applies_to=("host",),
        reach={"matrix": Reach(bandwidth_share=share, flop_share=1.0)},
        memory_interval=spread,
        compute_interval=spread,
        collective_s=crossing_s,
        measured=Measured(device="hosts with DDR4, DDR5 and unified memory", **measured),
    )


def error_of(record: dict, host: Calibration, cards: list[Calibration]) -> float:
    """Return measured time over the estimate, as a logarithm."""
    known = []
    for stage in record["stages"]:
        crosses = all(op.part == "interconnect" for op in stage.ops)
        own = host if stage.place is None or crosses else best_calibration(cards, stage.hardware, ("llama.cpp",))
        known.append(own)
    estimate = estimate_stages(record["stages"], known, "decode").estimate_s
    return math.log(1 / record["tokens_per_s"] / estimate)


def fit(records: list[dict], cards: list[Calibration]) -> tuple[float, float]:
    """Return share and crossing with the least absolute error, each source counting as much as any other."""
    count = {record["source"]: 0 for record in records}
    for record in records:
        count[record["source"]] += 1

    def loss(pair: tuple[float, float]) -> float:
        host = made(*pair)
        return sum(abs(error_of(record, host, cards)) / count[record["source"]] for record in records)

    return min(((share, crossing) for share in SHARES for crossing in CROSSINGS), key=loss)


def judged(records: list[dict], cards: list[Calibration]) -> dict[str, float]:
    """Return each record's error by the fit to all other sources."""
    errors = {}
    for source in dict.fromkeys(record["source"] for record in records):
        host = made(*fit([record for record in records if record["source"] != source], cards))
        errors |= {r["id"]: error_of(r, host, cards) for r in records if r["source"] == source}
    return errors


def main() -> None:
    """Fit, judge, and write the calibration."""
    records, cards = read_records(), sources.shipped_calibrations()
    for record in records:
        ratio = stages_time(record["stages"]).latency_s * record["tokens_per_s"]
        assert ratio <= 1, f"{record['id']} beats the bound by {ratio}"
    share, crossing = fit(records, cards)
    errors = judged(records, cards)
    spread = sorted(math.exp(error) for error in errors.values())
    low, high = spread[len(spread) // 10], spread[-1 - len(spread) // 10]
    median = statistics.median(abs(math.exp(-error) - 1) for error in errors.values())
    for name, error in errors.items():
        sys.stdout.write(f"{name:28s} measured/estimated time {math.exp(error):.2f}\n")
    sys.stdout.write(f"share {share} crossing {crossing} median {median:.3f} interval {low:.2f} {high:.2f}\n")
    names = list(dict.fromkeys(record["source"] for record in records))
    text = f"""# yaml-language-server: $schema=../schemas/calibration.schema.json
# Written by tests/tools/fit_host.py from tests/conformance/split_speeds.yaml.
name: llama.cpp-host
engine: llama.cpp
applies_to: [host]
reach:
  matrix: {{bandwidth_share: {share:.3g}, flop_share: 1.0}}
memory_interval: {{low: {low:.3g}, high: {high:.3g}}}
compute_interval: {{low: {low:.3g}, high: {high:.3g}}}
collective_s: {crossing:.3g}  # of a crossing between a device and the host
measured:
  device: hosts with DDR4, DDR5 and unified memory
  date: '{datetime.now(tz=UTC).date()}'
  trained_on: {yaml.safe_dump(names, default_flow_style=True, width=10**6).strip()}
  records: {len(records)}
  notes:
  - "decode alone: FLOP of the host take no time here. Sources left out of the fit one by one: median error {median:.1%}"
"""
    TARGET.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
