"""Whether the loop is right: cached decoding against full recomputation, and projections of keys and values counted."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.errors import InputError
from kvcalc.core.reports.measure import LoopCheck
from kvcalc.measure.decoder import Decoder, decode_one_token, prefill
from kvcalc.measure.library import told_memory
from kvcalc.measure.scale import check_memory, one_of_each
from kvcalc.plan.formats import run_formats

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.measure.library import Device

__all__ = ["check_loop"]

# fp32: rounding leaves the largest of thousands of logits where it is.
_FORMAT = "fp32"
_PROMPT = 12
_COUNT = 12
_SEQUENCES = 2
_SEED = 11
_MOST_APART = 1e-3


def check_loop(model: ModelProfile, device: Device) -> list[LoopCheck]:
    """Return checks of a model's layers: one of each kind, with their own shapes, in fp32.

    Args:
        model: the model.
        device: where it runs.

    Raises:
        InputError: even so they need more memory than is free.
    """
    small = one_of_each(model)
    formats = run_formats(small, weights=_FORMAT, kv=_FORMAT, activations=_FORMAT)
    try:
        check_memory(
            small,
            formats,
            batch=_SEQUENCES,
            context=_PROMPT + _COUNT,
            free_bytes=device.free_bytes(),
            device=device.kind,
        )
    except InputError as error:
        raise InputError(f"one layer of each kind of {error.what}", hint="--no-check leaves the check out") from error
    with told_memory(f"one layer of each kind of {model.name} in {_FORMAT}", device):
        return _checks(model, small, device)


def _checks(model: ModelProfile, small: ModelProfile, device: Device) -> list[LoopCheck]:
    decoder = Decoder(small, weights=_FORMAT, device=device)
    generator = torch.Generator().manual_seed(_SEED)
    tokens = torch.randint(0, decoder.vocabulary, (_SEQUENCES, _PROMPT), generator=generator).to(device.kind)
    cache = decoder.new_cache(batch=_SEQUENCES, capacity=_PROMPT + _COUNT)
    logits = prefill(decoder, tokens, cache)[:, -1]
    apart, different, cached, anew = 0.0, 0, cache.length, 0
    per_token = 0
    for _ in range(_COUNT):
        again, projected = _recomputed(decoder, tokens)
        difference = float((logits - again).abs().max() / again.abs().max())
        apart = max(apart, difference if math.isfinite(difference) else math.inf)
        following = logits.argmax(-1)
        different += int((following != again.argmax(-1)).sum())
        anew += projected
        per_token = projected // tokens.numel()
        tokens = torch.cat((tokens, following[:, None]), dim=1)
        logits = decode_one_token(decoder, following, cache)
        cached += 1
    kinds = ", ".join(dict.fromkeys(mixer.kind for block in decoder.model.blocks for mixer in block.mixers))
    total = _SEQUENCES * _COUNT
    checks = [
        LoopCheck(
            name=f"{model.name}: cached decoding is full recomputation ({kinds})",
            passed=different == 0 and apart < _MOST_APART,
            detail=f"{total - different} of {total} tokens alike, logits within {apart:.1e} of their largest",
        )
    ]
    if per_token:
        checks.append(_projections(model, decoder, tokens, per_token, anew, device))
    return checks


def _recomputed(decoder: Decoder, tokens: Any) -> tuple[Any, int]:
    """Return the logits after the last token with nothing cached, and how many keys and values were projected."""
    empty = decoder.new_cache(batch=tokens.shape[0], capacity=tokens.shape[1])
    run = decoder.new_pass(tokens, empty)
    return decoder.forward(tokens, empty, run=run)[:, 0], run.projected


def _projections(
    model: ModelProfile, decoder: Decoder, tokens: Any, per_token: int, anew: int, device: Device
) -> LoopCheck:
    """Count projections of keys and values: those of all tokens for each without a cache, of the new one with it."""
    cache = decoder.new_cache(batch=_SEQUENCES, capacity=tokens.shape[1])
    prompt, rest = tokens[:, :_PROMPT], tokens[:, _PROMPT:]
    run = decoder.new_pass(prompt, cache)
    decoder.forward(prompt, cache, run=run)
    cache.length = _PROMPT
    with_cache = run.projected
    for token in rest[:, :-1].to(device.kind).split(1, dim=1):
        run = decoder.new_pass(token, cache)
        decoder.forward(token, cache, run=run)
        cache.length += 1
        with_cache += run.projected
    last = _PROMPT + _COUNT - 1
    linear = _SEQUENCES * per_token * last
    quadratic = _SEQUENCES * per_token * sum(range(_PROMPT, last + 1))
    return LoopCheck(
        name=f"{model.name}: keys and values are projected once a token with a cache, for all tokens each step without",
        passed=(with_cache, anew) == (linear, quadratic),
        detail=f"{with_cache:,} projections with a cache, {anew:,} without, for {_COUNT} tokens after {_PROMPT}",
    )
