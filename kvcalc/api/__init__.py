"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from kvcalc.api.calculators import decode, explain, fit, prefill, roofline, size
from kvcalc.api.deployments import deployment
from kvcalc.api.lessons import demo_kv_cache
from kvcalc.api.loads import Load
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
