"""Roofline and memory-capacity calculator for LLM inference.

>>> import kvcalc
>>> report = kvcalc.size(kvcalc.deployment("llama2-70b"))
>>> report.kv.bytes_per_token
327680
"""

from __future__ import annotations

from importlib import import_module

from kvcalc.version import __version__ as __version__

TYPE_CHECKING = False  # the library that has it takes longer to load than `--help` to print
if TYPE_CHECKING:
    from typing import Any

    from kvcalc.api import (
        Load,
        Serving,
        Sweep,
        ask,
        bench,
        check_files,
        check_measured,
        compare,
        crosscheck,
        decode,
        demo_batching,
        demo_drift,
        demo_kv_cache,
        demo_paging,
        demo_speculate,
        deployment,
        draft_deployment,
        explain,
        explain_speculation,
        find_capacity,
        fit,
        layers,
        levers,
        load_hardware,
        load_model,
        plan_serving,
        prefill,
        reconcile,
        roofline,
        side,
        simulate_serving,
        size,
        solve,
        speculate,
        sweep,
        traffic,
        validate,
        with_draft,
    )
    from kvcalc.core.errors import InputError, KvcalcError, ProfileError, UnknownNameError, UnsupportedError
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.catalogue import QuantsReport
    from kvcalc.core.reports.check import CheckReport
    from kvcalc.core.reports.checks import ChecksReport
    from kvcalc.core.reports.common import ExplainedStep, Report
    from kvcalc.core.reports.compare import CompareReport
    from kvcalc.core.reports.fit import FitReport
    from kvcalc.core.reports.layers import LayersReport
    from kvcalc.core.reports.levers import LeversReport
    from kvcalc.core.reports.measure import BenchReport, CrosscheckReport
    from kvcalc.core.reports.plan import PlanReport
    from kvcalc.core.reports.reconcile import ReconcileReport
    from kvcalc.core.reports.roofline import RooflineReport
    from kvcalc.core.reports.simulate import Capacity, SimulateReport
    from kvcalc.core.reports.size import SizeReport
    from kvcalc.core.reports.solve import SolveReport
    from kvcalc.core.reports.speculative import SpeculativeReport
    from kvcalc.core.reports.speed import DecodeReport, PrefillReport
    from kvcalc.core.reports.sweep import SweepReport
    from kvcalc.core.reports.traffic import TrafficReport
    from kvcalc.core.reports.validate import ValidateReport
    from kvcalc.demo.batching import BatchingReport
    from kvcalc.demo.decoder import DecoderShape
    from kvcalc.demo.drift import DriftReport
    from kvcalc.demo.kv_cache import KvCacheReport
    from kvcalc.demo.paging import PagingReport
    from kvcalc.demo.speculation import SpeculationReport
    from kvcalc.engines.options import EngineOptions
    from kvcalc.plan.compare import Side
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.policies import SchedulingPolicy

__all__ = [
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

# Where the public names stand that are not the facade's.
_HOME = {
    "engines.options": ("EngineOptions",),
    "plan.deployment": ("Deployment",),
    "plan.compare": ("Side",),
    "simulate.policies": ("SchedulingPolicy",),
    "demo.speculation": ("SpeculationReport",),
    "demo.paging": ("PagingReport",),
    "demo.kv_cache": ("KvCacheReport",),
    "demo.batching": ("BatchingReport",),
    "demo.drift": ("DriftReport",),
    "core.reports.catalogue": ("QuantsReport",),
    "core.reports.common": ("Report", "ExplainedStep"),
    "core.reports.checks": ("ChecksReport",),
    "core.errors": ("InputError", "KvcalcError", "ProfileError", "UnknownNameError", "UnsupportedError"),
    "core.hardware": ("HardwareProfile",),
    "core.model": ("ModelProfile",),
    "core.reports.check": ("CheckReport",),
    "core.reports.compare": ("CompareReport",),
    "core.reports.fit": ("FitReport",),
    "core.reports.layers": ("LayersReport",),
    "core.reports.levers": ("LeversReport",),
    "core.reports.measure": ("BenchReport", "CrosscheckReport"),
    "core.reports.plan": ("PlanReport",),
    "core.reports.reconcile": ("ReconcileReport",),
    "core.reports.roofline": ("RooflineReport",),
    "core.reports.simulate": ("Capacity", "SimulateReport"),
    "core.reports.size": ("SizeReport",),
    "core.reports.solve": ("SolveReport",),
    "core.reports.speculative": ("SpeculativeReport",),
    "core.reports.speed": ("DecodeReport", "PrefillReport"),
    "core.reports.validate": ("ValidateReport",),
    "core.reports.sweep": ("SweepReport",),
    "core.reports.traffic": ("TrafficReport",),
    "demo.decoder": ("DecoderShape",),
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"kvcalc.{_WHERE.get(name, 'api')}"), name)
    raise AttributeError(f"module 'kvcalc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
