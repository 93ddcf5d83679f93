"""Setups of vLLM that its log allows: named, left open, or such that they would explain a difference."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TYPE_CHECKING

from kvcalc.core.errors import UnknownNameError
from kvcalc.core.formats import cache_formats, parse_format
from kvcalc.core.model import Chunked, Full, Latent, Sliding, State
from kvcalc.engines.vllm import VllmOptions
from kvcalc.engines.vllm.defaults import LENGTH_WITHOUT_LIMIT, caches_prefixes, has_delta_nets, passes_in_flight
from kvcalc.engines.vllm.releases import (
    FIRST_BY_CONCURRENCY,
    FIRST_CACHING_STATES,
    FIRST_WITH_CHUNKS,
    FIRST_WITH_DELTA_CHECKPOINTS,
    FIRST_WITH_NULL_BLOCK,
    LAST_V0,
    VERSION,
    checks_all_layers,
    release_of,
    since,
)
from kvcalc.engines.windows import without_windows
from kvcalc.plan.formats import run_formats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.core.model import Mixer, ModelProfile
    from kvcalc.core.workload import Formats
    from kvcalc.engines.logs import StartUp

__all__ = ["OWN_DRAFT_LAYER", "Setup", "base_setups", "term_setups"]

Change = tuple[str, "Callable[[Setup], Setup]"]

_BATCHED_TOKENS = (8192, 2048, 4096, 16384, 32768)
_DRAFT_TOKENS = (1, 2, 3, 4, 5, 6, 7, 8)
_BLOCKS = (16, 32, 64, 128)
OWN_DRAFT_LAYER = frozenset({"mtp", "eagle", "eagle3", "deepseek_mtp", "qwen3_5_mtp", "qwen3_next_mtp", "glm4_moe_mtp"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """One way the engine may have been set up.

    Args:
        model: the model, with draft layers, and windows as the engine holds them.
        formats: formats of keys, values and states.
        options: the engine's options.
        tensor: tensor-parallel ranks.
        pipeline: pipeline stages.
        by_concurrency: whether the printed tokens are concurrency times length.
        checks_all_layers: whether the engine held all layers against the memory of one pipeline rank.
        null_block: whether the engine keeps a block back when it estimates the longest length; none if not known.
        first_engine: whether it is the V0 engine.
        assumed: what the log leaves open and was filled in.
        terms: what differs from the log or the engine's defaults.
    """

    model: ModelProfile
    formats: Formats
    options: VllmOptions
    tensor: int = 1
    pipeline: int = 1
    by_concurrency: bool = False
    checks_all_layers: bool = False
    null_block: bool | None = None
    first_engine: bool = False
    assumed: tuple[str, ...] = ()
    terms: tuple[str, ...] = ()


def base_setups(start_up: StartUp, model: ModelProfile) -> list[Setup]:
    """Return the setups that fit what the log says, the likeliest first.

    Raises:
        UnknownNameError: the log names a cache format that is not known.
    """
    release = release_of(start_up.version)
    first = "V0" in start_up.events or ("V1" not in start_up.events and release is not None and release <= LAST_V0)
    plain = Setup(
        model=model,
        formats=_formats(start_up, model),
        options=_options(start_up, model),
        tensor=start_up.count("tensor_parallel_size") or 1,
        pipeline=start_up.count("pipeline_parallel_size") or 1,
        checks_all_layers=checks_all_layers(start_up.version),
        null_block=None if release is None else release >= FIRST_WITH_NULL_BLOCK,
        first_engine=first,
    )
    axes = [
        _print_rules(start_up, release, first=first),
        _checks(start_up, release),
        _windows(start_up, model, release, first=first),
        _drafts(start_up),
        _caching(start_up, model),
        _kernels(start_up, model),
        _in_flight(start_up, model),
    ]
    return [_changed(plain, choice, assume=True) for choice in product(*axes)]


def term_setups(bases: Sequence[Setup], start_up: StartUp, count: int) -> Iterator[Setup]:
    """Yield setups that differ from the log or the defaults in so many terms."""
    terms = [*_other_format(bases[0]), *_speculation(start_up, bases[0]), *_other_blocks(start_up), *_in_full(bases[0])]
    for chosen in combinations(terms, count):
        if len({text.split()[0] for text, _ in chosen}) == count:
            yield from (_changed(base, chosen, assume=False) for base in bases)


def _changed(setup: Setup, changes: Sequence[Change], *, assume: bool) -> Setup:
    for _, change in changes:
        setup = change(setup)
    texts = tuple(text for text, _ in changes if text)
    return replace(setup, assumed=texts) if assume else replace(setup, terms=texts)


def _formats(start_up: StartUp, model: ModelProfile) -> Formats:
    """Return the formats: ``auto`` is the model's own; states are kept in the model's 16-bit format."""
    dtype = (start_up.text("dtype") or "").removeprefix("torch.")
    kept = parse_format(dtype) if dtype not in ("", "auto") else None
    asked = start_up.text("kv_cache_dtype") or "auto"
    kv = None if asked == "auto" else _kv_format(asked)
    own = run_formats(model, kv=kv, engine="vllm")
    hidden = kept or own.hidden
    if kv is None and model.kv_dtype is None:
        own = replace(own, key=hidden, value=hidden)
    return replace(own, state=hidden, hidden=hidden)


def _kv_format(asked: str) -> str:
    name = asked.removeprefix("torch.")
    try:
        cache_formats(name)
    except UnknownNameError as unknown:
        raise UnknownNameError(
            f"the log's kv_cache_dtype {asked!r} is not a format that kvcalc knows", hint=unknown.hint
        ) from None
    return name


def _options(start_up: StartUp, model: ModelProfile) -> VllmOptions:
    caching = start_up.flag("enable_prefix_caching")
    return VllmOptions(
        max_model_len=start_up.count("max_model_len") or model.context_limit or LENGTH_WITHOUT_LIMIT,
        block_size=start_up.count("block_size"),
        max_num_batched_tokens=start_up.count("max_num_batched_tokens") or _BATCHED_TOKENS[0],
        max_in_flight_batches=_passes(start_up, model)[0],
        prefix_caching=caches_prefixes(model, version=_version(start_up)) if caching is None else caching,
        platform="cpu" if "cpu" in start_up.events else "gpu",
        speculative_tokens=start_up.count("speculative_tokens") or 0,
        version=start_up.version,
    )


def _version(start_up: StartUp) -> str:
    """Return the version of a log, where it tells one, else the one that is described."""
    return start_up.version if start_up.version and release_of(start_up.version) else VERSION


def _kinds(model: ModelProfile) -> set[type[Mixer]]:
    return {type(mixer) for mixer in model.mixers}


def _print_rules(start_up: StartUp, release: tuple[int, int] | None, *, first: bool) -> list[Change]:
    blocks: Change = ("", lambda setup: replace(setup, by_concurrency=False))
    concurrency: Change = ("", lambda setup: replace(setup, by_concurrency=True))
    if first:
        return [blocks]
    if release is not None:
        return [concurrency if release >= FIRST_BY_CONCURRENCY else blocks]
    tokens, requests = start_up.smallest("kv_cache_tokens"), start_up.smallest("max_concurrency")
    length = start_up.count("max_model_len")
    if tokens and requests and length and not requests.least <= tokens.value / length <= requests.most:
        return [blocks]
    return [("tokens printed as concurrency x length", concurrency[1]), ("tokens printed by blocks", blocks[1])]


def _checks(start_up: StartUp, release: tuple[int, int] | None) -> list[Change]:
    """Return the layers that were held against one pipeline rank's memory, where the version does not tell."""
    if (
        release is not None
        or (start_up.count("pipeline_parallel_size") or 1) == 1
        or not start_up.first("needed_kv_gib")
    ):
        return [("", lambda setup: setup)]
    return [
        ("each rank asked for its own layers", lambda setup: replace(setup, checks_all_layers=False)),
        (
            "every rank asked for all layers, as 0.14 and 0.15 do",
            lambda setup: replace(setup, checks_all_layers=True, null_block=False),
        ),
    ]


