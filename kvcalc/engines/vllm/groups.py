"""vLLM's groups of layers that share blocks, and the blocks that one request needs of each."""

from __future__ import annotations

from dataclasses import replace
from math import gcd, lcm
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.records import dataclass
from kvcalc.core.units import ceil_div
from kvcalc.cost.sharding import stage_blocks
from kvcalc.engines.vllm.packing import packed_groups
from kvcalc.engines.vllm.pages import not_modelled
from kvcalc.engines.vllm.specs import configured_block_size, draft_specs, layer_specs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.vllm.options import VllmOptions
    from kvcalc.engines.vllm.pages import Kind, Spec

__all__ = ["Group", "Layout", "layout", "stage_layouts"]

# Kinds of which ranks of decode context parallelism keep a share of the tokens each.
_SHARED_TOKENS = ("full", "latent", "index")


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Layers that share one block table.

    Args:
        kind: what its layers keep; where an indexer's keys stand beside latent attention, ``latent``.
        layers: layers (an indexer counts as one of its own).
        block_size: tokens of a block.
        span_tokens: tokens that a block stands for over all ranks that share a request's tokens.
        page_bytes: bytes of the largest page of one layer.
        bytes_per_block: bytes of all its layers' pages in a block.
        needed_blocks: blocks of one request of the longest length.
        reach: tokens of the window or chunk, or of the encoder's output.
        stride: bytes that a block must be a multiple of.
    """

    kind: Kind
    layers: int
    block_size: int
    span_tokens: int
    page_bytes: int
    bytes_per_block: int
    needed_blocks: int
    reach: int = 0
    stride: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Blocks of one rank's cache.

    Args:
        groups: the groups; all draw blocks from one pool.
        max_model_len: tokens of the longest request, for which ``needed_blocks`` are counted.
        configured_block_size: tokens of a block after the engine checked its options, before it formed groups.
        bytes_per_block: bytes of a block; groups with fewer layers waste the rest.
        prefix_caching: whether blocks are kept for later requests.
    """

    groups: tuple[Group, ...]
    max_model_len: int
    configured_block_size: int
    bytes_per_block: int
    prefix_caching: bool

    @property
    def block_size(self) -> int:
        """Tokens of the smallest group's block, as the engine prints it."""
        return min(group.block_size for group in self._of_tokens)

    @property
    def scheduler_block_size(self) -> int:
        """Tokens that are whole blocks of every group."""
        return lcm(*(group.span_tokens for group in self._of_tokens))

    @property
    def hash_block_size(self) -> int:
        """Tokens that are hashed together for the prefix cache."""
        if not self.prefix_caching:
            return self.scheduler_block_size
        return gcd(*(group.span_tokens for group in self._of_tokens))

    @property
    def _of_tokens(self) -> tuple[Group, ...]:
        """The groups whose blocks stand for tokens of a request: all but rings, which hold its last few."""
        return tuple(group for group in self.groups if group.kind != "ring")

    @property
    def needed_blocks(self) -> int:
        """Blocks of one request of the longest length, over all groups."""
        return sum(group.needed_blocks for group in self.groups)

    @property
    def needed_bytes(self) -> int:
        """Bytes of the blocks of one request of the longest length."""
        return self.needed_blocks * self.bytes_per_block

    @property
    def start_bytes(self) -> int:
        """Bytes with which the engine starts: one request of the longest length beside the null block."""
        return self.needed_bytes + self.bytes_per_block


def layout(
    model: ModelProfile,
    formats: Formats,
    options: VllmOptions,
    *,
    tensor: int = 1,
    blocks: Sequence[Block] | None = None,
    drafts: bool = True,
) -> Layout:
    """Lay out the cache of one tensor-parallel rank as vLLM does.

    Args:
        model: the model.
        formats: formats of keys, values and states; a key format of bf16 is the engine's ``auto``.
        options: the engine's options.
        tensor: tensor-parallel ranks.
        blocks: the layers of one pipeline stage; all layers where left out.
        drafts: whether the layers that draft are on that stage: they are on the last.

    Raises:
        UnsupportedError: a layer whose cache in vLLM is not modelled, or pages that the engine cannot make equal.

    Source: vLLM 0.32, kv_cache_utils.get_kv_cache_groups (layers outermost), get_kv_cache_config_from_groups.

    >>> from kvcalc.core.model import Full, ModelProfile
    >>> from kvcalc.core.model import Block as Layer
    >>> from kvcalc.core.workload import Formats
    >>> from kvcalc.engines.vllm.options import VllmOptions
    >>> layer = Layer(mixers=(Full(heads=32, kv_heads=8, head_dim=128),))
    >>> model = ModelProfile(name="x", architecture="llama", hidden_size=4096, context_limit=None, blocks=(layer,) * 32,
    ...     embeddings=(), head=None)
    >>> found = layout(model, Formats(), VllmOptions(max_model_len=4096))
    >>> found.block_size, found.bytes_per_block, found.needed_bytes
    (16, 2097152, 536870912)
    """
    specs = layer_specs(model, formats, options, tensor=tensor, blocks=blocks)
    if drafts:
        specs += draft_specs(model, formats, options, tensor=tensor)
    if not specs:
        raise UnsupportedError(f"{model.name} keeps no cache that vLLM would lay out")
    groups = tuple(_group(members, options) for members in _grouped(specs))
    step = lcm(*(group.stride for group in groups))
    return Layout(
        groups=groups,
        max_model_len=options.max_model_len,
        configured_block_size=configured_block_size(model, formats, options, tensor=tensor),
        bytes_per_block=step * ceil_div(max(group.bytes_per_block for group in groups), step),
        prefix_caching=options.prefix_caching,
    )


