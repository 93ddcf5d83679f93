"""What users import: a name that comes or goes here is a decision, written down in this list."""

import importlib

import pytest

import kvcalc
import kvcalc.api

PUBLIC = [
    "BatchingReport",
    "BenchReport",
    "Capacity",
    "CheckReport",
    "ChecksReport",
    "CompareReport",
    "CrosscheckReport",
    "DecodeReport",
    "DecoderShape",
    "Deployment",
    "DriftReport",
    "EngineOptions",
    "ExplainedStep",
    "FitReport",
    "HardwareProfile",
    "InputError",
    "KvCacheReport",
    "KvcalcError",
    "LayersReport",
    "LeversReport",
    "Load",
    "ModelProfile",
    "PagingReport",
    "PlanReport",
    "PrefillReport",
    "ProfileError",
    "QuantsReport",
    "ReconcileReport",
    "Report",
    "RooflineReport",
    "SchedulingPolicy",
    "Serving",
    "Side",
    "SimulateReport",
    "SizeReport",
    "SolveReport",
    "SpeculationReport",
    "SpeculativeReport",
    "Sweep",
    "SweepReport",
    "TrafficReport",
    "UnknownNameError",
    "UnsupportedError",
    "ValidateReport",
    "ask",
    "bench",
    "check_files",
    "check_measured",
    "compare",
    "crosscheck",
    "decode",
    "demo_batching",
    "demo_drift",
    "demo_kv_cache",
    "demo_paging",
    "demo_speculate",
    "deployment",
    "draft_deployment",
    "explain",
    "explain_speculation",
    "find_capacity",
    "fit",
    "layers",
    "levers",
    "load_hardware",
    "load_model",
    "plan_serving",
    "prefill",
    "reconcile",
    "roofline",
    "side",
    "simulate_serving",
    "size",
    "solve",
    "speculate",
    "sweep",
    "traffic",
    "validate",
    "with_draft",
]


def test_public_names_are_these_and_sorted():
    assert kvcalc.__all__ == PUBLIC == sorted(PUBLIC)


def test_dir_shows_the_public_names_only():
    assert dir(kvcalc) == PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_can_be_imported_and_has_a_docstring(name):
    found = getattr(importlib.import_module("kvcalc"), name)
    assert found.__name__ == name
    assert found.__doc__


def test_functions_are_those_of_the_facade():
    functions = [name for name in PUBLIC if name.islower()]
    assert all(getattr(kvcalc, name) is getattr(kvcalc.api, name) for name in functions)
    assert set(functions) <= set(kvcalc.api.__all__)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'decoed'"):
        _ = kvcalc.decoed


@pytest.mark.parametrize("error", [name for name in PUBLIC if name.endswith("Error")])
def test_every_public_error_is_a_kvcalc_error(error):
    assert issubclass(getattr(kvcalc, error), kvcalc.KvcalcError)
