"""Speed of the serving simulator: ``python tests/benchmarks/serving.py [TRACE.csv]``.

Prints simulated output tokens per second of CPU time (the least of several runs) and how the cost grows with requests,
batch and context; with a trace, that of serving it whole at token budgets of 512 and 2,048, against the stepper.
"""

from __future__ import annotations

import resource
import sys
import time
from itertools import islice
from typing import TYPE_CHECKING

from kvcalc import api
from kvcalc.core.requests import Request
from kvcalc.engines.options import EngineOptions
from kvcalc.simulate.fast.forward import replica
from kvcalc.simulate.observers import Observer, Run
from kvcalc.simulate.setup import serving_setup
from kvcalc.simulate.timer import RooflineTimer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.simulate.serving import ServingSetup

RUNS = 5
DEPLOYMENT = api.deployment("llama3.1-8b", gpu="a100-80gb")
TIMER = RooflineTimer(DEPLOYMENT, kind="ideal")


class Counted(Observer):
    """What a run came to."""

    def __init__(self) -> None:
        self.runs_of_steps = self.steps = self.tokens = 0

    def runs(self, runs: Sequence[Run]) -> None:
        self.runs_of_steps += len(runs)
        for run in runs:
            self.steps += run.steps
            self.tokens += run.steps * run.output_tokens


def setup(*, budget: int = 2048, num_blocks: int | None = None, prefix_caching: bool = True) -> ServingSetup:
    options = EngineOptions(max_num_batched_tokens=budget, prefix_caching=prefix_caching)
    return serving_setup(DEPLOYMENT, timer=TIMER, options=options, num_blocks=num_blocks)


def load(*, requests: int, rate: float, prompt: int = 512, output: int = 200) -> list[Request]:
    """Requests at equal gaps with lengths around the given ones."""
    return [
        Request(
            name=f"r{index}",
            arrival_s=index / rate,
            prompt_tokens=prompt // 2 + index * 7919 % prompt,
            output_tokens=output // 2 + index * 104729 % output,
        )
        for index in range(requests)
    ]


def measured(
    made: ServingSetup, requests: Callable[[], Iterable[Request]], *, exact_steps: bool = False, runs: int = RUNS
) -> tuple[float, Counted]:
    """Return the least CPU time of some runs, and what they came to."""
    least = float("inf")
    for _ in range(runs):
        counted = Counted()
        served = replica(made, counted, exact_steps=exact_steps)
        asked = requests()
        before = time.process_time()
        served.serve(asked)
        least = min(least, time.process_time() - before)
    return least, counted


def told(name: str, made: ServingSetup, requests: Callable[[], Iterable[Request]], **how: bool | int) -> float:
    seconds, counted = measured(made, requests, **how)
    print(
        f"{name:44} {seconds:8.3f} s  {counted.tokens / seconds / 1e6:8.2f} M tokens/s"
        f"  {counted.steps:>9,} steps in {counted.runs_of_steps:>7,} runs, {seconds / counted.runs_of_steps * 1e6:5.1f} µs each"
    )
    return seconds


def main() -> None:
    """Measure and print."""
    print(f"llama3.1-8b on a100-80gb, CPU time, least of {RUNS}")
    for count in (1000, 4000, 16000):
        requests = load(requests=count, rate=8)
        told(f"{count:,} requests at 8/s", setup(), lambda requests=requests: requests)
    for rate in (1, 8, 24):
        requests = load(requests=4000, rate=rate)
        told(f"4,000 requests at {rate}/s (batch)", setup(), lambda requests=requests: requests)
    for prompt in (512, 4096, 16384):
        requests = load(requests=2000, rate=4 * 512 / prompt, prompt=prompt)
        told(f"2,000 prompts of about {prompt:,} (context)", setup(), lambda requests=requests: requests)
    requests = load(requests=4000, rate=30)
    told("4,000 requests at 30/s, 3,000 blocks (full)", setup(num_blocks=3000), lambda: requests)
    if len(sys.argv) > 1:
        trace(sys.argv[1])
    print(f"most memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MiB")


def trace(path: str) -> None:
    """Measure a trace at Poisson arrivals of 6.45 a second, with and without jumps."""
    asked = api.Load(trace=path, arrival="poisson", rate=6.45, seed=0)
    requests = list(asked.source())
    for budget in (512, 2048):
        for prefix_caching in (False, True):
            made = setup(budget=budget, prefix_caching=prefix_caching)
            name = f"trace, budget {budget}, prefixes {'kept' if prefix_caching else 'not kept'}"
            jumped = told(name, made, lambda: requests)
            part = list(islice(requests, len(requests) // 8))
            stepped = told(f"{name}, an eighth, stepped", made, lambda part=part: part, exact_steps=True, runs=1)
            print(f"{'':44} {8 * stepped / jumped:8.1f} x as fast as stepping")


if __name__ == "__main__":
    main()
