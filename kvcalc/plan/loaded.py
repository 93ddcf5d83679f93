"""The weights of the fullest rank as an engine loads them: one answer for every question about memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.units import bytes_text
from kvcalc.engines.loaded import loaded_model, padding_bytes
from kvcalc.plan.deployment import share_experts
from kvcalc.plan.rank_memory import rank_weights

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

__all__ = ["as_loaded", "loaded_notes", "loaded_weights"]

# Engines whose data-parallel copies share the experts.
_SHARING_EXPERTS = ("vllm", "sglang")


def as_loaded(deployment: Deployment) -> Deployment:
    """Return a deployment with the model and the spread that its engine serves it in."""
    engine, parallel = deployment.served_by, deployment.parallel
    if engine in _SHARING_EXPERTS:
        parallel = share_experts(deployment.model, parallel)
    model = loaded_model(engine, deployment.model, deployment.options)
    return replace(deployment, model=model, parallel=parallel)


def loaded_weights(deployment: Deployment) -> int:
    """Return the bytes of weights on the fullest rank as the deployment's engine loads them (`Deployment.served_by`).

    Raises:
        InputError: not a version of the engine.
    """
    served = as_loaded(deployment)
    return rank_weights(served) + _padding(served)


def loaded_notes(deployment: Deployment) -> tuple[str, ...]:
    """Return notes on parts of a checkpoint that an engine leaves out, and on padding of its weights.

    Raises:
        InputError: not a version of the engine.
    """
    served = as_loaded(deployment)
    padding, left_out = _padding(served), served.model.notes[len(deployment.model.notes) :]
    if not padding:
        return left_out
    more = f"{bytes_text(padding)} a GPU beside the checkpoint, by which its kernels pad experts"
    return (*left_out, f"weights as {served.served_by} loads them: {more}")


def _padding(served: Deployment) -> int:
    hardware = served.hardware
    return padding_bytes(
        served.served_by,
        served.model,
        served.formats,
        served.parallel,
        architecture=hardware.architecture if hardware is not None else None,
        version=served.options.version,
    )
