"""A small causal decoder that generates token by token, without and with a cache of keys and values.

Shapes, as in Vaswani et al. 2017, arXiv 1706.03762, with grouped key-value heads (Ainslie et al. 2023, arXiv
2305.13245): B sequences, T new tokens, S tokens attended, D the hidden size, H query heads of width d, G key-value
heads. Scores are [B, H, T, S].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.lessons import DecoderShape, KvCacheReport, KvCacheStep

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Tokens = NDArray[np.int64]

__all__ = ["MOST_SEED", "Cache", "Decoder", "Pass", "generate", "kv_cache_report", "random_decoder"]

MOST_SEED = 2**63 - 1
_MOST_TOKENS = 512
_MOST_LAYERS = 16
_MOST_HEADS = 64
_MOST_BATCH = 64
# Scores of all passes without a cache, and tokens for which the runs are compared row by row.
_MOST_SCORES = 3 * 10**7
_ROW_TOKENS = 8
_MLP = 2
# wider than usual, so that random layers change what the embedding alone would say
_GAIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The matrices of one layer: query [D, H*d], key and value [D, G*d], output [H*d, D], MLP up and down."""

    query: Array
    key: Array
    value: Array
    output: Array
    up: Array
    down: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder:
    """A decoder with random weights.

    Args:
        shape: its sizes.
        embedding: [vocabulary, D].
        layers: the layers.
        head: [D, vocabulary].
        causal: whether a token sees only itself and what came before.
    """

    shape: DecoderShape
    embedding: Array
    layers: tuple[Layer, ...]
    head: Array
    causal: bool = True


