"""Hold vLLM's budget against start-up logs that its ends were not fitted to: ``python tests/tools/fit_budget.py``.

Each group of starts (a thread and a model) is left out in turn, the ends of sampling and of memory outside of PyTorch are
fitted anew to what the others printed, and the starts of the group are held against the interval that follows. With
``--write`` the table of docs/engines.md is rewritten.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

import yaml

import kvcalc
from kvcalc.core.units import GIB
from kvcalc.core.workload import Parallel
from kvcalc.engines.terms import PassTensors, pass_tensors
from kvcalc.engines.vllm.budget import FITTED, FittedEnds, activation_peak, graph_memory, outside_memory
from kvcalc.engines.vllm.releases import known_release
from kvcalc.plan.formats import run_formats

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "tests" / "conformance" / "vllm_budgets.yaml"
PAGE = ROOT / "docs" / "engines.md"
MARK = "<!-- table: budget -->\n"
# What a fit adds to what it has seen: a share of the copies, and memory outside of PyTorch, more of it where few groups
# were seen.
COPIES_MARGIN, OUTSIDE_MARGIN, OUTSIDE_MARGIN_OF_FEW, FEW_GROUPS = 0.05, GIB // 4, 3 * GIB // 4, 5
# Printed numbers have two digits.
ROUNDING = 0.005 * GIB
# Sampling decides the peak where its tensors are so much larger than those of a pass.
DECIDES = 1.5
BANDS = ((0, 0), "up to 0.7"), ((0, 8), "0.8 to 0.16"), ((0, 17), "0.17 to 0.19"), ((0, 20), "0.20 to 0.32")

Band = tuple[int, int]
Pairs = tuple[tuple[Band, tuple[float, float]], ...]


@dataclass(frozen=True, slots=True)
class Start:
    """One start of the engine as its log describes it, in bytes."""

    facts: dict[str, Any]

    @property
    def group(self) -> str:
        return str(self.facts["group"])

    @property
    def release(self) -> Band:
        return known_release(self.facts["version"])

    @property
    def beside(self) -> float:
        return float(self.facts["beside_gib"]) * GIB

    @property
    def card_bytes(self) -> int:
        return kvcalc.load_hardware(self.facts["gpu"]).usable_memory_bytes

    @property
    def parallel(self) -> Parallel:
        return Parallel(tensor=self.facts.get("tensor_parallel", 1), pipeline=self.facts.get("pipeline_parallel", 1))

    def printed(self, term: str) -> float | None:
        value = self.facts.get(f"{term}_gib")
        return None if value is None else float(value) * GIB

    @property
    def tensors(self) -> PassTensors:
        model = kvcalc.load_model(self.facts["model"])
        return pass_tensors(
            model,
            run_formats(model),
            tokens=self.facts["tokens"],
            sequences=self.facts["sequences"],
            tensor=self.parallel.tensor,
        )

    def expected(self, ends: FittedEnds = FITTED) -> tuple[int, int]:
        """Least and most that is neither weights nor cache."""
        model = kvcalc.load_model(self.facts["model"])
        given: dict[str, Any] = {"parallel": self.parallel, "version": self.facts["version"], "ends": ends}
        sequences = self.facts["sequences"]
        peak = activation_peak(model, run_formats(model), tokens=self.facts["tokens"], sequences=sequences, **given)
        total = peak.plus(outside_memory(model, **given)).plus(graph_memory(model, sequences=sequences, **given))
        return total.least, total.most

    def holds(self, ends: FittedEnds = FITTED) -> bool:
        """Whether what the log leaves for the cache lies in the interval."""
        least, most = self.expected(ends)
        return least - ROUNDING <= self.beside <= most + ROUNDING


@cache
def starts() -> tuple[Start, ...]:
    """The starts of the facts."""
    return tuple(Start(facts) for facts in yaml.safe_load(FACTS.read_text(encoding="utf-8")))


def refitted(seen: list[Start]) -> FittedEnds:
    """Return the ends with sampling's and those of memory outside of PyTorch fitted to some starts alone."""
    copies = {band: _copies(rows) for band, rows in _by_band(FITTED.sampled_copies, seen).items()}
    alone = {band: _outside(rows) for band, rows in _by_band(FITTED.outside_bytes, seen).items()}
    outside = _merged(FITTED.outside_bytes, alone)
    linked = {band: _links(rows, outside) for band, rows in _by_band(FITTED.linked_bytes, seen).items()}
    return replace(
        FITTED,
        sampled_copies=_merged(FITTED.sampled_copies, copies),
        outside_bytes=outside,
        linked_bytes=_merged(FITTED.linked_bytes, linked),
    )


