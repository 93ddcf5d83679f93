"""The structure of a step's time: sums of maxima over affine terms, read off `forward_cost`.

What an operator outside attention costs is affine in the tokens and logits of the step, and for experts in how many of
them are touched. What attention costs is a sum over the sequences; for a decoding sequence it is affine in its context
between knees (windows, chosen tokens) or within periods (chunks).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Literal

from kvcalc.core.calibration import MIN_SUM_SHARE, Calibration, kind_of
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.model import Mixture, counted
from kvcalc.core.workload import TokenGroup
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.collectives import expert_spread
from kvcalc.cost.estimate import SumTerms, sum_seconds
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.linear import experts_touched
from kvcalc.cost.sharding import stage_blocks
from kvcalc.plan.steps import required_hardware
from kvcalc.simulate.mixer_work import BYTES, FLOP, MOVED, MixerWork, knees

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.core.calibration import Reach
    from kvcalc.core.cost_types import OpCost
    from kvcalc.core.hardware import Link
    from kvcalc.core.model import Block, Mixer
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.mixer_work import Work

__all__ = ["AffineTerm", "StepReader", "StepTerms", "step_terms"]

Affine = tuple[float, float, float]
# Mixtures with a spread of their experts whose numbers of touched experts are kept.
_KNOWN_MIXTURES = 64


@dataclass(slots=True, kw_only=True)
class AffineTerm:
    """One of the times of which the largest counts, in seconds.

    Args:
        limiter: what limits where this one is the largest.
        decode: time for each of a step's sums over its decoding sequences.
        with_logits: time at no token, for each token, for each logit, in a step that computes logits.
        without_logits: the same in one that computes none.
        of_tokens: a function of the step's tokens, and the time for each of what it returns: experts, sums over ranks.
        chunks: place among the works, and the time for each of the three numbers that it gives of a chunk.
    """

    limiter: str
    decode: list[float]
    with_logits: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    without_logits: list[float] = field(default_factory=lambda: [0.0, 0.0, 0.0])
    of_tokens: list[tuple[Callable[[int], float], float]] = field(default_factory=list)
    chunks: list[tuple[int, list[float]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """A step's time as the sum of maxima over terms.

    Args:
        maxima: the terms of each maximum.
        works: what the mixers do, one for each that differs.
        caps: contexts that the sums are capped at.
        periods: lengths after which contexts count from 1 again.
    """

    maxima: tuple[tuple[AffineTerm, ...], ...]
    works: tuple[MixerWork, ...]
    caps: tuple[int, ...]
    periods: tuple[int, ...]


def step_terms(
    deployment: Deployment, *, kind: Literal["ideal", "serial"] | Calibration, alike: bool = False
) -> StepTerms:
    """Return the structure of the times that `step_time` gives for a deployment's steps.

    Args:
        deployment: the model, its formats, how it is spread, the accelerator.
        kind: ``ideal`` for ``StepTime.latency_s``, ``serial`` for ``StepTime.serial_s``, or a calibration for
            `reached_seconds`.
        alike: whether data-parallel copies are taken to be equally busy; the steps are then those of one of them.

    Raises:
        InputError: no accelerator, or data-parallel copies that are not alike.
        UnsupportedError: attention whose costs have no such structure, or an encoder.
    """
    return StepReader(deployment, alike=alike).terms(kind)


# Tokens and logits of the passes that the coefficients are read off.
_FEW, _MORE, _MANY = (2, 1), (1002, 1), (1002, 1001)
_SILENT_FEW, _SILENT_MORE = (2, 0), (1002, 0)


class _Operator:
    """An operator in the passes that were made, and what its cost depends on beside tokens and logits.

    Args:
        passes: the operator in each of the passes; the output head is not in those without logits.
        layers: layers of an attention operator.
        mixer: its mixer.
        mixture: the experts of an operator of routed experts.
    """

    def __init__(
        self,
        passes: Sequence[OpCost | None],
        *,
        layers: int = 0,
        mixer: Mixer | None = None,
        mixture: Mixture | None = None,
    ) -> None:
        self._passes = passes
        self.layers, self.mixer, self.mixture = layers, mixer, mixture

    @property
    def cost(self) -> OpCost:
        """The operator in a pass with logits."""
        cost = self._passes[0]
        assert cost is not None
        return cost

    def affine(self, value: Callable[[OpCost], float]) -> tuple[Affine, Affine]:
        """Return a quantity at no token, for each token and for each logit: with logits in the step, and without."""
        few, more, many, silent_few, silent_more = (0.0 if op is None else value(op) for op in self._passes)
        per_token = (more - few) / (_MORE[0] - _FEW[0])
        per_logit = (many - more) / (_MANY[1] - _MORE[1])
        silent = (silent_more - silent_few) / (_SILENT_MORE[0] - _SILENT_FEW[0])
        with_logits = (few - _FEW[0] * per_token - _FEW[1] * per_logit, per_token, per_logit)
        return with_logits, (silent_few - _SILENT_FEW[0] * silent, silent, 0.0)


# For each quantity of a work, the same of an operator, experts' weights left out.
_VALUES: tuple[Callable[[OpCost], float], ...] = (
    lambda op: op.flop,
    lambda op: op.compulsory_bytes - (op.weight_bytes if op.part == "experts" else 0),
    lambda op: op.moved_bytes - (op.weight_bytes if op.part == "experts" else 0),
)


class StepReader:
    """Reads coefficients off passes of one deployment; the passes are made once for all kinds of times.

    Args:
        deployment: as for `step_terms`.
        alike: as for `step_terms`.

    Raises:
        InputError: as `step_terms`.
        UnsupportedError: as `step_terms`.
    """

    def __init__(self, deployment: Deployment, *, alike: bool) -> None:
        model = deployment.model
        if deployment.parallel.data > 1 and not alike:
            raise InputError("a replica is one data-parallel copy", hint="leave out --dp and ask for replicas")
        if model.encoder is not None:
            raise UnsupportedError(f"serving {model.name} is not modelled: it has an encoder")
        self._deployment = deployment
        self._hardware = required_hardware(deployment)
        self._link = self._hardware.link(deployment.parallel.exchange_gpus)
        mixers = model.mixers
        self.caps = tuple(sorted(set().union(*map(knees, mixers))))
        self.periods = tuple(sorted({restart for mixer in mixers if (restart := mixer.bends.restart) is not None}))
        self._places = {mixer: index for index, mixer in enumerate(mixers)}
        self.works = tuple(
            MixerWork(mixer, self._work_of(mixer), caps=self.caps, periods=self.periods) for mixer in mixers
        )
        self._stages = self._read_stages()

    def terms(self, kind: Literal["ideal", "serial"] | Calibration) -> StepTerms:
        """Return the structure of one kind of times: see `step_terms`."""
        if isinstance(kind, Calibration):
            maxima = self._reached(kind)
        else:
            maxima = self._ideal() if kind == "ideal" else self._serial()
        return StepTerms(maxima=tuple(maxima), works=self.works, caps=self.caps, periods=self.periods)

    def _ideal(self) -> Iterator[tuple[AffineTerm, ...]]:
        """Yield a maximum for each stage: compute, memory, link."""
        bandwidth = self._hardware.memory_bandwidth_bytes_per_s
        for operators in self._stages:
            compute, memory, wire = (self._term(limiter) for limiter in ("compute", "memory", "interconnect"))
            for operator in operators:
                self._add(compute, operator, FLOP, 1 / self._hardware.peak(operator.cost.unit))
                self._add(memory, operator, BYTES, 1 / bandwidth)
                if self._link is not None:
                    _add_affine(wire, operator, lambda op: op.link_bytes, 1 / self._link.bytes_per_s)
            yield (compute, memory, wire) if self._link is not None else (compute, memory)

    def _serial(self) -> Iterator[tuple[AffineTerm, ...]]:
        """Yield a maximum for each operator, of compute and memory, and its collective."""
        bandwidth, link = self._hardware.memory_bandwidth_bytes_per_s, self._link
        for operator in (operator for stage in self._stages for operator in stage):
            compute, memory = self._term("compute"), self._term("memory")
            self._add(compute, operator, FLOP, 1 / self._hardware.peak(operator.cost.unit))
            self._add(memory, operator, MOVED, 1 / bandwidth)
            yield compute, memory
            if link is not None and operator.cost.collective_steps:
                wire = self._term("interconnect")
                _add_affine(wire, operator, lambda op: op.collective_bytes, 1 / link.bytes_per_s)
                _add_affine(wire, operator, lambda op: op.collective_steps, link.latency_s or 0)
                yield (wire,)

    def _reached(self, calibration: Calibration) -> Iterator[tuple[AffineTerm, ...]]:
        """Yield a maximum for each operator at the rates reached, and what passes, layers, calls and links take."""
        link = self._link
        constant = self._term("")
        for terms in (constant.with_logits, constant.without_logits):
            terms[0] += calibration.step_s + len(self._deployment.model.blocks) * calibration.layer_s
        constant.with_logits[2] += calibration.sample_s * self._deployment.parallel.data
        for operator in (operator for stage in self._stages for operator in stage):
            if operator.cost.collective_steps:
                if link is not None:
                    _add_affine(constant, operator, lambda op: op.calls, calibration.collective_s)
                    self._add_exchange(constant, operator, link, calibration)
                continue
            reach = calibration.reach_of(kind_of(operator.cost), operator.cost.unit)
            _add_affine(constant, operator, calibration.calls_of, reach.call_s)
            compute, memory, both = (self._term(limiter) for limiter in ("compute", "memory", ""))
            self._add_reached(compute, operator, reach, compute=1)
            self._add_reached(memory, operator, reach, memory=1)
            self._add_reached(both, operator, reach, compute=reach.sum_share, memory=reach.sum_share)
            yield (compute, memory, both) if reach.sum_share > MIN_SUM_SHARE else (compute, memory)
        yield (constant,)

    def _add_exchange(self, term: AffineTerm, operator: _Operator, link: Link, calibration: Calibration) -> None:
        """Add what a collective takes besides its fixed time: a sum over ranks is made in the faster of two ways."""
        cost = operator.cost
        if not cost.direct_bytes:
            rate = link.bytes_per_s * calibration.link_share
            _add_affine(term, operator, lambda op: op.collective_bytes, 1 / rate)
            return
        per_token = cost.calls * _FEW[0] * link.bytes_per_s
        ring_s, direct_s = cost.collective_bytes / per_token, cost.direct_bytes / per_token
        sums = lru_cache(maxsize=None)(
            lambda tokens: sum_seconds(SumTerms(1, ring_s * tokens, direct_s * tokens), calibration) if tokens else 0.0
        )
        term.of_tokens.append((sums, cost.calls))

    def _add_reached(
        self, term: AffineTerm, operator: _Operator, reach: Reach, *, compute: float = 0.0, memory: float = 0.0
    ) -> None:
        """Add so much of the time that an operator's FLOP or bytes take at the rates reached."""
        per_flop = compute / (self._hardware.peak(operator.cost.unit) * reach.flop_share)
        per_byte = memory / (self._hardware.memory_bandwidth_bytes_per_s * reach.bandwidth_share)
        if compute:
            self._add(term, operator, FLOP, per_flop)
            padding = per_flop * reach.padding_rows
            if padding and operator.mixture is not None:
                touched = _touched(operator.mixture, expert_spread(self._deployment.parallel))
                term.of_tokens.append((touched, operator.cost.row_flop / touched(_FEW[0]) * padding))
            elif padding:
                _add_affine(term, operator, lambda op: op.row_flop, padding)
        if memory:
            self._add(term, operator, MOVED, per_byte)
            if reach.activation_share is not None and operator.mixer is None:
                slower = per_byte * (reach.bandwidth_share / reach.activation_share - 1)
                _add_affine(term, operator, lambda op: op.activation_bytes, slower)

    def _term(self, limiter: str) -> AffineTerm:
        return AffineTerm(limiter=limiter, decode=[0.0] * (2 + len(self.caps) + len(self.periods)))

    def _add(self, term: AffineTerm, operator: _Operator, quantity: int, seconds: float) -> None:
        """Add what an operator does, at so many seconds for each FLOP or byte."""
        if operator.mixer is not None:
            kind, scale = self._places[operator.mixer], operator.layers * seconds
            for index, value in enumerate(self.works[kind].decode[quantity]):
                term.decode[index] += value * scale
            term.chunks.append((kind, [value * scale for value in self.works[kind].of_chunk[quantity]]))
            return
        _add_affine(term, operator, _VALUES[quantity], seconds)
        if operator.mixture is not None and quantity != FLOP:
            touched = _touched(operator.mixture, expert_spread(self._deployment.parallel))
            term.of_tokens.append((touched, operator.cost.weight_bytes / touched(_FEW[0]) * seconds))

    def _work_of(self, mixer: Mixer) -> Callable[[TokenGroup], Work]:
        formats, tensor = self._deployment.formats, self._deployment.parallel.tensor

        def of(group: TokenGroup) -> Work:
            work = mixer_work(mixer, group, formats, tensor=tensor)
            compulsory = work.read_bytes + work.write_bytes
            return work.flop, compulsory, compulsory + work.reread_bytes

        return of

    def _read_stages(self) -> list[list[_Operator]]:
        """Return the operators of each pipeline stage."""
        passes = [self._stages_of(*size) for size in (_FEW, _MORE, _MANY, _SILENT_FEW, _SILENT_MORE)]
        blocks = stage_blocks(self._deployment.model, self._deployment.parallel.pipeline)
        return [
            list(_operators(stage, list(zip_longest(*(cost[index] for cost in passes)))))
            for index, stage in enumerate(blocks)
        ]

    def _stages_of(self, tokens: int, logits: int) -> tuple[tuple[OpCost, ...], ...]:
        deployment = self._deployment
        copies = deployment.parallel.data
        group = TokenGroup(sequences=copies, query_tokens=tokens, logit_tokens=logits)
        return forward_cost(deployment.model, (group,), deployment.formats, parallel=deployment.parallel).stages


