"""How each quantisation method stores a matrix: one function a method, entered in ``METHODS`` by its ``quant_method``.

A method's function takes the quantisation config and the text model's config, and returns a `Plan`; what it cannot give
exact bytes for it refuses by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.importers.modules import Selection

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module

__all__ = ["METHODS", "Plan", "Scheme", "method_of"]


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a matrix is stored: a format, the bytes of a matrix in it, and what it is multiplied with."""

    name: str
    size: Callable[[int, int], int]
    activations: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """What a method does: a scheme for each module (none where it is left alone), and the cache's format."""

    scheme: Callable[[Module], Scheme | None]
    kv: str | None = None


def method_of(config: Config) -> str:
    """Return the method; ModelOpt's early files name only their algorithm."""
    method = config.text("quant_method", default="").lower()
    if method:
        return method
    if config.has("quant_algo"):
        return "modelopt"
    if config.has("bits") and config.has("group_size"):
        return "gptq"
    if config.has("load_in_4bit") or config.has("load_in_8bit"):
        return "bitsandbytes"
    raise ProfileError("the quantisation names no quant_method", where=f"{config.where}, {config.path}")


def _packed(name: str, activations: str | None = None) -> Scheme:
    form = parse_format(name)
    return Scheme(name, lambda rows, columns: int(form.bytes(rows * columns)), activations)


def _by_row(name: str, scale_bytes: int, activations: str | None = None) -> Scheme:
    form = parse_format(name)
    return Scheme(name, lambda rows, columns: int(form.bytes(rows * columns)) + rows * scale_bytes, activations)


