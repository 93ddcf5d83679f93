"""``kvcalc traffic``: bytes read to generate tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.readers import count, count_from_zero
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.groups import MODEL, WITH, Run

if TYPE_CHECKING:
    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.arguments import Count

__all__ = ["Traffic", "traffic"]


class Traffic(Run):
    """Bytes read to generate tokens: weights at every step, a cache that grows.

    Example: kvcalc traffic --model llama2-7b --prompt 0 --output-tokens 4096
    """

    model: str = MODEL
    prompt: int = param(
        "--prompt", help="Prompt length (ISL) in tokens; 0 for none.", read=count_from_zero, default="0"
    )
    output_tokens: int = param(
        "--output-tokens", help="Tokens generated per sequence (OSL).", read=count, default="1024"
    )
    batch: int = param(
        "--batch", help="Batch size; the sequences share weight reads, not KV reads.", read=count, default="1"
    )
    window: str | None = param("--window", help="Keep only the last N tokens: --with window=N.")
    budget: str | None = param("--budget", help="Evict down to N tokens: --with evict=N.")
    chunk: str | None = param("--chunk", help="One state per N tokens (16, 4x4): --with hierarchy=N.")
    with_levers: str = WITH
    has_chart = True

    def answer(self) -> Answer:
        """Return the bytes read."""
        named = {"window": self.window, "evict": self.budget, "hierarchy": self.chunk}
        levers = [f"{name}={value}" for name, value in named.items() if value is not None]
        return Answer(
            traffic(
                self.deployment(),
                prompt_tokens=self.prompt,
                output_tokens=self.output_tokens,
                batch=self.batch,
                with_levers=",".join([*([self.with_levers] if self.with_levers else []), *levers]),
            )
        )


def traffic(
    deployment: Deployment, *, output_tokens: Count, prompt_tokens: Count = 0, batch: Count = 1, with_levers: str = ""
) -> TrafficReport:
    """Return the bytes read to generate tokens after a prompt: weights once a step, the cache at every length.

    Args:
        deployment: model, formats and parallel sizes; no accelerator is needed.
        output_tokens: tokens generated for each sequence.
        prompt_tokens: tokens of each prompt; 0 for none.
        batch: sequences.
        with_levers: changes to the cache, as for `levers`.

    Raises:
        InputError: fewer than one output token or sequence, or a lever that has nothing to act on.
    """
    from kvcalc.plan.traffic import traffic_report
    from kvcalc.questions.arguments import deployed, one

    return traffic_report(
        deployed(deployment),
        prompt_tokens=one(prompt_tokens, "prompt", from_zero=True),
        output_tokens=one(output_tokens, "output-tokens"),
        batch=one(batch, "batch"),
        levers=with_levers,
    )
