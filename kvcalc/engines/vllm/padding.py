"""Experts in MXFP4 as vLLM lays them out: rows and columns rounded up to what the kernels of a card take.

Held against public logs of gpt-oss-120b, of which the file has 60.77 GiB: 65.97 on a GB10 (the Marlin kernels round
2,880 to 2,944 and 3,072) and 64.38 on an H100 (Triton's layout rounds one side of the values to 3,072).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.units import ceil_div
from kvcalc.engines.vllm.releases import VERSION, known_release

if TYPE_CHECKING:
    from kvcalc.core.model import Mixture

__all__ = ["KERNELS", "Kernel", "expert_kernel", "padded_expert_bytes"]

_BLOCK = 32
# From this release on the kernels of large Blackwell cards round the inner width to 128, not 256 (0.19 and 0.33).
_FIRST_NARROW = (0, 33)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Rounding of the sides of an expert's matrices by a kernel.

    Args:
        inner: what the inner width is rounded to.
        hidden: what the hidden size is rounded to.
        values: what the side along a row is rounded to again, for the values without their scales.
    """

    inner: int
    hidden: int
    values: int = 1


KERNELS = {
    "marlin": Kernel(inner=128, hidden=256),
    "triton": Kernel(inner=64, hidden=1, values=256),
    "trtllm": Kernel(inner=128, hidden=256),
    "trtllm-wide": Kernel(inner=256, hidden=256),
    "rocm": Kernel(inner=256, hidden=256),
}
# Generations of accelerators as their makers name them; others run Marlin.
_BY_ARCHITECTURE = {
    "hopper": "triton",
    "blackwell": "trtllm",
    "blackwell-ultra": "trtllm",
    "cdna2": "rocm",
    "cdna3": "rocm",
    "cdna4": "rocm",
}


def expert_kernel(architecture: str | None, version: str | None = None) -> Kernel:
    """Return the kernel that a version chooses on a generation of cards; that of Hopper where none is named.

    Source: vLLM 0.11, ``Mxfp4MoEMethod.create_weights``; 0.19 and 0.33,
    ``fused_moe/oracle/mxfp4.py: mxfp4_round_up_hidden_size_and_intermediate_size`` and its list of backends.

    Raises:
        InputError: not a version.

    >>> expert_kernel("ampere").inner, expert_kernel("hopper").inner, expert_kernel("blackwell", "0.19.0").inner
    (128, 64, 256)
    """
    name = _BY_ARCHITECTURE.get(architecture or "hopper", "marlin")
    if name == "trtllm" and known_release(version or VERSION) < _FIRST_NARROW:
        name = "trtllm-wide"
    return KERNELS[name]


def padded_expert_bytes(mixture: Mixture, hidden: int, kernel: Kernel, *, slices: int = 1) -> int:
    """Return the bytes of one expert on a rank that holds one of ``slices`` parts of it, biases in 16 bits included.

    Args:
        mixture: the experts.
        hidden: hidden size of the model.
        kernel: how sides are rounded.
        slices: ranks that share an expert.

    >>> from kvcalc.core.model import Mixture
    >>> experts = Mixture(experts=128, experts_per_token=4, width=2880, expert_bias=True)
    >>> [padded_expert_bytes(experts, 2880, KERNELS[name]) for name in ("marlin", "triton")]
    [14431744, 14065920]
    """
    inner = _up(ceil_div(mixture.width, slices), kernel.inner)
    outer = _up(mixture.inputs or hidden, kernel.hidden)
    rows = mixture.branches * inner
    values = (rows * _up(outer, kernel.values) + outer * _up(inner, kernel.values)) // 2
    scales = rows * ceil_div(outer, _BLOCK) + outer * ceil_div(inner, _BLOCK)
    biases = 2 * (rows + outer) if mixture.expert_bias else 0
    return values + scales + biases


def _up(size: int, step: int) -> int:
    return ceil_div(size, step) * step
