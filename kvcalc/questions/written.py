"""The files that start a plan's first option."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.engines.commands import needed_checkpoint
from kvcalc.files import write_whole
from kvcalc.plan.planner.space import domain_gpus
from kvcalc.render.manifests import Started, manifest_files
from kvcalc.simulate.planner.options import words_of

if TYPE_CHECKING:
    from kvcalc.simulate.planner.confirmed import Confirmed

__all__ = ["write_plan"]


def write_plan(folder: str, confirmed: Confirmed) -> tuple[str, ...]:
    """Write a script, a compose file and Kubernetes files into a folder, and return their paths.

    Args:
        folder: it is made where it is missing.
        confirmed: the option.

    Raises:
        OSError: a file that cannot be written.
    """
    deployment = confirmed.candidate.deployment
    hardware = deployment.hardware
    assert hardware is not None
    file = needed_checkpoint(deployment.served_by, deployment.model, deployment.asked.weights)
    letters = "".join(letter if letter.isalnum() else "-" for letter in deployment.model.name.lower())
    started = [
        Started(
            name=f"{letters.strip('-') or 'model'}{f'-{role}' if role else ''}",
            engine=deployment.served_by,
            words=words_of(confirmed.candidate, role=role),
            replicas=replicas,
            gpus=deployment.parallel.gpus,
            vendor=hardware.vendor,
            gpu=hardware.name,
            local=file.name if file.is_local else "",
            note=file.note,
        )
        for role, replicas in _roles(confirmed)
    ]
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, text in manifest_files(started, node_gpus=max(8, domain_gpus(hardware))).items():
        write_whole(target / name, text.encode())
        written.append(str(target / name))
    return tuple(written)


def _roles(confirmed: Confirmed) -> list[tuple[str, int]]:
    """Return the kinds of engines, and how many of each."""
    if not confirmed.prefill_replicas:
        return [("", confirmed.replicas)]
    return [("prefill", confirmed.prefill_replicas), ("decode", confirmed.replicas)]
