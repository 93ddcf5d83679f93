"""A rule's default is that of the model's own class, where a rule names one and the class another is said here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvcalc.core.errors import KvcalcError
from kvcalc.importers.config_reader import Config
from kvcalc.importers.hugging_face import import_config

CASES: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "conformance" / "transformers_types.json").read_text(encoding="utf-8")
)
# Rules that several families share ask for these with one default; each class has its own, which counts.
SHARED = {"max_window_layers", "tie_word_embeddings", "vision_use_head"}
OTHERWISE = {
    "attention_bias": {"glm", "glm4", "jais2", "qianfan_ocr", "seed_oss"},
    "first_k_dense_replace": {"bailing_hybrid", "glm4_moe", "glm4v_moe", "sarvam_moe"},
    "head_dim": {"mamba2"},
    "hidden_size_per_layer_input": {"gemma4", "gemma4_text"},
    "mlp_bias": {"jais2"},
    "multi_query": {"gpt_bigcode"},
    "num_kv_shared_layers": {"gemma3n", "gemma3n_text"},
    "use_qk_norm": {"sarvam_moe"},
}


@pytest.fixture
def contradictions(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Keys asked for with a default that is not the class's own."""
    found: set[str] = set()
    read = Config.raw

    def raw(config: Config, *keys: str, **given: Any) -> Any:
        value, default = read(config, *keys, **given), given.get("default")
        if isinstance(default, bool | int | str | list) and config.key_path(keys[0]) in config.absent:
            found.update(key for key in keys if config.defaults.get(key, default) != default)
        return value

    monkeypatch.setattr(Config, "raw", raw)
    return found


def _read(config: dict[str, Any]) -> None:
    for key, value in config.items():
        if isinstance(value, dict):
            for inner in value:
                _try({**config, key: {name: other for name, other in value.items() if name != inner}})
        _try({name: other for name, other in config.items() if name != key})


def _try(config: dict[str, Any]) -> None:
    try:
        import_config(config, name="m")
    except KvcalcError:
        return


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_default_of_a_rule_is_that_of_its_class(name: str, contradictions: set[str]) -> None:
    _read(CASES[name]["config"])
    assert contradictions - SHARED == {key for key, names in OTHERWISE.items() if name in names}
