"""Read the names of engines as people write them."""

from __future__ import annotations

from typing import Any

from kvcalc.core.readers import names, text

__all__ = ["engine_name", "engine_names"]


def engine_name(given: Any, what: str) -> Any:
    """Return an engine's own name: vLLM is vllm, llama_cpp llama.cpp; one that is not known stays as it is.

    Raises:
        InputError: no text.
    """
    from kvcalc.engines.checkpoint import engine_named

    read = text(given, what)
    return engine_named(read) if isinstance(read, str) else read


def engine_names(given: Any, what: str) -> tuple[str, ...]:
    """Return the own names of engines of a list separated by commas.

    Raises:
        InputError: no such list.
    """
    return tuple(dict.fromkeys(engine_name(each, what) for each in names(given, what)))
