"""compressed-tensors: groups of modules, each with a scheme of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnsupportedError
from kvcalc.importers.modules import TOKEN_TABLES, Selection, lies_elsewhere
from kvcalc.importers.quantization_schemes import (
    Plan,
    by_row,
    integer_groups,
    kv_scheme,
    packed,
    refuse_method,
    selection,
    tiled,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.modules import Module
    from kvcalc.importers.quantization_schemes import Scheme

__all__ = ["compressed_tensors"]

# Bits and elements that share a scale.
_MICROSCALED = {(4, 16): "nvfp4", (4, 32): "mxfp4", (8, 32): "mxfp8"}


def compressed_tensors(config: Config, _text: Config) -> Plan:
    """Groups of modules, each with a number of bits, a type and a strategy for its scales."""
    sparsity = config.child("sparsity_config").data.get("format", "dense")
    if sparsity != "dense":
        raise refuse_method(config, "sparsity_config", sparsity)
    left = selection(config, "ignore")
    named: list[tuple[Selection, Scheme]] = []
    general: list[Scheme] = []
    targeted: list[tuple[str, Selection]] = []
    groups = config.child("config_groups")
    if not groups.data and not config.has("kv_cache_scheme"):
        raise config.bad("config_groups", config.data.get("config_groups"), "groups of modules with a scheme each")
    for name in groups.data:
        group = groups.child(name)
        scheme = _group_scheme(config, group)
        targets = group.sequence("targets", default=["Linear"])
        classes = [target for target in targets if target in ("Linear", "LinearBase", "FusedMoE")]
        general += [scheme] if classes else []
        rest = [target for target in targets if target not in classes and target != "Attention"]
        where = f"{group.where}, {group.key_path('targets')}"
        targeted += [(str(target), Selection([target], where=where)) for target in rest]
        if rest:
            named.append((Selection(rest, where=where), scheme))

    def pick(module: Module) -> Scheme | None:
        if left.picks(module):
            return None
        picked = next((scheme for names, scheme in named if names.picks(module)), None)
        return picked or (general[0] if general else None)

    return Plan(pick, kv_scheme(config, "kv_cache_scheme"), lambda modules: _check(config, targeted, left, modules))


def _check(
    config: Config, targeted: Sequence[tuple[str, Selection]], left: Selection, modules: Sequence[Module]
) -> None:
    """Refuse targets that are the token table, whose bytes stay in the dtype here, and targets that match nothing."""
    for target, picked in targeted:
        if lies_elsewhere(target):
            continue
        if target == "Embedding" or any(picked.has(name) and not left.has(name) for name in TOKEN_TABLES):
            what = f"the token table as a target ({target}) is not supported"
        elif not any(picked.picks(module) for module in modules):
            what = f"no linear module matches the target {target}"
        else:
            continue
        raise UnsupportedError(
            f"{config.key_path('config_groups')}: {what}", where=config.where, hint="give the formats with --weights"
        )


def _indexes_groups(weights: Config) -> bool:
    """Return whether a group index is stored for each input: only where groups keep the order of activation."""
    order = weights.raw("actorder", default=None)
    known = {None: False, False: False, True: True, "group": True, "dynamic": True, "weight": False, "static": False}
    if not isinstance(order, str | bool | None) or order not in known:
        raise refuse_method(weights, "actorder", order, method="compressed-tensors")
    return known[order]


def _strategy(weights: Config) -> tuple[str, int | None]:
    """Return the elements that share a scale, and the size of a group."""
    size = weights.maybe_integer("group_size", least=-1)
    strategy = weights.text("strategy", default="") or ("group" if size and size > 0 else "tensor")
    if strategy == "group" and (size is None or size < 1):
        raise weights.bad("group_size", size, "a whole number of 1 or more, which the strategy 'group' needs")
    return strategy, size


def _activations(inputs: Config) -> str | None:
    """Return the format that activations are quantised to; none where they are not."""
    if inputs.data.get("num_bits") is None:
        return None
    kinds = {"float": {8: "fp8", 4: "nvfp4"}, "int": {8: "int8", 4: "int4"}}
    return kinds.get(inputs.text("type", default="int"), {}).get(inputs.integer("num_bits"))


def _group_scheme(config: Config, group: Config) -> Scheme:
    weights, inputs = group.child("weights"), group.child("input_activations")
    bits, kind = weights.integer("num_bits"), weights.text("type", default="int")
    strategy, size = _strategy(weights)
    symmetric = weights.raw("symmetric", default=True) is not False
    own = group.text("format", default="") or config.text("format", default="")
    activations = _activations(inputs)
    scaled = _MICROSCALED.get((bits, size or 0)) if kind == "float" and strategy in ("group", "tensor_group") else None
    if scaled is not None and (scaled == "nvfp4" or scaled in own):
        return packed(scaled, activations and (activations if scaled == "mxfp4" else scaled))
    match (kind, bits, strategy):
        case ("float", 8, "tensor"):
            return packed("fp8", activations)
        case ("float", 8, "channel"):
            return by_row("fp8", 2, activations)
        case ("float", 8, "block"):
            sides = weights.sequence("block_structure", length=2)
            if not all(isinstance(side, int) and side > 0 for side in sides):
                raise weights.bad("block_structure", sides, "two whole numbers")
            return tiled("fp8_block128" if sides == [128, 128] else "fp8", (sides[0], sides[1]), 2, activations)
        case ("int", 8, "tensor") if symmetric:
            return packed("int8", activations)
        case ("int", 8, "channel") if symmetric:
            return by_row("int8", 2, activations)
        case ("int", 2 | 3 | 4 | 5 | 6 | 8, "group" | "channel") if own in ("", "pack-quantized"):
            zero_bits = 0 if symmetric else bits
            index = 4 if strategy == "group" and _indexes_groups(weights) else 0
            width = (size or -1) if strategy == "group" else -1
            stored = integer_groups(bits, width, zero_bits=zero_bits, input_bytes=index)
            return replace(stored, activations=activations)
        case _:
            shown = f"{kind}{bits}, strategy {strategy}, group size {size}, format {own or 'none'}"
            raise refuse_method(config, "config_groups", shown)
