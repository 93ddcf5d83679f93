"""Metrics of a server in Prometheus's text: means since its start, from the sums and counts of histograms.

Names are those of vLLM 0.33 (``vllm/v1/metrics``) and SGLang 0.5.23 (``sglang/srt/observability``); the counters of
``--enable-mfu-metrics`` are estimates of the engine's own, by accelerator.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.evidence.benchmarks.values import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kvcalc.evidence.record import Record

__all__ = ["Metrics", "is_metrics", "metrics_records", "read_metrics"]

_SAMPLE = re.compile(r"(?P<name>(?:vllm|sglang):\w+)(?:\{(?P<labels>[^}]*)\})?\s+(?P<value>\S+)(?:\s+\d+)?\s*")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
    "tpot": ("vllm:request_time_per_output_token_seconds", "vllm:time_per_output_token_seconds",
             "sglang:inter_token_latency_seconds", "vllm:inter_token_latency_seconds"),
    "prompt": ("vllm:request_prompt_tokens", "sglang:prompt_tokens_histogram"),
    "output": ("vllm:request_generation_tokens", "sglang:generation_tokens_histogram"),
    "whole": ("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
}  # fmt: skip
_COUNTERS = {"flop": "estimated_flops_per_gpu_total", "read_bytes": "estimated_read_bytes_per_gpu_total",
             "written_bytes": "estimated_write_bytes_per_gpu_total"}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Counts and means of a server since its start.

    Args:
        engine: the engine.
        model: the model as served.
        means: means of histograms: seconds of ``ttft``, ``tpot`` and ``whole``, tokens of ``prompt`` and ``output``.
        requests: requests that were answered.
        running: requests that run now.
        counted: FLOP and bytes of one accelerator, as the engine estimates them.
    """

    engine: str
    model: str
    means: Mapping[str, float]
    requests: float
    running: float
    counted: Mapping[str, float]


def is_metrics(text: str) -> bool:
    """Whether a text is the metrics of one of the engines."""
    return re.search(r"^(?:# (?:HELP|TYPE) )?(?:vllm|sglang):\w+", text, re.MULTILINE) is not None


def read_metrics(text: str) -> Metrics:
    """Return the metrics of a server; those of several engines behind one server are added up.

    Raises:
        ProfileError: a value that is no number.
    """
    sums: dict[str, float] = {}
    labels: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            continue
        value = _number(sample["value"], number)
        own = dict(_LABEL.findall(sample["labels"] or ""))
        labels |= own
        if "le" not in own:
            sums[sample["name"]] = sums.get(sample["name"], 0.0) + value
    engine = "sglang" if any(name.startswith("sglang:") for name in sums) else "vllm"
    means = {}
    for name, histograms in _HISTOGRAMS.items():
        whole = next(
            ((sums[f"{each}_sum"], sums[f"{each}_count"]) for each in histograms if sums.get(f"{each}_count")), None
        )
        if whole is not None and whole[0] > 0:
            means[name] = whole[0] / whole[1]
    return Metrics(
        engine=engine,
        model=labels.get("model_name", ""),
        means=means,
        requests=next((sums[f"{each}_count"] for each in _HISTOGRAMS["whole"] if f"{each}_count" in sums), 0.0),
        running=sums.get("vllm:num_requests_running", sums.get("sglang:num_running_reqs", 0.0)),
        counted={name: sums[key] for name, end in _COUNTERS.items() if (key := f"{engine}:{end}") in sums},
    )


def _number(text: str, line: int) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ProfileError(f"line {line}: {text[:40]!r} is no number") from None
    if math.isnan(value) or value < 0:
        # gauges of engines without a request say NaN; sums never do
        raise ProfileError(f"line {line}: a metric must not be {text[:40]}")
    return value


def metrics_records(text: str, name: str) -> Iterator[Record]:
    """Yield mean TTFT and TPOT of all requests since a server's start."""
    metrics = read_metrics(text)
    prompt, output = (metrics.means.get(each) for each in ("prompt", "output"))
    run = Run(
        name=name,
        model=metrics.model,
        engine=metrics.engine,
        batch=max(1, round(metrics.running)) if metrics.running else None,
        prompt=None if prompt is None else max(1, round(prompt)),
        output=None if output is None else max(1, round(output)),
        note=f"means of all {metrics.requests:,.0f} requests since the server's start",
    )
    yield from run.records({"ttft": metrics.means.get("ttft"), "tpot": metrics.means.get("tpot")})
