"""CSV tables of measurements, recognised by their columns: kernels, served latencies, desktop speeds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import seconds_of
from kvcalc.core.workload import Parallel
from kvcalc.evidence.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeAlias

    TableReader: TypeAlias = Callable[[dict[str, Any], int], Iterator[Record]]

__all__ = ["TABLES", "TableReader", "printed_ranks"]

_AICONFIGURATOR = "ai-dynamo/aiconfigurator"


def _kernel(row: dict[str, Any], line: int, phase: str, shape: dict[str, str], cache: str | None) -> Record:
    sizes = {name: int(row[column]) for name, column in shape.items()}
    return Record(
        id=f"{phase}-{line}",
        phase=phase,
        value=float(row["latency_ms"]),
        unit="ms",
        hardware=row["device"],
        engine=row["framework"].lower(),
        engine_version=row["version"],
        weights=row["gemm_dtype" if phase == "gemm" else "attn_dtype"],
        kv=cache,
        batch=sizes.get("batch"),
        shape=sizes,
        note=f"suspect; {row['kernel_source']}" if row.get("suspect_file") == "1" else row["kernel_source"],
        source=f"{_AICONFIGURATOR}:{row['gpu']}/{row['framework'].lower()}/{row['version']}",
        first_hand=True,
    )


def _gemm(row: dict[str, Any], line: int) -> Iterator[Record]:
    yield _kernel(row, line, "gemm", {"m": "m", "n": "n", "k": "k"}, None)


def _attention(row: dict[str, Any], line: int) -> Iterator[Record]:
    shape = {"batch": "batch_size", "heads": "num_heads", "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
             "window": "window_size", "past": "step", "new": "isl"}  # fmt: skip
    yield _kernel(row, line, "attention", shape, row["kv_cache_dtype"])


def _number(row: dict[str, Any], column: str) -> float | None:
    """Return a number, or none where the field is empty or the column is not there."""
    text = (row.get(column) or "").strip()
    return float(text) if text else None


def _count(row: dict[str, Any], column: str) -> int | None:
    number = _number(row, column)
    return None if number is None else int(number)


def printed_ranks(tensor: int, pipeline: int, data: int | None, moe_tensor: int, moe_expert: int) -> Parallel:
    """Return the parallel sizes that a served row means, which prints some of them as products.

    Sizes of attention and of the experts are printed apart. Where both of the experts' are the same t, and their
    product is that of attention's, the row is of t accelerators: t ranks that share out the experts too, in data
    parallel where attention's is (the same runs are printed both ways, 64 = 8 x 8 and 8). Likewise where t = data is
    the root of the experts' ranks.

    >>> printed_ranks(64, 1, 1, 8, 8), printed_ranks(4, 1, 4, 1, 16)
    (Parallel(tensor=8, pipeline=1, expert=8, data=1), Parallel(tensor=1, pipeline=1, expert=4, data=4))
    >>> printed_ranks(8, 1, None, 2, 4)
    Parallel(tensor=8, pipeline=1, expert=4, data=1)
    """
    copies = data or 1
    if data and moe_tensor == moe_expert > 1 and tensor * copies == moe_tensor * moe_expert:
        ranks = moe_tensor
        tensor, copies, moe_expert = (1, ranks, ranks) if copies > 1 else (ranks, 1, ranks)
    elif data and tensor == copies > 1 and moe_tensor == 1 and moe_expert == tensor * copies:
        tensor, moe_expert = 1, copies
    elif not data:
        copies = max(1, moe_tensor * moe_expert // tensor)
    shared = moe_expert if moe_expert and not tensor * copies % moe_expert else 1
    return Parallel(tensor=tensor, pipeline=pipeline, data=copies, expert=shared)


def _ranks(row: dict[str, Any], role: str = "") -> Parallel:
    sizes = (
        _count(row, f"{role}{name}")
        for name in ("tp_size", "pp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    )
    tensor, pipeline, data, moe_tensor, moe_expert = sizes
    return printed_ranks(tensor or 1, pipeline or 1, data, moe_tensor or 0, moe_expert or 0)


def _engines(row: dict[str, Any], sequences: int | None) -> int:
    """Count the engines that share a load: one, unless a printed batch is too small even for one on each of its ranks.

    A batch is printed of an engine or of each of its ranks. A Qwen3-32B on two B200 (aiconfigurator's dump of
    2026-03-07) has 416 requests in all and a batch of 13: 32 engines.

    >>> _engines({"batch_size": "13", "tp_size": "2"}, 416), _engines({"batch_size": "208", "tp_size": "2"}, 416)
    (32, 1)
    """
    batch = _count(row, "batch_size")
    ranks = (_count(row, "tp_size") or 1) * (_count(row, "attention_dp_size") or 1)
    return 1 if not batch or sequences is None or sequences <= batch * ranks else sequences // batch


def _serving(row: dict[str, Any], line: int) -> Iterator[Record]:
    """Yield the two latencies of a row: of a load that is kept up, or of engines that read prompts beside others."""
    apart = row.get("mode") == "disagg"
    parallel = _ranks(row, "decode_" if apart else "")
    sequences = _count(row, "concurrency") or _count(row, "conc") or _count(row, "batch_size")
    engines = _count(row, "decode_num_workers") if apart else _engines(row, sequences)
    if apart and sequences is None:
        each = _count(row, "decode_batch_size")
        # how many requests there are in all is not told: the bound must hold whatever it was
        sequences, engines = (each * parallel.data if each else None), None
    name = row["id"] or f"row {line}"
    for phase, column in (("ttft", "silicon_ttft_ms"), ("tpot", "silicon_tpot_ms")):
        value = _number(row, column)
        if value is None:
            continue
        yield Record(
            id=f"{name}/{phase}",
            row=name,
            phase=phase,
            value=value,
            unit="ms",
            hardware=row["system"],
            model=row["model_path"],
            engine=row["backend"],
            engine_version=row["backend_version"],
            weights=row["gemm_quant_mode"] or row["precision"] or None,
            devices=parallel.gpus,
            tensor=parallel.tensor,
            parallel=parallel,
            prefill_parallel=_ranks(row, "prefill_") if apart else None,
            decode_engines=engines,
            prefill_engines=_count(row, "prefill_num_workers") if apart else engines,
            batch=sequences,
            prompt_tokens=_count(row, "isl"),
            output_tokens=_count(row, "osl"),
            ttft_s=seconds_of(_number(row, "silicon_ttft_ms") or 0.0, "ms") or None,
            source=row["source"],
            first_hand=True,
        )


_DESKTOP = (("ttft", "ttft_ms", "ms"), ("decode", "decode_tokens_per_s", "tok/s"),
            ("prefill", "prefill_tokens_per_s", "tok/s"))  # fmt: skip


def _desktop(row: dict[str, Any], line: int) -> Iterator[Record]:
    """Yield the speeds of a row of anonymous measurements: a prompt, the tokens after it, the time to the first."""
    name, drafts = f"row {line}", "True" in (row["spec_decoding"], row["mtp"])
    engine = f"{row['engine']} {row['backend']}".strip()
    for phase, column, unit in _DESKTOP:
        value = _number(row, column)
        if not value:
            continue
        yield Record(
            id=f"{name}/{phase}",
            row=name,
            phase=phase,
            value=value,
            unit=unit,
            hardware=row["gpu"] or row["chip"] or row["cpu"],
            model=row["model"],
            engine=engine,
            engine_version=row["engine_version"],
            weights=row["quantization"] or None,
            kv=row["kv_cache_dtype"] or None,
            devices=_count(row, "gpus") or 1,
            tensor=_count(row, "tensor_parallel"),
            batch=_count(row, "batch") or 1,
            prompt_tokens=_count(row, "prompt_tokens"),
            output_tokens=_count(row, "output_tokens"),
            note="; ".join(filter(None, ("with drafts" if drafts else "", row["flags"]))),
            source="AlexsJones/llmfit",
        )


TABLES: tuple[tuple[frozenset[str], TableReader], ...] = (
    (frozenset({"device", "framework", "version", "gemm_dtype", "m", "n", "k", "latency_ms"}), _gemm),
    (frozenset({"device", "framework", "version", "attn_dtype", "num_heads", "step", "latency_ms"}), _attention),
    (frozenset({"system", "model_path", "tp_size", "silicon_ttft_ms", "silicon_tpot_ms"}), _serving),
    (frozenset({"gpu", "model", "engine", "quantization", "decode_tokens_per_s", "prefill_tokens_per_s"}), _desktop),
)
