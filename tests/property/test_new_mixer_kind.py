"""A kind of token mixer that nobody has described yet is refused wherever a number would depend on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any, Literal

import pytest

import kvcalc
from kvcalc.core.errors import UnsupportedError
from kvcalc.core.layers import Attention, Mixer
from kvcalc.core.model import MIXERS, Chunked, Compressed, Cross, Full, Indexer, Latent, Shared, Sliding, State
from kvcalc.core.records import dataclass
from kvcalc.core.traits import STRAIGHT, Bends, Entry, Traits
from kvcalc.core.workload import decode_step
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.cache import affine_segments, block_cache_bytes, cache_bytes, mixer_cache_bytes
from kvcalc.cost.forward import forward_cost
from kvcalc.cost.parameters import block_matrices
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.pools import ENGINES
from kvcalc.plan.levers.layout import plain_layout
from kvcalc.simulate.decode_grid import decode_costs
from kvcalc.simulate.step_terms import step_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Novel(Attention):
    """Attention that states every trait, and has no formula."""

    kind: Literal["novel"] = "novel"

    @property
    def span(self) -> None:
        """All tokens."""

    @property
    def bends(self) -> Bends:
        """Nowhere."""
        return STRAIGHT


NOVEL: Any = Novel(heads=8, kv_heads=2, head_dim=64)
DEPLOYMENT = kvcalc.deployment("llama3.1-8b", gpu="h200")
FORMATS, PARALLEL = DEPLOYMENT.formats, DEPLOYMENT.parallel
BLOCK = replace(DEPLOYMENT.model.blocks[0], mixers=(NOVEL,))
# one novel layer among others, under an architecture that every engine knows
MODEL = replace(DEPLOYMENT.model, blocks=(*DEPLOYMENT.model.blocks[:3], BLOCK))
STEP = decode_step(batch=2, context=100)

ANSWERS = {
    "matrices": lambda: block_matrices(BLOCK, 512),
    "cache of a layer": lambda: block_cache_bytes(BLOCK, 100, FORMATS),
    "cache": lambda: cache_bytes(MODEL, 100, FORMATS),
    "segments": lambda: affine_segments(MODEL, FORMATS),
    "work": lambda: mixer_work(NOVEL, STEP, FORMATS),
    "pass": lambda: forward_cost(MODEL, (STEP,), FORMATS),
    "grid": lambda: decode_costs(replace(DEPLOYMENT, model=MODEL), batches=[1, 2], contexts=[10, 20]),
    "terms": lambda: step_terms(replace(DEPLOYMENT, model=MODEL), kind="ideal"),
    "layout held": lambda: plain_layout(MODEL, FORMATS, PARALLEL).held_bytes(context=100, batch=2),
    "layout read": lambda: plain_layout(MODEL, FORMATS, PARALLEL).read_bytes(context=100, batch=2),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_formula_that_the_kind_has_none_of_is_refused(answer: str) -> None:
    with pytest.raises(AssertionError, match="unreachable, but got: Novel"):
        ANSWERS[answer]()


@pytest.mark.parametrize("engine", ENGINES)
def test_no_engine_lays_the_kind_out(engine: str) -> None:
    with pytest.raises((AssertionError, UnsupportedError), match=r"Novel|novel"):
        ENGINES[engine](MODEL, FORMATS, PARALLEL, EngineOptions(), None).reserved(context=100, batch=1)


@pytest.mark.parametrize("question", ["size", "decode", "prefill"])
def test_no_question_explains_the_kind(question: str) -> None:
    with pytest.raises(AssertionError, match="Novel"):
        kvcalc.explain(question, kvcalc.deployment(MODEL, gpu="h200"), batch=1, context=100)


@pytest.mark.parametrize("levers", ["", "gqa", "fp8", "window=50"])
def test_no_lever_saves_bytes_of_the_kind(levers: str) -> None:
    with pytest.raises(AssertionError, match="Novel"):
        kvcalc.levers(kvcalc.deployment(MODEL, gpu="h200"), with_levers=levers, context=100)


@pytest.mark.parametrize("trait", ["entry", "span", "bends", "splits_evenly"])
def test_a_kind_that_leaves_a_trait_unsaid_cannot_be_made(trait: str) -> None:
    says = {"entry": None, "span": None, "bends": STRAIGHT, "splits_evenly": Novel.splits_evenly}
    assert type("Whole", (Traits,), says)().held_tokens(9) == 0
    with pytest.raises(TypeError, match=trait):
        type("Partial", (Traits,), {name: said for name, said in says.items() if name != trait})()


INDEX = Indexer(heads=2, head_dim=4, top_k=5)
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 8}
LATENT = {"heads": 4, "kv_lora_rank": 8, "rope_dim": 4, "nope_dim": 4, "value_head_dim": 4}
COMPRESSED = {
    "heads": 4,
    "head_dim": 8,
    "window": 6,
    "ratio": 4,
    "q_lora_rank": 4,
    "output_groups": 2,
    "output_rank": 4,
}
KINDS: tuple[Mixer, ...] = (
    Full(**HEADS),
    Full(**HEADS, indexer=INDEX),
    Full(**HEADS, indexer=replace(INDEX, pool=3)),
    Sliding(**HEADS, window=6),
    Chunked(**HEADS, chunk=6),
    Shared(**HEADS),
    Shared(**HEADS, window=6),
    Cross(**HEADS, encoder_tokens=5),
    Latent(**LATENT),
    Latent(**LATENT, indexer=INDEX),
    Compressed(**COMPRESSED, overlap=False),
    Compressed(**COMPRESSED, overlap=True, indexer=INDEX),
    State(variant="mamba2", heads=4, key_dim=8, value_dim=8),
)


def _bent(values: list[float]) -> set[int]:
    """Contexts between which and their neighbours a series is no straight line."""
    rises = [after - before for before, after in pairwise(values)]
    return {tokens + 1 for tokens, (before, after) in enumerate(pairwise(rises)) if before != after}


def test_every_kind_is_among_those_checked() -> None:
    assert {mixer.kind for mixer in KINDS} == set(MIXERS)


@pytest.mark.parametrize("mixer", KINDS, ids=lambda mixer: mixer.kind)
def test_a_step_costs_a_straight_line_along_each_stretch(mixer: Mixer) -> None:
    contexts = range(1, 70)
    works = [mixer_work(mixer, decode_step(batch=1, context=context), FORMATS) for context in contexts]
    changes = {
        after for before, after in pairwise(contexts) if mixer.bends.stretch(before) != mixer.bends.stretch(after)
    }
    near = {context + step - 1 for context in changes for step in (-1, 0)}
    assert _bent([work.flop for work in works]) | _bent([work.read_bytes for work in works]) <= near


@pytest.mark.parametrize("mixer", KINDS, ids=lambda mixer: mixer.kind)
def test_a_cache_grows_along_a_straight_line_between_knees_and_groups(mixer: Mixer) -> None:
    held = [mixer_cache_bytes(mixer, tokens, FORMATS).growing for tokens in range(40)]
    assert (mixer.entry is None) == (not any(held))
    group = mixer.bends.group
    edges = {tokens + step for tokens in range(0, 40, group) for step in (-1, 0)} if group > 1 else set()
    assert _bent(held) <= {*mixer.cache_knees, *edges}


def test_an_entry_of_full_attention_is_keys_and_values_of_all_heads() -> None:
    assert Full(heads=8, kv_heads=2, head_dim=64, value_head_dim=32).entry == Entry(2, 64, 32)
