"""Engines and the options that they are started with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["engine_options", "served"]

# Options that only some engines know.
_OWN_OPTIONS = {
    ("max_num_batched_tokens", "max_in_flight_batches", "max_num_seqs", "prefix_caching", "platform"): ("vllm",),
    ("block_size",): ("vllm", "sglang"),
    ("version",): ("vllm", "transformers"),
    (
        "parallel",
        "kv_unified",
        "cache_type_k",
        "cache_type_v",
        "swa_full",
        "ctx_size",
        "batch_size",
        "ubatch",
        "n_rs_seq",
        "flash_attn",
        "mmproj",
        "imatrix",
    ): ("llama.cpp",),
}


def engine_options(engine: str | None, given: Mapping[str, Any]) -> EngineOptions | None:
    """Return an engine's options, or none where none are given.

    Args:
        engine: the engine; none where none is asked about.
        given: fields of `EngineOptions`.

    Raises:
        InputError: an option that the engine does not have.
    """
    for names, owners in _OWN_OPTIONS.items():
        foreign = [name for name in names if name in given] if engine not in owners else []
        if foreign:
            option = foreign[0].replace("_", "-").replace("version", "engine-version")
            engines = " or ".join(owners)
            raise InputError(f"--{option} is an option of {engines}", hint=f"add --engine {owners[0]}, or leave it out")
    if not given:
        return None
    from kvcalc.engines.options import EngineOptions

    return EngineOptions(**given)


def served(deployment: Deployment, engine: str | None = None, given: Mapping[str, Any] | None = None) -> Deployment:
    """Return a deployment as an engine started with some options runs it; unchanged where neither is given.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        engine: the engine; the usual one for such weights and cards where only options are given.
        given: fields of `EngineOptions`.

    Raises:
        InputError: an option that the engine does not have, or an engine that is not known.
    """
    from kvcalc.plan.deployment import started

    if engine is None and not given:
        return deployment
    name = engine or deployment.served_by
    return started(deployment, name, engine_options(name, given or {}))
