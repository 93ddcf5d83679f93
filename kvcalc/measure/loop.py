"""Greedy decoding as a loop that advances: the token fed back, the position moved on, nothing asked of the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.measure.clock import Timing, in_turn, recorded

if TYPE_CHECKING:
    from kvcalc.measure.decoder import Cache, Decoder
    from kvcalc.measure.kernels import Plain
    from kvcalc.plan.deployment import Deployment

__all__ = ["Loop", "LoopRun", "on_device", "timed_loop"]


def on_device(cache: Cache, device: str) -> None:
    """Put a cache's position on the device, so that passes over it can be recorded once and run at any position."""
    cache.position = torch.tensor([cache.length], device=device)


class Loop:
    """A decode step with argmax and feedback, recorded once on a GPU and replayed for every token.

    Args:
        decoder: the model.
        cache: its cache, with room for the tokens wanted; where its position stands on the device, the host is not
            asked for anything between two tokens.
        tokens: the token of each sequence (sequences) that is decoded next.
        kernels: the variant of the layers' small operations; the decoder's own where left out.
    """

    def __init__(self, decoder: Decoder, cache: Cache, tokens: Any, *, kernels: Plain | None = None) -> None:
        current = tokens.clone()
        chosen = torch.zeros(cache.batch, cache.capacity + 1, dtype=torch.long, device=decoder.device.kind)
        begin, restore = cache.length, cache.snapshot(rings=True)

        def rewind() -> None:
            restore()
            cache.length = begin
            current.copy_(tokens)

        def advance() -> None:
            run = decoder.new_pass(current[:, None], cache, kernels=kernels)
            logits = decoder.forward(current[:, None], cache, run=run)
            current.copy_(logits[:, -1].argmax(dim=-1))
            if cache.position is None:
                chosen[:, cache.length] = current
            else:
                chosen.index_copy_(1, cache.position, current[:, None])
            cache.advance(1)

        # calls that know nothing of the loop itself: with it goes all they hold
        self._chosen, self._begin, self._eager = chosen, begin, advance
        self.rewind = rewind
        self.step, self.in_graph = recorded(advance, decoder.device, reset=rewind)
        rewind()

    def run(self, count: int, *, eager: bool = False) -> Any:
        """Decode so many tokens from the beginning and give them back (sequences x ``count``).

        Args:
            count: tokens of each sequence.
            eager: whether the kernels are started one by one where there is a graph.
        """
        self.rewind()
        step = self._eager if eager else self.step
        for _ in range(count):
            step()
        return self._chosen[:, self._begin : self._begin + count]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopRun:
    """Tokens decoded in a row, as they were timed.

    Args:
        deployment: model and formats.
        kernels: the variant's name.
        batch: sequences.
        context: tokens that the first step attends to.
        tokens: of each sequence.
        in_graph: whether every token was a replay of one graph.
        identical: whether they are those of the same kernels started one by one.
        timing: the repetitions.
    """

    deployment: Deployment
    kernels: str
    batch: int
    context: int
    tokens: int
    in_graph: bool
    identical: bool
    timing: Timing


def timed_loop(
    deployment: Deployment,
    decoder: Decoder,
    kernels: Plain,
    *,
    batch: int,
    context: int,
    tokens: int,
    rounds: int = 3,
) -> LoopRun:
    """Time so many tokens in a row after a filled cache.

    On a GPU the position stands on the device and one graph is replayed for all tokens.

    Args:
        deployment: model and formats.
        decoder: the model with its weights.
        kernels: the variant of the layers' small operations.
        batch: sequences.
        context: tokens that the first step attends to.
        tokens: of each sequence.
        rounds: repetitions.
    """
    device = decoder.device
    cache = decoder.new_cache(batch=batch, capacity=context + tokens - 1)
    cache.fill(decoder.make)
    cache.length = context - 1
    first = torch.randint(0, decoder.vocabulary, (batch,), generator=torch.Generator().manual_seed(batch))
    if device.kind == "cuda":
        on_device(cache, device.kind)
    loop = Loop(decoder, cache, first.to(device.kind), kernels=kernels)
    chosen = loop.run(tokens).clone()
    return LoopRun(
        deployment=deployment,
        kernels=kernels.name,
        batch=batch,
        context=context,
        tokens=tokens,
        in_graph=loop.in_graph,
        identical=bool(chosen.equal(loop.run(tokens, eager=True))),
        timing=in_turn([lambda: loop.run(tokens)], rounds=rounds, device=device)[0],
    )
