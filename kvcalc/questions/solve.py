"""``kvcalc solve``: the one quantity that is left open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, about
from kvcalc.core.readers import UNKNOWN, count, duration, number, rate, unknown_or
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.deployments import placed
from kvcalc.questions.groups import ENGINE, GPU_OR_NONE, KV_MEMORY, MODEL, Engine, Run
from kvcalc.questions.speculate import draft_deployment

if TYPE_CHECKING:
    from kvcalc.core.reports.solve import SolveReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["Solve", "solve"]

_OPEN = ("gpus", "batch", "context", "bandwidth", "price", "acceptance")
_DRAFTED = ("draft", "method", "gamma", "speedup")


class Solve(Engine, Run):
    """The inverse question: the batch, context, GPUs, bandwidth, price or acceptance that is left as ?.

    The answer meets every target given. When solving for batch, context or GPUs it also fits in memory; otherwise a
    warning says if it does not fit. Speeds and costs are bounds: a real run may need more.

    Example: kvcalc solve --model llama3.1-70b --gpu h100-sxm --gpus '?' --context 8192 --batch 8
    """

    model: str = MODEL
    gpu: str | None = GPU_OR_NONE
    gpus: Any = param("--gpus", help="Number of GPUs, or ? for the fewest.", read=unknown_or(count))
    batch: Any = param("--batch", help="Batch size, or ? for the largest.", read=unknown_or(count), default="1")
    context: Any = param("--context", help="Context length in tokens, or ? for the longest.", read=unknown_or(count))
    bandwidth: Any = param(
        "--bandwidth",
        heading="Deployment",
        otherwise="the profile's",
        help="Memory bandwidth: 3.35TB/s, or ? for the lowest.",
        read=unknown_or(rate),
    )
    price: Any = param("--price", help="USD per GPU-hour, or ? for the highest.", read=unknown_or(number))
    tokens_per_s: float | None = param(
        "--tokens-per-s", help="Target decode speed, all sequences together.", read=number
    )
    tokens_per_s_per_sequence: float | None = param(
        "--tokens-per-s-per-sequence", help="Target decode speed per sequence.", read=number
    )
    ttft: float | None = param(
        "--ttft", help="Target TTFT for one prompt as long as the context: 500ms.", read=duration
    )
    usd_per_million_tokens: float | None = param(
        "--usd-per-million-tokens", help="Target cost per 1M decoded tokens.", read=number
    )
    acceptance: Any = param("--acceptance", help="Acceptance of draft tokens: ? for the lowest that pays.")
    speedup: float | None = param(
        "--speedup", help="With --acceptance ?: target speed-up of speculation.", read=number, otherwise="1"
    )
    draft: str | None = param("--draft", help="With --acceptance ?: draft model, as --model.")
    method: str | None = param("--method", help="With --acceptance ?: drafting method, as in speculate.")
    gamma: int | None = param("--gamma", help="With --acceptance ?: draft tokens.", read=count, otherwise="the best")
    engine: str | None = ENGINE
    kv_memory: int | None = KV_MEMORY
    is_started = True
    heading = "Targets"

    def answer(self) -> Answer:
        """Return the value of the quantity left open."""
        unknown = self._unknown()
        deployment = self.deployment()
        draft = None
        if self.draft is not None:
            with about("draft"):
                draft = draft_deployment(deployment, self.draft)
        report = solve(
            deployment,
            unknown,
            context=None if unknown == "context" else self.context,
            batch=1 if unknown == "batch" else self.batch,
            tokens_per_s=self.tokens_per_s,
            tokens_per_s_per_sequence=self.tokens_per_s_per_sequence,
            ttft_s=self.ttft,
            usd_per_million_tokens=self.usd_per_million_tokens,
            speedup=self.speedup,
            draft=draft,
            method=self.method,
            gamma=self.gamma,
            kv_memory_bytes=self.kv_memory,
        )
        return Answer(report)

    def deployment(self) -> Deployment:
        """Return the model on the accelerators that are known, with the bandwidth and price that were given."""
        given = {name: value for name, value in self.given(Run).items() if value != UNKNOWN}
        if self.bandwidth not in (None, UNKNOWN):
            given["settings"] = (*self.settings, f"memory_bandwidth_bytes_per_s={self.bandwidth!r}")
        if self.price != UNKNOWN:
            given["price_per_hour_usd"] = self.price
        asked = {"gpu": self.gpu, "engine": self.engine} | given
        return placed(self.model, self.given(Engine), is_started=True, **asked)

    def _unknown(self) -> str:
        """Return the quantity that is left open.

        Raises:
            InputError: none or several, or options that do not go with it.
        """
        unknown = [name for name in _OPEN if getattr(self, name) == UNKNOWN]
        if len(unknown) != 1:
            subject = f"{' and '.join(unknown)} are" if unknown else "nothing is"
            raise InputError(f"{subject} left open: one quantity must be ?", hint="for example --gpus '?'")
        idle = [name for name in _DRAFTED if getattr(self, name) is not None and unknown != ["acceptance"]]
        if idle or (self.acceptance is not None and unknown != ["acceptance"]):
            raise InputError(f"--{idle[0] if idle else 'acceptance'} belongs to --acceptance '?'",
                             hint="kvcalc speculate")  # fmt: skip
        fixed = [name for name in self.given(Run) if name.endswith("_parallel")]
        if "gpus" in unknown and fixed:
            hint = "leave it out: every way to spread the model is tried"
            raise InputError(f"--{fixed[0].replace('_', '-')} says how many GPUs there are", hint=hint)
        return unknown[0]


def solve(
    deployment: Deployment,
    unknown: str,
    *,
    context: int | None = None,
    batch: int = 1,
    tokens_per_s: float | None = None,
    tokens_per_s_per_sequence: float | None = None,
    ttft_s: float | None = None,
    usd_per_million_tokens: float | None = None,
    speedup: float | None = None,
    draft: Deployment | None = None,
    method: str | None = None,
    gamma: int | None = None,
    engine: str | None = None,
    options: EngineOptions | None = None,
    kv_memory_bytes: int | None = None,
) -> SolveReport:
    """Return the value of one quantity at the edge of what memory, speed and cost allow.

    Args:
        deployment: model, accelerator, formats and parallel sizes.
        unknown: ``batch``, ``context``, ``gpus``, ``bandwidth``, ``price`` or ``acceptance``.
        context: tokens of each sequence.
        batch: sequences.
        tokens_per_s: least decoding speed of all sequences together.
        tokens_per_s_per_sequence: least decoding speed of each.
        ttft_s: most time to first token of one prompt as long as the context.
        usd_per_million_tokens: most that a million decoded tokens may cost.
        speedup: least speed over plain decoding that speculation must reach; break-even where left out.
        draft: the draft model, as `draft_deployment` places it.
        method: the way to draft, where it is not a draft model.
        gamma: drafted tokens in a row; the best where left out.
        engine: another engine whose memory model says what fits.
        options: that engine's options.
        kv_memory_bytes: memory for the cache on each GPU; skips the budget.

    Raises:
        InputError: sizes that make no sense, or nothing that bounds the unknown.
        UnsupportedError: a model or arrangement that the engine's memory model does not describe.
    """
    from kvcalc.plan.room import BudgetTerms
    from kvcalc.plan.solve import Drafting, Targets, solve_report

    return solve_report(
        deployment,
        unknown,
        context=context,
        batch=batch,
        targets=Targets(
            tokens_per_s=tokens_per_s,
            tokens_per_s_per_sequence=tokens_per_s_per_sequence,
            ttft_s=ttft_s,
            usd_per_million_tokens=usd_per_million_tokens,
            speedup=speedup,
        ),
        engine=engine,
        options=options,
        terms=BudgetTerms(kv_bytes=kv_memory_bytes),
        drafting=Drafting(draft=draft, method=method, gamma=gamma),
    )
