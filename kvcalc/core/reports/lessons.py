"""What the demonstrations of ``kvcalc demo`` show: small computations, step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "DecoderShape",
    "DriftReport",
    "DriftStep",
    "KvCacheReport",
    "KvCacheStep",
    "PagingReport",
    "PagingScheme",
    "PagingStep",
    "SharingEvent",
    "SpeculationDraft",
    "SpeculationReport",
    "SpeculationRound",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The sizes of a small causal decoder.

    Args:
        layers: layers.
        heads: query heads.
        kv_heads: key-value heads; they divide ``heads``.
        head_dim: width of a head.
        vocabulary: tokens there are.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocabulary: int = 50

    @property
    def hidden_size(self) -> int:
        """Width of the hidden state."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheStep:
    """The pass that makes one token, without and with the cache.

    Args:
        place: of the token made, counted from 1.
        phase: ``prefill`` or ``decode``, as the cached run does it.
        past_tokens: tokens of a sequence in the cache before it.
        tokens: the token made, for each sequence of the batch.
        projections_without: tokens whose keys and values a layer computes, without a cache.
        projections_with: the same with a cache.
        shapes: shape of each tensor of a layer in the cached pass.
        shapes_without: shape of the same tensors where everything is computed again.
        difference: largest difference between the last token's attention outputs of the two runs, over all layers.
    """

    place: int
    phase: str
    past_tokens: int
    tokens: tuple[int, ...]
    projections_without: int
    projections_with: int
    shapes: Mapping[str, tuple[int, ...]]
    shapes_without: Mapping[str, tuple[int, ...]]
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheReport:
    """Generation without and with a cache of keys and values.

    A projection is one token's key and value in one layer, all its heads; the sums below are those of one layer and one
    sequence. The last token made is never projected: nothing follows that would attend to it.

    Args:
        shape: the decoder.
        batch: sequences.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens made after it.
        seed: of weights and prompts.
        projections_without: without a cache, sum over i < n of (prompt + i).
        projections_with: with a cache, prompt + n - 1.
        same_tokens: whether both runs made the same tokens.
        difference: largest difference of attention outputs.
        by_row_difference: the same where both runs multiply row by row, in the same order; over the first tokens of the
            first sequence.
        both_ways_difference: the same for a decoder of at least two layers without the causal mask, whose old keys and
            values would have to change with every new token.
        both_ways_first_wrong: place of the first token that the unmasked decoder gets wrong with a cache, if any.
        cache_bytes: bytes of keys and values that the cached run holds at the end, as float64.
        steps: each pass.
    """

    schema: str = "kvcalc.demo_kv_cache/1"
    shape: DecoderShape
    batch: int
    prompt_tokens: int
    output_tokens: int
    seed: int
    projections_without: int
    projections_with: int
    same_tokens: bool
    difference: float
    by_row_difference: float
    both_ways_difference: float
    both_ways_first_wrong: int | None
    cache_bytes: int
    steps: tuple[KvCacheStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftStep:
    """Distance from the truth at one step, by root mean square; the states lie on a circle of radius 1.

    Args:
        place: steps since the last true state, for the free-running generator.
        teacher_forced_error: each step from the true state before it.
        free_running_error: each step from the generator's own.
        teacher_forced_error_consistent: the same, trained with the consistency loss.
        free_running_error_consistent: the same, trained with the consistency loss.
    """

    place: int
    teacher_forced_error: float
    free_running_error: float
    teacher_forced_error_consistent: float
    free_running_error_consistent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DriftReport:
    """A generator that feeds on its own states, trained on single steps and with a consistency loss.

    Args:
        horizon_steps: steps that it runs on its own states in training.
        consistency: weight of the consistency loss.
        trainings: trainings that errors are means over.
        seed: of all that is random.
        noise: standard deviation of the noise on what it learns from.
        final_error: free-running error at the last step, trained on single steps.
        final_error_consistent: the same with the consistency loss.
        reduction: the first over the second.
        steps: the errors of each step.
    """

    schema: str = "kvcalc.demo_drift/1"
    horizon_steps: int
    consistency: float
    trainings: int
    seed: int
    noise: float
    final_error: float
    final_error_consistent: float
    reduction: float
    steps: tuple[DriftStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingScheme:
    """How the same requests were served by one way to hand out memory.

    Shares are of the cache's memory, means over the steps at which a request was waiting, so that the memory was the
    limit.

    Args:
        name: ``reserved`` or ``paged``.
        decode_steps: steps until all requests were done.
        mean_running_requests: requests at once.
        most_running_requests: the most at once.
        useful_share: memory that holds tokens.
        inside_share: memory set aside for a request that holds no token of it yet, or never will.
        between_share: memory that no request has while one waits.
        useful_share_of_reserved: tokens held over memory set aside.
        mean_wasted_tokens: memory set aside and not used, for a request that holds some.
        preempted_requests: requests thrown out to be computed again, because no block was left.
    """

    name: str
    decode_steps: int
    mean_running_requests: float
    most_running_requests: int
    useful_share: float
    inside_share: float
    between_share: float
    useful_share_of_reserved: float
    mean_wasted_tokens: float
    preempted_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingStep:
    """The memory at one step of serving.

    Args:
        scheme: ``reserved`` or ``paged``.
        place: decode steps done.
        running_requests: requests that hold memory.
        waiting_requests: requests that do not yet.
        used_tokens: tokens held.
        reserved_tokens: memory set aside, in tokens.
    """

    scheme: str
    place: int
    running_requests: int
    waiting_requests: int
    used_tokens: int
    reserved_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharingEvent:
    """One thing that happens to shared blocks.

    Args:
        what: in words.
        tables: the block table of each sequence afterwards.
        blocks: blocks that have an owner.
        unshared_blocks: blocks that the same sequences would take without sharing.
    """

    what: str
    tables: tuple[tuple[int, ...], ...]
    blocks: int
    unshared_blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingReport:
    """The same requests with their longest length set aside for each, and with paged blocks.

    Args:
        memory_tokens: tokens that the memory holds.
        block_tokens: tokens of a block.
        longest_tokens: length set aside for a request where nothing is paged.
        requests: requests served.
        refused_requests: requests longer than that, which neither way serves.
        reserved: served with the longest length set aside.
        paged: served in blocks.
        more_requests: requests at once with blocks over those without.
        sharing: a prefix that two requests share, and copies of a block that samples of one prompt write to.
        steps: the memory over time.
    """

    schema: str = "kvcalc.demo_paging/1"
    memory_tokens: int
    block_tokens: int
    longest_tokens: int
    requests: int
    refused_requests: int
    reserved: PagingScheme
    paged: PagingScheme
    more_requests: float
    sharing: tuple[SharingEvent, ...]
    steps: tuple[PagingStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationRound:
    """One pass of the target.

    Args:
        draft: which draft.
        place: of the pass, from 1.
        drafted: tokens of the draft.
        accepted: those that the target would have chosen too.
        rejected: the first that it would not have chosen; the rest of the draft falls with it.
        own: the target's own token behind them.
        ending: ``correction`` of a rejected token, or ``bonus`` behind a draft accepted to its end.
        emitted: tokens taken over.
    """

    draft: str
    place: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]
    rejected: tuple[int, ...]
    own: int
    ending: str
    emitted: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationDraft:
    """A draft, and what it did for the same text.

    Args:
        name: what it is called.
        quality: share of contexts at which it proposes what the target would choose.
        target_passes: passes of the target.
        drafted_tokens: tokens drafted.
        accepted_tokens: of these, accepted.
        mean_tokens_per_pass: tokens that a pass gave, the target's own included.
        same_output: whether the text is the one that the target makes alone.
    """

    name: str
    quality: float
    target_passes: int
    drafted_tokens: int
    accepted_tokens: int
    mean_tokens_per_pass: float
    same_output: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationReport:
    """Greedy speculation with drafts of several qualities: the passes change, the output does not.

    Args:
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens made, and passes that the target takes alone.
        gamma: tokens drafted for a pass.
        seed: of the target's weights and of the drafts' errors.
        output: the tokens made.
        drafts: what each draft did.
        steps: each pass of each of them.
    """

    schema: str = "kvcalc.demo_speculate/1"
    prompt_tokens: int
    output_tokens: int
    gamma: int
    seed: int
    output: tuple[int, ...]
    drafts: tuple[SpeculationDraft, ...]
    steps: tuple[SpeculationRound, ...] = ()
