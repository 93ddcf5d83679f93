"""Published factors of throughput over memory, taken apart into what the architecture explains and what remains."""

from __future__ import annotations

from kvcalc.core.model import Block, Full, ModelProfile
from kvcalc.core.reports.levers import HeadlineRow
from kvcalc.core.workload import Formats, Parallel
from kvcalc.plan.levers.changes import hierarchy
from kvcalc.plan.levers.layout import plain_layout

__all__ = ["headline_rows", "memory_factor"]

# PHOTON, arXiv 2512.20687: two levels of 4; throughput over the memory of a sample's cache, in K tokens/s/GiB, against
# a Transformer of the same size, in these two workloads.
_CHUNKS = (4, 4)
_WORKLOADS = ((2048, 128), (128, 2048))
_CLAIMS = (("600M, hierarchical", 416, False), ("1.2B, hierarchical", 475, False), ("recursive", 1000, True))
# Any number of layers that the encoders and decoders can share evenly gives the same factor.
_LAYERS = 16


def memory_factor(*, tokens: int, chunks: tuple[int, ...] = _CHUNKS, recursive: bool = False) -> float:
    """Return the bytes of a Transformer's cache over those of a hierarchy of the same depth and width.

    The layers are taken to be shared out evenly over the levels' encoders and local decoders, all as wide as the
    Transformer; the width then cancels out.

    Source: PHOTON, arXiv 2512.20687: sum over levels of layers * (T / C_1…C_l) * width; of the top level alone where
    generation is recursive; local decoders a bounded window.

    >>> round(memory_factor(tokens=2176), 1), round(memory_factor(tokens=2176, recursive=True), 1)
    (12.5, 57.3)
    """
    block = Block(mixers=(Full(heads=1, kv_heads=1, head_dim=64),))
    model = ModelProfile(name="transformer", architecture="transformer", hidden_size=64, context_limit=None,
                         blocks=(block,) * _LAYERS, embeddings=(), head=None)  # fmt: skip
    flat = plain_layout(model, Formats(), Parallel())
    coarse = hierarchy(flat, chunks, recursive=recursive, shared_depth=True)
    return flat.held_bytes(context=tokens, batch=1) / coarse.held_bytes(context=tokens, batch=1)


def headline_rows() -> tuple[HeadlineRow, ...]:
    """Return PHOTON's published factors at both of its workloads, taken apart."""
    rows = []
    for claim, published, recursive in _CLAIMS:
        for prompt, output in _WORKLOADS:
            factor = memory_factor(tokens=prompt + output, recursive=recursive)
            rows.append(
                HeadlineRow(
                    claim=f"PHOTON {claim}",
                    prompt_tokens=prompt,
                    output_tokens=output,
                    published_factor=published,
                    memory_factor=factor,
                    throughput_factor=published / factor,
                )
            )
    return tuple(rows)
