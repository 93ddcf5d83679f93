"""JSON documents of benchmark tools: each form is known by fields that it alone has.

The names of fields are those that the tools write: vLLM 0.33 (``vllm/benchmarks``), SGLang 0.5.23
(``sglang/benchmark/serving.py``), AIPerf 0.13 and genai-perf, GuideLLM 0.8, InferenceMAX (``utils/process_result.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.core.units import seconds_of
from kvcalc.evidence.benchmarks.values import Run, at, count, positive, word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvcalc.evidence.record import Record

__all__ = ["FORMS", "Form"]


class Form(NamedTuple):
    """A form of documents.

    Args:
        name: the tool.
        fields: dotted names of fields that tell it.
        read: yields the records of a document, which is given with a name for its runs.
    """

    name: str
    fields: tuple[str, ...]
    read: Callable[[Any, str], Iterator[Record]]


def _ms(data: Any, *paths: str) -> float | None:
    value = positive(data, *paths)
    return None if value is None else seconds_of(value, "ms")


def _each(data: Any, whole: str, number: str) -> int | None:
    """Return the mean of what is printed as a sum over requests."""
    total, requests = positive(data, whole), positive(data, number)
    return None if not total or not requests else max(1, round(total / requests))


def _parallel(data: Any) -> dict[str, Any]:
    tensor = count(data, "tensor_parallel_size", "tp_size", "tp", "server_info.tp_size")
    return {"tensor": tensor, "devices": count(data, "gpus", "num_gpus") or tensor}


def _vllm_serve(data: Any, name: str) -> Iterator[Record]:
    """Yield TTFT and TPOT of ``vllm bench serve``; ``--metadata`` may say what ran."""
    asked = count(data, "max_concurrency")
    run = Run(
        name=name,
        model=word(data, "model_id"),
        hardware=word(data, "gpu", "hardware", "hw"),
        engine=word(data, "engine") or ("vllm" if word(data, "backend") in ("vllm", "openai", "openai-chat") else ""),
        version=word(data, "engine_version", "vllm_version", "version"),
        weights=word(data, "quantization", "precision"),
        kv=word(data, "kv_cache_dtype"),
        batch=asked or count(data, "max_concurrent_requests"),
        prompt=_each(data, "total_input_tokens", "completed"),
        output=_each(data, "total_output_tokens", "completed"),
        note="" if asked else _OPEN.format(word(data, "request_rate") or at(data, "request_rate")),
        **_parallel(data),
    )
    yield from run.records({"ttft": _ms(data, "mean_ttft_ms"), "tpot": _ms(data, "mean_tpot_ms")})


_OPEN = "requests arrived at a rate of {}: as many are taken to have run at once as ever did"


def _vllm_latency(data: Any, name: str) -> Iterator[Record]:
    """Yield the time of a batch of ``vllm bench latency``; the file says neither batch nor lengths."""
    run = Run(name=name, model=word(data, "model_id"), engine="vllm", batch=count(data, "batch_size"),
              prompt=count(data, "input_len"), output=count(data, "output_len"), **_parallel(data))  # fmt: skip
    yield from run.records({"end_to_end": positive(data, "avg_latency")})


def _vllm_throughput(data: Any, name: str) -> Iterator[Record]:
    """Yield the rate of ``vllm bench throughput``, prompts counted; the file says neither lengths nor concurrency."""
    each = _each(data, "total_num_tokens", "num_requests")
    prompt, output = count(data, "input_len"), count(data, "output_len")
    if each and prompt and not output:
        output = max(1, each - prompt)
    run = Run(name=name, model=word(data, "model_id"), engine="vllm", batch=count(data, "max_num_seqs"),
              prompt=prompt, output=output, **_parallel(data))  # fmt: skip
    rate = positive(data, "tokens_per_second")
    yield from run.records({"end_to_end": rate}, unit="tok/s (prompt and output)")


def _sglang(data: Any, name: str) -> Iterator[Record]:
    """Yield TTFT and TPOT of SGLang's ``bench_serving``: the server says what ran."""
    info = at(data, "server_info") or {}
    asked = count(data, "max_concurrency")
    run = Run(
        name=f"{name} {word(data, 'tag')}".strip(),
        model=word(info, "model_path", "served_model_name") or word(data, "model", "model_id"),
        hardware=word(data, "gpu", "hardware"),
        engine=word(data, "backend").partition("-")[0],
        version=word(info, "version"),
        weights=word(info, "quantization"),
        kv=word(info, "kv_cache_dtype").replace("auto", ""),
        tensor=count(info, "tp_size"),
        devices=(count(info, "tp_size") or 1) * (count(info, "pp_size") or 1) if info else None,
        batch=asked or count(data, "concurrency"),
        prompt=_each(data, "total_input_tokens", "completed"),
        output=_each(data, "total_output_tokens", "completed"),
        note="" if asked else _OPEN.format(at(data, "request_rate")),
    )
    yield from run.records({"ttft": _ms(data, "mean_ttft_ms"), "tpot": _ms(data, "mean_tpot_ms")})


