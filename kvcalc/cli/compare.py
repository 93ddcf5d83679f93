"""``kvcalc compare``."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from kvcalc.cli.options import Engine, Json, Memory, Output, Set, Towers, takes_engine
from kvcalc.core.errors import InputError, UnknownNameError, did_you_mean
from kvcalc.core.ranges import check_combinations

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.plan.compare import Side

_SPECS = "What is compared: MODEL, GPU, MODEL@GPU or MODEL@4xGPU, then options: llama3.1-8b@2xh100-sxm,kv-dtype=fp8."
Specs = Annotated[list[str] | None, Argument(metavar="A B ...", help=_SPECS, show_default=False)]
Model = Annotated[str | None, Option("--model", "-m", help="Models, as a list.")]
Gpu = Annotated[str | None, Option("--gpu", help="Accelerators, as a list.")]
Gpus = Annotated[str | None, Option("--gpus", help="How many, as a list; alone it means tensor parallel.")]
Weights = Annotated[str | None, Option("--weights", help="Weight formats, as a list: bf16,fp8.")]
Kv = Annotated[str | None, Option("--kv-dtype", help="Cache formats, as a list: bf16,fp8.")]
Activations = Annotated[str | None, Option("--activations", help="Formats the matrices are multiplied in, as a list.")]
Tensor = Annotated[str | None, Option("--tensor-parallel", "--tp", help="Ranks that split each layer, as a list.")]
Pipeline = Annotated[str | None, Option("--pipeline-parallel", "--pp", help="Stages that split the layers, as a list.")]
Expert = Annotated[str | None, Option("--expert-parallel", "--ep", help="Ranks that share out the experts, as a list.")]
Data = Annotated[str | None, Option("--data-parallel", "--dp", help="Copies of the attention part, as a list.")]
Batch = Annotated[str | None, Option("--batch", help="Sequences, as a list or range.")]
Context = Annotated[str | None, Option("--context", help="Tokens attended, and of the prompt, as a list or range.")]
Price = Annotated[str | None, Option("--price", help="Dollars for an hour of one GPU, as a list.")]

_SHORT = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "ep": "expert_parallel", "dp": "data_parallel"}
_MOST_SIDES = 100
_COUNTS = ("gpus", *_SHORT.values())


@takes_engine
def command(
    specs: Specs = None,
    model: Model = None,
    gpu: Gpu = None,
    gpus: Gpus = None,
    weights: Weights = None,
    kv_dtype: Kv = None,
    activations: Activations = None,
    tensor_parallel: Tensor = None,
    pipeline_parallel: Pipeline = None,
    expert_parallel: Expert = None,
    data_parallel: Data = None,
    batch: Batch = None,
    context: Context = None,
    price: Price = None,
    memory: Memory = None,
    engine: Engine = None,
    towers: Towers = None,
    settings: Set = None,
    json: Json = False,
    output: Output = "table",
    *,
    engine_options: dict[str, Any],
) -> None:
    """Models, accelerators, formats or whole deployments side by side.

    Every list is combined with every other, and with what is named first. The first side is the measure of the others;
    the best of each row is marked.

    Example: kvcalc compare llama3.1-8b qwen3-8b --gpu h100-sxm --context 8192 --batch 8
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, emit

    shown = command_output(output, json=json)
    options = {
        "model": model, "gpu": gpu, "gpus": gpus, "weights": weights, "kv_dtype": kv_dtype, "activations": activations,
        "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
        "expert_parallel": expert_parallel, "data_parallel": data_parallel,
        "batch": batch, "context": context, "price": price, "memory": memory,
    }  # fmt: skip
    lists = {name: _listed(name, text) for name, text in options.items() if text is not None}
    named = [_parsed(spec) for spec in specs or ()] or [{}]
    sides = [side for given in named for side in _combined(given, lists)]
    check_combinations("sides", sides, most=_MOST_SIDES, hint="kvcalc sweep computes grids")
    labels = api.side_labels(sides)
    report = api.compare(
        [
            _side(label, side, settings or [], engine=engine, towers=towers, engine_options=engine_options)
            for label, side in zip(labels, sides, strict=True)
        ]
    )
    emit(report, shown)


