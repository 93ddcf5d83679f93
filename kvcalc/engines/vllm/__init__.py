"""vLLM (V1 engine): the groups, pages and blocks of its cache, and what a rank's memory holds.

The rules were read from vLLM 0.32 and checked against its own code. Not modelled: the cache of draft models, context
parallelism, and engines with blocks outermost (DeepSeek-V4).
"""

from kvcalc.engines.vllm.groups import Group, Layout, layout
from kvcalc.engines.vllm.memory import VERSION, Capacity, capacity, longest_context, needed_bytes
from kvcalc.engines.vllm.options import VllmOptions

__all__ = [
    "VERSION",
    "Capacity",
    "Group",
    "Layout",
    "VllmOptions",
    "capacity",
    "layout",
    "longest_context",
    "needed_bytes",
]
