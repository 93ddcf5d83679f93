"""The measured speed-up of speculative decoding, held against the prediction at measured acceptance and step times."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from kvcalc.core.reports.measure import MeasuredSpeculation
from kvcalc.cost.speculation import expected_tokens_at_rate, speedup
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.library import WIDEST, told_memory
from kvcalc.measure.scale import all_in, check_memory, run_bytes
from kvcalc.measure.speculation import Generated, check_rollback, plain_decode, speculative_decode

if TYPE_CHECKING:
    from kvcalc.measure.library import Device
    from kvcalc.plan.deployment import Deployment

__all__ = ["check_room", "measured_speculation"]

_PROMPT = 32
_COUNT = 64
_SEED = 3


def check_room(target: Deployment, draft: Deployment, device: Device, *, gamma: int, count: int = _COUNT) -> None:
    """Refuse two models that would not fit in fp32 beside each other.

    Raises:
        InputError: they need more memory than is free.
    """
    formats, context = all_in(WIDEST), _PROMPT + count + gamma + 1
    free, where = device.free_bytes(), device.kind
    for deployment in (target, draft):
        check_memory(deployment.model, formats, batch=1, context=context, free_bytes=free, device=where)
        free -= run_bytes(deployment.model, formats, batch=1, context=context)
        where = f"{device.kind} beside {target.model.name}"


def measured_speculation(
    target: Deployment, draft: Deployment, device: Device, *, gamma: int, acceptance: float, count: int = _COUNT
) -> MeasuredSpeculation:
    """Decode a sequence without and with a draft model and return both speeds.

    That both sequences are the same is looked at in fp32: a verification adds in another order than a step, and in
    formats of fewer digits random weights leave ties that this decides.

    Args:
        target: the model.
        draft: the draft model, in the same format.
        device: where both run.
        gamma: proposals for each pass of the target.
        acceptance: how often a proposal is replaced with the token that the target will choose; random weights agree on
            next to nothing.
        count: tokens.

    Raises:
        InputError: too little memory, or models of other tokens.
        UnsupportedError: a model whose cache forgets, or with layers that the loop does not build.
    """
    for deployment in (target, draft):
        check_rollback(deployment.model)
    check_room(target, draft, device, gamma=gamma, count=count)
    name = target.formats.weights.name

    def decoded(weights: str) -> tuple[Generated, Generated]:
        """Return what plain and speculative decoding give in a format."""
        model, small = (Decoder(found.model, weights=weights, device=device) for found in (target, draft))
        seed = torch.Generator().manual_seed(_SEED)
        prompt = torch.randint(0, model.vocabulary, (_PROMPT,), generator=seed).tolist()
        plain_decode(model, prompt, count=4)
        plain = plain_decode(model, prompt, count=count)
        return plain, speculative_decode(
            model, small, prompt, count=count, gamma=gamma, hinted=plain.tokens, acceptance=acceptance, seed=_SEED
        )

    with told_memory(f"{target.model.name} beside {draft.model.name}", device):
        plain, found = decoded(name)
        device.release()
        exact_plain, exact_found = (plain, found) if name == WIDEST else decoded(WIDEST)
    rate = found.accepted / found.drafted if found.drafted else 0.0
    step, drafted, verified = (sum(times) / len(times) for times in (plain.target_s, found.draft_s, found.target_s))
    expected = expected_tokens_at_rate(rate, gamma)
    made = found.accepted + len(found.target_s)
    return MeasuredSpeculation(
        target=target.model.name,
        draft=draft.model.name,
        format=name,
        gamma_tokens=gamma,
        acceptance=rate,
        tokens_per_pass=made / len(found.target_s),
        expected_tokens_per_pass=expected,
        draft_s=drafted,
        verify_s=verified,
        plain_s=step,
        measured_speedup=(made / found.seconds) / (len(plain.target_s) / plain.seconds),
        predicted_speedup=speedup(
            expected=expected, gamma=gamma, draft_ratio=drafted / step, verify_ratio=verified / step
        ),
        identical=exact_found.tokens == exact_plain.tokens,
    )
