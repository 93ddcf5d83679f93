"""The rows of ``kvcalc levers``: each lever alone, or chosen ones added up; and published factors taken apart."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.model import Block, Full, ModelProfile
from kvcalc.core.reports.levers import HeadlineRow, LeverRow, LeversReport
from kvcalc.core.units import GIB
from kvcalc.core.workload import Formats, Parallel
from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.roofline import step_time
from kvcalc.cost.sharding import rank_cache_bytes
from kvcalc.plan.contexts import check_batch, check_context, default_context
from kvcalc.plan.formats import format_names
from kvcalc.plan.levers.catalogue import LEVERS, ChosenLever, apply_levers, parse_levers
from kvcalc.plan.levers.changes import hierarchy
from kvcalc.plan.levers.layout import plain_layout
from kvcalc.plan.rank_memory import rank_weights
from kvcalc.plan.room import budget

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.levers.layout import Layout

__all__ = ["headline_rows", "levers_report", "memory_factor"]

# From what trained weights take as they are to what they cannot take.
_HARDER = ("yes", "fine-tuning", "no")


class _Question:
    """A deployment at one context and batch, and its cache without levers."""

    def __init__(self, deployment: Deployment, *, context: int, batch: int, longest: int) -> None:
        self.deployment, self.context, self.batch, self.longest = deployment, context, batch, longest
        self.plain = plain_layout(deployment.model, deployment.formats, deployment.parallel)

    def row(self, layout: Layout, *, lever: str, cuts: str, retrofit: str, quality: str, remark: str = "") -> LeverRow:
        kv_bytes = layout.held_bytes(context=self.context, batch=self.batch)
        before = self.plain.held_bytes(context=self.context, batch=self.batch)
        reads = layout.read_bytes(context=self.context, batch=self.batch)
        reads_before = self.plain.read_bytes(context=self.context, batch=self.batch)
        on_host = round(layout.host_share * kv_bytes)
        aside = layout.reserved_bytes(context=self.context, batch=self.batch, longest=self.longest)
        return LeverRow(
            lever=lever,
            cuts=cuts,
            applies=not remark,
            kv_total_bytes=kv_bytes - on_host,
            host_bytes=on_host,
            reserved_bytes=aside - round(layout.host_share * aside),
            read_total_bytes=reads,
            kv_factor=before / kv_bytes if kv_bytes else 1.0,
            read_factor=reads_before / reads if reads else None,
            retrofit=retrofit,
            quality=quality,
            remark=remark,
            **self._on_hardware(layout, kv_bytes - on_host),
        )

    def _on_hardware(self, layout: Layout, kv_bytes: int) -> dict[str, Any]:
        """Return the memory of the fullest accelerator, and where the cache stands there the bound on tokens/s.

        Over several GPUs the cache is taken to be spread as it would be without levers.
        """
        hardware = self.deployment.hardware
        if hardware is None or not layout.own_weights:
            return {}
        needed = self._memory(layout, kv_bytes)
        memory = {"memory_needed_bytes": ceil(needed), "fits": self._fits(needed)}
        if layout.host_share:
            return memory
        cost = layout.step_cost(context=self.context, batch=self.batch)
        speed = cost.tokens / step_time(cost, hardware).ideal_s
        density = speed * GIB / (layout.parallel.gpus * needed)
        return {**memory, "tokens_per_s": speed, "tokens_per_s_per_gib": density}

    def _fits(self, needed: float) -> bool:
        """Whether weights and cache leave the engine what it needs beside them."""
        start = self.deployment.start(max_model_len=self.context)
        terms = budget(self.deployment, start)
        beside = terms.activation_bytes + terms.overhead_bytes
        return needed + beside <= int(terms.utilization * terms.memory_bytes)

    def _memory(self, layout: Layout, kv_bytes: int) -> float:
        weights = rank_weights(self._with_model(layout))
        spread = rank_cache_bytes(layout.model, layout.formats, layout.parallel, tokens=self.context, batch=self.batch)
        whole = cache_bytes(layout.model, self.context, layout.formats)
        logical = self.batch * (whole.growing + whole.state + whole.cross)
        return weights + (kv_bytes * spread / logical if logical else 0)

    def _with_model(self, layout: Layout) -> Deployment:
        same = layout.model == self.deployment.model
        return replace(
            self.deployment,
            model=layout.model,
            formats=layout.formats,
            own_weights=self.deployment.own_weights and same,
        )


def levers_report(
    deployment: Deployment, *, context: int | None = None, batch: int = 1, levers: str = "", longest: int | None = None
) -> LeversReport:
    """Return the cache with each lever, or with chosen ones added one after another.

    Args:
        deployment: model, formats, parallel sizes and, for speeds, the accelerator.
        context: tokens of each sequence.
        batch: sequences.
        levers: chosen levers, as `parse_levers` reads them; each known one alone where left out.
        longest: tokens that memory is set aside for where it is not paged; the model's limit where left out.

    Raises:
        InputError: a context or batch below one, a context longer than that, or a chosen lever that has nothing to act
            on.
    """
    usual = default_context(deployment.model, deployment.engine)
    tokens = min(usual, longest or usual) if context is None else context
    notes = list(check_context(deployment.model, tokens))
    check_batch(batch)
    if longest is not None and tokens > longest:
        raise InputError(f"context {tokens} is longer than max-model-len {longest}")
    reach = longest or max(tokens, deployment.model.context_limit or tokens)
    ask = _Question(deployment, context=tokens, batch=batch, longest=reach)
    chosen = parse_levers(levers)
    base = ask.row(ask.plain, lever="none", cuts="", retrofit="yes", quality="the model as it is")
    if deployment.parallel.gpus > 1:
        notes.append("bytes held are logical; bytes read are summed over all GPUs, replicas included")
    rows = (base, *(_added(ask, chosen, notes) if chosen else _each(ask, notes)))
    return LeversReport(
        model=deployment.model.name,
        formats=format_names(deployment.formats),
        context=tokens,
        batch=batch,
        longest_tokens=reach,
        gpu=None if deployment.hardware is None else deployment.hardware.name,
        gpus=deployment.parallel.gpus,
        memory_bytes=None if deployment.hardware is None else deployment.memory_bytes,
        rows=rows,
        headlines=headline_rows(),
        notes=(*notes, *deployment.model.notes),
    )


def _added(ask: _Question, chosen: tuple[ChosenLever, ...], notes: list[str]) -> Iterator[LeverRow]:
    """Yield a row for each lever together with those before it."""
    for count in range(1, len(chosen) + 1):
        layout, lever_notes = apply_levers(ask.deployment, chosen[:count], context=ask.context)
        levers = [each.lever for each in chosen[:count]]
        yield ask.row(
            layout,
            lever=" + ".join(each.text for each in chosen[:count]),
            cuts=" + ".join(dict.fromkeys(lever.cuts for lever in levers)),
            retrofit=max((lever.retrofit for lever in levers), key=_HARDER.index),
            quality=levers[-1].quality,
        )
    notes += lever_notes


def _each(ask: _Question, notes: list[str]) -> Iterator[LeverRow]:
    """Yield a row for each known lever alone, also for those that the model has nothing for."""
    for lever in LEVERS.values():
        (chosen,) = parse_levers(lever.name)
        lever_notes: tuple[str, ...] = ()
        try:
            layout, lever_notes = apply_levers(ask.deployment, (chosen,), context=ask.context)
            remark = ""
        except InputError as error:
            layout, remark = ask.plain, error.what
        notes += lever_notes
        yield ask.row(
            layout, lever=lever.name, cuts=lever.cuts, retrofit=lever.retrofit, quality=lever.quality, remark=remark
        )


# PHOTON, arXiv 2512.20687: two levels of 4; throughput over the memory of a sample's cache, in K tokens/s/GiB, against
# a Transformer of the same size, in these two workloads.
_CHUNKS = (4, 4)
_WORKLOADS = ((2048, 128), (128, 2048))
_CLAIMS = (("600M, hierarchical", 416, False), ("1.2B, hierarchical", 475, False), ("recursive", 1000, True))
# Any number of layers that the encoders and decoders can share evenly gives the same factor.
_LAYERS = 16


def memory_factor(*, tokens: int, chunks: tuple[int, ...] = _CHUNKS, recursive: bool = False) -> float:
    """Return the bytes of a Transformer's cache over those of a hierarchy of the same depth and width.

    The layers are taken to be shared out evenly over the levels' encoders and local decoders, all as wide as the
    Transformer; the width then cancels out.

    Source: PHOTON, arXiv 2512.20687: sum over levels of layers * (T / C_1…C_l) * width; of the top level alone where
    generation is recursive; local decoders a bounded window.

    >>> round(memory_factor(tokens=2176), 1), round(memory_factor(tokens=2176, recursive=True), 1)
    (12.5, 57.3)
    """
    block = Block(mixers=(Full(heads=1, kv_heads=1, head_dim=64),))
    model = ModelProfile(name="transformer", architecture="transformer", hidden_size=64, context_limit=None,
                         blocks=(block,) * _LAYERS, embeddings=(), head=None)  # fmt: skip
    flat = plain_layout(model, Formats(), Parallel())
    coarse = hierarchy(flat, chunks, recursive=recursive, shared_depth=True)
    return flat.held_bytes(context=tokens, batch=1) / coarse.held_bytes(context=tokens, batch=1)


def headline_rows() -> tuple[HeadlineRow, ...]:
    """Return PHOTON's published factors at both of its workloads, taken apart."""
    rows = []
    for claim, published, recursive in _CLAIMS:
        for prompt, output in _WORKLOADS:
            factor = memory_factor(tokens=prompt + output, recursive=recursive)
            rows.append(
                HeadlineRow(
                    claim=f"PHOTON {claim}",
                    prompt_tokens=prompt,
                    output_tokens=output,
                    published_factor=published,
                    memory_factor=factor,
                    throughput_factor=published / factor,
                )
            )
    return tuple(rows)
