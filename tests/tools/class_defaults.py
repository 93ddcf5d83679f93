"""Write kvcalc/importers/class_defaults.json: the defaults of transformers' config classes that decide memory or compute.

Run where transformers is installed: ``python tests/tools/class_defaults.py`` from the root of the repository.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from transformers import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

TARGET = Path(__file__).parents[2] / "kvcalc" / "importers" / "class_defaults.json"
# Keys that never decide how many bytes or FLOP a model takes.
SKIP = re.compile(
    r"dropout|_token_id|_token_index|initializer|_eps$|epsilon|theta|^rope|rotary|_act$|activation|_coef|_pdrop|(?<!conv_L_)cache$|id2label|"
    r"label2id|problem_type|^output_(?!gate)|return_|chunk_size_feed|architectures|dtype|_name_or_path|transformers_version|"
    r"is_encoder_decoder|softcap|logit|scaling|_scale|jitter|pretraining|prefix|summary|use_return|time_step|multiplier|"
    r"mask|forced|suppress|begin|apply_spec|seed|max_batch|noise|clip|zoneout"
)
# Where wrappers keep their text model.
PARTS = ("text_config", "language_config", "llm_config", "thinker_config")
# Where they keep their towers.
TOWERS = ("vision_config", "audio_config", "encoder_config")


def defaults_of(config_class: type) -> dict[str, object]:
    """Return the plain defaults that a config class declares, before it derives any."""
    found: dict[str, object] = {}
    for field in dataclasses.fields(config_class):
        value = field.default
        if value is dataclasses.MISSING and field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        simple = isinstance(value, bool | int | float | str) or (
            isinstance(value, list | tuple) and all(isinstance(entry, bool | int | float | str) for entry in value)
        )
        if simple and not SKIP.search(field.name):
            found[field.name] = list(value) if isinstance(value, tuple) else value
    return found


def text_type(config_class: type) -> str | None:
    """Return the type of the text model that a wrapper holds where a config names none."""
    for name in PARTS:
        if name not in (getattr(config_class, "sub_configs", None) or {}):
            continue
        inner = getattr(config_class(), name, None)
        if inner is not None:
            return str(inner.model_type)
    return None


def wrapper_of(config_class: type) -> dict[str, object]:
    """Return what a wrapper's class decides for its text model; nothing where it holds none."""
    if not set(PARTS) & set(getattr(config_class, "sub_configs", None) or {}):
        return {}
    found: dict[str, object] = {}
    inner = text_type(config_class)
    if inner:
        part = next(name for name in PARTS if name in config_class.sub_configs)
        found[f"{part}_type"] = inner
    tied = defaults_of(config_class).get("tie_word_embeddings")
    if isinstance(tied, bool):
        found["tie_word_embeddings"] = tied
    return found


def towers_of(config_class: type) -> dict[str, PreTrainedConfig]:
    """Return the configs of the towers that a class makes where a config leaves them out, by where they stand."""
    if not set(TOWERS) & set(getattr(config_class, "sub_configs", None) or {}):
        return {}
    made = config_class()
    found = {name: getattr(made, name, None) for name in TOWERS if name in config_class.sub_configs}
    return {name: inner for name, inner in found.items() if isinstance(inner, PreTrainedConfig) and inner.model_type}


def spellings_of(config_class: type) -> dict[str, str]:
    """Return the other names that a config class gives its keys."""
    names = dict(getattr(config_class, "attribute_map", None) or {})
    return {name: key for name, key in sorted(names.items()) if name != key and not SKIP.search(key)}


def enter(model_type: str, table: dict[str, dict[str, object]], spellings: dict[str, dict[str, str]]) -> None:
    """Enter the defaults of one class, of the text model it wraps, of its towers and of its other parts."""
    config_class = CONFIG_MAPPING[model_type]
    values = defaults_of(config_class)
    if "num_hidden_layers" in values or "n_layer" in values or "vocab_size" in values or "num_layers" in values:
        table[model_type] = dict(sorted(values.items()))
        if names := spellings_of(config_class):
            spellings[model_type] = names
    if wrapped := tried(wrapper_of, config_class):
        table[model_type] = dict(sorted((table.get(model_type, {}) | wrapped).items()))
    for name, inner in tried(towers_of, config_class).items():
        table.setdefault(model_type, {})[f"{name}_type"] = inner.model_type
        table.setdefault(inner.model_type, dict(sorted(defaults_of(type(inner)).items())))
        if names := spellings_of(type(inner)):
            spellings.setdefault(inner.model_type, names)
    for name, sub in (getattr(config_class, "sub_configs", None) or {}).items():
        if name in ("text_config", "language_config", "decoder", "encoder") and hasattr(sub, "model_type"):
            table.setdefault(sub.model_type or f"{model_type}.{name}", dict(sorted(defaults_of(sub).items())))
            table.setdefault(model_type, dict(sorted(values.items()))).setdefault(f"{name}_type", sub.model_type)


def tried(read: Callable[[type], dict[str, Any]], config_class: type) -> dict[str, Any]:
    """Return what is read from a class; nothing where it cannot be made without a config."""
    try:
        return read(config_class)
    except Exception as error:
        print(f"{read.__name__} {config_class.__name__}: {error}")
        return {}


def main() -> None:
    """Write the file."""
    table: dict[str, dict[str, object]] = {}
    spellings: dict[str, dict[str, str]] = {}
    for model_type in sorted(CONFIG_MAPPING.keys()):
        try:
            enter(model_type, table, spellings)
        except Exception as error:  # a class that needs a package which is not there
            print(f"left out {model_type}: {error}")
    document = {
        "source": f"defaults of the config classes of transformers {transformers.__version__} (Apache-2.0), facts only",
        "defaults": table,
        "spellings": spellings,
    }
    TARGET.write_text(json.dumps(document, indent=1) + "\n")
    print(len(table), "classes,", TARGET.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
