"""Further tools: AutoRound, torchao, HQQ, ExLlama's EXL2 and EXL3, BitNet, and SGLang's own 8-bit files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.units import ceil_div
from kvcalc.importers.quantization_schemes import (
    Plan,
    Scheme,
    by_row,
    everywhere,
    integer_groups,
    kv_scheme,
    named_schemes,
    packed,
    refuse_method,
    selection,
    tiled,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module

__all__ = ["TOOLS"]

_PLAIN_BITS = 16
_HQQ_WORD = 10  # integers of 3 bits in a word of 32


def _auto_round(config: Config, _text: Config) -> Plan:
    """AutoRound: integers packed as GPTQ's or AWQ's, without an index of groups; entries of ``extra_config`` differ.

    Source: intel/auto-round b9f3d0079, ``export_to_autoround``; vLLM 0.32, ``quantization/inc``.
    """
    form = config.text("packing_format", default="auto_round:auto_gptq")
    kind = config.text("data_type", default="int")

    def scheme(entry: Config) -> Scheme:
        bits = entry.integer("bits", default=config.integer("bits", default=4))
        group = entry.integer("group_size", default=config.integer("group_size", default=128, least=-1), least=-1)
        if "mx_fp" in kind and bits in (4, 8):
            return packed(f"mxfp{bits}", f"mxfp{bits}")
        if "nv_fp" in kind and bits == 4:  # noqa: PLR2004
            return packed("nvfp4", "nvfp4")
        if kind != "int" or bits not in (2, 3, 4, 8):
            raise refuse_method(config, "data_type", f"{kind} of {bits} bits")
        return integer_groups(bits, group or -1, zero_bits=bits, input_bytes=4 if "gptqmodel" in form else 0)

    if not any(word in form for word in ("gptq", "awq", "llm_compressor")):
        raise refuse_method(config, "packing_format", form)
    extra = config.child("extra_config")
    named = {}
    for name in extra.data:
        entry = extra.child(name)
        named[name] = None if entry.integer("bits", default=4) >= _PLAIN_BITS else scheme(entry)
    return Plan(
        named_schemes(config, "extra_config", named, scheme(config), selection(config, "modules_to_not_convert"))
    )


def _torchao(config: Config, _text: Config) -> Plan:
    """Tensors of torchao: 4-bit integers with a 16-bit scale and zero point a group, 8-bit rows with a 32-bit scale.

    Source: pytorch/ao 36027d8, ``torchao/quantization/quantize_/workflows``.
    """
    kind = config.raw("quant_type")
    if isinstance(kind, dict):
        chosen = config.child("quant_type").child("default")
        name, data = chosen.text("_type"), chosen.child("_data")
    else:
        name, data = str(kind), config.child("quant_type_kwargs")
    key = name.lower().replace("_", "").removesuffix("config")
    left = selection(config, "modules_to_not_convert")
    match key:
        case "int4weightonly":
            scheme = integer_groups(4, data.integer("group_size", default=128), zero_bits=16)
        case "float8dynamicactivationint4weight":
            scheme = integer_groups(4, 128, zero_bits=16)
        case "int8weightonly":
            scheme = by_row("int8", 4)
        case "int8dynamicactivationint8weight":
            scheme = by_row("int8", 4, "int8")
        case "float8weightonly":
            scheme = by_row("fp8", 4)
        case "float8dynamicactivationfloat8weight":
            scheme = by_row("fp8", 4, "fp8")
        case _:
            raise refuse_method(config, "quant_type", name)
    return Plan(everywhere(scheme, left))


def _hqq(config: Config, _text: Config) -> Plan:
    """HQQ: packed integers with a 16-bit scale and zero point a group; of 3 bits, ten are in a word of 32.

    Source: mobiusml/hqq e0b1d00, ``hqq/core/bitpack.py`` and ``quantize.py``.
    """
    whole = config.child("quant_config")
    if whole.data and not whole.child("weight_quant_params").data:
        raise refuse_method(config, "quant_config", sorted(whole.data))
    for key in ("scale_quant_params", "zero_quant_params"):
        if whole.data.get(key):
            raise refuse_method(config, key, whole.data[key])
    weights = whole.child("weight_quant_params") if whole.data else config
    bits = weights.integer("nbits", "bits", default=4)
    group = weights.integer("group_size", default=64)
    if bits not in (1, 2, 3, 4, 8):
        raise refuse_method(config, "nbits", bits)

    def size(rows: int, columns: int) -> int:
        groups = ceil_div(rows * columns, group)
        if bits == 3:  # noqa: PLR2004
            return ceil_div(groups, _HQQ_WORD) * group * 4 + groups * 4
        return ceil_div(rows * columns * bits, 8) + groups * 4

    name = f"int{bits}-g{group}-zp" if bits in (2, 4, 8) else "int4"
    return Plan(everywhere(Scheme(name, size), selection(config, "skip_modules")))


def _exllama(config: Config, _text: Config) -> Plan:
    """EXL2 and EXL3: so many bits a weight in the mean, a 16-bit scale for each input and output; the head has its own.

    Source: turboderp-org/exllamav3 4f8ad01, ``modules/quant/exl3.py`` (trellis, suh, svh) and ``doc/convert.md``.
    """

    def scheme(bits: float) -> Scheme:
        name = f"{config.text('quant_method')}-{bits:g}bpw"
        return Scheme(name, lambda rows, columns: round(rows * columns * bits / 8) + 2 * (rows + columns))

    body, head = scheme(_bits(config, "bits", 4.0)), scheme(_bits(config, "head_bits", 6.0))
    return Plan(lambda module: head if module.part == "head" else body)


def _bits(config: Config, key: str, default: float) -> float:
    value = config.raw(key, default=default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _PLAIN_BITS:
        raise config.bad(key, value, "bits a weight")
    return float(value)


def _bitnet(config: Config, _text: Config) -> Plan:
    """BitNet: ternary weights, four in a byte, multiplied by 8-bit activations; kept plain where quantised online.

    Source: transformers 5.24, ``integrations/bitnet.py``.
    """
    mode = config.text("quantization_mode", default="offline")
    if mode not in ("offline", "online"):
        raise refuse_method(config, "quantization_mode", mode)
    left = selection(config, "modules_to_not_convert")
    return Plan(everywhere(packed("int2" if mode == "offline" else "bf16", "int8"), left))


def _w4afp8(config: Config, _text: Config) -> Plan:
    """Experts in 4-bit integers with a 32-bit scale for 128, the rest in fp8 tiles; multiplied in fp8.

    Source: SGLang 0.5.23, ``quantization/w4afp8.py``.
    """
    left = selection(config, "ignored_layers", "modules_to_not_convert")
    experts = integer_groups(4, config.integer("group_size", default=128), zero_bits=16)
    experts = Scheme(experts.name, experts.size, "fp8")
    others = tiled("fp8_block128", (128, 128), 4, "fp8")

    def pick(module: Module) -> Scheme | None:
        if left.picks(module) or module.part == "head":
            return None
        return experts if module.part == "experts" else others

    return Plan(pick)


def _rows(name: str) -> Callable[[Config, Config], Plan]:
    """Return the method of 8-bit rows with a 32-bit scale each, activations quantised on the fly.

    Source: SGLang 0.5.23, ``quantization/w8a8_int8.py`` and ``w8a8_fp8.py``.
    """
    return lambda config, _: Plan(
        everywhere(by_row(name, 4, name), selection(config, "ignore", "modules_to_not_convert"))
    )


def _mxfp8(config: Config, _text: Config) -> Plan:
    """MXFP8 everywhere: an 8-bit scale for 32."""
    left = selection(config, "ignored_layers", "modules_to_not_convert", "ignore")
    return Plan(everywhere(packed("mxfp8", "mxfp8"), left), kv_scheme(config, "kv_cache_scheme"))


TOOLS: dict[str, Any] = {
    "auto-round": _auto_round,
    "auto_round": _auto_round,
    "intel/auto-round": _auto_round,
    "bitnet": _bitnet,
    "exl2": _exllama,
    "exl3": _exllama,
    "hqq": _hqq,
    "inc": _auto_round,
    "mxfp8": _mxfp8,
    "torchao": _torchao,
    "w4afp8": _w4afp8,
    "w8a8_fp8": _rows("fp8"),
    "w8a8_int8": _rows("int8"),
}
