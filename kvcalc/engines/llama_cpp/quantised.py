"""A model's GGUF file by a recipe: its bytes, the mixture of types, and the exact format of each part."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.formats import exact_format, parse_format
from kvcalc.core.identity import ById
from kvcalc.core.records import dataclass
from kvcalc.cost.parameters import parameters
from kvcalc.engines.llama_cpp.recipes import needs_imatrix, tensor_bytes, tensor_types
from kvcalc.engines.llama_cpp.tensors import VECTORS, geometry, gguf_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.model import ModelProfile

__all__ = ["QuantisedFile", "quantised_file"]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedFile:
    """The bytes of a quantised GGUF file: all of them, by type and by part of the model.

    Args:
        total_bytes: bytes of all tensors.
        elements: elements of all tensors.
        types: matrices of each type, the most bytes first; norms and other vectors are in 32 bits besides.
        parts: format of each part of the model, exact to the byte.
        needs_imatrix: whether the tool makes it only with an importance matrix.
    """

    total_bytes: int
    elements: int
    types: Mapping[str, int]
    parts: Mapping[str, str]
    needs_imatrix: bool

    @property
    def bits_per_weight(self) -> float:
        """Bits of an element in the mean, as llama.cpp prints them."""
        return 8 * self.total_bytes / self.elements

    @property
    def mixture(self) -> str:
        """Matrices of each type in words."""
        return ", ".join(f"{count} in {kind}" for kind, count in self.types.items())


def quantised_file(model: ModelProfile, recipe: str, *, imatrix: bool = False) -> QuantisedFile:
    """Return a model's file as llama-quantize writes it; its towers are left out.

    Args:
        model: the model.
        recipe: a name of `kvcalc.engines.llama_cpp.recipes.RECIPES`.
        imatrix: whether it is made with an importance matrix.

    Raises:
        UnknownNameError: no such recipe.
        UnsupportedError: a model whose tensors are not known, or that is quantised already.
    """
    return _quantised_file(ById(model), recipe, imatrix)


@lru_cache(maxsize=128)
def _quantised_file(same: ById[ModelProfile], recipe: str, imatrix: bool) -> QuantisedFile:  # noqa: FBT001
    model = same.value
    tensors = gguf_tensors(model)
    types = tensor_types(recipe, geometry(model), tensors, imatrix=imatrix)
    counts: Counter[str] = Counter()
    by_type: Counter[str] = Counter()
    by_part: dict[str, Counter[str]] = {}
    for tensor in tensors:
        kind = types[tensor.name]
        size = tensor_bytes(tensor, kind)
        by_part.setdefault(tensor.part, Counter())[kind] += size
        if not tensor.name.endswith(VECTORS):
            counts[kind] += 1
            by_type[kind] += size
    return QuantisedFile(
        total_bytes=sum(sum(sizes.values()) for sizes in by_part.values()),
        elements=sum(tensor.elements for tensor in tensors),
        types={kind: counts[kind] for kind, _ in by_type.most_common()},
        parts=_formats(model, by_part),
        needs_imatrix=needs_imatrix(recipe, ((tensor, types[tensor.name]) for tensor in tensors)),
    )


def _formats(model: ModelProfile, sizes: Mapping[str, Counter[str]]) -> dict[str, str]:
    formats = {}
    for part, elements in parameters(model.text_only()).items():
        stored = sizes[part]
        main = stored.most_common(1)[0][0]
        formats[part] = exact_format(stored.total(), elements, names=(main,), unit=parse_format(main).unit)
    return formats
