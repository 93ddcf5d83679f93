"""What engines are started with: options that an engine has, and the formats that they mean."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.engines.options import EngineOptions

__all__ = ["engine_options"]

# Options that only some engines know.
_OWN_OPTIONS = {
    ("max_num_batched_tokens", "max_in_flight_batches", "max_num_seqs", "prefix_caching", "platform"): ("vllm",),
    ("block_size",): ("vllm", "sglang"),
    ("version",): ("vllm", "transformers"),
    ("parallel", "kv_unified", "cache_type_k", "cache_type_v", "swa_full", "ubatch", "flash_attn"): ("llama.cpp",),
}


def engine_options(
    engine: str | None, given: Mapping[str, Any], deployment_options: dict[str, Any]
) -> EngineOptions | None:
    """Return an engine's options, or none where none are given.

    For llama.cpp its cache types are also put into the deployment's options, as ``key_dtype`` and ``value_dtype``.

    Args:
        engine: the engine; none where none is asked about.
        given: fields of `EngineOptions`.
        deployment_options: arguments of `deployment`, with or without ``kv_dtype``.

    Raises:
        InputError: an option that the engine does not have.
    """
    asked = dict(given)
    for names, owners in _OWN_OPTIONS.items():
        foreign = [name for name in names if name in asked] if engine not in owners else []
        if foreign:
            option = foreign[0].replace("_", "-").replace("version", "engine-version")
            engines = " or ".join(owners)
            raise InputError(f"--{option} is an option of {engines}", hint=f"add --engine {owners[0]}, or leave it out")
    if engine == "llama.cpp":
        for side, name in (("key_dtype", "cache_type_k"), ("value_dtype", "cache_type_v")):
            asked.setdefault(name, deployment_options.get("kv_dtype") or "f16")
            deployment_options[side] = asked[name]
    if not asked:
        return None
    from kvcalc.engines.options import EngineOptions

    return EngineOptions(**asked)
