"""Vector parameters of a layer: norms, biases, convolutions. A profile gives their number alone."""

from __future__ import annotations

from itertools import combinations

from kvcalc.core.model import Attention, Block, Dense, Gated, Latent, Mixture, State

__all__ = ["final_layout", "vector_layout"]

Layout = dict[str, int]

# Learned scalars of the xIELU activation (Apertus), one for each sign of its input; arXiv 2411.13010.
_XIELU = 2
# They mostly come together, and then count as one part.
_BIASES = ("qkv_bias", "output_bias", "up_bias", "down_bias")


def vector_layout(block: Block, hidden: int, *, centred: bool = False) -> Layout:
    """Return the names and lengths of a layer's vectors, in order; together as many as the profile counts.

    Norms of the layer's inputs, and what a state layer cannot do without, come first. Of the parts that some
    architectures have and others lack, those are taken whose lengths add up to the rest exactly, the fewest of them.
    What no combination explains is ``held``: allocated and counted, but not used.

    Args:
        block: the layer.
        hidden: width of the hidden state.
        centred: whether its norms have biases (LayerNorm), as `final_layout` tells of the model's last one.

    >>> from kvcalc.core.model import Full
    >>> heads = Full(heads=4, kv_heads=2, head_dim=8)
    >>> layer = Block(mixers=(heads,), mlp=Gated(width=64), vector_parameters=2 * 32 + 16)
    >>> vector_layout(layer, 32)
    {'norm_0': 32, 'norm_1': 32, 'query_norm': 8, 'key_norm': 8}
    """
    layout: Layout = {}
    left = block.vector_parameters
    for name, length in _needed(block, hidden, centred=centred).items():
        if length <= left:
            layout[name] = length
            left -= length
    optional = _optional(block, hidden, centred=centred)
    biases = {name: length for part in _BIASES for name, length in optional.get(part, {}).items()}
    layout |= _chosen([biases, *optional.values()], left)
    unexplained = block.vector_parameters - sum(layout.values())
    return layout | ({"held": unexplained} if unexplained else {})


def final_layout(count: int, hidden: int) -> Layout:
    """Return the vectors after the last layer: a norm's weights, its biases, and what is left.

    >>> final_layout(64, 32), final_layout(0, 32)
    ({'norm': 32, 'norm_bias': 32}, {})
    """
    layout: Layout = {}
    for name in ("norm", "norm_bias"):
        if count >= hidden:
            layout[name] = hidden
            count -= hidden
    return layout | ({"held": count} if count else {})


def _chosen(parts: list[Layout], wanted: int) -> Layout:
    for count in range(len(parts) + 1):
        for some in combinations(parts, count):
            if sum(sum(part.values()) for part in some) == wanted:
                return {name: length for part in some for name, length in part.items()}
    return {}


def _norms(block: Block) -> int:
    return 1 if block.parallel else bool(block.mixers) + (block.mlp is not None)


def _needed(block: Block, hidden: int, *, centred: bool) -> Layout:
    layout = {f"norm_{index}": hidden for index in range(_norms(block))}
    if centred:
        layout |= {f"norm_{index}_bias": hidden for index in range(_norms(block))}
    for mixer in block.mixers:
        if isinstance(mixer, State):
            layout |= {"conv": mixer.conv_channels * mixer.conv_kernel, "decay": mixer.heads, "step_bias": mixer.heads}
            if mixer.variant == "mamba2":
                layout["skip"] = mixer.heads
        if isinstance(mixer, Latent):
            layout["latent_norm"] = mixer.kv_lora_rank
            if mixer.q_lora_rank is not None:
                layout["query_latent_norm"] = mixer.q_lora_rank
    return layout


def _optional(block: Block, hidden: int, *, centred: bool) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    if block.parallel:
        layouts["second_norm"] = {"norm_1": hidden} | ({"norm_1_bias": hidden} if centred else {})
    elif not centred:
        layouts["post_norms"] = {f"post_norm_{index}": hidden for index in range(_norms(block))}
    for mixer in block.mixers:
        if isinstance(mixer, Attention):
            queries, keys = mixer.heads * mixer.head_dim, mixer.kv_heads * mixer.head_dim
            layouts["head_norms"] = {"query_norm": mixer.head_dim, "key_norm": mixer.head_dim}
            if not centred:
                layouts["wide_norms"] = {"query_norm": queries, "key_norm": keys}
            layouts["qkv_bias"] = {"qkv_bias": queries + keys + mixer.kv_heads * mixer.value_dim}
            layouts["output_bias"] = {"output_bias": hidden}
            layouts["sinks"] = {"sinks": mixer.heads}
        if isinstance(mixer, State):
            if mixer.conv_channels:
                layouts["conv_bias"] = {"conv_bias": mixer.conv_channels}
            layouts["state_norm"] = {"state_norm": mixer.value_dim}
            layouts["wide_state_norm"] = {"state_norm": mixer.heads * mixer.value_dim}
    return layouts | _optional_of_mlp(block, hidden)


def _optional_of_mlp(block: Block, hidden: int) -> dict[str, Layout]:
    layouts: dict[str, Layout] = {}
    mlp = block.mlp
    if isinstance(mlp, Dense | Gated):
        branches = 2 if isinstance(mlp, Gated) else 1
        layouts["up_bias"] = {"up_bias": branches * mlp.width}
        layouts["down_bias"] = {"down_bias": hidden}
    if isinstance(mlp, Dense):
        layouts["activation"] = {"activation": _XIELU}
    if isinstance(mlp, Mixture):
        layouts["router_bias"] = {"router_bias": mlp.experts}
    return layouts
