"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.api.calculators import decode, explain, fit, prefill, roofline, size
from kvcalc.api.deployments import deployment
from kvcalc.api.lessons import demo_kv_cache
from kvcalc.api.logs import reconcile
from kvcalc.api.profiles import (
    lint_config,
    load_hardware,
    load_model,
    profile_names,
    profile_schema,
    profile_text,
    validate_profile,
)

if TYPE_CHECKING:
    from kvcalc.api.loads import Load
    from kvcalc.api.serving import Serving, find_capacity, simulate_serving
    from kvcalc.api.sweeps import Sweep, sweep, sweep_columns

__all__ = [
    "Load",
    "Serving",
    "Sweep",
    "decode",
    "demo_kv_cache",
    "deployment",
    "explain",
    "find_capacity",
    "fit",
    "lint_config",
    "load_hardware",
    "load_model",
    "prefill",
    "profile_names",
    "profile_schema",
    "profile_text",
    "reconcile",
    "roofline",
    "simulate_serving",
    "size",
    "sweep",
    "sweep_columns",
    "validate_profile",
]

# Loaded when they are asked for: most commands need none of them.
_LATER = {
    "Load": "loads",
    "Serving": "serving",
    "Sweep": "sweeps",
    "find_capacity": "serving",
    "simulate_serving": "serving",
    "sweep": "sweeps",
    "sweep_columns": "sweeps",
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"kvcalc.api.{_LATER[name]}"), name)
    raise AttributeError(f"module 'kvcalc.api' has no attribute {name!r}")
