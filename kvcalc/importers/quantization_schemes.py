"""Common parts of quantisation methods: storage of a matrix, modules that a method takes, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.units import ceil_div
from kvcalc.importers.modules import Selection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module

__all__ = [
    "Plan",
    "Scheme",
    "by_row",
    "everywhere",
    "integer_groups",
    "kv_scheme",
    "method_of",
    "named_schemes",
    "packed",
    "refuse_method",
    "selection",
    "tiled",
]


@dataclass(frozen=True, slots=True)
class Scheme:
    """Storage of a matrix: a format, the bytes of a matrix in it, and the format it is multiplied in."""

    name: str
    size: Callable[[int, int], int]
    activations: str | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """Effect of a method on a model.

    Args:
        scheme: returns how a module is stored; none where it is left alone.
        kv: the cache's format.
        check: raises an error where the method's lists do not fit the model's modules.
        whole: whether it asks about every matrix: tables, and routers and the like, which other methods leave alone.
    """

    scheme: Callable[[Module], Scheme | None]
    kv: str | None = None
    check: Callable[[Sequence[Module]], None] | None = None
    whole: bool = False


# What the files of GPTQ say beside bits and groups, and those of MLX never do.
_GPTQ_KEYS = ("desc_act", "sym", "damp_percent", "true_sequential", "checkpoint_format", "static_groups")


# The same of AWQ; two of them have names of their own for bits and groups.
_AWQ_KEYS = ("zero_point", "version", "w_bit", "q_group_size")


def method_of(config: Config) -> str:
    """Return the method; ModelOpt's early files name only their algorithm, and MLX names nothing."""
    method = config.text("quant_method", default="").lower()
    if method:
        return method
    if config.has("quant_algo") or config.child("quantization").data.get("quant_algo"):
        return "modelopt"
    if (config.has("bits") or config.has("w_bit")) and (config.has("group_size") or config.has("q_group_size")):
        gptq, awq = (any(key in config.data for key in keys) for keys in (_GPTQ_KEYS, _AWQ_KEYS))
        if gptq and awq:
            raise ProfileError(
                "the keys are those of GPTQ and of AWQ, and no quant_method says which",
                where=f"{config.where}, {config.path}",
            )
        return "gptq" if gptq else "awq" if awq else "mlx"
    if config.has("load_in_4bit") or config.has("load_in_8bit"):
        return "bitsandbytes"
    raise ProfileError("the quantisation names no quant_method", where=f"{config.where}, {config.path}")


def packed(name: str, activations: str | None = None) -> Scheme:
    """Return a scheme whose bytes follow from the format alone."""
    form = parse_format(name)
    return Scheme(name, lambda rows, columns: int(form.bytes(rows * columns)), activations)


def by_row(name: str, scale_bytes: int, activations: str | None = None) -> Scheme:
    """Return a scheme with one scale for each row of a matrix."""
    form = parse_format(name)
    return Scheme(name, lambda rows, columns: int(form.bytes(rows * columns)) + rows * scale_bytes, activations)


def tiled(name: str, tile: tuple[int, int], scale_bytes: int, activations: str | None = None) -> Scheme:
    """Return a scheme with one scale for each tile of a matrix."""

    def size(rows: int, columns: int) -> int:
        return rows * columns + ceil_div(rows, tile[0]) * ceil_div(columns, tile[1]) * scale_bytes

    return Scheme(name, size, activations)


def integer_groups(bits: int, group: int, *, zero_bits: int, input_bytes: int = 0) -> Scheme:
    """Packed integers with a 16-bit scale and a packed zero point for each group of a row's inputs.

    Args:
        bits: width of an element.
        group: elements of a group; -1 for the whole row.
        zero_bits: width of a zero point.
        input_bytes: further bytes for each input (an index of groups).
    """
    zero = "" if not zero_bits else "-zp" if zero_bits == 16 else f"-zp{zero_bits}"  # noqa: PLR2004
    name = f"int{bits}-g{group}{zero}" if group > 0 else f"int{bits}"

    def size(rows: int, columns: int) -> int:
        groups = ceil_div(columns, group) if group > 0 else 1
        packed = rows * columns * bits + rows * groups * (16 + zero_bits)
        return ceil_div(packed, 8) + columns * input_bytes

    return Scheme(name, size)


def everywhere(scheme: Scheme, left: Selection, *, head: bool = False) -> Callable[[Module], Scheme | None]:
    """Return a rule that stores every module in one scheme but the ones left alone (and the head, unless asked for)."""
    return lambda module: None if left.picks(module) or (module.part == "head" and not head) else scheme


def named_schemes(
    config: Config, key: str, named: Mapping[str, Scheme | None], base: Scheme, left: Selection
) -> Callable[[Module], Scheme | None]:
    """Return a rule that stores modules in the scheme of the entry that names them, else in the base (head apart)."""
    where = f"{config.where}, {config.key_path(key)}"
    kinds = [(Selection([name], where=where), scheme) for name, scheme in named.items()]

    def pick(module: Module) -> Scheme | None:
        if left.picks(module):
            return None
        entries = [scheme for names, scheme in kinds if names.picks(module)]
        return entries[0] if entries else None if module.part == "head" else base

    return pick


def selection(config: Config, *keys: str) -> Selection:
    """Return the modules that these keys of a method's config name."""
    entries = [entry for key in keys if config.has(key) for entry in config.sequence(key)]
    return Selection(entries, where=f"{config.where}, {config.key_path(keys[0])}")


def refuse_method(config: Config, key: str, value: object, *, method: str = "") -> UnsupportedError:
    """Return the error for an option of a method whose bytes are not known."""
    shown = repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."  # noqa: PLR2004
    return UnsupportedError(
        f"{config.key_path(key)} {shown} of the quantisation method {method or method_of(config)!r} is not supported",
        where=config.where,
        hint="give the formats with --weights, or describe the model in a profile",
    )


def kv_scheme(config: Config, *keys: str) -> str | None:
    """Return the cache's format, from a scheme (bits and type) or the name of an algorithm."""
    key = next((key for key in keys if config.has(key)), None)
    if key is None:
        return None
    value = config.raw(key)
    if isinstance(value, dict):
        kind = f"{value.get('num_bits')} {value.get('type')}"
        name = {"8 float": "fp8", "8 int": "int8", "4 float": "nvfp4"}.get(kind)
    else:
        name = {"fp8": "fp8", "int8": "int8", "nvfp4": "nvfp4"}.get(str(value).lower())
    if name is None:
        raise refuse_method(config, key, value)
    return name
