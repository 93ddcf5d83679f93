"""The quantisation recipes of llama.cpp's own tool: which type each tensor of a file is stored in.

A recipe names one type for most tensors. By a tensor's role, its layer and the model's geometry, some get a wider or
a narrower one, and rows that a type's blocks do not divide fall back to a type of smaller blocks.

Source: llama.cpp commit 0c1e57098bba, ``src/llama-quant.cpp``; what it printed for 81 models stands in the conformance
tests.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnknownNameError, did_you_mean
from kvcalc.core.formats import FORMATS
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.model import Part

__all__ = ["RECIPES", "Geometry", "GgufTensor", "find_recipe", "needs_imatrix", "tensor_bytes", "tensor_types"]

# The recipes, and the type that each gives a tensor for which it has no other.
RECIPES = {
    "q2_k": "q2_k", "q2_k_s": "q2_k", "q3_k_s": "q3_k", "q3_k_m": "q3_k", "q3_k_l": "q3_k", "q4_0": "q4_0",
    "q4_1": "q4_1", "q4_k_s": "q4_k", "q4_k_m": "q4_k", "q5_0": "q5_0", "q5_1": "q5_1", "q5_k_s": "q5_k",
    "q5_k_m": "q5_k", "q6_k": "q6_k", "q8_0": "q8_0", "iq1_s": "iq1_s", "iq1_m": "iq1_m", "iq2_xxs": "iq2_xxs",
    "iq2_xs": "iq2_xs", "iq2_s": "iq2_xs", "iq2_m": "iq2_s", "iq3_xxs": "iq3_xxs", "iq3_xs": "iq3_s",
    "iq3_s": "iq3_s", "iq3_m": "iq3_s", "iq4_nl": "iq4_nl", "iq4_xs": "iq4_xs", "mxfp4_moe": "mxfp4",
    "tq1_0": "tq1_0", "tq2_0": "tq2_0", "f16": "fp16", "bf16": "bf16", "f32": "fp32",
}  # fmt: skip

_TINY = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq2_m"})
_TINIEST = frozenset({"iq1_s", "iq1_m", "iq2_xxs", "iq2_xs"})
_NARROW_ROWS = {
    "iq1_s": "iq4_nl", "iq1_m": "iq4_nl", "iq2_xxs": "iq4_nl", "iq2_xs": "iq4_nl", "iq2_s": "iq4_nl",
    "iq3_xxs": "iq4_nl", "iq3_s": "iq4_nl", "iq4_xs": "iq4_nl", "q2_k": "q4_0", "q3_k": "q4_0", "tq1_0": "q4_0",
    "tq2_0": "q4_0", "q4_k": "q5_0", "q5_k": "q5_1", "q6_k": "q8_0",
}  # fmt: skip
_WITH_IMATRIX = frozenset({"iq3_xxs", "iq2_xxs", "iq2_xs", "iq2_s", "iq1_m", "iq1_s"})
_EIGHT, _FEW_EXPERTS, _WIDE_GROUP = 8, 4, 4

# Matrices that no recipe quantises, by a piece of their name.
_KEPT = re.compile(
    r"_norm\.weight|ffn_gate_inp\.weight|altup|laurel|per_layer_model_proj|^position_embd|^token_types|ssm_conv1d"
    r"|shortconv\.conv\.weight|indexer\.[kq]_proj\.weight"
)
_ROLES = (
    ("qkv", "attn_qkv.weight"), ("kv_b", "attn_kv_b.weight"), ("value", "attn_v.weight"), ("key", "attn_k.weight"),
    ("query", "attn_q.weight"), ("output", "attn_output.weight"), ("up", "ffn_up"), ("gate", "ffn_gate"),
    ("down", "ffn_down"),
)  # fmt: skip
_LAYER = re.compile(r"blk\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """A tensor of a GGUF file.

    Args:
        name: its name in the file.
        shape: elements of each dimension, the row's width first.
        part: the part of the model that it belongs to.
        kept: type it is converted to, and keeps where no recipe quantises it.
    """

    name: str
    shape: tuple[int, ...]
    part: Part
    kept: str = "fp32"

    @property
    def elements(self) -> int:
        """Elements of all dimensions."""
        count = 1
        for size in self.shape:
            count *= size
        return count

    @property
    def layer(self) -> int:
        """The layer it stands in; -1 outside the layers."""
        layer = _LAYER.match(self.name)
        return -1 if layer is None else int(layer[1])

    @property
    def role(self) -> str:
        """The part that the tensor plays in the model: head, table, value, down …, or other for one not told apart."""
        if self.name == "output.weight":
            return "head"
        if self.name in ("token_embd.weight", "per_layer_token_embd.weight"):
            return "table"
        return next((role for role, piece in _ROLES if piece in self.name), "other")

    @property
    def quantised(self) -> bool:
        """Whether recipes quantise it: matrices and stacks of experts, but for norms, routers and small factors."""
        sides = len(self.shape)
        while sides > 1 and self.shape[sides - 1] == 1:
            sides -= 1
        return sides > 1 and self.name.endswith("weight") and _KEPT.search(self.name) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """The sizes of a model by which a recipe chooses formats: layers, heads that share a key, experts.

    Args:
        architecture: ``general.architecture`` of the file.
        layers: all layers of the file.
        group: query heads of the first layer that share one key-value head; 0 where it has none.
        experts: routed experts of a layer.
        seventy: whether the engine knows the model as one of 70B.
    """

    architecture: str
    layers: int
    group: int
    experts: int = 0
    seventy: bool = False


def find_recipe(name: str) -> str | None:
    """Return a recipe's key, whatever the case; none where the name is no recipe of the tool.

    >>> find_recipe("Q4_K_M"), find_recipe("nf4")
    ('q4_k_m', None)
    """
    key = name.strip().lower()
    return key if key in RECIPES else None


class _Rule:
    """One recipe on one model, tensor by tensor in the tool's order."""

    def __init__(self, recipe: str, model: Geometry, tensors: Iterable[GgufTensor], *, imatrix: bool) -> None:
        self.recipe = recipe
        self.model = model
        self.imatrix = imatrix
        self.tensors = sorted(tensors, key=lambda tensor: (tensor.layer, tensor.name))
        self.tied = all(tensor.name != "output.weight" for tensor in self.tensors)
        self.values = sum(tensor.role in ("value", "qkv", "kv_b") for tensor in self.tensors)
        self.seen = {"value": 0, "down": 0, "gate": 0, "up": 0}

    def types(self) -> dict[str, str]:
        return {tensor.name: self._type(tensor) for tensor in self.tensors}

    def _type(self, tensor: GgufTensor) -> str:
        base = RECIPES[self.recipe]
        if not tensor.quantised:
            return tensor.kept
        if FORMATS[base].block_elements == 1:
            return base
        chosen = self._chosen(tensor, base)
        if tensor.shape[0] % FORMATS[chosen].block_elements == 0:
            return chosen
        narrow = _NARROW_ROWS.get(chosen, chosen)
        return "fp16" if tensor.shape[0] % FORMATS[narrow].block_elements else narrow

    def _chosen(self, tensor: GgufTensor, base: str) -> str:
        role = tensor.role
        if role == "head" or (self.tied and role == "table"):
            return self._head(tensor, base)
        if self.recipe == "mxfp4_moe":
            return "mxfp4" if len(tensor.shape) > 2 and tensor.shape[2] > 1 else "q8_0"  # noqa: PLR2004
        if role == "table":
            return self._table(base)
        if role in ("value", "qkv", "kv_b"):
            kind = self._tiny_value() if self.recipe in _TINY else self._value(base)
            self.seen["value"] += 1
            return kind
        if role in ("up", "gate", "down"):
            layer = tensor.layer if self.model.experts > 1 and self.recipe not in _TINY else self.seen[role]
            self.seen[role] += 1
            return {"up": self._up, "gate": self._up, "down": self._down}[role](layer, base)
        return {"output": self._output, "key": self._key, "query": self._query}.get(role, lambda kind: kind)(base)

    def _head(self, tensor: GgufTensor, base: str) -> str:
        broken = tensor.shape[0] % FORMATS[base].block_elements != 0
        if self.recipe in ("mxfp4_moe", "q8_0") or self.model.architecture == "falcon" or broken:
            return "q8_0"
        return "q5_k" if self.recipe in _TINY | {"iq3_xxs"} else "q6_k"

    def _table(self, base: str) -> str:
        if self.recipe in _TINIEST:
            return "q2_k"
        if self.recipe in ("iq2_s", "iq2_m", "iq3_xxs"):
            return "iq3_s"
        return "q4_k" if self.recipe in ("tq1_0", "tq2_0") else base

    def _tiny_value(self) -> str:
        if self.model.group >= _WIDE_GROUP or self.model.experts >= _FEW_EXPERTS:
            return "q4_k"
        return "iq3_s" if self.recipe in ("iq2_s", "iq2_m") else "q2_k"

    def _value(self, base: str) -> str:
        if self.model.experts == _EIGHT:
            return "q8_0"
        kind = self._plain_value(base)
        return "q5_k" if self.model.seventy and kind in ("q3_k", "q4_k") else kind

    def _plain_value(self, base: str) -> str:
        recipe, wide, index = self.recipe, self.model.group >= _WIDE_GROUP, self.seen["value"]
        fixed = {"q2_k": "q3_k", "iq3_m": "q4_k", "q3_k_l": "q5_k"}
        if wide:
            same = dict.fromkeys(("q2_k", "q2_k_s", "iq3_xxs", "iq3_xs", "iq3_s"), "q4_k")
            fixed |= same | {"iq4_nl": "q5_k", "iq4_xs": "q5_k"}
        if recipe in fixed:
            return fixed[recipe]
        if recipe == "iq3_xxs":
            return "iq3_xxs" if self.imatrix else "iq3_s"
        if recipe == "q3_k_m":
            return "q5_k" if index < 2 else "q4_k"  # noqa: PLR2004
        if recipe in ("q4_k_m", "q5_k_m") and _more_bits(index, self.values):
            return "q6_k"
        return "q5_k" if recipe == "q4_k_s" and index < 4 else base  # noqa: PLR2004

    def _key(self, base: str) -> str:
        if self.model.experts == _EIGHT:
            return "q4_k" if self.recipe in _TINY else "q8_0"
        return self._query(base)

    def _query(self, base: str) -> str:
        return {"iq3_xs": "iq3_xxs", "iq3_xxs": "iq2_s"}.get(self.recipe, base)

    def _output(self, base: str) -> str:
        if self.model.architecture == "falcon" and self.recipe not in _TINY:
            return "q4_k" if self.recipe == "q3_k_l" else base
        if self.model.experts == _EIGHT:
            plain = ("q2_k_s", "q3_k_l", "q4_0", "q4_1", "q5_0", "q5_1", "q5_k_s", "q5_k_m", "q6_k", "q8_0")
            return base if self.recipe in plain or base.startswith("tq") else "q5_k"
        return {
            "iq1_s": "iq2_xxs", "iq1_m": "iq2_xxs", "iq2_s": "iq3_s", "iq2_m": "iq3_s", "q2_k": "q3_k",
            "iq3_xxs": "iq3_s", "q3_k_m": "q4_k", "q3_k_l": "q5_k", "iq3_m": "q4_k",
        }.get(self.recipe, base)  # fmt: skip

    def _up(self, layer: int, base: str) -> str:
        edge, last = self.model.layers // 8, 7 * self.model.layers // 8
        return "iq3_xxs" if self.recipe == "iq3_xs" and edge <= layer < last else base

    def _down(self, layer: int, base: str) -> str:
        layers, recipe, falcon = self.model.layers, self.recipe, self.model.architecture == "falcon"
        first, more = layer < layers // 8, _more_bits(layer, layers)
        if recipe in ("q3_k_m", "q4_k_m"):
            narrow, wide, widest = ("q3_k", "q4_k", "q5_k") if recipe == "q3_k_m" else ("q4_k", "q5_k", "q6_k")
            if falcon:
                return widest if layer < layers // 16 else wide if more else narrow
            if recipe == "q3_k_m":
                return widest if layer < layers // 16 else wide
            return widest if more else narrow
        if recipe == "q2_k":
            return "q3_k"
        if recipe == "q3_k_l":
            return "q4_k" if falcon else "q5_k"
        if recipe == "iq3_xxs" and not self.imatrix:
            return "q4_k" if first else "q3_k"
        if recipe == "iq3_m":
            return "q4_k" if first or (self.model.experts == _EIGHT and more) else base
        if recipe == "q5_k_m":
            return "q6_k" if more else base
        return self._first_down(base) if first else base

    def _first_down(self, base: str) -> str:
        """Return the type of the first eighth of the layers, for the recipes that widen them alone."""
        if self.recipe in _TINY:
            return "iq3_s" if self.recipe in ("iq2_s", "iq2_m") else "q2_k"
        wider = {"q2_k_s": "q4_k"}
        if self.model.architecture != "falcon":
            wider["q4_k_s"] = "q5_k"
        wider |= {"q4_0": "q4_1", "q5_0": "q5_1"} if self.imatrix else {"iq4_nl": "q5_k", "iq4_xs": "q5_k"}
        return wider.get(self.recipe, base)


