"""Small models of each kind of layer that the decoder builds."""

from dataclasses import replace

from kvcalc.core.model import (
    Block,
    Chunked,
    Dense,
    Full,
    Gated,
    Head,
    Latent,
    Mixture,
    ModelProfile,
    Sliding,
    State,
    Table,
)
from kvcalc.measure.library import Device, find_device
from kvcalc.measure.vectors import vector_layout

# This machine, as one without a cache that a working set must not fit in.
DEVICE = replace(find_device("cpu"), last_level_cache_bytes=0)
HIDDEN = 64
MLP = Gated(width=96)
VOCABULARY = 211


def _state(variant, heads, groups, *, numbers):
    key, value = 8, 16
    channels = heads * value + 2 * groups * key
    inputs = heads * value + channels + numbers * heads
    return State(
        variant=variant, heads=heads, key_dim=key, value_dim=value, conv_channels=channels, conv_window=4,
        conv_kernel=4, recurrent_format="fp32", groups=groups, matrix_parameters=(inputs + heads * value) * HIDDEN,
    )  # fmt: skip


MAMBA = _state("mamba2", 6, 2, numbers=1)
DELTA = _state("gated_delta", 6, 3, numbers=2)


def block(*mixers, mlp=MLP, vectors=0, **more):
    return Block(mixers=mixers, mlp=mlp, vector_parameters=2 * HIDDEN + vectors, **more)


def state_block(state, norm):
    skip = state.heads if state.variant == "mamba2" else 0
    return block(state, vectors=state.conv_channels * state.conv_kernel + 2 * state.heads + skip + norm)


KINDS = {
    "MHA": block(Full(heads=4, kv_heads=4, head_dim=16)),
    "GQA": block(Full(heads=8, kv_heads=2, head_dim=16)),
    "MQA": block(Full(heads=8, kv_heads=1, head_dim=16)),
    "GQA with wider values": block(Full(heads=4, kv_heads=2, head_dim=16, value_head_dim=24)),
    "GQA with head norms": block(Full(heads=8, kv_heads=2, head_dim=16), vectors=32),
    "GQA with biases": block(Full(heads=8, kv_heads=2, head_dim=16), vectors=12 * 16),
    "GQA with a gate": block(Full(heads=8, kv_heads=2, head_dim=16, output_gate=16)),
    "LayerNorm, biases, a plain MLP": block(
        Full(heads=4, kv_heads=4, head_dim=16), mlp=Dense(width=128), vectors=2 * 64 + 3 * 64 + 64 + 128 + 64
    ),
    "attention beside the MLP": Block(
        mixers=(Full(heads=4, kv_heads=4, head_dim=16),), mlp=Dense(width=128), parallel=True, vector_parameters=64
    ),
    "GQA with sinks": block(Full(heads=8, kv_heads=2, head_dim=16), vectors=8),
    "norms after": block(Full(heads=4, kv_heads=2, head_dim=16), vectors=2 * 64),
    "sliding window": block(Sliding(heads=8, kv_heads=2, head_dim=16, window=7)),
    "chunks": block(Chunked(heads=8, kv_heads=2, head_dim=16, chunk=6)),
    "MLA": block(Latent(heads=4, kv_lora_rank=24, rope_dim=8, nope_dim=16, value_head_dim=12), vectors=24),
    "MLA with compressed queries": block(
        Latent(heads=4, kv_lora_rank=24, rope_dim=8, nope_dim=16, value_head_dim=12, q_lora_rank=40), vectors=64
    ),
    "MLA with a gate": block(
        Latent(heads=4, kv_lora_rank=24, rope_dim=8, nope_dim=16, value_head_dim=12, output_gate=4), vectors=24
    ),
    "experts": block(
        Full(heads=4, kv_heads=2, head_dim=16), mlp=Mixture(experts=6, experts_per_token=2, width=48)
    ),
    "experts, a shared one, biases": block(
        Full(heads=4, kv_heads=2, head_dim=16),
        mlp=Mixture(
            experts=6, experts_per_token=3, width=48, gated=False, shared_width=32, shared_gate=True, expert_bias=True
        ),
    ),
    "Mamba-2": state_block(MAMBA, norm=6 * 16 + MAMBA.conv_channels),
    "gated delta": state_block(DELTA, norm=16),
    "attention and a state in one layer": block(
        Full(heads=4, kv_heads=2, head_dim=16), MAMBA,
        vectors=MAMBA.conv_channels * 4 + 18,
    ),
}  # fmt: skip

LEARNED = (Table(name="token", rows=VOCABULARY, width=HIDDEN), Table(name="position", rows=256, width=HIDDEN))


def model_of(*blocks, tied=False, embeddings=None, name="small", final=HIDDEN, bias=False):
    return ModelProfile(
        name=name,
        architecture="small",
        hidden_size=HIDDEN,
        context_limit=256,
        blocks=blocks,
        embeddings=embeddings or (Table(name="token", rows=VOCABULARY, width=HIDDEN),),
        head=Head(rows=VOCABULARY, tied=tied, bias=bias),
        vector_parameters=final,
    )


GQA = KINDS["GQA"]
CENTRED = ("LayerNorm, biases, a plain MLP",)
MODELS = {
    name: model_of(kind, kind, name=name, final=2 * HIDDEN if name in CENTRED else HIDDEN)
    for name, kind in KINDS.items()
} | {
    "no weights in norms": model_of(Block(mixers=GQA.mixers, mlp=MLP), name="bare", final=0),
    "tied": model_of(GQA, GQA, tied=True, name="tied"),
    "learned positions": model_of(GQA, GQA, embeddings=LEARNED, name="learned", bias=True),
    "hybrid": model_of(KINDS["gated delta"], KINDS["sliding window"], KINDS["experts"], name="hybrid"),
}


def small_device(free, **properties):
    """A CPU on which so many bytes are free, with these properties of its own."""

    class Small(Device):
        def free_bytes(self):
            return free

    return Small(**{name: getattr(DEVICE, name) for name in Device.__dataclass_fields__} | properties)


def shrunk(model):
    """A real model with its kinds of layer, their grouping and their order, in the sizes of the small ones."""
    rows = VOCABULARY
    return replace(
        model,
        hidden_size=HIDDEN,
        blocks=tuple(_shrunk_block(each, model.hidden_size) for each in model.blocks),
        embeddings=tuple(replace(table, rows=rows, width=HIDDEN) for table in model.embeddings),
        head=replace(model.head, rows=rows),
        vector_parameters=model.vector_parameters * HIDDEN // model.hidden_size,
        held_weight_bytes=None,
    )


def _shrunk_block(layer, hidden):
    (mixer,), mlp = layer.mixers, layer.mlp
    widths = {hidden: HIDDEN}
    if isinstance(mixer, Latent):
        widths[mixer.kv_lora_rank] = 24
        mixer = replace(mixer, heads=4, kv_lora_rank=24, rope_dim=8, nope_dim=16, value_head_dim=12)
    else:
        widths[mixer.head_dim] = 16
        mixer = replace(mixer, heads=2 * mixer.heads // mixer.kv_heads, kv_heads=2, head_dim=16)
    if isinstance(mlp, Mixture):
        chosen = min(3, mlp.experts_per_token)
        mlp = replace(mlp, experts=8, experts_per_token=chosen, width=48, shared_width=32 if mlp.shared_width else 0)
    else:
        mlp = replace(mlp, width=96)
    vectors = vector_layout(layer, hidden, centred=False)
    return replace(
        layer, mixers=(mixer,), mlp=mlp, vector_parameters=sum(widths[length] for length in vectors.values())
    )
