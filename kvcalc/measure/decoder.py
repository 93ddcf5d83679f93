"""A decoder in plain torch with a profile's shapes and random weights: prefill, decode, verify.

It has the sizes, the cache and the work of the model, not its knowledge. A part that it does not build is refused by
name.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Attention, Chunked, Full, Latent, Mixture, Sliding, State
from kvcalc.measure.attention import GroupedAttention, HeadsCache, Pass
from kvcalc.measure.kernels import Plain, kernels_of, normalised
from kvcalc.measure.latent import LatentAttention
from kvcalc.measure.library import torch_dtype
from kvcalc.measure.mlp import Experts, PlainMlp
from kvcalc.measure.state import StateCache, StateLayer, check_state
from kvcalc.measure.vectors import final_layout, vector_layout
from kvcalc.measure.weights import WeightMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.model import Block, Mixer, Mlp, ModelProfile
    from kvcalc.measure.library import Device
    from kvcalc.measure.products import Products

__all__ = ["Cache", "Decoder", "check_supported", "decode_n_tokens", "decode_one_token", "prefill", "verify"]

_PREFILL_CHUNK = 512
_NORM_SPREAD = 0.02


def check_supported(model: ModelProfile) -> None:
    """Refuse what the decoder does not build, by name.

    Raises:
        UnsupportedError: the first such part.
    """
    if model.encoder is not None:
        raise UnsupportedError(f"{model.name}: the decoder builds no encoder")
    if model.head is None or model.head.width not in (None, model.hidden_size) or model.matrix_parameters:
        raise UnsupportedError(f"{model.name}: the decoder builds no projections around its layers, and needs a head")
    names = [table.name for table in model.embeddings]
    if names not in (["token"], ["token", "position"]):
        raise UnsupportedError(f"{model.name}: the decoder builds no tables but those of tokens and positions: {names}")
    for block in model.block_counts:
        reason = _unsupported(block)
        if reason:
            raise UnsupportedError(
                f"{model.name}: the decoder builds no {reason}", hint="docs/measure.md lists the kinds"
            )
        for mixer in block.mixers:
            if isinstance(mixer, State):
                check_state(mixer, model.hidden_size, name=model.name)


def _unsupported(block: Block) -> str:
    mlp = block.mlp
    if block.matrix_parameters:
        return "further matrices in a layer"
    if isinstance(mlp, Mixture) and (mlp.inputs is not None or mlp.zero_experts or not mlp.router):
        return "mixture with a width of its own, experts that do nothing or no router"
    if mlp is not None and getattr(mlp, "shared_weights", False):
        return "MLP with another layer's weights"
    return next((reason for mixer in block.mixers if (reason := _unsupported_mixer(mixer))), "")


def _unsupported_mixer(mixer: Mixer) -> str:
    if not isinstance(mixer, Full | Sliding | Chunked | Latent | State):
        return f"{mixer.kind} attention"
    if mixer.indexer is not None:
        return f"{mixer.kind} attention with a sparse indexer"
    if isinstance(mixer, Attention):
        own = (mixer.inputs, mixer.projection_parameters)
        if own != (None, None) or mixer.value_from_key or mixer.shared_weights:
            return f"{mixer.kind} attention with projections of its own kind"
        if mixer.heads % mixer.kv_heads or mixer.head_dim % 2:
            return f"{mixer.kind} attention of {mixer.heads} heads on {mixer.kv_heads} KV heads of {mixer.head_dim}"
    return ""


@dataclass(slots=True, kw_only=True)
class Cache:
    """The caches of all layers, allocated once, and how many tokens they hold.

    Args:
        layers: for each layer, the cache of each of its mixers.
        batch: sequences.
        capacity: tokens of each sequence.
        length: tokens of each sequence that are in it.
        position: the same as a number on the device, where passes are to run at any position; then ``length`` is not
            looked at.
    """

    layers: tuple[tuple[Any, ...], ...]
    batch: int
    capacity: int
    length: int = 0
    position: Any = None

    @property
    def tensors(self) -> list[Any]:
        """Every tensor that was allocated."""
        return [tensor for layer in self.layers for cache in layer for tensor in cache.tensors]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of the tensors' storage."""
        return sum(tensor.untyped_storage().nbytes() for tensor in self.tensors)

    def advance(self, tokens: int) -> None:
        """Count so many new tokens of each sequence, or take the latest back where the number is below zero."""
        self.length += tokens
        if self.position is not None:
            self.position.add_(tokens)

    def snapshot(self, *, rings: bool = False) -> Callable[[], None]:
        """Remember states and position, and return a call that puts them back: a pass moves them on in place.

        Args:
            rings: whether places that are used in turn are remembered as well, for passes at several positions.
        """
        moving = [] if self.position is None else [self.position]
        for cache in (cache for layer in self.layers for cache in layer):
            ring = isinstance(cache, HeadsCache) and cache.keys.shape[2] < self.capacity
            if isinstance(cache, StateCache) or (rings and ring):
                moving += cache.tensors
        copies = [tensor.clone() for tensor in moving]

        def restore() -> None:
            for tensor, copy in zip(moving, copies, strict=True):
                tensor.copy_(copy)

        return restore

    def fill(self, make: WeightMaker) -> None:
        """Fill the cache with random entries up to one token below its capacity, as a prompt would have."""
        for tensor in self.tensors:
            make.fill(tensor)
        self.length = self.capacity - 1


