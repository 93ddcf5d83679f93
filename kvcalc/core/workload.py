"""Token groups, formats and parallelism of a pass."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS, Format
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Formats", "Parallel", "Routing", "TokenGroup", "decode_step", "prefill_pass"]

_MAX_RANKS = 1_000_000

# Which experts a step is taken to touch: the expected number under uniform routing, the fewest, or the most.
Routing = Literal["expected", "best", "worst"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenGroup:
    """Sequences that do the same in one forward pass.

    Args:
        sequences: how many.
        query_tokens: new tokens of each.
        past_tokens: tokens of each already in the cache.
        logit_tokens: tokens of each whose logits are computed (0 for a prefill chunk that is not the last).
        encoder_pass: whether the encoder runs for these sequences first.
    """

    sequences: int
    query_tokens: int
    past_tokens: int = 0
    logit_tokens: int = 1
    encoder_pass: bool = False

    def __post_init__(self) -> None:
        if self.sequences < 1 or self.query_tokens < 1 or self.past_tokens < 0:
            raise InputError(
                f"a pass of {self.sequences} sequences with {self.query_tokens} new and {self.past_tokens} past tokens",
                hint="batch, context and prompt are whole numbers of 1 or more",
            )

    @property
    def tokens(self) -> int:
        """New tokens of the group."""
        return self.sequences * self.query_tokens


def decode_step(*, batch: int, context: int, query_tokens: int = 1) -> TokenGroup:
    """Return the group of one decode step, or of one verification of ``query_tokens - 1`` draft tokens.

    Args:
        batch: sequences.
        context: tokens attended by the first new token, itself included.
        query_tokens: new tokens of each sequence; all of them get logits.
    """
    return TokenGroup(sequences=batch, query_tokens=query_tokens, past_tokens=context - 1, logit_tokens=query_tokens)


def prefill_pass(*, batch: int, prompt: int) -> TokenGroup:
    """Return the group of a whole prompt from nothing, with the logits of its last token."""
    return TokenGroup(sequences=batch, query_tokens=prompt, encoder_pass=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Formats:
    """The formats a model is run in.

    Args:
        weights: format of the parts not named in ``parts``.
        parts: formats of single parts (`Part`).
        recipe: what the weights are called as a whole, where the formats of the parts follow from a name.
        key: format of cached keys and latent vectors.
        value: format of cached values.
        state: format of convolution states, and of recurrent states that do not fix their own.
        recurrent: format of recurrent states that an engine is told; each layer's own where left out.
        activations: format in which hidden states are multiplied with the weights.
        hidden: format in which hidden states are kept and passed on, and in which attention works.
    """

    weights: Format = FORMATS["bf16"]
    parts: Mapping[str, Format] = field(default_factory=dict)
    recipe: str = ""
    key: Format = FORMATS["bf16"]
    value: Format = FORMATS["bf16"]
    state: Format = FORMATS["bf16"]
    recurrent: Format | None = None
    activations: Format = FORMATS["bf16"]
    hidden: Format = FORMATS["bf16"]

    def of(self, part: str) -> Format:
        """Return the format a part's weights are stored in."""
        return self.parts.get(part, self.weights)

    def multiplied_as(self, part: str) -> str:
        """Return the arithmetic format of a part's multiplications: the wider of weights and activations."""
        return _wider(self.of(part), self.activations).unit


def _wider(one: Format, other: Format) -> Format:
    return one if one.bytes_per_element > other.bytes_per_element else other


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """The spread of a model over accelerators.

    Args:
        tensor: ranks that split every layer.
        pipeline: stages that split the layers.
        expert: ranks that split the experts among them; it divides ``tensor * data``.
        data: copies of the attention part, each with its own sequences.
    """

    tensor: int = 1
    pipeline: int = 1
    expert: int = 1
    data: int = 1

    def __post_init__(self) -> None:
        for name in ("tensor", "pipeline", "expert", "data"):
            if not 1 <= getattr(self, name) <= _MAX_RANKS:
                raise InputError(
                    f"{name} parallel size must be from 1 to {_MAX_RANKS:,}, not {getattr(self, name)}",
                    hint="it is a number of GPUs",
                    parameter=f"{name}-parallel",
                )
        if self.expert > 1 and self.tensor * self.data % self.expert:
            raise InputError(
                f"expert parallel size {self.expert} does not divide tensor x data = {self.tensor * self.data}",
                hint="experts are spread over the ranks of tensor and data parallelism",
                parameter="expert-parallel",
            )

    @property
    def exchange_gpus(self) -> int:
        """Accelerators that exchange in each layer: tensor ranks, or those that share out the experts; else stages."""
        return max(self.tensor, self.expert, min(self.pipeline, 2))

    @property
    def gpus(self) -> int:
        """Accelerators in all."""
        return self.tensor * self.pipeline * self.data
