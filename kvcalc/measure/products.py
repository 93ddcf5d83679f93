"""Products of weights with few vectors: several forms of the same, of which a CPU is given its own fastest."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention

from kvcalc.core.units import MIB, ceil_div
from kvcalc.measure.clock import wall_s
from kvcalc.measure.library import torch_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvcalc.measure.library import Device

    Form = Callable[[Any, Any, Any], Any]

__all__ = ["FORMS", "LINEAR", "PACKED", "Products", "can_pack", "fastest_products", "packed", "usual_products"]

# Numbers of vectors that forms are timed with: a step's sequences, a verification, a piece of a prompt.
_ROWS = (1, 2, 4, 16, 64)
_ROUNDS = 4
# A form this much slower than the fastest at its first attempt is not tried again.
_HOPELESS = 1.5
_TIMED_BYTES = 128 * MIB
_WIDEST_INPUTS, _LEAST_INPUTS, _OUTPUTS_TIMES, _LEAST_MATRICES = 2048, 16, 4, 4


def _onednn(vectors: Any, weight: Any, bias: Any) -> Any:
    return torch.ops.mkldnn._linear_pointwise(vectors, weight, bias, "none", [], "")  # noqa: SLF001


def _turned(product: Any, bias: Any) -> Any:
    """A product that stands as outputs x rows, viewed as rows x outputs: turning the numbers would take time."""
    rows = product.t()
    return rows if bias is None else rows.add_(bias)


def _vector(vectors: Any, weight: Any, bias: Any) -> Any:
    if vectors.shape[0] > 1:
        raise NotImplementedError("a product with one vector")
    return _turned(torch.mv(weight, vectors[0])[:, None], bias)


# Each multiplies vectors (rows x inputs) with a matrix (outputs x inputs) and adds a bias. Which of the two is read in
# rows, and by which library, decides how well a CPU fetches ahead.
FORMS: dict[str, Form] = {
    "packed": _onednn,
    "linear": F.linear,
    "onednn": _onednn,
    "vector": _vector,
    "across": lambda vectors, weight, bias: _turned(torch.mm(weight, vectors.t()), bias),
    "onednn across": lambda vectors, weight, bias: _turned(_onednn(weight, vectors, None), bias),
}


@dataclass(frozen=True, slots=True)
class Products:
    """The form of a product for each number of vectors.

    Args:
        forms: from how many vectors on, and the form's name; ``packed`` for all or for none.

    >>> Products(((1, "vector"), (2, "across"))).form(3)
    'across'
    """

    forms: tuple[tuple[int, str], ...]

    @property
    def packs(self) -> bool:
        """Whether matrices are held in oneDNN's own order."""
        return self.forms[0][1] == "packed"

    def form(self, rows: int) -> str:
        """The form for so many vectors."""
        return next((name for min_rows, name in reversed(self.forms) if min_rows <= rows), self.forms[0][1])

    def __call__(self, vectors: Any, weight: Any, bias: Any) -> Any:
        """Multiply vectors (rows x inputs) with a matrix, add a bias where there is one."""
        return FORMS[self.form(vectors.shape[0])](vectors, weight, bias)


LINEAR = Products(((1, "linear"),))
PACKED = Products(((1, "packed"),))


def packed(weight: Any) -> Any:
    """Return a matrix in oneDNN's own order."""
    return torch.ops.mkldnn._reorder_linear_weight(weight, None)  # noqa: SLF001  torch's inductor uses it so


def can_pack(dtype: Any, device: Device) -> bool:
    """Whether torch offers prepacked linear weights of a type on a device."""
    if device.kind != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    square, vector = torch.ones(16, 16, dtype=dtype), torch.ones(1, 16, dtype=dtype)
    try:
        product = PACKED(vector, packed(square), None)
    except (AttributeError, RuntimeError):
        return False
    return bool((product == F.linear(vector, square)).all())


def usual_products(dtype: Any, device: Device) -> Products:
    """Return prepacked products where torch has them, those of its linear layers elsewhere."""
    return PACKED if can_pack(dtype, device) else LINEAR


def fastest_products(name: str, device: Device, *, read_bytes: int = _TIMED_BYTES) -> Products:
    """Return the forms that this machine is fastest with; timed once a process, on a CPU alone.

    Args:
        name: number format.
        device: where they run.
        read_bytes: bytes of the weights that will be passed through: no more are timed, nor more than caches hold.
    """
    dtype = torch_dtype(name)
    size = min(read_bytes, max(_TIMED_BYTES, device.resident_bytes))
    packs = can_pack(dtype, device)
    if device.kind != "cpu" or device.free_bytes() < (2 + packs) * size:
        return PACKED if packs else LINEAR
    return _fastest(dtype, size, device.threads, packs=packs)


@cache
def _fastest(dtype: Any, size: int, threads: int, *, packs: bool) -> Products:  # noqa: ARG001  other threads, other times
    """Time all forms in turn on random matrices of a size together; one layout serves all numbers of vectors."""
    inputs = _WIDEST_INPUTS
    while _OUTPUTS_TIMES * inputs**2 * dtype.itemsize * _LEAST_MATRICES > size and inputs > _LEAST_INPUTS:
        inputs //= 2
    count = max(1, ceil_div(size, _OUTPUTS_TIMES * inputs**2 * dtype.itemsize))
    random = torch.Generator().manual_seed(0)
    one = torch.randn(_OUTPUTS_TIMES * inputs, inputs, generator=random).to(dtype)
    plain = [one.clone() for _ in range(count)]
    layouts = {False: plain} | ({True: [packed(weight) for weight in plain]} if packs else {})
    best: dict[bool, list[tuple[int, str]]] = {layout: [] for layout in layouts}
    total = dict.fromkeys(layouts, 0.0)
    with torch.inference_mode():
        for rows in _ROWS:
            vectors = torch.randn(rows, inputs, generator=random).to(dtype)
            for layout, weights in layouts.items():
                seconds, name = min(_timed(vectors, weights, layout=layout))
                total[layout] += math.log(seconds)
                best[layout].append((rows, name))
    return Products(tuple(best[min(total, key=total.__getitem__)]))


def _timed(vectors: Any, weights: Sequence[Any], *, layout: bool) -> list[tuple[float, str]]:
    """Return the least time of each form that a layout has, and its name."""
    names = [name for name in FORMS if (name == "packed") == layout]
    calls: dict[str, Callable[[], None]] = {}
    for name in names:
        call = partial(_multiply, FORMS[name], vectors, weights)
        try:
            call()
        except (AttributeError, NotImplementedError, RuntimeError):
            continue
        calls[name] = call
    first = {name: _seconds([call])[0] for name, call in calls.items()}
    tried = [name for name in calls if first[name] <= _HOPELESS * min(first.values())]
    return list(zip(_seconds([calls[name] for name in tried], _ROUNDS), tried, strict=True))


def _multiply(form: Form, vectors: Any, weights: Sequence[Any]) -> None:
    for weight in weights:
        form(vectors, weight, None)


def _seconds(calls: Sequence[Callable[[], None]], rounds: int = 1) -> list[float]:
    """Return the least times of calls that are made in turn."""
    return [min(times) for times in zip(*([wall_s(call)[0] for call in calls] for _ in range(rounds)), strict=True)]
