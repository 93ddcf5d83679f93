"""Answers over grids: what operators cost, what engines leave of a card, what each lever saves, what formats weigh."""

from __future__ import annotations

import dataclasses
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import kvcalc
from kvcalc import api
from kvcalc.core.errors import KvcalcError
from kvcalc.core.formats import FORMATS
from kvcalc.core.model import Mixture
from kvcalc.core.workload import Formats, Parallel, TokenGroup
from kvcalc.cost.forward import forward_cost
from kvcalc.engines.vllm.padding import KERNELS, padded_expert_bytes
from kvcalc.plan.levers.catalogue import LEVERS

if TYPE_CHECKING:
    from kvcalc.core.cost_types import OpCost
    from kvcalc.core.formats import Format
    from kvcalc.core.reports.validate import Outcome
    from kvcalc.engines.vllm.padding import Kernel

__all__ = [
    "FITS",
    "FORMATS",
    "KERNELS",
    "LEVERS",
    "OPERATORS",
    "SPECULATIONS",
    "evidence",
    "experts",
    "fit",
    "format_of",
    "lever",
    "operators",
    "speculation",
]

# One model of each kind of mixer and of MLP.
_KINDS = (
    "llama2-70b", "gemma-3-27b", "gemma-3n-e2b", "gpt-oss-20b", "deepseek-v2-lite", "deepseek-v3", "deepseek-v3.2",
    "deepseek-v4-flash", "llama4-scout", "mixtral-8x7b", "qwen1.5-moe-a2.7b", "qwen3-next-80b-a3b", "jamba-1.5-mini",
    "mamba-1.4b", "mamba2-1.3b", "rwkv-4-7b", "recurrentgemma-2b", "falcon-h1-7b", "kimi-linear-48b-a3b",
    "minimax-text-01", "lfm2-1.2b", "whisper-small", "t5-small", "llama3.2-11b-vision", "zamba2-7b", "xlstm-7b",
    "falcon-7b", "minimax-m3",
)  # fmt: skip
_PASSES = {
    "decode": ((TokenGroup(sequences=3, query_tokens=1, past_tokens=5000),), Parallel()),
    "chunk on two ranks": ((TokenGroup(sequences=2, query_tokens=700, past_tokens=300),), Parallel(tensor=2)),
}
OPERATORS = {
    f"{model}, {name}": (model, name)
    for model, name in [*product(_KINDS, ["decode"]), *product(_KINDS[1:26:3], ["chunk on two ranks"])]
}
_DIGITS = 9


def operators(asked: tuple[str, str]) -> Any:
    """Return what each operator of a pass costs, by name: the figures that are not 0."""
    model, name = asked
    groups, parallel = _PASSES[name]
    try:
        cost = forward_cost(api.load_model(model), groups, Formats(), parallel=parallel)
    except KvcalcError as error:
        return error.what
    return {f"{op.part}: {op.name}": _figures(op) for op in cost.stages[0]}


def _figures(op: OpCost) -> dict[str, Any]:
    figures = {field.name: getattr(op, field.name) for field in dataclasses.fields(op)}
    return {
        name: float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
        for name, value in figures.items()
        if value and name not in {"name", "part"} and (name, value) not in {("unit", "bf16"), ("calls", 1)}
    }


_ENGINES = ("vllm", "sglang", "llama.cpp", "transformers")
_CARDS = ("t4", "rtx-4090", "l40s", "a100-80gb", "h100-sxm", "h200", "b200", "mi300x", "m4-max-40")
_SERVED = (
    "llama3.1-8b",
    "gemma-3-27b",
    "qwen3-vl-8b",
    "gpt-oss-20b",
    "deepseek-v2-lite",
    "qwen3-next-80b-a3b",
    "jamba-1.5-mini",
)
_SPREADS: tuple[dict[str, int], ...] = (
    {},
    {"tensor_parallel": 4},
    {"pipeline_parallel": 2},
    {"data_parallel": 4, "expert_parallel": 4},
)
FITS = {
    f"{model} on {card}, {engine}{''.join(f', {name} {size}' for name, size in spread.items())}": (engine, card, model, spread)
    for engine, card, model, spread in [
        *((engine, card, model, {}) for engine, card, model in product(_ENGINES, _CARDS, _SERVED[:1])),
        *((engine, "h100-sxm", model, spread) for engine, model, spread in product(_ENGINES[:2], _SERVED[1:], _SPREADS[:3])),
        *((engine, "h200", model, {}) for engine, model in product(_ENGINES[2:], _SERVED[1:])),
        *(("sglang", card, _SERVED[2], {}) for card in _CARDS),
        *(("vllm", card, _SERVED[3], {}) for card in _CARDS),
        *((engine, "b200", model, _SPREADS[3]) for engine, model in product(_ENGINES[:2], ("deepseek-v3", "gpt-oss-120b"))),
    ]
}  # fmt: skip


