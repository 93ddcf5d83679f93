"""What users write, checked by mypy and run by the tests."""

from __future__ import annotations

import kvcalc


def kv_bytes_of_a_batch() -> int:
    """Bytes that 32 conversations of 8,192 tokens keep."""
    deployment = kvcalc.deployment("llama3.1-8b", kv_dtype="fp8")
    report: kvcalc.SizeReport = kvcalc.size(deployment, context=8192, batch=32)
    return report.kv.total_bytes


def fastest_step_s(model: str | kvcalc.ModelProfile, gpu: str) -> tuple[float, str]:
    """The least time of a decode step and what limits it."""
    row = kvcalc.decode(kvcalc.deployment(model, gpu=gpu), batches=[1, 8], contexts=[4096]).rows[0]
    return row.ideal_s, row.limiter


def time_to_first_token_s(prompt: int) -> float:
    """The bound on the time to first token on two GPUs."""
    deployment = kvcalc.deployment("qwen3-8b", gpu="h100-sxm", gpus=2)
    return kvcalc.prefill(deployment, prompts=[prompt]).rows[0].ideal_s


def ridge_points() -> dict[str, float]:
    """Ridge points of an accelerator by format."""
    card: kvcalc.HardwareProfile = kvcalc.load_hardware("h200")
    return dict(kvcalc.roofline(card).ridge_flop_per_byte)


def largest_batch(memory_bytes: int) -> int:
    """The most sequences that a given cache memory holds in vLLM."""
    return kvcalc.fit(kvcalc.deployment("gemma-3-27b"), kv_memory_bytes=memory_bytes, context=8192).max_batch


def batch_up_to_which_speculation_pays(context: int) -> int | None:
    """The largest batch at which a small draft of 5 tokens still helps; none where it always or never does."""
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    report: kvcalc.SpeculativeReport = kvcalc.speculate(
        target, "llama3.1-8b", acceptance_conditional=[0.9, 0.85, 0.8, 0.75, 0.7], gammas=[5], contexts=[context]
    )
    return report.break_even_batch


def explained() -> list[str]:
    """Formulas with their numbers."""
    steps = kvcalc.explain("size", kvcalc.deployment("deepseek-v3"), context=4096)
    return [f"{step.quantity} = {step.expression}" for step in steps]


def likely_seconds() -> float | None:
    """How long a decode step is likely to take, where a calibration applies."""
    report = kvcalc.decode(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), batches=[8], estimate=True)
    return report.rows[0].estimate_s


def is_plausible(claim: str) -> bool:
    """Whether a speed that someone claims is possible."""
    return kvcalc.check_measured(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), claim, batch=8).passed


def trusted() -> float | None:
    """The median share of the bound that decoding reaches."""
    report: kvcalc.ValidateReport = kvcalc.validate(suites=["decode"])
    return report.suites["decode"].median_share


def bytes_read(levers: str) -> int:
    """Cache read to generate 4,096 tokens, with ways to shrink it."""
    report: kvcalc.TrafficReport = kvcalc.traffic(
        kvcalc.deployment("llama2-7b"), output_tokens=4096, with_levers=levers
    )
    return report.kv_read_bytes


def held_with_levers() -> dict[str, int]:
    """Bytes of the cache with each way to shrink it."""
    report: kvcalc.LeversReport = kvcalc.levers(kvcalc.deployment("llama2-7b"), context=4096)
    return {row.lever: row.kv_total_bytes for row in report.rows}


def projections() -> tuple[int, int]:
    """Tokens that a layer of a small decoder projects without and with a cache."""
    report = kvcalc.demo_kv_cache(shape=kvcalc.DecoderShape(layers=1, heads=2, kv_heads=1))
    return report.projections_without, report.projections_with


def refused(name: str) -> str:
    """What a user is told of a model that is not known."""
    try:
        kvcalc.load_model(name)
    except kvcalc.UnknownNameError as error:
        return f"{error.what}; {error.hint}"
    return ""


def fewest_gpus(model: str, gpu: str) -> float | None:
    """The fewest accelerators that hold eight conversations."""
    report: kvcalc.SolveReport = kvcalc.solve(kvcalc.deployment(model, gpu=gpu), "gpus", context=8192, batch=8)
    return report.rows[0].answer


def better_format() -> tuple[int, ...]:
    """Which of two cache formats holds more sequences, by place."""
    sides = [kvcalc.side(name, kvcalc.deployment("llama3.1-8b", gpu="l40s", kv_dtype=name)) for name in ("bf16", "fp8")]
    report: kvcalc.CompareReport = kvcalc.compare(sides)
    return next(row.best for row in report.rows if row.quantity == "fit.max_batch")