def _windows(start_up: StartUp, model: ModelProfile, release: tuple[int, int] | None, *, first: bool) -> list[Change]:
    kinds = _kinds(model)
    as_is: Change = ("", lambda setup: setup)
    if not kinds & {Sliding, Chunked}:
        return [as_is]
    if first or start_up.flag("disable_hybrid_kv_cache_manager"):
        return [("", _without_windows)]
    if Chunked in kinds and (release is None or release < FIRST_WITH_CHUNKS):
        return [as_is, ("chunked layers held in full", _without_windows)]
    return [as_is]


def _without_windows(setup: Setup) -> Setup:
    return replace(setup, model=without_windows(setup.model))


def _drafts(start_up: StartUp) -> list[Change]:
    """Return whether draft layers have a cache: those of a method that has its own; Gemma-4's share the model's."""
    if start_up.text("speculative_method") not in OWN_DRAFT_LAYER:
        return [("", lambda setup: setup)]
    return [
        ("one draft layer with a cache of its own", _with_draft_layer),
        ("draft layers without a cache of their own", lambda setup: setup),
    ]


def _with_draft_layer(setup: Setup) -> Setup:
    """Return the setup with one more layer like the model's last full (or latent) one."""
    full = [block for block in setup.model.blocks if any(isinstance(mixer, Full | Latent) for mixer in block.mixers)]
    if not full:
        return setup
    return replace(setup, model=replace(setup.model, blocks=(*setup.model.blocks, full[-1])))


