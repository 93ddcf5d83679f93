"""The files that start a plan's first option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.engines.commands import needed_checkpoint
from kvcalc.files import write_whole
from kvcalc.plan.planner.space import domain_gpus
from kvcalc.render.manifests import manifest_files
from kvcalc.render.started import Started, service_name
from kvcalc.simulate.planner.options import words_of

if TYPE_CHECKING:
    from kvcalc.simulate.planner.candidates import Candidate
    from kvcalc.simulate.planner.confirmed import Confirmed

__all__ = ["write_plan"]

_NODE_GPUS = 8


def write_plan(folder: str, confirmed: Confirmed) -> tuple[str, ...]:
    """Write a script, a compose file and Kubernetes files into a folder, and return their paths.

    Args:
        folder: it is made where it is missing.
        confirmed: the option.

    Raises:
        OSError: a file that cannot be written.
    """
    roles = _roles(confirmed)
    started = [_started(candidate, role, replicas) for role, candidate, replicas in roles]
    node_gpus = min(_node_gpus(candidate) for _, candidate, _ in roles)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in manifest_files(started, node_gpus=node_gpus).items():
        write_whole(target / name, text.encode())
        written.append(str(target / name))
    return tuple(written)


def _roles(confirmed: Confirmed) -> list[tuple[str, Candidate, int]]:
    """Return the kinds of engines, and how many of each."""
    if confirmed.prefill is None:
        return [("", confirmed.candidate, confirmed.replicas)]
    return [
        ("prefill", confirmed.prefill, confirmed.prefill_replicas),
        ("decode", confirmed.candidate, confirmed.replicas),
    ]


def _node_gpus(candidate: Candidate) -> int:
    """Return the accelerators of a node of its card: 8, or as many as its link joins."""
    assert candidate.deployment.hardware is not None
    return max(_NODE_GPUS, domain_gpus(candidate.deployment.hardware))


def _started(candidate: Candidate, role: str, replicas: int) -> Started:
    """Return engines of one kind as files start them."""
    deployment = candidate.deployment
    hardware = deployment.hardware
    assert hardware is not None
    file = needed_checkpoint(deployment.served_by, deployment.model, deployment.asked.weights)
    return Started(
        name=f"{service_name(deployment.model.name)}{f'-{role}' if role else ''}",
        engine=deployment.served_by,
        words=words_of(candidate, role=role),
        replicas=replicas,
        gpus=deployment.parallel.gpus,
        vendor=hardware.vendor,
        gpu=hardware.name,
        local=file.name if file.is_local else "",
        note=file.note,
    )
