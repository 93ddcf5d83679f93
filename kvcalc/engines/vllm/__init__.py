"""vLLM (V1 engine): the groups, pages and blocks of its cache, and what a rank's memory holds.

The rules were read from vLLM 0.32 and 0.33 and checked against their own code. Not modelled: prefill context
parallelism.
"""

from kvcalc.engines.vllm.groups import Group, Layout, layout, stage_layouts
from kvcalc.engines.vllm.memory import Capacity, capacity, longest_context, memory_to_start
from kvcalc.engines.vllm.options import VllmOptions
from kvcalc.engines.vllm.releases import VERSION, checks_all_layers, default_utilization

__all__ = [
    "VERSION",
    "Capacity",
    "Group",
    "Layout",
    "VllmOptions",
    "capacity",
    "checks_all_layers",
    "default_utilization",
    "layout",
    "longest_context",
    "memory_to_start",
    "stage_layouts",
]
