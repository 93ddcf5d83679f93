"""A start that is tried on paper: options changed, and whether the engine would take them, by the rules of `fit`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from kvcalc.core.errors import KvcalcError
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.search import largest
from kvcalc.core.units import GIB, bytes_text
from kvcalc.core.workload import Parallel
from kvcalc.engines.budget import vllm_overhead
from kvcalc.plan.deployment import deploy
from kvcalc.plan.reconcile.weights import stored_otherwise
from kvcalc.plan.room import NO_TERMS, BudgetTerms, room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.fit import Budget
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.logs import StartUp
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.room import Room

__all__ = [
    "NO_GPU",
    "Attempt",
    "Change",
    "LoadedWeights",
    "Remedies",
    "Remedy",
    "both",
    "contradiction",
    "loaded_weights",
    "longest_length",
    "rounded_length",
    "rounded_share",
    "tried",
    "unnamed_gpu",
]

# Lengths are rounded down: memory differs a little from one start to the next.
_LONG, _COARSE_STEP, _FINE_STEP = 10240, 1024, 256
_MAX_REMEDIES = 6
# What tensor-parallel ranks repeat of each other's weights at most, as a factor.
_REPEATED_SHARE = 1.1
# 0.95 less 0.02 is 0.93, whatever floating-point numbers make of it.
_SHARE_SLACK = 2e-9
NO_GPU = "the log does not give the GPU's memory; add --gpu to get flags that would start it"
_FITS = (
    "by the rules of fit this start has enough memory on the {}; the log does not show what takes it, such as other "
    "processes or a lower utilization"
)
_NOTHING = "no flags were found that would start it on this GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedWeights:
    """The weights of a rank as the log printed them, where they are not those of the model's profile.

    Args:
        rank_bytes: bytes of a rank.
        gpus: ranks of that start.
    """

    rank_bytes: int
    gpus: int

    def of(self, parallel: Parallel) -> int:
        """Return the bytes of a rank on other ranks: some parts are on every one of them."""
        if parallel.gpus == self.gpus:
            return self.rank_bytes
        return int(_REPEATED_SHARE * self.rank_bytes * self.gpus / parallel.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A start with some options.

    Args:
        engine: the engine.
        model: the model, with draft layers where it has some.
        length: the longest request.
        options: the engine's options.
        parallel: how it is spread.
        kv: format of the cache, where one is asked for.
        hardware: the accelerator, with the memory that the log printed; none where it is not known.
        draft: how tokens are drafted, where they are; its layers are among the model's.
        loaded: weights as printed, where they are not those of the model's profile.
        flags: flags that differ from the log's start.
    """

    engine: str
    model: ModelProfile
    length: int
    options: EngineOptions
    parallel: Parallel
    kv: str | None = None
    hardware: HardwareProfile | None = None
    draft: Draft | None = None
    loaded: LoadedWeights | None = None
    flags: tuple[str, ...] = ()

    def changed(self, flag: str, *, length: int | None = None, kv: str | None = None, **options: object) -> Attempt:
        """Return it with one flag more."""
        return replace(
            self,
            length=length or self.length,
            kv=kv or self.kv,
            options=replace(self.options, **options),  # type: ignore[arg-type]
            flags=(*self.flags, flag),
        )

    def spread(self, flag: str, tensor: int) -> Attempt:
        """Return it on so many tensor-parallel ranks."""
        return replace(self, parallel=replace(self.parallel, tensor=tensor), flags=(*self.flags, flag))

    @property
    def _deployment(self) -> Deployment:
        deployment = deploy(
            self.model,
            hardware=self.hardware,
            parallel=self.parallel,
            kv=self.kv,
            engine=self.engine,
            options=replace(self.options, max_model_len=self.length),
        )
        return replace(deployment, draft=self.draft)

    @property
    def overhead_bytes(self) -> int:
        """Bytes of a rank that vLLM takes beside weights and pass at most, by the rule of `fit`."""
        rocm = self.hardware is not None and self.hardware.vendor == "amd"
        return vllm_overhead(self._deployment.start(), rocm=rocm).most

    def room(self, kv_bytes: int | None) -> Room | None:
        """Return its memory; none where the engine refuses the options, or where the memory is not known.

        Args:
            kv_bytes: bytes for the cache of a rank, where the log tells; else they are computed.
        """
        if kv_bytes is None and self.hardware is None:
            return None
        terms = NO_TERMS if kv_bytes is None else BudgetTerms(kv_bytes=kv_bytes)
        try:
            deployment = self._deployment
            space = room(deployment, max_model_len=self.length, terms=terms)
            if space.budget is not None and self.loaded is not None:
                left = space.kv_bytes + space.budget.weight_bytes - self.loaded.of(self.parallel)
                space = room(deployment, max_model_len=self.length, terms=BudgetTerms(kv_bytes=left))
            _ = space.held
        except KvcalcError:
            return None
        return space


