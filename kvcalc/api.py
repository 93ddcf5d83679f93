"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.common import present_with

if TYPE_CHECKING:
    from kvcalc.demo.batching import demo_batching
    from kvcalc.demo.drift import demo_drift
    from kvcalc.demo.kv_cache import demo_kv_cache
    from kvcalc.demo.paging import demo_paging
    from kvcalc.demo.speculation import demo_speculate
    from kvcalc.questions import ask
    from kvcalc.questions.bench import bench, write_profile
    from kvcalc.questions.calibrate import calibrate
    from kvcalc.questions.catalogue import catalogue_table, parameter_count
    from kvcalc.questions.check import check_files, check_measured, check_schema
    from kvcalc.questions.choices import parameter_choices
    from kvcalc.questions.compare import compare, side, side_labels
    from kvcalc.questions.crosscheck import crosscheck
    from kvcalc.questions.decode import decode
    from kvcalc.questions.deployments import deployment, engine_options, served
    from kvcalc.questions.explaining import explain
    from kvcalc.questions.fit import fit
    from kvcalc.questions.layers import layers
    from kvcalc.questions.levers import levers
    from kvcalc.questions.plan import plan_serving
    from kvcalc.questions.prefill import prefill
    from kvcalc.questions.profiles import (
        catalogue,
        catalogue_hardware,
        catalogue_model,
        catalogue_stamp,
        config_model,
        lint_config,
        load_hardware,
        load_model,
        models_fit,
        noting_origins,
        packed_profiles,
        profile_names,
        profile_schema,
        profile_text,
        quants,
        validate_profile,
    )
    from kvcalc.questions.reconcile import reconcile
    from kvcalc.questions.replay import replay_steps
    from kvcalc.questions.roofline import roofline
    from kvcalc.questions.serving import Load, Serving, find_capacity, simulate_serving
    from kvcalc.questions.shown import chart, chart_runtime, report_data, report_sentence
    from kvcalc.questions.size import size
    from kvcalc.questions.solve import solve
    from kvcalc.questions.speculate import draft_deployment, explain_speculation, speculate, with_draft
    from kvcalc.questions.sweep.running import Sweep, sweep, sweep_columns
    from kvcalc.questions.traffic import traffic
    from kvcalc.questions.validate import validate

__all__ = [
    "Load",
    "Serving",
    "Sweep",
    "ask",
    "bench",
    "calibrate",
    "catalogue",
    "catalogue_hardware",
    "catalogue_model",
    "catalogue_stamp",
    "catalogue_table",
    "chart",
    "chart_runtime",
    "check_files",
    "check_measured",
    "check_schema",
    "compare",
    "config_model",
    "crosscheck",
    "decode",
    "demo_batching",
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
    "layers",
    "levers",
    "lint_config",
    "load_hardware",
    "load_model",
    "models_fit",
    "noting_origins",
    "packed_profiles",
    "parameter_choices",
    "parameter_count",
    "plan_serving",
    "prefill",
    "profile_names",
    "profile_schema",
    "profile_text",
    "quants",
    "reconcile",
    "replay_steps",
    "report_data",
    "report_sentence",
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

# Modules below kvcalc and their functions, loaded when they are called for; others stand in the module of their name.
_MODULES: dict[str, tuple[str, ...]] = {
    "questions.profiles": (
        "catalogue",
        "catalogue_hardware",
        "catalogue_model",
        "catalogue_stamp",
        "config_model",
        "lint_config",
        "load_hardware",
        "load_model",
        "models_fit",
        "noting_origins",
        "packed_profiles",
        "profile_names",
        "profile_schema",
        "profile_text",
        "quants",
        "validate_profile",
    ),
    "demo.batching": ("demo_batching",),
    "demo.drift": ("demo_drift",),
    "demo.kv_cache": ("demo_kv_cache",),
    "demo.paging": ("demo_paging",),
    "demo.speculation": ("demo_speculate",),
    "questions": ("ask",),
    "questions.bench": ("bench", "write_profile"),
    "questions.catalogue": ("catalogue_table", "parameter_count"),
    "questions.check": ("check_files", "check_measured", "check_schema"),
    "questions.choices": ("parameter_choices",),
    "questions.compare": ("compare", "side", "side_labels"),
    "questions.deployments": ("deployment", "engine_options", "served"),
    "questions.explaining": ("explain",),
    "questions.plan": ("plan_serving",),
    "questions.replay": ("replay_steps",),
    "questions.shown": ("chart", "chart_runtime", "report_data", "report_sentence"),
    "questions.serving": ("Load", "Serving", "find_capacity", "simulate_serving"),
    "questions.speculate": ("draft_deployment", "explain_speculation", "speculate", "with_draft"),
    "questions.sweep.running": ("Sweep", "sweep", "sweep_columns"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}

present_with(lambda: import_module("kvcalc.render.python"))


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"kvcalc.{_HOME.get(name, f'questions.{name}')}"), name)


def __dir__() -> list[str]:
    return __all__
