"""Whether the loop is right: cached decoding against full recomputation, projections counted, variants compared."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.errors import InputError
from kvcalc.core.reports.measure import LoopCheck
from kvcalc.measure.decoder import Decoder, decode_n_tokens, decode_one_token, prefill
from kvcalc.measure.kernels import kernels_of
from kvcalc.measure.library import told_memory
from kvcalc.measure.loop import Loop, on_device
from kvcalc.measure.mlp import Experts
from kvcalc.measure.scale import check_memory, one_of_each
from kvcalc.plan.formats import run_formats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.measure.library import Device

__all__ = ["check_loop"]

# fp32: rounding leaves the largest of thousands of logits where it is.
_FORMAT = "fp32"
_PROMPT = 12
_COUNT = 12
_SEQUENCES = 2
_SEED = 11
_MAX_APART = 1e-3
# The only format that torch groups in; two units in its last place, of the largest number.
_GROUPED_FORMAT = "bf16"
_MAX_APART_GROUPED = 2.0**-6


def check_loop(model: ModelProfile, device: Device, *, kernels: Sequence[str] = ("plain",)) -> list[LoopCheck]:
    """Return checks of a model's layers: one of each kind, with their own shapes, in fp32.

    Args:
        model: the model.
        device: where it runs.
        kernels: variants of the loop's kernels: each must give the tokens of the plain one, replayed where it is.

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
        checks = _checks(model, small, device)
        on_gpu = device.kind == "cuda"
        checks += [_variant(model, small, device, name) for name in kernels if on_gpu or name != "plain"]
        if on_gpu:
            checks += _grouped_experts(model, small, device)
        return checks


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
            passed=different == 0 and apart < _MAX_APART,
            detail=f"{total - different} of {total} tokens alike, logits within {apart:.1e} of their largest",
        )
    ]
    if per_token:
        checks.append(_projections(model, decoder, tokens, per_token, anew, device))
    return checks


def _variant(model: ModelProfile, small: ModelProfile, device: Device, name: str) -> LoopCheck:
    """Tokens of a loop in a variant of its kernels, on a GPU with its position there, beside plain decoding."""
    decoder = Decoder(small, weights=_FORMAT, device=device)
    generator = torch.Generator().manual_seed(_SEED)
    prompt = torch.randint(0, decoder.vocabulary, (_SEQUENCES, _PROMPT), generator=generator).to(device.kind)
    caches = [decoder.new_cache(batch=_SEQUENCES, capacity=_PROMPT + _COUNT) for _ in range(2)]
    first, _ = (prefill(decoder, prompt, cache)[:, -1].argmax(-1) for cache in caches)
    wanted = decode_n_tokens(decoder, first, caches[0], count=_COUNT)
    if device.kind == "cuda":
        on_device(caches[1], device.kind)
    chosen = Loop(decoder, caches[1], first, kernels=kernels_of(name, device)).run(_COUNT)
    alike = int((chosen == wanted).sum())
    return LoopCheck(
        name=f"{model.name}: a loop of {name} kernels decodes the same tokens",
        passed=alike == wanted.numel(),
        detail=f"{alike} of {wanted.numel()} tokens alike, in {_FORMAT}",
    )


def _grouped_experts(model: ModelProfile, small: ModelProfile, device: Device) -> list[LoopCheck]:
    """Experts as one grouped multiplication beside the same one after another, where they are grouped."""
    decoder = Decoder(small, weights=_GROUPED_FORMAT, device=device)
    mixtures = [layer.mlp for layer in decoder.layers if isinstance(layer.mlp, Experts) and layer.mlp.grouped]
    if not mixtures:
        return []
    apart = 0.0
    for experts in mixtures:
        tokens = decoder.make.tensor(2 * _COUNT, small.hidden_size, scale=1.0)
        run = decoder.new_pass(tokens[None], decoder.new_cache(batch=1, capacity=1))
        chosen, shares = experts.routed(tokens)
        one, other = (experts.mixed(tokens, chosen, shares, run, grouped=way) for way in (True, False))
        difference = float((one - other).abs().max() / other.abs().max())
        apart = max(apart, difference if math.isfinite(difference) else math.inf)
    return [
        LoopCheck(
            name=f"{model.name}: grouped experts are experts one by one, in {_GROUPED_FORMAT}",
            passed=apart < _MAX_APART_GROUPED,
            detail=f"within {apart:.1e} of the largest",
        )
    ]


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
