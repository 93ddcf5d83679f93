"""Choice of the calibration for an estimate, and notes on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from kvcalc.core.calibration import pass_name
from kvcalc.core.reports.speed import EstimatedWith
from kvcalc.cost.estimate import estimate_time
from kvcalc.engines.checkpoint import default_engine

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.calibration import Calibration, Phase
    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.plan.deployment import Deployment

__all__ = ["applies", "best_calibration", "estimate_fields", "estimate_notes", "estimated_with",
           "few_measurements", "likely_engines"]  # fmt: skip

# Engines in the order in which they are taken where none is asked for. Calibrations of others (kernels on their own)
# are for their own records.
_ENGINES = ("vllm", "tensorrt-llm", "sglang", "gpt-fast", "llama.cpp", "llama.cpp-vulkan")


class Applicable(Protocol):
    """Rules of applicability, by engine and accelerators."""

    @property
    def engine(self) -> str:
        """The engine."""
        ...

    @property
    def applies_to(self) -> tuple[str, ...]:
        """Accelerators or their generations."""
        ...


T = TypeVar("T", bound=Applicable)


def applies(calibration: Applicable, hardware: HardwareProfile) -> int:
    """Return the closeness of a calibration to an accelerator: 2 by its name, 1 by its generation, 0 not at all.

    An accelerator that has calibrations by its name is no member of its generation.
    """
    if hardware.name in calibration.applies_to:
        return 2
    return int(bool(hardware.architecture) and hardware.architecture in calibration.applies_to)


def best_calibration(calibrations: Iterable[T], hardware: HardwareProfile, engines: Sequence[str]) -> T | None:
    """Return the calibration that applies to an accelerator, or none.

    Of an engine's, that by the accelerator's name comes before that by its generation.

    Args:
        calibrations: those to choose from.
        hardware: the accelerator.
        engines: the engines whose calibrations are wanted, the first preferred.
    """
    fitting = [
        calibration for calibration in calibrations if calibration.engine in engines and applies(calibration, hardware)
    ]
    return min(
        fitting,
        key=lambda calibration: (engines.index(calibration.engine), -applies(calibration, hardware)),
        default=None,
    )


def likely_engines(deployment: Deployment) -> tuple[str, ...]:
    """Return the engines that a deployment is estimated in where none is named, the first preferred.

    An engine that was asked for is the only one. GGUF files, their formats and Apple's GPUs are taken to run in
    llama.cpp.
    """
    if deployment.engine in _ENGINES:
        return tuple(name for name in _ENGINES if name.startswith(deployment.engine))
    if default_engine(deployment.model, deployment.formats, deployment.hardware) == "llama.cpp":
        return tuple(sorted(_ENGINES, key=lambda name: not name.startswith("llama.cpp")))
    return _ENGINES


def estimate_fields(
    cost: StepCost, hardware: HardwareProfile, calibration: Calibration | None
) -> dict[str, float | None]:
    """Return the fields of a report's row that hold the estimate; none of them is set without a calibration."""
    if calibration is None:
        return {}
    estimate = estimate_time(cost, hardware, calibration)
    return {"estimate_s": estimate.estimate_s, "estimate_low_s": estimate.low_s, "estimate_high_s": estimate.high_s}


def estimated_with(calibration: Calibration | None) -> EstimatedWith | None:
    """Name a report's calibration."""
    if calibration is None:
        return None
    measured = calibration.measured
    return EstimatedWith(
        name=calibration.name, engine=calibration.engine, measured_on=measured.device, date=measured.date
    )


def estimate_notes(
    calibration: Calibration | None, deployment: Deployment, *phases: Phase, shows_interval: bool = True
) -> tuple[str, ...]:
    """Return notes on a calibration: none applies, it does not, it is of kernels, or it has too few measurements.

    Args:
        calibration: what times are estimated with.
        deployment: what is estimated.
        phases: the passes that are.
        shows_interval: whether the answer prints their intervals.
    """
    hardware = deployment.hardware
    if hardware is None:
        return ()
    if calibration is None:
        return (f"no calibration applies to {hardware.name}: bounds only; --calibration takes your own",)
    if not applies(calibration, hardware):
        places = ", ".join(calibration.applies_to)
        where = f"was measured on {places}, not on {hardware.name}"
        return (f"the calibration {calibration.name} {where}: its estimate is a guess",)
    if calibration.engine == "kernels":
        without = "overheads per step and layer are left out"
        return (f"the calibration {calibration.name} covers kernels only: {without}",)
    few = few_measurements(calibration, deployment.model, *phases, shows_interval=shows_interval)
    return (*_wide_activations(calibration, deployment), *few)


def few_measurements(
    calibration: Calibration, model: ModelProfile, *phases: Phase, shows_interval: bool = True
) -> tuple[str, ...]:
    """Return a note on the phases of which a fitted calibration has no interval of the model's kind of layers."""
    few = [phase for phase in phases if calibration.has_too_few(pass_name(phase, is_mixture=model.is_mixture))]
    if not few:
        return ()
    models = "mixtures of experts" if model.is_mixture else "dense models"
    reason = f"too few measurements of {' and '.join(few)} of {models} in {calibration.name} for an 80% interval"
    shown = "the one printed is that" if len(few) == 1 else "those printed are those"
    return (f"{reason}: {shown} of all its passes" if shows_interval else reason,)


def _wide_activations(calibration: Calibration, deployment: Deployment) -> tuple[str, ...]:
    """Return a note where weights in fp8 are multiplied in 16 bits only because nothing was said of activations.

    Kernels that multiply in fp8 have efficiencies of their own: a step of Llama-3.1-70B on H100 takes 15 to 20 % longer
    with them.
    """
    formats, asked = deployment.formats, deployment.asked
    is_fp8 = "fp8" in {form.unit for form in (formats.weights, *formats.parts.values())}
    if not is_fp8 or asked.weights is None or asked.activations is not None or formats.activations.unit == "fp8":
        return ()
    if "matrix:fp8" not in calibration.reach:
        return ()
    runs = f"{calibration.engine} was measured with fp8 activations too: --activations fp8"
    return (f"weights in fp8 are estimated as multiplied in 16 bits; {runs}",)
