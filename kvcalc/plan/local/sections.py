"""A model's layers as a placement spreads them: each with the exact bytes of its own tensors."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.formats import exact_format, parse_format
from kvcalc.core.model import Mixture
from kvcalc.core.records import dataclass
from kvcalc.cost.placed import Section
from kvcalc.engines.llama_cpp.overrides import EXPERTS as WHOLE_EXPERTS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.llama_cpp.placement import Placement
    from kvcalc.engines.llama_cpp.weights import Weight

__all__ = ["PlacedModel", "experts_home", "layer_formats", "placed_model", "splits_layers"]

EXPERTS = "_exps."
# The tensors of a layer's routed experts, but for those of files that join two of them.
_EXPERTS_OF_A_LAYER = tuple(f"ffn_{part}{EXPERTS}weight" for part in ("up", "gate", "down"))
# Parts whose format follows from a layer's own tensors; vectors are in 32 bits whatever the recipe.
_MATRICES = ("attention", "mlp", "other", "router")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """A model whose layers stand somewhere.

    Args:
        model: the model.
        placement: where its layers stand.
        sections: all layers in order.
        outer: number formats of embedding and head.
    """

    model: ModelProfile
    placement: Placement
    sections: tuple[Section, ...]
    outer: Formats


def layer_formats(model: ModelProfile, weights: Sequence[Weight], formats: Formats) -> tuple[Formats, ...]:
    """Return the formats of each layer, such that its matrices and its experts have the bytes of its tensors.

    Args:
        model: the model.
        weights: the tensors of its file.
        formats: the formats of the whole model, for what no tensor of a layer stands for.
    """
    sizes: dict[int, Counter[str]] = {layer: Counter() for layer in range(model.layers)}
    for weight in weights:
        shape = weight.tensor.shape
        if 0 <= weight.tensor.layer < model.layers and len(shape) > 1:
            kind = "experts" if EXPERTS in weight.name else "matrices"
            sizes[weight.tensor.layer].update(
                {f"{kind} bytes": weight.size, f"{kind} elements": weight.tensor.elements}
            )
    made: dict[tuple[tuple[str, int], ...], Formats] = {}
    layer_by_layer = []
    for layer in range(model.layers):
        key = tuple(sorted(sizes[layer].items()))
        if key not in made:
            made[key] = _formats(formats, sizes[layer])
        layer_by_layer.append(made[key])
    return tuple(layer_by_layer)


def _formats(formats: Formats, sizes: Mapping[str, int]) -> Formats:
    parts = dict(formats.parts)
    for kind, names in (("matrices", _MATRICES), ("experts", ("experts",))):
        elements = sizes.get(f"{kind} elements", 0)
        if elements:
            parts |= {name: _mean(sizes[f"{kind} bytes"], elements, formats.of(name)) for name in names}
    return replace(formats, parts=parts)


def _mean(size: int, elements: int, like: Format) -> Format:
    """Return the format with so many bytes for so many elements, multiplied in the unit of another."""
    return parse_format(exact_format(size, elements, names=(), unit=like.unit))


def placed_model(
    model: ModelProfile, by_layer: Sequence[Formats], placement: Placement, *, outer: Formats
) -> PlacedModel:
    """Return a model whose layers stand where a placement puts them.

    Args:
        model: the model.
        by_layer: the formats of each layer (`layer_formats`).
        placement: the places of its layers.
        outer: the formats of embedding and head.
    """
    sections: list[Section] = []
    for layer, block in enumerate(model.blocks):
        home = placement.of_layer(layer)
        one = Section(
            blocks=(block,),
            formats=by_layer[layer],
            home=home,
            cache=placement.of_cache(layer),
            experts=experts_home(placement, layer) if isinstance(block.mlp, Mixture) else home,
        )
        if sections and _alike(sections[-1], one):
            sections[-1] = replace(one, blocks=(*sections[-1].blocks, block))
        else:
            sections.append(one)
    return PlacedModel(model=model, placement=placement, sections=tuple(sections), outer=outer)


def experts_home(placement: Placement, layer: int) -> int | None:
    """Return the place of a layer's experts: that of the layer unless all of them are moved to one other.

    Args:
        placement: the places of layers.
        layer: the layer.
    """
    places = set(placement.of_layer_tensors(layer, _EXPERTS_OF_A_LAYER))
    return places.pop() if len(places) == 1 else placement.layers[layer]


def splits_layers(model: ModelProfile, weights: Sequence[Weight], placement: Placement) -> bool:
    """Whether overrides move other tensors than all experts of a layer: the sections have these where their layer is.

    Args:
        model: the model.
        weights: the tensors of its file.
        placement: the places of its layers.
    """
    if all(override.pattern.endswith(WHOLE_EXPERTS) for override in placement.overrides):
        return False
    experts = [experts_home(placement, layer) for layer in range(model.layers)]
    for weight in weights:
        layer = weight.tensor.layer
        if 0 <= layer < model.layers:
            counted_at = experts[layer] if EXPERTS in weight.name else placement.layers[layer]
            if placement.of_tensor(weight.name, placement.layers[layer]) != counted_at:
                return True
    return placement.of_tensor("output.weight", placement.output) != placement.output


def _alike(last: Section, one: Section) -> bool:
    """Whether a layer continues a section."""
    places = (last.home, last.cache, last.experts) == (one.home, one.cache, one.experts)
    return places and last.formats is one.formats and last.blocks[-1] == one.blocks[0]