def _listed(name: str, text: str) -> list[str]:
    from kvcalc.core.ranges import parse_counts

    if name in ("batch", "context", *_COUNTS):
        return [str(value) for value in parse_counts(text, what=name.replace("_", " "))]
    found: list[str] = []
    for part in text.split(","):
        if "=" in part and found:
            found[-1] += f",{part}"  # an exception to the weight format before it
        else:
            found.append(part.strip())
    return found


def _parsed(spec: str) -> dict[str, str]:
    """Return the options that an argument such as ``llama3.1-8b@2xh100-sxm,kv-dtype=fp8`` spells."""
    name, *rest = spec.split(",")
    subject, _, place = name.partition("@")
    found = {}
    if place:
        count, _, kind = place.partition("x")
        found["gpu"] = kind if count.isdigit() and kind else place
        if count.isdigit() and kind:
            found["gpus"] = count
    if subject:
        found["gpu" if not place and _is_gpu(subject) else "model"] = subject
    for part in rest:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        key = _SHORT.get(key, key)
        known = ("weights", "kv_dtype", "activations", "batch", "context", "price", "memory", *_COUNTS)
        if equals and key not in known and "weights" in found and list(found)[-1] == "weights":
            found["weights"] += f",{part.strip()}"  # an exception to the format
            continue
        if not equals or key not in known:
            hint = did_you_mean(key, known) or f"options here: {', '.join(known)}"
            raise InputError(f"{spec!r}: {part!r} is not an option=value", hint=hint.replace("_", "-"))
        found[key] = value.strip()
    return found


def _is_gpu(name: str) -> bool:
    from kvcalc import api

    def known(load: Callable[[str], object]) -> bool:
        try:
            load(name)
        except UnknownNameError:
            return False
        return True

    return "/" not in name and not known(api.load_model) and known(api.load_hardware)


def _combined(given: dict[str, str], lists: dict[str, list[str]]) -> list[dict[str, str]]:
    free = {name: values for name, values in lists.items() if name not in given}
    check_combinations("sides", *free.values(), most=_MOST_SIDES, hint="kvcalc sweep computes grids")
    return [given | dict(zip(free, values, strict=True)) for values in product(*free.values())]


def _side(
    label: str,
    given: dict[str, str],
    settings: list[str],
    *,
    engine: str | None,
    towers: bool | None,
    engine_options: dict[str, Any],
) -> Side:
    from kvcalc import api
    from kvcalc.cli.shared import engine_given, memory, number, one_count, served

    memory_bytes = memory(given.get("memory"))
    if "model" not in given:
        if "gpu" not in given:
            raise InputError("nothing to compare", hint="name models or accelerators: kvcalc compare h100-sxm h200")
        if asked := engine_given(engine_options):
            option = next(iter(asked)).replace("_", "-")
            raise InputError(f"--{option} is of an engine that runs a model", hint="name models: MODEL@GPU")
        return api.side(label, api.load_hardware(given["gpu"], settings=settings, memory_bytes=memory_bytes))
    options: dict[str, Any] = {name: one_count(given.get(name), name.replace("_", " ")) for name in _COUNTS}
    options |= {name: given.get(name) for name in ("weights", "kv_dtype", "activations")}
    options["price_per_hour_usd"] = number(given.get("price"), "price")
    deployment = api.deployment(
        given["model"],
        gpu=given.get("gpu"),
        memory_bytes=memory_bytes,
        engine=engine,
        towers=towers,
        settings=settings,
        **options,
    )
    deployment = served(deployment, engine, engine_options)
    batch = one_count(given.get("batch"), "batch") or 1
    return api.side(label, deployment, context=one_count(given.get("context"), "context"), batch=batch)
