"""Units: prefixes stand in core/units.py alone, and every quantity of a report says its unit in its name."""

import ast
import importlib
import pkgutil
import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import kvcalc
from kvcalc import demo
from kvcalc.core import cost_types, hardware, reports

PACKAGE = Path(kvcalc.__file__).parent
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "core" / "units.py")

# What a bound on input may be called: such a constant is compared with, never multiplied by.
LIMIT = re.compile(r"_?(MOST|LEAST|MAX|MIN|MANY|DEEPEST|LARGEST)(_[A-Z]+)*")
PREFIXES = {1000**power for power in range(1, 9)} | {1024**power for power in range(1, 9)}


def _is_prefix(node):
    """Whether a node spells 1000 or 1024, or a power of them or its inverse: 1e9, 10**9, 2**30, 1 << 30, 1e-3."""
    try:
        value = eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}})  # noqa: S307
    except Exception:  # noqa: BLE001
        return False
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return False
    return value in PREFIXES or any(abs(value * prefix - 1) < 1e-9 for prefix in PREFIXES)


def _misplaced(tree):
    """Yield the lines where a prefix scales a number, or is given a name or a key to scale with later.

    A comparison, an argument (``le=10**12``) or a list of sizes is a limit or a count, not a conversion. A named
    constant is a limit if its name says so.
    """
    limits = set()
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if targets and all(isinstance(name, ast.Name) and LIMIT.fullmatch(name.id) for name in targets):
            limits |= set(ast.walk(node))
    for node in ast.walk(tree):
        if node in limits:
            continue
        scaled = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod)
        if isinstance(node, ast.BinOp) and isinstance(node.op, scaled):
            parts = [node.left, node.right]
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, scaled):
            parts = [node.value]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            parts = [node.value] if node.value is not None else []
        elif isinstance(node, ast.Dict):
            parts = node.values
        else:
            continue
        yield from (node.lineno for part in parts if part is not None and _is_prefix(part))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_unit_prefixes_stand_in_units_only(path):
    lines = sorted(set(_misplaced(ast.parse(path.read_text(encoding="utf-8")))))
    assert not lines, f"{path.relative_to(PACKAGE)}: a prefix scales a number in lines {lines}; use kvcalc.core.units"