def _aiperf(data: Any, name: str) -> Iterator[Record]:
    """Yield TTFT and TPOT of AIPerf or genai-perf; both call the latter inter-token latency."""
    asked = count(data, "input_config.phases.0.concurrency",
                  "input_config.perf_analyzer.stimulus.concurrency")  # fmt: skip
    run = Run(
        name=name,
        model=word(data, "input_config.models.items.0.name",
                   "input_config.model_names.0"),
        batch=asked or count(data, "effective_concurrency.avg"),
        prompt=count(data, "input_sequence_length.avg"),
        output=count(data, "output_sequence_length.avg"),
        **_parallel(data),
    )  # fmt: skip
    times = {phase: _timed(data, field) for phase, field in _AIPERF.items()}
    yield from run.records(times)


_AIPERF = {"ttft": "time_to_first_token", "tpot": "inter_token_latency"}


def _timed(data: Any, field: str) -> float | None:
    value = positive(data, f"{field}.avg")
    return None if value is None else seconds_of(value, word(data, f"{field}.unit") or "ms")


def _guidellm(data: Any, name: str) -> Iterator[Record]:
    """Yield TTFT and the time of each further token of every load that GuideLLM ran."""
    for number, one in enumerate(at(data, "benchmarks") or (), start=1):
        metrics = at(one, "metrics") or {}

        def mean(field: str, metrics: Any = metrics) -> float | None:
            return positive(metrics, f"{field}.successful.mean")

        streams = positive(one, "config.strategy.streams", "config.strategy.max_concurrency") or mean(
            "request_concurrency"
        )
        run = Run(
            name=f"{name} load {number}",
            model=word(one, "config.backend.model") or word(data, "config.spec.backend.model"),
            batch=None if streams is None else max(1, round(streams)),
            prompt=_rounded(mean("prompt_token_count")),
            output=_rounded(mean("output_token_count")),
        )
        ttft, tpot = mean("time_to_first_token_ms"), mean("inter_token_latency_ms")
        yield from run.records({"ttft": ttft and seconds_of(ttft, "ms"), "tpot": tpot and seconds_of(tpot, "ms")})


def _rounded(value: float | None) -> int | None:
    return None if value is None else max(1, round(value))


def _inferencemax(data: Any, name: str) -> Iterator[Record]:
    """Yield TTFT and TPOT, in seconds, of a row of InferenceMAX."""
    metrics = at(data, "metrics") or data
    tensor, conc = count(data, "tp"), count(data, "conc")
    run = Run(
        name=f"{name} concurrency {conc}",
        model=word(data, "model"),
        hardware=word(data, "hw"),
        engine=word(data, "framework"),
        weights=word(data, "precision"),
        tensor=tensor,
        batch=conc,
        prompt=count(data, "isl"),
        output=count(data, "osl"),
        note="with multi-token prediction" if word(data, "mtp") in ("on", "mtp", "true") else "",
    )
    yield from run.records({"ttft": positive(metrics, "mean_ttft"), "tpot": positive(metrics, "mean_tpot")})


# The first whose fields are all there; those of more fields come first.
FORMS = (
    Form("SGLang bench_serving", ("server_info", "mean_tpot_ms", "total_input_tokens"), _sglang),
    Form("vLLM bench serve", ("model_id", "mean_tpot_ms", "total_input_tokens"), _vllm_serve),
    Form("SGLang bench_serving", ("backend", "mean_tpot_ms", "total_input_tokens"), _sglang),
    Form("vLLM bench throughput", ("tokens_per_second", "num_requests"), _vllm_throughput),
    Form("vLLM bench latency", ("avg_latency", "latencies"), _vllm_latency),
    Form("AIPerf", ("time_to_first_token.avg", "input_config"), _aiperf),
    Form("GuideLLM", ("benchmarks.0.metrics",), _guidellm),
    Form("InferenceMAX", ("hw", "conc", "mean_tpot"), _inferencemax),
    Form("InferenceMAX", ("conc", "metrics.mean_tpot"), _inferencemax),
)
