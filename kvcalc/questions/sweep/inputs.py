"""A sweep, and everything outside it that decides its rows: profiles, calibrations and traces, by name and content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, did_you_mean
from kvcalc.files import open_regular
from kvcalc.sources import calibrations, load_calibration, load_hardware, load_model
from kvcalc.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from kvcalc.plan.sweep import Grid

    Digests = Mapping[str, str]

__all__ = ["SWEPT", "Columns", "Sweep", "check_unchanged", "input_digests", "read_profile", "read_profiles"]

# The axes that each report's tasks run through by themselves; every other axis makes a task of each value.
SWEPT: dict[str, tuple[str, ...]] = {
    "decode": ("context", "batch"),
    "prefill": ("prompt", "batch"),
    "size": ("context", "batch"),
    "fit": ("context", "batch"),
    "speculate": ("context", "batch"),
    "simulate": (),
}
# Points of a task, about a second of work: decode steps are computed in blocks, a fit or a draft takes long.
_POINTS_PER_TASK = {"decode": 16_384, "prefill": 512, "size": 512, "fit": 64, "speculate": 64, "simulate": 1}
Columns = dict[str, list[Any]]

_LOADERS: dict[str, Callable[[str | Path], Any]] = {"model": load_model, "gpu": load_hardware, "draft": load_model}
_LOADERS["calibration"] = load_calibration
# Profiles that a process keeps: a sweep's tasks ask for the same ones over and over.
_MAX_KEPT = 64
_BLOCK_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A report over a grid.

    Args:
        report: a key of `SWEPT`.
        axes: what is varied, by name, the last one fastest: ``model``, ``gpu`` and other arguments of
            `kvcalc.deployment`; ``batch`` and ``context`` or ``prompt``; for ``speculate`` also ``draft``, ``method``,
            ``gamma`` and ``acceptance``, ``accepted_length`` or ``draft_rate``; for ``simulate`` those of
            `kvcalc.simulate_serving`.
        deployment: arguments of `kvcalc.deployment` that stay the same.
        options: arguments of the report's function that stay the same.

    Raises:
        InputError: a report that cannot be swept.
    """

    report: str = "decode"
    axes: Mapping[str, Sequence[Any]]
    deployment: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.report not in SWEPT:
            hint = did_you_mean(self.report, SWEPT) or f"reports: {', '.join(SWEPT)}"
            raise InputError(f"no sweep of {self.report!r}", hint=hint)

    @property
    def grid(self) -> Grid:
        """The grid of its tasks."""
        from kvcalc.plan.sweep import Grid

        inner = SWEPT[self.report]
        return Grid(
            outer={name: values for name, values in self.axes.items() if name not in inner},
            inner={name: self.axes[name] for name in inner if name in self.axes},
            points_per_task=_POINTS_PER_TASK[self.report],
        )


def input_digests(swept: Sweep) -> dict[str, str]:
    """Return digests of the content of the profiles and traces that a sweep names, by what they are called.

    A profile counts as it was read, wherever it was found: another file of that name in ``KVCALC_PROFILES`` is another
    content, a comment in the same file is not. kvcalc's version stands among them.

    Raises:
        KvcalcError: a profile that cannot be found, or a file that cannot be read.
    """
    profiles = {_called(kind, source): _digest(_load(kind, source)) for kind, source in _named(swept)}
    return profiles | _others(swept)


def read_profile(kind: str, source: Any, digests: Digests) -> Any:
    """Return a profile as it was when its sweep began.

    Args:
        kind: ``model``, ``gpu``, ``draft`` or ``calibration``.
        source: its name or file; or a profile, which is passed through.
        digests: those that the sweep began with.

    Raises:
        InputError: it has another content.
        KvcalcError: it cannot be found or read.
    """
    if not isinstance(source, str | Path):
        return source
    return _read(kind, source, digests[_called(kind, source)])


@lru_cache(maxsize=_MAX_KEPT)
def _read(kind: str, source: str | Path, digest: str) -> Any:
    profile = _load(kind, source)
    if _digest(profile) != digest:
        raise _changed(_called(kind, source))
    return profile


def read_profiles(swept: Sweep, digests: Digests) -> None:
    """Read the profiles that a sweep names, so that a fault is one of the sweep and not of one of its points.

    Raises:
        KvcalcError: as `read_profile`.
    """
    for kind, source in _named(swept):
        read_profile(kind, source, digests)


def check_unchanged(swept: Sweep, digests: Digests) -> None:
    """Look again at what is read anew by each task.

    Raises:
        InputError: it has not the content that the sweep began with, here.
    """
    for called, digest in _others(swept).items():
        if digests.get(called) != digest:
            raise _changed(called)


def _changed(called: str) -> InputError:
    hint = "put it back and go on with --resume; the workers of a cluster need the same files, and the same kvcalc"
    return InputError(f"{called} has changed since the sweep began", hint=hint)


def _named(swept: Sweep) -> Iterator[tuple[str, Any]]:
    """Yield the profiles that a sweep names."""
    for kind in _LOADERS:
        for source in _given(swept, kind):
            yield kind, source


def _others(swept: Sweep) -> dict[str, str]:
    """Return digests of traces, and of the calibrations that estimates choose from; and the version."""
    digests = {"kvcalc's version": __version__}
    if "estimate" in _given(swept, "step_times") and not _given(swept, "calibration"):
        digests |= {_called("calibration", name): _digest(each) for name, each in sorted(calibrations().items())}
    for trace in _given(swept, "trace"):
        path = Path(trace)
        with open_regular(path) as file:
            if not path.is_file():
                hint = "write it to a file: it is read again for each point"
                raise InputError("a pipe or a folder, not a file", where=str(trace), hint=hint)
            digest = hashlib.sha256()
            for block in iter(partial(file.read, _BLOCK_BYTES), b""):
                digest.update(block)
            digests[f"trace {trace}"] = digest.hexdigest()
    return digests


def _called(kind: str, source: Any) -> str:
    return f"{kind} {source if isinstance(source, str | Path) else source.name}"


def _load(kind: str, source: Any) -> Any:
    return _LOADERS[kind](source) if isinstance(source, str | Path) else source


def _digest(profile: Any) -> str:
    return hashlib.sha256(repr(profile).encode()).hexdigest()


def _given(swept: Sweep, name: str) -> Iterable[Any]:
    """Return the values of an argument, wherever a sweep has it."""
    if name in swept.axes:
        return swept.axes[name]
    value = swept.options.get(name, swept.deployment.get(name))
    return () if value is None else (value,)
