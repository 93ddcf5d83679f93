"""MLPs: the other half of a layer, dense or a mixture of experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["MLPS", "Dense", "Gated", "Mixture", "Mlp"]

_STRICT: dict[str, Any] = {"extra": "forbid", "strict": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dense:
    """An MLP of two matrices: up and down."""

    __pydantic_config__ = _STRICT
    width: int
    shared_weights: bool = False
    kind: Literal["dense"] = "dense"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """An MLP of three matrices: gate, up and down."""

    __pydantic_config__ = _STRICT
    width: int
    shared_weights: bool = False
    kind: Literal["gated"] = "gated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """A mixture of experts.

    Args:
        experts: routed experts held by the layer.
        experts_per_token: of these, how many a token is sent to.
        width: inner width of one routed expert.
        gated: whether an expert has three matrices or two.
        shared_width: inner width of what every token passes beside the routed experts (0 where there is none).
        shared_gate: whether a projection hidden -> 1 scales the shared part.
        zero_experts: choices of the router that do nothing (they take a place among ``experts_per_token``).
        inputs: width the experts work in; the hidden size where left out (else two projections lead there and back).
        expert_bias: whether each expert's matrices have biases.
        router: whether the layer has a router matrix.
    """

    __pydantic_config__ = _STRICT
    experts: int
    experts_per_token: int
    width: int
    gated: bool = True
    shared_width: int = 0
    shared_gate: bool = False
    zero_experts: int = 0
    inputs: int | None = None
    expert_bias: bool = False
    router: bool = True
    kind: Literal["mixture"] = "mixture"

    @property
    def branches(self) -> int:
        """Matrices of an expert that lead to its inner width: gate and up, or up alone."""
        return 2 if self.gated else 1


Mlp = Dense | Gated | Mixture
MLPS: Mapping[str, type[Mlp]] = {"dense": Dense, "gated": Gated, "mixture": Mixture}
