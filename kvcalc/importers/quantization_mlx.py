"""MLX checkpoints: every matrix in groups with a 16-bit scale and a 16-bit bias, token tables and head included."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.modules import Selection
from kvcalc.importers.quantization_schemes import Plan, Scheme, packed, refuse_method

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module

__all__ = ["mlx"]

# mode, bits and group size of MLX's microscaling formats
_SCALED = {("mxfp4", 4, 32): "mxfp4", ("nvfp4", 4, 16): "nvfp4", ("mxfp8", 8, 32): "mxfp8"}
_AFFINE_BITS = (2, 3, 4, 5, 6, 8)
_SETTINGS = ("bits", "group_size", "mode")


def mlx(config: Config, _text: Config) -> Plan:
    """Return MLX's storage of a matrix: the settings of the block, or those of the entry that names the module.

    An entry that is false leaves its module alone, and so does a row that is not a multiple of the group. Norms, and
    whatever else is no matrix, stay in the dtype.

    Source: ``mlx.nn.quantize`` and ``mx.quantize`` of MLX 0.29 (scales and biases have the type of the weights).

    Raises:
        UnsupportedError: a mode, a number of bits or a group size that MLX does not have.
    """
    base = _settings(config)
    named: dict[tuple[str, int, int] | None, list[str]] = {}
    for name in config.data:
        if name in _SETTINGS or config.data[name] is True or config.data[name] is None:
            continue
        if config.data[name] is False:
            named.setdefault(None, []).append(_module_name(name))
        elif isinstance(config.data[name], dict):
            named.setdefault(_settings(config.child(name), base), []).append(_module_name(name))
    where = f"{config.where}, {config.path}"
    kinds = [(Selection(names, where=where), settings) for settings, names in named.items()]
    schemes = {settings: _scheme(settings) for settings in {base, *named} if settings is not None}

    def pick(module: Module) -> Scheme | None:
        settings = next((own for names, own in kinds if names.picks(module)), base)
        return None if settings is None or module.inputs % settings[2] else schemes[settings]

    return Plan(pick, whole=True)


def _module_name(name: str) -> str:
    """Return the name that other checkpoints give a module: MLX stacks the routed experts into one."""
    return name.replace(".switch_mlp.", ".experts.0.")


def _settings(config: Config, base: tuple[str, int, int] = ("affine", 4, 64)) -> tuple[str, int, int]:
    mode = config.text("mode", default=base[0])
    bits, group = config.integer("bits", default=base[1]), config.integer("group_size", default=base[2])
    if mode == "affine" and bits in _AFFINE_BITS:
        return mode, bits, group
    if (mode, bits, group) not in _SCALED:
        raise refuse_method(config, "mode", f"{mode}, {bits} bits, groups of {group}", method="mlx")
    return mode, bits, group


def _scheme(settings: tuple[str, int, int]) -> Scheme:
    mode, bits, group = settings
    if mode != "affine":
        return packed(_SCALED[settings])
    name = f"int{bits}-g{group}-zp" if bits in (4, 8) else "int4"
    return Scheme(name, lambda rows, columns: (rows * columns * bits + rows * (columns // group) * 32) // 8)
