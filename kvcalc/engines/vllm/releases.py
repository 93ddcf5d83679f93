"""Differences between vLLM's releases: reading a version, and the first version of each rule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from kvcalc.engines.vllm.groups import Layout

__all__ = [
    "FIRST_BY_CONCURRENCY",
    "FIRST_CACHING_STATES",
    "FIRST_CACHING_STATES_BY_DEFAULT",
    "FIRST_SEEING_UNIFIED_MEMORY",
    "FIRST_WITH_CHUNKS",
    "FIRST_WITH_DELTA_CHECKPOINTS",
    "FIRST_WITH_GRAPHS",
    "FIRST_WITH_GROUPS",
    "FIRST_WITH_IN_FLIGHT_PASSES",
    "FIRST_WITH_KDA_CHECKPOINTS",
    "FIRST_WITH_LARGEST_GPUS",
    "FIRST_WITH_MAMBA2_CHECKPOINTS",
    "FIRST_WITH_NULL_BLOCK",
    "FIRST_WITH_ROUNDS_AHEAD",
    "FIRST_WITH_V2_RUNNER",
    "FIRST_WITH_WIDE_LATENT_BLOCKS",
    "LAST_V0",
    "VERSION",
    "checks_all_layers",
    "default_utilization",
    "known_release",
    "printed_tokens",
    "release_of",
    "since",
]

# The version whose layout is described.
VERSION = "0.33"

# Up to 0.20 vLLM printed blocks // groups * block size, from 0.21 on concurrency * length:
# 0.20.1rc1 printed 67,728 tokens beside 1.06 x 180,000 (https://github.com/noonghunna/club-3090/issues/46),
# a build of 0.21 619,202 beside 2.36 x 262,144 (https://github.com/noonghunna/club-3090/issues/104),
# 0.22.0 two token counts for one pool and two lengths (https://github.com/noonghunna/club-3090/pull/334).
FIRST_BY_CONCURRENCY = (0, 21)
# The estimate of the longest length left the null block out: 0.23.1 printed 123,872 where all 161 blocks are needed
# (https://github.com/vllm-project/vllm/issues/49064); 0.32 leaves one block over.
FIRST_WITH_NULL_BLOCK = (0, 30)
# Models with states beside attention held one state a request, whatever was asked of prefix caching: Kimi-Linear on
# 0.11 (75,840 tokens in 2.30 GiB, 2.48 x 120,000; https://github.com/vllm-project/vllm/issues/28228), Falcon-H1 and
# Zamba2 on 0.12.0 (their logs are among the shipped facts).
FIRST_CACHING_STATES = (0, 13)
# States are cached by default (ModelConfig.is_prefix_caching_supported says no for hybrids in 0.25.1, yes in 0.26).
FIRST_CACHING_STATES_BY_DEFAULT = (0, 26)
# Kernels that export a state within a prefill take one state block more: FlashKDA's (kimi_k3/nvidia/kda.py of 0.29),
# Mamba-2's (mamba_mixer2.py of 0.32), FlashInfer's of gated delta nets (qwen_gdn_linear_attn.py of 0.33: Qwen3-Next in
# 40 GiB for 4,096 tokens holds 731,015, before 939,739).
FIRST_WITH_KDA_CHECKPOINTS = (0, 29)
FIRST_WITH_MAMBA2_CHECKPOINTS = (0, 32)
FIRST_WITH_DELTA_CHECKPOINTS = (0, 33)
# Latent attention beside states has blocks in steps of 128 tokens; the same log of 0.11 has 960, a step of 64.
FIRST_WITH_WIDE_LATENT_BLOCKS = (0, 12)
# These held the cache of all layers against the memory of one pipeline rank before they started: GLM-4.7-FP8 on eight
# ranks of 28.57 GiB was told that it needs 71.16 GiB (https://github.com/vllm-project/vllm/issues/32105; it came with
# pull request 29431 and went with 33698).
_CHECKING_ALL_LAYERS = ((0, 14), (0, 15))
# Passes are scheduled ahead by default, verifications of EAGLE's and MTP's drafts among them
# (https://github.com/vllm-project/vllm/pull/27614).
FIRST_WITH_ROUNDS_AHEAD = (0, 14)
# V0 and the first V1 releases held every layer in full; chunked layers had groups of their own at 0.19.0 (the log of
# Llama-4-Scout: 365,968 tokens beside 44.68 requests take four groups,
# https://github.com/llm-d-incubation/llm-d-planner/pull/205), and could be held in full before.
FIRST_WITH_GROUPS = (0, 10)
FIRST_WITH_CHUNKS = (0, 19)
# CUDA graphs are estimated, and taken off the memory for the cache, by default (0.20.0: envs.py, though what it prints
# says 0.21).
FIRST_WITH_GRAPHS = (0, 20)
# Windowed and chunked layers keep room for the tokens of all passes under way, before for those of one: 0.25.1 needs
# 45.79 GiB for 262,144 tokens of gemma-4-31b, 0.26 70.79 (https://github.com/vllm-project/vllm/pull/47728).
FIRST_WITH_IN_FLIGHT_PASSES = (0, 26)
# Servers on cards of 160 GiB and more take 16,384 tokens a pass (https://github.com/vllm-project/vllm/pull/51726).
FIRST_WITH_LARGEST_GPUS = (0, 28)
# The second model runner is the default of all models (0.29: VllmConfig.use_v2_model_runner has no list of them).
FIRST_WITH_V2_RUNNER = (0, 29)
# Where NVML does not tell a card's memory CUDA is asked (platforms/cuda.py: get_device_total_memory).
FIRST_SEEING_UNIFIED_MEMORY = (0, 33)
LAST_V0 = (0, 7)
# The default of gpu_memory_utilization, and the first release whose default is the higher.
_UTILIZATION_BEFORE, _UTILIZATION = 0.9, 0.92
_FIRST_WITH_HIGHER_UTILIZATION = (0, 25)
_MAX_CHARACTERS = 80


def release_of(version: str | None) -> tuple[int, int] | None:
    """Return major and minor number of a version; none where it tells neither.

    >>> release_of("0.20.1rc1.dev16+g7a1eb8ac2"), release_of("0.1.dev19754+g3a0914114"), release_of(None)
    ((0, 20), None, None)
    """
    if not version or len(version) > _MAX_CHARACTERS:
        return None
    major, _, rest = version.strip().removeprefix("v").partition(".")
    minor, _, rest = rest.partition(".")
    # 0.1.dev19754 is a build from a branch without tags: its number says nothing
    if rest.startswith("dev") or not (major.isdecimal() and minor.isdecimal()):
        return None
    return int(major), int(minor)


def known_release(version: str) -> tuple[int, int]:
    """Return major and minor number of a version.

    Raises:
        InputError: not a version, or a build that does not tell which.
    """
    release = release_of(version)
    if release is None:
        raise InputError(f"{version!r} is not a version of vLLM", hint="for example 0.32 or 0.19.0")
    return release


def since(version: str | None, first: tuple[int, int]) -> bool:
    """Whether a version has what came with a release; one that is left out or cannot be told is taken for the newest.

    >>> since("0.11.1", (0, 13)), since(None, (0, 13))
    (False, True)
    """
    release = release_of(version)
    return release is None or release >= first


def checks_all_layers(version: str | None) -> bool:
    """Whether a version refuses to start unless one pipeline rank holds a request's cache of all layers (0.14, 0.15).

    >>> checks_all_layers("0.15.2rc1.dev93+g11a4c9d30"), checks_all_layers("0.16.0"), checks_all_layers(None)
    (True, False, False)
    """
    return release_of(version) in _CHECKING_ALL_LAYERS


def printed_tokens(layout: Layout, blocks: int, *, by_concurrency: bool) -> int:
    """Return the tokens that vLLM prints as the size of a cache of so many blocks.

    Either blocks // groups * block size, or floor(blocks / blocks of one request * max_model_len), the latter in
    floating point, as the engine does it.

    Source: vLLM 0.19 and 0.32, kv_cache_utils._report_kv_cache_config.
    """
    if by_concurrency:
        return int(blocks / layout.needed_blocks * layout.max_model_len)
    return blocks // len(layout.groups) * min(group.span_tokens for group in layout.groups)


def default_utilization(version: str | None = None) -> float:
    """Return the share of a GPU's memory that a version takes where no other is asked for: 0.92, before 0.25 0.9.

    Raises:
        InputError: not a version.

    >>> default_utilization(), default_utilization("0.19.0")
    (0.92, 0.9)
    """
    higher = known_release(version or VERSION) >= _FIRST_WITH_HIGHER_UTILIZATION
    return _UTILIZATION if higher else _UTILIZATION_BEFORE
