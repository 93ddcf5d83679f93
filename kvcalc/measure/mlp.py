"""MLPs: plain, gated, and mixtures of experts that read only the experts their tokens chose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from kvcalc.core.model import Gated, Mixture
from kvcalc.measure.weights import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Dense
    from kvcalc.measure.attention import Pass
    from kvcalc.measure.library import Device
    from kvcalc.measure.weights import WeightMaker

__all__ = ["Experts", "PlainMlp"]

# Generations that torch's grouped multiplication has a kernel for: data-centre Hopper and Blackwell, no consumer cards.
_GROUPING_MAJORS = (9, 10)


def _inner(projected: Any, run: Pass, *, gated: bool) -> Any:
    """The inner vectors of what was projected up: half of it gates the other half, or an activation alone."""
    return run.kernels.gated(projected) if gated else F.gelu(projected)


class PlainMlp:
    """An MLP of two or three matrices; gate and up stand in one."""

    def __init__(self, width: int, hidden: int, make: WeightMaker, vectors: Mapping[str, Any], *, gated: bool) -> None:
        self.gated = gated
        self.up = make.linear(hidden, (2 if gated else 1) * width, vectors.get("up_bias"))
        self.down = make.linear(width, hidden, vectors.get("down_bias"))

    @classmethod
    def of(cls, mlp: Dense | Gated, hidden: int, make: WeightMaker, vectors: Mapping[str, Any]) -> PlainMlp:
        """Return the MLP of a profile."""
        return cls(mlp.width, hidden, make, vectors, gated=isinstance(mlp, Gated))

    def __call__(self, hidden: Any, run: Pass) -> Any:
        """Return the sum to add to the hidden states."""
        return self.down(_inner(self.up(hidden), run, gated=self.gated))


def _can_group(dtype: Any) -> bool:
    """Whether torch has a kernel for grouped multiplications here: elsewhere it waits for the host group by group."""
    major, _ = torch.cuda.get_device_capability()
    return hasattr(torch, "_grouped_mm") and dtype == torch.bfloat16 and major in _GROUPING_MAJORS


class Experts:
    """A mixture of experts, with what every token passes beside them.

    On a GPU that has it, all chosen experts are one grouped multiplication; else they run one after another.
    """

    def __init__(
        self, mixture: Mixture, hidden: int, make: WeightMaker, vectors: Mapping[str, Any], device: Device
    ) -> None:
        self.mixture = mixture
        self.vectors = vectors
        inner, count = mixture.branches * mixture.width, mixture.experts
        self.router = make.linear(hidden, count, vectors.get("router_bias"))
        self.shared = self.shared_gate = None
        if mixture.shared_width:
            self.shared = PlainMlp(mixture.shared_width, hidden, make, {}, gated=mixture.gated)
        if mixture.shared_gate:
            self.shared_gate = make.linear(hidden, 1)
        up_bias = make.tensor(count, inner, scale=0.02) if mixture.expert_bias else None
        down_bias = make.tensor(count, hidden, scale=0.02) if mixture.expert_bias else None
        self.biases = (up_bias, down_bias)
        self.grouped = device.kind == "cuda" and _can_group(self.router.weight.dtype)
        shapes = ((inner, hidden, up_bias), (hidden, mixture.width, down_bias))
        if self.grouped:
            self.stacks = [
                make.tensor(count, rows, columns, scale=1 / math.sqrt(columns)) for rows, columns, _ in shapes
            ]
            matrices = [list(stack) for stack in self.stacks]
            self.ups, self.downs = (
                [Linear(weight=matrix, bias=None if bias is None else bias[at]) for at, matrix in enumerate(stack)]
                for stack, bias in zip(matrices, self.biases, strict=True)
            )
            return
        self.ups, self.downs = (
            [make.linear(columns, rows, None if bias is None else bias[at]) for at in range(count)]
            for rows, columns, bias in shapes
        )

    def __call__(self, hidden: Any, run: Pass) -> Any:
        """Return the sum to add to the hidden states."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        chosen, shares = self.routed(flat)
        if run.touched is not None:
            run.touched.append(int(chosen.unique().numel()))
        mixed = self.mixed(flat, chosen, shares, run, grouped=self.grouped)
        if self.shared is not None:
            beside = self.shared(flat, run)
            if self.shared_gate is not None:
                beside = beside * torch.sigmoid(self.shared_gate(flat))
            mixed = mixed + beside
        return mixed.reshape(hidden.shape)

    def routed(self, flat: Any) -> tuple[Any, Any]:
        """Choose experts for tokens: which (tokens x experts per token), and how much each counts."""
        scores = torch.softmax(self.router(flat).float(), dim=-1)
        shares, chosen = scores.topk(self.mixture.experts_per_token, dim=-1)
        return chosen, (shares / shares.sum(-1, keepdim=True)).to(flat.dtype)

    def mixed(self, flat: Any, chosen: Any, shares: Any, run: Pass, *, grouped: bool) -> Any:
        """Mix what the chosen experts make of tokens, either way: grouped, or one expert after another.

        Args:
            flat: tokens x width.
            chosen: the experts of each token (tokens x experts per token).
            shares: how much each of them counts, of the same shape.
            run: the pass.
            grouped: which way.
        """
        way = self._grouped if grouped else self._one_by_one
        return way(flat, chosen, shares, run)

    def _one_by_one(self, flat: Any, chosen: Any, shares: Any, run: Pass) -> Any:
        mixed = torch.zeros_like(flat)
        by_expert: dict[int, list[tuple[int, int]]] = {}
        for row, experts in enumerate(chosen.tolist()):
            for index, expert in enumerate(experts):
                by_expert.setdefault(expert, []).append((row, index))
        for expert, pairs in sorted(by_expert.items()):
            rows, places = torch.tensor(pairs, device=run.device.kind).unbind(1)
            inner = _inner(self.ups[expert](flat[rows]), run, gated=self.mixture.gated)
            mixed.index_add_(0, rows, self.downs[expert](inner) * shares[rows, places, None])
        return mixed

    def _grouped(self, flat: Any, chosen: Any, shares: Any, run: Pass) -> Any:
        """Sort tokens by expert and multiply group by group; nothing waits for the host, so graphs can hold it."""
        count = self.mixture.experts
        order = chosen.flatten().argsort(stable=True)
        experts = chosen.flatten()[order]
        numbers = torch.arange(count, device=run.device.kind)
        ends = (experts[:, None] <= numbers).sum(0).to(torch.int32)
        rows = order // self.mixture.experts_per_token
        up_bias, down_bias = self.biases
        inner = torch._grouped_mm(flat[rows], self.stacks[0].mT, offs=ends)  # noqa: SLF001  no public name yet
        inner = _inner(inner if up_bias is None else inner + up_bias[experts], run, gated=self.mixture.gated)
        read = torch._grouped_mm(inner, self.stacks[1].mT, offs=ends)  # noqa: SLF001
        read = read if down_bias is None else read + down_bias[experts]
        return torch.zeros_like(flat).index_add_(0, rows, read * shares.flatten()[order, None])
