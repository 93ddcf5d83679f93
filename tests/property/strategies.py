"""Random models, accelerators, passes and formats: every kind of mixer and MLP, in sizes small enough to enumerate."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.formats import parse_format
from kvcalc.core.hardware import HardwareProfile, Link
from kvcalc.core.model import (
    Block,
    Chunked,
    Compressed,
    Cross,
    Dense,
    Encoder,
    Full,
    Gated,
    Head,
    Indexer,
    Latent,
    Mixture,
    ModelProfile,
    Shared,
    Sliding,
    State,
    Table,
)
from kvcalc.core.provenance import Source
from kvcalc.core.workload import Formats, Parallel, TokenGroup

STATE_VARIANTS = ("mamba", "mamba2", "gated_delta", "linear", "short_conv", "rg_lru", "rwkv", "xlstm")
PLAIN = ("bf16", "fp16", "fp32", "fp8")
WEIGHTS = (
    *PLAIN,
    "int8",
    "int4",
    "mxfp4",
    "nvfp4",
    "q4_0",
    "q6_k",
    "q8_0",
    "int4-g128-zp",
    "fp8_block128",
    "mixed-9/16:int8",
)
CACHES = (*PLAIN, "fp8_e5m2", "int4", "q8_0", "q4_0", "int8_per_token_head", "int4_per_token_head")
PARTS = ("embedding", "head", "attention", "mlp", "experts", "router", "vector", "other")
# Words that YAML 1.1 or 1.2 would read as something else than text.
TRICKY_WORDS = (
    "no",
    "null",
    "~",
    "1e3",
    "1_000",
    "0x10",
    "010",
    "12:30",
    "2024-01-01",
    ".5",
    "a: b",
    "# c",
    "- d",
    "*e",
    "=",
)

small = st.integers(1, 6)
widths = st.sampled_from((1, 2, 4, 8, 64, 96))
windows = st.integers(1, 40)
extra = st.sampled_from((0, 0, 8, 24))
words = st.one_of(
    st.sampled_from(TRICKY_WORDS), st.text(st.characters(exclude_categories=("Cs",)), max_size=20), st.just("x" * 200)
)


def maybe(strategy: st.SearchStrategy) -> st.SearchStrategy:
    """Return a strategy of values that may be left out."""
    return st.none() | strategy


_INDEXES = ({}, {"stored": False}, {"query_inputs": 8}, {"head_weights": False}, {"matrix_parameters": 24}, {"stored_dim": 200},
            {"pool": 4})  # fmt: skip


def indexers(*, stored: bool = False) -> st.SearchStrategy[Indexer]:
    """Return a strategy of sparse indexers; with ``stored``, those that keep keys of their own."""
    forms = [form for form in _INDEXES if not stored or form in _INDEXES[2:5] or not form]
    return st.builds(
        lambda form, **sizes: Indexer(**sizes, **form),
        st.sampled_from(forms),
        heads=small,
        head_dim=widths,
        top_k=windows,
    )


# What an attention may have besides its heads, one thing at a time.
_ODD = (
    *({},) * 4,
    {"inputs": 8},
    {"output_gate": 8},
    {"value_from_key": True},
    {"shared_weights": True},
    {"projection_parameters": 77},
)


def _with_heads(kind: type, **more: st.SearchStrategy) -> st.SearchStrategy:
    heads = st.sampled_from([(kv * group, kv) for kv in (1, 2, 3, 6) for group in (1, 2, 5)])
    dims = st.sampled_from([(wide, value) for wide in (1, 8, 64, 96) for value in (None, None, 4, 128)])

    def build(heads: tuple, dims: tuple, odd: dict, **more: object) -> object:
        return kind(heads=heads[0], kv_heads=heads[1], head_dim=dims[0], value_head_dim=dims[1], **odd, **more)

    return st.builds(build, heads, dims, st.sampled_from(_ODD), **more)


MIXER_STRATEGIES = {
    "full": _with_heads(Full, indexer=maybe(indexers())),
    "sliding": _with_heads(Sliding, window=windows),
    "chunked": _with_heads(Chunked, chunk=windows),
    "shared": _with_heads(Shared, window=maybe(windows), projects=st.booleans()),
    "cross": _with_heads(Cross, encoder_tokens=windows, encoder_inputs=maybe(widths)),
    "latent": st.builds(
        Latent,
        heads=small,
        kv_lora_rank=widths,
        rope_dim=widths,
        nope_dim=widths,
        value_head_dim=widths,
        q_lora_rank=maybe(widths),
        output_gate=extra,
        indexer=maybe(indexers()),
    ),
    "compressed": st.builds(
        Compressed,
        heads=small,
        head_dim=widths,
        window=windows,
        ratio=small,
        overlap=st.booleans(),
        q_lora_rank=widths,
        output_groups=st.just(1),
        output_rank=widths,
        indexer=maybe(indexers(stored=True)),
    ),
    "state": st.builds(
        State,
        variant=st.sampled_from(STATE_VARIANTS),
        heads=small,
        key_dim=widths,
        value_dim=widths,
        conv_channels=extra,
        conv_window=st.integers(0, 4),
        conv_kernel=st.integers(0, 4),
        recurrent_format=st.sampled_from((None, "fp32", "bf16")),
        extra_state_bytes=extra,
        matrix_parameters=extra,
        groups=small,
    ),
}
MIXER_KINDS = tuple(MIXER_STRATEGIES)


def mixers(*kinds: str) -> st.SearchStrategy:
    """Return a strategy of token mixers, of all kinds unless some are named."""
    return st.one_of([MIXER_STRATEGIES[kind] for kind in kinds or MIXER_KINDS])


_MIXTURES = (*({},) * 3, {"gated": False}, {"shared_width": 8, "shared_gate": True}, {"inputs": 8}, {"expert_bias": True},
             {"router": False})  # fmt: skip


@st.composite
def mixtures(draw: st.DrawFn) -> Mixture:
    """Draw a mixture of experts, with choices that do nothing among them or without."""
    experts = draw(st.integers(1, 16))
    return Mixture(
        experts=experts,
        experts_per_token=draw(st.integers(1, experts)),
        zero_experts=draw(st.sampled_from((0, 0, 1, 4))),
        width=draw(widths),
        **draw(st.sampled_from(_MIXTURES)),
    )


mlps = st.one_of(
    st.none(),
    st.builds(Dense, width=widths, shared_weights=st.booleans()),
    st.builds(Gated, width=widths, shared_weights=st.booleans()),
    mixtures(),
)


@st.composite
def blocks(draw: st.DrawFn, *kinds: str, name: str = "layer") -> Block:
    """Draw a layer with up to two mixers."""
    return Block(
        name=name,
        mixers=tuple(draw(st.lists(mixers(*kinds), max_size=2))),
        mlp=draw(mlps),
        **draw(st.sampled_from(({}, {"parallel": True}, {"matrix_parameters": 8}, {"vector_parameters": 24}))),
    )


@st.composite
def stacks(draw: st.DrawFn, *kinds: str) -> tuple[Block, ...]:
    """Draw layers of one or two kinds that take turns."""
    pattern = draw(st.sampled_from(((0,), (0, 0), (0, 1), (0, 0, 1, 0, 0, 1), (0, 1, 1, 1, 0))))
    distinct = [draw(blocks(*kinds, name=f"layer_{index}")) for index in range(max(pattern) + 1)]
    return tuple(distinct[index] for index in pattern)


_OUTSIDE = ({}, {}, {"matrix_parameters": 8}, {"vector_parameters": 24})
_POSITIONS = ((), (), (Table(name="position", rows=5, width=8),))
_HEADS = ({}, {"width": 8}, {"bias": True}, {"tied": True}, {"tied": True, "bias": True}, None)


@st.composite
def models(draw: st.DrawFn, *kinds: str, encoder: bool = True) -> ModelProfile:
    """Draw a model of the mixers named, with an encoder or without, with a tied head, one of its own, or none."""
    hidden, rows = draw(st.sampled_from(((8, 10), (64, 1), (1, 256), (96, 100))))
    head = draw(st.sampled_from(_HEADS))
    return ModelProfile(
        name="random-model",
        architecture="random",
        hidden_size=hidden,
        context_limit=draw(maybe(st.integers(1, 200))),
        blocks=draw(stacks(*kinds)),
        embeddings=(Table(name="token", rows=rows, width=hidden), *draw(st.sampled_from(_POSITIONS))),
        head=None if head is None else Head(rows=rows, **head),
        encoder=draw(st.sampled_from((None, None, None, True)).flatmap(lambda has: encoders() if has else st.none()))
        if encoder
        else None,
        **draw(st.sampled_from(_OUTSIDE)),
    )


@st.composite
def encoders(draw: st.DrawFn) -> Encoder:
    """Draw an encoder of full-attention layers."""
    return Encoder(
        hidden_size=draw(widths),
        blocks=(draw(blocks("full")),) * 2,
        tokens=draw(windows),
        embeddings=draw(st.sampled_from(_POSITIONS)),
        **draw(st.sampled_from(_OUTSIDE)),
    )


@st.composite
def described_models(draw: st.DrawFn) -> ModelProfile:
    """Draw a model with everything that is only written down: names, notes, sources."""
    return replace(
        draw(models()),
        architecture=draw(words),
        dtype=draw(st.sampled_from(("bf16", "fp16", "fp32"))),
        weight_formats=draw(st.dictionaries(st.sampled_from(PARTS), st.sampled_from(WEIGHTS), max_size=2)),
        kv_dtype=draw(maybe(st.sampled_from(CACHES))),
        activation_dtype=draw(maybe(st.sampled_from(PLAIN))),
        held_weight_bytes=draw(maybe(st.integers(0, 10**13))),
        aliases=tuple(draw(st.lists(words, max_size=2))),
        notes=tuple(draw(st.lists(words, max_size=2))),
        **draw(_described),
    )


_described = st.builds(
    lambda source, known: {"sources": {"sheet": source}, "provenance": {"default": "sheet"}} if known else {},
    st.builds(
        Source,
        kind=st.sampled_from(("datasheet", "model_config", "measured", "derived", "third_party")),
        url=st.just("https://example.com/sheet?a=1#b"),
        date=st.sampled_from(("", "2025-01-31")),
        note=words,
        verified=st.booleans(),
    ),
    st.booleans(),
)

rates = st.floats(1e9, 1e16)
_links = st.builds(Link, name=words, bytes_per_s=st.floats(1e8, 1e12), latency_s=maybe(st.floats(0, 1e-3)))


@st.composite
def accelerators(draw: st.DrawFn) -> HardwareProfile:
    """Draw an accelerator: any peaks, with links or without."""
    units = ("fp64", "fp32", "tf32", "bf16", "bf16_acc16", "fp16", "fp16_acc16", "fp8", "fp6", "fp4", "int8", "int4")
    return HardwareProfile(
        name="random-card",
        title=draw(words),
        vendor=draw(words),
        memory_label_bytes=draw(st.floats(1e9, 1e12)),
        memory_bandwidth_bytes_per_s=draw(st.floats(1e9, 1e13)),
        peak_flop_per_s=draw(st.dictionaries(st.sampled_from(units), rates, min_size=1, max_size=4)),
        memory_bytes=draw(maybe(st.integers(1, 10**12))),
        last_level_cache_bytes=draw(maybe(st.integers(1, 10**9))),
        links=draw(st.dictionaries(st.sampled_from(("scale_up", "scale_out")), _links)),
        board_power_w=draw(maybe(st.floats(1, 2000))),
        price_per_hour_usd=draw(maybe(st.floats(1e-3, 100))),
        architecture=draw(words),
        aliases=tuple(draw(st.lists(words, max_size=2))),
        notes=tuple(draw(st.lists(words, max_size=2))),
        **draw(_described),
    )


def formats(*, plain: bool = False) -> st.SearchStrategy[Formats]:
    """Return a strategy of formats; with ``plain``, those without blocks or scales, whose bytes add up exactly."""

    def choose(names: tuple[str, ...]) -> st.SearchStrategy:
        return st.sampled_from(PLAIN if plain else names).map(parse_format)

    return st.builds(
        Formats,
        weights=choose(WEIGHTS),
        parts=st.sampled_from(("experts", "head", "vector")).flatmap(
            lambda part: choose(WEIGHTS).map(lambda fmt: {part: fmt})
        ),
        key=choose(CACHES),
        value=choose(CACHES),
        state=choose(PLAIN),
        activations=choose(PLAIN),
        hidden=choose(PLAIN),
    )


groups = st.builds(
    TokenGroup,
    sequences=st.integers(1, 50),
    query_tokens=st.integers(1, 50),
    past_tokens=st.integers(0, 300),
    logit_tokens=st.integers(0, 2),
    encoder_pass=st.booleans(),
)


@st.composite
def parallels(draw: st.DrawFn, *, stages: int = 1) -> Parallel:
    """Draw parallel sizes that do not contradict each other."""
    tensor, data = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    ranks = tensor * data
    expert = draw(st.sampled_from([size for size in range(1, ranks + 1) if ranks % size == 0]))
    return Parallel(tensor=tensor, data=data, expert=expert, pipeline=draw(st.integers(1, stages)))


def model_with_everything() -> ModelProfile:
    """Return a model with a layer of every kind and nearly every field set."""
    heads = {"heads": 2, "kv_heads": 1, "head_dim": 4, "value_head_dim": 2}
    index = Indexer(heads=1, head_dim=2, top_k=3, query_inputs=4, matrix_parameters=4, stored_dim=4, pool=2)
    entries = Indexer(heads=1, head_dim=2, top_k=3)
    latent = {"heads": 2, "kv_lora_rank": 4, "rope_dim": 2, "nope_dim": 2, "value_head_dim": 2, "q_lora_rank": 2}
    compressed = {"heads": 2, "head_dim": 4, "window": 4, "ratio": 2, "overlap": True, "q_lora_rank": 2}
    state = {"heads": 2, "key_dim": 2, "value_dim": 2, "conv_channels": 8, "conv_window": 4, "conv_kernel": 4}
    layers = (
        Full(**heads, inputs=8, output_gate=1, value_from_key=True, indexer=index),
        Sliding(**heads, window=3, shared_weights=True),
        Chunked(**heads, chunk=3, projection_parameters=50),
        Shared(**heads, window=3, projects=True),
        Cross(**heads, encoder_tokens=3, encoder_inputs=3),
        Latent(**latent, output_gate=4, indexer=entries),
        Compressed(**compressed, output_groups=1, output_rank=2, indexer=entries),
        State(**state, variant="mamba", recurrent_format="fp32", extra_state_bytes=4, matrix_parameters=8, groups=2),
    )
    mixture = Mixture(
        experts=4,
        experts_per_token=2,
        width=4,
        shared_width=2,
        shared_gate=True,
        zero_experts=1,
        inputs=4,
        expert_bias=True,
    )
    mlps = (mixture, Dense(width=4), Gated(width=4, shared_weights=True))
    blocks = [
        Block(name=mixer.kind, mixers=(mixer,), mlp=mlps[place % 3], matrix_parameters=4, vector_parameters=4)
        for place, mixer in enumerate(layers)
    ]
    tables = (Table(name="token", rows=4, width=8),)
    return ModelProfile(
        name="everything",
        architecture="random",
        hidden_size=8,
        context_limit=100,
        blocks=tuple(blocks),
        embeddings=tables,
        head=Head(rows=4, width=8, tied=True, bias=True),
        weight_formats={"mlp": "fp8"},
        kv_dtype="q8_0",
        activation_dtype="fp8",
        encoder=Encoder(
            hidden_size=8, blocks=(blocks[0],), tokens=3, embeddings=tables, matrix_parameters=4, vector_parameters=4
        ),
        matrix_parameters=4,
        vector_parameters=4,
        held_weight_bytes=1000,
        sources={"config": Source(kind="model_config", url="https://example.com")},
        provenance={"default": "config"},
    )


_SHARES = st.floats(0.01, 1)
_WAITS = st.floats(0, 1e-3)
_MULTIPLES = st.tuples(st.floats(0.3, 1), st.floats(1, 3)).map(lambda ends: Interval(low=ends[0], high=ends[1]))


@st.composite
def calibrations(draw: st.DrawFn) -> Calibration:
    """What some engine reaches; matrices always, other kinds and formats at times."""
    reach = st.builds(Reach, bandwidth_share=_SHARES, flop_share=_SHARES, call_s=_WAITS)
    kinds = st.sampled_from(["attention", "experts", "matrix:fp8", "attention:bf16"])
    return Calibration(
        name="drawn",
        engine="any",
        applies_to=("any",),
        reach={"matrix": draw(reach), **draw(st.dictionaries(kinds, reach, max_size=2))},
        memory_interval=draw(_MULTIPLES),
        compute_interval=draw(_MULTIPLES),
        step_s=draw(_WAITS),
        layer_s=draw(_WAITS),
        collective_s=draw(_WAITS),
        link_share=draw(_SHARES),
        direct_share=draw(st.none() | _SHARES),
        staged_s=draw(_WAITS),
        measured=Measured(device="any"),
    )
