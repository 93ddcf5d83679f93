"""llama.cpp: what it is asked, what its cache should take, and whether it did."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.formats import FORMATS
from kvcalc.core.units import MIB
from kvcalc.engines.llama_cpp import LlamaCppOptions, layout
from kvcalc.engines.logs import read_log
from kvcalc.measure.engines.start import Start, same_numbers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.measure import LoopCheck
    from kvcalc.engines.llama_cpp import LlamaCppMemory
    from kvcalc.measure.crosscheck import Questions
    from kvcalc.measure.library import Device
    from kvcalc.plan.deployment import Deployment

__all__ = ["printed_checks", "start"]

_CACHE_TYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32"}
_DIGITS = 2
_MAX_LAYERS = 999


def start(deployment: Deployment, asked: Questions, device: Device, *, tokens: int) -> Start:
    """Return llama.cpp's start for a model: sequences with a stream of cells each.

    Args:
        deployment: model and formats; norms and biases are kept in fp32, as llama.cpp wants them.
        asked: batches and rounds.
        device: where it runs.
        tokens: of each sequence, at the end.
    """
    name, sequences = deployment.formats.weights.name, max(asked.batches)
    cache_type = _CACHE_TYPES[name]
    options = LlamaCppOptions(
        context=tokens * sequences, parallel=sequences, cache_type_k=cache_type, cache_type_v=cache_type
    )
    placed = layout(deployment.model, options)
    formats = replace(deployment.formats, parts={**deployment.formats.parts, "vector": FORMATS["fp32"]})

    def checks(results: Mapping[str, Any], log: str) -> list[LoopCheck]:
        del results
        return printed_checks(deployment.model.name, placed, log)

    return Start(
        deployment=replace(deployment, formats=formats),
        kv_bytes=placed.kv_bytes,
        asked={
            "n_ctx": options.context,
            "sequences": sequences,
            "n_batch": options.batch,
            "n_ubatch": options.ubatch,
            "threads": device.threads,
            "gpu_layers": 0 if device.kind == "cpu" else _MAX_LAYERS,
        },
        checks=checks,
    )


def printed_checks(name: str, placed: LlamaCppMemory, log: str) -> list[LoopCheck]:
    """Return whether the cache that llama.cpp prints is the predicted one.

    Args:
        name: the model.
        placed: what was computed from the options.
        log: what it printed: MiB with two digits.
    """
    caches = [cache for start_up in read_log(log) if start_up.engine == "llama.cpp" for cache in start_up.caches]
    printed, cache = caches[-1] if caches else None, placed.caches[0]
    keys, values = (None, None) if printed is None else (printed.keys, printed.values)
    return same_numbers(
        f"{name} in llama.cpp",
        [
            ("cells of a sequence", cache.cells, None if printed is None else printed.cells),
            ("layers with a cache", cache.layers, None if printed is None else printed.layers),
            ("MiB of keys printed", round(cache.k_bytes / MIB, _DIGITS), None if keys is None else keys.value),
            ("MiB of values printed", round(cache.v_bytes / MIB, _DIGITS), None if values is None else values.value),
        ],
    )
