"""The options that vLLM's server takes where none are given: they follow its version, the card and the model.

Source: vLLM 0.11 to 0.32, ``EngineArgs.get_batch_defaults`` and ``_set_default_max_num_seqs_and_batched_tokens_args``
(usage context ``OPENAI_API_SERVER``), ``VllmConfig.max_concurrent_batches``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from kvcalc.core.model import Mixture, State
from kvcalc.core.units import GIB
from kvcalc.engines.vllm.releases import (
    FIRST_WITH_IN_FLIGHT_PASSES,
    FIRST_WITH_LARGEST_GPUS,
    FIRST_WITH_V2_RUNNER,
    VERSION,
    known_release,
)

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile

__all__ = ["BatchDefaults", "batch_defaults", "passes_because", "passes_in_flight"]

_LARGE_GPU_BYTES = 70 * GIB
_LARGEST_GPU_BYTES = 160 * GIB
# Cards whose memory NVML does not tell, which then counts as none (GB10: NVMLError_NotSupported).
_WITHOUT_NVML_TOTAL = ("dgx-spark", "jetson-thor", "jetson-agx-orin")
# Drafts whose verification is not scheduled ahead of its outcome (0.32, VllmConfig: they are no EagleModelTypes).
_SYNCHRONOUS_DRAFTS = ("ngram", "medusa", "layer-skip")


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
        found = BatchDefaults(max_num_batched_tokens=2048 * ranks, max_num_seqs=128 * ranks, because="on a CPU")
    else:
        found = _on_gpu(hardware, version)
    tokens = min(found.max_num_batched_tokens, found.max_num_seqs * (max_model_len or found.max_num_batched_tokens))
    return BatchDefaults(
        max_num_batched_tokens=tokens, max_num_seqs=min(found.max_num_seqs, tokens), because=found.because
    )


def _on_gpu(hardware: HardwareProfile | None, version: str) -> BatchDefaults:
    large = BatchDefaults(
        max_num_batched_tokens=8192, max_num_seqs=1024, because="on cards of 70 GiB and more, but A100"
    )
    if hardware is None:
        return large
    memory = 0 if hardware.name in _WITHOUT_NVML_TOTAL else hardware.driver_memory_bytes
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
    """Return how many passes may be under way at once, whose tokens windowed and chunked layers keep room for.

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
    if platform == "cpu" or method in _SYNCHRONOUS_DRAFTS:
        return pipeline
    blocks = model.block_counts
    first_runner = release < FIRST_WITH_V2_RUNNER and any(
        isinstance(block.mlp, Mixture) or any(isinstance(mixer, State) for mixer in block.mixers) for block in blocks
    )
    return pipeline if first_runner and pipeline > 1 else pipeline + 1


def passes_because(version: str, platform: Literal["gpu", "cpu"], method: str | None) -> str:
    """Name the rule that `passes_in_flight` follows, for a reader."""
    if known_release(version) < FIRST_WITH_IN_FLIGHT_PASSES:
        return "before vLLM 0.26"
    if platform == "cpu":
        return "on a CPU"
    return f"with {method} drafts" if method in _SYNCHRONOUS_DRAFTS else "vLLM 0.26 and later"
