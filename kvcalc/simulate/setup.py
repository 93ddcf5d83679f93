"""From a deployment and an engine's options to what a simulated replica is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.search import largest
from kvcalc.engines import vllm
from kvcalc.engines.pools import check_vllm, vllm_options
from kvcalc.plan.contexts import default_context
from kvcalc.plan.deployment import started
from kvcalc.plan.fit import cache_memory
from kvcalc.plan.room import BudgetTerms, room
from kvcalc.plan.steps import check_timed
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.scheduler import MAX_WAITING, Limits
from kvcalc.simulate.serving import ServingSetup

if TYPE_CHECKING:
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.start import EngineStart
    from kvcalc.engines.vllm import Layout
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.drafting import Drafting
    from kvcalc.simulate.policies import SchedulingPolicy
    from kvcalc.simulate.scheduler import Policy, Preemption
    from kvcalc.simulate.timer import StepTimer

__all__ = ["serving_setup"]


def serving_setup(
    deployment: Deployment,
    *,
    timer: StepTimer,
    options: EngineOptions | None = None,
    kv_bytes: int | None = None,
    num_blocks: int | None = None,
    policy: Policy | type[SchedulingPolicy] = "fcfs",
    preemption: Preemption = "recompute",
    host_bytes_per_s: float | None = None,
    long_prefill_token_threshold: int = 0,
    watermark_blocks: int = 0,
    speculative_tokens: int = 0,
    drafting: Drafting | None = None,
    max_waiting: int = MAX_WAITING,
) -> ServingSetup:
    """Return a replica of vLLM, its cache laid out as that engine does.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        timer: how long steps take.
        options: the engine's options.
        kv_bytes: memory of each GPU's cache; as the engine's budget leaves it where left out.
        num_blocks: blocks of the cache, the null block included, whatever the memory.
        policy: who is admitted first, and who loses its blocks; a class of one's own decides that too.
        preemption: whether a preempted sequence computes its tokens again or finds them in the host's memory.
        host_bytes_per_s: rate at which blocks move to the host's memory and back.
        long_prefill_token_threshold: tokens of a prompt in one step at most, where others run too.
        watermark_blocks: blocks that an admission leaves free.
        speculative_tokens: draft tokens of each verification.
        drafting: acceptance and drafter.
        max_waiting: requests that wait at once, beyond which a simulation is refused.

    Raises:
        InputError: no accelerator, a cache that holds nothing, swapping at no rate, or what the engine refuses.
        UnsupportedError: a model whose cache in the engine is not modelled.
    """
    notes = _engine_notes(deployment)
    deployment = started(deployment, "vllm", options)
    check_timed(deployment)
    model = deployment.model
    longest = deployment.options.max_model_len or model.context_limit or default_context(model, "vllm")
    if num_blocks is None:
        longest, shortened = _length_that_starts(deployment, longest, kv_bytes)
        notes += shortened
    start = deployment.start(max_model_len=longest)
    check_vllm(model, deployment.formats, deployment.parallel, start.options)
    layout = _layout(start, longest)
    step_tokens = start.options.max_num_batched_tokens or 0
    if num_blocks is None:
        memory = cache_memory(deployment) if kv_bytes is None else kv_bytes
        num_blocks = max(memory, 0) // layout.bytes_per_block
    if num_blocks <= 1:
        raise InputError(
            "weights and overhead leave nothing for the cache", hint="kvcalc fit shows a setup that holds them"
        )
    if preemption == "swap" and not host_bytes_per_s:
        raise InputError("swapping needs the rate of the link to the host's memory")
    if 0 < step_tokens <= speculative_tokens:
        raise InputError(
            f"no verification of {1 + speculative_tokens} tokens fits in a step of {step_tokens}",
            hint="give fewer draft tokens, or a larger --max-num-batched-tokens",
        )
    limits = Limits(
        max_num_batched_tokens=step_tokens,
        max_num_seqs=start.pass_sequences,
        max_model_len=longest,
        policy="fcfs" if isinstance(policy, type) else policy,
        preemption=preemption,
        prefix_caching=layout.prefix_caching and shares_prefixes(layout),
        long_prefill_token_threshold=long_prefill_token_threshold,
        watermark_blocks=watermark_blocks,
        speculative_tokens=speculative_tokens,
        max_waiting=max_waiting,
    )
    return ServingSetup(
        limits=limits,
        num_blocks=num_blocks,
        groups=block_groups(layout, step_tokens=step_tokens),
        timer=timer,
        swap_s_per_block=layout.bytes_per_block / host_bytes_per_s if host_bytes_per_s else 0.0,
        drafting=drafting,
        unmodelled_prefix_tokens=_unmodelled_prefix_tokens(layout),
        notes=notes,
        decisions=policy if isinstance(policy, type) else None,
    )


def _engine_notes(deployment: Deployment) -> tuple[str, ...]:
    """Say that another engine than the simulated one usually runs such weights, or runs on such accelerators."""
    usual = deployment.served_by
    return () if usual == "vllm" else (f"served as vLLM would: the scheduler of {usual}, usual here, is not modelled",)


def _length_that_starts(deployment: Deployment, longest: int, kv_bytes: int | None) -> tuple[int, tuple[str, ...]]:
    """Return the longest sequence that the engine starts for, and a note where that is less than its own default.

    Raises:
        InputError: it does not start for the length that was asked for, or for none.
    """
    terms = BudgetTerms(kv_bytes=kv_bytes)

    def starts(length: int) -> bool:
        return room(deployment, max_model_len=length, terms=terms).starts

    if starts(longest):
        return longest, ()
    shorter = 0 if deployment.options.max_model_len is not None else largest(starts, longest)
    if shorter == 0:
        reason = room(deployment, max_model_len=longest, terms=terms).reason(context=1, batch=1)
        raise InputError(f"vllm does not start: {reason}", hint="kvcalc fit shows a setup that holds it")
    return shorter, (f"started with --max-model-len {shorter}, the longest that starts: vllm refuses {longest:,} here",)


def block_groups(layout: Layout, *, step_tokens: int) -> tuple[BlockGroup, ...]:
    """Count the blocks that a sequence holds in each group of a layout.

    Args:
        layout: the engine's layout.
        step_tokens: tokens of one sequence in a step at most; they are held beside the window.
    """
    groups = []
    for group in layout.groups:
        size = group.span_tokens
        if group.kind in {"state", "cross"}:
            groups.append(BlockGroup(block_size=size, constant=group.needed_blocks))
        elif group.kind == "sliding":
            reached = group.reach - 1 + step_tokens
            groups.append(BlockGroup(block_size=size, window=group.reach, admission_tokens=reached))
        elif group.kind == "chunked":
            reached = group.reach + step_tokens
            groups.append(BlockGroup(block_size=size, chunk=group.reach, admission_tokens=reached))
        else:
            groups.append(BlockGroup(block_size=size))
    return tuple(groups)


def shares_prefixes(layout: Layout) -> bool:
    """Whether the blocks that later prompts find are modelled: those of one group that keeps all tokens."""
    return len(layout.groups) == 1 and layout.groups[0].kind in {"full", "latent", "index"}


def _unmodelled_prefix_tokens(layout: Layout) -> int:
    """Return the tokens in whose blocks the engine would find prefixes that are not modelled; 0 where there are none.

    Models of states alone run without a prefix cache (vLLM 0.32, MambaModelConfig).
    """
    kept = layout.prefix_caching and any(group.kind != "state" for group in layout.groups)
    return layout.scheduler_block_size if kept and not shares_prefixes(layout) else 0


def _layout(start: EngineStart, longest: int) -> Layout:
    """Return the layout of the stage with the largest blocks, which decides for all."""
    parallel = start.parallel
    asked = vllm_options(start.model, parallel, start.options, max_model_len=longest, draft=start.draft)
    stages = vllm.stage_layouts(start.model, start.formats, asked, tensor=parallel.tensor, pipeline=parallel.pipeline)
    return max(stages, key=lambda stage: stage.bytes_per_block)
