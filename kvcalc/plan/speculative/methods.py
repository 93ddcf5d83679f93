"""Ways to draft: what runs for a step of the draft, and what it holds in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError, did_you_mean
from kvcalc.core.model import Gated, Head, Mixture
from kvcalc.core.records import dataclass
from kvcalc.plan.rank_memory import rank_weights

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.model import Block, ModelProfile
    from kvcalc.core.speculation import DraftTree
    from kvcalc.plan.deployment import Deployment

__all__ = ["METHODS", "Drafter", "drafter"]

# Decoder layers of a block drafter, and the target's hidden states that it is fed with (z-lab's drafts of Qwen3, and
# DeepSpec's: num_hidden_layers 5, target_layer_ids of five layers); rank of DSpark's Markov head (markov_rank).
_BLOCK_LAYERS, _BLOCK_FEATURES = 5, 5
_MARKOV_RANK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafter:
    """A way to draft.

    Args:
        method: its name.
        runs: for the length of a draft what runs at each step; none where nothing does.
        held: for the length of a draft the part of it that is held beside the target; none for nothing.
        at_once: whether one step drafts all levels.
        is_block: whether that step reads a place for each drafted token, beside the last one.
        corrects: what runs after it for each drafted token; none for nothing.
        keeps_cache: whether it has a cache of its own.
        notes: what a reader should know.
    """

    method: str
    runs: Callable[[int], Deployment | None]
    held: Callable[[int], Deployment | None]
    at_once: bool = False
    is_block: bool = False
    corrects: Deployment | None = None
    keeps_cache: bool = True
    notes: tuple[str, ...] = ()

    def steps(self, tree: DraftTree) -> tuple[int, ...]:
        """Return for each step of a draft how many tokens of a sequence it reads: those that the next level follows."""
        if self.at_once:
            return (tree.nodes + 1 if self.is_block else 1,) if tree.nodes else ()
        depths = (0, *tree.depths)
        parents = set(tree.parents)
        return tuple(sum(depths[parent + 1] == level for parent in parents) for level in range(len(tree.level_widths)))

    def weight_bytes(self, gamma: int) -> int:
        """Return the bytes of weights held beside the target's, on the fullest rank."""
        deployment = self.held(gamma)
        return 0 if deployment is None else rank_weights(deployment)


def drafter(method: str | None, target: Deployment, draft: Deployment | None, *, layers: int | None = None) -> Drafter:
    """Return the way to draft of that name.

    Args:
        method: one of `METHODS`; none for a draft model.
        target: the model that verifies.
        draft: the draft model, or a head's own profile.
        layers: for ``layer-skip`` how many of the target's layers draft; for ``eagle``, ``mtp``, ``dflash`` and
            ``dspark`` how many layers are held beside the target.

    Raises:
        InputError: a draft that is missing or not taken.
        UnknownNameError: no such method.
    """
    name = method or ("draft-model" if draft is not None else None)
    if name is None:
        raise InputError(
            "speculation needs something that drafts",
            hint=f"give --draft MODEL, or --method: {', '.join(METHODS)}",
        )
    key = _ALIASES.get(name.strip().lower(), name.strip().lower())
    if key not in METHODS:
        hint = did_you_mean(key, [*METHODS, *_ALIASES]) or f"methods: {', '.join(METHODS)}"
        raise UnknownNameError(f"unknown speculative method {name!r}", hint=hint)
    if draft is not None and key not in _TAKES_DRAFT:
        raise InputError(
            f"{key} takes no draft model", hint=f"leave out --draft; it belongs to {', '.join(_TAKES_DRAFT)}"
        )
    if layers is not None and (key not in _TAKES_LAYERS or draft is not None):
        what = key if draft is None else "a draft with a profile of its own"
        raise InputError(f"{what} takes no draft layers", hint=f"they belong to {', '.join(_TAKES_LAYERS)}")
    if layers is not None:
        return _TAKES_LAYERS[key](target, layers)
    return METHODS[key](target, draft)


def _draft_model(target: Deployment, draft: Deployment | None) -> Drafter:
    """A model of its own (Leviathan et al. 2023, arXiv 2211.17192)."""
    del target
    if draft is None:
        raise InputError("draft-model needs a draft", hint="give --draft, for example --draft llama3.2-1b")
    return Drafter(method="draft-model", runs=lambda _: draft, held=lambda _: draft)


def _ngram(target: Deployment, draft: Deployment | None) -> Drafter:
    """Lookup of what followed the last tokens before (Saxena 2023, prompt lookup decoding): no pass of any model."""
    del target, draft
    return Drafter(
        method="ngram", runs=lambda _: None, held=lambda _: None, keeps_cache=False,
        notes=("ngram: the lookup itself, on the host, is not in these times",),
    )  # fmt: skip


