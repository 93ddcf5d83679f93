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

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Tokens = NDArray[np.int64]

__all__ = [
    "MAX_SEED",
    "Decoder",
    "DecoderShape",
    "ForwardPass",
    "KeyValueCache",
    "forward",
    "generate",
    "random_decoder",
]

MAX_SEED = 2**63 - 1
_MAX_LAYERS = 16
_MAX_HEADS = 64
_MLP = 2
# wider than usual, so that random layers change what the embedding alone would say
_GAIN = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderShape:
    """The sizes of a small causal decoder.

    Args:
        layers: layers.
        heads: query heads.
        kv_heads: key-value heads; they divide ``heads``.
        head_dim: width of a head.
        vocabulary: tokens there are.
    """

    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 8
    vocabulary: int = 50

    @property
    def hidden_size(self) -> int:
        """Width of the hidden state."""
        return self.heads * self.head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderLayer:
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
    layers: tuple[DecoderLayer, ...]
    head: Array
    causal: bool = True


@dataclass(slots=True)
class KeyValueCache:
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
class ForwardPass:
    """The results of one forward pass.

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
    """Make a decoder with weights that follow from the seed.

    Raises:
        InputError: sizes below one, above what a demonstration should hold, or key-value heads that do not divide the
            query heads.
    """
    _check_shape(shape)
    check_between("seed", seed, 0, MAX_SEED)
    random = np.random.default_rng(seed)
    hidden, narrow = shape.hidden_size, shape.kv_heads * shape.head_dim

    def matrix(inputs: int, outputs: int) -> Array:
        return random.normal(scale=_GAIN * inputs**-0.5, size=(inputs, outputs))

    embedding = random.normal(size=(shape.vocabulary, hidden))
    layers = tuple(
        DecoderLayer(
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
    limits = {"layers": _MAX_LAYERS, "heads": _MAX_HEADS, "kv_heads": _MAX_HEADS, "head_dim": 64, "vocabulary": 4096}
    for name, limit in limits.items():
        check_between(name.replace("_", "-"), getattr(shape, name), 1, limit)
    if shape.heads % shape.kv_heads:
        raise InputError(
            f"{shape.kv_heads} key-value heads do not divide {shape.heads} query heads",
            hint="each key-value head serves the same number of query heads",
        )


def forward(
    decoder: Decoder, tokens: Tokens, cache: KeyValueCache | None = None, *, by_row: bool = False
) -> ForwardPass:
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
    return ForwardPass(logits=logits, attention=np.stack(outputs), projections=new, shapes=shapes)


def _positions(past: int, new: int, width: int) -> Array:
    """Sines and cosines of the positions past … past + new - 1, [new, D] (Vaswani et al. 2017, section 3.5)."""
    positions = np.arange(past, past + new)[:, None]
    columns = np.arange(width)
    angles = positions / 10000.0 ** (2 * (columns // 2) / width)
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


def _extended(cache: KeyValueCache, index: int, key: Array, value: Array) -> tuple[Array, Array]:
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
    attended = keys.shape[2]
    if by_row:
        rows = [_one_row(query, keys, values, token, decoder.causal) for token in range(new)]
        return np.stack(rows, axis=1).reshape(batch, new, heads * width), (batch, heads, new, attended)
    scores = query @ keys.transpose(0, 1, 3, 2) / width**0.5
    if decoder.causal:
        hidden = np.arange(attended)[None, :] > np.arange(attended - new, attended)[:, None]
        scores = np.where(hidden, -np.inf, scores)
    mixed = _softmax(scores) @ values
    return mixed.transpose(0, 2, 1, 3).reshape(batch, new, heads * width), scores.shape


def _one_row(query: Array, keys: Array, values: Array, token: int, causal: bool) -> Array:  # noqa: FBT001  a row of a sum
    """One token's output for every sequence and head, [B, H*d], from the tokens it sees and no others."""
    batch, heads, new, width = query.shape
    seen = keys.shape[2] - new + token + 1 if causal else keys.shape[2]
    rows = []
    for sequence in range(batch):
        for head in range(heads):
            sees = np.ascontiguousarray(keys[sequence, head, :seen])
            weights = _softmax(sees @ np.ascontiguousarray(query[sequence, head, token]) / width**0.5)
            rows.append(weights @ np.ascontiguousarray(values[sequence, head, :seen]))
    return np.concatenate(rows).reshape(batch, heads * width)


def _softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def generate(
    decoder: Decoder, prompt: Tokens, output_tokens: int, *, cached: bool, by_row: bool = False
) -> tuple[Tokens, list[ForwardPass], KeyValueCache]:
    """Return prompt and generated tokens, [B, T + n], each pass, and the cache; the likeliest token is always taken.

    Without a cache every pass runs the whole sequence; with one the first runs the prompt, each later one a token.
    """
    cache = KeyValueCache([], [])
    passes = []
    sequence = prompt
    for made in range(output_tokens):
        new = sequence[:, -1:] if cached and made else sequence
        result = forward(decoder, new, cache if cached else None, by_row=by_row)
        passes.append(result)
        chosen = result.logits.argmax(axis=-1)
        sequence = np.concatenate([sequence, chosen[:, None]], axis=1)
    return sequence, passes, cache
