"""Costs of a forward pass: operators, their sums, and the least time they take."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.sums import added

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.hardware import HardwareProfile, Link

__all__ = ["LIMITERS", "OpCost", "PlacedStage", "StepCost", "StepEstimate", "StepTime"]

# What the least time of a pass can be made of.
LIMITERS = ("compute", "memory", "interconnect")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """One kind of operator over all layers of a kind, in one pass, on one rank.

    Args:
        name: for example ``attention.query``.
        part: what it belongs to, for sums: ``attention``, ``mlp``, ``experts``, ``head`` …
        unit: arithmetic format of its multiplications, which picks the peak.
        flop: floating-point operations; a multiply-add is 2.
        weight_bytes: weights read; of a lookup table, the rows.
        kv_read_bytes: cache and states read.
        kv_write_bytes: new cache entries and states written.
        io_bytes: what else must cross the memory whatever is fused: the logits.
        activation_bytes: what passes between operators that run one by one.
        link_bytes: the least that must cross this rank's link in one direction.
        collective_bytes: what a ring collective sends over it.
        collective_steps: messages that follow each other, each with the link's latency.
        direct_bytes: of sums over ranks, what it sends if each rank sends all others its whole vector, in one step.
        calls: how often it is run: the layers of its kind.
        row_flop: FLOP of one row more for each matrix that is multiplied: those of a token, of all experts touched.
    """

    name: str
    part: str
    unit: str = "bf16"
    flop: float = 0
    weight_bytes: float = 0
    kv_read_bytes: float = 0
    kv_write_bytes: float = 0
    io_bytes: float = 0
    activation_bytes: float = 0
    link_bytes: float = 0
    collective_bytes: float = 0
    collective_steps: int = 0
    direct_bytes: float = 0
    calls: int = 1
    row_flop: float = 0

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that must be moved even if everything were fused."""
        return self.weight_bytes + self.kv_read_bytes + self.kv_write_bytes + self.io_bytes

    @property
    def moved_bytes(self) -> float:
        """Bytes moved when this operator runs on its own."""
        return self.compulsory_bytes + self.activation_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """A forward pass.

    Args:
        rank_kinds: the busiest first: how many ranks of a stage do alike, and for each pipeline stage the operators of
            one of them. Kinds differ where a batch cannot be dealt evenly to data-parallel ranks.
        tokens: new tokens of the pass, over all its sequences.
        layers: layers that a token passes, over all stages; an encoder's where it runs.
        exchange_gpus: accelerators that exchange in each layer (`Parallel.exchange_gpus`): it decides over which link.
        logits: tokens whose logits are computed.
    """

    rank_kinds: tuple[tuple[int, tuple[tuple[OpCost, ...], ...]], ...]
    tokens: int
    layers: int = 0
    exchange_gpus: int = 1
    logits: int = 0

    @property
    def stages(self) -> tuple[tuple[OpCost, ...], ...]:
        """For each pipeline stage, the operators of its busiest rank."""
        return self.rank_kinds[0][1]

    @property
    def ranks(self) -> int:
        """Ranks of a stage."""
        return sum(ranks for ranks, _ in self.rank_kinds)

    @property
    def gpus(self) -> int:
        """Ranks of all stages."""
        return self.ranks * len(self.stages)

    @property
    def ops(self) -> tuple[OpCost, ...]:
        """Operators of all stages, as the busiest rank runs them."""
        return tuple(op for stage in self.stages for op in stage)

    def total(self, field_name: str, *, part: str | None = None) -> float:
        """Sum a field of `OpCost` over operators, stages and ranks, or over one part of the model."""
        summed = 0.0
        for ranks, stages in self.rank_kinds:
            ops = (op for stage in stages for op in stage if part is None or op.part == part)
            summed += ranks * added(getattr(op, field_name) for op in ops)
        return summed

    @property
    def flop(self) -> float:
        """Floating-point operations of the pass."""
        return self.total("flop")

    @property
    def compulsory_bytes(self) -> float:
        """Bytes that must cross the memories."""
        return self.total("compulsory_bytes")

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the parts, in order of first appearance."""
        return tuple(dict.fromkeys(op.part for op in self.ops))


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedStage:
    """A stage of a pass and where it runs.

    Args:
        ops: operators of its busiest rank.
        hardware: the accelerator, or the host.
        link: what its collectives and its incoming bytes cross.
        layers: layers that a token passes in it.
        place: a device by index; none for the host, and where all stages run on alike accelerators.
    """

    ops: tuple[OpCost, ...]
    hardware: HardwareProfile
    link: Link | None = None
    layers: float = 0
    place: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """The least time of a pass.

    Args:
        ideal_s: everything overlapped: the largest of the three totals below. No honest measurement beats it.
        latency_s: the same for one token of one sequence, which passes the pipeline's stages one after another.
        serial_s: operator after operator, collectives included.
        compute_s: sum of FLOP over peak.
        memory_s: compulsory bytes over bandwidth.
        link_s: least link bytes over link rate.
        limiter: ``compute``, ``memory`` or ``interconnect``: the largest.
        slowest_stage: which pipeline stage the totals are of, counted from 0.
        shares: each of the three as a share of ``ideal_s``.
    """

    ideal_s: float
    latency_s: float
    serial_s: float
    compute_s: float
    memory_s: float
    link_s: float
    limiter: str
    slowest_stage: int
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """The time of a pass by measured efficiencies, all stages one after another.

    Args:
        estimate_s: the estimate, never below the bound.
        low_s: one measurement of ten is faster.
        high_s: one measurement of ten is slower.
    """

    estimate_s: float
    low_s: float
    high_s: float
