"""llama.cpp: its KV caches and recurrent states, byte for byte.

From a profile and the options of a context follow the caches that llama.cpp allocates: how many cells, in how many
streams, and the bytes of keys and values; and the states of recurrent layers (`layout`). Beside them stand the places
of layers (`placement`), the weights of each device (`weights`) and its compute buffers (`compute`). BERT, diffusion
models and hybrids with windows are not described.
"""

from __future__ import annotations

from kvcalc.engines.llama_cpp.layout import (
    Cache,
    CompressorState,
    LlamaCppMemory,
    RecurrentState,
    layout,
    option_notes,
)
from kvcalc.engines.llama_cpp.options import CACHE_TYPES, MAX_SEQUENCES, VERSION, LlamaCppOptions, asked_options

__all__ = [
    "CACHE_TYPES",
    "MAX_SEQUENCES",
    "VERSION",
    "Cache",
    "CompressorState",
    "LlamaCppMemory",
    "LlamaCppOptions",
    "RecurrentState",
    "asked_options",
    "layout",
    "option_notes",
]
