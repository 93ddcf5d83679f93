"""Formats of weights, activations and cache by a config's ``quantization_config``.

A part of the model (`Part`) has one format. Where a checkpoint stores a part in several ways (some layers left
unquantised, scales that depend on the width of a row), its format is the exact mixture of bytes and elements
(``mixed-BYTES/ELEMENTS:UNIT``, see `parse_format`). Scales for a tile, a group or a row are counted; the few scalars of
a whole tensor (a per-tensor scale, a stored shape, a code book of constant size) are not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError, did_you_mean
from kvcalc.core.formats import is_exllama, parse_format
from kvcalc.core.model import Mixture
from kvcalc.importers.modules import linear_modules, table_modules
from kvcalc.importers.quantization_methods import METHODS, NO_BYTES
from kvcalc.importers.quantization_schemes import method_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Shape
    from kvcalc.importers.modules import Module
    from kvcalc.importers.quantization_schemes import Scheme

__all__ = ["QUANTIZATIONS", "CheckpointFormats", "weight_formats"]

# Where configs describe their quantisation, in the order they are looked for.
QUANTIZATIONS = ("quantization_config", "compression_config", "quantization")
# Of unknown keys so many are named, and so many letters of each.
_MAX_NAMED, _LONGEST_NAME = 5, 60


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFormats:
    """Formats a checkpoint declares.

    Args:
        parts: format by part of the model, for the parts that differ from its dtype.
        kv: format of the cache, where it declares one.
        activations: format the quantised matrices are multiplied in, where it is not the dtype.
        notes: what of it is not certain.
    """

    parts: Mapping[str, str] = field(default_factory=dict)
    kv: str | None = None
    activations: str | None = None
    notes: tuple[str, ...] = ()


def weight_formats(top: Config, text: Config, shape: Shape, *, dtype: str) -> CheckpointFormats:
    """Return the formats that the config declares.

    Vectors stay in ``dtype`` under every scheme, embeddings and routers under all but MLX's. Where parts are multiplied
    in different formats, the narrowest is reported: a matrix is multiplied in the wider of its own format and that one.

    Raises:
        UnsupportedError: a method, or an option of one, whose bytes are not known exactly.
        ProfileError: a config that makes no sense.
    """
    quantization = _find(top, text)
    if quantization is None:
        return CheckpointFormats()
    method = method_of(quantization)
    if method not in METHODS:
        hint = did_you_mean(method, METHODS)
        raise UnsupportedError(
            f"the quantisation method {method!r} is not known to kvcalc, and is not guessed",
            where=f"{quantization.where}, {quantization.key_path('quant_method')}",
            hint=hint or f"known: {', '.join(sorted(METHODS))}; or give the formats with --weights",
        )
    plan = METHODS[method](quantization, text)
    notes = _notes(quantization, method)
    if plan is None:
        return CheckpointFormats(notes=notes)
    modules = linear_modules(shape, text.text("model_type", default=""))
    if plan.whole:
        modules += table_modules(shape)
    if plan.check is not None:
        plan.check(modules)
    schemes = [(module, None if module.kept and not plan.whole else plan.scheme(module)) for module in modules]
    narrow = {scheme.activations for _, scheme in schemes if scheme is not None and scheme.activations}
    activations = min(narrow, key=lambda name: (parse_format(name).bytes_per_element, name), default=None)
    return CheckpointFormats(parts=_parts(schemes, shape, dtype), kv=plan.kv, activations=activations, notes=notes)


def _notes(config: Config, method: str) -> tuple[str, ...]:
    """Name a method that only its keys show, and keys that are not known."""
    named = config.has("quant_method") or method in ("mlx", "modelopt")
    notes = () if named else (f"{config.path} names no quant_method; its keys are those of {method}",)
    unknown = [
        name
        for name, value in config.data.items()
        if name not in NO_BYTES
        and value is not None
        and not (method == "mlx" and isinstance(value, bool | dict))
        and not any(used == (path := config.key_path(name)) or used.startswith(f"{path}.") for used in config.uses)
    ]
    shown = ", ".join(name[:_LONGEST_NAME] for name in unknown[:_MAX_NAMED])
    more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    return (
        (*notes, f"keys of {config.path} that are not known, and change nothing here: {shown}{more}")
        if unknown
        else notes
    )


def _find(top: Config, text: Config) -> Config | None:
    for config in (top, text):
        for key in QUANTIZATIONS:
            if config.has(key):
                return config.child(key)
    return None


def _parts(schemes: Sequence[tuple[Module, Scheme | None]], shape: Shape, dtype: str) -> dict[str, str]:
    plain = parse_format(dtype)
    totals: dict[str, dict[str | None, list[int]]] = {}
    for module, scheme in schemes:
        entry = totals.setdefault(module.part, {}).setdefault(scheme.name if scheme else None, [0, 0])
        entry[0] += module.elements
        matrix = (module.outputs, module.inputs)
        entry[1] += module.count * scheme.size(*matrix) if scheme else int(plain.bytes(module.elements))
    biases = _expert_biases(shape)
    if biases and "experts" in totals:
        entry = totals["experts"].setdefault(None, [0, 0])
        entry[0] += biases
        entry[1] += int(plain.bytes(biases))
    parts: dict[str, str] = {}
    for part, by_format in totals.items():
        quantised = {name: entry for name, entry in by_format.items() if name is not None}
        if quantised:
            main = max(quantised, key=lambda name: quantised[name][0])
            elements, size = (sum(entry[side] for entry in by_format.values()) for side in (0, 1))
            parts[part] = _name(main, elements, size)
    return parts


def _expert_biases(shape: Shape) -> int:
    total = 0
    for block in shape.blocks:
        mlp = block.mlp
        if isinstance(mlp, Mixture) and mlp.expert_bias:
            total += mlp.experts * ((2 if mlp.gated else 1) * mlp.width + (mlp.inputs or shape.hidden_size))
    return total


def _name(main: str, elements: int, size: int) -> str:
    """Return the format's own name where it gives exactly these bytes, else the mixture."""
    form = parse_format(main)
    method = main.partition("-")[0] if is_exllama(form) else "mixed"
    return main if form.bytes(elements) == size else f"{method}-{size}/{elements}:{form.unit}"
