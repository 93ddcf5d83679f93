"""The command that starts llama.cpp's server with a placement."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kvcalc.engines.llama_cpp.command import server_words
from kvcalc.engines.llama_cpp.overrides import HOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.engines.llama_cpp.overrides import Override
    from kvcalc.engines.llama_cpp.placement import Placement, PlacementOptions
    from kvcalc.plan.local.setup import LocalSetup

__all__ = ["buffer_name", "override_texts", "server_command"]


def server_command(setup: LocalSetup, options: PlacementOptions, placement: Placement) -> str:
    """Return the line that starts ``llama-server`` so; what equals its defaults is left out.

    The numbers of sequences and of layers are always said: its own depend on the machine.

    Source: llama.cpp commit 0c1e57098bba, ``common/arg.cpp``.

    Args:
        setup: model, context and machine.
        options: the options of the placement.
        placement: the placement.
    """
    words = [*server_words(setup.file, setup.context), *_placement(setup, options, placement)]
    if setup.draft is not None:
        words += ["-md", setup.draft.file]
        words += [] if setup.draft.tokens is None else ["--spec-draft-n-max", str(setup.draft.tokens)]
    if setup.projector:
        words += ["--mmproj", setup.projector]
    return shlex.join(words)


def _placement(setup: LocalSetup, options: PlacementOptions, placement: Placement) -> Iterator[str]:
    if not setup.devices:
        yield from ("-dev", "none")
        return
    yield from ("-ngl", str(placement.gpu_layers))
    if options.tensor_split:
        yield from ("-ts", ",".join(f"{share:g}" for share in options.tensor_split))
    if options.split_mode != "layer":
        yield from ("-sm", options.split_mode, "-mg", str(options.main_gpu))
    for text in override_texts(setup, options.overrides):
        yield from ("-ot", text)
    if options.cpu_moe:
        yield "-cmoe"
    if options.n_cpu_moe:
        yield from ("-ncmoe", str(options.n_cpu_moe))
    if not options.kv_offload:
        yield "-nkvo"
    if not options.op_offload:
        yield "--no-op-offload"


def override_texts(setup: LocalSetup, overrides: Sequence[Override]) -> tuple[str, ...]:
    """Return overrides as llama.cpp takes them: ``pattern=CUDA0``."""
    return tuple(f"{override.pattern}={_buffer(setup, override.device)}" for override in overrides)


def _buffer(setup: LocalSetup, device: int | None) -> str:
    return "CPU" if device is HOST else buffer_name(setup, device)


def buffer_name(setup: LocalSetup, index: int) -> str:
    """Return llama.cpp's name of a device's buffers: its back end's, numbered."""
    backend = setup.devices[index].backend
    earlier = [device for device in setup.devices[:index] if device.backend.device == backend.device]
    return f"{backend.device}{len(earlier)}"
