"""A layer's small operations, in variants: plain torch, torch's flash attention, and fused kernels of this package.

All variants compute the same; they differ in how many kernels they start, and in what they write between them.
"""

from __future__ import annotations

import math
import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812  torch's own convention
from torch.nn.attention import SDPBackend, sdpa_kernel

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from kvcalc.measure.attention import HeadsCache, Pass, Reading
    from kvcalc.measure.library import Device

__all__ = ["KERNELS", "Plain", "Sdpa", "attend", "causal_mask", "heads_apart", "kernels_of", "normalised"]

KERNELS = ("plain", "sdpa", "fused")

_MIN_SQUARE = 1e-6
# Flash attention in torch takes no wider heads, and on a GPU no older generation than this.
_FLASH_WIDTH, _FLASH_CAPABILITY = 256, (8, 0)


def normalised(vectors: Any, weight: Any, bias: Any = None) -> Any:
    """Scale vectors to a mean square of one (RMSNorm), or with a bias centre them first (LayerNorm).

    A weight shorter than the vectors is for pieces of them, each normalised on its own.
    """
    if weight is None:
        return F.layer_norm(vectors, vectors.shape[-1:])
    if bias is not None:
        return F.layer_norm(vectors, vectors.shape[-1:], weight, bias, _MIN_SQUARE)
    width = weight.shape[0]
    if width == vectors.shape[-1]:
        return F.rms_norm(vectors, (width,), weight, _MIN_SQUARE)
    pieces = vectors.unflatten(-1, (-1, width))
    return F.rms_norm(pieces, (width,), weight, _MIN_SQUARE).flatten(-2)


