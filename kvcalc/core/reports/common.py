"""Parts that several reports have in common."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ExplainedStep", "RunFormats"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedStep:
    """One formula with its numbers put in.

    Args:
        quantity: what is computed.
        formula: the formula in words and symbols.
        expression: the same with numbers, as arithmetic that can be evaluated.
        value: the result.
        unit: its unit.
        sources: where the numbers come from.
    """

    quantity: str
    formula: str
    expression: str
    value: float
    unit: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFormats:
    """Names of the formats a report was computed with."""

    weights: str
    kv: str
    activations: str
