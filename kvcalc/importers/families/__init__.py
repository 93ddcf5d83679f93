"""One rule for each architecture: what its config keys mean for layers, cache and parameters.

Each module holds functions from a config to a `Shape`, and a table ``RULES`` from ``model_type`` to function. To add an
architecture, write such a function beside its relatives and enter it in their table.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.importers.families.shape import Rule

__all__ = ["find_rule", "known_types"]

_MODULES = (
    "dense",
    "gpt",
    "published",
    "windowed",
    "windowed_moe",
    "gemma",
    "mixture",
    "mixture_local",
    "mixture_older",
    "latent",
    "hyper_connected",
    "engram",
    "gigachat",
    "recurrent",
    "linear_attention",
    "convolution",
    "zamba",
    "searched",
    "served",
    "inkling",
    "looped",
    "indexed",
    "qwen4",
    "bert",
    "encoder",
    "bart",
    "seeing",
    "speech",
    "spoken",
    "t5",
    "t5gemma",
)


def _tables() -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for name in _MODULES:
        rules |= import_module(f"{__name__}.{name}").RULES
    return rules


def known_types() -> list[str]:
    """Return every ``model_type`` that has a rule, sorted."""
    return sorted(_tables())


def find_rule(model_type: str) -> Rule | None:
    """Return the rule of a ``model_type``, or none."""
    return _tables().get(model_type)