def attend(queries: Any, keys: Any, values: Any, mask: Any = None, *, scale: float, sinks: Any = None) -> Any:
    """Read with queries from a cache, the query heads of one KV head taken as rows of one matrix.

    The cache is so read once for each KV head, not once for each query head.

    Args:
        queries: sequences x heads x tokens x width.
        keys: sequences x KV heads x entries x width.
        values: sequences x KV heads x entries x value width.
        mask: tokens x entries, true where a token sees an entry; none where all do.
        scale: factor of the scores.
        sinks: for each head a score that takes part in the softmax and reads nothing, where a model has them.

    Returns:
        sequences x tokens x (heads * value width).
    """
    sequences, heads, tokens, width = queries.shape
    kv_heads = keys.shape[1]
    rows = (queries * scale).reshape(sequences, kv_heads, heads // kv_heads * tokens, width)
    scores = torch.matmul(rows, keys.transpose(-1, -2)).float()
    if mask is not None:
        apart = scores.unflatten(2, (-1, tokens))
        scores = apart.masked_fill(~mask, -math.inf).flatten(2, 3)
    if sinks is not None:
        beside = sinks.float().view(1, kv_heads, -1, 1).repeat_interleave(tokens, dim=2)
        scores = torch.cat((scores, beside.expand(sequences, -1, -1, -1)), dim=-1)
    shares = torch.softmax(scores, dim=-1)[..., : keys.shape[2]]
    read = torch.matmul(shares.to(values.dtype), values)
    return read.reshape(sequences, heads, tokens, -1).transpose(1, 2).flatten(2)


def causal_mask(queries: Any, entries: Any, *, window: int | None = None, chunk: int | None = None) -> Any:
    """Return the entries that each query sees, from their positions: none later, none outside its window or chunk."""
    seen = entries[None, :] <= queries[:, None]
    if window is not None:
        seen &= entries[None, :] > queries[:, None] - window
    if chunk is not None:
        seen &= entries[None, :] // chunk == queries[:, None] // chunk
    return seen


def heads_apart(vectors: Any, heads: int) -> Any:
    """View sequences x tokens x (heads * width) as sequences x heads x tokens x width."""
    return vectors.unflatten(-1, (heads, -1)).transpose(1, 2)


class Plain:
    """The operations one after another, each a call of torch: the reference of the others."""

    name = "plain"

    def add_norm(self, hidden: Any, update: Any, weight: Any, bias: Any) -> tuple[Any, Any]:
        """Add an update to the hidden states; give back both the sum and the sum normalised."""
        hidden = hidden + update
        return hidden, normalised(hidden, weight, bias)

    def gated(self, projected: Any) -> Any:
        """Let one half of the vectors gate the other: SiLU(gate) * up."""
        gate, up = projected.chunk(2, dim=-1)
        return F.silu(gate) * up

    def store(self, queries: Any, keys: Any, values: Any, cache: HeadsCache, run: Pass) -> Any:
        """Turn queries and keys by their positions, write keys and values into the cache.

        Args:
            queries: sequences x tokens x (heads * width).
            keys: sequences x tokens x (KV heads * width).
            values: sequences x tokens x (KV heads * value width).
            cache: takes the entries.
            run: the pass; of one token, or of a cache with its position on the device.

        Returns:
            queries as sequences x heads x tokens x width.
        """
        kv_heads, places, width = cache.keys.shape[1:]
        new_keys, new_values = run.rotate(heads_apart(keys, kv_heads)), heads_apart(values, kv_heads)
        if run.on_device:
            slots = run.slots(places)
            cache.keys.index_copy_(2, slots, new_keys)
            cache.values.index_copy_(2, slots, new_values)
        else:
            slot = run.start % places
            cache.keys[:, :, slot], cache.values[:, :, slot] = new_keys[:, :, 0], new_values[:, :, 0]
        return run.rotate(heads_apart(queries, queries.shape[-1] // width))

    def read(self, queries: Any, cache: HeadsCache, run: Pass, reading: Reading) -> Any:
        """Attend to the entries of a cache that the new tokens were stored in already; see `attend`."""
        places = cache.keys.shape[2]
        if run.on_device:
            mask = run.mask(places, window=reading.window, chunk=reading.chunk)
            return attend(queries, cache.keys, cache.values, mask, scale=reading.scale, sinks=reading.sinks)
        entries = run.start % places + 1 if reading.chunk else min(run.end, places)
        keys, values = cache.keys[:, :, :entries], cache.values[:, :, :entries]
        return self._read_all(queries, keys, values, reading)

    def _read_all(self, queries: Any, keys: Any, values: Any, reading: Reading) -> Any:
        return attend(queries, keys, values, scale=reading.scale, sinks=reading.sinks)

    def read_prompt(self, queries: Any, keys: Any, values: Any, mask: Any, reading: Reading) -> Any:
        """Attend from several new tokens to the entries that a mask lets them see."""
        return attend(queries, keys, values, mask, scale=reading.scale, sinks=reading.sinks)


class Sdpa(Plain):
    """Attention by torch's flash attention, which splits a long cache over a GPU; the rest as in the plain variant.

    Flash attention takes no mask: a pass whose position stands on the device is read as in the plain variant.
    """

    name = "sdpa"

    def _read_all(self, queries: Any, keys: Any, values: Any, reading: Reading) -> Any:
        if not _has_flash(queries, values, reading):
            return super()._read_all(queries, keys, values, reading)
        return _flash(queries, keys, values, reading, causal=False)

    def read_prompt(self, queries: Any, keys: Any, values: Any, mask: Any, reading: Reading) -> Any:
        """Attend to a prompt that begins the sequence without a mask as large as its square."""
        whole = queries.shape[2] == keys.shape[2] and reading.window is None and reading.chunk is None
        if not whole or not _has_flash(queries, values, reading):
            return super().read_prompt(queries, keys, values, mask, reading)
        return _flash(queries, keys, values, reading, causal=True)


def _has_flash(queries: Any, values: Any, reading: Reading) -> bool:
    width = queries.shape[-1]
    if reading.sinks is not None or values.shape[-1] != width or width > _FLASH_WIDTH:
        return False
    if reading.device.kind != "cuda":
        return True
    capable: bool = torch.cuda.get_device_capability() >= _FLASH_CAPABILITY
    return capable and queries.dtype != torch.float32


def _flash(queries: Any, keys: Any, values: Any, reading: Reading, *, causal: bool) -> Any:
    """Torch's flash attention and no other: its fall-back would be a kernel for each step of the formula.

    On a GPU its own grouping of heads is what splits the cache over the processors; a CPU's reads the cache once for
    each query head unless those of a KV head are rows.
    """
    sequences, heads, tokens, _ = queries.shape
    rows = not causal and reading.device.kind == "cpu"
    if rows:
        queries = queries.reshape(sequences, keys.shape[1], -1, queries.shape[-1])
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        read = F.scaled_dot_product_attention(
            queries, keys, values, is_causal=causal, scale=reading.scale, enable_gqa=queries.shape[1] != keys.shape[1]
        )
    return read.reshape(sequences, heads, tokens, -1).transpose(1, 2).flatten(2)


def kernels_of(name: str, device: Device) -> Plain:
    """The variant of that name: ``plain``, ``sdpa`` or ``fused``.

    Raises:
        InputError: no such variant, or Triton, which the fused one is written in, does not run here.
    """
    if name not in KERNELS:
        raise InputError(f"{name!r} is no variant of the loop's kernels", hint=", ".join(KERNELS))
    if name == "plain":
        return Plain()
    if name == "sdpa":
        return Sdpa()
    if find_spec("triton") is None:
        raise InputError("the fused kernels are written in Triton, which is not installed", hint="pip install triton")
    if device.kind != "cuda" and not os.environ.get("TRITON_INTERPRET"):
        raise InputError("the fused kernels need a GPU", hint="plain and sdpa run on a CPU")
    from kvcalc.measure.fused import Fused

    return Fused()
