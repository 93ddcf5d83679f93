"""``kvcalc solve``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import Engine, Json, Model, Output, takes_deployment, takes_engine
from kvcalc.core.errors import InputError

Gpu = Annotated[str | None, Option("--gpu", help="Accelerator: catalogue name, alias or profile file.")]
Gpus = Annotated[str | None, Option("--gpus", help="How many, or ? for the fewest.")]
Batch = Annotated[str, Option("--batch", help="Sequences, or ? for the most.")]
Context = Annotated[str | None, Option("--context", help="Tokens of each sequence, or ? for the most.")]
Bandwidth = Annotated[str | None, Option("--bandwidth", help="Memory bandwidth: 3.35TB/s, or ? for the least.")]
Price = Annotated[str | None, Option("--price", help="Dollars for an hour of one GPU, or ? for the most.")]
Tokens = Annotated[str | None, Option("--tokens-per-s", help="Least decoding speed, all sequences together.")]
EachTokens = Annotated[str | None, Option("--tokens-per-s-per-sequence", help="Least decoding speed of each sequence.")]
Ttft = Annotated[str | None, Option("--ttft", help="Most time to first token of one prompt of the context: 500ms.")]
Usd = Annotated[str | None, Option("--usd-per-million-tokens", help="Most that a million decoded tokens may cost.")]
Acceptance = Annotated[str | None, Option("--acceptance", help="Share of drafted tokens accepted: ? for the least.")]
Speedup = Annotated[
    str | None, Option("--speedup", help="With --acceptance ?: least gain of speculation; 1 where left out.")
]
Draft = Annotated[str | None, Option("--draft", help="With --acceptance ?: the draft model, as --model.")]
Method = Annotated[str | None, Option("--method", help="With --acceptance ?: the way to draft, as speculate has them.")]
Gamma = Annotated[str | None, Option("--gamma", help="With --acceptance ?: drafted tokens; the best where left out.")]
KvMemory = Annotated[str | None, Option("--kv-memory", help="Memory for the cache on each GPU; skips the budget.")]


@takes_deployment
@takes_engine
def command(
    model: Model,
    gpu: Gpu = None,
    gpus: Gpus = None,
    batch: Batch = "1",
    context: Context = None,
    bandwidth: Bandwidth = None,
    price: Price = None,
    tokens_per_s: Tokens = None,
    tokens_per_s_per_sequence: EachTokens = None,
    ttft: Ttft = None,
    usd_per_million_tokens: Usd = None,
    acceptance: Acceptance = None,
    speedup: Speedup = None,
    draft: Draft = None,
    method: Method = None,
    gamma: Gamma = None,
    engine: Engine = None,
    kv_memory: KvMemory = None,
    json: Json = False,
    output: Output = "table",
    *,
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Solve for the one quantity that is left as ?: batch, context, GPUs, bandwidth, price or acceptance.

    Every target given must hold at the answer, and so must memory where batch, context or GPUs are asked for; the
    others are told for the speed alone, with a warning where the model does not fit. Speeds and costs are those of the
    bound, so that no real run does with less.

    Example: kvcalc solve --model llama3.1-70b --gpu h100-sxm --gpus '?' --context 8192 --batch 8
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit, memory, number, one_count, served, tell_gpu
    from kvcalc.core.units import parse_rate, parse_seconds

    shown = command_output(output, json=json)
    given = {"gpus": gpus, "batch": batch, "context": context, "bandwidth": bandwidth, "price": price,
             "acceptance": acceptance}  # fmt: skip
    unknown = [name for name, text in given.items() if text is not None and text.strip() == "?"]
    if len(unknown) != 1:
        found = f"{' and '.join(unknown)} are" if unknown else "nothing is"
        raise InputError(f"{found} left open: one quantity must be ?", hint="for example --gpus '?'")
    drafted = {"draft": draft, "method": method, "gamma": gamma, "speedup": speedup}
    idle = [name for name, value in drafted.items() if value is not None and unknown != ["acceptance"]]
    if idle or (acceptance is not None and unknown != ["acceptance"]):
        raise InputError(f"--{idle[0] if idle else 'acceptance'} belongs to --acceptance '?'", hint="kvcalc speculate")
    known = {name: text for name, text in given.items() if name not in unknown}
    if "gpus" in unknown:
        fixed = [name for name, value in deployment_options.items() if name.endswith("_parallel") and value is not None]
        if fixed:
            hint = "leave it out: every way to spread the model is tried"
            raise InputError(f"--{fixed[0].replace('_', '-')} says how many GPUs there are", hint=hint)
    rate = known.get("bandwidth")
    if rate is not None:
        setting = f"memory_bandwidth_bytes_per_s={parse_rate(rate)!r}"
        deployment_options["settings"] = [*deployment_options["settings"], setting]
    deployment = api.deployment(
        model,
        gpu=gpu,
        gpus=one_count(known.get("gpus"), "gpus"),
        price_per_hour_usd=number(known.get("price"), "price"),
        engine=engine,
        **deployment_options,
    )
    deployment = served(deployment, engine or deployment.served_by, engine_options)
    if gpu is not None:
        tell_gpu(gpu, deployment.hardware)
    report = api.solve(
        deployment,
        unknown[0],
        context=one_count(known.get("context"), "context"),
        batch=one_count(known.get("batch"), "batch") or 1,
        tokens_per_s=number(tokens_per_s, "tokens-per-s"),
        tokens_per_s_per_sequence=number(tokens_per_s_per_sequence, "tokens-per-s-per-sequence"),
        ttft_s=None if ttft is None else parse_seconds(ttft),
        usd_per_million_tokens=number(usd_per_million_tokens, "usd-per-million-tokens"),
        speedup=number(speedup, "speedup"),
        draft=None if draft is None else api.draft_deployment(deployment, draft),
        method=method,
        gamma=one_count(gamma, "gamma"),
        kv_memory_bytes=memory(kv_memory),
    )
    emit(report, shown)
