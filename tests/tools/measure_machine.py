"""Measure this machine and hold predictions against a real decode loop on it: one JSON file for each part, as it is done.

    python tests/tools/measure_machine.py OUT --device cpu         a quiet machine, about a quarter of an hour
    python tests/tools/measure_machine.py OUT --device cuda --gpu h200    eight minutes at most
    python tests/tools/measure_machine.py OUT --device cpu --plan cuda --dry-run    the GPU's plan, cut to a small machine

It needs PyTorch and PyYAML and nothing else beside this checkout. No part is begun after ``--minutes``; one that fails
does not keep the others from running. Ctrl-C or SIGTERM (of ``timeout``) ends it: what the part had measured is written. The
exit code is 1 where a check or a part failed, 3 where time ran out, 130 where it was stopped.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvcalc import api
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import parse_bytes
from kvcalc.render.output import render

FIVE = ("pythia-70m", "smollm2-135m", "pythia-410m", "qwen3-0.6b", "llama3.2-1b")
STOPPED = 130
KINDS = ("gemma-3-1b", "gpt2", "olmoe-1b-7b", "deepseek-v2-lite", "mamba2-370m", "qwen3-next-80b-a3b", "bloom-560m")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One crosscheck; the bench calibrates once for all parts, or before and after each where ``own_bench``."""

    name: str
    models: tuple[str, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    formats: tuple[str, ...] = ("bf16",)
    fit: str | None = None
    draft: str | None = None
    own_bench: bool = False
    rounds: int = 20


PLANS = {
    "cpu": (
        Part(name="steps-bf16", models=FIVE, batches=(1, 4, 16), contexts=(256, 1024), own_bench=True),
        Part(
            name="steps-fp32", models=FIVE, batches=(1, 4, 16), contexts=(256, 1024), formats=("fp32",), own_bench=True
        ),
        Part(name="kinds", models=KINDS, batches=(1, 4), contexts=(512,), formats=("bf16",), fit="6GiB", rounds=8),
        Part(
            name="crossing", models=("smollm2-360m",), batches=(1, 2, 4, 8, 16, 32, 64, 128), contexts=(16,), rounds=8
        ),
        Part(
            name="speculation", models=("smollm2-360m",), batches=(1,), contexts=(128,), draft="smollm2-135m", rounds=8
        ),
    ),
    "cuda": (
        Part(name="llama-8b", models=("llama3.1-8b",), batches=(1, 4, 16, 64, 256), contexts=(1024,)),
        Part(
            name="llama-8b-crossing",
            models=("llama3.1-8b",),
            batches=(1, 16, 64, 128, 192, 256, 384, 512, 768, 1024),
            contexts=(16,),
        ),
        Part(name="llama-8b-long", models=("llama3.1-8b",), batches=(1, 8), contexts=(8192, 32768)),
        Part(name="llama-8b-64k", models=("llama3.1-8b",), batches=(1,), contexts=(65536,)),
        Part(name="llama-70b-slice", models=("llama3.1-70b",), batches=(1, 16, 64), contexts=(1024, 8192), fit="64GiB"),
        Part(name="mixtral-slice", models=("mixtral-8x7b",), batches=(1, 8, 64), contexts=(1024, 4096), fit="48GiB"),
        Part(name="mla-slice", models=("deepseek-v2-lite",), batches=(1, 16, 64), contexts=(1024, 8192), fit="48GiB"),
        Part(name="speculation", models=("llama3.1-8b",), batches=(1,), contexts=(1024,), draft="llama3.2-1b"),
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--plan", choices=PLANS, help="the device's own unless said otherwise")
    parser.add_argument("--gpu", help="ceilings: a profile; those that the bench reaches where left out")
    parser.add_argument("--minutes", type=float, help="no part is begun later: 7 on a GPU, 30 on a CPU")
    parser.add_argument("--only", help="parts, by name, separated by commas")
    parser.add_argument("--dry-run", action="store_true", help="cut models to one layer, contexts to 512, batches to 4")
    asked = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    begun = time.monotonic()
    limit = 60 * (asked.minutes or (7 if asked.device == "cuda" else 30))
    asked.out.mkdir(parents=True, exist_ok=True)
    parts = [part for part in PLANS[asked.plan or asked.device] if not asked.only or part.name in asked.only.split(",")]
    formats = tuple(dict.fromkeys(name for part in parts for name in part.formats))

    def told(step: str) -> None:
        print(f"[{time.monotonic() - begun:5.0f} s] {step}", file=sys.stderr, flush=True)

    bench = api.bench(
        device=asked.device, formats=formats, gpu=asked.gpu, rounds=2 if asked.dry_run else 20,
        small_sets=not asked.dry_run, progress=told,
    )  # fmt: skip
    (asked.out / "bench.json").write_text(render(bench, "json"), encoding="utf-8")
    if bench.interrupted:
        return STOPPED
    ceilings = api.load_hardware(asked.gpu) if asked.gpu else bench.hardware
    code = 0
    for part in parts:
        if time.monotonic() - begun > limit:
            told(f"{part.name}: no time left")
            code = max(code, 3)
            continue
        told(part.name)
        code = max(code, run(part, asked, ceilings, bench.calibration, told))
        if code == STOPPED:
            break
    return code


def run(part: Part, asked: argparse.Namespace, ceilings, calibration, told) -> int:
    own = part.own_bench and not asked.dry_run
    try:
        report = api.crosscheck(
            part.models,
            device=asked.device,
            formats=part.formats,
            batches=tuple(dict.fromkeys(min(batch, 4) for batch in part.batches)) if asked.dry_run else part.batches,
            contexts=tuple(dict.fromkeys(min(length, 512) for length in part.contexts))
            if asked.dry_run
            else part.contexts,
            layers=1 if asked.dry_run else None,
            fit_memory_bytes=parse_bytes(part.fit) if part.fit and not asked.dry_run else None,
            gpu=None if own else ceilings,
            calibration=None if own else calibration,
            draft=part.draft,
            rounds=2 if asked.dry_run else part.rounds,
            check=not asked.dry_run,
            progress=told,
        )
    except KeyboardInterrupt:
        return STOPPED
    except KvcalcError as error:
        told(f"{part.name}: {error} ({error.hint})")
        return 1
    except Exception:  # of a kernel or a driver: the other parts are worth their time all the same
        told(f"{part.name}: {traceback.format_exc()}")
        return 1
    (asked.out / f"{part.name}.json").write_text(render(report, "json"), encoding="utf-8")
    for row in report.rows:
        off = "" if row.estimate_error is None else f", estimate {row.estimate_error:+.0%}"
        told(
            f"{row.model} {row.format} {row.batch} x {row.context}: {row.measured_s:.6f} s, "
            f"{row.ratio:.2f} x bound{off} {row.cause}"
        )
    for check in report.checks:
        if not check.passed:
            told(f"FAILED {check.name}: {check.detail}")
    for note in report.notes:
        told(f"note: {note}")
    told(f"{part.name}: median error {dict(report.median_abs_error)}, nine of ten {dict(report.p90_abs_error)}")
    if report.interrupted:
        return STOPPED
    return 0 if report.passed else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(STOPPED)
