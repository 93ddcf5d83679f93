"""The parts of a measuring run: each writes its rows as they are measured and says whether its checks passed."""

from __future__ import annotations

import json
import pickle
import sys
import time
from dataclasses import asdict, is_dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc import api
from kvcalc.core.errors import KvcalcError
from kvcalc.core.units import parse_bytes
from kvcalc.core.workload import decode_step
from kvcalc.measure.scale import with_layers
from kvcalc.plan.deployment import deploy
from kvcalc.plan.steps import timed_step

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from kvcalc.core.hardware import HardwareProfile

SMOKE = {
    "cuda": ("llama3.1-8b", "mixtral-8x7b", "deepseek-v2-lite"),
    "cpu": ("smollm2-135m", "olmoe-1b-7b", "deepseek-v2-lite"),
}
REHEARSED = {"batch": 4, "context": 64, "loop": 8}


class Run:
    """One part: where its rows go, and how much is measured."""

    def __init__(self, asked: argparse.Namespace, part: str) -> None:
        self.asked, self.part, self.begun = asked, part, time.monotonic()
        self.rehearse = asked.rehearse or part == "smoke"
        self.layers = 1 if self.rehearse else None
        self.reached = asked.out / "reached.pickle"  # for the next parts' processes: profiles are read with pydantic

    def write(self, kind: str, row: object) -> None:
        """Append a row to the results, at once."""
        fields = asdict(row) if is_dataclass(row) and not isinstance(row, type) else dict(row)  # type: ignore[call-overload]
        if "kind" in fields:
            fields["benchmark"] = fields.pop("kind")
        if "samples_s" in fields:
            fields["samples_s"] = list(fields["samples_s"])
        with (self.asked.out / "results.jsonl").open("a") as file:
            file.write(json.dumps({"kind": kind, "part": self.part, **fields}, default=str) + "\n")

    def say(self, words: str) -> None:
        """Write to the log."""
        print(f"[{time.monotonic() - self.begun:5.1f} s] {words}", file=sys.stderr, flush=True)

    def cut(self, what: str, values: Sequence[int]) -> tuple[int, ...]:
        """Numbers as they are asked for, or no larger than a rehearsal takes."""
        return tuple(dict.fromkeys(min(value, REHEARSED[what]) for value in values)) if self.rehearse else tuple(values)

    @property
    def rounds(self) -> int:
        return 2 if self.rehearse else 20

    def kernels(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of some variants that run here; the plain one where none does."""
        import torch

        from kvcalc.measure.kernels import kernels_of

        here = []
        for name in names:
            try:
                kernels_of(name, api_device(self)).gated(torch.ones(1, 32, device=self.asked.device))
            except Exception as error:  # Triton asks for a compiler of C when it starts its first kernel
                self.say(f"{name}: {error}")
            else:
                here.append(name)
        return tuple(here) or ("plain",)

    def hardware(self) -> HardwareProfile:
        """Ceilings: those given, or those that the first part reached."""
        return api.load_hardware(self.asked.gpu) if self.asked.gpu else pickle.loads(self.reached.read_bytes())[0]  # noqa: S301  written here

    def beside_read(self, row: Any) -> dict[str, Any]:
        """A step's row with its bound on the bandwidth that the first part read, where there was one."""
        if not self.reached.exists():
            return asdict(row)
        read = pickle.loads(self.reached.read_bytes())[0].memory_bandwidth_bytes_per_s  # noqa: S301  written here
        model = with_layers(api.load_model(row.model), row.layers)
        hardware = replace(self.hardware(), memory_bandwidth_bytes_per_s=read)
        deployment = replace(
            deploy(model, weights=row.format, kv=row.format, activations=row.format), hardware=hardware
        )
        bound = timed_step(deployment, decode_step(batch=row.batch, context=row.context)).time.ideal_s
        return asdict(row) | {"read_bound_s": bound}

    def calibration(self) -> Any:
        """The calibration that the first part fitted, where it did."""
        return pickle.loads(self.reached.read_bytes())[1] if self.reached.exists() else None  # noqa: S301


def api_device(run: Run) -> Any:
    from kvcalc.measure.library import find_device

    return find_device(run.asked.device)


def smoke(run: Run) -> bool:
    """Everything once, on models cut to a layer: versions first, so that a failure tells where it was."""
    device = api_device(run)
    run.write("environment", {"device": device.title, "memory_bytes": device.memory_bytes, "versions": dict(device.versions),
                              "architecture": device.architecture, "python": sys.version})  # fmt: skip
    for at, model in enumerate(SMOKE[run.asked.device]):
        draft = {} if at else {"draft": model, "gamma": 2}
        if not crosschecked(run, models=(model,), batches=(1, 4), contexts=(64,), kernels=("plain", "sdpa", "fused"),
                            loops=(8,), rounds=2, bounded=False, check=True, **draft):  # fmt: skip
            raise RuntimeError(f"{model}: a check failed")
    return prefill(run, model=SMOKE[run.asked.device][0], prompts=(64,))


def ceilings(run: Run) -> bool:
    """What the device reaches, its ceilings and the calibration that the later parts' estimates stand on."""
    formats = ("bf16", "fp16", "fp32") if run.asked.device == "cuda" else ("bf16", "fp32")
    report = api.bench(device=run.asked.device, formats=formats, gpu=run.asked.gpu, rounds=run.rounds,
                       small_sets=not run.rehearse, progress=run.say)  # fmt: skip
    for row in report.rows:
        run.write("bench", row)
    hardware = report.hardware
    run.write("ceilings", {"memory_bandwidth_bytes_per_s": hardware.memory_bandwidth_bytes_per_s,
                           "peak_flop_per_s": dict(hardware.peak_flop_per_s), "notes": list(report.notes)})  # fmt: skip
    if run.part == "ceilings":
        run.reached.write_bytes(pickle.dumps((hardware, report.calibration)))
    run.write("calibration", report.calibration or {})
    return not report.interrupted


def crosschecked(
    run: Run,
    *,
    models: Sequence[str],
    batches: Sequence[int],
    contexts: Sequence[int],
    formats: Sequence[str] = ("bf16",),
    kernels: Sequence[str] = ("plain",),
    loops: Sequence[int] = (),
    fit: str | None = None,
    draft: str | None = None,
    gamma: int = 4,
    rounds: int | None = None,
    benched: bool = False,
    bounded: bool = True,
    check: bool = False,
) -> bool:
    """Steps of models beside their bounds; with a bench of their own before and after where they are ``benched``."""
    own = benched and not run.rehearse
    names = run.kernels(kernels)
    hardware = None if own else (run.hardware() if bounded else api.load_hardware(run.asked.gpu or "h200"))
    report = api.crosscheck(
        models, device=run.asked.device, formats=formats, batches=run.cut("batch", batches),
        contexts=run.cut("context", contexts), layers=run.layers,
        fit_memory_bytes=parse_bytes(fit) if fit and not run.rehearse else None,
        gpu=hardware, calibration=None if own or not bounded else run.calibration(), draft=draft, gamma=gamma,
        rounds=2 if run.rehearse else rounds or run.rounds, check=check, kernels=names,
        loop_tokens=run.cut("loop", loops), progress=run.say,
        measured=lambda row: run.write("loop", row) if hasattr(row, "tokens") else run.write("step", run.beside_read(row)),
    )  # fmt: skip
    if own:
        for row in report.rows:
            run.write("step", row)
        for loop in report.loops:
            run.write("loop", loop)
    for kind, rows in (("crossing", report.crossings), ("growth", report.growth), ("check", report.checks)):
        for row in rows:
            run.write(kind, row)
    if report.speculation is not None:
        run.write("speculation", report.speculation)
    run.write("report", {"notes": list(report.notes), "median_abs_error": dict(report.median_abs_error),
                         "p90_abs_error": dict(report.p90_abs_error), "versions": dict(report.versions),
                         "bandwidth": report.ceilings.memory_bandwidth_bytes_per_s, "date": report.date})  # fmt: skip
    beaten = [check.name.startswith("bound") for check in report.checks if not check.passed]
    for each in report.checks:
        if not each.passed:
            run.say(f"FAILED {each.name}: {each.detail}")
    return all(beaten) if run.rehearse else report.passed


def engine(run: Run, *, name: str, model: str, weights: str) -> bool:
    """A real engine in the same hour, where it is installed."""
    try:
        report = api.crosscheck([model], engine=name, device=run.asked.device, formats=(weights,), batches=(1, 4, 16),
                                contexts=(256, 1024), rounds=run.rounds, layers=run.layers, gpu=run.hardware(),
                                progress=run.say)  # fmt: skip
    except KvcalcError as error:
        run.say(f"{name}: {error} ({error.hint})")
        return "not installed" in str(error)
    for row in report.rows:
        run.write("step", replace(row, kernels=name))
    for check in report.checks:
        run.write("check", check)
    return report.passed


def decoder_of(run: Run, model: str, kernels: str, **more: Any) -> tuple[Any, Any]:
    """A deployment in bf16, and its decoder."""
    from kvcalc.measure.decoder import Decoder

    profile = api.load_model(model)
    cut = with_layers(profile, run.layers or profile.layers)
    deployment = deploy(cut, weights="bf16", kv="bf16", activations="bf16")
    return deployment, Decoder(cut, weights="bf16", device=api_device(run), kernels=run.kernels((kernels,))[0],
                               **more)  # fmt: skip


def prefill(run: Run, *, model: str, prompts: Sequence[int]) -> bool:
    """Prompts beside their bounds."""
    from kvcalc.measure.prompts import measured_prefill

    hardware = api.load_hardware(run.asked.gpu or "h200") if run.part == "smoke" else run.hardware()
    deployment, decoder = decoder_of(run, model, "sdpa")
    rows = []
    for prompt in run.cut("context", prompts):
        rows.append(measured_prefill(deployment, decoder, hardware, batch=1, prompt=prompt))
        run.write("prefill", rows[-1])
    return run.rehearse or all(row.ratio >= 1 for row in rows)


def capacity(run: Run, *, model: str, context: int) -> bool:
    """The largest batch that fits, predicted and tried."""
    from kvcalc.measure.capacity import measured_capacity
    from kvcalc.measure.scale import run_bytes
    from kvcalc.measure.workspaces import taken_workspaces

    taken_workspaces(api_device(run))
    free = api_device(run).free_bytes()
    deployment, decoder = decoder_of(run, model, "fused")
    (context,) = run.cut("context", (context,))
    if run.asked.device == "cpu":  # whose system would end the process
        free = run_bytes(deployment.model, deployment.formats, batch=3, context=context)
    row = measured_capacity(deployment, decoder, context=context, free_bytes=free,
                            tries_beyond=run.asked.device == "cuda")  # fmt: skip
    run.write("capacity", row)
    return row.fits and row.beyond_fails


def fp8(run: Run) -> bool:
    """Multiplications of fp8."""
    import torch

    from kvcalc.measure.calibrate import bench_rows
    from kvcalc.measure.machine import fp8_probes

    hardware = run.hardware()
    peaks = {"fp8": 1.0, **hardware.peak_flop_per_s}
    with torch.inference_mode():
        for probe in fp8_probes(api_device(run), 1 if run.rehearse else 7, square=256 if run.rehearse else None):
            run.write("bench", bench_rows([probe], replace(hardware, peak_flop_per_s=peaks), None)[0])
    return True


def compiled(run: Run, *, model: str, context: int) -> bool:
    """The plain step by torch's own compiler, tuned: one shape, as compiling it is slow."""
    import torch

    from kvcalc.measure.clock import in_turn, recorded
    from kvcalc.measure.products import LINEAR

    deployment, decoder = decoder_of(run, model, "plain", products=LINEAR)
    (context,) = run.cut("context", (context,))
    cache = decoder.new_cache(batch=1, capacity=context)
    cache.fill(decoder.make)
    tokens = torch.zeros(1, 1, dtype=torch.long, device=run.asked.device)

    def step() -> Any:
        with torch.no_grad():
            return decoder._forward(tokens, cache, 1, decoder.new_pass(tokens, cache))  # noqa: SLF001  without inference mode

    torch._inductor.config.coordinate_descent_tuning = True  # noqa: SLF001
    fast = torch.compile(step, fullgraph=True)
    error = float((fast() - step()).abs().max() / step().abs().max())
    call, in_graph = recorded(fast, decoder.device)
    timing = in_turn([call], rounds=run.rounds, device=decoder.device)[0]
    run.write("compiled", {"model": deployment.model.name, "layers": len(decoder.layers), "context": context, "in_graph": in_graph,
                           "error": error, "least_s": timing.least_s, "measured_s": timing.low_s})  # fmt: skip
    return error < 0.05
