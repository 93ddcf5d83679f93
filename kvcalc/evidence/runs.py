"""Served runs with the times of each request, as LLMServingSim publishes them: their mean latencies as records."""

from __future__ import annotations

import json
from statistics import fmean
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.evidence.record import Record
from kvcalc.files import BoundedLines, open_text, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

__all__ = ["REQUESTS", "run_records"]

REQUESTS = ".requests.jsonl"
_MAX_LINE, _MAX_META_BYTES = 65_536, 2**20


def run_records(path: Path) -> Iterator[Record]:
    """Yield the mean TPOT and TTFT of a run's requests; of a folder, of each run in it.

    Raises:
        ProfileError: a file that cannot be read as such a run.
    """
    files = sorted(path.glob(f"*{REQUESTS}")) if path.is_dir() else [path]
    if not files:
        raise ProfileError("the folder holds no run", where=str(path), hint=f"files that end with {REQUESTS}")
    for each in files:
        try:
            yield from _records(each)
        except (AttributeError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ProfileError(f"cannot be read as a run: {error}"[:200], where=str(each)) from None


def _records(path: Path) -> Iterator[Record]:
    name = path.name.removesuffix(REQUESTS)
    meta = read_json(path.with_name(f"{name}.meta.json"), max_bytes=_MAX_META_BYTES, what="the run's settings")
    with open_text(path) as text:
        requests: list[dict[str, Any]] = []
        lines = BoundedLines(text, max_characters=_MAX_LINE, where=str(path))
        for line in lines:
            lines.next_record()
            requests.append(json.loads(line))
    began, ended = (pick(each[key] for each in requests) for pick, key in ((min, "queued_ts"), (max, "last_token_ts")))
    served_s = sum(each["last_token_ts"] - each["first_token_ts"] for each in requests)
    several = [each for each in requests if each["output_toks"] > 1]
    tpot_s = fmean((each["last_token_ts"] - each["first_token_ts"]) / (each["output_toks"] - 1) for each in several)
    ttft_s = fmean(each["first_token_ts"] - each["queued_ts"] for each in requests)
    for phase, value in (("ttft", ttft_s), ("tpot", tpot_s)):
        yield Record(
            id=f"{name}/{phase}",
            row=name,
            phase=phase,
            value=value,
            unit="s",
            batch=max(1, round(served_s / (ended - began))),
            prompt_tokens=round(fmean(each["input_toks"] for each in requests)),
            output_tokens=round(fmean(each["output_toks"] for each in requests)),
            ttft_s=ttft_s,
            source="casys-kaist/LLMServingSim",
            first_hand=True,
            **_setting(name, meta),
        )


def _setting(name: str, meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a run's settings; an accelerator that is not told is that of the file's name."""
    options = meta["engine_kwargs"]
    tensor = int(options.get("tensor_parallel_size") or 1)
    card = name.partition("_")[0].replace("RTX", "RTX ").replace("PRO", "PRO ")
    return {
        "hardware": (meta.get("hardware") or {}).get("device_name") or card,
        "model": meta["model"],
        "engine": "vllm",
        "engine_version": str(meta.get("vllm_version") or ""),
        "weights": options.get("dtype") or None,
        "devices": tensor,
        "tensor": tensor,
    }
