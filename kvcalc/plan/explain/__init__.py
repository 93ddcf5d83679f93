"""Each number with its formula, the numbers put in, and their sources.

The expressions are arithmetic that evaluates to the value they explain; the values are the calculation's own. The tests
evaluate the expressions, so an explanation cannot drift away from the calculation. Of names, only ``max`` and ``min``
stand in them; ``-(-x // y)`` is x / y rounded up.
"""

from __future__ import annotations

from kvcalc.plan.explain.passes import explain_decode, explain_prefill
from kvcalc.plan.explain.size import explain_size
from kvcalc.plan.explain.speculative import explain_speculation
from kvcalc.plan.explain.times import explain_roofline

__all__ = ["explain_decode", "explain_prefill", "explain_roofline", "explain_size", "explain_speculation"]
