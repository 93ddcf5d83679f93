"""Recurrent layers as vLLM runs them: what a state holds, and how many blocks of it a request takes."""

from __future__ import annotations

from dataclasses import replace
from math import lcm
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.vllm.releases import (
    FIRST_CACHING_STATES,
    FIRST_WITH_DELTA_CHECKPOINTS,
    FIRST_WITH_KDA_CHECKPOINTS,
    FIRST_WITH_MAMBA2_CHECKPOINTS,
    since,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.model import State
    from kvcalc.engines.vllm.options import VllmOptions

__all__ = ["block_step", "caches_states", "recurrent_format", "state_as_run", "state_blocks"]

_RECURRENT_FORMAT = {"nemotron_h": "fp32", "kimi_linear": "fp32", "bailing_hybrid": "fp32"}
_VARIANTS = frozenset({"mamba", "mamba2", "gated_delta", "linear", "short_conv"})
_DRAFTS_IN_CONVOLUTION = frozenset({"mamba2", "gated_delta"})

# Models of QwenGatedDeltaNetAttention, which exports states within a prefill every 64 tokens where its kernel is
# FlashInfer's; OLMo-hybrid and Kimi-Linear have classes of their own that do not.
_DELTA_NETS = frozenset({"qwen3_next", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_5_moe"})
_DELTA_STEP = 64
# Models of which the delta attention exports states from FlashKDA's kernel.
_KIMI_DELTA = frozenset({"kimi_k3", "glm5_next_text"})
# Generations of cards for which those kernels are built; all but Hopper's want CUDA 13, as vLLM's wheel has it, and
# keys of 128 elements.
_HOPPER, _BLACKWELLS = "hopper", ("blackwell", "blackwell-ultra", "blackwell-rtx")
_KERNEL_KEY_DIM = 128


def caches_states(options: VllmOptions) -> bool:
    """Whether states are kept at block boundaries for later prompts (the cache mode ``align``)."""
    return options.prefix_caching and since(options.version, FIRST_CACHING_STATES)


def state_blocks(mixer: State, architecture: str, options: VllmOptions) -> int:
    """Return the blocks that a request holds in each group of such layers.

    One; where states are kept for later prompts two, and one more where its kernel exports a state within a prefill.
    Each draft token takes one.

    Source: vLLM 0.33, ``MambaSpec.max_memory_usage_bytes``.
    """
    blocks_kept = 2 + _exports(mixer, architecture, options) if caches_states(options) else 1
    return blocks_kept + options.speculative_tokens


def block_step(mixers: Iterable[State], architecture: str, options: VllmOptions) -> int:
    """Return the tokens that an attention block beside states is a multiple of, so that exported states end blocks.

    Source: vLLM 0.33, ``get_mamba_prefill_checkpoint_alignment``.
    """
    if not caches_states(options):
        return 1
    return lcm(*(_DELTA_STEP if _exports_delta(mixer, architecture, options) else 1 for mixer in mixers))


def _exports(mixer: State, architecture: str, options: VllmOptions) -> bool:
    """Whether a layer's kernel exports its state within a prefill."""
    if mixer.variant == "mamba2":
        return since(options.version, FIRST_WITH_MAMBA2_CHECKPOINTS)
    return _exports_delta(mixer, architecture, options) or _exports_kimi_delta(mixer, architecture, options)


def _exports_delta(mixer: State, architecture: str, options: VllmOptions) -> bool:
    """Whether a gated delta net runs on FlashInfer's prefill kernel in a version that takes states out of it.

    Source: vLLM 0.33, ``_resolve_gdn_prefill_backend``.
    """
    if mixer.variant != "gated_delta" or architecture not in _DELTA_NETS:
        return False
    wide = options.generation in _BLACKWELLS and mixer.key_dim == _KERNEL_KEY_DIM
    built = options.generation == _HOPPER or wide
    chosen = options.gdn_prefill_backend in {"auto", "flashinfer"}
    return built and chosen and since(options.version, FIRST_WITH_DELTA_CHECKPOINTS)


def _exports_kimi_delta(mixer: State, architecture: str, options: VllmOptions) -> bool:
    """Whether a Kimi delta attention runs on FlashKDA.

    Source: vLLM 0.33, ``models/kimi_k3/nvidia/kda.py: is_flashkda_supported``.
    """
    built = options.generation in {_HOPPER, *_BLACKWELLS} and mixer.key_dim == _KERNEL_KEY_DIM
    return built and architecture in _KIMI_DELTA and since(options.version, FIRST_WITH_KDA_CHECKPOINTS)


def state_as_run(mixer: State, architecture: str, options: VllmOptions, *, tensor: int) -> State:
    """Return a state with the columns, channels and format vLLM keeps on a rank.

    A convolution keeps kernel - 1 columns, of some kinds one more for each draft token.

    Raises:
        UnsupportedError: a recurrence that vLLM is not known to run.
    """
    if mixer.variant not in _VARIANTS:
        raise UnsupportedError(
            f"how vLLM lays out the state of {mixer.variant} layers is not modelled",
            hint="--engine ideal counts the KV cache only",
        )
    mixer = _with_groups_of_rank(mixer, tensor)
    drafts = options.speculative_tokens if mixer.variant in _DRAFTS_IN_CONVOLUTION else 0
    recurrent = recurrent_format(mixer, architecture, platform=options.platform)
    return replace(mixer, conv_window=max(0, mixer.conv_kernel - 1 + drafts), recurrent_format=recurrent)


def recurrent_format(mixer: State, architecture: str, *, platform: str) -> str | None:
    """Name the format of a layer's recurrent states; none for that of its convolution's, the model's own.

    Source: vLLM 0.33, ``MambaStateDtypeCalculator``.
    """
    return "fp32" if platform == "cpu" else mixer.requested_format or _RECURRENT_FORMAT.get(architecture)


def _with_groups_of_rank(mixer: State, tensor: int) -> State:
    """Return a state whose groups reach every rank: a Mamba-2 with fewer groups than ranks repeats them.

    Source: vLLM 0.32, MambaStateShapeCalculator.extra_groups_for_head_shards.
    """
    if mixer.variant != "mamba2" or mixer.groups >= tensor:
        return mixer
    return replace(mixer, conv_channels=mixer.conv_channels + 2 * (tensor - mixer.groups) * mixer.key_dim)
