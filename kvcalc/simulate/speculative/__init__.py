"""Speculative decoding step by step: draft, verify, accept, correct or take the bonus.

A round is one pass of the target over a drafted chain or tree. How it decides is a `Verify` function: `greedy`,
`greedy_tree`, `sampled`, or `by_chance` for acceptance without models. `speculate` runs rounds for one sequence,
`speculate_batch` for several whose acceptance differs.
"""

from kvcalc.simulate.speculative.rounds import (
    BatchRun,
    NextToken,
    Round,
    Run,
    Tokens,
    Verify,
    decode,
    speculate,
    speculate_batch,
)
from kvcalc.simulate.speculative.verify import (
    Candidates,
    Choose,
    NextDistribution,
    by_chance,
    greedy,
    greedy_tree,
    residual,
    sampled,
    seeded,
)

__all__ = [
    "BatchRun",
    "Candidates",
    "Choose",
    "NextDistribution",
    "NextToken",
    "Round",
    "Run",
    "Tokens",
    "Verify",
    "by_chance",
    "decode",
    "greedy",
    "greedy_tree",
    "residual",
    "sampled",
    "seeded",
    "speculate",
    "speculate_batch",
]