class _Layer:
    """One layer: its norms, its mixers, its MLP."""

    def __init__(self, block: Block, model: ModelProfile, make: WeightMaker, device: Device) -> None:
        self.block, hidden = block, model.hidden_size
        centred = "norm_bias" in final_layout(model.vector_parameters, hidden)
        self.vectors = _vectors(vector_layout(block, hidden, centred=centred), make)
        self.mixers = [self._mixer(mixer, hidden, make) for mixer in block.mixers]
        self.mlp = _mlp(block.mlp, hidden, make, self.vectors, device)

    def _mixer(self, mixer: Mixer, hidden: int, make: WeightMaker) -> Any:
        if isinstance(mixer, Latent):
            return LatentAttention(mixer, hidden, make, self.vectors)
        if isinstance(mixer, State):
            return StateLayer(mixer, hidden, make, self.vectors)
        if isinstance(mixer, Full | Sliding | Chunked):
            return GroupedAttention(mixer, hidden, make, self.vectors)
        raise UnsupportedError(f"the decoder builds no {mixer.kind} attention")

    def _normed(self, stream: _Stream, number: int) -> Any:
        name = f"norm_{number}"
        return stream.normed(self.vectors.get(name), self.vectors.get(f"{name}_bias"))

    def _after(self, vectors: Any, number: int) -> Any:
        weight = self.vectors.get(f"post_norm_{number}")
        return vectors if weight is None else normalised(vectors, weight)

    def __call__(self, stream: _Stream, caches: Sequence[Any], run: Pass) -> None:
        """Run the layer and add what it makes to the hidden states."""
        if self.block.parallel:
            inputs = self._normed(stream, 0)
            beside = self._normed(stream, 1) if "norm_1" in self.vectors else inputs
            mixed = self._mix(inputs, caches, run)
            stream.add(mixed if self.mlp is None else mixed + self.mlp(beside, run))
            return
        number = 0
        if self.mixers:
            stream.add(self._after(self._mix(self._normed(stream, number), caches, run), number))
            number += 1
        if self.mlp is not None:
            stream.add(self._after(self.mlp(self._normed(stream, number), run), number))

    def _mix(self, inputs: Any, caches: Sequence[Any], run: Pass) -> Any:
        mixed = (mixer(inputs, cache, run) for mixer, cache in zip(self.mixers, caches, strict=True))
        return reduce(operator.add, mixed)


class _Stream:
    """The hidden states between layers; an update waits for the next norm, which one kernel may add it in."""

    def __init__(self, hidden: Any, kernels: Plain) -> None:
        self._hidden, self._update, self._kernels = hidden, None, kernels

    def add(self, update: Any) -> None:
        if self._update is not None:
            self._hidden = self._hidden + self._update
        self._update = update

    def normed(self, weight: Any, bias: Any) -> Any:
        if self._update is None:
            return normalised(self._hidden, weight, bias)
        self._hidden, normed = self._kernels.add_norm(self._hidden, self._update, weight, bias)
        self._update = None
        return normed

    def keep_last(self, tokens: int) -> None:
        """Go on with the last tokens alone."""
        self._hidden = self._hidden[:, -tokens:]
        self._update = None if self._update is None else self._update[:, -tokens:]


def _mlp(mlp: Mlp | None, hidden: int, make: WeightMaker, vectors: Mapping[str, Any], device: Device) -> Any:
    if mlp is None:
        return None
    if isinstance(mlp, Mixture):
        return Experts(mlp, hidden, make, vectors, device)
    return PlainMlp.of(mlp, hidden, make, vectors)


def _vectors(layout: Mapping[str, int], make: WeightMaker) -> dict[str, Any]:
    """Return vectors of a layout as pieces of one tensor: those that scale lie about one, the others about zero."""
    count = sum(layout.values())
    if not count:
        return {}
    whole = make.tensor(count, scale=_NORM_SPREAD)
    pieces = dict(zip(layout, whole.split(list(layout.values())), strict=True))
    for name, piece in pieces.items():
        if "norm" in name and not name.endswith("bias"):
            piece.add_(1)
        elif name == "conv":
            piece.add_(torch.linspace(-1, 1, piece.numel(), device=piece.device).to(piece.dtype))
    return pieces


