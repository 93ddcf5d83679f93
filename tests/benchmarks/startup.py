"""CPU time of the installed command line against a bare interpreter: ``python tests/benchmarks/startup.py``.

Prints the ratio of user plus system time, the least of several interleaved runs, and the bar it is held to.
"""

from __future__ import annotations

import resource
import subprocess
import sys

RUNS = 15
BARE = [sys.executable, "-c", "pass"]
CASES = {
    "kvcalc --version": (["--version"], 6),
    "kvcalc --help": (["--help"], 4),
    "kvcalc size --model llama2-70b": (["size", "--model", "llama2-70b"], 10),
    "kvcalc size --model llama2-70b --json": (["size", "--model", "llama2-70b", "--json"], 10),
}


def cpu_seconds(command: list[str]) -> float:
    """Return user plus system seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Measure and print."""
    commands = {name: [sys.executable, "-P", "-m", "kvcalc", *arguments] for name, (arguments, _) in CASES.items()}
    least = dict.fromkeys(["bare", *commands], float("inf"))
    for _ in range(RUNS):
        for name, command in {"bare": BARE, **commands}.items():
            least[name] = min(least[name], cpu_seconds(command))
    print(f"python -c pass: {least['bare'] * 1e3:.1f} ms of CPU time (least of {RUNS})")
    for name, (_, bar) in CASES.items():
        ratio = least[name] / least["bare"]
        print(f"{name}: {least[name] * 1e3:.1f} ms, {ratio:.1f} x bare Python (bar: {bar})")


if __name__ == "__main__":
    main()
