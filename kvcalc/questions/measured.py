"""The deployment that files of measurements are of: what they say, what options say, and what is taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError, about
from kvcalc.core.units import counted
from kvcalc.questions.deployments import placed
from kvcalc.sources import load_calibration

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.reports.calibrate import MeasuredDeployment
    from kvcalc.evidence.benchmarks.read import Benchmark
    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.names import EngineRules
    from kvcalc.evidence.record import Record
    from kvcalc.plan.deployment import Deployment

__all__ = ["MeasuredRun", "described", "measured_run", "read_files", "start_of"]

_MAX_FILES = 1000
# Engines that a deployment can be started with; others run as the model alone.
_STARTED = ("vllm", "sglang", "llama.cpp", "mlx", "transformers")
_SIZES = ("gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """Measurements of one deployment.

    Args:
        deployment: the deployment.
        engine: the engine's name in calibrations.
        version: its version, where it is told.
        files: the files, each with the tool that wrote it.
        cases: the measurements.
        assumed: what was not told, and how it was taken.
        notes: what was left out.
    """

    deployment: Deployment
    engine: str
    version: str
    files: Mapping[str, str]
    cases: tuple[Case, ...]
    assumed: tuple[str, ...]
    notes: tuple[str, ...]


def read_files(names: Sequence[str]) -> tuple[Benchmark, ...]:
    """Return files of measurements, read.

    Raises:
        KvcalcError: none, too many, one twice, or one that cannot be read.
    """
    from kvcalc.evidence.benchmarks.read import read_benchmark

    if not names:
        raise InputError("no file of measurements is given", hint="kvcalc calibrate result.json --gpu h100-sxm")
    if len(names) > _MAX_FILES:
        raise InputError(f"{len(names):,} files are more than the {_MAX_FILES:,} that are read")
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"the file {twice} is given twice", hint="its points would count double")
    return tuple(read_benchmark(Path(name)) for name in names)


def measured_run(
    files: Sequence[Benchmark],
    given: Mapping[str, Any],
    *,
    model: str | None = None,
    gpu: str | None = None,
    engine: str | None = None,
    lengths: Mapping[str, int | None] | None = None,
) -> MeasuredRun:
    """Return the measurements of the deployment that files are of; options come before what files say.

    Where files hold several deployments, it is that with the most measurements.

    Args:
        files: the files.
        given: arguments of `kvcalc.deployment`.
        model: the model.
        gpu: the accelerator.
        engine: the engine.
        lengths: ``batch``, ``prompt`` and ``output``, where the files do not say them.

    Raises:
        KvcalcError: a model or accelerator that neither says, or no measurement that can be computed.
    """
    records = [_with_lengths(record, lengths or {}) for each in files for record in each.records]
    known = {"model": model, "hardware": gpu, "engine": engine}
    records = [replace(each, **{name: value for name, value in known.items() if value}) for each in records]  # type: ignore[arg-type]
    groups = Counter(map(_ran, records))
    chosen = max(groups, key=groups.__getitem__)
    own = [record for record in records if _ran(record) == chosen]
    notes = []
    if len(groups) > 1:
        left = len(records) - len(own)
        notes.append(f"the files hold {len(groups):,} deployments: {counted(left, 'measurement')} of others left out")
    deployment, assumed = _deployment(own[0], given, model=model, gpu=gpu)
    cases, refused = _cases(own, deployment)
    notes += [f"{reason}: {counted(number, 'measurement')} left out" for reason, number in refused.items()]
    if not cases:
        raise InputError(f"no measurement can be computed: {next(iter(refused), 'there is none')}",
                         hint="--batch, --prompt and --output-tokens say what the file does not")  # fmt: skip
    from kvcalc.evidence.campaigns import engine_of

    assumed += [note for note in dict.fromkeys(case.record.note for case in cases) if note and note != "-fa 0"]
    return MeasuredRun(
        deployment=deployment,
        engine=engine_of(own[0]),
        version=own[0].engine_version,
        files={each.name: each.form for each in files},
        cases=tuple(cases),
        assumed=tuple(assumed),
        notes=tuple(notes),
    )


def _with_lengths(record: Record, lengths: Mapping[str, int | None]) -> Record:
    return replace(
        record,
        batch=lengths.get("batch") or record.batch,
        prompt_tokens=lengths.get("prompt") or record.prompt_tokens,
        output_tokens=lengths.get("output") or record.output_tokens,
    )


def _ran(record: Record) -> tuple[Any, ...]:
    return (record.model, record.hardware, record.engine, record.engine_version, record.weights, record.kv,
            record.tensor, record.devices)  # fmt: skip


def _deployment(
    record: Record, given: Mapping[str, Any], *, model: str | None, gpu: str | None
) -> tuple[Deployment, list[str]]:
    """Return the deployment of a record, and what was taken that neither it nor the options say."""
    from kvcalc.evidence.names import engine_rules

    rules = engine_rules(record.engine)
    formats, assumed = _formats(record, given, rules)
    sizes, notes = _sizes(record, given, splits_layers=rules.splits_layers)
    started = next((name for name in _STARTED if rules.name.startswith(name)), None)
    if not record.engine:
        notes.append("the file names no engine: taken as the usual one for such weights and GPUs")
    if not record.engine_version:
        notes.append("the file names no version of the engine")
    asked = {**given, **formats, **sizes}
    return placed(_model(record, model), {}, gpu=gpu or _card(record), engine=started, **asked), [*assumed, *notes]


def _model(record: Record, asked: str | None) -> Any:
    from kvcalc.evidence.names import find_model

    named: Any = asked or (find_model(record.model) if record.model else None)
    if named is None:
        unknown = f"names the model {record.model!r}, which is in no catalogue"
        raise InputError(f"the file {unknown if record.model else 'does not name the model'}", hint="give --model")
    return named


def _card(record: Record) -> HardwareProfile:
    from kvcalc.evidence.names import find_hardware

    cards = find_hardware(record.hardware) if record.hardware else ()
    if not cards:
        unknown = f"names the GPU {record.hardware!r}, which is in no catalogue"
        raise InputError(f"the file {unknown if record.hardware else 'does not name the GPU'}", hint="give --gpu")
    return cards[0]


def _formats(record: Record, given: Mapping[str, Any], rules: EngineRules) -> tuple[dict[str, Any], list[str]]:
    """Return the formats that a record says and no option does, and what was taken."""
    from kvcalc.evidence.names import weight_names, weights_in_name

    formats: dict[str, Any] = {}
    if "kv_dtype" not in given and record.kv:
        formats["kv_dtype"] = record.kv.split()[0].lower()
    if "weights" in given:
        return formats, []
    printed = record.weights or weights_in_name(record.model)
    if not printed:
        return formats, ["the file names no format of the weights: taken as the checkpoint's own"]
    spelled = weight_names(printed, record.model, rules)
    name = printed if spelled is None else spelled["weights"]
    if name != "own":
        formats["weights"] = name
        if spelled is not None and "activations" in spelled:
            formats["activations"] = spelled["activations"]
    return formats, []


def _sizes(record: Record, given: Mapping[str, Any], *, splits_layers: bool) -> tuple[dict[str, int], list[str]]:
    """Return the parallel sizes that a record says and no option does, and what was taken."""
    if any(size in given for size in _SIZES):
        return {}, []
    assumed = ["the file gives no number of GPUs: taken as 1"] if record.tensor is None and record.devices == 1 else []
    if record.tensor is None and splits_layers:
        return {"pipeline_parallel": record.devices}, assumed
    tensor = record.tensor or record.devices
    return {"tensor_parallel": tensor, "pipeline_parallel": max(1, record.devices // tensor)}, assumed


def _cases(records: Sequence[Record], deployment: Deployment) -> tuple[list[Case], dict[str, int]]:
    """Return the records as passes, and how many cannot be, by reason."""
    from kvcalc.evidence.gate import judge
    from kvcalc.evidence.passes import case_in

    assert deployment.hardware is not None
    cases, refused = [], Counter[str]()
    for record in records:
        if record.phase == "tpot" and not record.prompt_tokens:
            refused["the file gives no length of prompts"] += 1
            continue
        try:
            case = case_in(record, deployment, deployment.hardware, limited=True)
        except KvcalcError as error:
            refused[error.what] += 1
            continue
        verdict = judge(case)
        if verdict.beaten and not verdict.cause:
            refused["faster than the bound, so that it was another deployment or another length"] += 1
        else:
            cases.append(case)
    return cases, dict(refused)


def start_of(run: MeasuredRun, asked: str | None) -> tuple[Calibration, tuple[str, ...]]:
    """Return the calibration that applies to measurements, or the one that was asked for, and notes on it."""
    from kvcalc.evidence.estimates import own_or_near
    from kvcalc.plan.estimates import applies

    assert run.deployment.hardware is not None
    if asked is not None:
        with about("calibration"):
            return load_calibration(asked), ()
    calibration = own_or_near(run.cases[0])
    if calibration.engine == run.engine and applies(calibration, run.deployment.hardware):
        return calibration, ()
    where = f"{run.engine or 'this engine'} on {run.deployment.hardware.name}"
    return calibration, (f"nothing is shipped of {where}: it begins with {calibration.name}",)


def described(run: MeasuredRun) -> MeasuredDeployment:
    """Return the deployment as reports name it."""
    from kvcalc.core.reports.calibrate import MeasuredDeployment

    deployment, parallel = run.deployment, run.deployment.parallel
    assert deployment.hardware is not None
    return MeasuredDeployment(
        model=deployment.model.name,
        gpu=deployment.hardware.name,
        engine=run.engine,
        engine_version=run.version,
        tensor_parallel=parallel.tensor,
        pipeline_parallel=parallel.pipeline,
        expert_parallel=parallel.expert,
        data_parallel=parallel.data,
        weights=deployment.formats.recipe or deployment.formats.weights.name,
        kv_dtype=deployment.formats.key.name,
    )
