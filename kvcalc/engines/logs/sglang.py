"""The lines of SGLang's start-up (0.3 to 0.5).

Wording from public logs: "Load weight end." with and without "mem usage" (2024-12, 2025-08), "elapsed" first (2026-03);
"KV Cache is allocated." with K and V (0.4, 0.5), with one size for latent attention, with the type (2026); "Full" and
"SWA" before it where there are two pools (2025-12).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.engines.logs.refusals import SGLANG
from kvcalc.engines.logs.values import NUMBER, assigned, pairs, printed, whole

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Builder

__all__ = ["MARKERS", "STARTS", "replica_of"]

_OPTIONS = assigned(
    (
        "model_path",
        "served_model_name",
        "dtype",
        "kv_cache_dtype",
        "context_length",
        "tp_size",
        "pp_size",
        "dp_size",
        "ep_size",
        "enable_dp_attention",
        "mem_fraction_static",
        "page_size",
        "max_total_tokens",
        "max_running_requests",
        "chunked_prefill_size",
        "speculative_algorithm",
        "speculative_num_draft_tokens",
        "disable_radix_cache",
        "disable_overlap_schedule",
        "disable_hybrid_swa_memory",
        "swa_full_tokens_ratio",
        "mamba_full_memory_ratio",
        "max_mamba_cache_size",
        "mamba_radix_cache_strategy",
        "mamba_ssm_dtype",
    )
)
_SIZES = re.compile(rf"\b(K|V|KV)(?: size)?: ?({NUMBER}) ?GB|\b(K|V) ({NUMBER}) ?GB")
_TOKENS = re.compile(r"#tokens: ?(\d{1,15})")
_TOTAL = re.compile(r"max_total_num_tokens=(\d{1,15})")
_CONTEXT = re.compile(r"context_len=(\d{1,15})")
_USED = re.compile(rf"mem usage=({NUMBER}) ?GB")
_LEFT = re.compile(rf"avail mem=({NUMBER}) ?GB")
_TYPE = re.compile(r"(?:Using KV cache dtype|dtype): ?(?:torch\.)?([A-Za-z0-9_]{2,40})")
_STATES = re.compile(rf"(conv|ssm)_state(?: size)?:? ?({NUMBER}) ?GB")
_SLOTS = re.compile(r"max_mamba_cache_size: ?(\d{1,15})")
_REPLICA = re.compile(r"^.{0,120}?\b(DP\d{1,4})\b")


def _arguments(line: Line, into: Builder) -> None:
    for name, value in pairs(_OPTIONS, line.text):
        into.options.setdefault(name, value)
    model = into.options.pop("model_path", None)
    if isinstance(model, str):
        into.model = into.model or model


def _allocated(line: Line, into: Builder) -> None:
    """Read a pool; a second one on the same rank is a draft model's."""
    tokens = _TOKENS.search(line.text)
    if not tokens:
        return
    prefix = "window_" if "SWA KV Cache" in line.text else ""
    into.put("window_tokens" if prefix else "pool_tokens", whole(tokens[1], line.number))
    for match in _SIZES.finditer(line.text):
        name, size = match[1] or match[3], match[2] or match[4]
        into.put(f"{prefix}{name.lower()}_gib", printed(size, line.number, decimals=2))
    _stored_as(line, into)


def _stored_as(line: Line, into: Builder) -> None:
    match = _TYPE.search(line.text)
    if match:
        into.options.setdefault("stored_dtype", match[1])


def _total(line: Line, into: Builder) -> None:
    match, context = _TOTAL.search(line.text), _CONTEXT.search(line.text)
    if not match:
        return
    into.put("max_total_num_tokens", whole(match[1], line.number))
    if context:
        into.options.setdefault("context_length", int(context[1]))


def _loading(line: Line, into: Builder) -> None:
    match = _LEFT.search(line.text)
    if match:
        into.put("free_before_gib", printed(match[1], line.number, decimals=2))


def _loaded(line: Line, into: Builder) -> None:
    for pattern, quantity in ((_USED, "loaded_gib"), (_LEFT, "free_after_gib")):
        match = pattern.search(line.text)
        if match:
            into.put(quantity, printed(match[1], line.number, decimals=2))


def _states(line: Line, into: Builder) -> None:
    into.events.add("states")
    slots = _SLOTS.search(line.text)
    if slots:
        into.put("state_slots", whole(slots[1], line.number))
    for match in _STATES.finditer(line.text):
        into.put(f"{match[1]}_state_gib", printed(match[2], line.number, decimals=2))


def _graphs(line: Line, into: Builder) -> None:
    match = _USED.search(line.text)
    if match:
        into.put("graphs_gib", printed(match[1], line.number, decimals=2))


STARTS = ("server_args=ServerArgs(",)

MARKERS: dict[str, Callable[[Line, Builder], None]] = {
    **SGLANG,
    "Load weight begin": _loading,
    "server_args=ServerArgs(": _arguments,
    "Load weight end": _loaded,
    "Using KV cache dtype": _stored_as,
    "KV Cache is allocated": _allocated,
    "Mamba Cache is allocated": _states,
    "max_total_num_tokens=": _total,
    "Capture cuda graph end": _graphs,
}


def replica_of(line: Line) -> str | None:
    """Return the data-parallel replica that printed a line."""
    match = _REPLICA.match(line.text)
    return match[1] if match else None