def _caching(start_up: StartUp, model: ModelProfile) -> list[Change]:
    printed = start_up.flag("enable_prefix_caching")
    if not since(start_up.version, FIRST_CACHING_STATES):
        return [("", lambda setup: setup)]
    if State not in _kinds(model) or (printed is not None and "align" not in start_up.events):
        return [("", lambda setup: setup)]
    on: Change = ("prefix caching on", lambda setup: _with_options(setup, prefix_caching=True))
    off: Change = ("prefix caching off", lambda setup: _with_options(setup, prefix_caching=False))
    if "align" in start_up.events:
        return [("", on[1])]
    return [on, off] if caches_prefixes(model, version=_version(start_up)) else [off, on]


def _kernels(start_up: StartUp, model: ModelProfile) -> list[Change]:
    """Return the kernels of gated delta nets that the card may have, where the version takes more blocks for some."""
    as_is: Change = ("", lambda setup: setup)
    exporting: Change = ("a card of Hopper's or Blackwell's", lambda setup: _with_options(setup, generation="hopper"))
    if not (since(start_up.version, FIRST_WITH_DELTA_CHECKPOINTS) and has_delta_nets(model)):
        return [as_is]
    return [as_is, exporting] if release_of(start_up.version) is None else [exporting, as_is]


def _with_options(setup: Setup, **options: object) -> Setup:
    return replace(setup, options=replace(setup.options, **options))  # type: ignore[arg-type]


def _in_flight(start_up: StartUp, model: ModelProfile) -> list[Change]:
    if not _kinds(model) & {Sliding, Chunked}:
        return [("", lambda setup: setup)]
    printed = start_up.count("max_num_batched_tokens")
    batches = _passes(start_up, model)
    tokens = (printed,) if printed else _BATCHED_TOKENS
    amounts = dict.fromkeys(count * each for each in tokens for count in batches)
    return [_in_flight_change(amount, known=len(amounts) == 1) for amount in amounts]


def _passes(start_up: StartUp, model: ModelProfile) -> tuple[int, ...]:
    """Return the possible numbers of passes in flight, the likeliest first: by version, or by the log."""
    ahead = "asynchronous" in start_up.events
    if release_of(start_up.version) is None:
        return (2, 1) if ahead else (1, 2)
    stages = start_up.count("pipeline_parallel_size") or 1
    method = start_up.text("speculative_method")
    passes = passes_in_flight(model, version=_version(start_up), pipeline=stages, method=method)
    # not every platform and draft is scheduled ahead
    return (passes,) if ahead or passes == 1 else (passes, 1)


def _in_flight_change(amount: int, *, known: bool) -> Change:
    def change(setup: Setup) -> Setup:
        return _with_options(setup, max_num_batched_tokens=amount, max_in_flight_batches=1)

    return ("" if known else f"{amount:,} tokens in flight", change)


def _other_format(base: Setup) -> list[Change]:
    other = "bf16" if base.formats.key.unit == "fp8" else "fp8"
    kept = parse_format(other)

    def change(setup: Setup) -> Setup:
        return replace(setup, formats=replace(setup.formats, key=kept, value=kept))

    return [(f"KV kept in {other}, not {base.formats.key.name}", change)]


def _speculation(start_up: StartUp, base: Setup) -> list[Change]:
    if start_up.text("speculative_method"):
        return []
    counts = _DRAFT_TOKENS if State in _kinds(base.model) else (1,)
    return [_speculation_change(count, names_tokens=State in _kinds(base.model)) for count in counts]


def _speculation_change(count: int, *, names_tokens: bool) -> Change:
    def change(setup: Setup) -> Setup:
        return _with_options(_with_draft_layer(setup), speculative_tokens=count)

    tokens = f" and {count} draft tokens" if names_tokens else ""
    return (f"speculation with one more attention layer{tokens}", change)


def _other_blocks(start_up: StartUp) -> list[Change]:
    if start_up.count("block_size"):
        return []
    return [_block_change(size) for size in _BLOCKS]


def _block_change(size: int) -> Change:
    return (f"blocks in multiples of {size} tokens", lambda setup: _with_options(setup, block_size=size))


def _in_full(base: Setup) -> list[Change]:
    if not _kinds(base.model) & {Sliding, Chunked}:
        return []
    return [("windows not used: every layer held in full (hybrid KV cache manager off)", _without_windows)]