def _more_bits(layer: int, layers: int) -> bool:
    """Whether a layer is in the first or the last eighth, or every third between."""
    edge = layers // 8
    return layer < edge or layer >= 7 * layers // 8 or (layer - edge) % 3 == 2  # noqa: PLR2004


def tensor_types(
    recipe: str, model: Geometry, tensors: Iterable[GgufTensor], *, imatrix: bool = False
) -> dict[str, str]:
    """Return the type that each tensor of a file is stored in.

    Args:
        recipe: a name of `RECIPES`, in upper or lower case.
        model: the model's geometry.
        tensors: all tensors of the unquantised file.
        imatrix: whether the file is made with an importance matrix.

    Raises:
        UnknownNameError: no such recipe.
    """
    key = find_recipe(recipe)
    if key is None:
        raise UnknownNameError(f"unknown recipe {recipe!r}", hint=did_you_mean(recipe, RECIPES))
    return _Rule(key, model, tensors, imatrix=imatrix).types()


def needs_imatrix(recipe: str, types: Iterable[tuple[GgufTensor, str]]) -> bool:
    """Whether llama-quantize makes such a file only with an importance matrix.

    Args:
        recipe: a key of `RECIPES`.
        types: the tensors and their types.
    """
    demanding = _WITH_IMATRIX | ({"q2_k"} if recipe == "q2_k_s" else set())
    return any(kind in demanding and tensor.role not in ("head", "table") for tensor, kind in types)


def tensor_bytes(tensor: GgufTensor, kind: str) -> int:
    """Return the bytes of a tensor in a type."""
    form = FORMATS[kind]
    return tensor.elements // form.block_elements * form.block_bytes
