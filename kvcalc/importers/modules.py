"""The linear modules of a model under the names checkpoints give them, and the patterns that pick some of them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import TYPE_CHECKING

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.model import Mixture, State
from kvcalc.cost.parameters import block_matrices

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kvcalc.core.model import Block, Part
    from kvcalc.cost.parameters import Matrix
    from kvcalc.importers.families.shape import Shape

__all__ = ["TOKEN_TABLES", "Module", "Selection", "lies_elsewhere", "linear_modules", "table_modules"]

# What checkpoints call the token table.
TOKEN_TABLES = ("embed_tokens", "wte", "word_embeddings", "tok_embeddings")

_ATTENTION = ("self_attn", "attn", "attention", "mixer", "temporal_block", "cross_attn")
_STATE = ("linear_attn", "mamba", "mixer", "conv", "temporal_block", "lightning_attn", "delta_net")
_MLP = ("mlp", "block_sparse_moe", "feed_forward", "ffn", "moe", "mixer")
_FUSED = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "wqkv")

# What checkpoints call each matrix of `block_matrices`, inside its attention or MLP module.
_LEAVES: dict[str, tuple[str, ...]] = {
    "attention.query": ("q_proj", *_FUSED),
    "attention.key": ("k_proj", *_FUSED),
    "attention.value": ("v_proj", *_FUSED),
    "attention.output": ("o_proj", "out_proj", "dense", "c_proj"),
    "attention.query_down": ("q_a_proj", "wq_a"),
    "attention.query_up": ("q_b_proj", "wq_b"),
    "attention.latent": ("kv_a_proj_with_mqa", "wkv", "kv_proj"),
    "attention.latent_up": ("kv_b_proj",),
    "attention.gate": ("g_proj", "gate_proj"),
    "attention.compressor": ("compressor",),
    "attention.output_down": ("wo_a", "o_a_proj"),
    "attention.output_up": ("wo_b", "o_b_proj"),
    "indexer.query": ("indexer.wq_b", "index_q_proj", "indexer.q_b_proj"),
    "indexer.key": ("indexer.wk", "index_k_proj", "indexer.k_proj"),
    "indexer.weights": ("indexer.weights_proj", "indexers_proj"),
    "indexer.other": ("indexer.compressor",),
    "state.in": ("in_proj", "in_proj_qkvz", "in_proj_qkv", "qkv_proj", "q_proj"),
    "state.gates": ("in_proj_ba", "in_proj_b", "in_proj_a"),
    "state.out": ("out_proj", "o_proj"),
    "mlp.gate": ("gate_proj", "gate_up_proj", "w1"),
    "mlp.up": ("up_proj", "gate_up_proj", "w3", "fc1", "c_fc", "dense_h_to_4h"),
    "mlp.down": ("down_proj", "w2", "fc2", "c_proj", "dense_4h_to_h"),
    "mlp.shared_gate": ("shared_expert_gate",),
    "lookup": ("engram.wkv",),
    "experts.down": ("fc1_latent_proj",),
    "experts.up": ("fc2_latent_proj",),
    "router": ("gate", "router"),
}

# Never multiplied in a low format by any scheme: small, and what they decide is sensitive.
_KEPT = frozenset({"router", "mlp.shared_gate", "attention.compressor", "indexer.other", "other"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One or more equal matrices.

    Args:
        part: the part of the model they belong to.
        names: what checkpoints may call the first of them, from ``layers.N.`` on.
        inputs: width a matrix takes.
        outputs: width it gives.
        count: how many there are (the routed experts of a layer).
        kept: whether every scheme leaves them in the checkpoint's dtype.
        kind: the matrix, as `block_matrices` calls it.
    """

    part: Part
    names: tuple[str, ...]
    inputs: int
    outputs: int
    count: int = 1
    kept: bool = False
    kind: str = ""

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.count * self.inputs * self.outputs


