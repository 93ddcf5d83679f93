"""Windows layer by layer: how configs name them, and stacks of dense layers that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.importers.families.shape import (
    attention_biases,
    decoder_shape,
    heads,
    layer_list,
    mlp,
    mlp_biases,
    stack,
    windowed,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Shape

__all__ = ["GLOBAL", "LOCAL", "every", "layer_overrides", "layer_windows", "local_global"]

GLOBAL, LOCAL = "full_attention", "sliding_attention"


def every(layers: int, period: int, *, first: bool = False) -> list[str]:
    """Return kinds where one layer in ``period`` is global: its last, or its first."""
    return [GLOBAL if layer % period == (0 if first else period - 1) else LOCAL for layer in range(layers)]


def layer_windows(config: Config, *, layers: int, default: Sequence[str], window: int | None) -> list[int | None]:
    """Return each layer's window, none where it attends to everything.

    Raises:
        ProfileError: a layer has a window and the config does not say how wide it is.
    """
    kinds = layer_list(config, "layer_types", layers=layers, known=(GLOBAL, LOCAL), default=default)
    if window is None and LOCAL in kinds:
        raise config.bad("sliding_window", None, "the window of the layers that layer_types names")
    return [window if kind == LOCAL else None for kind in kinds]


def layer_overrides(config: Config, *, layers: int, known: Sequence[str]) -> list[dict[str, int]] | None:
    """Return the keys that ``per_layer_config`` sets layer by layer; none where the config has no such mapping.

    Raises:
        UnsupportedError: a key that the family's rule does not vary.
    """
    written = config.raw("per_layer_config", default=None)
    if written is None:
        return None
    overrides: list[dict[str, int]] = [{} for _ in range(layers)]
    if not isinstance(written, dict):
        raise config.bad("per_layer_config", written, "a mapping from layer to keys")
    for layer, keys in written.items():
        if not str(layer).isdecimal() or int(layer) >= layers or not isinstance(keys, dict):
            raise config.bad("per_layer_config", {layer: keys}, f"keys of one of {layers} layers")
        for key, value in keys.items():
            config.choice(key, known, key="per_layer_config", what="the key of a single layer")
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise config.bad("per_layer_config", {key: value}, "a whole number for each key")
        overrides[int(layer)] = dict(keys)
    return overrides


def local_global(
    config: Config,
    *,
    windows: Sequence[int | None],
    biases: tuple[bool, bool, bool] = (False, False, False),
    norms: int,
    gated: bool = True,
    vectors: int = 0,
    last_norm: int | None = None,
    parallel: bool = False,
    sizes: tuple[int, int, int] | None = None,
    matrices: int = 0,
    notes: tuple[str, ...] = (),
) -> Shape:
    """Return a decoder whose layers differ in their window alone.

    Args:
        config: the config.
        windows: each layer's window.
        biases: whether queries, keys and values, the attention's output, and the MLP have biases.
        norms: elements of a layer's norms of the hidden state.
        gated: whether the MLP has three matrices or two.
        vectors: further vector elements of a layer.
        last_norm: elements of the last norm; the hidden size where left out.
        parallel: whether attention and MLP read the same input.
        sizes: query heads, KV heads and head width, where the usual keys do not give them.
        matrices: further matrix elements of a layer.
        notes: what a user should know.
    """
    hidden, inner = config.integer("hidden_size"), config.integer("intermediate_size")
    query, kv, width = sizes or heads(config, hidden=hidden)
    inputs, output, in_mlp = biases
    vectors += attention_biases(query, kv, width, hidden, inputs=inputs, output=output)
    feed = (mlp(inner, gated=gated), mlp_biases(inner, hidden, gated=gated) if in_mlp else 0)
    mixers = [(windowed(query, kv, width, window), vectors) for window in windows]
    blocks = stack(mixers, [feed] * len(windows), norms=norms, parallel=parallel, matrices=matrices)
    return decoder_shape(config, blocks, hidden=hidden, vectors=last_norm, notes=notes)
