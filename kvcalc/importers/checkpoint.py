"""Headers of weight files: names, formats, shapes and bytes of tensors."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.tensors import Tensor
from kvcalc.files import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

__all__ = ["Read", "Tensor", "TensorTable", "element_count", "open_file"]

# Gives `length` bytes at `offset`, fewer where the file ends: a local file, or ranged requests to a hub.
Read = Callable[[int, int], bytes]

# No tensor of any model comes near; larger products are a broken or hostile file.
_MAX_ELEMENTS = 10**15


@dataclass(frozen=True, slots=True)
class TensorTable:
    """All tensors of a checkpoint, however many files it is split over.

    Args:
        where: the file that was named.
        tensors: name to tensor.
    """

    where: str
    tensors: Mapping[str, Tensor]

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors, headers and padding excluded."""
        return sum(tensor.size for tensor in self.tensors.values())


@contextmanager
def open_file(path: Path) -> Iterator[tuple[Read, int]]:
    """Open a local file for reading by offset; give the reader and the file's size.

    Raises:
        ProfileError: the file cannot be opened or read.
    """
    with open_regular(path) as file:
        size = file.seek(0, 2)

        def read(offset: int, length: int) -> bytes:
            file.seek(offset)
            return file.read(length)

        yield read, size


def element_count(shape: Sequence[int], *, name: str, where: str) -> int:
    """Return the elements of a tensor.

    Raises:
        ProfileError: a negative size, or more elements than any model has.
    """
    elements = 1
    for side in shape:
        if not 0 <= side <= _MAX_ELEMENTS:
            raise ProfileError(f"the tensor {name[:80]!r} has a size of {side}", where=where)
        elements *= side
        if elements > _MAX_ELEMENTS:
            raise ProfileError(f"the tensor {name[:80]!r} has more than {_MAX_ELEMENTS:.0e} elements", where=where)
    return elements
