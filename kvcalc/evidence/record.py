"""A measurement as data: what was measured, on what, and who says so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.units import seconds_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.workload import Parallel

__all__ = ["Record", "short_source"]

# What may have been timed, and the suite it belongs to: a decode step, a prompt, a whole batch of requests, the two
# latencies of a served request, a kernel.
_SUITES = {
    "decode": "decode",
    "prefill": "prefill",
    "end_to_end": "serving",
    "ttft": "serving",
    "tpot": "serving",
    "gemm": "kernels",
    "attention": "kernels",
}
_TOKEN_RATE = re.compile(r"(out(put)? )?(tok(en)?s?|t) ?(/ ?|per )s(ec(ond)?)?\b|tps\b", re.IGNORECASE)
_FOR_EACH_GPU = re.compile(r"(/|per) ?(gpu|device)\b", re.IGNORECASE)
_FOR_EACH_USER = re.compile(r"(/|per) ?(user|sequence|request|stream)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One printed measurement; what was not printed is none.

    Args:
        id: unique name.
        phase: what was timed, ``decode`` and so on.
        value: the number as printed.
        unit: its unit as printed: ``tok/s``, ``ms per token (TPOT)`` …
        hardware: the accelerator as printed.
        model: the model as printed; empty for a kernel.
        engine: the engine, with the build where printed.
        engine_version: its version.
        weights: weight format as printed.
        kv: cache format as printed.
        devices: accelerators.
        tensor: tensor parallel size; none where devices split the layers among them, or there is one.
        batch: sequences at once; none where it was not printed.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens generated.
        depth_tokens: tokens already in the cache before the prompt.
        ttft_s: time to first token of the same run, where printed.
        file_bytes: size of the weights' file, where printed.
        shape: sizes of a kernel's operands.
        parallel: how the model was spread, where more is printed than ``devices`` and ``tensor`` tell: of disaggregated
            serving, each decoding engine.
        prefill_parallel: of disaggregated serving, how it was spread in each engine that reads prompts.
        decode_engines: engines that decode; requests are dealt to them. None where it was not printed.
        prefill_engines: engines that read prompts, where these are others.
        row: what the row is called in its file, where several records are read from one.
        note: what else was printed.
        source: where it was printed.
        first_hand: whether that is where it was measured, not a transcription.
    """

    id: str
    phase: str
    value: float
    unit: str
    hardware: str
    model: str = ""
    engine: str = ""
    engine_version: str = ""
    weights: str | None = None
    kv: str | None = None
    devices: int = 1
    tensor: int | None = None
    batch: int | None = 1
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    depth_tokens: int = 0
    file_bytes: float | None = None
    ttft_s: float | None = None
    shape: Mapping[str, int] = field(default_factory=dict)
    parallel: Parallel | None = None
    prefill_parallel: Parallel | None = None
    decode_engines: int | None = 1
    prefill_engines: int | None = 1
    row: str = ""
    note: str = ""
    source: str = ""
    first_hand: bool = False

    @property
    def suite(self) -> str:
        """The suite that it belongs to; that of served requests where the phase is not known."""
        return _SUITES.get(self.phase, "serving")

    @property
    def counts_prompts(self) -> bool:
        """Whether a rate counts the tokens of prompts beside those generated."""
        return not self.is_time and re.search(r"input|prompt", self.unit, re.IGNORECASE) is not None

    @property
    def is_time(self) -> bool:
        """Whether the value is a time, not a rate."""
        return seconds_of(1, self._time_unit) is not None

    @property
    def _time_unit(self) -> str:
        return re.split(r"[ /]", self.unit.strip(), maxsplit=1)[0]

    @property
    def seconds_per_token(self) -> float:
        """Seconds for each token that the value counts, or seconds of the whole where it is a time.

        Raises:
            InputError: a value that is not positive, or a unit that is neither a time nor a rate of tokens.
        """
        if not 0 < self.value < float("inf"):
            raise InputError(f"{self.id}: the value must be positive, not {self.value}")
        time = seconds_of(self.value, self._time_unit)
        if time is not None:
            return time
        if _TOKEN_RATE.match(self.unit.strip()) is None:
            raise InputError(f"the unit {self.unit!r} is neither a time nor a rate of tokens", hint="tok/s, ms, s")
        devices = self.devices if _FOR_EACH_GPU.search(self.unit) else 1
        sequences = (self.batch or 1) if _FOR_EACH_USER.search(self.unit) else 1
        return 1 / (self.value * devices * sequences)


def short_source(source: str) -> str:
    """Return a source without host, scheme and commit, for tables.

    >>> short_source("https://github.com/ggml-org/llama.cpp/discussions/4167")
    'ggml-org/llama.cpp/discussions/4167'
    >>> short_source("pytorch-labs/gpt-fast:README.md@0f925b5d")
    'pytorch-labs/gpt-fast:README.md'
    """
    text = re.sub(r"^https?://(www\.)?(github\.com/)?", "", source.strip())
    return re.sub(r"@[0-9a-f]{7,40}", "", text).rstrip("/,. ") or "not told"
