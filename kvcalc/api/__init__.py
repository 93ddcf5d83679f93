"""The facade: names and paths in, reports out. The command line and every other front end call only this."""

from kvcalc.api.calculators import decode, explain, fit, prefill, roofline, size
from kvcalc.api.deployments import deployment
from kvcalc.api.evidence import validate
from kvcalc.api.logs import reconcile
from kvcalc.api.measuring import bench, crosscheck, write_profile
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
    "bench",
    "crosscheck",
    "decode",
    "deployment",
    "explain",
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
    "size",
    "validate",
    "validate_profile",
    "write_profile",
]