@pytest.mark.parametrize(
    "text",
    ["rate = x * 1e12", "x / 2**30", "x // 1024", "x >> 1\ny = 3 * (1 << 30)", "GB = 10**9", "t *= 1e-3", "{'T': 1e12}",
     "def f():\n    gib = 1024**3"],
)  # fmt: skip
def test_a_misplaced_prefix_is_found(text):
    assert list(_misplaced(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["_MOST_BYTES = 4 * 2**20", "x <= 1e21", "f(le=10**12)", "sizes = (1024, 4096)", "x * 128"]
)
def test_a_limit_or_a_list_is_not_taken_for_a_prefix(text):
    assert not list(_misplaced(ast.parse(text)))


# Numbers that count things, in the words of the command line, and ratios that have no unit.
COUNT = re.compile(
    r"(.+_)?(batch|context|prompt|gpus|parameters|layers|ranks|heads|requests|projections|steps|calls|blocks|intervals"
    r"|channels|sequences|micro_batches|concurrency|headroom|failures|regressions|preemptions|replicas|replica|points|runs|seqs|threads|experts|records|models"
    r"|violations|slots)|held|scored|fitted|excluded|explained|without_(profile|calibration)"
    r"|max_model_len|block_size|tensor|pipeline|expert|data|utilization|(tensor|pipeline|expert|data)_parallel"
    r"|candidates|refused|pruned|ranked|simulated|context_limit|logits|of"
)
# Ratios and distances without a unit, and what says which one of several.
RATIO = re.compile(
    r"(.+_)?(factor|share|shares|exponent|error|difference|reduction)(_.+)?|place|seed"
    r"|rank|margin|(.+_)?(ratio|coverage|acceptance|acceptance_rate|speedup|gamma|tokens_per_pass)"
)
# Shares of one, a place in a list, ranks with their operators, and a number whose unit is the field beside it.
WITHOUT_UNIT = {
    "StepCost.rank_kinds",
    "StepTime.shares",
    "StepTime.slowest_stage",
    "DecodeRow.shares",
    "PrefillRow.shares",
    "ExplainedStep.value",
    "Outcome.measured",
    "Outcome.bound",
    "Outcome.estimate",
    "Outcome.estimate_least",
    "Outcome.estimate_most",
    # a line of a log
    "Refusal.line",
    # the unit stands in the quantity beside them
    "CompareRow.differences",
    "CompareRow.ratios",
    "CalibrateReport.before",
    "CalibrateReport.after",
    "CompareRow.best",
    # the quantity and its unit stand beside them
    "SolveConstraint.target",
    "SolveConstraint.reached",
    "SolveConstraint.beyond",
    "SolveConstraint.beyond_target",
    "SolveRow.answer",
    "SolveRow.acceptance",
    "Assumption.needed",
    "CheckChange.ratio",
    "DecoderShape.head_dim",
    "DecoderShape.vocabulary",
    "DriftReport.consistency",
    "DriftReport.noise",
    "DriftReport.trainings",
    "KvCacheReport.both_ways_first_wrong",
    "KvCacheReport.projections_with",
    "KvCacheReport.projections_without",
    "KvCacheStep.projections_with",
    "KvCacheStep.projections_without",
    "ForwardPass.shapes",
    "KvCacheStep.shapes",
    "KvCacheStep.shapes_without",
    "PagingReport.more_requests",
    # options of llama.cpp under their own names
    "PlacementChoice.tensor_split",
    "EngineFit.tensor_split",
    "PlacementChoice.n_cpu_moe",
    "PlacementChoice.main_gpu",
    "PlacementChoice.copies",
    "LocalReport.parallel",
    "SharingEvent.tables",
    # the request in each place of a batch, the places, the steps of each request; the index of a layer
    "BatchingStep.static",
    "BatchingStep.continuous",
    "BatchingReport.places",
    "BatchingReport.pieces",
    "LayerRun.first",
    "SpeculationDraft.mean_tokens_per_pass",
    "SpeculationDraft.quality",
    "SpeculationDraft.target_passes",
    "SpeculationReport.output",
    "SpeculationRound.accepted",
    "SpeculationRound.drafted",
    "SpeculationRound.emitted",
    "SpeculationRound.own",
    "SpeculationRound.rejected",
}
# Mappings whose values are described by their own keys.
NESTED = {"KvSize.affine", "WeightSize.parts"}
UNIT = re.compile(
    r"(.+_)?(bytes|flop|s|tokens|requests|w|usd|joules)(_per_(s|byte|token|tokens|million_tokens|sequence|gib|gpu|hour|month|output_token))*(_available)?"
    r"|price_per_hour_usd|bits_per_weight|(.+_)?gpu_hours"
)


def _numbers():
    """Every field that holds a number, as Class.field."""
    inside = [
        name for package in (reports, demo) for name in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    ]
    for module in (cost_types, hardware, *(importlib.import_module(each.name) for each in inside)):
        for kind in vars(module).values():
            if not is_dataclass(kind) or kind.__module__ != module.__name__:
                continue
            for field in fields(kind):
                if re.search(r"\b(int|float)\b", str(field.type)):
                    yield f"{kind.__name__}.{field.name}"


@pytest.mark.parametrize("name", list(_numbers()))
def test_every_quantity_says_its_unit(name):
    field = name.rpartition(".")[2]
    named = any(pattern.fullmatch(field) for pattern in (UNIT, COUNT, RATIO))
    assert named or name in WITHOUT_UNIT | NESTED


@pytest.mark.parametrize("name", ["memory", "bandwidth", "latency", "memory_gb", "batch_time", "flop_rate"])
def test_a_name_without_a_unit_is_found(name):
    assert not UNIT.fullmatch(name)
    assert not COUNT.fullmatch(name)
    assert not RATIO.fullmatch(name)


def test_the_exceptions_are_still_there():
    assert set(_numbers()) >= WITHOUT_UNIT | NESTED
