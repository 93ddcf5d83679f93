"""Layouts of a cache: streams of layers, each at its own resolution and length.

A model as it is has one stream: an entry for each token, as long as the context. Levers cut it up: fewer tokens kept,
one entry for several tokens, blocks instead of whole contexts, a prefix kept once. The bytes of a stream are always
those of `cost.cache` and `cost.forward` at the tokens that the stream has.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass
from kvcalc.core.sums import added
from kvcalc.core.units import ceil_div
from kvcalc.core.workload import decode_step
from kvcalc.cost.cache import CacheBytes, cache_bytes
from kvcalc.cost.forward import forward_cost

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.cost_types import OpCost, StepCost
    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.core.workload import Formats, Parallel

__all__ = ["Layout", "Stream", "plain_layout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Layers that keep their cache alike.

    Args:
        model: the layers; nothing else of it is looked at.
        every: tokens behind one entry; the stream takes a step once in so many tokens.
        most: entries kept at most; all where left out.
        chunk: entries after which all but the last so many, which the next chunk is conditioned on, are forgotten; left
            out where the stream runs on.
    """

    model: ModelProfile
    every: int = 1
    most: int | None = None
    chunk: int | None = None

    def entries(self, tokens: int) -> int:
        """Return the entries that stand for so many tokens; a last group that is not whole has none yet."""
        whole = tokens // self.every
        return whole if self.most is None else min(whole, self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A model with the way its cache is kept.

    Args:
        model: the model whose weights are run.
        formats: number formats.
        parallel: how it is spread.
        streams: the caches.
        block_tokens: tokens of a block that memory is handed out in; left out where a sequence gets its longest length.
        prefix_tokens: tokens at the start that all sequences of the batch share, kept once.
        host_share: share of the cache that is kept in the host's memory and read over its link.
        own_weights: whether the weights are those of the model; a hierarchy has others.
    """

    model: ModelProfile
    formats: Formats
    parallel: Parallel
    streams: tuple[Stream, ...]
    block_tokens: int | None = None
    prefix_tokens: int = 0
    host_share: float = 0.0
    own_weights: bool = True

    def held_bytes(self, *, context: int, batch: int) -> int:
        """Return the logical bytes of a batch of sequences of so many tokens, a shared prefix counted once."""
        whole = self._held(context)
        own = self._held(context - min(self.prefix_tokens, context))
        rest = own.growing + whole.state + whole.cross if self.prefix_tokens else whole.total
        return whole.total + (batch - 1) * rest

    def _held(self, tokens: int) -> CacheBytes:
        total = CacheBytes(growing=0, state=0, cross=0)
        for stream in self.streams:
            total += cache_bytes(stream.model, stream.entries(tokens), self.formats)
        return total

    def reserved_bytes(self, *, context: int, batch: int, longest: int) -> int:
        """Return the bytes an allocator sets aside: whole blocks, or each sequence its longest length.

        Args:
            context: tokens of each sequence.
            batch: sequences.
            longest: tokens a sequence may grow to.
        """
        tokens = longest if self.block_tokens is None else ceil_div(context, self.block_tokens) * self.block_tokens
        return self.held_bytes(context=max(context, tokens), batch=batch)

    def read_bytes(self, *, context: int, batch: int) -> float:
        """Return the cache that a decode step reads over the batch.

        A stream's step is shared out over its tokens; of one that begins anew with each chunk it is the mean over one.
        """
        return added(self._stream_reads(stream, context, batch) / stream.every for stream in self.streams)

    def _stream_reads(self, stream: Stream, tokens: int, batch: int) -> float:
        entries = stream.entries(tokens)
        if stream.chunk is None or not entries:
            return self._step(stream.model, entries, batch).total("kv_read_bytes") if entries else 0
        end = ceil_div(tokens // stream.every, stream.chunk) * stream.chunk
        before, after = (self._reads_of(stream, steps, batch) for steps in (end - stream.chunk, end))
        return (after - before) / stream.chunk

    def _step(self, model: ModelProfile, context: int, batch: int) -> StepCost:
        return forward_cost(model, (decode_step(batch=batch, context=context),), self.formats, parallel=self.parallel)

    def step_cost(self, *, context: int, batch: int) -> StepCost:
        """Return a decode step of the model with its cache read as the streams keep it."""
        whole = self._step(self.model, context, batch)
        steps = [(stream.every, self._step(stream.model, stream.entries(context), batch))
                 for stream in self.streams if stream.entries(context)]  # fmt: skip
        kinds = []
        for kind, (ranks, stages) in enumerate(whole.rank_kinds):
            read = [[_shared_out(op, every) for every, step in steps for op in step.rank_kinds[kind][1][stage]]
                    for stage in range(len(stages))]  # fmt: skip
            merged = [(*(op for op in ops if op.part != "cache"), *(op for op in caches if op.part == "cache"))
                      for ops, caches in zip(stages, read, strict=True)]  # fmt: skip
            kinds.append((ranks, tuple(merged)))
        return replace(whole, rank_kinds=tuple(kinds))

    def reads_up_to(self, tokens: int, *, batch: int) -> int:
        """Return the cache read by decode steps at all contexts from 1 to ``tokens``, over the whole batch, summed.

        Along each stretch between two knees (a window that fills, a top-k that is reached) the reads of a layer grow by
        the same from step to step, so that a stretch is the mean of its ends times its length: an exact sum.
        """
        return sum(self._reads_of(stream, tokens // stream.every, batch) for stream in self.streams)

    def _reads_of(self, stream: Stream, steps: int, batch: int) -> int:
        """Return the reads of the first steps of a stream: its chunk so far and, but for the first, the one before."""
        chunk = stream.chunk
        if chunk is None or steps <= chunk:
            return self._run(stream, steps, batch)
        chunks, rest = divmod(steps - chunk, chunk)
        once, twice, partly = (self._run(stream, entries, batch) for entries in (chunk, 2 * chunk, chunk + rest))
        return once + chunks * (twice - once) + partly - once

    def _run(self, stream: Stream, steps: int, batch: int) -> int:
        """Return the reads of steps over 1, 2, 3 … entries of a stream, over no more than it keeps."""
        full = steps if stream.most is None else min(steps, stream.most)
        total = 0
        for mixer, layers in _by_mixer(stream.model):
            read = self._reader(layers, batch)
            total += _summed(mixer, full, read) + (steps - full) * (read(full) if full else 0)
        return total

    def _reader(self, layers: ModelProfile, batch: int) -> Callable[[int], int]:
        return lambda context: round(self._step(layers, context, batch).total("kv_read_bytes"))

    @property
    def period(self) -> int:
        """Tokens after which the pattern of reads repeats itself, apart from its growth."""
        period = 1
        for stream in self.streams:
            for mixer, _ in _by_mixer(stream.model):
                period = lcm(period, stream.every * mixer.bends.period, stream.every * (stream.chunk or 1))
        return period

    def map_model(self, change: Callable[[ModelProfile], ModelProfile]) -> Layout:
        """Return the layout with the model, and the layers of each stream, changed alike."""
        streams = tuple(replace(stream, model=change(stream.model)) for stream in self.streams)
        return replace(self, model=change(self.model), streams=streams)

    def keep_at_most(self, entries: int) -> Layout:
        """Return the layout with so many entries kept by the layers that keep all tokens or the latest ones."""
        streams = []
        for stream in self.streams:
            max_entries = entries if stream.most is None else min(entries, stream.most)
            streams += [
                replace(stream, model=part, most=max_entries if capped else stream.most)
                for capped in (True, False)
                if (part := _with_mixers(stream.model, lambda mixer: _cappable(mixer) == capped)).mixers  # noqa: B023  called at once
            ]
        return replace(self, streams=tuple(streams))

    @property
    def grows(self) -> bool:
        """Whether some layer keeps anything for each token."""
        return any(cache_bytes(stream.model, 1, self.formats).growing for stream in self.streams)

    def exceeds(self, entries: int) -> bool:
        """Whether some layer could hold more than so many of its latest tokens."""
        return any(
            _cappable(mixer) and (mixer.span is None or mixer.span > entries)
            for stream in self.streams
            if stream.most is None or stream.most > entries
            for mixer in stream.model.mixers
        )


def plain_layout(model: ModelProfile, formats: Formats, parallel: Parallel) -> Layout:
    """Return a model with its cache as it is: one stream, an entry for each token."""
    stream = Stream(model=_caches_only(model))
    return Layout(model=model, formats=formats, parallel=parallel, streams=(stream,))


def _shared_out(op: OpCost, every: int) -> OpCost:
    """Return an operator that runs once in ``every`` tokens as its share of one of them."""
    if every == 1:
        return op
    names = ("flop", "kv_read_bytes", "kv_write_bytes", "activation_bytes")
    return replace(op, **{name: getattr(op, name) / every for name in names})


def _caches_only(model: ModelProfile) -> ModelProfile:
    """Return the layers' caches without MLPs, tables and head, so that a pass over them costs little to compute."""
    blocks = tuple(replace(block, mlp=None) for block in model.blocks)
    return replace(model, blocks=blocks, embeddings=(), head=None, encoder=None)


def _cappable(mixer: Mixer) -> bool:
    """Whether a mixer's entries are the latest tokens, so that keeping fewer of them means something."""
    return mixer.entry is not None and mixer.bends.restart is None


def _with_mixers(model: ModelProfile, wanted: Callable[[Mixer], bool]) -> ModelProfile:
    """Return a model whose layers keep only some of their mixers; the number of layers stays."""

    def kept(block: Block) -> Block:
        return replace(block, mixers=tuple(mixer for mixer in block.mixers if wanted(mixer)))

    changed = {block: kept(block) for block in model.block_counts}
    return replace(model, blocks=tuple(changed[block] for block in model.blocks))


def _by_mixer(model: ModelProfile) -> list[tuple[Mixer, ModelProfile]]:
    """Return each distinct mixer with the layers that have it alone."""
    return [
        (mixer, _with_mixers(model, lambda other, mixer=mixer: other == mixer))  # type: ignore[misc]
        for mixer in model.mixers
    ]


def _summed(mixer: Mixer, tokens: int, read: Callable[[int], int]) -> int:
    """Return the sum of a mixer's reads at contexts from 1 to ``tokens``."""
    bends = mixer.bends
    if bends.restart is not None:
        chunks, rest = divmod(tokens, bends.restart)
        return (chunks * _stretch(1, bends.restart, 1, read) if chunks else 0) + _stretch(1, rest, 1, read)
    ends = sorted(knee for knee in {0, tokens, *bends.knees} if knee <= tokens)
    return sum(_stretch(first + 1, last, bends.group, read) for first, last in pairwise(ends))


def _stretch(first: int, last: int, group: int, read: Callable[[int], int]) -> int:
    """Return the sum of reads from ``first`` to ``last``, a straight line inside each group of so many contexts.

    The sums of whole groups, which begin at multiples of ``group``, lie on a straight line too.
    """
    start = ceil_div(first, group) * group
    whole = max(0, (last + 1 - start) // group)
    end = start + whole * group
    middle = whole * (_line(start, start + group - 1, read) + _line(end - group, end - 1, read)) // 2 if whole else 0
    return _line(first, min(start - 1, last), read) + middle + _line(end, last, read)


def _line(first: int, last: int, read: Callable[[int], int]) -> int:
    """Return the sum of reads from ``first`` to ``last`` along a straight line."""
    return (last - first + 1) * (read(first) + read(last)) // 2 if last >= first else 0
