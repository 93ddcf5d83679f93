"""Hold the simulator against published closed loops: ``python tests/tools/closed_loops.py serving.csv [EVERY]``.

The rows give time to first token and time per output token of N users with prompts and outputs of fixed lengths. How far
apart the users were is not printed, so that two loads are simulated: all in step (every request comes when the N before it
have finished) and apart (outputs a fifth shorter or longer). A measured time to first token should lie between both.
"""

from __future__ import annotations

import csv
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc import api
from kvcalc.core.errors import KvcalcError
from kvcalc.simulate.observers import Observer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.simulate.observers import Served

GPUS = {"h100_sxm": "h100-sxm", "h200_sxm": "h200"}
TURNS = 3
# Chunks that do not fit into a step beside what decodes: a time to first token differs by so much from engine to engine.
ROUNDING = 0.05


@dataclass(frozen=True, kw_only=True)
class Loop:
    """A measured loop and the two simulated ones, in seconds."""

    name: str
    users: int
    ttft_s: float
    tpot_s: float
    together_ttft_s: float
    apart_ttft_s: float
    apart_tpot_s: float

    @property
    def between(self) -> bool:
        """Whether the measured time to first token lies between the simulated."""
        return (1 - ROUNDING) * self.apart_ttft_s <= self.ttft_s <= (1 + ROUNDING) * self.together_ttft_s


class _Latencies(Observer):
    """Times to first token and per output token of those who came after the first of all users."""

    def __init__(self) -> None:
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []

    def finished(self, served: Served) -> None:
        if served.request.arrival_s > 0:
            self.ttft_s.append(served.first_token_s - served.request.arrival_s)
            self.tpot_s.append((served.finish_s - served.first_token_s) / max(1, served.output_tokens - 1))


def simulated(row: dict[str, str], lengths: str) -> tuple[float, float]:
    """Return the mean times to first token and per output token of a row's loop."""
    users, found = int(float(row["batch_size"])), _Latencies()
    deployment = api.deployment(
        row["model_path"],
        gpu=GPUS[row["system"]],
        tensor_parallel=int(float(row["tp_size"])),
        weights="fp8",
        # these checkpoints are run with activations in 8 bits too, whose kernels have efficiencies of their own
        activations="fp8",
    )
    load = api.Load(
        arrival="closed", start="burst", users=users, requests=TURNS * users, prompt=row["isl"], output_tokens=lengths
    )
    api.simulate_serving(deployment, load, serving=api.Serving(step_times="estimate"), observers=(found,))
    return statistics.mean(found.ttft_s), statistics.mean(found.tpot_s)


def loops(path: str | Path, *, engine: str = "vllm", every: int = 1) -> Iterator[Loop]:
    """Yield loops of a table of published latencies."""
    with Path(path).open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["backend"] == engine and row["system"] in GPUS]
    for row in rows[::every]:
        output = int(row["osl"])
        try:
            together_s, _ = simulated(row, str(output))
            apart_s, tpot_s = simulated(row, f"uniform:{output * 4 // 5}-{output * 6 // 5}")
        except KvcalcError as error:
            print(f"{row['id']}: {error}", file=sys.stderr)
            continue
        yield Loop(
            name=f"{row['model_path'].rpartition('/')[2]} {row['system']} tp {row['tp_size']} {row['isl']}+{output}",
            users=int(float(row["batch_size"])),
            ttft_s=float(row["silicon_ttft_ms"]) / 1e3,
            tpot_s=float(row["silicon_tpot_ms"]) / 1e3,
            together_ttft_s=together_s,
            apart_ttft_s=apart_s,
            apart_tpot_s=tpot_s,
        )


def tpot_errors(found: list[Loop]) -> list[float]:
    """Return how far simulated times per output token are off, the least first."""
    return sorted(abs(loop.apart_tpot_s / loop.tpot_s - 1) for loop in found)


def main() -> None:
    """Print each loop and what they come to."""
    found = []
    for loop in loops(sys.argv[1], every=int(sys.argv[2]) if len(sys.argv) > 2 else 1):
        found.append(loop)
        print(
            f"{loop.name:44} {loop.users:4} users  TTFT {loop.apart_ttft_s:8.3f} <= {loop.ttft_s:8.3f} <= "
            f"{loop.together_ttft_s:8.3f} {'' if loop.between else 'NOT'}  TPOT {loop.apart_tpot_s / loop.tpot_s - 1:+.1%}"
        )
    errors = tpot_errors(found)
    print(f"{len(found)} loops, {sum(loop.between for loop in found)} between")
    print(f"TPOT: median error {errors[len(errors) // 2]:.1%}, nine of ten below {errors[int(0.9 * len(errors))]:.1%}")


if __name__ == "__main__":
    main()
