"""Workspaces that cuBLAS holds for torch: one for each stream, taken at its first product and never given back."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from kvcalc.core.units import KIB, MIB
from kvcalc.measure.clock import side_stream
from kvcalc.measure.library import require_torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.measure.library import Device

__all__ = ["taken_workspaces", "workspace_bytes"]

_CONFIG, _LT_CONFIG = "CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"
_SIDE = 16


def workspace_bytes(architecture: str, environment: Mapping[str, str] = os.environ) -> int:
    """Return the bytes of a stream's workspaces, of cuBLAS and of cuBLASLt, as torch chooses them.

    Args:
        architecture: the card's generation, ``sm_90``.
        environment: variables that may choose other sizes.

    >>> from kvcalc.core.units import MIB
    >>> [workspace_bytes(name, {}) / MIB for name in ("sm_90", "sm_100", "sm_86")]
    [33.0, 9.125, 9.125]
    >>> workspace_bytes("sm_90", {"CUBLAS_WORKSPACE_CONFIG": ":4096:2:16:8"}) / MIB
    9.125

    Source: PyTorch, aten/src/ATen/cuda/CublasHandlePool.cpp, parseChosenWorkspaceSize (pairs of a size in KiB and a
    count, 32 MiB on sm_90 alone) and parseCUDABlasLtWorkspaceSize (KiB), read at commit 26a3905.
    """
    pairs = re.findall(r":(\d+):(\d+)", environment.get(_CONFIG, ""))
    default = 32 * MIB if architecture == "sm_90" else 8 * MIB + 128 * KIB
    chosen = sum(int(size) * int(count) for size, count in pairs) * KIB if pairs else default
    written = environment.get(_LT_CONFIG, "")
    return chosen + (int(written) * KIB if written.isdigit() else MIB)


def taken_workspaces(device: Device) -> int | None:
    """Make torch take its workspaces now, and return what this asked of the allocator, in bytes; none on a CPU.

    A step that is the first to multiply would else be charged with them, and a graph that is the first would keep them
    in its own memory. Both streams are used: the one that steps run on, and the one that they are recorded on.
    """
    before = device.requested_bytes()
    if before is None:
        return None
    torch = require_torch()
    square = torch.zeros(_SIDE, _SIDE, device=device.kind)
    linear = torch.nn.functional.linear
    for stream in (torch.cuda.current_stream(), side_stream()):
        with torch.cuda.stream(stream):
            linear(square, square)
            linear(square, square, square[0])
    device.wait()
    del square
    return (device.requested_bytes() or 0) - before
