"""Decoders that pass the same layers several times: each pass keeps a cache of its own, the weights are held once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.model import Block, Full, Gated, Shared, Sliding
from kvcalc.importers.families.grouped import grouped
from kvcalc.importers.families.shape import decoder_shape, heads, layer_list, mlp_biases, windowed

if TYPE_CHECKING:
    from kvcalc.importers.config_reader import Config
    from kvcalc.importers.families.shape import Rule, Shape

__all__ = ["RULES"]


def _again(block: Block) -> Block:
    """Return a layer passed once more: with a cache of its own, and the weights of the first pass."""
    mixers = tuple(replace(mixer, shared_weights=True) for mixer in block.mixers if isinstance(mixer, Full | Sliding))
    feed = replace(block.mlp, shared_weights=True) if isinstance(block.mlp, Gated) else block.mlp
    return replace(block, name=f"{block.name}-again", mixers=mixers, mlp=feed, vector_parameters=0)


def _cacheless(block: Block) -> Block:
    """Return a layer passed before its last time, where only the last pass writes the cache and all read it."""
    mixers = tuple(
        Shared(
            heads=mixer.heads,
            kv_heads=mixer.kv_heads,
            head_dim=mixer.head_dim,
            output_gate=mixer.output_gate,
            window=mixer.window if isinstance(mixer, Sliding) else None,
            shared_weights=True,
        )
        for mixer in block.mixers
        if isinstance(mixer, Full | Sliding)
    )
    return replace(_again(block), name=f"{block.name}-before", mixers=mixers)


def dory(config: Config) -> Shape:
    """Dory: a run of layers between the first and the last ones is passed ``n_recurrent_loops`` times.

    Hidden states lie on a sphere: there are no norms with weights, but scales of queries and keys, of the MLP, of both
    residuals and of the logits. Released configs count attention and MLP as a layer each, and list both.
    """
    hidden = config.integer("hidden_size")
    listed = [str(kind) for kind in config.sequence("layer_types", default=None)]
    halves = 2 if "mlp" in listed else 1
    layers = config.integer("num_hidden_layers") // halves
    first, last = (config.integer(f"n_{part}_layers", least=0) // halves for part in ("input", "output"))
    middle = config.integer_or((layers - first - last) * halves, "n_recurrent_layers", least=0) // halves
    if first + middle + last != layers:
        raise config.bad("n_recurrent_layers", middle, f"what {layers} layers leave between {first} and {last}")
    known = ("full_attention", "sliding_attention")
    if halves == 2:  # noqa: PLR2004  attention and MLP
        if listed[1::2] != ["mlp"] * layers or len(listed) != 2 * layers:
            raise config.bad("layer_types", f"{len(listed)} entries", f"an attention and an mlp for {layers} layers")
        kinds = [config.choice(kind, known, key="layer_types", what="the layer kind") for kind in listed[::2]]
    else:
        default = [known[0] if (index + 1) % 4 == 0 else known[1] for index in range(layers)]
        kinds = layer_list(config, "layer_types", layers=layers, known=known, default=default)
    blocks = _dory_layers(config, hidden, kinds)
    loops, run = config.integer("n_recurrent_loops"), blocks[first : first + middle]
    mode = config.text("recurrent_kv_cache_mode", default="per_loop")
    modes = {"per_loop": _again, "last_loop": _cacheless}
    another = modes[config.choice(mode, tuple(modes), key="recurrent_kv_cache_mode", what="the cache of a loop")]
    passed = (*run, *([another(block) for block in run] * (loops - 1)))
    shape = decoder_shape(
        config,
        (*blocks[:first], *passed, *blocks[first + middle :]),
        hidden=hidden,
        vectors=config.integer("vocab_size"),
    )
    return replace(shape, notes=(f"{middle} layers are passed {loops} times",) if loops > 1 and middle else ())


def _dory_layers(config: Config, hidden: int, kinds: list[str]) -> list[Block]:
    """Return each layer once."""
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    of = grouped(config, hidden, qkv_bias=bias, output_bias=bias, gate=True)
    inner, window = config.integer("intermediate_size"), config.integer("sliding_window")
    vectors = of.vectors + 2 * of.query * of.width + 2 * inner + 2 * hidden
    vectors += mlp_biases(inner, hidden) if mlp_bias else 0
    made = {
        kind: Block(
            name="global" if kind == "full_attention" else "local",
            mixers=(of.mixer(None if kind == "full_attention" else window),),
            mlp=Gated(width=inner),
            vector_parameters=vectors,
        )
        for kind in dict.fromkeys(kinds)
    }
    return [made[kind] for kind in kinds]


def hrm_text(config: Config) -> Shape:
    """HRM: two stacks of layers, the low one passed ``L_cycles`` times before each pass of the high one.

    Norms have no weights; the state of the low stack begins with a learned vector. ``num_hidden_layers`` counts all
    passes where ``num_layers_per_stack`` is given, one stack's layers where it is not.
    """
    hidden, (query, _, width) = config.integer("hidden_size"), heads(config, hidden=config.integer("hidden_size"))
    low, high = config.integer("L_cycles"), config.integer("H_cycles")
    layers = config.integer("num_hidden_layers")
    each = config.integer_or(layers, "num_layers_per_stack")
    if config.has("num_layers_per_stack") and layers != each * high * (low + 1):
        raise config.bad("num_hidden_layers", layers, f"{each} layers in {high * (low + 1)} passes")
    bias, inner = config.flag("attention_bias"), config.integer("intermediate_size")
    vectors = (4 * query * width + hidden) if bias else 0
    vectors += mlp_biases(inner, hidden) if config.flag("mlp_bias") else 0
    mixer = windowed(query, query, width, None)
    block = Block(
        name="layer",
        mixers=(replace(mixer, output_gate=width) if isinstance(mixer, Full) else mixer,),
        mlp=Gated(width=inner),
        vector_parameters=vectors,
    )
    first, more = (block,) * each, (_again(block),) * each
    passes = first + more * (low - 1) + first + more * ((low + 1) * (high - 1))
    notes = (f"two stacks of {each} layers are passed {low * high} and {high} times",)
    return decoder_shape(config, passes, hidden=hidden, vectors=hidden, notes=notes)


RULES: dict[str, Rule] = {
    "dory": dory,
    "hrm_text": hrm_text,
}
