"""Options that several commands share, so that they are spelled and explained the same everywhere."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from kvcalc.core.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "ACCEPTANCE",
    "ENGINE_NAMES",
    "Batches",
    "Calibration",
    "Contexts",
    "Engine",
    "Gpu",
    "Json",
    "Memory",
    "Model",
    "Output",
    "Set",
    "Towers",
    "takes_charts",
    "takes_deployment",
    "takes_engine",
    "takes_lesson",
    "takes_load",
    "takes_serving",
    "takes_swept",
]

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
Model = Annotated[str, Option("--model", "-m", help=_MODEL)]
Gpu = Annotated[str, Option("--gpu", help="Accelerator: catalogue name, alias or profile file.")]
Contexts = Annotated[str | None, Option("--context", help="Tokens attended: one, a list or a range (1024-33792+1024).")]
Memory = Annotated[
    str | None, Option("--memory", help="Memory of each GPU, where it is another than the profile's: 36GiB.")
]
Batches = Annotated[str, Option("--batch", help="Sequences: one, a list (1,8,32) or a range (1-256*2).")]
Set = Annotated[list[str] | None, Option("--set", help="Override a profile field: kv_heads=64. May be repeated.")]
Calibration = Annotated[
    str | None, Option("--calibration", help="Estimate with this calibration: catalogue name or file.")
]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]
Output = Annotated[str, Option("--output", "-o", help="table, json, jsonl, csv or md.")]
Towers = Annotated[bool | None, Option("--towers/--no-towers", help="Whether towers for images and sound are loaded.")]

# How a model is run; the names are the arguments of `kvcalc.api.deployment`.
_DEPLOYMENT: dict[str, Any] = {
    "weights": Annotated[
        str | None,
        Option(
            "--weights",
            help="Format, with exceptions (bf16,experts=mxfp4); int4, awq … as checkpoints; q4_k_m … as llama.cpp.",
        ),
    ],
    "kv_dtype": Annotated[str | None, Option("--kv-dtype", help="Cache format: bf16, fp8, q8_0, int4-g64 …")],
    "activations": Annotated[str | None, Option("--activations", help="Format the matrices are multiplied in.")],
    "memory_bytes": Memory,
    "gpus": Annotated[int | None, Option("--gpus", help="How many; alone it means tensor parallel.")],
    "tensor_parallel": Annotated[int | None, Option("--tensor-parallel", "--tp", help="Ranks that split each layer.")],
    "pipeline_parallel": Annotated[
        int | None, Option("--pipeline-parallel", "--pp", help="Stages that split the layers.")
    ],
    "expert_parallel": Annotated[
        int | None, Option("--expert-parallel", "--ep", help="Ranks that share out the experts.")
    ],
    "data_parallel": Annotated[
        int | None, Option("--data-parallel", "--dp", help="Copies of the attention part; --ep shares the experts.")
    ],
    "towers": Towers,
    "settings": Set,
}

# How often drafted tokens are accepted, in one of these forms; the names are those of
# `kvcalc.plan.speculative.acceptance.FORMS`.
ACCEPTANCE: dict[str, Any] = {
    "acceptance": Annotated[
        str | None, Option("--acceptance", help="Drafted tokens accepted: a rate (0.8) or counts (1000:814,602).")
    ],
    "acceptance_by_position": Annotated[
        str | None,
        Option("--acceptance-by-position", help="As vLLM prints it, each of all drafts: 0.543,0.357,0.264."),
    ],
    "acceptance_conditional": Annotated[
        str | None,
        Option("--acceptance-conditional", help="By position, each if those before it were accepted: 0.54,0.66,0.74."),
    ],
    "accepted_length": Annotated[
        float | None,
        Option("--accepted-length", help="Tokens of a pass, the target's own (bonus) token included: 2.16."),
    ],
    "draft_rate": Annotated[
        float | None, Option("--draft-rate", help="Accepted over drafted tokens: vLLM's draft acceptance rate.")
    ],
}

# Files a report's chart is written to; the names are their endings.
_CHARTS: dict[str, Any] = {
    "svg": Annotated[str | None, Option("--svg", metavar="FILE", help="Write the chart as SVG.")],
    "png": Annotated[str | None, Option("--png", metavar="FILE", help="Write the chart as PNG.")],
    "html": Annotated[str | None, Option("--html", metavar="FILE", help="Write the chart as a page without network.")],
}

# How a demonstration is shown.
_LESSON: dict[str, Any] = {
    "steps": Annotated[bool | None, Option("--steps", help="Print each step before the result.")],
    "watch": Annotated[bool | None, Option("--watch", help="Animate the steps, on a terminal.")],
    "plain": Annotated[bool | None, Option("--plain", help="Neither colour, animation nor characters beyond ASCII.")],
}

# Options that say what is printed; a command's help lists those that it has last.
_LAST = ("explain", "json", "output")

# The keys of `kvcalc.engines.pools.ENGINES`, which is loaded only when it is needed; a test compares them.
ENGINE_NAMES = "vllm, llama.cpp, sglang, transformers or ideal"

Engine = Annotated[
    str | None,
    Option("--engine", help=f"{ENGINE_NAMES}; where left out, llama.cpp for GGUF and Apple, else vllm."),
]

# What engines are started with; the names are the fields of `kvcalc.engines.options.EngineOptions`.
_ENGINE: dict[str, Any] = {
    "version": Annotated[
        str | None, Option("--engine-version", help="vLLM, SGLang, transformers: the version whose rules are used.")
    ],
    "max_model_len": Annotated[
        str | None,
        Option("--max-model-len", "--context-length", help="Longest sequence the engine is started for."),
    ],
    "block_size": Annotated[
        int | None, Option("--block-size", "--page-size", help="vLLM: tokens of a block. SGLang: of a page.")
    ],
    "max_num_batched_tokens": Annotated[
        str | None,
        Option(
            "--max-num-batched-tokens", "--chunked-prefill-size", help="vLLM: tokens of a pass. SGLang: of a prefill."
        ),
    ],
    "max_in_flight_batches": Annotated[
        int | None, Option("--max-in-flight-batches", help="vLLM: passes under way at once.")
    ],
    "max_num_seqs": Annotated[
        int | None,
        Option("--max-num-seqs", "--max-running-requests", help="vLLM: sequences of a pass. SGLang: requests at once."),
    ],
    "prefix_caching": Annotated[
        bool | None,
        Option(
            "--prefix-caching/--no-prefix-caching",
            " /--disable-radix-cache",
            help="vLLM, SGLang: keep blocks for later prompts.",
        ),
    ],
    "utilization": Annotated[
        float | None,
        Option("--utilization", "--mem-fraction-static", help="Share of a GPU's memory it may use."),
    ],
    "gdn_prefill_backend": Annotated[
        str | None,
        Option("--gdn-prefill-backend", help="vLLM: kernel of gated delta nets: auto, flashinfer or triton."),
    ],
    "platform": Annotated[str | None, Option("--platform", help="vLLM: gpu or cpu.")],
    "swa_full_tokens_ratio": Annotated[
        float | None,
        Option("--swa-full-tokens-ratio", help="SGLang: tokens of the windowed layers' pool for each of the others'."),
    ],
    "mamba_full_memory_ratio": Annotated[
        float | None, Option("--mamba-full-memory-ratio", help="SGLang: memory of states for that of tokens.")
    ],
    "max_total_tokens": Annotated[
        int | None, Option("--max-total-tokens", help="SGLang: tokens that its pool is capped at.")
    ],
    "max_mamba_cache_size": Annotated[
        int | None, Option("--max-mamba-cache-size", help="SGLang: slots of recurrent states.")
    ],
    "mamba_radix_cache_strategy": Annotated[
        str | None,
        Option("--mamba-radix-cache-strategy", help="SGLang: auto, no_buffer, extra_buffer or extra_buffer_lazy."),
    ],
    "mamba_ssm_dtype": Annotated[
        str | None, Option("--mamba-ssm-dtype", help="SGLang: recurrent states in float32, bfloat16 or float16.")
    ],
    "overlap_schedule": Annotated[
        bool | None,
        Option("--overlap-schedule/--disable-overlap-schedule", help="SGLang: schedule a step while one runs."),
    ],
    "hybrid_swa_memory": Annotated[
        bool | None,
        Option("--hybrid-swa-memory/--disable-hybrid-swa-memory", help="SGLang: a pool for windowed layers alone."),
    ],
    "parallel": Annotated[int | None, Option("--parallel", help="llama.cpp: sequences.")],
    "kv_unified": Annotated[
        bool | None, Option("--kv-unified/--no-kv-unified", help="llama.cpp: one buffer for all sequences.")
    ],
    "cache_type_k": Annotated[str | None, Option("--cache-type-k", help="llama.cpp: type of cached keys.")],
    "cache_type_v": Annotated[str | None, Option("--cache-type-v", help="llama.cpp: type of cached values.")],
    "swa_full": Annotated[
        bool | None, Option("--swa-full/--no-swa-full", help="llama.cpp: whole context for windowed layers.")
    ],
    "ctx_size": Annotated[
        str | None,
        Option("--ctx-size", help="llama.cpp: context of all sequences; 0 for what the model was trained with."),
    ],
    "batch_size": Annotated[int | None, Option("--batch-size", help="llama.cpp: tokens of a batch at most (2048).")],
    "ubatch": Annotated[
        int | None,
        Option("--ubatch", "--ubatch-size", help="llama.cpp: tokens computed at once, no more than a batch."),
    ],
    "n_rs_seq": Annotated[
        int | None,
        Option("--n-rs-seq", help="llama.cpp: past tokens for which states are kept too; drafts ask for them."),
    ],
    "flash_attn": Annotated[str | None, Option("--flash-attn", help="llama.cpp: auto, on or off.")],
    "mmproj": Annotated[bool | None, Option("--mmproj", help="llama.cpp: load the file of towers for images too.")],
    "imatrix": Annotated[
        bool | None, Option("--imatrix", help="llama.cpp: the file of --weights is made with an importance matrix.")
    ],
}


def takes_deployment(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a model is run to a command; it gets them as the mapping ``deployment_options``.

    An option that the command spells itself, as one that takes a list does, is its own.
    """
    return _taking(command, "deployment_options", _DEPLOYMENT)