def linear_modules(shape: Shape, model_type: str) -> list[Module]:
    """Return every linear module of a model, the output head included where it is a matrix of its own."""
    modules: list[Module] = []
    stacks = [("layers", shape.blocks, shape.hidden_size)]
    if shape.encoder is not None:
        stacks.append(("encoder.layers", shape.encoder.blocks, shape.encoder.hidden_size))
    for stack, blocks, hidden in stacks:
        known: dict[Block, list[tuple[Module, tuple[str, ...]]]] = {}
        for layer, block in enumerate(blocks):
            if block not in known:
                known[block] = [(module, module.names) for module in _block_modules(block, hidden, model_type)]
            for module, names in known[block]:
                modules.append(_named(module, tuple(f"{stack}.{layer}.{name}" for name in names)))
    if shape.head is not None and not shape.head.tied:
        width = shape.head.width or shape.hidden_size
        names = ("lm_head", "head", "output", "embed_out")
        modules.append(Module(part="head", names=names, inputs=width, outputs=shape.head.rows, kind="head"))
    return modules


def table_modules(shape: Shape) -> list[Module]:
    """Return the lookup tables as modules; a tied token table belongs to the head."""
    tied = shape.head is not None and shape.head.tied
    tables = [*shape.embeddings, *(shape.encoder.embeddings if shape.encoder is not None else ())]
    return [
        Module(
            part="head" if tied and index == 0 else table.part,
            names=TOKEN_TABLES if index == 0 else (table.name,),
            inputs=table.width,
            outputs=table.rows,
        )
        for index, table in enumerate(tables)
    ]


def _named(module: Module, names: tuple[str, ...]) -> Module:
    return Module(
        part=module.part,
        names=names,
        inputs=module.inputs,
        outputs=module.outputs,
        count=module.count,
        kept=module.kept,
        kind=module.kind,
    )


def _block_modules(block: Block, hidden: int, model_type: str) -> Iterator[Module]:
    mixture = block.mlp if isinstance(block.mlp, Mixture) else None
    shared = ("mlp",) if model_type.startswith("gemma4") else _inside(_MLP, ("shared_experts", "shared_expert"))
    states = [mixer for mixer in block.mixers if isinstance(mixer, State)]
    for matrix in block_matrices(block, hidden):
        if not matrix.stored:
            continue
        if matrix.name == "state.projections":
            yield from _state_modules(states.pop(0), matrix, hidden, model_type)
            continue
        leaves = _LEAVES.get(matrix.name, ())
        homes: tuple[str, ...] = _MLP
        if matrix.part == "attention":
            homes = _ATTENTION
        elif mixture is not None and matrix.name in ("mlp.gate", "mlp.up", "mlp.down"):
            homes = shared
        yield _module(matrix.part, matrix.name, _inside(homes, leaves), matrix.inputs, matrix.outputs)
    if mixture is not None:
        experts = ("experts",) if model_type.startswith("gemma4") else _inside(_MLP, ("experts",))
        inputs = mixture.inputs or hidden
        for name in ("mlp.gate", "mlp.up", "mlp.down") if mixture.gated else ("mlp.up", "mlp.down"):
            sides = (mixture.width, inputs) if name == "mlp.down" else (inputs, mixture.width)
            names = _inside(experts, tuple(f"0.{leaf}" for leaf in _LEAVES[name]))
            yield _module("experts", name, names, *sides, count=mixture.experts)


def _state_modules(state: State, matrix: Matrix, hidden: int, model_type: str) -> Iterator[Module]:
    """Split a recurrent layer's projections into those in, those out, and the small ones of a delta rule's gates."""
    plain = state.variant in ("mamba", "mamba2", "gated_delta") and not model_type.startswith("kimi")
    homes = _STATE if plain else (*_STATE, "self_attn")
    inner = state.heads * state.value_dim
    sizes = {"state.in": matrix.elements - hidden * inner, "state.out": hidden * inner}
    if state.variant == "gated_delta":
        sizes["state.in"] = hidden * (state.conv_channels + inner)
        sizes["state.gates"] = matrix.elements - sum(sizes.values())
    if min(sizes.values()) < 0 or not inner:
        sizes = {"state.in": matrix.elements}
    for name, elements in sizes.items():
        if elements:
            wide, rest = divmod(elements, hidden)
            inputs, outputs = (hidden, wide) if not rest else (1, elements)
            sides = (outputs, inputs) if name == "state.out" else (inputs, outputs)
            yield _module("attention", name, _inside(homes, _LEAVES[name]), *sides)


