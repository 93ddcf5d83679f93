"""The words that start llama.cpp's server with a file and a context: one place for placements and for plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.llama_cpp.options import LlamaCppOptions

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["server_words"]

_DEFAULTS = LlamaCppOptions()
# kvcalc's names of cache types, as llama.cpp spells them.
_TYPES = {"fp32": "f32", "fp16": "f16"}


def server_words(file: str, context: LlamaCppOptions) -> Iterator[str]:
    """Yield the words of ``llama-server`` for a file and a context; what equals its defaults is left out.

    The number of sequences is always said: its own depends on the machine.

    Source: llama.cpp commit 0c1e57098bba, ``common/arg.cpp``.

    Args:
        file: the model's file.
        context: the options of the context; a length of 0 is the one that the model was trained with.

    >>> " ".join(server_words("x.gguf", LlamaCppOptions(context=8192, cache_type_k="q8_0")))
    'llama-server -m x.gguf -c 8192 -np 1 --no-kv-unified -ctk q8_0'
    """
    yield from ("llama-server", "-m", file, "-c", str(context.context), "-np", str(context.parallel))
    yield "-kvu" if context.kv_unified else "--no-kv-unified"
    for flag, name in (("-ctk", "cache_type_k"), ("-ctv", "cache_type_v"), ("-fa", "flash_attn"), ("-b", "batch"),
                       ("-ub", "ubatch")):  # fmt: skip
        value = getattr(context, name)
        if value != getattr(_DEFAULTS, name):
            yield from (flag, _TYPES.get(value, str(value)))
    if context.swa_full:
        yield "--swa-full"