def _operators(blocks: tuple[Block, ...], passes: Sequence[tuple[OpCost | None, ...]]) -> Iterator[_Operator]:
    """Yield a stage's operators, each with its mixer or experts, which stand in the order of the layers' kinds."""
    kinds = counted(blocks)
    mixers = iter([(mixer, count) for block, count in kinds.items() for mixer in block.mixers])
    mixtures = iter([block.mlp for block in kinds if isinstance(block.mlp, Mixture)])
    for cost in passes:
        part = cost[0].part if cost[0] is not None else ""
        if part == "cache":
            mixer, layers = next(mixers)
            yield _Operator(cost, mixer=mixer, layers=layers)
        else:
            yield _Operator(cost, mixture=next(mixtures) if part == "experts" else None)


def _add_affine(term: AffineTerm, operator: _Operator, value: Callable[[OpCost], float], seconds: float) -> None:
    for mine, theirs in zip((term.with_logits, term.without_logits), operator.affine(value), strict=True):
        for index, cost in enumerate(theirs):
            mine[index] += cost * seconds


@lru_cache(maxsize=_KNOWN_MIXTURES)
def _touched(mixture: Mixture, copies: int) -> Callable[[int], float]:
    """Return the experts that so many tokens of each copy that shares them are expected to touch.

    One function for all operators and deployments of a mixture, each of its values computed once.
    """
    return lru_cache(maxsize=None)(
        lambda tokens: experts_touched(
            experts=mixture.experts,
            chosen=mixture.experts_per_token,
            zero_experts=mixture.zero_experts,
            tokens=tokens * copies,
            routing="expected",
        )
    )
