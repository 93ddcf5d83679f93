"""Does the engine's own log agree: ``kvcalc reconcile``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.core.readers import count, flag, whole
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.questions.groups import Run
from kvcalc.questions.profiles import profile_names
from kvcalc.sources import catalogue_hardware, catalogue_model, load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.calibrate import MeasuredReport
    from kvcalc.core.reports.reconcile import ReconcileReport
    from kvcalc.engines.logs import StartUp

__all__ = ["Reconcile", "reconcile"]

# A server prints its start within some hundred kB; what it prints while it serves may be long.
_MAX_BYTES = 32 * 2**20

# Drivers and their versions differ by less in what they leave of the same memory.
_SAME_MEMORY = 0.1
# Options of files of measurements alone, and the heading they stand under.
_OF_SPEED = ("weights", "tensor_parallel", "batch", "prompt", "output_tokens", "calibration")
_SPEED = "Measured speed"


class Reconcile(Question):
    """A log or measured speed against the prediction, or why an engine did not start (also: why).

    Every number in the log is recomputed with that version's rules. If the engine did not start, the answer gives the
    reason, what used the memory, and one line of flags that would start it, checked by the same rules. Benchmark files
    (those that kvcalc calibrate reads) and /metrics of a server on this machine are held against bound and estimate.

    Example: kvcalc reconcile docs/examples/vllm-llama31-8b.log
    """

    log: str = param(
        "LOG",
        help="Start-up log, - for standard input, a benchmark's file, or the address of /metrics on this machine.",
        is_argument=True,
        is_required=True,
        metavar="LOG",
    )
    model: str | None = param(
        "--model", "-m", help="Model, if the log does not name it: name, id, profile or config.json."
    )
    gpu: str | None = param("--gpu", help="GPU, if the log does not name it; needed to suggest flags.")
    engine: str | None = param(
        "--engine", help="Read only this engine's lines: vllm, sglang or llama.cpp.", otherwise="all"
    )
    settings: tuple[str, ...] = Run.params["settings"]  # type: ignore[assignment]
    strict: bool = param(
        "--strict", help="Exit code 1 if a number disagrees or none was computed.", read=flag, default=False
    )

    weights: str | None = param("--weights", help="Format of the weights, if the file does not say it.", heading=_SPEED)
    tensor_parallel: int | None = param(
        "--tensor-parallel", "--tp", help="Tensor-parallel size, likewise.", read=whole, heading=_SPEED
    )
    batch: int | None = param("--batch", help="Requests at once, likewise.", read=count, heading=_SPEED)
    prompt: int | None = param("--prompt", help="Tokens of a prompt, likewise.", read=count, heading=_SPEED)
    output_tokens: int | None = param(
        "--output-tokens", help="Tokens of an answer, likewise.", read=count, heading=_SPEED
    )
    calibration: str | None = param(
        "--calibration", help="Estimate with this calibration.", heading=_SPEED, on_page=False
    )

    def answer(self) -> Answer:
        """Return the numbers, or why there are none."""
        from kvcalc.evidence.benchmarks.read import is_benchmark
        from kvcalc.questions.gaps import is_address, scraped

        if is_address(self.log):
            before, text, seconds = scraped(self.log)
            return Answer(self._measured(text, "metrics", counted=_counted(before, text, seconds)))
        text = read_log_file(self.log)
        if is_benchmark(text):
            return Answer(self._measured(text, "standard input" if self.log == "-" else Path(self.log).name))
        self._refuse_speed()
        report = reconcile(text, model=self.model, engine=self.engine, gpu=self.gpu, settings=self.settings)
        return Answer(report, passed=not self.strict or (report.agrees and report.complete))

    def _measured(
        self, text: str, name: str, *, counted: tuple[Mapping[str, float], float] | None = None
    ) -> MeasuredReport:
        """Return measured times against the prediction."""
        from kvcalc.evidence.benchmarks.read import benchmark_of
        from kvcalc.questions.gaps import measured_gaps

        formats = {"weights": self.weights, "tensor_parallel": self.tensor_parallel, "settings": self.settings}
        return measured_gaps(
            [benchmark_of(text, name)],
            {each: value for each, value in formats.items() if value},
            calibration=self.calibration,
            counted=counted,
            model=self.model,
            gpu=self.gpu,
            engine=self.engine,
            lengths={"batch": self.batch, "prompt": self.prompt, "output": self.output_tokens},
        )

    def _refuse_speed(self) -> None:
        """Refuse options of measured speeds where there is a log."""
        idle = next((each for each in _OF_SPEED if getattr(self, each) is not None), None)
        if idle is not None:
            raise InputError(f"--{idle.replace('_', '-')} is for files of measurements, and this is a log")


def _counted(before: str, after: str, seconds: float) -> tuple[dict[str, float], float]:
    """Return the growth of the engine's own counters between two readings."""
    from kvcalc.evidence.benchmarks.prometheus import read_metrics

    first, last = read_metrics(before).counted, read_metrics(after).counted
    return {name: value - first.get(name, 0.0) for name, value in last.items()}, seconds


