"""Storage of tensors by llama.cpp's back ends: alignment, padding of rows, and buffers of the host.

Source: llama.cpp commit 0c1e57098bba: ``ggml/src/ggml-cuda/ggml-cuda.cu``, ``ggml-metal/ggml-metal.cpp``,
``ggml-sycl/ggml-sycl.cpp`` and ``ggml-cpu/repack.cpp``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.engines.llama_cpp.recipes import GgufTensor

__all__ = ["BACKENDS", "CPU", "MEMORY", "Backend", "is_repacked", "stored_bytes"]

_SIDES_OF_EXPERTS = 3
# Matrices that an x86 CPU with AVX2 multiplies in another order of their blocks, and the rows that are interleaved.
_REPACKED, _INTERLEAVED = ("q4_0", "q4_k", "iq4_nl", "mxfp4"), 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One of llama.cpp's back ends.

    Args:
        name: its name.
        device: name of its first devices without the number: ``CUDA`` for ``CUDA0``.
        alignment: bytes that each tensor is rounded up to.
        row: elements that the last row of a quantised matrix is padded to a multiple of; 1 for none.
        halves_cache: whether fused attention over a prompt first turns a cache of another type into 16 bits, in memory
            behind its result.
        pins_host: whether weights that stay on the host are loaded for its transfers, so that the CPU does not repack
            them.
    """

    name: str
    device: str
    alignment: int
    row: int = 1
    halves_cache: bool = False
    pins_host: bool = False


CPU = Backend(name="cpu", device="CPU", alignment=32)
# A device of which only the memory is known: rows as CUDA's, reached without pinned buffers of the host.
MEMORY = Backend(name="memory", device="CUDA", alignment=32, row=512)
# Back ends by the vendor of the card.
BACKENDS = {
    "nvidia": Backend(name="cuda", device="CUDA", alignment=128, row=512, halves_cache=True, pins_host=True),
    "amd": Backend(name="rocm", device="ROCm", alignment=128, row=512, halves_cache=True, pins_host=True),
    "intel": Backend(name="sycl", device="SYCL", alignment=128, row=512, pins_host=True),
    "apple": Backend(name="metal", device="MTL", alignment=32),
}


def stored_bytes(size: int, *, width: int, form: Format, backend: Backend) -> int:
    """Return the bytes that a back end sets aside for a tensor.

    Source: ``ggml_backend_cuda_buffer_type_get_alloc_size``; ``ggml_backend_alloc_ctx_tensors_from_buft``.

    Args:
        size: its bytes without padding.
        width: elements of a row.
        form: the format it is stored in.
        backend: the back end.

    >>> from kvcalc.core.formats import FORMATS
    >>> stored_bytes(9520, width=896, form=FORMATS["q8_0"], backend=BACKENDS["nvidia"])
    9728
    """
    over = width % backend.row
    if form.block_elements > 1 and over:
        size += (backend.row - over) // form.block_elements * form.block_bytes
    return ceil_div(size, backend.alignment) * backend.alignment


def is_repacked(tensor: GgufTensor, kind: str) -> bool:
    """Whether the CPU back end stores a matrix of the host in a buffer of its own, its blocks in another order.

    Tables are looked up and not multiplied with: they are left as they are. That is so on x86 with AVX2, where no back
    end pins the host's buffers; llama.cpp's own tables of memory leave that buffer out.

    Source: ``ggml_repack_get_optimal_repack_type``.
    """
    sides = len(tensor.shape)
    while sides > 1 and tensor.shape[sides - 1] == 1:
        sides -= 1
    wanted = _SIDES_OF_EXPERTS if "_exps." in tensor.name else _SIDES_OF_EXPERTS - 1
    whole = kind in _REPACKED and sides == wanted and tensor.shape[1] % _INTERLEAVED == 0
    return whole and tensor.name.endswith(".weight")