def _medusa(target: Deployment, draft: Deployment | None) -> Drafter:
    """A head for each position: a residual layer h x h and an output head (Cai et al. 2024, arXiv 2401.10774)."""
    del draft

    def heads(gamma: int) -> Deployment:
        model = target.model
        rows = _head(model).rows * gamma
        return _beside(
            target,
            replace(
                _bare(model, f"{model.name}'s {gamma} Medusa heads"),
                matrix_parameters=gamma * model.hidden_size**2,
                vector_parameters=gamma * model.hidden_size,
                head=Head(rows=rows),
            ),
        )

    note = "medusa: each head is a residual layer and an output head of its own"
    return Drafter(method="medusa", runs=heads, held=heads, at_once=True, keeps_cache=False, notes=(note,))


def _eagle(target: Deployment, draft: Deployment | None, layers: int = 1) -> Drafter:
    """Decoder layers behind a projection 2h -> h; embedding and output head are the target's (arXiv 2401.15077)."""
    if draft is not None:
        return Drafter(method="eagle", runs=lambda _: draft, held=lambda _: draft)
    block, dense = _dense_block(target.model)
    note = f"eagle: the head is one decoder layer like the target's last and a projection from twice its width{dense}"
    _check_layers("an EAGLE head", target.model, layers)
    if layers > 1:
        note = note.replace("is one decoder layer", f"is {layers} decoder layers")
    return _head_layers("eagle", target, (block,) * layers, note)


def _mtp(target: Deployment, draft: Deployment | None, layers: int = 1) -> Drafter:
    """The checkpoint's own prediction layers, one run for each token (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    Where a checkpoint has several (MiMo-V2, Step-3.5), each drafted token has its own; a single one is run again.
    """
    if draft is not None:
        return Drafter(method="mtp", runs=lambda _: draft, held=lambda _: draft)
    _check_layers("a prediction head", target.model, layers)
    each = "run once a drafted token" if layers == 1 else f"one of {layers} for each drafted token"
    note = f"mtp: one layer like the target's last and a projection from twice its width, {each}"
    return _head_layers("mtp", target, (_attention_block(target.model),), note, copies=layers)


def _head_layers(method: str, target: Deployment, blocks: tuple[Block, ...], note: str, copies: int = 1) -> Drafter:
    model = target.model
    layer = replace(
        _bare(model, f"{model.name}'s {method} layer{'s' * (len(blocks) > 1)}"),
        blocks=blocks,
        matrix_parameters=2 * model.hidden_size**2,
    )
    running = _beside(target, replace(layer, head=_head(model), embeddings=model.embeddings[:1]))
    kept = _beside(target, replace(layer, blocks=blocks * copies, matrix_parameters=layer.matrix_parameters * copies))
    return Drafter(method=method, runs=lambda _: running, held=lambda _: kept, notes=(note,))


def _dflash(target: Deployment, draft: Deployment | None, layers: int = _BLOCK_LAYERS) -> Drafter:
    """Layers that fill a block of masked tokens in one pass (Chen et al. 2026, arXiv 2602.06036).

    Queries attend to the block and to features of the context, which a projection makes of five of the target's hidden
    states; embedding and output head are the target's.
    """
    if draft is not None:
        return Drafter(method="dflash", runs=lambda _: draft, held=lambda _: draft, at_once=True, is_block=True)
    _check_layers("a block drafter", target.model, layers)
    model = target.model
    block, dense = _dense_block(model)
    backbone = replace(
        _bare(model, f"{model.name}'s block drafter"),
        blocks=(block,) * layers,
        matrix_parameters=_BLOCK_FEATURES * model.hidden_size**2,
    )
    running = _beside(target, replace(backbone, head=_head(model), embeddings=model.embeddings[:1]))
    kept = _beside(target, backbone)
    note = (
        f"dflash: {layers} decoder layers like the target's last{dense}, and a projection from {_BLOCK_FEATURES} times "
        "its width, fill a block in one pass"
    )
    return Drafter(
        method="dflash", runs=lambda _: running, held=lambda _: kept, at_once=True, is_block=True, notes=(note,)
    )


