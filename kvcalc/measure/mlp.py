"""MLPs: plain, gated, and mixtures of experts that read only the experts their tokens chose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from kvcalc.core.model import Gated, Mixture

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import Dense
    from kvcalc.measure.attention import Pass
    from kvcalc.measure.library import Device
    from kvcalc.measure.weights import WeightMaker

__all__ = ["Experts", "PlainMlp"]


def _inner(projected: Any, *, gated: bool) -> Any:
    """Return the inner vectors of what was projected up: half of it gates the other half, or an activation alone."""
    if not gated:
        return F.gelu(projected)
    gate, up = projected.chunk(2, dim=-1)
    return F.silu(gate) * up


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
        """Return what is added to the hidden states."""
        del run
        return self.down(_inner(self.up(hidden), gated=self.gated))


def _can_group(dtype: Any) -> bool:
    """Whether torch has a kernel for grouped multiplications here: elsewhere it waits for the host group by group."""
    return hasattr(torch, "_grouped_mm") and dtype == torch.bfloat16 and torch.cuda.get_device_capability() >= (9, 0)


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
        if self.grouped:
            self.ups = make.tensor(count, inner, hidden, scale=1 / math.sqrt(hidden))
            self.downs = make.tensor(count, hidden, mixture.width, scale=1 / math.sqrt(mixture.width))
            return
        self.ups = [make.linear(hidden, inner, None if up_bias is None else up_bias[at]) for at in range(count)]
        self.downs = [
            make.linear(mixture.width, hidden, None if down_bias is None else down_bias[at]) for at in range(count)
        ]

    def __call__(self, hidden: Any, run: Pass) -> Any:
        """Return what is added to the hidden states."""
        flat = hidden.reshape(-1, hidden.shape[-1])
        scores = torch.softmax(self.router(flat).float(), dim=-1)
        shares, chosen = scores.topk(self.mixture.experts_per_token, dim=-1)
        shares = (shares / shares.sum(-1, keepdim=True)).to(hidden.dtype)
        if run.touched is not None:
            run.touched.append(int(chosen.unique().numel()))
        mixed = self._grouped(flat, chosen, shares) if self.grouped else self._one_by_one(flat, chosen, shares)
        if self.shared is not None:
            beside = self.shared(flat, run)
            if self.shared_gate is not None:
                beside = beside * torch.sigmoid(self.shared_gate(flat))
            mixed = mixed + beside
        return mixed.reshape(hidden.shape)

    def _one_by_one(self, flat: Any, chosen: Any, shares: Any) -> Any:
        mixed = torch.zeros_like(flat)
        by_expert: dict[int, list[tuple[int, int]]] = {}
        for row, experts in enumerate(chosen.tolist()):
            for place, expert in enumerate(experts):
                by_expert.setdefault(expert, []).append((row, place))
        for expert, pairs in sorted(by_expert.items()):
            rows, places = torch.tensor(pairs, device=flat.device).unbind(1)
            inner = _inner(self.ups[expert](flat[rows]), gated=self.mixture.gated)
            mixed.index_add_(0, rows, self.downs[expert](inner) * shares[rows, places, None])
        return mixed

    def _grouped(self, flat: Any, chosen: Any, shares: Any) -> Any:
        """Sort tokens by expert and multiply group by group; nothing waits for the host, so graphs can hold it."""
        count = self.mixture.experts
        order = chosen.flatten().argsort(stable=True)
        experts = chosen.flatten()[order]
        numbers = torch.arange(count, device=flat.device)
        ends = (experts[:, None] <= numbers).sum(0).to(torch.int32)
        rows = order // self.mixture.experts_per_token
        up_bias, down_bias = self.biases
        inner = torch._grouped_mm(flat[rows], self.ups.transpose(-2, -1), offs=ends)  # noqa: SLF001  no public name yet
        inner = _inner(inner if up_bias is None else inner + up_bias[experts], gated=self.mixture.gated)
        found = torch._grouped_mm(inner, self.downs.transpose(-2, -1), offs=ends)  # noqa: SLF001
        found = found if down_bias is None else found + down_bias[experts]
        return torch.zeros_like(flat).index_add_(0, rows, found * shares.flatten()[order, None])
