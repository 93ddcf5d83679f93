"""A model of every type that is imported can be written as a profile and read again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.importers.hugging_face import import_config
from kvcalc.profiles.document import model_from_document, model_to_document

TYPES = Path(__file__).parents[2] / "conformance" / "transformers_types.json"
CASES: dict[str, Any] = json.loads(TYPES.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_a_profile_of_the_type_is_the_model_again(name: str) -> None:
    model, _ = import_config(CASES[name]["config"], name=name)
    assert model_from_document(json.loads(json.dumps(model_to_document(model)))) == model
