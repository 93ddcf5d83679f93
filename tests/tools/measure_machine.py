"""Measure this machine and hold predictions against a real decode loop on it: one command, part after part.

    python tests/tools/measure_machine.py OUT --device cuda --gpu h200             the smoke test, then all parts: nine minutes
    python tests/tools/measure_machine.py OUT --device cuda --gpu h200 --smoke     whether everything runs: a minute or two, with the kernels compiled
    python tests/tools/measure_machine.py OUT --device cpu                         a quiet machine, about a quarter of an hour
    python tests/tools/measure_machine.py OUT --device cpu --plan cuda --rehearse  the GPU's plan, cut to a small machine

It needs PyTorch and PyYAML (and Triton, which PyTorch for CUDA brings, for the fused kernels) and nothing else beside this
checkout. Each part is a process of its own with a time limit, so that one that fails or hangs leaves the others theirs. Every
row is written to OUT/results.jsonl as it is measured, what the parts say to OUT/log; what the rows say together is printed
at the end. The exit code is 1 where a check or a part failed, 3 where time ran out, 130 where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parent))

import machine_parts
from machine_parts import capacity, ceilings, compiled, crosschecked, engine, prefill, smoke
from machine_verdicts import CRITERIA, summary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

FAILED, OUT_OF_TIME, STOPPED = 1, 3, 130
SLOWER = 10  # a CPU that rehearses a GPU's plan
ALL = ("plain", "sdpa", "fused")
FIVE = ("pythia-70m", "smollm2-135m", "pythia-410m", "qwen3-0.6b", "llama3.2-1b")
KINDS = ("gemma-3-1b", "gpt2", "olmoe-1b-7b", "deepseek-v2-lite", "mamba2-370m", "qwen3-next-80b-a3b", "bloom-560m")
CROSSING = (1, 16, 64, 128, 192, 256, 384, 512, 768, 1024)
CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"


@dataclass(frozen=True, slots=True)
class Part:
    """One process: its name, the seconds it may take, and its work."""

    name: str
    seconds: int
    work: Callable[[machine_parts.Run], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """Parts in the order of their worth, within so many seconds together."""

    seconds: int
    parts: Sequence[Part] = field(default_factory=tuple)


def steps(name: str, seconds: int, *models: str, **more: Any) -> Part:
    return Part(name, seconds, partial(crosschecked, models=models, **more))


LLAMA, DRAFT = "llama3.1-8b", "llama3.2-1b"
PLANS = {
    "cuda": Plan(520, (
        Part("smoke", 120, smoke),
        Part("ceilings", 60, ceilings),
        steps("llama-8b", 60, LLAMA, batches=(1, 4, 16, 64, 256), contexts=(1024,), kernels=ALL),
        steps("llama-8b-crossing", 40, LLAMA, batches=CROSSING, contexts=(16,), kernels=("fused",), rounds=10),
        steps("llama-8b-long", 40, LLAMA, batches=(1,), contexts=(8192, 32768, 65536, 131072), kernels=ALL, rounds=10),
        steps("llama-8b-long-8", 30, LLAMA, batches=(8,), contexts=(32768,), kernels=ALL, rounds=10),
        steps("llama-8b-loop", 40, LLAMA, batches=(1, 16), contexts=(1024,), kernels=ALL, loops=(64, 256), rounds=5),
        steps("mixtral", 60, "mixtral-8x7b", batches=(1, 8, 16), contexts=(1024,), kernels=ALL, rounds=10),
        steps("qwen3-30b-a3b", 60, "qwen3-30b-a3b", batches=(1, 16, 64), contexts=(1024,), kernels=ALL, rounds=10,
              check=True),
        steps("mla", 40, "deepseek-v2-lite", batches=(1, 16, 64), contexts=(1024, 8192), rounds=10),
        *(
            steps(f"speculation-{gamma}", 40, LLAMA, batches=(1,), contexts=(1024,), draft=DRAFT, gamma=gamma,
                  kernels=("fused",), rounds=5)
            for gamma in (4, 2, 8)
        ),
        Part("fp8", 40, machine_parts.fp8),
        Part("prefill", 40, partial(prefill, model=LLAMA, prompts=(512, 2048, 8192))),
        Part("capacity", 40, partial(capacity, model=LLAMA, context=4096)),
        steps("llama-70b-slice", 60, "llama3.1-70b", batches=(1, 16), contexts=(1024,), fit="120GiB", kernels=ALL),
        Part("ceilings-again", 40, ceilings),
        Part("compiled", 120, partial(compiled, model=LLAMA, context=1024)),
    )),
    "cpu": Plan(1800, (
        Part("ceilings", 120, ceilings),
        steps("steps-bf16", 300, *FIVE, batches=(1, 4, 16), contexts=(256, 1024), benched=True, check=True),
        steps("steps-fp32", 300, *FIVE, batches=(1, 4, 16), contexts=(256, 1024), formats=("fp32",), benched=True, check=True),
        *(
            steps(f"variants-{name}", 120, DRAFT, batches=(1, 4, 16), contexts=(256, 1024), formats=(name,),
                  kernels=("plain", "sdpa"), loops=(64, 256), benched=True, check=True)
            for name in ("bf16", "fp32")
        ),
        *(
            Part(f"{name}-{weights}", 200, partial(engine, name=name, model=DRAFT, weights=weights))
            for name in ("llama.cpp", "vllm") for weights in ("bf16", "fp32")
        ),
        steps("kinds", 200, *KINDS, batches=(1, 4), contexts=(512,), fit="6GiB", rounds=8, check=True),
        steps("crossing", 120, "smollm2-360m", batches=(1, 2, 4, 8, 16, 32, 64, 128), contexts=(16,), rounds=8),
        steps("speculation", 120, "smollm2-360m", batches=(1,), contexts=(128,), draft="smollm2-135m", rounds=8),
        Part("prefill", 120, partial(prefill, model=DRAFT, prompts=(128, 512))),
    )),
}  # fmt: skip


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--plan", choices=PLANS, help="the device's own unless said otherwise")
    parser.add_argument("--gpu", help="ceilings: a profile; those that the first part reaches where left out")
    parser.add_argument("--seconds", type=int, help="no part goes on longer: 520 on a GPU, 1,800 on a CPU")
    parser.add_argument("--only", help="parts, by name, separated by commas")
    parser.add_argument("--smoke", action="store_true", help="the smoke test alone")
    parser.add_argument("--rehearse", action="store_true", help="cut models to one layer, contexts to 64, batches to 4")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    asked = arguments()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    plan = PLANS[asked.plan or asked.device]
    by_name = {part.name: part for part in plan.parts}
    if asked.part:
        return run_part(by_name.get(asked.part, Part("smoke", 120, smoke)), asked)
    asked.out.mkdir(parents=True, exist_ok=True)
    results = asked.out / "results.jsonl"
    results.write_text("".join(json.dumps({"kind": "criterion", "words": words}) + "\n" for words in CRITERIA))
    names = ["smoke"] if asked.smoke else [name for name in by_name if not asked.only or name in asked.only.split(",")]
    parts = [by_name.get(name, Part(name, 120, smoke)) for name in names]
    if asked.device == "cpu" and asked.plan == "cuda":
        parts = [replace(part, seconds=part.seconds * SLOWER) for part in parts]
    code = run_all(parts, asked, asked.seconds or (plan.seconds * SLOWER if asked.rehearse else plan.seconds))
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    print("\n".join(summary(rows)))
    return code


def run_all(parts: Sequence[Part], asked: argparse.Namespace, seconds: int) -> int:
    """Run parts one after another, each no longer than it may and than is left; the smoke test decides over the rest."""
    begun, code = time.monotonic(), 0
    for part in parts:
        left = seconds - (time.monotonic() - begun)
        if left < 1:
            print(f"{part.name}: no time left", file=sys.stderr)
            code = max(code, OUT_OF_TIME)
            continue
        clocks(asked, part.name, "before")
        start = time.monotonic()
        one = child(part, asked, min(part.seconds, left))
        words = {0: "done", FAILED: "FAILED", OUT_OF_TIME: "stopped at its limit", STOPPED: "stopped"}
        print(f"[{time.monotonic() - begun:4.0f} s] {part.name}: {words.get(one, f'ended with {one}')} "
              f"after {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)  # fmt: skip
        clocks(asked, part.name, "after")
        code = max(code, one if one in words else FAILED)
        if one == STOPPED or (part.name == "smoke" and one):
            print((asked.out / "log").read_text()[-4000:], file=sys.stderr)
            break
    return code


def child(part: Part, asked: argparse.Namespace, seconds: float) -> int:
    """Run a part in a process of its own; one beyond its limit is asked to stop, then ended."""
    command = [sys.executable, __file__, *sys.argv[1:], "--part", part.name]
    with (asked.out / "log").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            return process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return end(process, OUT_OF_TIME)
        except KeyboardInterrupt:
            return end(process, STOPPED)


def end(process: subprocess.Popen[bytes], code: int) -> int:
    process.terminate()
    try:
        process.wait(timeout=10)
    except subprocess.TimeoutExpired:
        process.kill()
    return code


def run_part(part: Part, asked: argparse.Namespace) -> int:
    """Do a part's work in this process."""
    print(f"== {part.name}", file=sys.stderr, flush=True)
    try:
        passed = part.work(machine_parts.Run(asked, part.name))
    except KeyboardInterrupt:
        return STOPPED
    except Exception:  # of a kernel or a driver: it is in the log, and the next part has a process of its own
        traceback.print_exc()
        return FAILED
    return 0 if passed else FAILED


def clocks(asked: argparse.Namespace, part: str, when: str) -> None:
    """Note down the clocks, the power and the temperature of a GPU."""
    tool = shutil.which("nvidia-smi") if asked.device == "cuda" else None
    if tool is None:
        return
    command = [tool, f"--query-gpu={CLOCKS}", "--format=csv,noheader"]
    said = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20).stdout.strip()
    with (asked.out / "results.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "clocks", "part": part, "when": when, "said": said}) + "\n")


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(STOPPED)
