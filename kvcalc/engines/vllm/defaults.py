"""The options that vLLM's server takes where none are given: they follow its version, the card and the model.

Source: vLLM 0.11 to 0.33, ``EngineArgs.get_batch_defaults`` and ``_set_default_max_num_seqs_and_batched_tokens_args``
(usage context ``OPENAI_API_SERVER``), ``VllmConfig.max_concurrent_batches``,
``ModelConfig.is_prefix_caching_supported``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from kvcalc.core.model import Cross, Mixture, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import GIB
from kvcalc.engines.vllm.releases import (
    FIRST_CACHING_STATES_BY_DEFAULT,
    FIRST_SEEING_UNIFIED_MEMORY,
    FIRST_WITH_IN_FLIGHT_PASSES,
    FIRST_WITH_LARGEST_GPUS,
    FIRST_WITH_V2_RUNNER,
    VERSION,
    known_release,
)

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Parallel
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "LENGTH_WITHOUT_LIMIT",
    "PASS_TOKENS",
    "SYNCHRONOUS_DRAFTS",
    "BatchDefaults",
    "batch_defaults",
    "caches_prefixes",
    "generation_of",
    "has_delta_nets",
    "passes_ahead",
    "passes_because",
    "passes_in_flight",
    "with_defaults",
]

# Tokens of a pass on cards of 70 GiB and more, which are taken where no card is named.
PASS_TOKENS = 8192
# Longest sequence of a model whose config names none (0.33, config/model.py: _get_and_verify_max_len).
LENGTH_WITHOUT_LIMIT = 2048

_LARGE_GPU_BYTES = 70 * GIB
_LARGEST_GPU_BYTES = 160 * GIB
# Cards whose memory NVML does not tell, which counted as none before 0.33; since then the GB10 has the small defaults
# by name.
_WITHOUT_NVML_TOTAL = ("dgx-spark", "jetson-thor", "jetson-agx-orin")
_SMALL_BY_NAME = "dgx-spark"
# Cards whose compute capability is not that of their generation (Thor: 11.0).
_OTHER_CAPABILITY = ("jetson-thor",)
# Drafts whose verification is not scheduled ahead of its outcome (0.32, VllmConfig: they are no EagleModelTypes).
SYNCHRONOUS_DRAFTS = ("ngram", "medusa", "layer-skip")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchDefaults:
    """The largest pass that a server takes on a card.

    Args:
        max_num_batched_tokens: tokens of a pass.
        max_num_seqs: sequences of a pass.
        because: the rule they follow from, for a reader.
    """

    max_num_batched_tokens: int
    max_num_seqs: int
    because: str


def batch_defaults(
    hardware: HardwareProfile | None,
    *,
    version: str = VERSION,
    platform: Literal["gpu", "cpu"] = "gpu",
    ranks: int = 1,
    max_model_len: int | None = None,
) -> BatchDefaults:
    """Return the tokens and sequences of a pass that a server takes where none are given.

    Args:
        hardware: the card; without one, the defaults of a card of 70 GiB or more.
        version: the engine's version.
        platform: whether it runs on GPUs or on a CPU.
        ranks: tensor-parallel ranks times pipeline stages; a CPU's defaults grow with them.
        max_model_len: the longest request; a pass holds no more than all sequences at that length.

    >>> batch_defaults(None).max_num_batched_tokens, batch_defaults(None, platform="cpu", ranks=2).max_num_seqs
    (8192, 256)
    """
    if platform == "cpu":
        defaults = BatchDefaults(max_num_batched_tokens=2048 * ranks, max_num_seqs=128 * ranks, because="on a CPU")
    else:
        defaults = _on_gpu(hardware, version)
    tokens = min(
        defaults.max_num_batched_tokens, defaults.max_num_seqs * (max_model_len or defaults.max_num_batched_tokens)
    )
    return BatchDefaults(
        max_num_batched_tokens=tokens, max_num_seqs=min(defaults.max_num_seqs, tokens), because=defaults.because
    )


def _on_gpu(hardware: HardwareProfile | None, version: str) -> BatchDefaults:
    large = BatchDefaults(
        max_num_batched_tokens=PASS_TOKENS, max_num_seqs=1024, because="on cards of 70 GiB and more, but A100"
    )
    if hardware is None:
        return large
    unseen = hardware.name in _WITHOUT_NVML_TOTAL and known_release(version) < FIRST_SEEING_UNIFIED_MEMORY
    memory = 0 if unseen or hardware.name == _SMALL_BY_NAME else hardware.driver_memory_bytes
    if memory >= _LARGEST_GPU_BYTES and known_release(version) >= FIRST_WITH_LARGEST_GPUS:
        return BatchDefaults(max_num_batched_tokens=16384, max_num_seqs=1024, because="on cards of 160 GiB and more")
    if memory >= _LARGE_GPU_BYTES and "a100" not in hardware.name.lower():
        return large
    return BatchDefaults(max_num_batched_tokens=2048, max_num_seqs=256, because="on cards below 70 GiB, and A100")


def passes_in_flight(
    model: ModelProfile,
    *,
    version: str = VERSION,
    platform: Literal["gpu", "cpu"] = "gpu",
    pipeline: int = 1,
    method: str | None = None,
) -> int:
    """Count the passes that may be under way at once, whose tokens windowed and chunked layers keep room for.

    Before 0.26 the cache kept room for one. Since then it is a pass for each pipeline stage, and one more where passes
    are scheduled ahead: with one stage, or with the second model runner.

    Args:
        model: the model; up to 0.28 mixtures and models with states ran on the first model runner.
        version: the engine's version.
        platform: whether it runs on GPUs or on a CPU, where nothing is scheduled ahead.
        pipeline: pipeline stages.
        method: how tokens are drafted, if they are; n-grams and Medusa's heads are not scheduled ahead.

    Source: vLLM pull request 47728 (0.26); ``VllmConfig.max_concurrent_batches`` and ``use_v2_model_runner``.
    """
    release = known_release(version)
    if release < FIRST_WITH_IN_FLIGHT_PASSES:
        return 1
    ahead = 0 if method in SYNCHRONOUS_DRAFTS else passes_ahead(platform)
    if ahead == 0:
        return pipeline
    blocks = model.block_counts
    first_runner = release < FIRST_WITH_V2_RUNNER and any(
        isinstance(block.mlp, Mixture) or any(isinstance(mixer, State) for mixer in block.mixers) for block in blocks
    )
    return pipeline if first_runner and pipeline > 1 else pipeline + ahead


def passes_ahead(platform: Literal["gpu", "cpu"]) -> int:
    """Count the passes scheduled ahead of those that run: one, on a CPU none."""
    return 0 if platform == "cpu" else 1


def passes_because(version: str, platform: Literal["gpu", "cpu"], method: str | None) -> str:
    """Name the rule that `passes_in_flight` follows, for a reader."""
    if known_release(version) < FIRST_WITH_IN_FLIGHT_PASSES:
        return "before vLLM 0.26"
    if platform == "cpu":
        return "on a CPU"
    return f"with {method} drafts" if method in SYNCHRONOUS_DRAFTS else "vLLM 0.26 and later"


def caches_prefixes(model: ModelProfile, *, version: str = VERSION) -> bool:
    """Whether blocks are kept for later prompts where nothing is asked for.

    Not where there is an encoder or no attention, and beside states from 0.26 on.

    Raises:
        InputError: not a version.
    """
    mixers = model.mixers
    states = [mixer for mixer in mixers if isinstance(mixer, State)]
    if not states:
        return not any(isinstance(mixer, Cross) for mixer in mixers)
    return len(states) < len(mixers) and known_release(version) >= FIRST_CACHING_STATES_BY_DEFAULT


def has_delta_nets(model: ModelProfile) -> bool:
    """Whether layers are gated delta nets, whose states take more of the cache where a card has FlashInfer's kernel."""
    mixers = model.mixers
    return any(isinstance(mixer, State) and mixer.variant == "gated_delta" for mixer in mixers)


