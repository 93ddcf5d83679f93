"""Everything outside a sweep that decides its rows: profiles, calibrations and traces, by name and by content."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.sources import calibrations, load_calibration, load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from kvcalc.api.sweeps import Sweep

__all__ = ["content_digests", "load_profiles"]


def load_profiles(swept: Sweep) -> Iterator[tuple[str, Any]]:
    """Yield each profile that a sweep names, with what it is called: ``model llama3.1-8b``, ``gpu h200``.

    Raises:
        KvcalcError: one that cannot be found or read.
    """
    loaders: dict[str, Callable[[str | Path], Any]] = {"model": load_model, "gpu": load_hardware, "draft": load_model}
    loaders["calibration"] = load_calibration
    for kind, load in loaders.items():
        for source in _given(swept, kind):
            is_named = isinstance(source, str | Path)
            yield f"{kind} {source if is_named else source.name}", load(source) if is_named else source
    if "estimate" in _given(swept, "step_times") and not _given(swept, "calibration"):
        for name, calibration in sorted(calibrations().items()):
            yield f"calibration {name}", calibration


def content_digests(swept: Sweep) -> dict[str, str]:
    """Return a digest of the content of each profile and trace that a sweep names.

    A profile counts as it was read, wherever it was found: another file of that name in ``KVCALC_PROFILES`` is another
    content, a comment in the same file is not.

    Raises:
        KvcalcError: a profile that cannot be found or read.
        OSError: a trace that cannot be read.
    """
    digests = {name: hashlib.sha256(repr(profile).encode()).hexdigest() for name, profile in load_profiles(swept)}
    for trace in _given(swept, "trace"):
        with Path(trace).open("rb") as file:
            digests[f"trace {trace}"] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def _given(swept: Sweep, name: str) -> Iterable[Any]:
    """Return the values of an argument, wherever a sweep has it."""
    if name in swept.axes:
        return swept.axes[name]
    value = swept.options.get(name, swept.deployment.get(name))
    return () if value is None else (value,)
