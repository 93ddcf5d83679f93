"""Bytes of weights on each device and the host, tensor by tensor, as llama.cpp loads a model's file."""

from __future__ import annotations

from collections import Counter
from dataclasses import field
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import FORMATS, GGML_TYPES
from kvcalc.core.identity import ById
from kvcalc.core.records import dataclass
from kvcalc.engines.llama_cpp.architectures import architecture_key
from kvcalc.engines.llama_cpp.backends import CPU, is_repacked, stored_bytes
from kvcalc.engines.llama_cpp.overrides import HOST
from kvcalc.engines.llama_cpp.recipes import GgufTensor, tensor_bytes, tensor_types
from kvcalc.engines.llama_cpp.tensors import geometry, gguf_tensors

if TYPE_CHECKING:
    from collections.abc import Container, Hashable, Mapping, Sequence

    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.llama_cpp.backends import Backend
    from kvcalc.engines.llama_cpp.placement import Placement

__all__ = [
    "FIRST_LAYER_TENSORS",
    "INPUT_TENSORS",
    "PlacedWeights",
    "Weight",
    "all_layers",
    "model_weights",
    "place_weights",
]

# Tensors outside the layers: those of the input, and those that stand with the first layer.
INPUT_TENSORS = frozenset(
    {"token_embd.weight", "position_embd.weight", "token_types.weight", "per_layer_token_embd.weight"}
)
FIRST_LAYER_TENSORS = ("token_embd_norm", "per_layer_model_proj", "per_layer_proj_norm", "hrm.z_l_init", "conv1d")
# Rotary factors, of which every place that holds layers gets a copy.
_ROTARY = ("rope_freqs", "rope_factors_")
# Architectures that name their last norm as if it stood behind the table.
_LAST_NORM_OF_TABLE = frozenset({"lfm2", "lfm2moe"})
_TABLE = "token_embd.weight"
# Stands for formats of a file that hold one element each.
_PLAIN = FORMATS["fp32"]
# Types that a GGUF file stores weights in; the others are of indices and of activations.
_TYPES = frozenset(name for name, _, _ in GGML_TYPES.values()) - {
    "int8", "int16", "int32", "int64", "fp64", "q8_1", "q8_k",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Weight:
    """A tensor and the type it is stored in.

    Args:
        tensor: its name and shape.
        kind: its type.
        size: its bytes in the file.
    """

    tensor: GgufTensor
    kind: str
    size: int

    @property
    def name(self) -> str:
        """Its name in the file."""
        return self.tensor.name


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedWeights:
    """Bytes of weights by place.

    Args:
        by_place: bytes of each device by index, and of the host under none, the repacked ones left out.
        repacked_bytes: bytes on the host in the CPU back end's own order of blocks.
        copied_bytes: of all of these, copies of what stands in the file once: a tied head, rotary factors.
    """

    by_place: Mapping[int | None, int] = field(default_factory=dict)
    repacked_bytes: int = 0
    copied_bytes: int = 0


def all_layers(model: ModelProfile) -> int:
    """Return the layers that llama.cpp places: those that predict further tokens are counted where the file has them.

    Source: llama.cpp commit 0c1e57098bba, ``hparams.n_layer_all``.
    """
    return geometry(model).layers if not model.is_gguf else model.layers + model.prediction_layers


def model_weights(
    model: ModelProfile, recipe: str | None, *, imatrix: bool = False, formats: Formats | None = None
) -> tuple[Weight, ...]:
    """Return the tensors of a model's file and their types.

    Args:
        model: the model; its towers are left out.
        recipe: the recipe its file is made by; none for a file as it is.
        imatrix: whether it is made with an importance matrix.
        formats: formats of a model's parts, where it has neither a file nor a recipe.

    Raises:
        UnsupportedError: a model whose tensors are not known.
    """
    if recipe is None and not model.file_tensors and formats is not None:
        return tuple(_formatted(tensor, formats) for tensor in gguf_tensors(model))
    return _model_weights(ById(model), recipe, imatrix)


@lru_cache(maxsize=64)
def _model_weights(same: ById[ModelProfile], recipe: str | None, imatrix: bool) -> tuple[Weight, ...]:  # noqa: FBT001
    model = same.value
    if recipe is None and model.file_tensors:
        return tuple(
            Weight(GgufTensor(name, tensor.shape, "other"), tensor.dtype, tensor.size)
            for name, tensor in model.file_tensors.items()
        )
    tensors = gguf_tensors(model)
    types = tensor_types(recipe or "bf16", geometry(model), tensors, imatrix=imatrix)
    return tuple(Weight(each, types[each.name], tensor_bytes(each, types[each.name])) for each in tensors)


def _formatted(tensor: GgufTensor, formats: Formats) -> Weight:
    """Return a tensor in the format of its part; what no recipe quantises keeps its own."""
    if not tensor.quantised:
        return Weight(tensor, tensor.kept, tensor_bytes(tensor, tensor.kept))
    form = formats.of(tensor.part)
    if form.name not in _TYPES:
        raise UnsupportedError(
            f"llama.cpp stores no weights in {_said(form)}",
            hint="--weights q4_k_m, or another recipe of llama-quantize; a type of its own, as q4_k,head=q6_k",
            parameter="weights",
        )
    return Weight(tensor, form.name, ceil(form.bytes(tensor.elements)))


def _said(form: Format) -> str:
    """Name a format for a reader: an exact mixture by its unit and its mean."""
    if "/" not in form.name:
        return form.name
    return f"a mixture of {form.unit} and wider formats ({form.bytes_per_element * 8:.2f} bits each in the mean)"


def place_weights(
    model: ModelProfile, weights: Sequence[Weight], placement: Placement, backends: Sequence[Backend]
) -> PlacedWeights:
    """Return the bytes of weights on each device and the host.

    A layer's tensors stand where the layer does unless an override moves them; the tables are always on the host, and a
    tied head is a copy of its table on the output's device. Layers that predict further tokens are not loaded.

    Source: llama.cpp commit 0c1e57098bba, ``llama_model_loader::create_tensor`` and ``LLM_TENSOR_INFOS``.

    Args:
        model: the model.
        weights: its tensors.
        placement: the places of its layers.
        backends: the back end of each device.
    """
    repacks = not any(backend.pins_host for backend in backends)
    sums: Counter[int | None] = Counter(dict.fromkeys((*range(placement.devices), HOST), 0))
    repacked = copied = 0
    same = ById(weights)
    listed, sizes = _listed(same), {home: _stored(same, each) for home, each in [(HOST, CPU), *enumerate(backends)]}
    known: dict[Hashable, tuple[Counter[int | None], int]] = {}
    for layer, group in _by_layer(same).items():
        if layer >= model.layers:
            continue
        homes = placement.of_layer_tensors(layer, group.names)
        key = group.like, homes
        if key not in known:
            known[key] = _of_layer(group, homes, sizes, repacked={HOST} if repacks else ())
        kept, put_apart = known[key]
        for home, size in kept.items():
            sums[home] += size
        repacked += put_apart
    outside = [number for number, each in enumerate(listed) if each.layer < 0]
    tied = all(listed[number].name != "output.weight" for number in outside)
    for number in outside:
        each = listed[number]
        places = _homes(model, each, placement, tied=tied)
        for index, home in enumerate(places):
            size = sizes[home][number]
            if home is HOST and repacks and each.is_repacked and (index or each.name not in INPUT_TENSORS):
                repacked += size
            elif index and home is places[0]:
                continue  # the same buffer: no copy
            else:
                sums[home] += size
            copied += size if index else 0
    return PlacedWeights(by_place=sums, repacked_bytes=repacked, copied_bytes=copied)


class _Listed(NamedTuple):
    """A tensor's name and layer, and whether the CPU repacks it where it multiplies with it."""

    name: str
    layer: int
    is_repacked: bool


class _Group(NamedTuple):
    """The tensors of one layer.

    Args:
        names: their names behind the layer's number.
        tensors: their places in the list of all, and whether the CPU repacks each.
        like: the first layer with such tensors, of the same sizes.
    """

    names: tuple[str, ...]
    tensors: tuple[tuple[int, bool], ...]
    like: int


def _of_layer(
    group: _Group,
    homes: Sequence[int | None],
    sizes: Mapping[int | None, Sequence[int]],
    repacked: Container[int | None],
) -> tuple[Counter[int | None], int]:
    """Return the bytes of a layer's tensors by place, and those that are repacked."""
    kept: Counter[int | None] = Counter()
    put_apart = 0
    for (number, is_repacked_there), home in zip(group.tensors, homes, strict=True):
        if is_repacked_there and home in repacked:
            put_apart += sizes[home][number]
        else:
            kept[home] += sizes[home][number]
    return kept, put_apart


@lru_cache(maxsize=64)
def _listed(same: ById[Sequence[Weight]]) -> tuple[_Listed, ...]:
    """Return name, layer and kind of storage of each tensor, kept since placements are tried by the dozen."""
    return tuple(_Listed(each.name, each.tensor.layer, is_repacked(each.tensor, each.kind)) for each in same.value)


@lru_cache(maxsize=64)
def _by_layer(same: ById[Sequence[Weight]]) -> dict[int, _Group]:
    """Return the tensors of each layer."""
    numbers: dict[int, list[int]] = {}
    listed = _listed(same)
    for number, each in enumerate(listed):
        if each.layer >= 0:
            numbers.setdefault(each.layer, []).append(number)
    alike: dict[Hashable, int] = {}
    groups = {}
    for layer, mine in numbers.items():
        names = tuple(listed[number].name.split(".", 2)[2] for number in mine)
        sorts = tuple(
            (same.value[number].kind, same.value[number].tensor.shape, same.value[number].size) for number in mine
        )
        like = alike.setdefault((names, sorts), layer)
        groups[layer] = _Group(names, tuple((number, listed[number].is_repacked) for number in mine), like)
    return groups


@lru_cache(maxsize=256)
def _stored(same: ById[Sequence[Weight]], backend: Backend) -> tuple[int, ...]:
    """Return the bytes of each tensor on a back end."""
    return tuple(
        stored_bytes(each.size, width=each.tensor.shape[0], form=FORMATS.get(each.kind, _PLAIN), backend=backend)
        for each in same.value
    )


def _homes(model: ModelProfile, tensor: _Listed, placement: Placement, *, tied: bool) -> tuple[int | None, ...]:
    """Return the places of a tensor of no layer: none for one that is not loaded, several for one that is copied."""
    name = tensor.name
    if tensor.layer >= 0:
        return ()
    if name in INPUT_TENSORS:
        table = placement.of_tensor(name, HOST)
        return (table, placement.of_tensor(name, placement.output)) if name == _TABLE and tied else (table,)
    if name.startswith(_ROTARY):
        return tuple(dict.fromkeys(placement.of_tensor(name, home) for home in placement.layers))
    if name.startswith(FIRST_LAYER_TENSORS) and architecture_key(model.architecture) not in _LAST_NORM_OF_TABLE:
        return (placement.of_tensor(name, placement.layers[0]),)
    return (placement.of_tensor(name, placement.output),)
