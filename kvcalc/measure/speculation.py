"""Greedy speculative decoding with a real draft model: the same tokens, in fewer passes of the target."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Full, Latent
from kvcalc.measure.decoder import decode_one_token, prefill, verify

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.measure.decoder import Decoder

__all__ = ["Generated", "check_rollback", "plain_decode", "speculative_decode"]


@dataclass(slots=True, kw_only=True)
class Generated:
    """What greedy decoding of one sequence gave, and what it took.

    Args:
        tokens: the tokens after the prompt.
        target_s: time of each pass of the target after the prompt.
        draft_s: time of each pass of the draft.
        drafted: tokens that were proposed and looked at: those accepted and the first refused of each pass.
        accepted: of these, how many the target would have chosen itself.
        seconds: wall time after the prompt.
    """

    tokens: list[int] = field(default_factory=list)
    target_s: list[float] = field(default_factory=list)
    draft_s: list[float] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0


def check_rollback(model: ModelProfile) -> None:
    """Refuse models whose caches forget: refused tokens could not be taken back.

    Raises:
        UnsupportedError: a layer with a window, a chunk or a state.
    """
    kinds = {
        mixer.kind for block in model.block_counts for mixer in block.mixers if not isinstance(mixer, Full | Latent)
    }
    if kinds:
        raise UnsupportedError(
            f"{model.name}: refused tokens cannot be taken back from {' and '.join(sorted(kinds))} layers",
            hint="speculation is measured where every layer keeps all tokens",
        )


def plain_decode(decoder: Decoder, prompt: Sequence[int], *, count: int) -> Generated:
    """Decode greedily, a token a pass.

    Args:
        decoder: the model.
        prompt: its tokens.
        count: tokens wanted.
    """
    cache = decoder.new_cache(batch=1, capacity=len(prompt) + count)
    logits = prefill(decoder, _row(prompt, decoder), cache)
    found = Generated(tokens=[int(logits[0, -1].argmax())])
    begun = time.perf_counter()
    while len(found.tokens) < count:
        start = time.perf_counter()
        logits = decode_one_token(decoder, _row(found.tokens[-1:], decoder)[0], cache)
        found.tokens.append(int(logits[0].argmax()))
        found.target_s.append(time.perf_counter() - start)
    found.seconds = time.perf_counter() - begun
    return found


def speculative_decode(
    target: Decoder,
    draft: Decoder,
    prompt: Sequence[int],
    *,
    count: int,
    gamma: int,
    hinted: Sequence[int] = (),
    acceptance: float = 0.0,
    seed: int = 0,
) -> Generated:
    """Decode greedily, with proposals of a draft model that the target verifies in one pass.

    Random weights agree on next to nothing. To measure at an acceptance that real models reach, a proposal is replaced
    with the token of ``hinted`` with probability ``acceptance``; the draft's passes are run all the same.

    Args:
        target: the model.
        draft: the draft model; it knows the same tokens.
        prompt: tokens of the prompt.
        count: tokens wanted.
        gamma: proposals for each pass of the target.
        hinted: what the target is known to choose; where rounding makes a verification choose otherwise, what follows
            is looked up by plain decoding, in time that does not count.
        acceptance: how often a proposal is taken from there.
        seed: of that choice.

    Raises:
        UnsupportedError: a model whose cache forgets.
        InputError: the models do not know the same tokens.
    """
    for decoder in (target, draft):
        check_rollback(decoder.model)
    if target.vocabulary != draft.vocabulary:
        raise InputError(f"the draft knows {draft.vocabulary:,} tokens and the target {target.vocabulary:,}")
    chance = random.Random(seed)  # noqa: S311  a choice that is the same in every run
    capacity = len(prompt) + count + gamma + 1
    caches = [decoder.new_cache(batch=1, capacity=capacity) for decoder in (target, draft)]
    logits = prefill(target, _row(prompt, target), caches[0])
    prefill(draft, _row(prompt, draft), caches[1])
    found = Generated(tokens=[int(logits[0, -1].argmax())])
    begun = time.perf_counter()
    while len(found.tokens) < count:
        known = [*prompt, *found.tokens]
        if hinted and list(hinted[: len(found.tokens)]) != found.tokens:
            start = time.perf_counter()
            hinted = [*found.tokens, *plain_decode(target, known, count=gamma).tokens]
            begun += time.perf_counter() - start
        proposed: list[int] = []
        while len(proposed) < gamma:
            start = time.perf_counter()
            fed = [*known, *proposed][caches[1].length :]
            guess = int(verify(draft, _row(fed, draft), caches[1])[0, -1].argmax())
            found.draft_s.append(time.perf_counter() - start)
            at = len(found.tokens) + len(proposed)
            proposed.append(hinted[at] if at < len(hinted) and chance.random() < acceptance else guess)
        start = time.perf_counter()
        logits = verify(target, _row([known[-1], *proposed], target), caches[0])
        chosen = logits[0].argmax(dim=-1).tolist()
        found.target_s.append(time.perf_counter() - start)
        agreed = next((at for at, token in enumerate(proposed) if token != chosen[at]), gamma)
        found.drafted += min(agreed + 1, gamma)
        found.accepted += agreed
        found.tokens += chosen[: agreed + 1]
        # what was refused is forgotten; the last token found is not in a cache yet
        kept = len(known) + agreed
        caches[0].length = kept
        caches[1].length = min(caches[1].length, kept)
    found.seconds = time.perf_counter() - begun
    del found.tokens[count:]
    return found


def _row(tokens: Sequence[int], decoder: Decoder) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=decoder.device.kind)
