"""A call recorded once and replayed: without the host's time between kernels, on a GPU."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.measure.library import Device

__all__ = ["recorded"]

_WARM_UPS = 3


def recorded(call: Callable[[], object], device: Device) -> tuple[Callable[[], object], bool]:
    """Return a call that replays what ``call`` does, and whether it does so from a graph.

    A replay runs the same kernels on the same memory: of a decode step, the step at the same position. On a CPU, and
    where the call waits for the host in its middle, it is the call itself.
    """
    if device.kind != "cuda":
        return call, False
    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(_WARM_UPS):
            call()
    torch.cuda.current_stream().wait_stream(beside)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            call()
    except RuntimeError:
        torch.cuda.synchronize()
        return call, False
    return partial(_replay, graph, call), True


def _replay(graph: Any, call: Callable[[], object]) -> None:
    """Replay a graph; the call keeps what its kernels read alive."""
    del call
    graph.replay()
