"""Every known way to shrink the cache: what it cuts, what it asks of the weights, what it may cost in quality."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from kvcalc.core.errors import InputError, UnknownNameError, about, did_you_mean
from kvcalc.core.readers import names
from kvcalc.core.records import dataclass
from kvcalc.core.units import parse_count
from kvcalc.plan.levers import changes
from kvcalc.plan.levers.layout import Layout, plain_layout

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.plan.deployment import Deployment

__all__ = ["LEVERS", "ChosenLever", "Lever", "apply_levers", "parse_levers"]

Term = Literal["width", "bytes", "length", "fragmentation", "resolution", "layers", "sequences", "place"]
Retrofit = Literal["yes", "fine-tuning", "no"]
_MIN_CHUNK, _MAX_CHUNK = 2, 10**6
_MAX_LEVELS = 6
_MAX_VALUE = 10**9


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One way to shrink the cache.

    Args:
        name: what ``--with`` calls it.
        cuts: the term of sequences x layers x length x width x bytes that it makes smaller; ``fragmentation`` is what
            is reserved and not used, ``resolution`` the tokens behind one entry, ``place`` the memory it stands in.
        retrofit: whether weights that were trained without it can take it.
        quality: what it may cost, with the source.
        change: what it does to a layout.
        default: its value where none is given.
        takes: how its value is read; left out where it takes none.
    """

    name: str
    cuts: Term
    retrofit: Retrofit
    quality: str
    change: Callable[[Layout, Any], Layout]
    default: Any = None
    takes: Callable[[str], Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenLever:
    """A lever with its value."""

    lever: Lever
    value: Any
    text: str


def _count(text: str) -> int:
    value = parse_count(text)
    if not 1 <= value <= _MAX_VALUE:
        raise InputError(f"{text!r} is not from 1 to {_MAX_VALUE:,}")
    return value


def _chunks(text: str) -> tuple[int, ...]:
    hint = "for example 16 or 4x4"
    parts = text.split("x")
    if not all(parts):
        raise InputError(f"{text!r} is not a count, or counts with an x between", hint=hint)
    chunks = tuple(_count(part) for part in parts)
    if len(chunks) > _MAX_LEVELS or not all(_MIN_CHUNK <= chunk <= _MAX_CHUNK for chunk in chunks):
        raise InputError(f"{text!r}: up to {_MAX_LEVELS} levels with chunks of 2 or more", hint=hint)
    return chunks


def _share(text: str) -> changes.Offload:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= 1:
        raise InputError(f"{text!r} is not a share above 0 and up to 1", hint="for example offload=0.5")
    return changes.Offload(value)


def _format(name: str) -> Callable[[Layout, Any], Layout]:
    return lambda layout, _: changes.format_of(layout, name)


_ALL = (
    Lever(
        name="mqa", cuts="width", retrofit="fine-tuning", change=lambda layout, _: changes.kv_heads(layout, 1),
        quality="a minor loss (Shazeer 2019, arXiv 1911.02150)",
    ),
    Lever(
        name="gqa", cuts="width", retrofit="fine-tuning", change=changes.kv_heads, takes=_count,
        quality="close to multi-head after 5% of the pre-training again (Ainslie et al. 2023, arXiv 2305.13245)",
    ),
    Lever(
        name="mla", cuts="width", retrofit="fine-tuning", change=changes.latent, takes=_count,
        quality="better than multi-head when trained so (DeepSeek-V2, arXiv 2405.04434); converted weights need"
        " fine-tuning (Ji et al. 2025, arXiv 2502.14837)",
    ),
    Lever(
        name="fp8", cuts="bytes", retrofit="yes", change=_format("fp8"),
        quality="3 bits can cost less than 0.1 perplexity (KVQuant, arXiv 2401.18079); 8 leave more room",
    ),
    Lever(
        name="int8", cuts="bytes", retrofit="yes", change=_format("int8_per_token_head"),
        quality="as fp8, with a scale for each token and head",
    ),
    Lever(
        name="int4", cuts="bytes", retrofit="yes", change=_format("int4_per_token_head"),
        quality="negligible loss (FlexGen, arXiv 2303.06865); 2 bits work where keys are scaled by channel (KIVI, arXiv"
        " 2402.02750)",
    ),
    Lever(
        name="nvfp4", cuts="bytes", retrofit="yes", change=_format("nvfp4"),
        quality="as int4, with a scale for 16 elements; attention needs hardware with fp4, or widens first",
    ),
    Lever(
        name="window", cuts="length", retrofit="fine-tuning", change=changes.keep_at_most, default=1024, takes=_count,
        quality="fails once the first tokens leave, unless trained so or with sinks (StreamingLLM, arXiv 2309.17453)",
    ),
    Lever(
        name="topk", cuts="length", retrofit="fine-tuning", change=changes.top_k, default=2048, takes=_count,
        quality="on a par after training the indexer (DeepSeek-V3.2-Exp); cuts reads, and adds an index",
    ),
    Lever(
        name="evict", cuts="length", retrofit="yes", change=changes.keep_at_most, default=1024, takes=_count,
        quality="20% of the tokens, the most attended and the latest, suffice (H2O, arXiv 2306.14048); evicted tokens"
        " are lost",
    ),
    Lever(
        name="streaming", cuts="length", retrofit="yes", change=changes.keep_at_most, default=1024, takes=_count,
        quality="4 sinks and the latest tokens keep it fluent; older tokens are forgotten (StreamingLLM, arXiv"
        " 2309.17453)",
    ),
    Lever(
        name="paging", cuts="fragmentation", retrofit="yes", change=changes.block_size, default=16, takes=_count,
        quality="none: the same numbers in blocks (PagedAttention, arXiv 2309.06180)",
    ),
    Lever(
        name="prefix", cuts="sequences", retrofit="yes", change=changes.shared_prefix, default="half", takes=_count,
        quality="none: the same tokens in front are the same numbers (RadixAttention, arXiv 2312.07104)",
    ),
    Lever(
        name="cross-layer", cuts="layers", retrofit="no", change=changes.cross_layer, default=2, takes=_count,
        quality="nearly that of the model without when trained so (Brandon et al. 2024, arXiv 2405.12981)",
    ),
    Lever(
        name="offload", cuts="place", retrofit="yes", change=changes.offload, default=changes.Offload(1.0),
        takes=_share,
        quality="none; each step reads over the link to the host (FlexGen, arXiv 2303.06865)",
    ),
    Lever(
        name="hierarchy", cuts="resolution", retrofit="no", change=changes.hierarchy, default=(4, 4), takes=_chunks,
        quality="another model: one state for C tokens, trained from nothing (PHOTON, arXiv 2512.20687)",
    ),
    Lever(
        name="recursive", cuts="resolution", retrofit="no", change=partial(changes.hierarchy, recursive=True),
        default=(4, 4), takes=_chunks,
        quality="as hierarchy, and it feeds on its own states, which drift (PHOTON, arXiv 2512.20687)",
    ),
    Lever(
        name="state", cuts="length", retrofit="no", change=changes.recurrent,
        quality="another model: language well, copying from far back badly (Jelassi et al. 2024, arXiv 2402.01032)",
    ),
)  # fmt: skip
LEVERS = {lever.name: lever for lever in _ALL}


def parse_levers(text: str) -> tuple[ChosenLever, ...]:
    """Return the levers that a list such as ``gqa,fp8,window=4096`` names, in order.

    Besides those of `LEVERS`, ``kv=FORMAT`` keeps the cache in any format.

    Raises:
        UnknownNameError: no such lever.
        InputError: an empty name, or a value that the lever cannot take.
    """
    with about("with"):
        return tuple(_parsed(part) for part in names(text, "with", each_once=False)) if text.strip() else ()


def _parsed(text: str) -> ChosenLever:
    name, equals, value = (part.strip() for part in text.partition("="))
    if name == "kv" and value:
        kept = Lever(name="kv", cuts="bytes", retrofit="yes", quality="depends on the format", change=_format(value))
        return ChosenLever(lever=kept, value=None, text=text)
    if name not in LEVERS:
        hint = did_you_mean(name, LEVERS) or f"levers: {', '.join(LEVERS)}, kv=FORMAT"
        raise UnknownNameError(f"unknown lever {name!r}", hint=hint)
    lever = LEVERS[name]
    if not equals:
        return ChosenLever(lever=lever, value=lever.default, text=name)
    if lever.takes is None:
        raise InputError(f"the lever {name!r} takes no value, not {value!r}")
    try:
        return ChosenLever(lever=lever, value=lever.takes(value), text=f"{name}={value}")
    except InputError as error:
        raise InputError(f"{name}: {error.what}", hint=error.hint) from None


def apply_levers(
    deployment: Deployment, levers: tuple[ChosenLever, ...], *, context: int
) -> tuple[Layout, tuple[str, ...]]:
    """Return the cache of a deployment with levers applied one after another, and what there is to say of them.

    Args:
        deployment: model, formats and parallel sizes.
        levers: the levers, in order.
        context: tokens of a sequence, which a prefix cannot exceed and a window should not.

    Raises:
        InputError: a lever that has nothing to act on.
    """
    layout = plain_layout(deployment.model, deployment.formats, deployment.parallel)
    notes: list[str] = []
    for chosen in levers:
        layout = chosen.lever.change(layout, _value(chosen, context))
        notes += _remarks(chosen, context)
    return layout, tuple(notes)


def _value(chosen: ChosenLever, context: int) -> Any:
    """Return a lever's value, the default prefix being half the context."""
    if chosen.lever.name != "prefix":
        return chosen.value
    tokens = context // 2 if chosen.value == "half" else chosen.value
    if tokens > context:
        raise InputError(f"a prefix of {tokens:,} tokens is longer than the context of {context:,}")
    return tokens


def _remarks(chosen: ChosenLever, context: int) -> list[str]:
    name, value = chosen.lever.name, chosen.value
    if name in ("window", "topk", "evict", "streaming") and value >= context:
        return [f"{name} {value:,} is not below the context of {context:,} tokens: it cuts nothing yet"]
    if name in ("hierarchy", "recursive"):
        levels = [prod(value[: level + 1]) for level in range(len(value))]
        return [
            f"{name}: {below} does not divide {context:,} tokens; the last {context % below} have no state yet"
            for below in levels
            if context % below
        ]
    return []