def _dspark(target: Deployment, draft: Deployment | None, layers: int = _BLOCK_LAYERS) -> Drafter:
    """A block drafter whose tokens are corrected one after another by a Markov head (DSpark, arXiv 2607.05147).

    The head embeds the token before in 256 numbers and multiplies them by a matrix of the vocabulary. Drafts are of
    the length that is asked for: the confidence that may cut them short is not modelled.
    """
    plain = _dflash(target, draft, layers)
    model = target.model
    rows = _head(model).rows
    markov = replace(_bare(model, f"{model.name}'s Markov head"), matrix_parameters=_MARKOV_RANK * rows)
    kept = plain.held(1)
    if draft is None and kept is not None:
        backbone = kept.model
        tables = 2 * _MARKOV_RANK * rows
        kept = replace(kept, model=replace(backbone, matrix_parameters=backbone.matrix_parameters + tables))
    note = f"dspark: a Markov head of rank {_MARKOV_RANK} corrects the block, a token at a time"
    return replace(
        plain,
        method="dspark",
        held=lambda _: kept,
        corrects=_beside(target, markov),
        notes=(*(each.replace("dflash:", "dspark:") for each in plain.notes), note),
    )


def _layer_skip(target: Deployment, layers: int | None) -> Drafter:
    """The target's first layers (Zhang et al. 2023, arXiv 2309.08168; Elhoushi et al. 2024, arXiv 2404.16710)."""
    model = target.model
    kept = max(1, model.layers // 2) if layers is None else layers
    if not 1 <= kept < model.layers:
        raise InputError(f"{kept} draft layers of {model.layers}", hint="from 1 to one less than the model has")
    running = _beside(target, replace(model, name=f"{model.name}'s first {kept} layers", blocks=model.blocks[:kept]))
    note = f"layer-skip: the first {kept} of {model.layers} layers draft; weights and cache are the target's own"
    return Drafter(method="layer-skip", runs=lambda _: running, held=lambda _: None, keeps_cache=False, notes=(note,))


def _bare(model: ModelProfile, name: str) -> ModelProfile:
    """Return a model's formats and width without anything in it."""
    return replace(
        model, name=name, blocks=(), embeddings=(), head=None, encoder=None, towers=(), matrix_parameters=0,
        vector_parameters=0, held_weight_bytes=None,
    )  # fmt: skip


def _beside(target: Deployment, model: ModelProfile) -> Deployment:
    """Return a part of the target on the target's ranks; it is not cut into pipeline stages."""
    return replace(target, model=replace(model, held_weight_bytes=None), parallel=replace(target.parallel, pipeline=1))


def _head(model: ModelProfile) -> Head:
    if model.head is None:
        raise InputError(f"{model.name} has no output head, so there is nothing to speculate on")
    return model.head


def _check_layers(what: str, model: ModelProfile, layers: int) -> None:
    if not 1 <= layers <= model.layers:
        raise InputError(f"{what} of {layers} layers", hint="from 1 to those of the model")


def _dense_block(model: ModelProfile) -> tuple[Block, str]:
    """Return the last attention layer with a dense MLP, and what was made dense, in words."""
    block = _attention_block(model)
    if not isinstance(block.mlp, Mixture):
        return block, ""
    width = block.mlp.width * block.mlp.experts_per_token + block.mlp.shared_width
    return replace(block, mlp=Gated(width=width)), ", with a dense MLP as wide as the experts of a token"


def _attention_block(model: ModelProfile) -> Block:
    """Return the last layer that has an attention with a cache of its own."""
    for block in reversed(model.blocks):
        if any(mixer.entry is not None for mixer in block.mixers):
            return block
    raise InputError(
        f"{model.name} has no attention layer that a head could be made of", hint="give the head as --draft"
    )


METHODS: Mapping[str, Callable[[Deployment, Deployment | None], Drafter]] = {
    "draft-model": _draft_model,
    "ngram": _ngram,
    "medusa": _medusa,
    "eagle": _eagle,
    "mtp": _mtp,
    "dflash": _dflash,
    "dspark": _dspark,
    "layer-skip": lambda target, _: _layer_skip(target, None),
}
_TAKES_DRAFT = ("draft-model", "eagle", "mtp", "dflash", "dspark")
_TAKES_LAYERS: Mapping[str, Callable[[Deployment, int], Drafter]] = {
    "layer-skip": _layer_skip,
    "eagle": lambda target, layers: _eagle(target, None, layers),
    "mtp": lambda target, layers: _mtp(target, None, layers),
    "dflash": lambda target, layers: _dflash(target, None, layers),
    "dspark": lambda target, layers: _dspark(target, None, layers),
}
_ALIASES = {
    "draft": "draft-model",
    "draft_model": "draft-model",
    "prompt-lookup": "ngram",
    "pld": "ngram",
    "n-gram": "ngram",
    "eagle2": "eagle",
    "eagle3": "eagle",
    "self": "layer-skip",
    "layerskip": "layer-skip",
    "multi-token-prediction": "mtp",
    "nextn": "mtp",
    "dflash2": "dflash",
    "block-diffusion": "dflash",
}
