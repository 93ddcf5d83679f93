"""Cost of ranking a plan's candidates: ``python tests/benchmarks/plans.py [--profile]``.

Prints the candidates, the CPU time and the memory of three searches, without the simulations that follow: one card, eight
cards, and a hundred thousand candidates of a mixture of experts on eight cards.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import resource
import time
from typing import TYPE_CHECKING, Any

from kvcalc.core.units import MIB
from kvcalc.questions.plan import Plan
from kvcalc.simulate.planner.ranked import rank

if TYPE_CHECKING:
    from kvcalc.simulate.planner.candidates import Ranking

_CARDS = "h100-sxm,h200,b200,h100-pcie,l40s,a100-80gb,mi300x,mi325x"
_LOAD = {"prompt": "lognormal:1020,0.9", "output_tokens": "300", "rate": "200", "slo": "ttft_p95=2s,tpot_p95=50ms"}
CASES: dict[str, dict[str, Any]] = {
    "llama3.1-8b on one card": {"model": "llama3.1-8b", "gpu": "h100-sxm"},
    "qwen3-30b-a3b on eight cards": {"model": "qwen3-30b-a3b", "gpu": _CARDS},
    "qwen3-30b-a3b in two engines and three formats": {
        "model": "qwen3-30b-a3b",
        "gpu": _CARDS,
        "engine": "vllm,sglang",
        "weights": "bf16,fp8,int4",
    },
}


def ranked(name: str, case: dict[str, Any]) -> Ranking:
    """Rank a case, print what it took, and return it."""
    before_s = time.process_time()
    _, demand, variants, _ = Plan(**_LOAD, **case)._asked(None)  # noqa: SLF001  the search without its simulations
    made_s = time.process_time() - before_s
    found = rank(variants, demand)
    taken_s = time.process_time() - before_s
    print(
        f"{name:40} {len(variants):4} variants {found.tried:8,} candidates: {found.refused:,} refused, {found.pruned:,} below"
        f" a bound, {found.ranked:,} estimated {made_s:6.2f} + {taken_s - made_s:6.2f} s CPU"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB:6.0f} MiB at most so far",
        flush=True,
    )
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=CASES, action="append")
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    profile = cProfile.Profile()
    if given.profile:
        profile.enable()
    for name in given.case or CASES:
        ranked(name, CASES[name])
    if given.profile:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)


if __name__ == "__main__":
    main()
