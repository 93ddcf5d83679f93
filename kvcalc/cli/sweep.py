"""``kvcalc sweep``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import ENGINE_NAMES, Json, Memory, Output, Set, Towers, takes_swept
from kvcalc.core.errors import InputError

Models = Annotated[str, Option("--model", "-m", help="Models, separated by commas.")]
Gpus = Annotated[str | None, Option("--gpu", help="Accelerators, separated by commas.")]
Report = Annotated[
    str, Option("--report", help="What is computed at each point: decode, prefill, size, fit, speculate, simulate.")
]
Batches = Annotated[str | None, Option("--batch", help="Sequences: a list (1,8,32) or a range (1-256*2).")]
Contexts = Annotated[str | None, Option("--context", help="Tokens attended: a list or a range (1024-33792+1024).")]
Prompts = Annotated[
    str | None,
    Option("--prompt", help="prefill: tokens of each prompt: a list or a range. simulate: their distribution."),
]
Number = Annotated[str | None, Option("--gpus", help="How many: a list or a range.")]
Tensor = Annotated[str | None, Option("--tensor-parallel", "--tp", help="Ranks that split each layer: a list.")]
Pipeline = Annotated[str | None, Option("--pipeline-parallel", "--pp", help="Stages that split the layers: a list.")]
Expert = Annotated[str | None, Option("--expert-parallel", "--ep", help="Ranks that share out the experts: a list.")]
Data = Annotated[str | None, Option("--data-parallel", "--dp", help="Copies of the attention part: a list.")]
Kv = Annotated[str | None, Option("--kv-dtype", help="Cache formats, separated by commas.")]
Weights = Annotated[str | None, Option("--weights", help="Weight format, with exceptions: bf16,experts=mxfp4.")]
Engines = Annotated[str | None, Option("--engine", help=f"Engines, separated by commas: {ENGINE_NAMES}.")]
Activations = Annotated[str | None, Option("--activations", help="Format the matrices are multiplied in.")]
Rates = Annotated[str | None, Option("--rate", help="simulate: requests a second, separated by commas: 1,2.5,4.")]
Seeds = Annotated[str | None, Option("--seed", help="simulate: seeds, separated by commas.")]
Replicas = Annotated[str | None, Option("--replicas", help="simulate: engines: a list or a range.")]
Routings = Annotated[str | None, Option("--routing", help="simulate: routings, separated by commas.")]
BatchedTokens = Annotated[str | None, Option("--max-num-batched-tokens", help="simulate: tokens of a step: a list.")]
Sequences = Annotated[str | None, Option("--max-num-seqs", help="simulate: sequences of a step: a list.")]
Drafts = Annotated[str | None, Option("--draft", help="speculate, simulate: draft models, separated by commas.")]
Methods = Annotated[str | None, Option("--method", help="speculate: ways to draft, separated by commas.")]
Gammas = Annotated[str | None, Option("--gamma", help="speculate, simulate: tokens of a draft: a list or a range.")]
Acceptances = Annotated[str | None, Option("--acceptance", help="speculate, simulate: rates, separated by commas.")]
Lengths = Annotated[str | None, Option("--accepted-length", help="Likewise: tokens of a pass, separated by commas.")]
DraftRates = Annotated[
    str | None, Option("--draft-rate", help="Likewise: accepted over drafted tokens, separated by commas.")
]
Save = Annotated[
    str | None, Option("--save", metavar="FILE", help="Write the rows to a .csv, .jsonl or .parquet file.")
]
Resume = Annotated[bool, Option("--resume", help="Go on with a sweep to --save FILE that was stopped.")]
Pareto = Annotated[
    bool, Option("--pareto", help="Keep the points that no other beats in tokens/s of a sequence and of a GPU.")
]
Slo = Annotated[
    str | None, Option("--slo", help="Limits, within which the best point is named: tpot_p95=50ms, ttft_p95=1s.")
]
Workers = Annotated[
    int | None, Option("--workers", help="Processes: 1, or for simulations as many as there are cores.")
]
Scheduler = Annotated[str | None, Option("--scheduler", help="A Dask cluster that does the work: tcp://HOST:PORT.")]

# Lists that are one acceptance, not one to vary.
_BY_POSITION = ("acceptance_by_position", "acceptance_conditional")


@takes_swept
def command(
    model: Models,
    gpu: Gpus = None,
    report: Report = "decode",
    batch: Batches = None,
    context: Contexts = None,
    prompt: Prompts = None,
    gpus: Number = None,
    tensor_parallel: Tensor = None,
    pipeline_parallel: Pipeline = None,
    expert_parallel: Expert = None,
    data_parallel: Data = None,
    kv_dtype: Kv = None,
    weights: Weights = None,
    activations: Activations = None,
    engine: Engines = None,
    memory: Memory = None,
    towers: Towers = None,
    settings: Set = None,
    rate: Rates = None,
    seed: Seeds = None,
    replicas: Replicas = None,
    routing: Routings = None,
    max_num_batched_tokens: BatchedTokens = None,
    max_num_seqs: Sequences = None,
    draft: Drafts = None,
    method: Methods = None,
    gamma: Gammas = None,
    acceptance: Acceptances = None,
    accepted_length: Lengths = None,
    draft_rate: DraftRates = None,
    save: Save = None,
    resume: Resume = False,
    pareto: Pareto = False,
    slo: Slo = None,
    workers: Workers = None,
    scheduler: Scheduler = None,
    json: Json = False,
    output: Output = "table",
    *,
    simulation_options: dict[str, Any],
) -> None:
    """A report at every point of a grid: models, accelerators, parallelism, batch, context, load.

    Example: kvcalc sweep --model llama3.1-8b --gpu h100-sxm,h200,b200 --batch 1-64*2 --context 8192
    """
    from kvcalc import api
    from kvcalc.cli.serving_options import simulation_values
    from kvcalc.cli.shared import command_output, counts, emit, emit_blocks, numbers, progress, whole_numbers, words
    from kvcalc.cli.shared import memory as memory_of

    shown = command_output(output, json=json)
    places = {
        "model": words(model, "model"),
        "gpu": words(gpu, "gpu"),
        "kv_dtype": words(kv_dtype, "kv-dtype"),
        "engine": words(engine, "engine"),
        "gpus": counts(gpus, "gpus"),
        "tensor_parallel": counts(tensor_parallel, "tensor-parallel"),
        "pipeline_parallel": counts(pipeline_parallel, "pipeline-parallel"),
        "expert_parallel": counts(expert_parallel, "expert-parallel"),
        "data_parallel": counts(data_parallel, "data-parallel"),
    }
    cells = {"context": counts(context, "context"), "batch": counts(batch, "batch")}
    runs = {
        "rate": numbers(rate, "rate"),
        "seed": whole_numbers(seed, "seed"),
        "replicas": counts(replicas, "replicas"),
        "routing": words(routing, "routing"),
        "max_num_batched_tokens": counts(max_num_batched_tokens, "max-num-batched-tokens"),
        "max_num_seqs": counts(max_num_seqs, "max-num-seqs"),
    }
    drafting = {
        "draft": words(draft, "draft"),
        "method": words(method, "method"),
        "gamma": counts(gamma, "gamma"),
        "acceptance": numbers(acceptance, "acceptance"),
        "accepted_length": numbers(accepted_length, "accepted-length"),
        "draft_rate": numbers(draft_rate, "draft-rate"),
    }
    options = simulation_values(simulation_options)
    by_position = {name: options.pop(name) for name in _BY_POSITION if name in options}
    if report == "simulate":
        options |= {name: value for name, value in (("prompt", prompt), ("slo", slo)) if value is not None}
        options |= by_position
        axes: dict[str, Any] = places | runs | drafting
        refuse_foreign(report, {"method": drafting.pop("method")}, "speculate")
    elif report == "speculate":
        axes = places | drafting | cells
        refuse_foreign(report, options | runs | {"prompt": prompt}, "simulate")
        options = by_position
    else:
        axes = places | cells | {"prompt": counts(prompt, "prompt")}
        refuse_foreign(report, drafting | by_position, "speculate")
        refuse_foreign(report, options | runs, "simulate")
    swept = api.Sweep(
        report=report,
        axes={name: values for name, values in axes.items() if values is not None},
        deployment={"weights": weights, "activations": activations, "settings": tuple(settings or ())}
        | ({} if memory is None else {"memory_bytes": memory_of(memory, "memory")})
        | ({} if towers is None else {"towers": towers}),
        options=options,
    )
    where: dict[str, Any] = {"workers": workers, "scheduler": scheduler}
    if save is None and not pareto and shown in ("csv", "jsonl"):
        emit_blocks((columns for _, columns in api.sweep_columns(swept, **where)), shown)
        return
    with progress("points") as told:
        found = api.sweep(swept, save=save, resume=resume, pareto=pareto, slo=slo, progress=told, **where)
    emit(found, shown)


def refuse_foreign(report: str, given: dict[str, Any], owner: str) -> None:
    """Refuse options of another report.

    Raises:
        InputError: there are some.
    """
    name = next((name for name, value in given.items() if value is not None), None)
    if name is not None:
        name = name.removesuffix("_s").removesuffix("_bytes").replace("_", "-")
        raise InputError(f"--{name} is an option of {owner}, not of {report}", hint=f"add --report {owner}")