# Returns a changed start; none where it does not apply.
Change: TypeAlias = "Callable[[Attempt], Attempt | None]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """Flags with which the engine would start.

    Args:
        flags: the flags.
        gives: what it would have then.
    """

    flags: str
    gives: str

    @property
    def text(self) -> str:
        """Flags and outcome on one line."""
        return f"{self.flags}: {self.gives}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Flags with which a start that failed would succeed, and what it lacked.

    Args:
        found: the flags, the gentlest first.
        length: the longest request of the start that failed.
        needed_bytes: what one such request needs of the cache of each GPU, where it was computed.
        budget: the memory of a GPU as computed, where the accelerator is known.
        why_none: why no flags were found.
        deduced: what the log does not say and was deduced from its sizes.
    """

    found: tuple[Remedy, ...] = ()
    length: int = 0
    needed_bytes: int | None = None
    budget: Budget | None = None
    why_none: str = ""
    deduced: str = ""


def starts(attempt: Attempt, kv_bytes: int | None) -> Room | None:
    """Return the room of an attempt that starts and holds one request of its longest length; else none."""
    space = attempt.room(kv_bytes)
    if space is None or space.reason(context=attempt.length, batch=1):
        return None
    return space


def rounded_length(length: int) -> int:
    """Return a length rounded down to a multiple of 1,024, a short one of 256.

    >>> rounded_length(81392), rounded_length(5632), rounded_length(100)
    (80896, 5632, 100)
    """
    step = _COARSE_STEP if length >= _LONG else _FINE_STEP
    return length // step * step or length


def rounded_share(share: float) -> float:
    """Return a share rounded down to whole percents.

    >>> rounded_share(20.11 / 23.64)
    0.85
    """
    return math.floor(100 * share + _SHARE_SLACK) / 100


def longest_length(attempt: Attempt, kv_bytes: int | None) -> int:
    """Return the longest request, up to the attempt's own, with which it would start; 0 if none."""
    return largest(lambda length: starts(replace(attempt, length=length), kv_bytes) is not None, attempt.length)


def both(one: Change, other: Change) -> Change:
    """Return two changes, one after the other."""

    def change(attempt: Attempt) -> Attempt | None:
        changed = one(attempt)
        return None if changed is None else other(changed)

    return change


def unnamed_gpu(memory_bytes: int) -> HardwareProfile:
    """Return an accelerator of which only the memory is known: what fits depends on no more."""
    return HardwareProfile(
        name="gpu",
        title=f"GPU of {bytes_text(memory_bytes)}",
        vendor="",
        memory_label_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=1,
        peak_flop_per_s={"bf16": 1},
        memory_bytes=memory_bytes,
        runtime_memory_bytes=memory_bytes,
    )


def loaded_weights(start_up: StartUp, model: ModelProfile, gpus: int) -> tuple[LoadedWeights | None, str]:
    """Return weights as printed where the model's profile has others, and why they cannot be known where none were."""
    otherwise = stored_otherwise(start_up, model)
    printed = start_up.printed.get("loaded_gib") or start_up.printed.get("weights_gib")
    if not otherwise or not printed:
        return None, otherwise
    return LoadedWeights(rank_bytes=int(max(size.most for size in printed) * GIB), gpus=gpus), ""


def contradiction(first: Attempt, kv_bytes: int | None) -> Remedies | None:
    """Return that a start which ran out of memory should not have, where its memory was computed and not printed."""
    if kv_bytes is not None or first.hardware is None:
        return None
    space = starts(first, None)
    if space is None:
        return None
    return Remedies(
        length=first.length,
        needed_bytes=space.held.needed_bytes,
        budget=space.budget,
        why_none=_FITS.format(first.hardware.title),
    )


def tried(first: Attempt, changes: Iterable[Change], memory: Callable[[Attempt], int | None]) -> Remedies:
    """Return the changes that let the engine start, in the order given: the first with each set of flags.

    Args:
        first: the start that failed.
        changes: return a changed start, or none where they do not apply.
        memory: returns the bytes for the cache of a rank of a start, where the log tells; else they are computed.
    """
    remedies: dict[frozenset[str], Remedy] = {}
    for change in changes:
        attempt = change(first)
        names = frozenset(flag.split()[0] for flag in attempt.flags) if attempt is not None else frozenset()
        if attempt is None or not names or names in remedies or len(remedies) == _MAX_REMEDIES:
            continue
        space = starts(attempt, memory(attempt))
        if space is not None:
            remedies[names] = Remedy(flags=" ".join(attempt.flags), gives=_gives(space, attempt))
    computed = first.room(None)
    as_tried = first.room(memory(first)) or computed
    why = "" if remedies else _NOTHING if first.hardware else NO_GPU
    return Remedies(
        found=tuple(remedies.values()),
        length=first.length,
        needed_bytes=None if as_tried is None else as_tried.held.needed_bytes,
        budget=None if computed is None else computed.budget,
        why_none=why,
    )


def _gives(space: Room, attempt: Attempt) -> str:
    cache = space.held
    gpus = f" on {attempt.parallel.gpus} GPUs" if attempt.parallel.gpus > 1 else ""
    return (
        f"{cache.tokens:,} tokens of cache{gpus}, {cache.concurrency:.2f} requests of {attempt.length:,} tokens at once"
    )
