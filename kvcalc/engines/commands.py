"""The command line that starts an engine as a deployment describes it.

One room for every question that prints one: vLLM's, SGLang's and llama.cpp's names of formats and options stand here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from shlex import quote
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import parse_format

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.options import EngineOptions

__all__ = [
    "COMMAND_ENGINES",
    "PORT",
    "Checkpoint",
    "checkpoint_name",
    "command_text",
    "needed_checkpoint",
    "start_command",
]

COMMAND_ENGINES = ("vllm", "sglang", "llama.cpp")
PORT = 8000
# Names of cache formats on the engines' command lines, where they differ from kvcalc's.
_VLLM_CACHE = {"bf16": "bfloat16", "fp16": "float16", "fp32": "auto"}
_SGLANG_CACHE = {"bf16": "bf16", "fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}
# Names of --weights that an engine makes itself of a 16-bit checkpoint as it loads it.
_ONLINE = {"fp8": "fp8", "fp8-dynamic": "fp8"}
# Names of --weights that it casts such a checkpoint to, and what ``--dtype`` calls them.
_CAST = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def start_command(
    engine: str,
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    options: EngineOptions,
    *,
    weights: str | None = None,
    drafting: Mapping[str, object] | None = None,
    role: str = "",
) -> tuple[str, ...]:
    """Return the words of the command that starts one replica.

    Args:
        engine: one of `COMMAND_ENGINES`.
        model: the model.
        formats: what it runs in.
        parallel: how it is spread.
        options: the engine's options; what is left out is the engine's default.
        weights: the weights that were asked for, where they are not the checkpoint's own.
        drafting: vLLM's ``--speculative-config``, where there is one.
        role: ``prefill`` or ``decode`` where replicas do one of them alone.

    Raises:
        UnsupportedError: an engine whose command line is not described.
    """
    if engine == "vllm":
        return _vllm(model, formats, parallel, options, weights, drafting, role)
    if engine == "sglang":
        return _sglang(model, formats, parallel, options, weights, role)
    if engine == "llama.cpp":
        return _llama_cpp(model, formats, parallel, options, weights)
    raise UnsupportedError(
        f"the command that starts {engine} is not described", hint=f"one of {', '.join(COMMAND_ENGINES)}"
    )


def command_text(words: tuple[str, ...]) -> str:
    r"""Return a command as it is typed.

    >>> command_text(("vllm", "serve", "a/b", "--speculative-config", '{"x": 1}'))
    'vllm serve a/b --speculative-config \'{"x": 1}\''
    """
    return " ".join(map(quote, words))


def checkpoint_name(model: ModelProfile) -> str:
    """Return the name that an engine fetches a model by: its Hugging Face id, where one is known."""
    return next((name for name in model.aliases if "/" in name), model.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint that a command names.

    Args:
        name: what the command loads: an id on Hugging Face, or a file or folder of one's own.
        is_local: whether it is such a file or folder, which has to be put there.
        note: which one it must be; empty for the model's own.
    """

    name: str
    is_local: bool = False
    note: str = ""


def needed_checkpoint(engine: str, model: ModelProfile, weights: str | None) -> Checkpoint:
    """Return the checkpoint that a command loads: never the model's own where others are planned.

    Weights that the engine does not make itself while it loads are in a checkpoint of their own, whose id is not known:
    a path stands for it, which no engine looks up.

    Args:
        engine: one of `COMMAND_ENGINES`.
        model: the model.
        weights: the weights that were asked for; none for the checkpoint's own.
    """
    own = checkpoint_name(model)
    word = None if weights is None else weights.strip().lower()
    if engine == "llama.cpp":
        name = f"{model.name if word is None else f'{model.name}-{word.upper()}'}.gguf"
        if model.is_gguf:
            return Checkpoint(name=name, is_local=True, note="" if word is None else f"{name} is {own} in {word}")
        made = f"convert_hf_to_gguf.py of {own}" + ("" if word is None else f", then llama-quantize to {word.upper()}")
        return Checkpoint(
            name=name, is_local=True, note=f"put the file there as {name}: {made}, or one of the same kind"
        )
    if word is None or (_is_plain(model) and (word in _CAST or word in _ONLINE)):
        return Checkpoint(name=own)
    path = f"./{model.name}-{word.replace('/', '-')}"
    asked = f"{path} stands for a checkpoint of {own} in {word}, which {engine} does not make itself"
    note = f"{asked}: put it there, or write its id in its place"
    if not _is_plain(model):
        note += "; without --weights the plan is for the checkpoint's own formats"
    return Checkpoint(name=path, is_local=True, note=note)


def _is_plain(model: ModelProfile) -> bool:
    """Whether a checkpoint's matrices are floats of 16 or 32 bits, which engines cast and quantise as they load."""
    return not model.weight_formats and parse_format(model.dtype).bytes_per_element >= 2  # noqa: PLR2004


def _dtype(model: ModelProfile, weights: str | None) -> str | None:
    """Return the format that a plain checkpoint is cast to, where it is another than its own."""
    word = None if weights is None else weights.strip().lower()
    return _CAST.get(word) if word is not None and _is_plain(model) and word != model.dtype else None