class Decoder:
    """A model's layers with random weights, which are the same whenever the seed is.

    Args:
        model: the profile.
        weights: format of weights, cache and activations: bf16, fp16 or fp32.
        device: where it runs.
        seed: of the weights.
        products: how matrices are multiplied, and in what order they are held; torch's usual way where left out.
        kernels: the variant of the layers' small operations: plain, sdpa or fused.

    Raises:
        UnsupportedError: a kind of layer that it does not build.
        InputError: a format that it does not run in, or kernels that do not run here.
    """

    def __init__(
        self,
        model: ModelProfile,
        *,
        weights: str,
        device: Device,
        seed: int = 0,
        products: Products | None = None,
        kernels: str = "plain",
    ) -> None:
        check_supported(model)
        self.model, self.device, self.weights = model, device, weights
        self.kernels = kernels_of(kernels, device)
        self.dtype = torch_dtype(weights)
        self.make = make = WeightMaker(self.dtype, device, seed=seed, products=products)
        head = model.head
        # a tied table of the layers' size would answer every token with itself
        spread = _NORM_SPREAD if head is not None and head.tied else 1.0
        tables = [make.tensor(table.rows, table.width, scale=spread) for table in model.embeddings]
        self.tokens, self.positions = tables[0], tables[1] if tables[1:] else None
        self.layers = [_Layer(block, model, make, device) for block in model.blocks]
        self.final = _vectors(final_layout(model.vector_parameters, model.hidden_size), make)
        bias = make.tensor(head.rows, scale=_NORM_SPREAD) if head is not None and head.bias else None
        if head is not None and head.tied:
            self.head = make.held(self.tokens, bias)
            self.copied_bytes = self.tokens.nbytes if make.products.packs else 0
        else:
            self.head = make.linear(model.hidden_size, 0 if head is None else head.rows, bias)
            self.copied_bytes = 0
        self.weight_bytes = make.held_bytes

    @property
    def vocabulary(self) -> int:
        """Tokens it knows."""
        rows: int = self.tokens.shape[0]
        return rows

    def new_cache(self, *, batch: int, capacity: int) -> Cache:
        """Return an empty cache for a batch of sequences of so many tokens."""
        caches = [tuple(self._mixer_cache(mixer, batch, capacity) for mixer in layer.mixers) for layer in self.layers]
        return Cache(layers=tuple(caches), batch=batch, capacity=capacity)

    def _mixer_cache(self, mixer: Any, batch: int, capacity: int) -> Any:
        if isinstance(mixer, StateLayer):
            kept = mixer.mixer.recurrent_format
            recurrent = self.dtype if kept is None else torch_dtype(parse_format(kept).name)
            return mixer.new_cache(batch, self.dtype, recurrent, self.device.kind)
        return mixer.new_cache(batch, capacity, self.dtype, self.device.kind)

    def forward(self, tokens: Any, cache: Cache, *, logits: int = 1, run: Pass | None = None) -> Any:
        """Run tokens (sequences x new tokens) through the layers and return the logits of the last ``logits`` of them.

        The cache takes their entries; its length is the caller's to move.
        """
        if run is None:
            run = self.new_pass(tokens, cache)
        with torch.inference_mode():
            return self._forward(tokens, cache, logits, run)

    def _forward(self, tokens: Any, cache: Cache, logits: int, run: Pass) -> Any:
        hidden = self.tokens[tokens]
        if self.positions is not None:
            hidden = hidden + self.positions[run.positions]
        stream = _Stream(hidden, run.kernels)
        for layer, caches in zip(self.layers, cache.layers, strict=True):
            layer(stream, caches, run)
        if logits < run.tokens:
            stream.keep_last(logits)
        return self.head(stream.normed(self.final.get("norm"), self.final.get("norm_bias")))

    def new_pass(
        self, tokens: Any, cache: Cache, *, touched: list[int] | None = None, kernels: Plain | None = None
    ) -> Pass:
        """Make the inputs of a pass over these tokens; ``kernels`` for others than the decoder's."""
        return Pass(
            start=cache.length,
            tokens=tokens.shape[1],
            position=cache.position,
            device=self.device,
            kernels=kernels or self.kernels,
            rotates=self.positions is None,
            touched=touched,
        )


def prefill(decoder: Decoder, tokens: Any, cache: Cache, *, chunk: int = _PREFILL_CHUNK) -> Any:
    """Take prompts (sequences x tokens) into the cache and return the logits after them (sequences x 1 x rows)."""
    logits = None
    for piece in tokens.split(chunk, dim=1):
        logits = decoder.forward(piece, cache)
        cache.advance(piece.shape[1])
    return logits


def decode_one_token(decoder: Decoder, tokens: Any, cache: Cache) -> Any:
    """Take one token of each sequence (sequences) into the cache and return the logits after it (sequences x rows)."""
    logits = decoder.forward(tokens[:, None], cache)
    cache.advance(1)
    return logits[:, 0]


def decode_n_tokens(decoder: Decoder, tokens: Any, cache: Cache, *, count: int) -> Any:
    """Decode greedily from a token of each sequence (sequences) and return the next ones (sequences x ``count``)."""
    chosen = []
    for _ in range(count):
        tokens = decode_one_token(decoder, tokens, cache).argmax(dim=-1)
        chosen.append(tokens)
    return torch.stack(chosen, dim=1)


def verify(decoder: Decoder, tokens: Any, cache: Cache) -> Any:
    """Take several tokens of each sequence into the cache and return the logits after each of them.

    Tokens that are then refused are forgotten by moving the cache's length back, where every layer keeps all tokens.
    """
    logits = decoder.forward(tokens, cache, logits=tokens.shape[1])
    cache.advance(tokens.shape[1])
    return logits
