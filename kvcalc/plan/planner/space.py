"""Ways to spread a replica over GPUs, inside link domains and across them, and the limits it may be started with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.hardware import HardwareProfile, Link
from kvcalc.core.model import Mixture
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import splits_evenly

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile

__all__ = [
    "MAX_REPLICA_GPUS",
    "Limits",
    "across",
    "domain_gpus",
    "in_nodes_of",
    "layouts",
    "limits_of",
    "with_scale_out",
]

MAX_REPLICA_GPUS = 64
_TENSOR = (1, 2, 4, 8, 16)
_STAGES = (1, 2, 4)
_LLAMA_CPP_STAGES = (1, 2, 4, 8)
_COPIES = (2, 4, 8, 16, 32, 64)
# Tokens and sequences of a pass; none leaves the engine its default for the card.
_PASS_TOKENS = (None, 1024, 2048, 4096, 8192, 16384)
_SEQUENCES = (None, 16, 32, 64, 128, 256, 512, 1024)
_LLAMA_CPP_SLOTS = (1, 2, 4, 8, 16, 32, 64, 128)
# A node where neither the profile nor the user says another.
_NODE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that an engine is started with; none where it takes its default.

    Args:
        pass_tokens: tokens of a pass.
        sequences: requests that run at once on each data-parallel copy.
    """

    pass_tokens: int | None
    sequences: int | None


def limits_of(engine: str, *, pass_tokens: int | None = None, sequences: int | None = None) -> tuple[Limits, ...]:
    """Return the limits that an engine may be started with; those that are given alone, where some are.

    >>> len(limits_of("vllm")), len(limits_of("vllm", sequences=64)), len(limits_of("llama.cpp"))
    (48, 6, 8)
    """
    tokens: tuple[int | None, ...] = (None,) if engine == "llama.cpp" else _PASS_TOKENS
    max_sequences: tuple[int | None, ...] = _LLAMA_CPP_SLOTS if engine == "llama.cpp" else _SEQUENCES
    tokens = tokens if pass_tokens is None else (pass_tokens,)
    max_sequences = max_sequences if sequences is None else (sequences,)
    return tuple(Limits(pass_tokens=one, sequences=other) for one, other in product(tokens, max_sequences))


def domain_gpus(hardware: HardwareProfile) -> int:
    """Count the accelerators that its scale-up link joins: 1 where it has none, a node where it does not say."""
    link = hardware.links.get("scale_up")
    return 1 if link is None else (link.gpus or _NODE)


def in_nodes_of(hardware: HardwareProfile, gpus: int) -> HardwareProfile:
    """Return an accelerator in nodes of so many: its scale-up link joins no more, and its other link names the node.

    Raises:
        InputError: a node of none.
    """
    if gpus < 1:
        raise InputError(f"a node has 1 GPU or more, not {gpus}", parameter="nodes-of")
    links = dict(hardware.links)
    link, out = links.get("scale_up"), links.get("scale_out")
    if link is not None and (link.gpus is None or link.gpus > gpus):
        links["scale_up"] = replace(link, gpus=gpus)
    if out is not None:
        links["scale_out"] = replace(out, gpus=gpus)
    return replace(hardware, links=links)


def _most_tensor(hardware: HardwareProfile) -> int:
    """Return the most tensor ranks: over two link domains, or in a node whose cards the other link joins, as PCIe."""
    out = hardware.links.get("scale_out")
    node = 1 if out is None else (out.gpus or _NODE)
    return max(2 * domain_gpus(hardware), node)


def with_scale_out(hardware: HardwareProfile, bytes_per_s: float) -> HardwareProfile:
    """Return an accelerator with another rate of its own link to other nodes.

    Raises:
        InputError: no rate.
    """
    if bytes_per_s <= 0:
        raise InputError("a link between nodes has a rate above 0", parameter="scale-out")
    known = hardware.links.get("scale_out")
    name = "scale-out link" if known is None else known.name
    node = None if known is None else known.gpus
    return replace(hardware, links={**hardware.links, "scale_out": Link(name=name, bytes_per_s=bytes_per_s, gpus=node)})


def across(hardware: HardwareProfile, parallel: Parallel) -> HardwareProfile:
    """Return an accelerator whose scale-out link has the rate that a layout over several domains reaches.

    A bound lets the links of a domain share what crosses. Here an all-reduce goes through the domain, then between
    domains in as many parts as it has accelerators; what is sent to experts elsewhere goes over each one's own link.

    Source: Jia et al. 2018, arXiv 1807.11205, section 4.3 (hierarchical all-reduce).

    >>> card = HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9,
    ...     memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s={"fp16": 1e14},
    ...     links={"scale_up": Link(name="up", bytes_per_s=4e11, gpus=8),
    ...            "scale_out": Link(name="out", bytes_per_s=5e10)})
    >>> [round(across(card, layout).link(layout.exchange_gpus).bytes_per_s / 1e9) for layout in
    ...  (Parallel(tensor=8), Parallel(tensor=16), Parallel(data=16, expert=16))]
    [400, 273, 85]
    """
    inside, outside = hardware.links.get("scale_up"), hardware.links.get("scale_out")
    ranks, domain = parallel.exchange_gpus, domain_gpus(hardware)
    if outside is None or inside is None or ranks <= domain:
        return hardware
    up, out = inside.bytes_per_s, outside.bytes_per_s
    if parallel.data > 1:
        crossing = (ranks - domain) / (ranks - 1)
        reached = 1 / (crossing / out + (1 - crossing) / up)
    else:
        domains = ranks / domain
        taken = (domain - 1) / domain / up + (domains - 1) / domains / domain / out
        reached = (ranks - 1) / ranks / taken
    return replace(hardware, links={**hardware.links, "scale_out": replace(outside, bytes_per_s=reached / domain)})


def layouts(model: ModelProfile, hardware: HardwareProfile, engine: str, *, max_gpus: int) -> Iterator[Parallel]:
    """Yield the ways to spread one replica, fewest GPUs first.

    Tensor ranks share all heads evenly, inside a link domain, over two of them or in a node; a model with experts may
    share these out, and copy its attention. llama.cpp splits the layers alone.
    """
    spreads = set(_stages_alone(model) if engine == "llama.cpp" else _spread(model, hardware))
    yield from sorted(
        (each for each in spreads if each.gpus <= min(max_gpus, MAX_REPLICA_GPUS)),
        key=lambda each: (each.gpus, each.pipeline, each.data, each.expert, each.tensor),
    )


def _stages_alone(model: ModelProfile) -> Iterator[Parallel]:
    yield from (Parallel(pipeline=stages) for stages in _LLAMA_CPP_STAGES if stages <= model.layers)


def _spread(model: ModelProfile, hardware: HardwareProfile) -> Iterator[Parallel]:
    max_tensor = _most_tensor(hardware)
    experts = [block.mlp.experts for block in model.block_counts if isinstance(block.mlp, Mixture)]
    tensors = [size for size in _TENSOR if size <= max_tensor and splits_evenly(model, size)]
    for tensor, stages in product(tensors, _STAGES):
        if stages > model.layers:
            continue
        yield Parallel(tensor=tensor, pipeline=stages)
        if tensor > 1 and experts and all(count % tensor == 0 for count in experts):
            yield Parallel(tensor=tensor, pipeline=stages, expert=tensor)
    for tensor, copies in product(tensors, _COPIES):
        ranks = tensor * copies
        if experts and all(count % ranks == 0 for count in experts):
            yield Parallel(tensor=tensor, data=copies, expert=ranks)
