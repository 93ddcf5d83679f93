"""The lines of llama.cpp's start-up, also from llama-server, ollama and ik_llama.cpp (2024 to 2026).

Wording from public logs: "KV self size" (2024 to 2025-04, ik_llama.cpp still); "llama_kv_cache_unified: size" (from
2025-05, without and with "seqs"); "llama_kv_cache: size" (from 2025-09, "1/1 seqs"); "llama_memory_recurrent: size"
(from 2025-06), with "rs_seq" from 2026 on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.engines.logs.llama_memory import MEMORY
from kvcalc.engines.logs.records import CacheLine, StateLine
from kvcalc.engines.logs.refusals import LLAMA_CPP
from kvcalc.engines.logs.values import NUMBER, option, printed

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.engines.logs.lines import Line
    from kvcalc.engines.logs.records import Builder

__all__ = ["MARKERS", "STARTS", "replica_of"]

# A line that was cut short (by a terminal, or when it was copied) tells what stands before the cut.
_CELLS = rf"size = {{1,8}}({NUMBER}) MiB(?: \( {{0,8}}(\d{{1,12}}) cells(?:, {{0,4}}(\d{{1,6}}) layers)?)?"
_CACHE = re.compile(
    rf"{_CELLS}(?:, {{0,4}}(\d{{1,6}})(?:/ {{0,4}}(\d{{1,6}}))? seqs)?"
    rf"(?:\), K \((\w{{1,20}})\): {{0,8}}({NUMBER}) MiB(?:, V \((\w{{1,20}})\): {{0,8}}({NUMBER}) MiB)?)?"
)
_SELF = re.compile(
    rf"KV self size {{0,4}}= {{0,8}}({NUMBER}) MiB, (?:K|c\^KV) \((\w{{1,20}})\): {{0,8}}({NUMBER}) MiB"
    rf"(?:, V \((\w{{1,20}})\): {{0,8}}({NUMBER}) MiB)?"
)
_INIT = re.compile(r"kv_size = (\d{1,12}),.{0,80}?n_layer = (\d{1,6})")
_STATES = re.compile(rf"{_CELLS}(?:, {{0,4}}(\d{{1,6}}) seqs(?: {{1,4}}(\d{{1,6}}) rs_seq)?)?")
_CONTEXT = re.compile(
    r"\b(n_ctx|n_ctx_seq|n_ctx_per_seq|n_seq_max|n_rs_seq|n_batch|n_ubatch|flash_attn|kv_unified|swa_full)"
    r" {0,12}= {0,4}(\w{1,20})"
)
_META = re.compile(
    r"\b(?:print_info|llm_load_print_meta): (general\.name|arch|n_layer|n_head_kv|n_embd_head_k|n_embd_head_v|n_swa)"
    r" {0,24}= {0,4}(.{1,120})"
)
_NAME = re.compile(r"general\.name str {1,40}= {0,4}(.{1,120})")
_ARCHITECTURE = re.compile(r"general\.architecture str {1,40}= {0,4}([\w-]{1,60})")
_BUFFER = re.compile(rf"(?:(\w{{1,20}}) {{1,4}})?(model|compute|KV|RS) buffer size {{0,4}}= {{0,8}}({NUMBER}) MiB")
_OFFLOADED = re.compile(r"offloaded (\d{1,6})/(\d{1,6}) layers")
_FREE = re.compile(r"using device \w{1,20} \(.{1,80}?\) - (\d{1,9}) MiB free")
_FILE = re.compile(rf"(?:file|model) size {{1,12}}= {{0,8}}({NUMBER}) GiB")
_BUILD = re.compile(r"\bbuild(?:_info)?: ?(b?\d{1,6}(?:[ -]\(?\w{1,40}\)?)?)")
_OLLAMA = re.compile(r"\(version (\d[\w.+-]{0,40})\)")


def _cache(line: Line, into: Builder) -> None:
    match = _CACHE.search(line.text)
    if not match or _BUFFER.search(line.text):
        return
    total, cells, layers, sequences, streams, key_type, keys, value_type, values = match.groups()
    into.add_cache(
        CacheLine(
            total=printed(total, line.number),
            cells=_count(cells),
            layers=_count(layers),
            key_type=key_type,
            keys=printed(keys, line.number) if keys else None,
            value_type=value_type,
            values=printed(values, line.number) if values else None,
            windowed=into.next_cache_windowed,
        )
    )
    into.next_cache_windowed = None
    _sequences(sequences, into)
    if streams and int(sequences) > 1:
        into.options.setdefault("kv_unified", int(streams) == 1)


def _count(text: str | None) -> int | None:
    return int(text) if text else None


def _sequences(text: str | None, into: Builder) -> None:
    """Keep the sequences that a cache's own line names, where the context's lines are missing."""
    if text:
        into.options.setdefault("n_seq_max", int(text))


def _self_size(line: Line, into: Builder) -> None:
    match = _SELF.search(line.text)
    if not match:
        return
    cells, layers = into.options.get("kv_size"), into.options.get("kv_layers")
    into.add_cache(
        CacheLine(
            total=printed(match[1], line.number),
            cells=cells if isinstance(cells, int) else None,
            layers=layers if isinstance(layers, int) else None,
            key_type=match[2],
            keys=printed(match[3], line.number),
            value_type=match[4],
            values=printed(match[5], line.number) if match[5] else None,
        )
    )


def _sizes(line: Line, into: Builder) -> None:
    match = _INIT.search(line.text)
    if match:
        into.options["kv_size"], into.options["kv_layers"] = int(match[1]), int(match[2])


def _windowed(line: Line, into: Builder) -> None:
    into.end_cache()
    into.next_cache_windowed = "non-SWA" not in line.text


def _states(line: Line, into: Builder) -> None:
    match = _STATES.search(line.text)
    if not match or len(into.states) >= len(into.caches) + 64:
        return
    total, cells, layers, sequences, kept = match.groups()
    into.states.append(StateLine(total=printed(total, line.number), cells=_count(cells), layers=_count(layers)))
    # every sequence has a cell
    _sequences(sequences or cells, into)
    if kept and int(kept):
        into.options.setdefault("n_rs_seq", int(kept))


def _context(line: Line, into: Builder) -> None:
    match = _CONTEXT.search(line.text)
    value = option(match[2]) if match else None
    if match and value is not None:
        into.options.setdefault(match[1], value)


def _meta(line: Line, into: Builder) -> None:
    size = _FILE.search(line.text)
    if size:
        into.put("file_size_gib", printed(size[1], line.number))
    match = _META.search(line.text)
    if not match:
        return
    name, text = match[1], match[2].strip()
    if name == "general.name":
        into.model = into.model or text
        return
    value = option(text)
    if value is not None:
        into.options.setdefault("architecture" if name == "arch" else name, value)


def _loader(line: Line, into: Builder) -> None:
    name, architecture = _NAME.search(line.text), _ARCHITECTURE.search(line.text)
    if name:
        into.model = into.model or name[1].strip()
    if architecture:
        into.options.setdefault("architecture", architecture[1])


def _buffer(line: Line, into: Builder) -> None:
    match = _BUFFER.search(line.text)
    if not match:
        return
    device, kind, size = match[1] or "", match[2], printed(match[3], line.number)
    if kind in ("model", "compute"):
        into.put(f"{kind}_buffer_mib", size)
    if kind == "KV":
        into.add_cache_part(size)
    # buffers of the host: CPU, CPU_Mapped, CUDA_Host
    if device and not device.startswith("CPU") and not device.endswith("Host"):
        into.put(f"gpu_{kind.lower()}_mib", size)


def _offloaded(line: Line, into: Builder) -> None:
    match = _OFFLOADED.search(line.text)
    if match:
        into.options["gpu_layers"], into.options["all_layers"] = int(match[1]), int(match[2])


def _device(line: Line, into: Builder) -> None:
    match = _FREE.search(line.text)
    if match:
        into.put("device_free_mib", printed(match[1], line.number))


def _build(line: Line, into: Builder) -> None:
    match = _BUILD.search(line.text)
    if match:
        into.version = into.version or match[1]


def _ollama(line: Line, into: Builder) -> None:
    match = _OLLAMA.search(line.text)
    if match and "Listening on" in line.text:
        into.version = f"ollama {match[1]}"


def _flash(line: Line, into: Builder) -> None:
    into.options["flash_attn"] = "enabled" in line.text


STARTS = ("llama_model_loader: loaded meta data",)

MARKERS: dict[str, Callable[[Line, Builder], None]] = {
    **LLAMA_CPP,
    **MEMORY,
    "llama_model_loader: loaded meta data": _loader,
    "general.name": _loader,
    "general.architecture": _loader,
    "print_info: ": _meta,
    "llm_load_print_meta: ": _meta,
    "build: ": _build,
    "build_info: ": _build,
    'msg="Listening on': _ollama,
    "llama_context: ": _context,
    "llama_new_context_with_model: ": _context,
    "llama_init_from_model: ": _context,
    "Flash Attention was auto": _flash,
    "SWA KV cache, size": _windowed,
    "kv_size = ": _sizes,
    "llama_kv_cache": _cache,
    "KV self size": _self_size,
    "llama_memory_recurrent: size": _states,
    "layers to GPU": _offloaded,
    "using device ": _device,
    " buffer size": _buffer,
}


def replica_of(line: Line) -> None:
    """Return nothing: llama.cpp has no replicas."""
    del line