def generation_of(hardware: HardwareProfile | None) -> str:
    """Return the generation of a card, as its maker names it, where its kernels are those of that generation."""
    if hardware is None or hardware.name in _OTHER_CAPABILITY:
        return ""
    return hardware.architecture


def with_defaults(
    options: EngineOptions,
    model: ModelProfile,
    parallel: Parallel,
    hardware: HardwareProfile | None,
    draft: Draft | None,
) -> EngineOptions:
    """Return the options with what the engine takes where they say nothing, but for the longest sequence.

    Args:
        options: the options, their longest sequence among them.
        model: the model.
        parallel: how it is spread.
        hardware: the card, where there is one.
        draft: what drafts for the model.

    Raises:
        InputError: not a version.
    """
    version, method = options.version or VERSION, None if draft is None else draft.method
    largest = batch_defaults(
        hardware,
        version=version,
        platform=options.platform,
        ranks=parallel.tensor * parallel.pipeline,
        max_model_len=options.max_model_len,
    )
    passes = passes_in_flight(
        model, version=version, platform=options.platform, pipeline=parallel.pipeline, method=method
    )
    caching = options.prefix_caching
    return replace(
        options,
        max_num_batched_tokens=options.max_num_batched_tokens or largest.max_num_batched_tokens,
        max_in_flight_batches=options.max_in_flight_batches or passes,
        prefix_caching=caches_prefixes(model, version=version) if caching is None else caching,
        generation=options.generation or generation_of(hardware),
    )
