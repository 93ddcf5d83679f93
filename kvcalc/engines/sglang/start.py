"""The pools of a model as SGLang starts it: its architecture, its layers on a rank, and the options put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.layers import Full, Latent
from kvcalc.cost.sharding import stage_blocks
from kvcalc.engines.sglang.architectures import find_architecture
from kvcalc.engines.sglang.compressed import compressed_layers
from kvcalc.engines.sglang.layers import rank_layers
from kvcalc.engines.sglang.options import sglang_options
from kvcalc.engines.sglang.pools import RankPools

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.sglang.architectures import Architecture

__all__ = ["cache_formats", "rank_pools"]

# Cache formats that it has; those of checkpoints beside them.
_FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2", "mxfp8", "nvfp4")
_LATENT_FORMATS = ("bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "fp8_e5m2")
_SPARSE_FORMATS = ("bf16", "fp8", "fp8_e4m3")


def rank_pools(
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    options: EngineOptions,
    *,
    draft: Draft | None = None,
) -> RankPools:
    """Return the pools of a rank of each pipeline stage.

    Args:
        model: the model.
        formats: formats of keys and values.
        parallel: how it is spread.
        options: what the user says of the engine, and the accelerator's generation; Hopper's kernels where left out.
        draft: layers that draft for the model.

    Raises:
        InputError: options or formats that SGLang refuses.
        UnsupportedError: a model that it refuses, or whose pools are not described.
    """
    architecture = find_architecture(model)
    _check_formats(model, formats, architecture)
    own = sglang_options(model, architecture, parallel, options, draft=draft)
    stages = stage_blocks(model, parallel.pipeline)
    if architecture.pools == "compressed":
        return RankPools(tuple(map(compressed_layers, stages)), own)
    layers = tuple(
        rank_layers(
            model,
            formats,
            architecture,
            blocks=blocks,
            tensor=parallel.tensor,
            raw_latent=own.raw_latent,
            windows=own.windows,
            state_format=own.state_format,
        )
        for blocks in stages
    )
    return RankPools(layers, own)


def cache_formats(model: ModelProfile, architecture: Architecture) -> tuple[str, ...]:
    """Return the cache formats that SGLang has for a model."""
    mixers = model.mixers
    latents = [mixer for mixer in mixers if isinstance(mixer, Latent)] if architecture.own_class else []
    if architecture.latent_class and any(mixer.indexer is not None for mixer in latents):
        return _SPARSE_FORMATS
    indexed = any(isinstance(mixer, Full) and mixer.indexer is not None for mixer in mixers)
    return _LATENT_FORMATS if latents or indexed or architecture.pools == "compressed" else _FORMATS


def _check_formats(model: ModelProfile, formats: Formats, architecture: Architecture) -> None:
    known = cache_formats(model, architecture)
    for form in (formats.key, formats.value):
        if form.name not in known:
            raise InputError(
                f"SGLang keeps no cache in {form.name} for {model.name}", hint=f"it has {', '.join(known)}"
            )
