"""Options that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Batches", "Contexts", "Explain", "Gpu", "Json", "Model", "Output", "Set", "takes_deployment"]

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
Model = Annotated[str, Option("--model", "-m", help=_MODEL)]
Gpu = Annotated[str, Option("--gpu", help="Accelerator: catalogue name, alias or profile file.")]
Contexts = Annotated[str | None, Option("--context", help="Tokens attended: one, a list or a range (1024-33792+1024).")]
Batches = Annotated[str, Option("--batch", help="Sequences: one, a list (1,8,32) or a range (1-256*2).")]
Set = Annotated[list[str] | None, Option("--set", help="Override a profile field: kv_heads=64. May be repeated.")]
Explain = Annotated[bool, Option("--explain", help="Print each formula with its numbers and their sources.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]
Output = Annotated[str, Option("--output", "-o", help="table, json, jsonl, csv or md.")]

# How a model is run; the names are the arguments of `kvcalc.api.deployment`.
_DEPLOYMENT: dict[str, Any] = {
    "weights": Annotated[str | None, Option("--weights", help="Weight format, with exceptions: bf16,experts=mxfp4.")],
    "kv_dtype": Annotated[str | None, Option("--kv-dtype", help="Cache format: bf16, fp8, q8_0, int4-g64 …")],
    "activations": Annotated[str | None, Option("--activations", help="Format the matrices are multiplied in.")],
    "gpus": Annotated[int | None, Option("--gpus", help="How many; alone it means tensor parallel.")],
    "tensor_parallel": Annotated[int | None, Option("--tensor-parallel", "--tp", help="Ranks that split each layer.")],
    "pipeline_parallel": Annotated[
        int | None, Option("--pipeline-parallel", "--pp", help="Stages that split the layers.")
    ],
    "expert_parallel": Annotated[
        int | None, Option("--expert-parallel", "--ep", help="Ranks that share out the experts.")
    ],
    "data_parallel": Annotated[int | None, Option("--data-parallel", "--dp", help="Copies of the attention part.")],
    "settings": Set,
}


def takes_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a model is run to a command; it gets them as the mapping ``deployment_options``."""
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name != "deployment_options"]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in _DEPLOYMENT.items()
    ]
    own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
    last = [parameter for parameter in own if parameter.name in ("explain", "json", "output")]
    first = [parameter for parameter in own if parameter not in last]

    @wraps(command)
    def run(**options: Any) -> None:
        shared = {name: options.pop(name) for name in _DEPLOYMENT}
        shared["settings"] = shared["settings"] or ()
        command(**options, deployment_options=shared)

    vars(run)["__signature__"] = inspect.Signature([*first, *added, *last])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*first, *added, *last)}
    del vars(run)["__wrapped__"]
    return run
