"""A model of every type that is imported can be written as a profile and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.model import Block, ModelProfile, Shared
from kvcalc.cost.parameters import parameters
from kvcalc.importers.hugging_face import import_config
from kvcalc.profiles.document import model_from_document, model_to_document

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_profile_of_the_type_is_the_model_again(name: str) -> None:
    model, _ = import_config(CASES[name]["config"], name=name)
    assert model_from_document(json.loads(json.dumps(model_to_document(model)))) == model


def test_layers_of_one_name_are_told_apart_by_a_number() -> None:
    blocks = tuple(Block(name="x", vector_parameters=size) for size in (1, 2, 3))
    model = ModelProfile(
        name="m", architecture="m", hidden_size=8, context_limit=None, blocks=blocks, embeddings=(), head=None
    )
    assert list(model_to_document(model)["blocks"]) == ["x", "x_2", "x_3"]


@pytest.mark.parametrize(("projects", "matrices"), [(False, 2 * 8 * 4 * 16), (True, 2 * 8 * 4 * 16 + 2 * 8 * 2 * 16)])
def test_a_shared_layer_may_hold_projections_that_it_does_not_use(*, projects: bool, matrices: int) -> None:
    mixer = Shared(heads=4, kv_heads=2, head_dim=16, projects=projects)
    model = ModelProfile(
        name="m",
        architecture="m",
        hidden_size=8,
        context_limit=None,
        blocks=(Block(mixers=(mixer,)),),
        embeddings=(),
        head=None,
    )
    assert sum(parameters(model).values()) == matrices
