"""Bytes of a model's weights and context on each device and the host, as llama.cpp loads it by its options."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from kvcalc.engines.llama_cpp.backends import CPU, stored_bytes
from kvcalc.engines.llama_cpp.overrides import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.engines.llama_cpp.backends import Backend
    from kvcalc.engines.llama_cpp.layout import LlamaCppMemory
    from kvcalc.engines.llama_cpp.placement import Placement

__all__ = ["place_context"]


def place_context(
    memory: LlamaCppMemory, placement: Placement, backends: Sequence[Backend]
) -> Mapping[int | None, int]:
    """Return the bytes of caches and states on each device, by index, and on the host, under none.

    Source: llama.cpp commit 0c1e57098bba, the constructors of ``llama_kv_cache`` and ``llama_memory_recurrent``.

    Args:
        memory: the context's caches and states.
        placement: the places of its layers.
        backends: the back end of each device.
    """
    sums: Counter[int | None] = Counter(dict.fromkeys((*range(placement.devices), HOST), 0))
    for tensor in memory.tensors:
        home = placement.of_cache(tensor.layer)
        backend = CPU if home is HOST else backends[home]
        sums[home] += stored_bytes(tensor.size, width=tensor.width, form=tensor.form, backend=backend)
    return sums
