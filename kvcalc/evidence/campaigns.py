"""Campaigns: measurements made together, so that none is both fitted and judged by."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from kvcalc.evidence.names import engine_rules
from kvcalc.evidence.record import short_source

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.evidence.record import Record

__all__ = ["campaign", "engine_of", "shared_weights"]

# Sources that gather the runs of many accelerators, engines and models, some of them in two files.
_GATHERED = "ai-dynamo/aiconfigurator"
# Engines that are another one inside: NIM runs TensorRT-LLM, the others llama.cpp.
_ENGINES = {
    "trtllm": "tensorrt-llm",
    "nvidia nim": "tensorrt-llm",
    **dict.fromkeys(
        ("ollama", "llamafile", "koboldcpp", "llama-bench", "llama-server", "llama-cpp-python"), "llama.cpp"
    ),
}


def engine_of(record: Record) -> str:
    """Return the engine of a record as calibrations name it; kernels on their own run in none.

    The Vulkan backend of llama.cpp is an engine of its own: on the same card it reaches other rates.
    """
    if record.suite == "kernels":
        return "kernels"
    printed = engine_rules(record.engine).name
    name = _ENGINES.get(printed, printed)
    return "llama.cpp-vulkan" if name == "llama.cpp" and "vulkan" in record.engine.lower() else name


def campaign(record: Record) -> str:
    """Return the source of a record; of one that gathers many runs, with accelerator, engine, model and format.

    Kernels of one file are told apart by what they do.
    """
    source = short_source(record.source)
    if record.suite == "kernels":
        return f"{source} {record.phase}"
    if not source.startswith(_GATHERED):
        return source
    run = (_GATHERED, record.hardware, engine_of(record), record.model.rpartition("/")[2], record.weights or "")
    return " ".join(run).strip().lower()


def shared_weights(groups: Sequence[str]) -> list[float]:
    """Return weights of samples, by their groups, that add up to one; of each group in all the root of its size.

    >>> shared_weights(["a", "a", "a", "a", "b"])
    [0.16666666666666666, 0.16666666666666666, 0.16666666666666666, 0.16666666666666666, 0.3333333333333333]
    """
    counts = Counter(groups)
    whole = sum(math.sqrt(count) for count in counts.values())
    return [1 / math.sqrt(counts[name]) / whole for name in groups]
