"""Choose the engine and number format of a checkpoint, and refuse tensor-parallel sizes that no engine starts with."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError, did_you_mean
from kvcalc.core.formats import FORMATS, GGML_TYPES, is_exllama, parse_format
from kvcalc.cost.sharding import splits_evenly

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.formats import Format
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = [
    "ENGINES",
    "FRONTS",
    "as_multiplied",
    "cache_dtype",
    "check_engine",
    "check_formats",
    "check_split",
    "default_engine",
    "engine_named",
    "has_gguf_formats",
    "has_mxfp4_experts",
    "loaded_activations",
    "run_dtype",
    "runs_gguf",
]

# Blocks of ggml that are multiplied as 8-bit integers; others, such as mxfp4, have files of their own too.
_GGUF = frozenset(name for name, elements, _ in GGML_TYPES.values() if elements > 1 and FORMATS[name].unit == "int8")
_WIDE = ("fp32", "tf32", "fp64")
_PLAIN = ("bf16", "fp16", "fp32")
# Tensor ranks that a hint names at most.
_MAX_HINTED = 16
# Models that vLLM does not run in float16 (0.32, ``_FLOAT16_NOT_SUPPORTED_MODELS``).
_UNSTABLE_IN_FP16 = ("gemma2", "gemma3", "gemma3_text", "glm4")


def default_engine(model: ModelProfile, formats: Formats, hardware: HardwareProfile | None) -> str:
    """Name the engine that is meant where none is asked for: llama.cpp for GGUF and Apple's GPUs, else vLLM.

    No engine that is described runs ExLlama's formats: for these it is the bound without one.
    """
    if any(map(is_exllama, _weights(formats))):
        return "ideal"
    apple = hardware is not None and hardware.vendor == "apple"
    return "llama.cpp" if apple or model.is_gguf or has_gguf_formats(formats) else "vllm"


def has_gguf_formats(formats: Formats) -> bool:
    """Whether weights or cache are in a format that GGUF files alone have."""
    return any(each.name in _GGUF for each in (*_weights(formats), formats.key, formats.value))


def runs_gguf(model: ModelProfile, formats: Formats) -> bool:
    """Whether weights are those of a GGUF file, which llama.cpp runs where no engine is asked for."""
    return model.is_gguf or bool(formats.recipe) or any(each.name in _GGUF for each in _weights(formats))


def has_mxfp4_experts(model: ModelProfile) -> bool:
    """Whether a checkpoint stores its experts in mxfp4, or in that and the plain biases beside it.

    Its GGUF file keeps them as they are: recipe ``mxfp4_moe``.
    """
    own = model.weight_formats.get("experts")
    if own is None:
        return False
    form = parse_format(own)
    return form.unit == "fp4" and form.bytes_per_element < FORMATS["nvfp4"].bytes_per_element


def _weights(formats: Formats) -> tuple[Format, ...]:
    return (formats.weights, *formats.parts.values())


def run_dtype(model: ModelProfile, engine: str | None, hardware: HardwareProfile | None = None) -> str:
    """Return the unquantised format that an engine runs a checkpoint in; without an engine, the fastest that is common.

    Args:
        model: the model.
        engine: the engine; none where any common one may run it.
        hardware: the accelerator: where float16 is faster than bfloat16, a bound without an engine takes it.

    Files in 32 bits are run in 16 by vLLM and SGLang and converted to 16 for llama.cpp; transformers keeps the file's.

    On cards without bfloat16 vLLM takes float16, and float32 for models that are unstable in it.

    Source: vLLM 0.32, ``_resolve_auto_dtype``; SGLang 0.5.23, ``_get_and_verify_dtype`` (float16, for Gemma bfloat16);
    llama.cpp, ``convert_hf_to_gguf.py --outtype auto``; transformers 5, ``dtype="auto"``.
    """
    if engine in ("mlx", "transformers") or model.is_gguf:
        return model.dtype
    if engine == "vllm" and hardware is not None and "bf16" not in hardware.peak_flop_per_s:
        return "fp32" if model.architecture in _UNSTABLE_IN_FP16 else "fp16"
    if model.dtype not in _WIDE:
        return model.dtype
    if engine == "sglang":
        return "bf16" if model.architecture.startswith("gemma") else "fp16"
    faster = engine is None and hardware is not None and hardware.peak("fp16") > hardware.peak("bf16")
    return "fp16" if faster else "bf16"


def cache_dtype(model: ModelProfile, engine: str | None, hardware: HardwareProfile | None = None) -> str | None:
    """Return the cache format that an engine takes where none is asked for; none where it is that of the model.

    vLLM and SGLang keep DeepSeek-V4's cache in fp8, and some sparse latent attention where Blackwell's kernels read it.

    Source: SGLang 0.5.23, ``arg_groups/overrides.py`` (``_deepseek_v4_kv_cache_dtype``, ``_muse_spark_overrides``,
    ``_dsa_kv_cache_dtype_default``); vLLM as `own_cache_format` cites it; others take what the checkpoint declares.
    """
    generation = "" if hardware is None else hardware.architecture
    # each engine's rules are loaded where it is asked about
    if engine == "vllm":
        from kvcalc.engines.vllm.cache_formats import own_cache_format

        return model.kv_dtype or own_cache_format(model, generation)
    if engine == "sglang":
        from kvcalc.engines.sglang.defaults import cache_format

        return cache_format(model, generation)
    return model.kv_dtype


def as_multiplied(engine: str | None, formats: Formats, cards: Sequence[HardwareProfile]) -> Formats:
    """Return the formats with those that an engine's kernels multiply in, where they are not those of the checkpoint.

    llama.cpp turns activations to 8-bit integers for quantised matrices, or unpacks these to 16 bits where a card does
    that faster (`HardwareProfile.peak`); matrices in 16 bits stay in their own format. It multiplies mxfp4 in 4 bits
    where all cards have units for that. Attention works in fp16. Files of 16 bits alone are left as they are.

    Source: llama.cpp, ``ggml-cuda/mmq.cu`` (``ggml_cuda_should_use_mmq``) and ``ggml-cpu.c`` (``vec_dot_type``);
    pull request 17906 (mxfp4 on Blackwell).

    Args:
        engine: the engine; other than llama.cpp none changes what it was told.
        formats: the formats as they are stored.
        cards: what multiplies.

    >>> from kvcalc.core.workload import Formats
    >>> stored = Formats(weights=FORMATS["q4_0"], parts={"router": FORMATS["fp32"], "head": FORMATS["fp16"]})
    >>> run = as_multiplied("llama.cpp", stored, ())
    >>> [run.multiplied_as(part) for part in ("mlp", "router", "head")], run.hidden.name
    (['int8', 'fp32', 'fp16'], 'fp16')
    """
    units = {form.unit for form in _weights(formats)} & {"int8", "fp4"}
    if engine != "llama.cpp" or not units:
        return formats
    narrow = "fp4" in units and bool(cards) and all("fp4" in card.peak_flop_per_s for card in cards)
    return replace(formats, activations=FORMATS["fp4" if narrow else "int8"], hidden=FORMATS["fp16"])


def loaded_activations(engine: str | None, formats: Formats, card: HardwareProfile) -> Format:
    """Return the format in which vLLM and SGLang multiply the weights that they load on a card.

    Matrices in fp8 are multiplied by activations in fp8, whether the checkpoint stores them so or
    ``--quantization fp8`` makes them; matrices that ``--dtype`` casts are in that format. Where a card has no unit for
    narrow floats, kernels for the weights alone (Marlin's) multiply in 16 bits.

    Source: vLLM 0.32, ``quantization/fp8.py`` (``Fp8LinearMethod``: activations are quantised, statically or as they
    come, unless ``use_marlin``) and ``utils/marlin_utils_fp8.py``, ``marlin_utils_fp4.py`` ("Your GPU does not have
    native support for FP8 computation"); SGLang 0.5.23, ``layers/quantization``, has both from there.

    Args:
        engine: the engine; other than these two none changes what it was told.
        formats: the formats as they are stored, and multiplied where nothing else is known.
        card: what multiplies.

    >>> from kvcalc.core.hardware import HardwareProfile
    >>> from kvcalc.core.workload import Formats
    >>> a100, h100 = (HardwareProfile(name="x", title="x", vendor="x", memory_label_bytes=1e9,
    ...     memory_bandwidth_bytes_per_s=1e12, peak_flop_per_s=dict.fromkeys(units, 1e15))
    ...     for units in (("bf16",), ("bf16", "fp8")))
    >>> stored = Formats(weights=FORMATS["fp8"], parts={"head": FORMATS["bf16"]})
    >>> [loaded_activations("vllm", stored, card).name for card in (a100, h100)]
    ['bf16', 'fp8']
    """
    asked_format, fp8 = formats.activations, FORMATS["fp8"]
    if engine not in ("vllm", "sglang"):
        return asked_format
    if asked_format.unit in ("fp8", "fp4") and asked_format.unit not in card.peak_flop_per_s:
        asked_format = formats.hidden
    if asked_format.unit in _PLAIN and formats.weights.unit in _PLAIN:
        asked_format = formats.weights
    stores_fp8 = any(form.unit == fp8.unit for form in _weights(formats))
    is_wider = asked_format.bytes_per_element > fp8.bytes_per_element
    return fp8 if stores_fp8 and is_wider and fp8.unit in card.peak_flop_per_s else asked_format


# The engines whose memory is modelled; `kvcalc.engines.pools.ENGINES` has their models, and a test compares them.
ENGINES = ("ideal", "vllm", "llama.cpp", "sglang", "transformers", "mlx")
# Programs that start one of them with defaults of their own (`kvcalc.engines.llama_cpp.fronts`).
FRONTS = {"ollama": "llama.cpp", "lm-studio": "llama.cpp"}
# Engines that are asked for and whose memory is not modelled, and what is missing.
_MISSING = {
    "tensorrt-llm": "it divides the memory that is left once the engine is built and loaded, which no public log shows"
    " term by term",
    **dict.fromkeys(
        ("tgi", "exllama", "exllamav2", "exllamav3", "ktransformers", "lmdeploy", "deepspeed", "vllm-ascend"),
        "none of its rules are described",
    ),
}
# Other names of engines, without case, blanks and underscores.
_ALSO = {
    "huggingface": "transformers",
    "hf": "transformers",
    "llama-cpp": "llama.cpp",
    "llama-server": "llama.cpp",
    "llamacpp": "llama.cpp",
    "lmstudio": "lm-studio",
    "mlx-lm": "mlx",
    "tensorrt": "tensorrt-llm",
    "tensorrtllm": "tensorrt-llm",
    "text-generation-inference": "tgi",
    "trt-llm": "tensorrt-llm",
    "trtllm": "tensorrt-llm",
}


def engine_named(name: str) -> str:
    """Return an engine's own name for one that people write; one that is not known stays as it is.

    >>> engine_named("vLLM"), engine_named("llama_cpp"), engine_named("TRT LLM"), engine_named("slabs")
    ('vllm', 'llama.cpp', 'tensorrt-llm', 'slabs')
    """
    plain = "-".join(name.lower().replace("_", " ").split())
    known = _ALSO.get(plain, plain)
    return known if known in (*ENGINES, *FRONTS, *_MISSING) else name


def check_engine(name: str) -> None:
    """Refuse an engine whose memory is not modelled.

    Raises:
        InputError: it is not.
    """
    if not isinstance(name, str):
        raise InputError(f"engine takes one text, not {name!r:.60}", parameter="engine")
    if name in _MISSING:
        raise InputError(
            f"the memory of {name} is not modelled: {_MISSING[name]}",
            hint="--engine ideal counts weights and KV cache only",
            parameter="engine",
        )
    known = (*ENGINES, *FRONTS)
    if name not in known:
        hint = did_you_mean(name, known) or f"engines: {', '.join(known)}"
        raise InputError(f"the memory of engine {name!r} is not modelled", hint=hint, parameter="engine")


def check_formats(engine: str, formats: Formats) -> None:
    """Refuse weights that an engine does not run: those of ExLlama, which none that is described does.

    Source: vLLM 0.32 and SGLang 0.5.23, ``layers/quantization``; the types of ggml.

    Raises:
        UnsupportedError: it does not run them.
    """
    stored = next(filter(is_exllama, _weights(formats)), None)
    if stored is not None and engine != "ideal":
        raise UnsupportedError(
            f"{engine} does not run weights in {stored.name.partition('-')[0]}, which are ExLlama's",
            hint="--engine ideal counts weights and KV cache only",
            parameter="engine",
        )


def check_split(model: ModelProfile, tensor: int) -> None:
    """Refuse tensor-parallel ranks that do not share the heads evenly: no engine starts so.

    Raises:
        InputError: they do not.
    """
    if not splits_evenly(model, tensor):
        sizes = ", ".join(str(size) for size in range(1, _MAX_HINTED + 1) if splits_evenly(model, size))
        raise InputError(
            f"the heads of {model.name} are not shared evenly by {tensor} tensor-parallel ranks",
            hint=f"engines refuse such a size; --tp can be {sizes}, and --pp cuts the layers",
            parameter="tensor-parallel",
        )