def read_log_file(name: str) -> str:
    """Return the text of a file, or of standard input for ``-``, whatever bytes it holds.

    Raises:
        KvcalcError: a file that cannot be read, or is too long.
    """
    from kvcalc.engines.logs import decoded
    from kvcalc.files import read_bytes, read_stream

    what = "the log of an engine's start"
    hint = "head -c 20000000 engine.log | kvcalc reconcile - takes its beginning"
    if name != "-" and len(name.split()) > 1 and not Path(name).exists():
        raise InputError(f"there is no file {name[:60]!r}", hint="a log is a file, or - for standard input")
    if name != "-":
        content = read_bytes(Path(name), max_bytes=_MAX_BYTES, what=what, hint=hint)
    elif sys.stdin is None:
        raise InputError("standard input is closed", hint="give the log as a file")
    else:
        content = read_stream(sys.stdin.buffer, max_bytes=_MAX_BYTES, what=what, where="standard input", hint=hint)
    return decoded(content)


def reconcile(
    text: str,
    *,
    model: str | Path | ModelProfile | None = None,
    engine: str | None = None,
    gpu: str | Path | HardwareProfile | None = None,
    settings: Sequence[str] = (),
) -> ReconcileReport:
    """Return the numbers that an engine's start-up log prints against those computed from its model and options.

    Args:
        text: the log of vLLM, SGLang or llama.cpp.
        model: the model, where the log does not tell or tells a name that is not known.
        engine: look at the start-ups of this engine alone.
        gpu: the accelerator, for flags that would start what was refused; the one that the log names where left out.
        settings: fields of the model to replace, as ``path=value``.

    Raises:
        InputError: the log tells of no engine, or its model cannot be identified.
        UnsupportedError: the model's cache in that engine is not modelled.
    """
    from dataclasses import replace
    from functools import cache

    from kvcalc.engines.logs import read_log
    from kvcalc.engines.logs.refusals import TORCH_OUT_OF_MEMORY
    from kvcalc.plan.reconcile import check_engine, reconcile_report

    chosen = None if engine is None else check_engine(engine)
    given = None if model is None else load_model(model, settings=settings)
    named = cache(lambda printed: load_model(_logged_model(printed), settings=settings))
    start_ups = read_log(text, engine=chosen)
    if not start_ups and TORCH_OUT_OF_MEMORY in text:
        what = "PyTorch ran out of memory, and the log does not tell in which engine"
        raise InputError(what, hint="--engine vllm or sglang; --model and --gpu let it say what would start")
    card, contradiction = _card(text, None if gpu is None else load_hardware(gpu), start_ups)
    report = reconcile_report(start_ups, lambda start_up: given or named(start_up.model), engine=chosen, hardware=card)
    notes = (*contradiction, *(() if given is None else _held_against(given, start_ups)))
    if card is not None and gpu is None and report.refusal is not None:
        notes = (*notes, f"the log names the GPU: {card.title}")
    return replace(report, notes=(*notes, *report.notes))


def _held_against(given: ModelProfile, start_ups: Sequence[StartUp]) -> tuple[str, ...]:
    """Note that a log names no model, or another one than it is held against."""
    printed = dict.fromkeys(start_up.model for start_up in start_ups)
    notes = []
    for name in printed:
        if name is None:
            notes.append(f"the log names no model: its numbers are compared with {given.name}, which was given")
        elif not _is_named(given, name):
            notes.append(f"the log names {name!r}: its numbers are compared with {given.name}, which was given")
    return tuple(notes)


def _is_named(model: ModelProfile, printed: str) -> bool:
    """Whether a name in a log may be that of a model."""
    from kvcalc.engines.logs import model_names

    known = {name.lower() for name in (model.name, *model.aliases)}
    return bool(known & {name.lower() for name in model_names(printed)})


def _card(
    text: str, given: HardwareProfile | None, start_ups: Sequence[StartUp]
) -> tuple[HardwareProfile | None, tuple[str, ...]]:
    """Return the accelerator that was given, else the logged one; and a note where a refusal contradicts the given."""
    from kvcalc.core.units import bytes_text
    from kvcalc.plan.reconcile import printed_gpu_bytes

    logged = _logged_gpu(text)
    if given is None or not start_ups or start_ups[-1].refusal is None:
        return given or logged, ()
    printed = printed_gpu_bytes(start_ups[-1]) or (logged and logged.usable_memory_bytes)
    if not printed or abs(given.usable_memory_bytes / printed - 1) <= _SAME_MEMORY:
        return given, ()
    printed_card = (
        f"the log shows a GPU with {bytes_text(printed)}, and {given.name} has {bytes_text(given.usable_memory_bytes)}"
    )
    return logged, (f"{printed_card}: --gpu {given.name} contradicts the log and is not used",)


def _logged_gpu(text: str) -> HardwareProfile | None:
    """Return the accelerator that a log names, from the catalogue; none where it names none that is there."""
    from kvcalc.engines.logs.names import card_names

    for name in card_names(text):
        try:
            return catalogue_hardware(name)
        except UnknownNameError:
            continue
    return None


def _logged_model(printed: str | None) -> ModelProfile:
    """Return the model that a log names, from the catalogue: nothing is fetched."""
    from kvcalc.engines.logs import model_names

    names, known = model_names(printed or ""), set(profile_names("model"))
    # the name as printed, then the catalogue's own names, then the aliases: a search in vain reads every profile
    for name in (*names[:1], *(name for name in names[1:] if name in known), *names[1:]):
        try:
            return catalogue_model(name, is_base=True)
        except UnknownNameError:
            continue
    what = f"the log names {printed!r}, which is in no catalogue" if printed else "the log names no model"
    raise InputError(what, hint="give it with --model")