def _inside(homes: tuple[str, ...], leaves: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{home}.{leaf}" for home in homes for leaf in leaves)


def _module(part: Part, kind: str, names: tuple[str, ...], inputs: int, outputs: int, *, count: int = 1) -> Module:
    return Module(
        part=part,
        names=names,
        inputs=inputs,
        outputs=outputs,
        count=count,
        kept=kind in _KEPT and count == 1,
        kind=kind,
    )


_LAYER = re.compile(r"^(?:[\w.]*\.)?(layers|h|blocks|block)\.(?=[\d*])")
_ELSEWHERE = re.compile(r"(?:^|\.)(?:vis|audio|mtp|multi_modal|mm_|embed_vision)")
_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.", "backbone.", "transformer.")
_MAX_EXPRESSIONS = 400


def lies_elsewhere(entry: str) -> bool:
    """Return whether the name of a module is one of a vision or audio tower, or of a multi-token-prediction layer."""
    return _ELSEWHERE.search(entry) is not None


class Selection:
    """Names of modules, as the lists of a quantisation config give them.

    An entry is a module or a part of it, by full name (``model.layers.0.self_attn``), by the last name alone
    (``gate``), with wildcards (``model.layers.0*``), or as an expression (``re:.*mlp.*``). What stands before
    ``layers.N`` differs between a model and its multimodal wrapper and is not compared; entries of vision and audio
    towers and of multi-token-prediction layers are passed over.

    >>> picked = Selection(["model.layers.0.self_attn*", "re:.*down_proj", "lm_head"], where="ignore")
    >>> [picked.has(name) for name in ("layers.0.self_attn.q_proj", "layers.1.mlp.down_proj", "layers.1.mlp.up_proj")]
    [True, True, False]
    """

    def __init__(self, entries: Iterable[object], *, where: str) -> None:
        self._exact: set[str] = set()
        self._starts: set[str] = set()
        self._words: set[str] = set()
        self._globs: list[re.Pattern[str]] = []
        self._expressions: list[re.Pattern[str]] = []
        for entry in entries:
            if not isinstance(entry, str):
                raise ProfileError(f"{str(entry)[:60]!r} is not the name of a module", where=where)
            self._add(entry, where)
        if len(self._globs) + len(self._expressions) > _MAX_EXPRESSIONS:
            raise ProfileError(f"more than {_MAX_EXPRESSIONS} patterns of module names", where=where)

    def _add(self, entry: str, where: str) -> None:
        if entry.startswith("re:"):
            self._expressions.append(_expression(entry[3:], where))
            return
        if lies_elsewhere(entry):
            return
        name = _LAYER.sub("layers.", entry)
        if "*" not in name and "?" not in name:
            if name.startswith("layers."):
                self._exact.add(name)
            else:
                self._words.add(name.rpartition(".")[2] if "." in name else name)
        elif name.startswith("layers.") and name.endswith("*") and not set("*?[") & set(name[:-1]):
            self._starts.add(name[:-1])
        else:
            self._globs.append(re.compile(translate(name).removesuffix(r"\Z").removesuffix(r"\z") + r"(?:\..*)?\Z"))

    def has(self, name: str) -> bool:
        """Return whether a module, or one it lies in, is among them."""
        parts = name.split(".")
        if any(".".join(parts[:end]) in self._exact for end in range(1, len(parts) + 1)):
            return True
        if self._starts and any(name[:end] in self._starts for end in range(1, len(name) + 1)):
            return True
        if not self._words.isdisjoint(parts):
            return True
        return any(glob.match(name) or glob.match(f"model.{name}") for glob in self._globs) or any(
            expression.match(prefix + name) for expression in self._expressions for prefix in _PREFIXES
        )

    def picks(self, module: Module) -> bool:
        """Return whether one of the names a module may have is among them."""
        return any(self.has(name) for name in module.names)


def _expression(text: str, where: str) -> re.Pattern[str]:
    """Compile a regular expression, unless it could run for long on a short name."""
    unbounded = len(re.findall(r"(?<!\\)[*+]|\{\d*,\d*\}", text))
    if len(text) > 500 or unbounded > 4 or re.search(r"\)[*+{]", text):  # noqa: PLR2004
        raise UnsupportedError(
            f"the pattern {text[:60]!r} is too involved", where=where, hint="name the modules plainly"
        )
    try:
        return re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ProfileError(f"the pattern {text[:60]!r} is no regular expression: {error}", where=where) from error