@dataclass(slots=True)
class Cache:
    """Keys and values of each layer, [B, G, S, d]; empty at first."""

    keys: list[Array]
    values: list[Array]

    @property
    def tokens(self) -> int:
        """Tokens held for each sequence."""
        return self.keys[0].shape[2] if self.keys else 0

    @property
    def bytes(self) -> int:
        """Bytes held."""
        return sum(array.nbytes for array in (*self.keys, *self.values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """What one forward pass did.

    Args:
        logits: of the last token, [B, vocabulary].
        attention: the last token's attention output of each layer, [layers, B, H*d].
        projections: tokens whose keys and values were computed, in each layer.
        shapes: shape of each tensor of a layer.
    """

    logits: Array
    attention: Array
    projections: int
    shapes: dict[str, tuple[int, ...]]


def random_decoder(shape: DecoderShape, *, seed: int, causal: bool = True) -> Decoder:
    """Return a decoder whose weights follow from the seed.

    Raises:
        InputError: sizes below one, above what a demonstration should hold, or key-value heads that do not divide the
            query heads.
    """
    _check_shape(shape)
    check_between("seed", seed, 0, MOST_SEED)
    random = np.random.default_rng(seed)
    hidden, narrow = shape.hidden_size, shape.kv_heads * shape.head_dim

    def matrix(inputs: int, outputs: int) -> Array:
        return random.normal(scale=_GAIN * inputs**-0.5, size=(inputs, outputs))

    embedding = random.normal(size=(shape.vocabulary, hidden))
    layers = tuple(
        Layer(
            query=matrix(hidden, hidden),
            key=matrix(hidden, narrow),
            value=matrix(hidden, narrow),
            output=matrix(hidden, hidden),
            up=matrix(hidden, _MLP * hidden),
            down=matrix(_MLP * hidden, hidden),
        )
        for _ in range(shape.layers)
    )
    head = matrix(hidden, shape.vocabulary)
    return Decoder(shape=shape, embedding=embedding, layers=layers, head=head, causal=causal)


def _check_shape(shape: DecoderShape) -> None:
    limits = {"layers": _MOST_LAYERS, "heads": _MOST_HEADS, "kv_heads": _MOST_HEADS, "head_dim": 64, "vocabulary": 4096}
    for name, most in limits.items():
        check_between(name.replace("_", "-"), getattr(shape, name), 1, most)
    if shape.heads % shape.kv_heads:
        raise InputError(
            f"{shape.kv_heads} key-value heads do not divide {shape.heads} query heads",
            hint="each key-value head serves the same number of query heads",
        )


def forward(decoder: Decoder, tokens: Tokens, cache: Cache | None = None, *, by_row: bool = False) -> Pass:
    """Run new tokens through the decoder; with a cache, attend to what it holds and add to it.

    Args:
        decoder: the decoder.
        tokens: new tokens, [B, T].
        cache: keys and values of what came before; extended in place.
        by_row: multiply one token's row at a time, so that the order of additions does not depend on T.
    """
    past = cache.tokens if cache is not None else 0
    width, new = decoder.shape.hidden_size, tokens.shape[1]
    hidden = decoder.embedding[tokens] + _positions(past, new, width)
    outputs, shapes = [], {"hidden": hidden.shape}
    for index, layer in enumerate(decoder.layers):
        normed = _normed(hidden)
        query, key, value = (
            _heads(_times(normed, matrix, by_row=by_row), decoder.shape.head_dim)
            for matrix in (layer.query, layer.key, layer.value)
        )
        if cache is not None:
            key, value = _extended(cache, index, key, value)
        mixed, scores = _attend(query, key, value, decoder, by_row=by_row)
        outputs.append(mixed[:, -1])
        hidden = hidden + _times(mixed, layer.output, by_row=by_row)
        inner = np.maximum(_times(_normed(hidden), layer.up, by_row=by_row), 0)
        hidden = hidden + _times(inner, layer.down, by_row=by_row)
        shapes |= {"query": query.shape, "key": key.shape, "value": value.shape, "scores": scores}
    logits = _times(_normed(hidden[:, -1:]), decoder.head, by_row=by_row)[:, 0]
    return Pass(logits=logits, attention=np.stack(outputs), projections=new, shapes=shapes)


def _positions(past: int, new: int, width: int) -> Array:
    """Sines and cosines of the places past … past + new - 1, [new, D] (Vaswani et al. 2017, section 3.5)."""
    places = np.arange(past, past + new)[:, None]
    columns = np.arange(width)
    angles = places / 10000.0 ** (2 * (columns // 2) / width)
    return np.where(columns % 2, np.cos(angles), np.sin(angles))


def _normed(hidden: Array) -> Array:
    return np.asarray(hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + 1e-6))


def _times(rows: Array, matrix: Array, *, by_row: bool) -> Array:
    if not by_row:
        return rows @ matrix
    flat = [row @ matrix for row in np.ascontiguousarray(rows).reshape(-1, rows.shape[-1])]
    return np.stack(flat).reshape(*rows.shape[:-1], matrix.shape[1])


def _heads(rows: Array, head_dim: int) -> Array:
    """[B, T, n*d] as [B, n, T, d]."""
    batch, tokens, width = rows.shape
    return rows.reshape(batch, tokens, width // head_dim, head_dim).transpose(0, 2, 1, 3)


def _extended(cache: Cache, index: int, key: Array, value: Array) -> tuple[Array, Array]:
    if index == len(cache.keys):
        cache.keys.append(key)
        cache.values.append(value)
    else:
        cache.keys[index] = np.concatenate([cache.keys[index], key], axis=2)
        cache.values[index] = np.concatenate([cache.values[index], value], axis=2)
    return cache.keys[index], cache.values[index]


def _attend(query: Array, key: Array, value: Array, decoder: Decoder, *, by_row: bool) -> tuple[Array, tuple[int, ...]]:
    """Return the attention's output, [B, T, H*d], and the shape of its scores."""
    group = decoder.shape.heads // decoder.shape.kv_heads
    keys, values = np.repeat(key, group, axis=1), np.repeat(value, group, axis=1)
    batch, heads, new, width = query.shape
    held = keys.shape[2]
    if by_row:
        rows = [_one_row(query, keys, values, place, decoder.causal) for place in range(new)]
        return np.stack(rows, axis=1).reshape(batch, new, heads * width), (batch, heads, new, held)
    scores = query @ keys.transpose(0, 1, 3, 2) / width**0.5
    if decoder.causal:
        hidden = np.arange(held)[None, :] > np.arange(held - new, held)[:, None]
        scores = np.where(hidden, -np.inf, scores)
    mixed = _softmax(scores) @ values
    return mixed.transpose(0, 2, 1, 3).reshape(batch, new, heads * width), scores.shape


def _one_row(query: Array, keys: Array, values: Array, place: int, causal: bool) -> Array:  # noqa: FBT001  a row of a sum
    """One token's output for every sequence and head, [B, H*d], from the tokens it sees and no others."""
    batch, heads, new, width = query.shape
    seen = keys.shape[2] - new + place + 1 if causal else keys.shape[2]
    rows = []
    for sequence in range(batch):
        for head in range(heads):
            sees = np.ascontiguousarray(keys[sequence, head, :seen])
            weights = _softmax(sees @ np.ascontiguousarray(query[sequence, head, place]) / width**0.5)
            rows.append(weights @ np.ascontiguousarray(values[sequence, head, :seen]))
    return np.concatenate(rows).reshape(batch, heads * width)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def generate(
    decoder: Decoder, prompt: Tokens, output_tokens: int, *, cached: bool, by_row: bool = False
) -> tuple[Tokens, list[Pass], Cache]:
    """Return prompt and generated tokens, [B, T + n], each pass, and the cache; the likeliest token is always taken.

    Without a cache every pass runs the whole sequence; with one the first runs the prompt, each later one a token.
    """
    cache = Cache([], [])
    passes = []
    sequence = prompt
    for place in range(output_tokens):
        new = sequence[:, -1:] if cached and place else sequence
        done = forward(decoder, new, cache if cached else None, by_row=by_row)
        passes.append(done)
        chosen = done.logits.argmax(axis=-1)
        sequence = np.concatenate([sequence, chosen[:, None]], axis=1)
    return sequence, passes, cache


def kv_cache_report(
    shape: DecoderShape, *, prompt_tokens: int = 3, output_tokens: int = 20, batch: int = 1, seed: int = 0
) -> KvCacheReport:
    """Generate the same tokens without and with a cache and compare the two runs.

    Raises:
        InputError: no tokens, or sizes above what a demonstration should hold.
    """
    check_between("prompt", prompt_tokens, 1, _MOST_TOKENS)
    check_between("output-tokens", output_tokens, 1, _MOST_TOKENS)
    check_between("batch", batch, 1, _MOST_BATCH)
    decoder = random_decoder(shape, seed=seed)
    squares = sum(length**2 for length in range(prompt_tokens, prompt_tokens + output_tokens))
    scores = batch * shape.layers * shape.heads * squares
    if scores > _MOST_SCORES:
        raise InputError(
            f"{scores:,} attention scores without a cache are more than the {_MOST_SCORES:,} of a demonstration",
            hint="fewer tokens, sequences, layers or heads",
        )
    prompt = np.random.default_rng(seed).integers(shape.vocabulary, size=(batch, prompt_tokens))
    plain, without, _ = generate(decoder, prompt, output_tokens, cached=False)
    cached, with_cache, cache = generate(decoder, prompt, output_tokens, cached=True)
    few = min(output_tokens, _ROW_TOKENS)
    rows = [generate(decoder, prompt[:1], few, cached=kept, by_row=True)[1] for kept in (False, True)]
    both_ways, wrong = _both_ways(shape, prompt, output_tokens, seed)
    return KvCacheReport(
        shape=shape,
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seed=seed,
        projections_without=sum(done.projections for done in without),
        projections_with=sum(done.projections for done in with_cache),
        same_tokens=bool((plain == cached).all()),
        difference=max(map(_difference, without, with_cache)),
        by_row_difference=max(map(_difference, *rows)),
        both_ways_difference=both_ways,
        both_ways_first_wrong=wrong,
        cache_bytes=cache.bytes,
        steps=_steps(without, with_cache, cached[:, prompt_tokens:]),
    )


def _both_ways(shape: DecoderShape, prompt: Tokens, output_tokens: int, seed: int) -> tuple[float, int | None]:
    """Run a decoder without the causal mask and return how far a cache leads it astray, and from which token on.

    One layer would not show it: its keys and values depend on the tokens alone. From the second on they depend on all
    that the first attended to, and that changes with every token.
    """
    deep = DecoderShape(
        layers=max(2, shape.layers),
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
    )
    decoder = random_decoder(deep, seed=seed, causal=False)
    plain, without, _ = generate(decoder, prompt, max(2, output_tokens), cached=False)
    cached, with_cache, _ = generate(decoder, prompt, max(2, output_tokens), cached=True)
    new = slice(prompt.shape[1], None)
    differs = np.flatnonzero((plain[:, new] != cached[:, new]).any(axis=0))
    # the second pass is the first that uses the cache; after a wrong token the two runs are of other text
    return _difference(without[1], with_cache[1]), int(differs[0]) + 1 if differs.size else None


def _difference(one: Pass, other: Pass) -> float:
    return float(np.abs(one.attention - other.attention).max())


def _steps(without: list[Pass], with_cache: list[Pass], made: Tokens) -> tuple[KvCacheStep, ...]:
    return tuple(
        KvCacheStep(
            place=place + 1,
            phase="decode" if place else "prefill",
            past_tokens=cached.shapes["key"][2] - cached.projections,
            tokens=tuple(int(token) for token in made[:, place]),
            projections_without=plain.projections,
            projections_with=cached.projections,
            shapes=cached.shapes,
            shapes_without=plain.shapes,
            difference=_difference(plain, cached),
        )
        for place, (plain, cached) in enumerate(zip(without, with_cache, strict=True))
    )
