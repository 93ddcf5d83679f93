"""Linear layers in one pass: matrices and routed experts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.cost_types import OpCost
from kvcalc.core.traced import chance_of_any
from kvcalc.cost.parameters import active_experts, expert_matrix_parameters, expert_parameters
from kvcalc.cost.sharding import experts_per_rank, rank_matrix

if TYPE_CHECKING:
    from kvcalc.core.model import Mixture
    from kvcalc.core.workload import Formats, Parallel, Routing
    from kvcalc.cost.parameters import Matrix

__all__ = ["experts_cost", "experts_touched", "matrix_cost", "vector_cost"]


def matrix_cost(matrix: Matrix, *, name: str, tokens: int, layers: int, formats: Formats, tensor: int) -> OpCost:
    """Return the cost of multiplying ``tokens`` vectors with a matrix, in ``layers`` layers, on one rank.

    FLOP = 2 * tokens * elements; the weights are read once.

    Source: Pope et al. 2022, arXiv 2211.05102, section 2 (a matmul costs 2 FLOP for each parameter and token).

    >>> from kvcalc.core.workload import Formats
    >>> from kvcalc.cost.parameters import Matrix
    >>> square = Matrix(name="m", part="mlp", inputs=8, outputs=8, elements=64)
    >>> cost = matrix_cost(square, name="m", tokens=3, layers=2, formats=Formats(), tensor=1)
    >>> cost.flop, cost.weight_bytes, cost.activation_bytes
    (768, 256, 192)
    """
    inputs, outputs, elements = rank_matrix(matrix, tensor)
    read = layers * formats.of(matrix.part).bytes(elements)
    through = layers * tokens * formats.hidden.bytes(inputs + outputs)
    return OpCost(
        name=name,
        part=matrix.part,
        unit=formats.multiplied_as(matrix.part),
        flop=layers * 2 * tokens * elements,
        weight_bytes=read if matrix.stored else 0,
        activation_bytes=through if matrix.stored else through + read,
        calls=layers,
        row_flop=layers * 2 * elements,
    )


def vector_cost(elements: int, *, name: str, layers: int, formats: Formats) -> OpCost:
    """Return the cost of reading a layer's norms, biases and other vectors.

    Source: this project's definition: parameters that scale or shift are bytes to read, and their FLOP are left out
    (linear in the width, where those of a matrix are quadratic).

    >>> from kvcalc.core.workload import Formats
    >>> vector_cost(100, name="vectors", layers=2, formats=Formats()).weight_bytes
    400
    """
    return OpCost(
        name=name,
        part="vector",
        unit=formats.hidden.unit,
        weight_bytes=layers * formats.of("vector").bytes(elements),
    )


def experts_touched(*, experts: int, chosen: int, zero_experts: int, tokens: int, routing: Routing) -> float:
    """Count the distinct experts that ``tokens`` tokens use.

    ``expected``: E * (1 - (1 - k / (E + Z))^n) under uniform routing; ``best``: all tokens choose the same k,
    the Z that do nothing among them; ``worst``: min(E, k * n).

    Source: the expected occupancy: a token misses an expert with probability 1 - k / (E + Z), n independent tokens do
    so with the n-th power of that, and the expectations of E experts add up.

    >>> round(experts_touched(experts=8, chosen=2, zero_experts=0, tokens=4, routing="expected"), 3)
    5.469
    """
    if routing == "worst":
        return min(experts, chosen * tokens)
    share = chosen / (experts + zero_experts)
    if routing == "best":
        return min(experts, max(0, chosen - zero_experts))
    return experts * chance_of_any(share, tokens) if share < 1 else experts


def experts_cost(
    mixture: Mixture,
    *,
    name: str,
    hidden: int,
    tokens: int,
    layers: int,
    formats: Formats,
    parallel: Parallel,
    routing: Routing,
) -> OpCost:
    """Return the cost of the routed experts on the fullest rank.

    Args:
        mixture: the layer's experts.
        name: name of the operator.
        hidden: the model's hidden size.
        tokens: tokens that reach the experts this rank shares with others.
        layers: layers of this kind.
        formats: number formats.
        parallel: how experts are spread.
        routing: which experts are taken to be touched.

    Source: Fedus et al. 2021, arXiv 2101.03961; weights read follow `experts_touched`.

    >>> from kvcalc.core.model import Mixture
    >>> from kvcalc.core.workload import Formats, Parallel
    >>> layer = Mixture(experts=8, experts_per_token=2, width=16)
    >>> cost = experts_cost(layer, name="experts", hidden=8, tokens=1, layers=1, formats=Formats(), parallel=Parallel(),
    ...     routing="expected")
    >>> cost.flop, round(cost.weight_bytes)
    (1536.0, 1536)
    """
    experts, slices = experts_per_rank(mixture, parallel)
    size = expert_parameters(mixture, hidden) / slices
    touched = experts_touched(
        experts=mixture.experts,
        chosen=mixture.experts_per_token,
        zero_experts=mixture.zero_experts,
        tokens=tokens,
        routing=routing,
    )
    on_rank = min(experts, touched) if routing == "worst" else touched * experts / mixture.experts
    active, inputs = active_experts(mixture), mixture.inputs or hidden
    # biases are read but not multiplied
    flop = 2 * tokens * active * expert_matrix_parameters(mixture, hidden) / slices * experts / mixture.experts
    inner = mixture.branches * mixture.width / slices
    rows = tokens * active * experts / mixture.experts
    return OpCost(
        name=name,
        part="experts",
        unit=formats.multiplied_as("experts"),
        flop=layers * flop,
        weight_bytes=layers * formats.of("experts").bytes(on_rank * size),
        activation_bytes=layers * formats.hidden.bytes(rows * (2 * inputs + 2 * inner)),
        calls=layers,
        row_flop=layers * 2 * on_rank * expert_matrix_parameters(mixture, hidden) / slices,
    )