def _by_band(table: Pairs, seen: list[Start]) -> dict[Band, list[Start]]:
    found: dict[Band, list[Start]] = {first: [] for first, _ in table}
    for start in seen:
        found[max(first for first in found if first <= start.release)].append(start)
    return found


def _merged(table: Pairs, fitted: dict[Band, list[float]]) -> Pairs:
    """Return a table with the fitted ends where there was something to fit."""
    return tuple((first, (min(fitted[first]), max(fitted[first])) if fitted[first] else ends) for first, ends in table)


def _copies(rows: list[Start]) -> list[float]:
    found: list[float] = []
    for row in rows:
        peak, tensors = row.printed("activation"), row.tensors
        forward = tensors.mlp + FITTED.hidden_copies[1] * tensors.hidden
        if peak is not None and not tensors.experts and peak > DECIDES * forward:
            copies = (peak - tensors.hidden) / tensors.logits
            found += [copies * (1 - COPIES_MARGIN), copies * (1 + COPIES_MARGIN)]
    return found


def _margin(rows: list[Start]) -> int:
    return OUTSIDE_MARGIN if len({row.group for row in rows}) >= FEW_GROUPS else OUTSIDE_MARGIN_OF_FEW


def _outside(rows: list[Start]) -> list[float]:
    found: list[float] = []
    margin = _margin([row for row in rows if row.printed("outside") is not None])
    for row in rows:
        outside = row.printed("outside")
        if outside is not None and row.parallel.tensor == 1:
            found += [max(0.0, outside - margin), outside + margin]
    return found


def _links(rows: list[Start], alone: Pairs) -> list[float]:
    found: list[float] = []
    margin = _margin([row for row in rows if row.printed("outside") is not None])
    for row in rows:
        outside = row.printed("outside")
        if outside is not None and row.parallel.tensor > 1:
            least, most = next(ends for first, ends in reversed(alone) if row.release >= first)
            found += [max(0.0, outside - most - margin), max(0.0, outside - least) + margin]
    return found


def held_out() -> dict[str, bool]:
    """Return, for each start by its place, whether ends fitted without its group hold it."""
    verdicts = {}
    for group in dict.fromkeys(start.group for start in starts()):
        ends = refitted([start for start in starts() if start.group != group])
        verdicts |= {
            f"{index} {group}": start.holds(ends) for index, start in enumerate(starts()) if start.group == group
        }
    return verdicts


def table() -> str:
    """Return the table of docs/engines.md."""
    verdicts = held_out()
    lines = [
        "| vLLM | starts | groups | held by the interval | held out | median width | share of the card |",
        "|---|---|---|---|---|---|---|",
    ]
    for place, (first, name) in enumerate(BANDS):
        last = BANDS[place + 1][0] if place + 1 < len(BANDS) else (1 << 30, 0)
        rows = {index: start for index, start in enumerate(starts()) if first <= start.release < last}
        lines.append(_line(name, rows, verdicts))
    return "\n".join([*lines, _line("all", dict(enumerate(starts())), verdicts)]) + "\n"


def _line(name: str, rows: dict[int, Start], verdicts: dict[str, bool]) -> str:
    widths = {index: start.expected()[1] - start.expected()[0] for index, start in rows.items()}
    cells = (
        name,
        len(rows),
        len({start.group for start in rows.values()}),
        f"{sum(start.holds() for start in rows.values())}",
        f"{sum(verdicts[f'{index} {start.group}'] for index, start in rows.items())}",
        f"{median(widths.values()) / GIB:.2f} GiB",
        f"{median(width / rows[index].card_bytes for index, width in widths.items()):.1%}",
    )
    return f"| {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.stdout.write(table())
    missed = [name for name, held in held_out().items() if not held]
    sys.stdout.write(f"held out and missed: {', '.join(missed)}\n")
    if "--write" in sys.argv:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARK)
        after = rest[rest.index("\n\n") :]
        PAGE.write_text(f"{before}{MARK}{table().rstrip()}{after}", encoding="utf-8")