def stage_layouts(
    model: ModelProfile, formats: Formats, options: VllmOptions, *, tensor: int = 1, pipeline: int = 1
) -> tuple[Layout, ...]:
    """Return the layout of a rank of each pipeline stage.

    Args:
        model: the model.
        formats: formats of keys, values and states.
        options: the engine's options.
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.

    Raises:
        InputError: more stages than layers.
        UnsupportedError: as `layout`.

    Source: `layout` of the layers of `stage_blocks`.
    """
    if pipeline > model.layers:
        raise InputError(f"the {model.layers} layers of {model.name} cannot be split over {pipeline} pipeline stages")
    stages = stage_blocks(model, pipeline)
    # most stages have the same layers, and layers of a kind are one object
    kinds = [(index == len(stages) - 1, *map(id, blocks)) for index, blocks in enumerate(stages)]
    known = {
        kind: layout(model, formats, options, tensor=tensor, blocks=blocks, drafts=bool(kind[0]))
        for kind, blocks in dict(zip(kinds, stages, strict=True)).items()
    }
    return tuple(known[kind] for kind in kinds)


def _group(members: list[Spec], options: VllmOptions) -> Group:
    largest = max(members, key=lambda spec: spec.page_bytes)
    return Group(
        kind=largest.kind,
        layers=len(members),
        block_size=largest.block_size,
        span_tokens=largest.block_size * (options.decode_context_parallel if largest.kind in _SHARED_TOKENS else 1),
        page_bytes=largest.page_bytes,
        bytes_per_block=sum(spec.page_bytes for spec in members),
        needed_blocks=_needed_blocks(largest, options),
        reach=largest.reach,
        stride=lcm(*(spec.stride for spec in members)),
    )


def _grouped(specs: Sequence[Spec]) -> list[list[Spec]]:
    """Return the specs of each group: one where all are of a family, else buckets of equal specs, cut to one size."""
    if len({(spec.family, spec.block_size) for spec in specs}) == 1:
        return [list(specs)]
    if any(spec.packed for spec in specs):
        return packed_groups(specs)
    buckets: dict[Spec, list[Spec]] = {}
    for spec in _with_equal_pages(specs):
        buckets.setdefault(spec, []).append(spec)
    size = _group_size([len(bucket) for bucket in buckets.values()])
    return [part for bucket in buckets.values() for part in _dealt(bucket, ceil_div(len(bucket), size))]


def _group_size(counts: Sequence[int]) -> int:
    """Return the layers of a group: the fewest of any bucket, or the most where that is less than half as many again.

    Source: vLLM 0.32, kv_cache_utils._get_kv_cache_groups_uniform_page_size.
    """
    min_count, max_count = min(counts), max(counts)
    return max_count if 2 * max_count < 3 * min_count else min_count


def _dealt(bucket: list[Spec], parts: int) -> list[list[Spec]]:
    """Return a bucket dealt round robin."""
    return [bucket[start::parts] for start in range(parts)]


def _with_equal_pages(specs: Sequence[Spec]) -> list[Spec]:
    """Return the specs with the largest page: more tokens where it divides, padding where it does not.

    Source: vLLM 0.32, kv_cache_utils.unify_kv_cache_spec_page_size.
    """
    page = max(spec.page_bytes for spec in specs)
    return [_with_page(spec, page) for spec in specs]


def _with_page(spec: Spec, page: int) -> Spec:
    if spec.kind != "state" and page % spec.page_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page // spec.page_bytes), page_bytes=page)
    if spec.kind in {"latent", "index"}:
        raise UnsupportedError(
            f"vLLM refuses this model: a page of {page} bytes does not hold whole pages of {spec.page_bytes} bytes",
            hint="pages of latent attention cannot be padded; choose another block size",
        )
    return replace(spec, page_bytes=page)


def _needed_blocks(spec: Spec, options: VllmOptions) -> int:
    """Return the blocks of one request of the longest length.

    Source: vLLM 0.33, kv_cache_interface, max_memory_usage_bytes of each spec. A window that slides within a block
    takes one block more; tokens under way are held beside the window. Ranks of decode context parallelism share the
    tokens of full and latent attention, and no others.
    """
    length, in_flight = options.max_model_len, options.in_flight_tokens
    if spec.kind in ("state", "ring"):
        return spec.held_blocks
    if spec.kind in _SHARED_TOKENS:
        return ceil_div(ceil_div(length, options.decode_context_parallel), spec.block_size)
    if options.decode_context_parallel > 1:
        raise not_modelled(f"{spec.kind} attention with decode context parallelism")
    if spec.kind == "sliding":
        return ceil_div(min(spec.reach - 1 + in_flight, length), spec.block_size) + 1
    if spec.kind == "chunked":
        return ceil_div(min(spec.reach + in_flight, length), spec.block_size)
    # an engine sets the encoder's tokens of a pass to the encoder's longest output (max_num_encoder_input_tokens)
    return ceil_div(spec.reach, spec.block_size)
