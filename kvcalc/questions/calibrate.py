"""A calibration from one's own measurements: ``kvcalc calibrate``."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.readers import count, texts
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import Run
from kvcalc.questions.measured import described, measured_run, read_files, start_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.calibrate import CalibratedPoint, CalibrateReport
    from kvcalc.evidence.own.calibrating import Calibrated
    from kvcalc.questions.measured import MeasuredRun

__all__ = ["Calibrate", "calibrate"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")
_FEW = 3
# A fit that is off by so much has not found what takes the time.
_POOR = 0.15


class Calibrate(Run):
    """A calibration from your own benchmark files, with its errors before and after.

    Reads what vllm bench, SGLang's bench_serving, AIPerf, GuideLLM, llama-bench and InferenceMAX write, metrics of vLLM
    and SGLang, and CSV. It says which deployment it takes them for, and fits no more terms than they identify.

    Example: kvcalc calibrate docs/examples/measured-gpt-oss-120b.csv
    """

    files: tuple[str, ...] = param(
        "FILE", help="Files of measurements of one deployment.", read=texts, repeats=True, is_argument=True,
        is_required=True, metavar="FILE...", on_page=False,
    )  # fmt: skip
    model: str | None = param("--model", "-m", help="Model, where the files do not name it, or name it otherwise.")
    gpu: str | None = param("--gpu", help="GPU, where the files do not name it.")
    engine: str | None = param("--engine", help="Engine, where the files do not name it.")
    batch: int | None = param("--batch", help="Requests at once, where the files do not say it.", read=count)
    prompt: int | None = param("--prompt", help="Tokens of a prompt, where the files do not say it.", read=count)
    output_tokens: int | None = param(
        "--output-tokens", help="Tokens of an answer, where the files do not say it.", read=count
    )
    calibration: str | None = param(
        "--calibration", help="Calibration to begin with.", otherwise="the one that applies", on_page=False
    )
    called: str | None = param("--name", help="Name of the new one.", otherwise="model, GPU and engine")
    write_calibration: str | None = param(
        "--write-calibration",
        heading="Output",
        help="Write it, for --calibration of decode, prefill and simulate.",
        metavar="FILE",
        on_page=False,
    )

    def answer(self) -> Answer:
        """Return the calibration, written where it was asked for."""
        from kvcalc.files import check_writable
        from kvcalc.questions.bench import write_profile

        check_writable([self.write_calibration])
        report = calibrate(
            self.files,
            model=self.model,
            gpu=self.gpu,
            engine=self.engine,
            lengths={"batch": self.batch, "prompt": self.prompt, "output": self.output_tokens},
            calibration=self.calibration,
            name=self.called,
            given=self.given(Run),
        )
        if self.write_calibration is not None:
            write_profile(_dated(report.calibration), self.write_calibration)
        return Answer(report)


def calibrate(
    files: Sequence[str | Path],
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    lengths: Mapping[str, int | None] | None = None,
    calibration: str | None = None,
    name: str | None = None,
    given: Mapping[str, Any] | None = None,
) -> CalibrateReport:
    """Return a calibration fitted to the measurements of some files, with its errors before and after.

    Args:
        files: files of benchmark tools.
        model: the model, where the files do not name it.
        gpu: the accelerator, likewise.
        engine: the engine, likewise.
        lengths: ``batch``, ``prompt`` and ``output``, where the files do not say them.
        calibration: the one to begin with; that which applies where left out.
        name: the name of the new one.
        given: arguments of `kvcalc.deployment`: parallel sizes and formats.

    Raises:
        KvcalcError: a file that cannot be read, or a deployment that is not known.
    """
    from kvcalc.evidence.own.calibrating import calibrated, started

    if name is not None and not _NAME.fullmatch(name):
        raise InputError(f"the name {name!r} is none for a calibration", hint="lower case letters, digits, . _ -",
                         parameter="name")  # fmt: skip
    read = read_files([str(file) for file in files])
    run = measured_run(read, given or {}, model=model, gpu=gpu, engine=engine, lengths=lengths)
    start, notes = start_of(run, calibration)
    start = started(start, run.cases)
    fit = calibrated(start, run.cases)
    return _report(run, start, fit, name or _usual_name(run), (*run.notes, *notes))


def _usual_name(run: MeasuredRun) -> str:
    assert run.deployment.hardware is not None
    words = f"{run.deployment.model.name}-{run.deployment.hardware.name}-{run.engine or 'measured'}".lower()
    return re.sub(r"[^a-z0-9._-]+", "-", words).strip("-._")[:100]


def _report(
    run: MeasuredRun, start: Calibration, fit: Calibrated, name: str, notes: tuple[str, ...]
) -> CalibrateReport:
    from kvcalc.core.reports.calibrate import CalibratedTerm, CalibrateReport
    from kvcalc.evidence.own.terms import TERMS
    from kvcalc.evidence.serving import served_kind

    points = _points(run, start, fit)
    terms = tuple(
        CalibratedTerm(term=each, meaning=TERMS[each].meaning, factor=factor, identified_share=fit.told[each])
        for each, factor in fit.factors.items()
    )
    left = [abs(each.left_out_s / each.measured_s - 1) for each in points if each.left_out_s is not None]
    judged = next((case for case in run.cases if case.first is None), run.cases[0])
    spread = fit.calibration.intervals[served_kind(judged)]
    if len({case.record.row for case in run.cases}) < _FEW:
        notes = (*notes, "so few rows say little: five at other loads and lengths make it worth having")
    after = median(abs(each.after_s / each.measured_s - 1) for each in points)
    if after > _POOR:
        notes = (*notes, "no terms explain these times: is it this deployment, and was it alone on its GPUs?")
    return CalibrateReport(
        name=name,
        start=start.name,
        deployment=described(run),
        files=run.files,
        points=points,
        terms=terms,
        before=median(abs(each.before_s / each.measured_s - 1) for each in points),
        after=after,
        left_out_error=median(left) if left else None,
        low_factor=spread.low,
        high_factor=spread.high,
        assumed=run.assumed,
        notes=notes,
        calibration=_named(run, start, fit, name),
    )


def _points(run: MeasuredRun, start: Calibration, fit: Calibrated) -> tuple[CalibratedPoint, ...]:
    from kvcalc.core.reports.calibrate import CalibratedPoint
    from kvcalc.evidence.estimates import case_seconds
    from kvcalc.evidence.gate import bound_s

    return tuple(
        CalibratedPoint(
            id=case.record.row or case.record.id,
            quantity=case.record.phase,
            batch=case.record.batch,
            prompt_tokens=case.record.prompt_tokens,
            output_tokens=case.record.output_tokens,
            measured_s=case.measured_s,
            bound_s=bound_s(case),
            before_s=case_seconds(case, start),
            after_s=case_seconds(case, fit.calibration),
            left_out_s=left,
        )
        for case, left in zip(run.cases, fit.left_out_s, strict=True)
    )


def _dated(calibration: Calibration) -> Calibration:
    """Return a calibration with the day on which it is written."""
    from datetime import UTC, datetime

    return replace(calibration, measured=replace(calibration.measured, date=datetime.now(UTC).date().isoformat()))


def _named(run: MeasuredRun, start: Calibration, fit: Calibrated, name: str) -> Calibration:
    """Return the calibration with its name, its accelerator and its sources."""
    from kvcalc.core.calibration import Measured

    model, hardware = run.deployment.model, run.deployment.hardware
    assert hardware is not None
    kinds = {mixer.kind for mixer in model.mixers} | {block.mlp.kind for block in model.blocks if block.mlp is not None}
    measured = Measured(
        device=hardware.name,
        versions={run.engine: run.version} if run.engine and run.version else {},
        trained_on=tuple(f"{file} ({form})" for file, form in run.files.items()),
        records=len(run.cases),
        operators=tuple(sorted(kinds)),
        notes=(f"kvcalc calibrate: {model.name}, factors on {start.name}", *run.assumed),
    )
    engine = run.engine or start.engine
    return replace(fit.calibration, name=name, engine=engine, applies_to=(hardware.name,), measured=measured)
