"""Options of serving runs: what is asked, and how it is served."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvcalc.cli.options import ACCEPTANCE
from kvcalc.core.errors import InputError
from kvcalc.core.units import parse_bytes, parse_rate, parse_seconds

if TYPE_CHECKING:
    from kvcalc.api import Load, Serving

__all__ = ["LOAD", "SERVING", "SWEPT", "load_of", "serving_of", "simulation_values"]

# The names are the fields of `kvcalc.api.Load`.
LOAD: dict[str, Any] = {
    "trace": Annotated[
        str | None, Option("--trace", help="Requests: Azure's CSV, Mooncake's JSON lines, or any with --columns.")
    ],
    "columns": Annotated[
        str | None, Option("--columns", help="Columns of the trace: time=ts:ms,prompt=in,output=out.")
    ],
    "arrival": Annotated[str | None, Option("--arrival", help="trace, poisson, gamma, constant, ramp or closed.")],
    "rate": Annotated[float | None, Option("--rate", help="Requests a second; of a ramp, at its beginning.")],
    "last_rate": Annotated[float | None, Option("--last-rate", help="ramp: requests a second at its end.")],
    "variation": Annotated[
        float | None, Option("--variation", help="gamma: coefficient of variation of the gaps (2).")
    ],
    "requests": Annotated[str | None, Option("--requests", help="How many; all of a trace, or 1,000.")],
    "prompt": Annotated[
        str | None, Option("--prompt", help="Tokens of prompts: 512, uniform:128-2048, lognormal:1020,0.9 …")
    ],
    "output_tokens": Annotated[str | None, Option("--output-tokens", help="Tokens of outputs, likewise.")],
    "users": Annotated[int | None, Option("--users", help="closed: users who ask again after each answer.")],
    "think_s": Annotated[
        str | None, Option("--think", help="closed, conversations: mean time between answer and question: 5s.")
    ],
    "turns": Annotated[str | None, Option("--turns", help="Conversations of so many turns: 4, uniform:1-8 …")],
    "system_tokens": Annotated[
        str | None, Option("--system-tokens", help="Tokens of a system prompt that all conversations share.")
    ],
    "seed": Annotated[int | None, Option("--seed", help="Of all random numbers (0).")],
}

# The names are the fields of `kvcalc.api.Serving`.
SERVING: dict[str, Any] = {
    "kv_memory_bytes": Annotated[
        str | None, Option("--kv-memory", help="Memory for the cache on each GPU; skips the budget.")
    ],
    "policy": Annotated[str | None, Option("--policy", help="Who is served first: fcfs or priority.")],
    "preemption": Annotated[
        str | None, Option("--preemption", help="recompute, or swap: blocks go to the host's memory and come back.")
    ],
    "host_bytes_per_s": Annotated[
        str | None, Option("--host-rate", help="swap: link to the host's memory, of each GPU: 50GB/s.")
    ],
    "gamma": Annotated[int | None, Option("--gamma", help="Speculative decoding: draft tokens of each verification.")],
    **ACCEPTANCE,
    "draft": Annotated[
        str | None, Option("--draft", help="Model that drafts; left out, drafting takes no time (n-grams).")
    ],
    "step_times": Annotated[
        str | None, Option("--step-times", help="Time of a step: ideal, serial, estimate, or a duration such as 20ms.")
    ],
    "calibration": Annotated[
        str | None, Option("--calibration", help="What estimate stands on: a calibration's name or file.")
    ],
    "replicas": Annotated[int | None, Option("--replicas", help="Engines that requests are dealt to, each on --gpus.")],
    "routing": Annotated[str | None, Option("--routing", help="round-robin, least-loaded or prefix-aware.")],
    "prefill_replicas": Annotated[
        int | None, Option("--prefill-replicas", help="Engines that only prefill; the others then only decode.")
    ],
    "transfer_bytes_per_s": Annotated[
        str | None, Option("--transfer-rate", help="Link from prefill to decode, of each GPU: 50GB/s.")
    ],
    "exact_steps": Annotated[
        bool | None, Option("--exact-steps", help="No jumps over steps: the same decisions and times, more slowly.")
    ],
    "slo": Annotated[str | None, Option("--slo", help="Limits: ttft_p95=1s,tpot_p95=50ms.")],
}


# What a sweep varies, with options of its own.
_VARIED = ("rate", "seed", "prompt", "replicas", "routing", "slo")
SWEPT = {name: option for name, option in (LOAD | SERVING).items() if name not in _VARIED}


def load_of(options: dict[str, Any]) -> Load:
    """Return the load that the options describe.

    Raises:
        InputError: options that contradict each other, or are out of range.
    """
    from kvcalc import api

    return api.Load(**simulation_values(options))


def serving_of(options: dict[str, Any], engine: str, engine_options: dict[str, Any]) -> Serving:
    """Return how the options say that the load is served.

    Raises:
        InputError: an engine whose scheduler is not modelled, or options out of range.
    """
    from kvcalc import api
    from kvcalc.cli.shared import engine_given

    if engine != "vllm":
        raise InputError(f"the scheduler of engine {engine!r} is not modelled", hint="leave out --engine: it is vllm")
    settings = api.engine_options(engine, engine_given(engine_options))
    return api.Serving(options=settings, **simulation_values(options))


def simulation_values(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a load or of serving that were given, as numbers in base units.

    Raises:
        InputError: no number of that kind.
    """
    from kvcalc.cli.shared import one_count

    given = {name: value for name, value in options.items() if value is not None}
    for name, read in (
        ("think_s", parse_seconds),
        ("kv_memory_bytes", parse_bytes),
        ("transfer_bytes_per_s", parse_rate),
        ("host_bytes_per_s", parse_rate),
    ):
        if name in given:
            given[name] = read(given[name])
    for name in ("requests", "system_tokens"):
        if name in given:
            given[name] = one_count(given[name], name.replace("_", "-"))
    return given
