"""Lines on memory as a whole: llama.cpp's table and ``--fit``, and what Ollama expects before it starts a runner.

Wording from llama.cpp b6895 to b10488 (``llama_`` and, from 2026-04, ``common_`` in front) and Ollama 0.3 to 0.33:
"offload to cuda" or "offload" (to 0.12), "model weights", "kv cache", "compute graph" and "total memory" of its own
engine (0.11.5 to 0.24), "starting llama server" and its flags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.engines.logs.records import BreakdownLine
from kvcalc.engines.logs.values import NUMBER, option, printed, size_gib

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Builder, Printed

__all__ = ["MEMORY"]

_COUNT = r" {0,60}(-?\d{1,16}) {0,60}"
_DEVICE = re.compile(
    rf"\|   - (\w{{1,20}}) \((.{{1,80}}?)\) {{0,40}}\|{_COUNT}={_COUNT}\+ \({_COUNT}={_COUNT}\+{_COUNT}\+{_COUNT}\)"
    rf" \+{_COUNT}\|"
)
_HOST = re.compile(rf"\|   - (\w{{1,20}}) {{1,80}}\|{_COUNT}={_COUNT}\+{_COUNT}\+{_COUNT}\|")
# What is below 0 was printed as a size_t of bytes, in MiB.
_WRAPPED = 2**44
_PROJECTED = re.compile(rf"projected to use ({NUMBER}) MiB of device memory vs\. ({NUMBER}) MiB of free device memory")
_REDUCED = re.compile(
    rf"context size reduced from (\d{{1,12}}) to (\d{{1,12}}) -> need ({NUMBER}) MiB less memory in total"
)
_AUTO = re.compile(r"using n_parallel = (\d{1,6}) and kv_unified = (true|false)")
_TIER = re.compile(rf"total_vram=\"?({NUMBER}) (GiB|MiB)\"? default_num_ctx=(\d{{1,9}})")
_SIZE = rf"=\"?\[?({NUMBER}) (GiB|MiB|KiB|B)\b"
_OFFLOAD = {
    "ollama_kv_gib": re.compile(rf"memory\.required\.kv{_SIZE}"),
    "ollama_full_gib": re.compile(rf"memory\.required\.full{_SIZE}"),
    "ollama_weights_gib": re.compile(rf"memory\.weights\.total{_SIZE}"),
}
_LAYERS = re.compile(r"layers\.model=(\d{1,6}) layers\.offload=(\d{1,6})")
_PART = re.compile(rf"msg=\"(model weights|kv cache|compute graph|total memory)\".{{0,120}}?size{_SIZE}")
_PARTS = {
    "model weights": "ollama_weights_part_gib",
    "kv cache": "ollama_kv_part_gib",
    "compute graph": "ollama_graph_part_gib",
    "total memory": "ollama_total_gib",
}
_OF_PARTS = (*_PARTS.values(), "kv_buffer_gib", "kv_buffer_mib")
_GO_MODEL = re.compile(
    r"msg=\"\" architecture=([\w-]{1,60}) file_type=(\w{1,20})(?: name=(?:\"([^\"]{0,120})\"|(\S{1,120})))?"
)
# Flags of the runner that decide its cache, long ones of Ollama's own and short ones of llama.cpp's server.
_FLAGS = {
    "n_ctx": re.compile(r" (?:--ctx-size|-c) (\d{1,12})"),
    "n_seq_max": re.compile(r" (?:--parallel|-np) (\d{1,6})"),
    "n_ubatch": re.compile(r" -ub (\d{1,9})"),
    "kv_cache_dtype": re.compile(r" (?:--kv-cache-type|--cache-type-k) (\w{1,20})"),
}


def _breakdown(line: Line, into: Builder) -> None:
    """Read a row of the table; rows before anything was allocated, as ``--fit`` tries, are passed over."""
    device, host = _DEVICE.search(line.text), _HOST.search(line.text)
    if device:
        name, title, *counts = device.groups()
        total, free, own, model, context, compute, rest = (int(count) for count in counts)
        rest -= _WRAPPED if rest > _WRAPPED // 2 else 0
        if rest < 0:
            return
        row = BreakdownLine(
            device=name, title=title, model_mib=model, context_mib=context, compute_mib=compute, self_mib=own,
            total_mib=total, free_mib=free, unaccounted_mib=rest, line=line.number,
        )  # fmt: skip
    elif host and (into.breakdown or host[1] != "Host"):
        own, model, context, compute = (int(count) for count in host.groups()[1:])
        row = BreakdownLine(device=host[1], title="", model_mib=model, context_mib=context, compute_mib=compute,
                            self_mib=own, line=line.number)  # fmt: skip
    else:
        return
    if any(each.device == row.device for each in into.breakdown):
        into.breakdown.clear()
    into.breakdown.append(row)


def _projected(line: Line, into: Builder) -> None:
    match = _PROJECTED.search(line.text)
    if match:
        into.put("projected_mib", printed(match[1], line.number))
        into.put("projected_free_mib", printed(match[2], line.number))


def _reduced(line: Line, into: Builder) -> None:
    match = _REDUCED.search(line.text)
    if match:
        into.options["fit_from"], into.options["fit_to"] = int(match[1]), int(match[2])
        into.put("fit_saved_mib", printed(match[3], line.number))


def _auto(line: Line, into: Builder) -> None:
    match = _AUTO.search(line.text)
    if match:
        into.options.setdefault("n_seq_max", int(match[1]))
        into.options.setdefault("kv_unified", match[2] == "true")


def _refused_fit(line: Line, into: Builder) -> None:
    if "n_gpu_layers already set by user" in line.text:
        into.events.add("fit: layers set by user")


def _tier(line: Line, into: Builder) -> None:
    match = _TIER.search(line.text)
    if match:
        into.put("ollama_total_vram_gib", size_gib(match[1], match[2], line.number))
        into.put("ollama_default_num_ctx", printed(match[3], line.number))


def _offload(line: Line, into: Builder) -> None:
    layers = _LAYERS.search(line.text)
    if layers:
        into.options["all_layers"], into.options["gpu_layers"] = int(layers[1]), int(layers[2])
    for quantity, pattern in _OFFLOAD.items():
        match = pattern.search(line.text)
        if match:
            into.put(quantity, _size(match[1], match[2], line.number))


def _size(number: str, unit: str, line: int) -> Printed:
    return size_gib(number, "bytes" if unit == "B" else unit, line)


def _part(line: Line, into: Builder) -> None:
    """Read a part of the memory of Ollama's own engine, which names neither cells nor layers."""
    match = _PART.search(line.text)
    if not match:
        return
    name, number, unit = match.groups()
    if name == "model weights" and "ollama_total_gib" in into.printed:  # of a later model, or of another try
        for quantity in _OF_PARTS:
            into.printed.pop(quantity, None)
    if name == "kv cache":
        into.put(f"kv_buffer_{unit.lower()}", printed(number, line.number, decimals=1))
    into.put(_PARTS[name], _size(number, unit, line.number))


def _go_model(line: Line, into: Builder) -> None:
    match = _GO_MODEL.search(line.text)
    if match:
        into.options.setdefault("architecture", match[1])
        into.model = into.model or match[3] or match[4] or None


def _command(line: Line, into: Builder) -> None:
    for name, pattern in _FLAGS.items():
        match = pattern.search(line.text)
        value = option(match[1]) if match else None
        if value is not None:
            into.options.setdefault(name, value)


MEMORY: Mapping[str, Callable[[Line, Builder], None]] = {
    "memory_breakdown_print: |   - ": _breakdown,
    "projected to use ": _projected,
    "context size reduced from ": _reduced,
    "using n_parallel = ": _auto,
    "failed to fit params to free device memory": _refused_fit,
    'msg="vram-based default context"': _tier,
    "layers.offload=": _offload,
    **{f'msg="{name}"': _part for name in _PARTS},
    'msg="" architecture=': _go_model,
    'msg="starting llama': _command,
}
