"""Cost of simulating several replicas: ``python tests/benchmarks/replicas.py [--requests N] [--replicas N] [--trace FILE]``.

Prints CPU time and memory of three loads on replicas of llama3.1-8b on an H100 each: 20,000 requests on 1 and on 32 replicas,
``--requests`` on ``--replicas`` (a million on 64, say), and a trace with prefix hashes on 8 replicas, prefix-aware.
"""

from __future__ import annotations

import argparse
import resource
import time
from typing import Any

from kvcalc import api
from kvcalc.core.units import MIB

DEPLOYMENT = api.deployment("llama3.1-8b", gpu="h100-sxm")
# Requests a second of each replica: busy, and not overrun.
RATE = 10
PROMPT, OUTPUT = "lognormal:1020,0.9", "200"


def served(name: str, load: api.Load, **serving: Any) -> float:
    """Serve a load, print what it took, and return the CPU time."""
    before_s = time.process_time()
    report = api.simulate_serving(DEPLOYMENT, load, serving=api.Serving(**serving))
    taken_s = time.process_time() - before_s
    summary = report.summary
    print(
        f"{name:40} {taken_s:8.2f} s CPU {taken_s / summary.requests * 1e6:8.1f} µs a request {summary.steps:>12,} steps"
        f" {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MIB:6.0f} MiB at most so far",
        flush=True,
    )
    return taken_s


def synthetic(requests: int, replicas: int) -> float:
    """Serve made requests, dealt to the least loaded."""
    load = api.Load(prompt=PROMPT, output_tokens=OUTPUT, rate=RATE * replicas, requests=requests)
    name = f"{requests:,} requests on {replicas}"
    return served(name, load, replicas=replicas, routing="least-loaded" if replicas > 1 else "round-robin")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int)
    parser.add_argument("--replicas", type=int, default=64)
    parser.add_argument("--trace")
    asked = parser.parse_args()
    synthetic(100, 2)  # what is imported on the way does not count
    alone_s, together_s = synthetic(20_000, 1), synthetic(20_000, 32)
    print(f"{'':40} {together_s / alone_s:8.2f} times one replica's")
    if asked.trace:
        served("the trace on 8, prefix-aware", api.Load(trace=asked.trace), replicas=8, routing="prefix-aware")
    if asked.requests:
        synthetic(asked.requests, asked.replicas)


if __name__ == "__main__":
    main()
