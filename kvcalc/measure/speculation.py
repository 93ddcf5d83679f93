"""Greedy speculative decoding with a real draft model: the same tokens, in fewer passes of the target.

A cycle is two calls, the draft's proposals and their verification, each recorded as a graph on a GPU; positions, the
choice and what is taken back stay on the device, and the host reads once a cycle.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Full, Latent
from kvcalc.core.reports.measure import MeasuredSpeculation
from kvcalc.cost.parameters import weight_bytes
from kvcalc.cost.speculation import expected_tokens_at_rate, speedup
from kvcalc.measure.clock import in_turn, recorded, wall_s
from kvcalc.measure.decoder import Decoder, decode_n_tokens, prefill
from kvcalc.measure.library import WIDEST, told_memory
from kvcalc.measure.loop import Loop, on_device
from kvcalc.measure.products import fastest_products
from kvcalc.measure.scale import all_in, check_memory, run_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.measure.library import Device
    from kvcalc.plan.deployment import Deployment

__all__ = ["Generated", "check_rollback", "check_room", "measured_speculation", "plain_decode", "speculative_decode"]

_PROMPT = 32
_COUNT = 64
_SEED = 3
_ROUNDS = 10


@dataclass(slots=True, kw_only=True)
class Generated:
    """Tokens of one sequence by greedy decoding, and the time they took.

    Args:
        tokens: the tokens after the prompt.
        passes: of the target after the prompt.
        drafted: tokens that were proposed and looked at: those accepted and the first refused of each pass.
        accepted: of these, how many the target would have chosen itself.
        seconds: wall time after the prompt and its first token.
        target_s: time of a pass of the target.
        draft_s: time of a pass of the draft.
        in_graph: whether every pass was replayed from a graph.
    """

    tokens: list[int] = field(default_factory=list)
    passes: int = 0
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    target_s: float = 0.0
    draft_s: float = 0.0
    in_graph: bool = False


def check_rollback(model: ModelProfile) -> None:
    """Refuse models whose caches forget: refused tokens could not be taken back.

    Raises:
        UnsupportedError: a layer with a window, a chunk or a state.
    """
    kinds = {mixer.kind for mixer in model.mixers if not isinstance(mixer, Full | Latent)}
    if kinds:
        raise UnsupportedError(
            f"{model.name}: refused tokens cannot be taken back from {' and '.join(sorted(kinds))} layers",
            hint="speculation is measured where every layer keeps all tokens",
        )


def plain_decode(decoder: Decoder, prompt: Sequence[int], *, count: int) -> Generated:
    """Decode greedily, a token a pass, the token fed back on the device.

    Args:
        decoder: the model.
        prompt: its tokens.
        count: tokens wanted.
    """
    cache = decoder.new_cache(batch=1, capacity=len(prompt) + count)
    first = prefill(decoder, _row(prompt, decoder), cache)[:, -1].argmax(dim=-1)
    on_device(cache, decoder.device.kind)
    loop = Loop(decoder, cache, first)
    passes = count - 1
    seconds, rest = wall_s(lambda: loop.run(passes).tolist()[0])
    step = in_turn([loop.step], rounds=_ROUNDS, device=decoder.device, reset=loop.rewind)[0]
    return Generated(
        tokens=[int(first), *rest],
        passes=passes,
        seconds=seconds,
        target_s=step.low_s,
        in_graph=loop.in_graph,
    )


class _Cycle:
    """One cycle: the draft proposes, the target verifies, and both go on from the last token that is right.

    Random weights agree on next to nothing. So that proposals are right as often as those of real models are, some are
    replaced with the token that the target is known to choose there; the draft's passes are run all the same.
    """

    def __init__(self, target: Decoder, draft: Decoder, prompt: Sequence[int], *, gamma: int, capacity: int) -> None:
        kind = target.device.kind
        self.target, self.draft, self.gamma = target, draft, gamma
        self.caches = [decoder.new_cache(batch=1, capacity=capacity) for decoder in (target, draft)]
        logits, _ = (
            prefill(decoder, _row(prompt, decoder), cache)
            for decoder, cache in zip((target, draft), self.caches, strict=True)
        )
        for cache in self.caches:
            on_device(cache, kind)
        # the draft's first pass takes two tokens: the last but one is not in its cache where all proposals were right
        self.caches[1].advance(-1)
        self.last = logits[:, -1].argmax(dim=-1)
        self.before = _row(prompt[-1:], target)[0]
        self.proposals = torch.zeros(1, gamma, dtype=torch.long, device=kind)
        self.hints = torch.zeros(capacity, dtype=torch.long, device=kind)
        self.replaced = torch.zeros(capacity, dtype=torch.bool, device=kind)
        self._start = [tensor.clone() for tensor in self._moving()]

    def _moving(self) -> tuple[Any, ...]:
        return (self.last, self.before, *(cache.position for cache in self.caches))

    def rewind(self) -> None:
        """Go back to after the prompt and its first token."""
        for tensor, start in zip(self._moving(), self._start, strict=True):
            tensor.copy_(start)

    def hint(self, tokens: Sequence[int], start: int, replaced: Sequence[bool]) -> None:
        """Set the target's choices from a position on, and the proposals that they replace."""
        end = min(start + len(tokens), len(self.hints))
        kind = self.target.device.kind
        self.hints[start:end] = torch.tensor(list(tokens)[: end - start], dtype=torch.long, device=kind)
        self.replaced[start:end] = torch.tensor(list(replaced)[: end - start], dtype=torch.bool, device=kind)

    def propose(self) -> None:
        """Let the draft propose, one pass after another."""
        cache = self.caches[1]
        tokens = torch.stack((self.before, self.last), dim=1)
        for at in range(self.gamma):
            logits = self.draft.forward(tokens, cache)
            cache.position.add_(tokens.shape[1])
            guess = logits[:, -1].argmax(dim=-1)
            tokens = torch.where(self.replaced[cache.position], self.hints[cache.position], guess)[:, None]
            self.proposals[:, at] = tokens[:, 0]

    def verify(self) -> Any:
        """Verify the proposals and give back the target's choice after each token, and how many proposals agree."""
        cache = self.caches[0]
        tokens = torch.cat((self.last[:, None], self.proposals), dim=1)
        chosen = self.target.forward(tokens, cache, logits=self.gamma + 1).argmax(dim=-1)
        agreed = (chosen[:, :-1] == self.proposals).to(torch.long).cumprod(dim=1).sum(dim=1)
        self.before.copy_(tokens.gather(1, agreed[:, None])[:, 0])
        self.last.copy_(chosen.gather(1, agreed[:, None])[:, 0])
        cache.position.add_(agreed + 1)
        self.caches[1].position.copy_(cache.position - 1)
        return torch.cat((chosen, agreed[:, None]), dim=1)


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

    Args:
        target: the model.
        draft: the draft model; it knows the same tokens.
        prompt: tokens of the prompt, two at least.
        count: tokens wanted.
        gamma: proposals for each pass of the target.
        hinted: what the target is known to choose; where rounding makes a verification choose otherwise, what follows
            is looked up by plain decoding, in time that does not count.
        acceptance: how often a proposal is replaced with the token from there.
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
    cycle = _Cycle(target, draft, prompt, gamma=gamma, capacity=capacity)
    replaced = [chance.random() < acceptance for _ in range(capacity)]
    known = list(hinted)
    cycle.hint(known, len(prompt), replaced)
    propose, proposed = recorded(cycle.propose, target.device, reset=cycle.rewind)
    verify, verified = recorded(cycle.verify, target.device, reset=cycle.rewind)
    cycle.rewind()
    made = Generated(tokens=[int(cycle.last)], in_graph=proposed and verified)
    while len(made.tokens) < count:
        seconds, (*chosen, agreed) = wall_s(lambda: _run(propose, verify))
        made.seconds += seconds
        made.passes += 1
        made.drafted += min(agreed + 1, gamma)
        made.accepted += agreed
        made.tokens += chosen[: agreed + 1]
        if known and known[: len(made.tokens)] != made.tokens:
            sequence = [*prompt, *made.tokens]
            known = [*made.tokens, *_following(target, sequence, gamma)]
            cycle.hint(known[len(made.tokens) :], len(sequence), replaced[len(made.tokens) :])
    del made.tokens[count:]
    cycle.rewind()
    proposing, verifying = in_turn(
        [cycle.propose, cycle.verify], rounds=_ROUNDS, device=target.device, reset=cycle.rewind
    )
    made.draft_s, made.target_s = proposing.low_s / gamma, verifying.low_s
    return made


