"""Quantisation methods: one function a method, entered in ``METHODS`` by its ``quant_method``.

A method's function takes the quantisation config and the text model's config, and returns a `Plan`; what it cannot give
exact bytes for it refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.core.units import ceil_div
from kvcalc.importers.modules import Selection
from kvcalc.importers.quantization_groups import compressed_tensors
from kvcalc.importers.quantization_mlx import mlx
from kvcalc.importers.quantization_schemes import (
    Plan,
    Scheme,
    by_row,
    everywhere,
    integer_groups,
    kv_scheme,
    packed,
    refuse_method,
    selection,
    tiled,
)
from kvcalc.importers.quantization_tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module

__all__ = ["METHODS", "NO_BYTES"]

# What files of the methods say besides, and what decides no bytes: how they were made, and by which kernels they run.
NO_BYTES = frozenset((
    "act_group_aware", "activation_scale_ub", "algo_config", "algorithm", "autoround_version", "backend",
    "batch_size", "block_name_to_quantize", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage",
    "cache_block_outputs", "calibration", "codebook", "config_groups", "damp_auto_increment", "damp_percent",
    "dataset", "dequantize", "desc_act", "do_fuse", "enable_quanted_input", "exllama_config", "export", "fmt",
    "format", "fuse_max_seq_len", "global_compression_ratio", "gradient_accumulate_steps", "group_size", "hyb_act",
    "include_input_output_embeddings", "iters", "kv_cache_group", "kv_cache_post_rope", "linear_activation_scheme",
    "linear_class", "llm_int8_enable_fp32_cpu_offload", "llm_int8_has_fp16_weight", "llm_int8_threshold",
    "low_gpu_mem_usage", "lr", "max_input_length", "meta", "min_kv_scale", "minmax_lr", "model_file_base_name",
    "model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "modules_to_fuse",
    "moe_activation_scheme", "nsamples", "offload_meta", "offload_to_disk", "out_scales", "pack_dtype",
    "pack_method", "pad_token_id", "producer", "quant_mode", "quant_type", "quantization_status", "quantizer",
    "rms_norm_eps", "run_compressed", "scale_fmt", "seqlen", "softmax_quant_spec", "static_groups", "sym",
    "tokenizer", "transform_config", "true_sequential", "untie_embedding_weights", "use_cuda_fp16", "use_exllama",
    "use_rms_norm", "version", "weight_format", "zero_point",
))  # fmt: skip


def _fp8(config: Config, text: Config) -> Plan:
    """FP8 as DeepSeek-V3 introduced it: tiles with one scale each, or one scale a tensor.

    DeepSeek-V4 stores 8-bit scales and, by ``expert_dtype``, experts in 4 bits. Layers named in ``quantized_layers``
    follow their own algorithm. The weights of an indexer's heads are never quantised.
    """
    tile = config.sequence("weight_block_size", default=None)
    inputs = config.text("activation_scheme", default="dynamic")
    if inputs not in ("dynamic", "static", "none", ""):
        raise refuse_method(config, "activation_scheme", inputs)
    activations = "fp8" if inputs in ("dynamic", "static") else None
    if tile:
        sides = [side for side in tile if isinstance(side, int) and not isinstance(side, bool) and side > 0]
        if len(sides) != 2 or len(tile) != 2:  # noqa: PLR2004
            raise config.bad("weight_block_size", tile, "two whole numbers")
        small = config.text("scale_fmt", default="") == "ue8m0" and text.has("compress_ratios")
        name = "fp8_block128" if sides == [128, 128] else "fp8"
        base = tiled(name, (sides[0], sides[1]), 1 if small else 4, activations)
    else:
        base = packed("fp8", activations)
    experts = base
    stating = next((config for config in (text, config) if config.has("expert_dtype")), None)
    if stating is not None:
        declared = stating.text("expert_dtype")
        if declared not in ("fp4", "fp8"):
            raise refuse_method(stating, "expert_dtype", declared, method="fp8")
        experts = packed("mxfp4", activations) if declared == "fp4" else base
    left = selection(config, "modules_to_not_convert", "ignored_layers")
    layers = _Layers(config) if config.has("quantized_layers") else None

    def scheme(module: Module) -> Scheme | None:
        if left.picks(module) or module.part == "head" or module.kind == "indexer.weights":
            return None
        named = layers.scheme(module) if layers else None
        return named or (experts if module.part == "experts" else base)

    return Plan(scheme, kv_scheme(config, "kv_cache_scheme", "kv_cache_quant_algo"))


def _mxfp4(config: Config, _text: Config) -> Plan:
    """MXFP4 as gpt-oss has it: the routed experts alone; their biases stay in the dtype."""
    left = selection(config, "modules_to_not_convert")
    scheme = packed("mxfp4")

    def check(modules: Sequence[Module]) -> None:
        if not any(module.part == "experts" for module in modules):
            raise config.bad("quant_method", "mxfp4", "a method of this model, which has none of the experts it packs")

    return Plan(lambda module: scheme if module.part == "experts" and not left.picks(module) else None, check=check)


_ALGORITHMS: dict[str, Callable[[], Scheme]] = {
    "FP8": lambda: packed("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda: by_row("fp8", 4, "fp8"),
    "FP8_PB_WO": lambda: tiled("fp8_block128", (128, 128), 4),
    "FP8_PB_REAL": lambda: tiled("fp8_block128", (128, 128), 4, "fp8"),
    "NVFP4": lambda: packed("nvfp4", "nvfp4"),
    "W4A16_NVFP4": lambda: packed("nvfp4"),
    "MXFP8": lambda: packed("mxfp8", "mxfp8"),
    "MXFP4": lambda: packed("mxfp4", "mxfp4"),
    "W4A8_MXFP4_FP8": lambda: packed("mxfp4", "fp8"),
    "W4A8_NVFP4_FP8": lambda: packed("nvfp4", "fp8"),
}


def _algorithm(config: Config, name: object, group: object = None) -> Scheme:
    scheme = _ALGORITHMS.get(name) if isinstance(name, str) else None
    if scheme is None:
        raise refuse_method(config, "quant_algo", name)
    chosen = scheme()
    block = parse_format(chosen.name).block_elements
    if group is not None and "fp4" in chosen.name and group != block:
        raise refuse_method(config, "group_size", group)
    return chosen


class _Layers:
    """The modules that ``quantized_layers`` names, each with its algorithm."""

    def __init__(self, config: Config) -> None:
        entries: dict[tuple[object, object], list[str]] = {}
        for name, entry in config.child("quantized_layers").data.items():
            if not isinstance(entry, dict):
                raise config.bad("quantized_layers", entry, "a mapping for each layer")
            key = (str(entry.get("quant_algo")), entry.get("group_size"))
            if not isinstance(key[1], int | None):
                raise config.bad("quantized_layers", entry, "whole group sizes")
            entries.setdefault(key, []).append(name)
        where = f"{config.where}, {config.key_path('quantized_layers')}"
        self._kinds = [(Selection(names, where=where), _algorithm(config, *key)) for key, names in entries.items()]

    def scheme(self, module: Module) -> Scheme | None:
        """Return the storage of a module, if it is named."""
        return next((scheme for names, scheme in self._kinds if names.picks(module)), None)


def _modelopt(config: Config, _text: Config) -> Plan:
    """NVIDIA ModelOpt: one algorithm for all linear modules but the ones excluded, or one for each module named.

    The keys may stand in a block of their own, ``quantization``, as in the tool's own file.
    """
    if config.has("quantization"):
        config = config.child("quantization")
    algorithm = config.text("quant_algo", default="")
    kv = kv_scheme(config, "kv_cache_scheme", "kv_cache_quant_algo")
    left = selection(config, "ignore", "exclude_modules")
    if config.has("quantized_layers"):
        layers = _Layers(config)
        return Plan(lambda module: None if left.picks(module) else layers.scheme(module), kv)
    return Plan(everywhere(_algorithm(config, algorithm, config.data.get("group_size")), left, head=True), kv)


def _gptq(config: Config, _text: Config) -> Plan:
    """GPTQ: packed integers, a 16-bit scale and a packed zero point for a group, and a 32-bit index for each input.

    The Marlin form has neither zero points nor indices.
    """
    bits = config.integer("bits")
    if bits not in (2, 3, 4, 8):
        raise refuse_method(config, "bits", bits)
    if config.data.get("dynamic"):
        raise refuse_method(config, "dynamic", config.data["dynamic"])
    group = config.integer("group_size", least=-1)
    form = config.text("checkpoint_format", default="")
    if form not in ("", "gptq", "gptq_v2", "marlin"):
        raise refuse_method(config, "checkpoint_format", form)
    if form == "marlin" or config.flag("is_marlin_format", default=False):
        scheme = integer_groups(bits, group or -1, zero_bits=0)
    else:
        scheme = integer_groups(bits, group or -1, zero_bits=bits, input_bytes=4)
    left = selection(config, "modules_in_block_to_not_quantize", "modules_to_not_convert")
    return Plan(everywhere(scheme, left, head=config.flag("lm_head", default=False)))


def _awq(config: Config, _text: Config) -> Plan:
    """AWQ: 4-bit integers, a 16-bit scale and a 4-bit zero point for a group."""
    bits = config.integer("bits", "w_bit", default=4)
    if bits != 4:  # noqa: PLR2004
        raise refuse_method(config, "bits", bits)
    version = config.text("version", default="gemm").lower()
    if version not in ("gemm", "gemv", "gemv_fast", "marlin"):
        raise refuse_method(config, "version", version)
    group = config.integer("group_size", "q_group_size", default=128, least=-1)
    scheme = integer_groups(4, group or -1, zero_bits=4 if config.flag("zero_point", default=True) else 0)
    return Plan(everywhere(scheme, selection(config, "modules_to_not_convert")))


def _bitsandbytes(config: Config, _text: Config) -> Plan | None:
    """bitsandbytes: 4-bit floats in blocks of 64, or 8-bit integers with one 32-bit scale a row."""
    left = selection(config, "llm_int8_skip_modules")
    if config.flag("load_in_4bit", "_load_in_4bit", default=False):
        kind = config.text("bnb_4bit_quant_type", default="fp4")
        if kind not in ("nf4", "fp4"):
            raise refuse_method(config, "bnb_4bit_quant_type", kind)
        double = config.flag("bnb_4bit_use_double_quant", default=False)
        return Plan(everywhere(packed("nf4_double" if double else "nf4"), left))
    if config.flag("load_in_8bit", "_load_in_8bit", default=False):
        return Plan(everywhere(by_row("int8", 4), left))
    return None


def _fbgemm_fp8(config: Config, _text: Config) -> Plan:
    """FBGEMM FP8: one 32-bit scale a row, activations quantised on the fly."""
    return Plan(everywhere(by_row("fp8", 4, "fp8"), selection(config, "modules_to_not_convert")))


def _eetq(config: Config, _text: Config) -> Plan:
    """EETQ: 8-bit integers with one 16-bit scale a row."""
    return Plan(everywhere(by_row("int8", 2), selection(config, "modules_to_not_convert")))


def _aqlm(config: Config, _text: Config) -> Plan:
    """AQLM: codes into code books of vectors, the books of each matrix and a 16-bit scale for a group of rows."""
    books, bits = config.integer("num_codebooks", default=1), config.integer("nbits_per_codebook", default=16)
    rows_of, columns_of = config.integer("out_group_size", default=1), config.integer("in_group_size", default=8)
    if bits not in (8, 16):
        raise refuse_method(config, "nbits_per_codebook", bits)

    def size(rows: int, columns: int) -> int:
        groups = ceil_div(rows, rows_of)
        codes = groups * ceil_div(columns, columns_of) * books * bits // 8
        return codes + books * (1 << bits) * rows_of * columns_of * 2 + groups * 2

    return Plan(everywhere(Scheme("int4", size), selection(config, "linear_weights_not_to_quantize")))


def _quark(config: Config, _text: Config) -> Plan:
    """AMD Quark: one weight scheme for all linear modules; its schemes for single layers are refused."""
    for key in ("layer_quant_config", "layer_type_quant_config"):
        if config.data.get(key):
            raise refuse_method(config, key, config.data[key])
    whole = config.child("global_quant_config")
    weight, inputs = whole.child("weight"), whole.child("input_tensors")
    dtype, scales = weight.text("dtype", default=""), weight.text("qscheme", default="")
    through = {"fp8_e4m3": "fp8", "int8": "int8", "fp4": "mxfp4"}.get(inputs.text("dtype", default=""))
    cache = config.child("kv_cache_quant_config").data
    kv = None
    if cache:
        kinds = {str((entry or {}).get("output_tensors")) for entry in cache.values() if isinstance(entry, dict | None)}
        if not kinds or not all("fp8_e4m3" in kind for kind in kinds):
            raise refuse_method(config, "kv_cache_quant_config", cache)
        kv = "fp8"
    left = selection(config, "exclude")
    match (dtype, scales, weight.data.get("group_size")):
        case ("fp8_e4m3", "per_tensor", _):
            scheme = packed("fp8", through)
        case ("fp8_e4m3", "per_channel", _):
            scheme = by_row("fp8", 4, through)
        case ("fp4", "per_group", 32):
            scheme = packed("mxfp4", through)
        case ("int8", "per_tensor", _):
            scheme = packed("int8", through)
        case _:
            raise refuse_method(config, "global_quant_config", f"{dtype}, {scales}")
    return Plan(everywhere(scheme, left), kv)


METHODS: dict[str, Callable[[Config, Config], Plan | None]] = {
    "aqlm": _aqlm,
    "awq": _awq,
    "awq_marlin": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": compressed_tensors,
    "compressed_tensors": compressed_tensors,
    "eetq": _eetq,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "gptq_marlin": _gptq,
    "mlx": mlx,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _mxfp4,
    "quark": _quark,
    **TOOLS,
}