def fit(asked: tuple[str, str, str, dict[str, int]]) -> Any:
    """Return the budget of a card under an engine, and what it holds."""
    engine, card, model, spread = asked
    try:
        deployment = kvcalc.deployment(model, gpu=card, engine=engine, **spread)  # type: ignore[arg-type]
        report = kvcalc.fit(deployment, context=3000, batch=5)
    except KvcalcError as error:
        return error.message
    budget = report.budget
    assert budget is not None
    return {
        "budget": [budget.memory_bytes, budget.utilization, budget.weight_bytes, *budget.intervals["activation_bytes"],
                   *budget.intervals["overhead_bytes"], *budget.intervals["kv_bytes_available"], budget.outside_bytes],
        "reserved": report.reserved_kv_bytes,
        "tokens": report.kv_capacity_tokens,
        "blocks": [report.num_blocks, report.block_size],
        "at once": None if report.max_concurrency is None else float(f"{report.max_concurrency:.{_DIGITS}g}"),
        "largest": [report.max_batch, report.max_context, report.min_gpus],
    }  # fmt: skip


_CUT = ("llama2-7b", "gemma-3-27b", "deepseek-v2-lite", "jamba-1.5-mini")


def lever(name: str) -> Any:
    """Return what a lever holds and reads of some models, as it is and with another size."""
    answers: dict[str, Any] = {}
    for model, given in product(_CUT, (name, f"{name}=3", f"{name}=0.3", f"{name}=3x5", f"topk=700,{name}")):
        try:
            row = kvcalc.levers(kvcalc.deployment(model), with_levers=given, context=6000, batch=2).rows[-1]
        except KvcalcError as error:
            answers[f"{model}, {given}"] = error.what
        else:
            sizes = row.kv_total_bytes, row.host_bytes, row.reserved_bytes, row.read_total_bytes
            answers[f"{model}, {given}"] = [row.cuts, row.retrofit, *map(float, sizes)] if row.applies else row.quality
    return answers


_EXPERTS = (
    Mixture(experts=128, experts_per_token=4, width=2880, expert_bias=True),
    Mixture(experts=8, experts_per_token=2, width=1500, gated=False),
)


def experts(kernel: Kernel) -> Any:
    """Return what experts weigh as a kernel lays them out, whole and in three slices."""
    shapes = product(_EXPERTS, (2880, 1900), (1, 3))
    return [padded_expert_bytes(mixture, hidden, kernel, slices=slices) for mixture, hidden, slices in shapes]


def format_of(each: Format) -> Any:
    """Return a format as it is, and what 1,000 elements in heads of 96 weigh."""
    return [*dataclasses.astuple(each), each.bytes(1000, head_dim=96)]


_HELD = ("measured", "bound", "estimate", "estimate_least", "estimate_most")
_METHODS: dict[str, dict[str, Any]] = {
    "draft-model": {"draft": "llama3.2-1b"},
    "ngram": {},
    "medusa": {"tree": (3, 2)},
    "eagle": {},
    "eagle, 2 layers": {"draft_layers": 2},
    "mtp": {},
    "mtp, a model of its own": {"draft": "llama3.2-1b"},
    "mtp, 3 layers": {"draft_layers": 3},
    "dflash": {},
    "dspark": {},
    "layer-skip": {"draft_layers": 9},
}
_TARGETS = ("llama3.1-70b", "deepseek-v3", "qwen3-next-80b-a3b", "gemma-3-27b")
SPECULATIONS = {f"{target}, {method}": (target, method) for target, method in product(_TARGETS, _METHODS)}


def speculation(asked: tuple[str, str]) -> Any:
    """Return whether a way to draft pays, at one length and at the best, and what it adds to memory."""
    target, method = asked
    given: dict[str, Any] = {"acceptance": 0.7, "method": method.partition(",")[0]} | _METHODS[method]
    engine = "ideal" if method == "layer-skip" else "vllm"
    try:
        deployment = kvcalc.deployment(target, gpu="h200", gpus=8, weights="fp8", engine=engine)
        one = kvcalc.speculate(
            deployment, batches=[8], contexts=[3000], gammas=None if "tree" in given else [3], **given
        )
        best = kvcalc.speculate(deployment, batches=[1, 64], contexts=[3000], **given)
    except KvcalcError as error:
        return error.what
    row = one.rows[0]
    memory = one.memory
    return {
        "method": one.method,
        "draft": one.draft,
        "row": [
            _short(each) for each in (row.expected_tokens_per_pass, row.speedup, row.draft_ratio, row.verify_ratio)
        ],
        "memory": [memory.weight_bytes, memory.kv_bytes, memory.lookahead_bytes],
        "best": [[row.gamma, _short(row.speedup), row.fits] for row in best.rows],
        "notes": list(one.notes),
    }


def _short(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def evidence(suite: str) -> Any:
    """Return what each source's records of a suite are held against: how many, by status, and sums of bounds and of estimates."""
    sources: dict[str, list[Outcome]] = {}
    for outcome in kvcalc.validate(suites=[suite]).outcomes:
        sources.setdefault(outcome.source, []).append(outcome)
    answers = {}
    for source, outcomes in sources.items():
        statuses = Counter(f"{outcome.status}{outcome.reason and ': '}{outcome.reason}" for outcome in outcomes)
        sums = [
            [float(f"{sum(getattr(each, name) or 0 for each in outcomes if each.unit == unit):.6g}") for name in _HELD]
            for unit in sorted({outcome.unit for outcome in outcomes})
        ]
        answers[source] = [dict(sorted(statuses.items())), sums]
    return answers