def _run(propose: Callable[[], object], verify: Callable[[], Any]) -> list[int]:
    """Make a cycle and read its result: the one time that the host waits."""
    propose()
    numbers: list[int] = verify().tolist()[0]
    return numbers


def _following(decoder: Decoder, sequence: Sequence[int], count: int) -> list[int]:
    """The tokens that plain decoding chooses after a sequence."""
    cache = decoder.new_cache(batch=1, capacity=len(sequence) + count)
    first = prefill(decoder, _row(sequence, decoder), cache)[:, -1].argmax(dim=-1)
    return [int(first), *decode_n_tokens(decoder, first, cache, count=count).tolist()[0]][:count]


def _row(tokens: Sequence[int], decoder: Decoder) -> torch.Tensor:
    return torch.tensor([list(tokens)], device=decoder.device.kind)


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
    target: Deployment,
    draft: Deployment,
    device: Device,
    *,
    gamma: int,
    acceptance: float,
    count: int = _COUNT,
    kernels: str = "plain",
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
        kernels: the variant of the layers' small operations.

    Raises:
        InputError: too little memory, or models of other tokens.
        UnsupportedError: a model whose cache forgets, or with layers that the loop does not build.
    """
    for deployment in (target, draft):
        check_rollback(deployment.model)
    check_room(target, draft, device, gamma=gamma, count=count)
    name = target.formats.weights.name

    def decoded(weights: str) -> tuple[Generated, Generated]:
        """Results of plain and speculative decoding in a format."""
        model, small = (
            Decoder(
                each.model,
                weights=weights,
                device=device,
                kernels=kernels,
                products=fastest_products(weights, device, read_bytes=int(weight_bytes(each.model, each.formats))),
            )
            for each in (target, draft)
        )
        seed = torch.Generator().manual_seed(_SEED)
        prompt = torch.randint(0, model.vocabulary, (_PROMPT,), generator=seed).tolist()
        plain = plain_decode(model, prompt, count=count)
        return plain, speculative_decode(
            model, small, prompt, count=count, gamma=gamma, hinted=plain.tokens, acceptance=acceptance, seed=_SEED
        )

    with told_memory(f"{target.model.name} beside {draft.model.name}", device):
        plain, made = decoded(name)
        device.release()
        exact_plain, exact_made = (plain, made) if name == WIDEST else decoded(WIDEST)
    rate = made.accepted / made.drafted if made.drafted else 0.0
    expected = expected_tokens_at_rate(rate, gamma)
    decoded_tokens = made.accepted + made.passes
    return MeasuredSpeculation(
        target=target.model.name,
        draft=draft.model.name,
        format=name,
        gamma_tokens=gamma,
        acceptance=rate,
        tokens_per_pass=decoded_tokens / made.passes,
        expected_tokens_per_pass=expected,
        draft_s=made.draft_s,
        verify_s=made.target_s,
        plain_s=plain.target_s,
        measured_speedup=(decoded_tokens / made.seconds) / (plain.passes / plain.seconds),
        predicted_speedup=speedup(
            expected=expected,
            gamma=gamma,
            draft_ratio=made.draft_s / plain.target_s,
            verify_ratio=made.target_s / plain.target_s,
        ),
        identical=exact_made.tokens == exact_plain.tokens,
        in_graph=plain.in_graph and made.in_graph,
    )
