"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.api.calculators import decode, explain, fit, prefill, roofline, size
    from kvcalc.api.checks import check_files, check_schema
    from kvcalc.api.choices import compare, side, solve
    from kvcalc.api.deployments import deployment
    from kvcalc.api.evidence import check_measured, validate
    from kvcalc.api.lessons import demo_drift, demo_kv_cache, demo_paging, demo_speculate
    from kvcalc.api.levers import levers, traffic
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

__all__ = [
    "check_files",
    "check_measured",
    "check_schema",
    "compare",
    "decode",
    "demo_drift",
    "demo_kv_cache",
    "demo_paging",
    "demo_speculate",
    "deployment",
    "explain",
    "fit",
    "levers",
    "lint_config",
    "load_hardware",
    "load_model",
    "prefill",
    "profile_names",
    "profile_schema",
    "profile_text",
    "reconcile",
    "roofline",
    "side",
    "size",
    "solve",
    "traffic",
    "validate",
    "validate_profile",
]

# Each module and its functions, loaded when they are called for.
_MODULES = {
    "calculators": (
        "decode",
        "explain",
        "fit",
        "prefill",
        "roofline",
        "size",
    ),
    "checks": (
        "check_files",
        "check_schema",
    ),
    "choices": (
        "compare",
        "side",
        "solve",
    ),
    "deployments": ("deployment",),
    "evidence": (
        "check_measured",
        "validate",
    ),
    "lessons": (
        "demo_drift",
        "demo_kv_cache",
        "demo_paging",
        "demo_speculate",
    ),
    "levers": (
        "levers",
        "traffic",
    ),
    "logs": ("reconcile",),
    "profiles": (
        "lint_config",
        "load_hardware",
        "load_model",
        "profile_names",
        "profile_schema",
        "profile_text",
        "validate_profile",
    ),
}
_HOME = {name: module for module, found in _MODULES.items() for name in found}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