def _tiled(name: str, tile: tuple[int, int], scale_bytes: int, activations: str | None = None) -> Scheme:
    def size(rows: int, columns: int) -> int:
        return rows * columns + -(-rows // tile[0]) * -(-columns // tile[1]) * scale_bytes

    return Scheme(name, size, activations)


def _integer_groups(bits: int, group: int, *, zero_bits: int, input_bytes: int = 0) -> Scheme:
    """Packed integers with a 16-bit scale and a packed zero point for each group of a row's inputs.

    Args:
        bits: width of an element.
        group: elements of a group; -1 for the whole row.
        zero_bits: width of a zero point.
        input_bytes: further bytes for each input (an index of groups).
    """
    name = {4: "int4", 8: "int8"}.get(bits, "int4")
    if group > 0:
        name = f"{name}-g{group}{'-zp4' if zero_bits == 4 and bits == 4 else ''}"  # noqa: PLR2004

    def size(rows: int, columns: int) -> int:
        groups = -(-columns // group) if group > 0 else 1
        packed = rows * columns * bits + rows * groups * (16 + zero_bits)
        return -(-packed // 8) + columns * input_bytes

    return Scheme(name, size)


def _everywhere(scheme: Scheme, left: Selection, *, head: bool = False) -> Callable[[Module], Scheme | None]:
    """Return a rule that stores every module in one scheme but the ones left alone (and the head, unless asked for)."""
    return lambda module: None if left.picks(module) or (module.part == "head" and not head) else scheme


def _names(config: Config, *keys: str) -> Selection:
    entries = [entry for key in keys if config.has(key) for entry in config.sequence(key)]
    return Selection(entries, where=f"{config.where}, {config.key_path(keys[0])}")


def _refuse(config: Config, key: str, value: object, *, method: str = "") -> UnsupportedError:
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."  # noqa: PLR2004
    return UnsupportedError(
        f"{config.key_path(key)} {shown} of the quantisation method {method or method_of(config)!r} is not supported",
        where=config.where,
        hint="give the formats with --weights, or describe the model in a profile",
    )


def _kv_scheme(config: Config, *keys: str) -> str | None:
    """Return the cache's format, from a scheme (bits and type) or the name of an algorithm."""
    key = next((key for key in keys if config.has(key)), None)
    if key is None:
        return None
    value = config.raw(key)
    if isinstance(value, dict):
        kind = f"{value.get('num_bits')} {value.get('type')}"
        found = {"8 float": "fp8", "8 int": "int8", "4 float": "nvfp4"}.get(kind)
    else:
        found = {"fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4"}.get(str(value).lower())
    if found is None:
        raise _refuse(config, key, value)
    return found


def _fp8(config: Config, text: Config) -> Plan:
    """FP8 as DeepSeek-V3 introduced it: tiles with one scale each, or one scale a tensor.

    DeepSeek-V4 stores 8-bit scales and, by ``expert_dtype``, experts in 4 bits. Layers named in ``quantized_layers``
    follow their own algorithm. The weights of an indexer's heads are never quantised.
    """
    tile = config.sequence("weight_block_size", default=None)
    activations = "fp8" if config.text("activation_scheme", default="dynamic") in ("dynamic", "static") else None
    if tile:
        sides = [side for side in tile if isinstance(side, int) and not isinstance(side, bool) and side > 0]
        if len(sides) != 2 or len(tile) != 2:  # noqa: PLR2004
            raise config.bad("weight_block_size", tile, "two whole numbers")
        small = config.text("scale_fmt", default="") == "ue8m0" and text.has("compress_ratios")
        name = "fp8_block128" if sides == [128, 128] else "fp8"
        base = _tiled(name, (sides[0], sides[1]), 1 if small else 4, activations)
    else:
        base = _packed("fp8", activations)
    experts = base
    if text.has("expert_dtype"):
        declared = text.text("expert_dtype")
        if declared not in ("fp4", "fp8"):
            raise _refuse(text, "expert_dtype", declared, method="fp8")
        experts = _packed("mxfp4", activations) if declared == "fp4" else base
    left = _names(config, "modules_to_not_convert", "ignored_layers")
    layers = _Layers(config) if config.has("quantized_layers") else None

    def scheme(module: Module) -> Scheme | None:
        if left.picks(module) or module.part == "head" or module.kind == "indexer.weights":
            return None
        named = layers.scheme(module) if layers else None
        return named or (experts if module.part == "experts" else base)

    return Plan(scheme, _kv_scheme(config, "kv_cache_scheme", "kv_cache_quant_algo"))


def _mxfp4(config: Config, _text: Config) -> Plan:
    """MXFP4 as gpt-oss has it: the routed experts alone; their biases stay in the dtype."""
    left = _names(config, "modules_to_not_convert")
    scheme = _packed("mxfp4")
    return Plan(lambda module: scheme if module.part == "experts" and not left.picks(module) else None)


_ALGORITHMS: dict[str, Callable[[], Scheme]] = {
    "FP8": lambda: _packed("fp8", "fp8"),
    "FP8_PER_CHANNEL_PER_TOKEN": lambda: _by_row("fp8", 4, "fp8"),
    "FP8_PB_WO": lambda: _tiled("fp8_block128", (128, 128), 4),
    "FP8_PB_REAL": lambda: _tiled("fp8_block128", (128, 128), 4, "fp8"),
    "NVFP4": lambda: _packed("nvfp4", "nvfp4"),
    "W4A16_NVFP4": lambda: _packed("nvfp4"),
    "MXFP8": lambda: _packed("mxfp8", "mxfp8"),
    "MXFP4": lambda: _packed("mxfp4", "mxfp4"),
    "W4A8_MXFP4_FP8": lambda: _packed("mxfp4", "fp8"),
}


def _algorithm(config: Config, name: object, group: object = None) -> Scheme:
    scheme = _ALGORITHMS.get(name) if isinstance(name, str) else None
    if scheme is None:
        raise _refuse(config, "quant_algo", name)
    found = scheme()
    block = parse_format(found.name).block_elements
    if group is not None and "fp4" in found.name and group != block:
        raise _refuse(config, "group_size", group)
    return found


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
        """Return how a module is stored, if it is named."""
        return next((scheme for names, scheme in self._kinds if names.picks(module)), None)


def _modelopt(config: Config, _text: Config) -> Plan:
    """NVIDIA ModelOpt: one algorithm for all linear modules but the ones excluded, or one for each module named."""
    algorithm = config.text("quant_algo", default="")
    kv = _kv_scheme(config, "kv_cache_scheme", "kv_cache_quant_algo")
    left = _names(config, "ignore", "exclude_modules")
    if config.has("quantized_layers"):
        layers = _Layers(config)
        return Plan(lambda module: None if left.picks(module) else layers.scheme(module), kv)
    return Plan(_everywhere(_algorithm(config, algorithm, config.data.get("group_size")), left, head=True), kv)


def _compressed_tensors(config: Config, _text: Config) -> Plan:
    """Groups of modules, each with a number of bits, a type and a strategy for its scales."""
    sparsity = config.child("sparsity_config").data.get("format", "dense")
    if sparsity != "dense":
        raise _refuse(config, "sparsity_config", sparsity)
    left = _names(config, "ignore")
    named: list[tuple[Selection, Scheme]] = []
    general: list[Scheme] = []
    groups = config.child("config_groups")
    for name in groups.data:
        group = groups.child(name)
        scheme = _group_scheme(config, group)
        targets = group.sequence("targets", default=["Linear"])
        classes = [target for target in targets if target in ("Linear", "LinearBase", "FusedMoE")]
        general += [scheme] if classes else []
        rest = [target for target in targets if target not in classes and target not in ("Embedding", "Attention")]
        if rest:
            named.append((Selection(rest, where=f"{group.where}, {group.key_path('targets')}"), scheme))

    def pick(module: Module) -> Scheme | None:
        if left.picks(module):
            return None
        found = next((scheme for names, scheme in named if names.picks(module)), None)
        return found or (general[0] if general else None)

    return Plan(pick, _kv_scheme(config, "kv_cache_scheme"))


def _group_scheme(config: Config, group: Config) -> Scheme:
    weights, inputs = group.child("weights"), group.child("input_activations")
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    size = weights.maybe_integer("group_size", least=-1)
    strategy = weights.text("strategy", default="") or ("group" if size and size > 0 else "tensor")
    symmetric = weights.raw("symmetric", default=True) is not False
    own = group.text("format", default="") or config.text("format", default="")
    wide = {"float": {8: "fp8", 4: "nvfp4"}, "int": {8: "int8", 4: "int4"}}.get(inputs.text("type", default="int"), {})
    activations = wide.get(inputs.integer("num_bits")) if inputs.data.get("num_bits") is not None else None
    match (kind, bits, strategy):
        case ("float", 8, "tensor"):
            return _packed("fp8", activations)
        case ("float", 8, "channel"):
            return _by_row("fp8", 2, activations)
        case ("float", 8, "block"):
            sides = weights.sequence("block_structure", length=2)
            if not all(isinstance(side, int) and side > 0 for side in sides):
                raise weights.bad("block_structure", sides, "two whole numbers")
            return _tiled("fp8_block128" if sides == [128, 128] else "fp8", (sides[0], sides[1]), 2, activations)
        case ("float", 4, "tensor_group") | ("float", 4, "group") if size == 16:  # noqa: PLR2004
            return _packed("nvfp4", activations)
        case ("float", 4, "group") if size == 32 and "mxfp4" in own:  # noqa: PLR2004
            return _packed("mxfp4", activations)
        case ("int", 8, "tensor") if symmetric:
            return _packed("int8", activations)
        case ("int", 8, "channel") if symmetric:
            return _by_row("int8", 2, activations)
        case ("int", 4 | 8, "group" | "channel") if own in ("", "pack-quantized") and activations is None:
            zero_bits = 0 if symmetric else bits
            return _integer_groups(bits, (size or -1) if strategy == "group" else -1, zero_bits=zero_bits)
        case _:
            shown = f"{kind}{bits}, strategy {strategy}, group size {size}, format {own or 'none'}"
            raise _refuse(config, "config_groups", shown)


def _gptq(config: Config, _text: Config) -> Plan:
    """GPTQ: packed integers, a 16-bit scale and a packed zero point for a group, and a 32-bit index for each input."""
    bits = config.integer("bits")
    if bits not in (2, 3, 4, 8):
        raise _refuse(config, "bits", bits)
    if config.data.get("dynamic"):
        raise _refuse(config, "dynamic", config.data["dynamic"])
    group = config.integer("group_size", least=-1)
    scheme = _integer_groups(bits, group or -1, zero_bits=bits, input_bytes=4)
    left = _names(config, "modules_in_block_to_not_quantize", "modules_to_not_convert")
    return Plan(_everywhere(scheme, left, head=config.flag("lm_head", default=False)))


def _awq(config: Config, _text: Config) -> Plan:
    """AWQ: 4-bit integers, a 16-bit scale and a 4-bit zero point for a group."""
    bits = config.integer("bits", "w_bit", default=4)
    if bits != 4:  # noqa: PLR2004
        raise _refuse(config, "bits", bits)
    version = config.text("version", default="gemm").lower()
    if version not in ("gemm", "gemv", "gemv_fast", "marlin"):
        raise _refuse(config, "version", version)
    group = config.integer("group_size", "q_group_size", default=128, least=-1)
    scheme = _integer_groups(4, group or -1, zero_bits=4 if config.flag("zero_point", default=True) else 0)
    return Plan(_everywhere(scheme, _names(config, "modules_to_not_convert")))


def _bitsandbytes(config: Config, _text: Config) -> Plan | None:
    """bitsandbytes: 4-bit floats in blocks of 64, or 8-bit integers with one 32-bit scale a row."""
    left = _names(config, "llm_int8_skip_modules")
    if config.flag("load_in_4bit", "_load_in_4bit", default=False):
        kind = config.text("bnb_4bit_quant_type", default="fp4")
        if kind not in ("nf4", "fp4"):
            raise _refuse(config, "bnb_4bit_quant_type", kind)
        double = config.flag("bnb_4bit_use_double_quant", default=False)
        return Plan(_everywhere(_packed("nf4_double" if double else "nf4"), left))
    if config.flag("load_in_8bit", "_load_in_8bit", default=False):
        return Plan(_everywhere(_by_row("int8", 4), left))
    return None


def _fbgemm_fp8(config: Config, _text: Config) -> Plan:
    """FBGEMM FP8: one 32-bit scale a row, activations quantised on the fly."""
    return Plan(_everywhere(_by_row("fp8", 4, "fp8"), _names(config, "modules_to_not_convert")))


def _eetq(config: Config, _text: Config) -> Plan:
    """EETQ: 8-bit integers with one 16-bit scale a row."""
    return Plan(_everywhere(_by_row("int8", 2), _names(config, "modules_to_not_convert")))


def _aqlm(config: Config, _text: Config) -> Plan:
    """AQLM: codes into code books of vectors, the books of each matrix and a 16-bit scale for a group of rows."""
    books, bits = config.integer("num_codebooks", default=1), config.integer("nbits_per_codebook", default=16)
    rows_of, columns_of = config.integer("out_group_size", default=1), config.integer("in_group_size", default=8)
    if bits not in (8, 16):
        raise _refuse(config, "nbits_per_codebook", bits)

    def size(rows: int, columns: int) -> int:
        groups = -(-rows // rows_of)
        codes = groups * -(-columns // columns_of) * books * bits // 8
        return codes + books * (1 << bits) * rows_of * columns_of * 2 + groups * 2

    return Plan(_everywhere(Scheme("int4", size), _names(config, "linear_weights_not_to_quantize")))


def _quark(config: Config, _text: Config) -> Plan:
    """AMD Quark: one weight scheme for all linear modules; its schemes for single layers are refused."""
    for key in ("layer_quant_config", "layer_type_quant_config"):
        if config.data.get(key):
            raise _refuse(config, key, config.data[key])
    whole = config.child("global_quant_config")
    weight, inputs = whole.child("weight"), whole.child("input_tensors")
    dtype, scales = weight.text("dtype", default=""), weight.text("qscheme", default="")
    through = {"fp8_e4m3": "fp8", "int8": "int8", "fp4": "mxfp4"}.get(inputs.text("dtype", default=""))
    cache = config.child("kv_cache_quant_config").data
    kv = None
    if cache:
        kinds = {str((entry or {}).get("output_tensors")) for entry in cache.values() if isinstance(entry, dict | None)}
        if not kinds or not all("fp8_e4m3" in kind for kind in kinds):
            raise _refuse(config, "kv_cache_quant_config", cache)
        kv = "fp8"
    left = _names(config, "exclude")
    match (dtype, scales, weight.data.get("group_size")):
        case ("fp8_e4m3", "per_tensor", _):
            scheme = _packed("fp8", through)
        case ("fp8_e4m3", "per_channel", _):
            scheme = _by_row("fp8", 4, through)
        case ("fp4", "per_group", 32):
            scheme = _packed("mxfp4", through)
        case ("int8", "per_tensor", _):
            scheme = _packed("int8", through)
        case _:
            raise _refuse(config, "global_quant_config", f"{dtype}, {scales}")
    return Plan(_everywhere(scheme, left), kv)


METHODS: dict[str, Callable[[Config, Config], Plan | None]] = {
    "aqlm": _aqlm,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed_tensors,
    "compressed_tensors": _compressed_tensors,
    "eetq": _eetq,
    "fbgemm_fp8": _fbgemm_fp8,
    "fp8": _fp8,
    "gptq": _gptq,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "modelopt_mixed": _modelopt,
    "mxfp4": _mxfp4,
    "quark": _quark,
}
