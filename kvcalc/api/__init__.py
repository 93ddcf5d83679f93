"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvcalc.api.cache import levers, traffic
    from kvcalc.api.calculators import decode, explain, fit, prefill, roofline, size
    from kvcalc.api.checks import check_files, check_schema
    from kvcalc.api.choices import compare, side, side_labels, solve
    from kvcalc.api.deployments import deployment
    from kvcalc.api.engines import engine_options, served
    from kvcalc.api.evidence import check_measured, validate
    from kvcalc.api.loads import Load
    from kvcalc.api.logs import reconcile
    from kvcalc.api.measuring import bench, crosscheck, write_profile
    from kvcalc.api.profiles import (
        catalogue,
        catalogue_hardware,
        catalogue_model,
        catalogue_stamp,
        config_model,
        lint_config,
        load_hardware,
        load_model,
        noting_origins,
        profile_names,
        profile_schema,
        profile_text,
        quants,
        validate_profile,
    )
    from kvcalc.api.serving import Serving, find_capacity, simulate_serving
    from kvcalc.api.shown import chart, chart_runtime, report_data
    from kvcalc.api.speculation import draft_deployment, explain_speculation, speculate, with_draft
    from kvcalc.api.steps import replay_steps
    from kvcalc.api.sweeps import Sweep, sweep, sweep_columns
    from kvcalc.demo.drift import demo_drift
    from kvcalc.demo.kv_cache import demo_kv_cache
    from kvcalc.demo.paging import demo_paging
    from kvcalc.demo.speculation import demo_speculate

__all__ = [
    "Load",
    "Serving",
    "Sweep",
    "bench",
    "catalogue",
    "catalogue_hardware",
    "catalogue_model",
    "catalogue_stamp",
    "chart",
    "chart_runtime",
    "check_files",
    "check_measured",
    "check_schema",
    "compare",
    "config_model",
    "crosscheck",
    "decode",
    "demo_drift",
    "demo_kv_cache",
    "demo_paging",
    "demo_speculate",
    "deployment",
    "draft_deployment",
    "engine_options",
    "explain",
    "explain_speculation",
    "find_capacity",
    "fit",
    "levers",
    "lint_config",
    "load_hardware",
    "load_model",
    "noting_origins",
    "prefill",
    "profile_names",
    "profile_schema",
    "profile_text",
    "quants",
    "reconcile",
    "replay_steps",
    "report_data",
    "roofline",
    "served",
    "side",
    "side_labels",
    "simulate_serving",
    "size",
    "solve",
    "speculate",
    "sweep",
    "sweep_columns",
    "traffic",
    "validate",
    "validate_profile",
    "with_draft",
    "write_profile",
]

# Each module, relative to this package, and its functions, loaded when they are called for.
_MODULES: dict[str, tuple[str, ...]] = {
    "cache": ("levers", "traffic"),
    "calculators": ("decode", "explain", "fit", "prefill", "roofline", "size"),
    "checks": ("check_files", "check_schema"),
    "choices": ("compare", "side", "side_labels", "solve"),
    "deployments": ("deployment",),
    "engines": ("engine_options", "served"),
    "evidence": ("check_measured", "validate"),
    "loads": ("Load",),
    "logs": ("reconcile",),
    "measuring": ("bench", "crosscheck", "write_profile"),
    "profiles": (
        "catalogue",
        "catalogue_hardware",
        "catalogue_model",
        "catalogue_stamp",
        "config_model",
        "lint_config",
        "load_hardware",
        "load_model",
        "noting_origins",
        "profile_names",
        "profile_schema",
        "profile_text",
        "quants",
        "validate_profile",
    ),
    "serving": ("Serving", "find_capacity", "simulate_serving"),
    "shown": ("chart", "chart_runtime", "report_data"),
    "steps": ("replay_steps",),
    "speculation": ("draft_deployment", "explain_speculation", "speculate", "with_draft"),
    "sweeps": ("Sweep", "sweep", "sweep_columns"),
    ".demo.drift": ("demo_drift",),
    ".demo.kv_cache": ("demo_kv_cache",),
    ".demo.paging": ("demo_paging",),
    ".demo.speculation": ("demo_speculate",),
}
_HOME = {name: module for module, found in _MODULES.items() for name in found}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)


def __dir__() -> list[str]:
    return __all__
