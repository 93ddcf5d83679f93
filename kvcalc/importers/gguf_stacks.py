"""T5 from a GGUF file: an encoder and a decoder with tensors of their own, under one set of keys.

Source: llama.cpp's ``src/models/t5.cpp`` (tensors and their shapes) and ``conversion/t5.py`` (keys).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError
from kvcalc.core.model import Block, Cross, Dense, Encoder, Full, Gated, Head, ModelProfile, Table
from kvcalc.core.provenance import Source
from kvcalc.importers.families.encoder import input_note
from kvcalc.importers.gguf_parts import check_sizes, part_of, whole_profile

if TYPE_CHECKING:
    from kvcalc.core.model import Mixer
    from kvcalc.importers.checkpoint import Tensor, TensorTable
    from kvcalc.importers.config_reader import Config

__all__ = ["two_stacks"]

_LAYER = re.compile(r"(enc|dec)\.blk\.(\d{1,9})\.(.+)")
_MAX_LAYERS = 10_000


def two_stacks(keys: Config, table: TensorTable, *, name: str) -> ModelProfile:
    """Return the profile of T5.

    Args:
        keys: the metadata without the architecture's prefix.
        table: the tensors.
        name: catalogue name for the profile.

    Raises:
        ProfileError: keys that are missing or make no sense, or tensors that contradict them.
    """
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    tokens = keys.integer("context_length")
    attention = Full(heads=heads, kv_heads=heads, head_dim=keys.integer("attention.key_length"))
    cross = Cross(heads=heads, kv_heads=heads, head_dim=attention.head_dim, encoder_tokens=tokens)
    layers = _layers(keys, "block_count")
    encoder, decoder, outer = _sorted(table, layers, _layers(keys, "decoder_block_count", default=layers))
    token = outer.get("token_embd.weight")
    rows = token.shape[-1] if token is not None and token.shape else keys.integer("vocab_size")
    draft = ModelProfile(
        name=name,
        architecture="t5",
        hidden_size=hidden,
        context_limit=tokens,
        blocks=_stack(keys, "decoder", (attention, cross), decoder),
        embeddings=(Table(name="token", rows=rows, width=hidden),),
        head=Head(rows=rows, tied="output.weight" not in outer),
        encoder=Encoder(
            hidden_size=hidden,
            blocks=_stack(keys, "encoder", (attention,), encoder),
            tokens=tokens,
            vector_parameters=hidden,
        ),
        dtype="fp16",
        held_weight_bytes=table.total_bytes,
        sources={"file": Source(kind="model_config", note=table.where)},
        provenance={"default": "file"},
    )
    counted = [(_plain(key), tensor) for layer in encoder + decoder for key, tensor in layer.items()]
    notes = (f"weight bytes as stored in {table.where.rpartition('/')[2]}", input_note(tokens))
    return whole_profile(draft, [*counted, *outer.items()], notes)


def _layers(keys: Config, key: str, **default: int) -> int:
    layers = keys.integer(key, **default)
    if layers > _MAX_LAYERS:
        raise keys.bad(key, layers, f"at most {_MAX_LAYERS} layers")
    return layers


def _sorted(
    table: TensorTable, encoders: int, decoders: int
) -> tuple[list[dict[str, Tensor]], list[dict[str, Tensor]], dict[str, Tensor]]:
    """Return the tensors of each encoder layer, of each decoder layer, and those outside the layers."""
    stacks: dict[str, list[dict[str, Tensor]]] = {
        "enc": [{} for _ in range(encoders)],
        "dec": [{} for _ in range(decoders)],
    }
    outer: dict[str, Tensor] = {}
    for key, tensor in table.tensors.items():
        match = _LAYER.fullmatch(key)
        if match is None:
            outer[key] = tensor
        elif int(match[2]) < len(stacks[match[1]]):
            stacks[match[1]][int(match[2])][match[3]] = tensor
    return stacks["enc"], stacks["dec"], outer


def _stack(keys: Config, side: str, mixers: tuple[Mixer, ...], layers: list[dict[str, Tensor]]) -> tuple[Block, ...]:
    """Return the layers of one side; those with a table of position biases are layers of their own."""
    width = keys.integer("feed_forward_length")
    hidden = keys.integer("embedding_length")
    blocks: dict[Block, Block] = {}
    made = []
    for index, tensors in enumerate(layers):
        if "ffn_up.weight" not in tensors:
            raise ProfileError(f"{side} layer {index} has no tensor ffn_up", where=keys.where)
        gated = "ffn_gate.weight" in tensors
        block = Block(name=side, mixers=mixers, mlp=Gated(width=width) if gated else Dense(width=width))
        plain = [(_plain(key), tensor) for key, tensor in tensors.items()]
        check_sizes(block, plain, hidden=hidden, what=f"{side} layer {index}", where=keys.where)
        vectors = sum(tensor.elements for key, tensor in plain if part_of(key, tensor) == "vector")
        named = f"{side}-positions" if "attn_rel_b.weight" in tensors else side
        block = replace(block, name=named, vector_parameters=vectors)
        made.append(blocks.setdefault(block, block))
    return tuple(made)


def _plain(key: str) -> str:
    """Return a tensor's name as layers of other architectures have it.

    >>> _plain("cross_attn_o.weight")
    'attn_output.weight'
    """
    return key.removeprefix("cross_").replace("attn_o.", "attn_output.")
