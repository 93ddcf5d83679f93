"""Levers: their changes to a model, its formats or the way its cache is kept.

A change takes a layout and a value and returns another layout. It raises `InputError` where the model has nothing that
it could act on, so that a lever never claims a saving it does not make.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Attention, Block, Chunked, Cross, Full, Indexer, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.cost.parameters import block_matrices

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.model import Mixer, ModelProfile
    from kvcalc.plan.levers.layout import Layout

__all__ = [
    "Offload",
    "block_size",
    "cross_layer",
    "format_of",
    "hierarchy",
    "keep_at_most",
    "kv_heads",
    "latent",
    "offload",
    "recurrent",
    "shared_prefix",
    "top_k",
]

_DEFAULT_KV_HEADS = 8
# DeepSeek-V2, arXiv 2405.04434, section 2.1.4: the latent vector is 4 heads wide, the rotary key half a head.
_LATENT_HEADS = 4
# DeepSeek-V3.2-Exp: 64 index heads over one key of 128 elements for each token.
_INDEX_HEADS, _INDEX_DIM = 64, 128
_NOTHING_GROWS = "no layer keeps a cache that grows"


def _map_mixers(layout: Layout, change: Callable[[Mixer, int], Mixer], nothing: str) -> Layout:
    """Change each mixer of a model and of its streams.

    Args:
        layout: the layout.
        change: takes a mixer and the hidden size; returns it as it is where the lever does not apply.
        nothing: what to say where no mixer changes.
    """

    def changed(model: ModelProfile) -> ModelProfile:
        new = {
            block: replace(block, mixers=tuple(change(mixer, model.hidden_size) for mixer in block.mixers))
            for block in model.block_counts
        }
        return replace(model, blocks=tuple(new[block] for block in model.blocks))

    after = layout.map_model(changed)
    if after.model.blocks == layout.model.blocks:
        raise InputError(f"{layout.model.name}: {nothing}")
    return after


def _own_heads(mixer: Mixer) -> bool:
    """Whether a mixer is self-attention with stored heads, or reads those of an earlier layer."""
    return isinstance(mixer, Attention) and not isinstance(mixer, Cross)


def kv_heads(layout: Layout, heads: int | None) -> Layout:
    """Return the layout with at most so many key-value heads in each layer; 8 where none are asked for."""

    def fewer(mixer: Mixer, hidden: int) -> Mixer:
        del hidden
        if not isinstance(mixer, Attention) or not _own_heads(mixer) or mixer.kv_heads <= wanted:
            return mixer
        shared = heads or max(count for count in range(1, wanted + 1) if not mixer.heads % count)
        if mixer.heads % shared:
            hint = "each key-value head serves the same number of query heads"
            raise InputError(f"{shared} key-value heads do not divide the {mixer.heads} heads of a layer", hint=hint)
        return replace(mixer, kv_heads=shared)

    wanted = heads or _DEFAULT_KV_HEADS
    return _map_mixers(layout, fewer, f"no layer has more than {wanted} key-value heads")


def latent(layout: Layout, rank: int | None) -> Layout:
    """Return the layout with latent attention in place of full attention; a rank of 4 heads where none is asked for."""

    def compressed(mixer: Mixer, hidden: int) -> Mixer:
        del hidden
        if not isinstance(mixer, Full) or mixer.indexer is not None:
            return mixer
        return Latent(
            heads=mixer.heads,
            kv_lora_rank=rank or _LATENT_HEADS * mixer.head_dim,
            rope_dim=max(1, mixer.head_dim // 2),
            nope_dim=mixer.head_dim,
            value_head_dim=mixer.value_dim,
            output_gate=mixer.heads * mixer.output_gate,
        )

    return _map_mixers(layout, compressed, "no layer is plain full attention")


def format_of(layout: Layout, name: str) -> Layout:
    """Return the layout with keys and values in a format."""
    wanted = parse_format(name)
    formats = replace(layout.formats, key=wanted, value=wanted)
    if formats == layout.formats:
        raise InputError(f"{layout.model.name}: the cache is kept in {wanted.name} already")
    return replace(_growing(layout), formats=formats)


def _growing(layout: Layout) -> Layout:
    """Return a layout that keeps something for each token, and refuse any other."""
    if not layout.grows:
        raise InputError(f"{layout.model.name}: {_NOTHING_GROWS}")
    return layout


def keep_at_most(layout: Layout, entries: int) -> Layout:
    """Return the layout with so many entries kept by the layers that would keep more."""
    if not layout.exceeds(entries):
        raise InputError(f"{layout.model.name}: no layer keeps more than {entries:,} tokens")
    return layout.keep_at_most(entries)


def top_k(layout: Layout, tokens: int) -> Layout:
    """Return the layout with an indexer that chooses the tokens read: all are held, with an index key beside each."""

    def indexed(mixer: Mixer, hidden: int) -> Mixer:
        del hidden
        if not isinstance(mixer, Full | Latent) or mixer.indexer is not None:
            return mixer
        return replace(mixer, indexer=Indexer(heads=_INDEX_HEADS, head_dim=_INDEX_DIM, top_k=tokens))

    return _map_mixers(layout, indexed, "no layer attends to everything")


def block_size(layout: Layout, tokens: int) -> Layout:
    """Return the layout with memory handed out in blocks of so many tokens."""
    return replace(_growing(layout), block_tokens=tokens)


def shared_prefix(layout: Layout, tokens: int) -> Layout:
    """Return the layout with so many first tokens kept once for all sequences."""
    return replace(_growing(layout), prefix_tokens=tokens)


def cross_layer(layout: Layout, layers: int) -> Layout:
    """Return the layout in which each run of ``layers`` alike attention layers keeps the first one's cache only."""
    if layers < 2:  # noqa: PLR2004  one layer shares with none
        raise InputError(f"cross-layer sharing is of 2 layers or more, not {layers}")

    def follower(mixer: Mixer) -> Mixer:
        kept = {name: getattr(mixer, name) for name in Attention.__dataclass_fields__}
        return Shared(**kept, window=mixer.span)

    def shared(model: ModelProfile) -> ModelProfile:
        seen: dict[Mixer, int] = {}
        blocks = []
        for block in model.blocks:
            mixers: list[Mixer] = []
            for mixer in block.mixers:
                index = seen[mixer] = seen.get(mixer, -1) + 1
                plain = isinstance(mixer, Full | Sliding | Chunked) and mixer.indexer is None
                mixers.append(follower(mixer) if plain and index % layers else mixer)
            blocks.append(replace(block, mixers=tuple(mixers)))
        return replace(model, blocks=tuple(blocks))

    after = layout.map_model(shared)
    if after.model.blocks == layout.model.blocks:
        raise InputError(f"{layout.model.name}: no two layers are plain attention alike")
    return after


