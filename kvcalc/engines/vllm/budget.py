"""Memory that vLLM takes off its share of a GPU beside the weights, version by version.

It runs its largest pass once, samples from its most sequences, and takes the peak off its share, with what CUDA, NCCL
and kernels allocated outside of PyTorch and, from 0.20 on, an estimate of the graphs it will capture. Each term is an
interval: the form follows from the tensors, the ends were fitted to start-up logs. ``tests/tools/fit_budget.py`` holds
them against logs that they were not fitted to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Latent, State
from kvcalc.core.records import dataclass
from kvcalc.core.units import GIB, MIB, ceil_div
from kvcalc.engines.terms import NOTHING, Interval, pass_tensors
from kvcalc.engines.vllm.releases import FIRST_WITH_GRAPHS, VERSION, known_release

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel

__all__ = ["FITTED", "FittedEnds", "activation_peak", "graph_memory", "outside_memory"]

# From this release on some models, later all, run on the second model runner, which may estimate no graphs.
_FIRST_WITH_V2_RUNNER_OF_SOME = (0, 25)
# Sizes of a pass for which graphs are captured: 1, 2, 4, then every 8 up to 256, every 16 up to 512.
_CAPTURED_STEP, _WIDE_STEP, _WIDE_FROM, _MAX_CAPTURED = 8, 16, 256, 512


_ByRelease = tuple[tuple[tuple[int, int], tuple[float, float]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedEnds:
    """The ends of the terms: least and most, where they changed with the first release that has them.

    Args:
        sampled_copies: copies of the logits, in 32 bits, at sampling's peak. Up to 0.16 top-k and top-p sorted them
            (5.64 GiB for Qwen3-14B at 0.16.0, 2.23 at 0.17.0); the second model runner samples in one kernel, and ran
            dense models before it ran all.
        hidden_copies: copies of the hidden states beside the widest MLP's tensors.
        buffer_bytes: attention's and quantisation's buffers.
        image_bytes: the profiling run of an image encoder, which precedes the pass (1.56 GiB for a Qwen3.6-35B-A3B).
        outside_bytes: what CUDA, libraries and kernels allocate outside of PyTorch in one process.
        linked_bytes: the same of NCCL and custom all-reduce, with tensor-parallel ranks.
        rocm_bytes: what ROCm's libraries may take beyond CUDA's (one log: 0.6 GiB more, gemma-3-27b on an MI300X).
        state_bytes: kernels and workspaces of recurrent layers (0.18: 1.8 to 3.8 GiB for a Qwen3.5 of 4B, with towers).
        graph_layer_bytes: one captured graph's estimate, a layer: least, most, most with latent attention, whose layers
            launch more kernels.
        first_graph_bytes: the estimate of the first graph.
    """

    sampled_copies: _ByRelease = (
        ((0, 0), (0.0, 9.8)),
        ((0, 8), (9.3, 9.8)),
        ((0, 17), (3.5, 4.2)),
        (_FIRST_WITH_V2_RUNNER_OF_SOME, (1.3, 4.2)),
    )
    hidden_copies: tuple[float, float] = (2.0, 8.0)
    buffer_bytes: int = 320 * MIB
    image_bytes: int = 2 * GIB
    outside_bytes: _ByRelease = (
        ((0, 0), (0, 2 * GIB)),
        ((0, 8), (0, 384 * MIB)),
        ((0, 18), (32 * MIB, 640 * MIB)),
        ((0, 20), (32 * MIB, 704 * MIB)),
    )
    linked_bytes: _ByRelease = (
        ((0, 0), (128 * MIB, 2 * GIB)),
        ((0, 18), (GIB // 2, 2 * GIB)),
    )
    rocm_bytes: int = 2 * GIB
    state_bytes: int = 2 * GIB
    graph_layer_bytes: tuple[float, float, float] = (0.2 * MIB, 0.3 * MIB, 0.75 * MIB)
    first_graph_bytes: int = 256 * MIB


FITTED = FittedEnds()


def activation_peak(
    model: ModelProfile,
    formats: Formats,
    *,
    tokens: int,
    sequences: int,
    parallel: Parallel,
    version: str = VERSION,
    ends: FittedEnds = FITTED,
) -> Interval:
    """Return the peak that vLLM measures: the largest of its largest pass, of sampling and of an image, and workspaces.

    Sampling holds several copies of the logits of ``sequences`` rows beside the hidden states; a pass holds the widest
    MLP's tensors and several hidden states. Workspaces of routed experts stay allocated.

    Args:
        model: the model.
        formats: its formats.
        tokens: tokens of the largest pass.
        sequences: sequences of the largest pass.
        parallel: how it is spread.
        version: the engine's version.
        ends: ends of the interval, as fitted.

    Raises:
        InputError: not a version.
    """
    release = known_release(version)
    tensors = pass_tensors(model, formats, tokens=tokens, sequences=sequences, tensor=parallel.tensor)
    copies = _since(ends.sampled_copies, release)
    sampling = [int(count * tensors.logits) + tensors.hidden for count in copies]
    forward = [tensors.mlp + int(count * tensors.hidden) for count in ends.hidden_copies]
    # stages before the last one do not sample
    low = forward[0] if parallel.pipeline > 1 else max(forward[0], sampling[0])
    image = ends.image_bytes if any(tower.part == "vision" for tower in model.towers) else 0
    return Interval(least=low, most=max(forward[1], sampling[1], image) + tensors.experts + ends.buffer_bytes)


def outside_memory(
    model: ModelProfile, *, parallel: Parallel, version: str = VERSION, rocm: bool = False, ends: FittedEnds = FITTED
) -> Interval:
    """Return the bytes allocated outside of PyTorch: libraries, kernels, and the buffers between ranks."""
    release = known_release(version)
    terms = [_since(ends.outside_bytes, release)]
    if parallel.tensor > 1:
        terms.append(_since(ends.linked_bytes, release))
    if model.has(State):
        terms.append((0, ends.state_bytes))
    if rocm:
        terms.append((0, ends.rocm_bytes))
    return Interval(least=int(sum(low for low, _ in terms)), most=int(sum(high for _, high in terms)))


def graph_memory(
    model: ModelProfile,
    *,
    sequences: int,
    parallel: Parallel,
    version: str = VERSION,
    rocm: bool = False,
    ends: FittedEnds = FITTED,
) -> Interval:
    """Return the estimate for captured graphs that vLLM takes off its share: none before 0.20.

    A graph is captured for each of some sizes of a pass twice: of the parts between attention, and whole. The first
    versions that estimated them did not on ROCm.

    >>> from kvcalc.core.model import Block, ModelProfile
    >>> from kvcalc.core.workload import Parallel
    >>> model = ModelProfile(name="x", architecture="llama", hidden_size=1, context_limit=None, blocks=(Block(),) * 28,
    ...     embeddings=(), head=None)
    >>> graph_memory(model, sequences=128, parallel=Parallel(), version="0.19").most
    0
    >>> graph_memory(model, sequences=128, parallel=Parallel(), version="0.22").least // MIB  # 54 graphs of 28 layers
    302
    """
    release = known_release(version)
    if release < FIRST_WITH_GRAPHS:
        return NOTHING
    graphs = _captured(min(2 * sequences, _MAX_CAPTURED)) + _captured(min(sequences, _MAX_CAPTURED))
    low, high, latent = (
        int(size * graphs * ceil_div(model.layers, parallel.pipeline)) for size in ends.graph_layer_bytes
    )
    return Interval(
        least=0 if rocm or release >= _FIRST_WITH_V2_RUNNER_OF_SOME else low,
        most=ends.first_graph_bytes + (latent if model.has(Latent) else high),
    )


def _captured(largest: int) -> int:
    """Sizes up to the largest for which a graph is captured."""
    narrow = range(_CAPTURED_STEP, min(largest, _WIDE_FROM) + 1, _CAPTURED_STEP)
    wide = range(_WIDE_FROM + _WIDE_STEP, largest + 1, _WIDE_STEP)
    return sum(size <= largest for size in (1, 2, 4)) + len(narrow) + len(wide)


def _since(table: _ByRelease, release: tuple[int, int]) -> tuple[float, float]:
    """Return the entry of the newest release that is not newer than this one."""
    return next(value for first, value in reversed(table) if release >= first)
