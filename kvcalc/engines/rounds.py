"""Rounds of speculation in each engine: whether the host's work is hidden behind the passes, and what it takes if not.

A round ends with work for the host: it reads how many tokens were accepted, hands back the blocks of the others, looks
for finished requests and puts the next round together. An engine that schedules a round ahead does this while the GPU
computes; one that does not, adds it to each round.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Interval
from kvcalc.core.speculation import RoundTerms
from kvcalc.engines.vllm.defaults import SYNCHRONOUS_DRAFTS
from kvcalc.engines.vllm.releases import FIRST_WITH_ROUNDS_AHEAD, since

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SEQUENCE_S", "SGLANG_ROUND_S", "VLLM_ROUND_S", "round_terms"]

# SGLang: rounds with overlap scheduling against rounds without, in the same build: 16.34 to 14.38 ms with one request
# (DeepSeek-R1, pull request 12128), 21.1 to 16.5 ms with 32 (Qwen3-8B with DFlash, pull request 20547). The line
# through both is what the host takes. `tests/tools/fit_rounds.py` computes these from the shipped records.
SGLANG_ROUND_S, SEQUENCE_S = 1.88e-3, 8.36e-5
# vLLM 0.9, one request: the round at no drafted token, from drafts of 2 to 7, less a plain step (issue 20780).
VLLM_ROUND_S = 9.46e-4
# Measured over estimated speed-up of four of five records that no term was fitted to, their groups weighing alike.
_ALONE = Interval(low=0.75, high=1.17, records=10)
_BATCHED = Interval(low=0.73, high=1.06, records=24)

# Rounds are scheduled ahead by default since 0.5.11 (environ.py: SGLANG_ENABLE_SPEC_V2; off in 0.5.10), but not those
# of n-grams (server_args.py of 0.5.11).
_FIRST_SGLANG_AHEAD = (0, 5, 11)
_SYNCHRONOUS_SGLANG = ("ngram",)


def round_terms(engine: str, method: str, *, version: str | None = None) -> RoundTerms:
    """Return the terms of rounds in an engine, besides their passes.

    Args:
        engine: the engine.
        method: how tokens are drafted, a key of `kvcalc.plan.speculative.METHODS`.
        version: the engine's version; the newest one that is described where left out.

    >>> round_terms("sglang", "eagle", version="0.4.4").engine, round_terms("sglang", "eagle").round_s
    ('sglang without overlap scheduling', 0.0)
    """
    if engine not in _AHEAD:
        return RoundTerms(engine=engine, round_s=0.0, sequence_s=0.0, alone=_ALONE, batched=_BATCHED, is_measured=False)
    is_ahead, round_s = _AHEAD[engine]
    if is_ahead(method, version):
        return RoundTerms(engine=engine, round_s=0.0, sequence_s=0.0, alone=_ALONE, batched=_BATCHED)
    name = f"{engine} without overlap scheduling"
    return RoundTerms(engine=name, round_s=round_s, sequence_s=SEQUENCE_S, alone=_ALONE, batched=_BATCHED)


def _vllm_is_ahead(method: str, version: str | None) -> bool:
    return method not in SYNCHRONOUS_DRAFTS and since(version, FIRST_WITH_ROUNDS_AHEAD)


def _sglang_is_ahead(method: str, version: str | None) -> bool:
    release = tuple(map(int, re.findall(r"\d+", version or "")[:3]))
    return method not in _SYNCHRONOUS_SGLANG and (not release or release >= _FIRST_SGLANG_AHEAD)


_AHEAD: dict[str, tuple[Callable[[str, str | None], bool], float]] = {
    "vllm": (_vllm_is_ahead, VLLM_ROUND_S),
    "sglang": (_sglang_is_ahead, SGLANG_ROUND_S),
}