def takes_engine(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that engines are started with; the command gets those given as the mapping ``engine_options``."""
    return _taking(command, "engine_options", _ENGINE)


def takes_charts(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that write a chart to files; the command gets them as the mapping ``chart_files``.

    Before the command begins, a file that cannot be written is refused, and so are charts where nothing draws them.
    """

    @wraps(command)
    def checked(*, chart_files: dict[str, str | None], **options: Any) -> None:
        from kvcalc.cli.shared import check_charts

        check_charts(chart_files)
        command(chart_files=chart_files, **options)

    return _taking(checked, "chart_files", _CHARTS)


def takes_lesson(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of a demonstration to a command; it gets them as the mapping ``lesson_options``."""
    return _taking(command, "lesson_options", _LESSON)


def takes_load(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a server is asked to a command; it gets them as the mapping ``load_options``."""
    from kvcalc.cli.serving_options import LOAD

    return _taking(command, "load_options", LOAD)


def takes_serving(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say how a load is served to a command; it gets them as the mapping ``serving_options``."""
    from kvcalc.cli.serving_options import SERVING

    return _taking(command, "serving_options", SERVING)


def takes_swept(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of simulations that a sweep does not vary; the command gets them as ``simulation_options``."""
    from kvcalc.cli.serving_options import SWEPT

    return _taking(command, "simulation_options", SWEPT)


def _taking(command: Callable[..., None], name: str, added: dict[str, Any]) -> Callable[..., None]:
    signature = inspect.signature(command, eval_str=True)
    added = {option: kind for option, kind in added.items() if option not in signature.parameters}
    keyword = inspect.Parameter.KEYWORD_ONLY
    own = [parameter.replace(kind=keyword) for parameter in signature.parameters.values() if parameter.name != name]
    new = [inspect.Parameter(option, keyword, default=None, annotation=kind) for option, kind in added.items()]
    last = [parameter for parameter in own if parameter.name in _LAST]
    first = [parameter for parameter in own if parameter not in last]

    @wraps(command)
    def run(**options: Any) -> None:
        taken = {option: options.pop(option) for option in added}
        if "settings" in taken:
            taken["settings"] = taken["settings"] or ()
        if taken.get("memory_bytes") is not None:
            taken["memory_bytes"] = parse_bytes(taken["memory_bytes"])
        command(**options, **{name: taken})

    vars(run)["__signature__"] = inspect.Signature([*first, *new, *last])
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in (*first, *new, *last)}
    del vars(run)["__wrapped__"]
    return run