@dataclass(frozen=True, slots=True)
class Offload:
    """A share of the cache that is kept in the host's memory."""

    share: float


def offload(layout: Layout, value: Offload) -> Layout:
    """Return the layout with a share of the cache in the host's memory."""
    return replace(layout, host_share=value.share)


def recurrent(layout: Layout, _: None = None) -> Layout:
    """Return the layout with a recurrent state in place of every cache that grows: a matrix a head, in 32 bits.

    The state is that of linear attention (Katharopoulos et al. 2020, arXiv 2006.16236): head_dim x value_head_dim. The
    projections keep their size.
    """

    def state(mixer: Mixer, hidden: int) -> Mixer:
        if not isinstance(mixer, Full | Sliding | Chunked | Latent):
            return mixer
        key = mixer.nope_dim + mixer.rope_dim if isinstance(mixer, Latent) else mixer.head_dim
        value = mixer.value_head_dim if isinstance(mixer, Latent) else mixer.value_dim
        matrices = block_matrices(Block(mixers=(mixer,)), hidden)
        return State(
            variant="linear",
            heads=mixer.heads,
            key_dim=key,
            value_dim=value,
            recurrent_format="fp32",
            matrix_parameters=sum(matrix.elements for matrix in matrices),
        )

    return _map_mixers(layout, state, _NOTHING_GROWS)


def hierarchy(
    layout: Layout, chunks: tuple[int, ...], *, recursive: bool = False, shared_depth: bool = False
) -> Layout:
    """Return the layout of a hierarchy: at each level one state for each chunk of the level below.

    Level l keeps and reads T / (C_1 … C_l) entries, and takes a step once in so many tokens. Its local decoder spans at
    most a chunk and as many vectors that condition it, and begins anew with the next chunk. Recursive generation keeps
    the encoder of the top level only.

    Args:
        layout: a model of self-attention.
        chunks: entries of a level that the next one makes one of, from the tokens up.
        recursive: whether only the coarsest stream is carried on.
        shared_depth: whether the model's layers are shared out evenly over encoders and decoders; else each of these is
            as deep as the model.

    Source: PHOTON, arXiv 2512.20687 (hierarchical and recursive generation).
    """
    if not layout.own_weights:
        raise InputError(f"{layout.model.name}: this is a hierarchy already")
    mixers = layout.model.mixers
    if not mixers or not all(isinstance(mixer, Full | Sliding | Chunked | Latent | Shared) for mixer in mixers):
        raise InputError(f"{layout.model.name}: a hierarchy is described for self-attention alone")
    levels, streams = len(chunks), []
    for stream in layout.streams:
        parts = _shares(stream.model, 2 * levels) if shared_depth else [stream.model] * (2 * levels)
        for level, chunk in enumerate(chunks):
            below = stream.every * prod(chunks[:level])
            max_entries = _smaller(stream.most, 2 * chunk)
            local = replace(stream, model=parts[levels + level], every=below, most=max_entries, chunk=chunk)
            coarse = replace(stream, model=parts[level], every=below * chunk)
            streams += [local] if recursive and level < levels - 1 else [local, coarse]
    return replace(layout, streams=tuple(streams), own_weights=False)


def _smaller(one: int | None, other: int) -> int:
    return other if one is None else min(one, other)


def _shares(model: ModelProfile, parts: int) -> list[ModelProfile]:
    """Return the layers in so many runs of equal length."""
    size = max(1, model.layers // parts)
    return [replace(model, blocks=model.blocks[size * part : size * (part + 1)]) for part in range(parts)]