def _flags(pairs: list[tuple[str, object]]) -> list[str]:
    """Return the options that are given: a flag alone where its value is true."""
    words: list[str] = []
    for flag, value in pairs:
        if value is None or value is False:
            continue
        words += [flag] if value is True else [flag, str(value)]
    return words


def _size(count: int) -> int | None:
    return count if count > 1 else None


def _online(model: ModelProfile, weights: str | None) -> str | None:
    """Return the quantisation that an engine applies to a plain checkpoint while loading."""
    return _ONLINE.get(weights.strip().lower()) if weights is not None and _is_plain(model) else None


def _vllm(
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    options: EngineOptions,
    weights: str | None,
    drafting: Mapping[str, object] | None,
    role: str,
) -> tuple[str, ...]:
    """Return vLLM's command.

    Source: vLLM 0.32, ``EngineArgs.add_cli_args`` (names), ``CacheDType`` (cache formats).
    """
    cache = formats.key.name
    own = cache == formats.hidden.name
    caching = options.prefix_caching
    config = None if drafting is None else _json(drafting)
    transfer = {
        "kv_connector": "NixlConnector",
        "kv_role": {"prefill": "kv_producer", "decode": "kv_consumer"}.get(role),
    }
    return (
        "vllm", "serve", needed_checkpoint("vllm", model, weights).name,
        *_flags([
            ("--tensor-parallel-size", _size(parallel.tensor)),
            ("--pipeline-parallel-size", _size(parallel.pipeline)),
            ("--data-parallel-size", _size(parallel.data)),
            ("--enable-expert-parallel", parallel.expert > 1),
            ("--dtype", _dtype(model, weights)),
            ("--max-model-len", options.max_model_len),
            ("--max-num-seqs", options.max_num_seqs),
            ("--max-num-batched-tokens", options.max_num_batched_tokens),
            ("--block-size", options.block_size),
            ("--kv-cache-dtype", None if own else _VLLM_CACHE.get(cache, cache)),
            ("--quantization", _online(model, weights)),
            ("--gpu-memory-utilization", options.utilization),
            ("--enable-prefix-caching", caching is True),
            ("--no-enable-prefix-caching", caching is False),
            ("--speculative-config", config),
            ("--kv-transfer-config", _json(transfer) if role else None),
            ("--port", PORT),
        ]),
    )  # fmt: skip


def _sglang(
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    options: EngineOptions,
    weights: str | None,
    role: str,
) -> tuple[str, ...]:
    """Return SGLang's command: it counts the copies of the attention inside its tensor ranks.

    Source: SGLang 0.5.23, ``ServerArgs.add_cli_args``.
    """
    cache = formats.key.name
    return (
        "python", "-m", "sglang.launch_server", "--model-path",
        needed_checkpoint("sglang", model, weights).name,
        *_flags([
            ("--tp-size", _size(parallel.tensor * parallel.data)),
            ("--pp-size", _size(parallel.pipeline)),
            ("--dp-size", _size(parallel.data)),
            ("--enable-dp-attention", parallel.data > 1),
            ("--ep-size", _size(parallel.expert)),
            ("--dtype", _dtype(model, weights)),
            ("--context-length", options.max_model_len),
            ("--max-running-requests", options.max_num_seqs),
            ("--chunked-prefill-size", options.max_num_batched_tokens),
            ("--page-size", options.block_size),
            ("--kv-cache-dtype", None if cache == formats.hidden.name else _SGLANG_CACHE.get(cache, cache)),
            ("--quantization", _online(model, weights)),
            ("--mem-fraction-static", options.utilization),
            ("--disable-radix-cache", options.prefix_caching is False),
            ("--disaggregation-mode", role or None),
            ("--host", "0.0.0.0"),  # noqa: S104  a server in a container is asked from outside
            ("--port", PORT),
        ]),
    )  # fmt: skip


def _llama_cpp(
    model: ModelProfile, formats: Formats, parallel: Parallel, options: EngineOptions, weights: str | None
) -> tuple[str, ...]:
    """Return llama.cpp's command: its context is that of all slots, every layer is on GPUs."""
    from kvcalc.engines.llama_cpp.command import server_words
    from kvcalc.engines.llama_cpp.options import asked_options

    length = options.ctx_size or options.parallel * (options.max_model_len or 0)
    file = needed_checkpoint("llama.cpp", model, weights).name
    return (
        *server_words(file, replace(asked_options(formats, options), context=length)),
        *_flags([
            ("-ngl", "all"),
            ("-sm", "layer" if parallel.pipeline > 1 else None),
            ("--host", "0.0.0.0"),  # noqa: S104  as above
            ("--port", PORT),
        ]),
    )  # fmt: skip


def _json(values: Mapping[str, object]) -> str:
    """Return a flat mapping of words and numbers as JSON.

    >>> _json({"method": "ngram", "num_speculative_tokens": 3})
    '{"method": "ngram", "num_speculative_tokens": 3}'
    """
    inside = (f'"{key}": {value}' if isinstance(value, int) else f'"{key}": "{value}"' for key, value in values.items())
    return "{" + ", ".join(inside) + "}"
