"""The suites of exact numbers: bytes counted from frameworks and engines, and what engines print when they start."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import KvcalcError
from kvcalc.core.formats import parse_format
from kvcalc.core.reports.validate import Outcome
from kvcalc.core.workload import Formats
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.engines.llama_cpp import LlamaCppOptions
from kvcalc.engines.llama_cpp import layout as llama_cpp_layout
from kvcalc.engines.loaded import loaded_model
from kvcalc.engines.logs import read_log
from kvcalc.engines.vllm import VllmOptions, capacity
from kvcalc.engines.vllm import layout as vllm_layout
from kvcalc.evidence.log_text import log_of
from kvcalc.evidence.names import find_model
from kvcalc.evidence.read import shipped_records
from kvcalc.evidence.setups import Setup, setup_of
from kvcalc.importers.hugging_face import import_config
from kvcalc.plan.rank_memory import held_weight_bytes
from kvcalc.plan.reconcile import reconcile_start_up
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.reconcile import ReconcileRow
    from kvcalc.evidence.record import Record

__all__ = ["outcomes"]

_FACTS = Path(__file__).parent / "facts"
# A printed size has two decimals of a GiB; what a file holds beside its tensors is less than a hundredth of it.
_FILE_MARGIN = 0.01


def outcomes(suite: str, records: Sequence[Record] | None) -> Iterator[Outcome]:
    """Yield the exact numbers of a suite; records of speeds hold none."""
    if records is not None:
        return
    if suite == "logs":
        yield from _logs()
        return
    yield from _cache_tensors()
    yield from _llama_cpp()
    yield from _vllm()
    yield from _file_sizes(shipped_records())


@cache
def _facts(name: str) -> Any:
    return read_yaml_file(_FACTS / name, list_key="records").data


def _exact(name: str, quantity: str, *, measured: float, predicted: float, **fields: Any) -> Outcome:
    """Return an outcome that holds where the two numbers are equal."""
    return Outcome(
        id=f"{name}/{quantity}",
        suite="bytes",
        quantity=quantity,
        first_hand=True,
        status="holds" if measured == predicted else "violates",
        reason="" if measured == predicted else f"predicted {predicted:,}, not {measured:,}",
        measured=measured,
        estimate=predicted,
        estimate_least=predicted,
        estimate_most=predicted,
        **{"unit": "B", **fields},
    )


def _cache_tensors() -> Iterator[Outcome]:
    """Bytes of every cache tensor and parameters, as transformers allocates them for a config."""
    source = "transformers 5.24, allocated cache tensors"
    for name, case in _facts("cache_tensors.yaml")["cases"].items():
        model, _ = import_config(case["config"], name="case")
        labels = {"model": name.replace("__", "/"), "engine": "transformers", "source": source}
        formats = Formats()
        for tokens, size in case["kv_bytes"].items():
            cache_size = cache_bytes(model, int(tokens), formats)
            yield _exact(f"{name}/{tokens}", "cache", measured=size, predicted=cache_size.growing, **labels)
        if case["state_bytes"] is not None:
            state = cache_bytes(model, 1, formats).state
            yield _exact(name, "state", measured=case["state_bytes"], predicted=state, **labels)
        if case["parameters"] is not None:
            count = sum(parameters(model).values())
            yield _exact(name, "parameters", measured=case["parameters"], predicted=count, unit="", **labels)


def _llama_cpp() -> Iterator[Outcome]:
    """Bytes that llama.cpp allocates for caches and states; what it refuses is no number."""
    for name, case in _facts("llama_cpp.yaml")["cases"].items():
        if "refused" in case:
            continue
        model = _catalogue(case["model"])
        memory = llama_cpp_layout(model, LlamaCppOptions(**case["options"]))
        labels = {"model": model.name, "engine": "llama.cpp", "source": "llama.cpp 0c1e57098bba, allocated buffers"}
        yield _exact(name, "reserved", measured=case["total_bytes"], predicted=memory.total_bytes, **labels)


def _vllm() -> Iterator[Outcome]:
    """Blocks, tokens and bytes that vLLM computes for a memory."""
    for number, case in enumerate(_facts("vllm.yaml")["cases"]):
        model, cache_format = _catalogue(case["model"]), parse_format(case["kv_dtype"])
        placed = vllm_layout(model, Formats(key=cache_format, value=cache_format), VllmOptions(**case["options"]))
        predicted_capacity = capacity(placed, kv_memory_bytes=case["kv_memory_bytes"])
        labels = {"model": model.name, "engine": "vllm", "source": "vLLM 0.32, its own layout code"}
        for quantity, unit, predicted in (
            ("bytes_per_block", "B", placed.bytes_per_block),
            ("needed_bytes", "B", placed.needed_bytes),
            ("kv_tokens", "tokens", predicted_capacity.kv_tokens),
        ):
            if quantity in case["expected"]:
                measured = case["expected"][quantity]
                yield _exact(f"vllm-{number}", quantity, measured=measured, predicted=predicted, unit=unit, **labels)


def _file_sizes(records: Sequence[Record]) -> Iterator[Outcome]:
    """Sizes that are printed with a speed: each model and file type once."""
    seen: set[tuple[str, str | None]] = set()
    for record in records:
        key = (record.model, record.weights)
        if record.file_bytes is None or key in seen:
            continue
        seen.add(key)
        setup = _setup(record)
        if setup is None:
            continue
        file = replace(setup.deployment, model=loaded_model("llama.cpp", setup.deployment.model))
        size = held_weight_bytes(file)
        labels = {"model": setup.deployment.model.name, "engine": record.engine, "source": "GGUF files, printed sizes"}
        outcome = _exact(record.id, "file size", measured=record.file_bytes, predicted=size, **labels)
        near = abs(size / record.file_bytes - 1) <= _FILE_MARGIN
        yield replace(
            outcome,
            status="holds" if near else "violates",
            reason="" if near else outcome.reason,
            estimate_least=size * (1 - _FILE_MARGIN),
            estimate_most=size * (1 + _FILE_MARGIN),
        )


def _setup(record: Record) -> Setup | None:
    try:
        setup = setup_of(record)
    except KvcalcError:
        return None
    return setup if isinstance(setup, Setup) else None


def _logs() -> Iterator[Outcome]:
    """Compare numbers that engines print when they start with the prediction, within the digits printed."""
    for record in _facts("engine_logs.yaml")["records"]:
        model = _catalogue(record.get("profile") or record["model"])
        for start_up in read_log(log_of(record)):
            rows, _, _ = reconcile_start_up(start_up, model)
            for row in rows:
                yield _printed(record, row, model.name)


def _printed(record: dict[str, Any], row: ReconcileRow, model: str) -> Outcome:
    unit = "GiB" if row.quantity.endswith("_gib") else "tokens" if row.quantity.endswith("_tokens") else ""
    return Outcome(
        id=f"{record['id']}/{row.quantity}",
        suite="logs",
        source=f"{record['engine']}, start-up logs",
        first_hand=True,
        quantity=row.quantity,
        unit=unit,
        status="holds" if row.agrees else "violates",
        reason="" if row.agrees else row.reason,
        model=model,
        engine=record["engine"],
        measured=row.printed,
        estimate=row.predicted,
        # the printed number stands for all that rounds to it
        estimate_least=min(row.predicted_least, row.printed) if row.agrees else row.predicted_least,
        estimate_most=max(row.predicted_most, row.printed) if row.agrees else row.predicted_most,
    )


def _catalogue(name: str) -> ModelProfile:
    model = find_model(name)
    if model is None:
        raise LookupError(name)
    return model
