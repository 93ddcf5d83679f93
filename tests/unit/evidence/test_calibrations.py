"""The shipped calibrations: valid, found by accelerator and engine, and judged by records that they have not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import pytest

import kvcalc
from kvcalc.evidence.calibrate import cross_validated, fit_families
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.cases import Unusable
from kvcalc.evidence.estimates import estimate_case, estimated_passes
from kvcalc.evidence.families import FAMILIES
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import shipped_records
from kvcalc.evidence.speeds import outcomes
from kvcalc.plan.estimates import best_calibration, estimate_notes
from kvcalc.profiles.catalog import names, shipped_folder
from kvcalc.profiles.loader import load_calibration_file
from kvcalc.profiles.writer import profile_yaml
from kvcalc.sources import find_calibration, shipped_calibrations

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.evidence.cases import Case
    from kvcalc.evidence.record import Record

SHIPPED = {found.name: found for found in shipped_calibrations()}
RECORDS = {record.id: record for record in shipped_records()}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_calibration_is_valid_and_reads_back(name: str, tmp_path: Path) -> None:
    path = shipped_folder("calibration") / f"{name}.yaml"
    assert load_calibration_file(path) == SHIPPED[name]
    again = tmp_path / "again.yaml"
    again.write_text(profile_yaml(SHIPPED[name]), encoding="utf-8")
    assert load_calibration_file(again) == SHIPPED[name]


def test_there_is_one_for_each_family_and_none_has_seen_its_judges() -> None:
    # the host's is fitted from runs over unlike places, by tests/tools/fit_host.py
    fitted = {family.name for family in FAMILIES} | {"llama.cpp-host"}
    assert set(names("calibration")) == set(SHIPPED) == fitted
    for family in FAMILIES:
        measured = SHIPPED[family.name].measured
        assert bool(measured.trained_on) is bool(measured.records)
        assert measured.records or family.name == "vllm-blackwell-rtx"
        assert not [name for name in measured.trained_on if family.judges(name)]
        assert all(family.judges(name) for name in measured.held_out)
        assert measured.records >= len(measured.trained_on)


@pytest.mark.parametrize("name", SHIPPED)
def test_an_interval_holds_the_estimate(name: str) -> None:
    for spread in (SHIPPED[name].memory_interval, SHIPPED[name].compute_interval):
        assert spread.low <= 1 <= spread.high


@pytest.mark.parametrize(
    ("gpu", "weights", "expected"),
    [
        ("h100-sxm", None, "vllm-hopper"),
        ("h100-sxm", "q4_k", "llama.cpp-hbm"),
        ("rtx-3090", "q4_k", "llama.cpp-ampere"),
        ("a100-80gb", "q4_k", "llama.cpp-hbm"),
        ("p40", "q4_0", "llama.cpp-cuda"),
        ("b200", None, "vllm-blackwell"),
        ("a100-80gb", None, "vllm-ampere"),
        ("l40s", None, "vllm-ada"),
        ("rtx-4090", None, "vllm-ada"),
        ("rtx-pro-6000-workstation", None, "vllm-blackwell-rtx"),
        ("rtx-5090", None, "vllm-blackwell-rtx"),
        ("rtx-4090", "q4_0", "llama.cpp-rtx"),
        ("dgx-spark", None, "llama.cpp-dgx-spark"),
        ("m4-max-40", "q4_0", "llama.cpp-apple"),
        ("rx-7900-xtx", "q4_0", "llama.cpp-radeon"),
        ("tpu-v5e", None, None),
    ],
)
def test_the_calibration_is_chosen_by_accelerator_and_weights(
    gpu: str, weights: str | None, expected: str | None
) -> None:
    found = find_calibration(kvcalc.deployment("llama3.1-8b", gpu=gpu, weights=weights))
    assert (found.name if found is not None else None) == expected


@pytest.mark.parametrize(
    ("printed", "engine"),
    [
        ("Ollama 0.5", "llama.cpp"),
        ("llama-bench b6000", "llama.cpp"),
        ("llama.cpp (Vulkan)", "llama.cpp-vulkan"),
        ("llama-server, Vulkan", "llama.cpp-vulkan"),
        ("ik_llama.cpp", "ik_llama.cpp"),
        ("NVIDIA NIM", "tensorrt-llm"),
    ],
)
def test_an_engine_that_is_another_inside(printed: str, engine: str) -> None:
    assert engine_of(replace(RECORDS["lcpp-005"], engine=printed)) == engine


def test_what_an_engine_no_longer_does_is_held_against_the_bound_alone() -> None:
    found = [record for record in RECORDS.values() if record.id.startswith("llama3-")]
    cases = [case for case in map(case_of, found) if not isinstance(case, Unusable)]
    assert len(cases) == len(found) == 289
    told = {case.record.id: case.bound_only for case in cases}
    old = [record.id for record in found if record.id.startswith("llama3-cuda-q4") and record.phase == "prefill"]
    assert len(old) > 30
    assert all("June 2024" in told[name] or "flash" in told[name] for name in old)
    lengths = {record.id: max(record.prompt_tokens or 0, (record.output_tokens or 0) // 2) for record in found}
    long = {name for name, length in lengths.items() if length > 1024}
    assert {name for name, reason in told.items() if reason} == long | set(old)


def test_served_times_have_one_interval_whatever_the_engine_and_accelerators() -> None:
    served = [found for found in SHIPPED.values() if found.request_s]
    assert len(served) == 9
    assert len({(found.memory_interval, found.compute_interval) for found in served}) == 1
    kinds = {kind for found in served for kind in found.intervals}
    assert kinds >= {"served, dense", "served, mixture", "first token, mixture", "decode, dense", "prefill, mixture"}
    assert all(len({found.intervals[kind] for found in served if kind in found.intervals}) == 1 for kind in kinds)


def test_without_served_records_a_calibration_is_that_of_its_cards_kernels() -> None:
    rtx, hopper = SHIPPED["vllm-blackwell-rtx"], SHIPPED["vllm-hopper"]
    assert (rtx.measured.records, rtx.measured.device, rtx.intervals) == (0, "rtx-pro-6000-server", {})
    assert rtx.has_too_few("decode, dense")
    assert (rtx.request_s, rtx.request_steps, rtx.queue_share) == (
        hopper.request_s,
        hopper.request_steps,
        hopper.queue_share,
    )
    # over PCIe sums begin later; its 8-bit matrices reach more of their peak than Hopper's beside what they quantise
    assert rtx.collective_s > 2 * hopper.collective_s
    assert rtx.reach_of("matrix", "fp8").activation_share > hopper.reach_of("matrix", "fp8").activation_share


@pytest.mark.slow
def test_each_campaign_is_judged_by_a_fit_to_the_others() -> None:
    family = next(family for family in FAMILIES if family.name == "llama.cpp-radeon")
    own = [case for case in map(case_of, RECORDS.values()) if not isinstance(case, Unusable)]
    found = list(cross_validated(own, [replace(family, held_out=())]))
    assert len({judged.campaign for judged in found}) > 2
    assert {judged.case.record.id for judged in found} == {
        case.record.id
        for case in own
        if engine_of(case.record) == "llama.cpp" and best_calibration([family], case.hardware, ("llama.cpp",))
    }
    alone = [judged for judged in found if judged.campaign == found[0].campaign]
    assert all(judged.error > -1 for judged in alone)


@pytest.mark.parametrize(
    ("gpu", "weights", "activations", "noted"),
    [
        ("h100-sxm", "fp8", None, True),
        ("h100-sxm", "fp8", "fp8", False),
        ("h100-sxm", "fp8-dynamic", None, False),
        ("h100-sxm", None, None, False),
    ],
)
def test_an_estimate_in_16_bits_of_weights_in_fp8_says_how_checkpoints_were_measured(
    gpu: str, weights: str | None, activations: str | None, *, noted: bool
) -> None:
    deployment = kvcalc.deployment("llama3.1-70b", gpu=gpu, tensor_parallel=4, weights=weights, activations=activations)
    assert any("--activations fp8" in note for note in estimate_notes(SHIPPED["vllm-hopper"], deployment)) is noted


@pytest.mark.parametrize(
    ("model", "gpu", "engine", "phase", "noted"),
    [
        ("llama3.1-8b", "h200", "sglang", "decode", False),
        ("llama3.1-8b", "rtx-5090", "vllm", "decode", True),
        ("deepseek-v3", "h200", "sglang", "decode", False),
        ("llama3.1-8b", "h200", "vllm", "prefill", False),
        ("llama3.1-8b", "rx-7900-xtx", "llama.cpp", "decode", True),
    ],
)
def test_an_interval_of_too_few_measurements_is_said_to_be_of_all_passes(
    model: str, gpu: str, engine: str, phase: Literal["decode", "prefill"], *, noted: bool
) -> None:
    deployment = kvcalc.deployment(model, gpu=gpu, tensor_parallel=1, engine=engine)
    calibration = find_calibration(deployment)
    assert calibration is not None
    notes = estimate_notes(calibration, deployment, phase)
    assert any(note.startswith("too few measurements of decode of dense models") for note in notes) is noted


@pytest.mark.parametrize(("gpu", "noted"), [("a100-80gb", True), ("h200", False)])
def test_plans_and_simulations_say_of_which_phases_there_are_too_few_measurements(gpu: str, *, noted: bool) -> None:
    asked = {"model": "llama3.1-8b", "gpu": gpu, "rate": 1.0, "prompt": 64, "output_tokens": 8}
    few = ["too few measurements of prefill of dense models in vllm-ampere for an 80% interval"] * noted
    found = kvcalc.ask("simulate", asked | {"requests": 2, "step_times": "estimate"})
    assert [note for note in found.notes if note.startswith("too few measurements")] == few
    plan = kvcalc.ask("plan", asked | {"slo": "tpot_p95=1s"})
    told = [note for note in plan.options[0].notes if note.startswith("too few measurements")]
    assert told == [f"{note}: the one printed is that of all its passes" for note in few]


def test_a_borrowed_estimate_is_no_reason_for_a_slow_step() -> None:
    (found,) = outcomes("decode", [RECORDS["gptfast-014"]])
    assert (found.scored, found.reason) == (False, "")
    assert "nothing was measured of gpt-fast there" in found.unscored_reason


def test_kernels_on_their_own_estimate_no_model() -> None:
    hopper = kvcalc.load_hardware("h100-sxm")
    found = best_calibration(SHIPPED.values(), hopper, ("kernels",))
    assert found is not None
    assert found.name == "kernels-hopper"


def test_the_accelerators_name_comes_before_its_generation() -> None:
    spark = kvcalc.load_hardware("dgx-spark")
    generation = replace(SHIPPED["llama.cpp-rtx"], engine="llama.cpp")
    found = best_calibration([generation, SHIPPED["llama.cpp-dgx-spark"]], spark, ("llama.cpp",))
    assert found is SHIPPED["llama.cpp-dgx-spark"]


def _case(record: Record) -> Case:
    found = kernel_case(record) if record.suite == "kernels" else case_of(record)
    assert not hasattr(found, "reason"), found
    return found  # type: ignore[return-value]


def test_runs_gathered_in_one_source_are_told_apart() -> None:
    served = [record for record in RECORDS.values() if record.phase == "tpot"]
    assert len({campaign(record) for record in served}) > len({record.source for record in served}) - 1
    other = replace(served[0], engine="sglang")
    assert campaign(other) != campaign(served[0])
    assert campaign(replace(served[0], id="again", value=1.0)) == campaign(served[0])


def test_the_backend_is_part_of_the_engine() -> None:
    spark = next(record for record in RECORDS.values() if record.engine.startswith("llama.cpp"))
    assert engine_of(replace(spark, engine="llama.cpp (CUDA)")) == "llama.cpp"
    assert engine_of(replace(spark, engine="llama.cpp (Vulkan, PR)")) == "llama.cpp-vulkan"


def test_a_served_step_is_estimated_with_the_prompts_of_others() -> None:
    record = next(r for r in RECORDS.values() if r.phase == "tpot" and r.batch and r.batch > 4 and r.output_tokens)
    steps = estimated_passes(_case(record))
    decoding, prompts = steps
    assert (decoding.times, decoding.is_beside, prompts.is_beside) == (1, False, True)
    read = prompts.times * sum(group.tokens for group in prompts.groups)
    running = decoding.groups[0].sequences
    assert read == pytest.approx((running - 1) * record.prompt_tokens / record.output_tokens)


def test_prompts_that_cannot_have_been_read_are_not_estimated() -> None:
    record = next(r for r in RECORDS.values() if r.phase == "tpot" and r.batch and r.batch > 4 and r.ttft_s)
    estimate = estimate_case(_case(record))
    assert estimate is not None
    assert estimate.low_s <= estimate.estimate_s <= estimate.high_s
    assert estimate.calibration in {calibration.name for calibration in shipped_calibrations()}
    assert isinstance(estimate.fitted, bool)
    quick = replace(record, value=record.value / 20, ttft_s=1e-6)
    assert "prompts cannot all have been read" in _case(quick).bound_only
    assert estimate_case(_case(quick)) is None


@pytest.mark.slow
def test_a_fit_of_shipped_records_is_the_same_twice() -> None:
    cases = [_case(record) for record in RECORDS.values() if "dgx-spark" in record.source and record.phase == "decode"]
    family = [one for one in FAMILIES if one.name == "llama.cpp-dgx-spark"]
    first, second = (fit_families(cases, family).calibrations for _ in range(2))
    assert first == second
    assert first[0].reach["matrix:int8"].bandwidth_share > 0.6


@pytest.mark.parametrize(("weights", "short", "deep"), [
    ("iq4_nl", 14.29, 13.33), ("q4_1", 13.53, 12.40), ("q3_k_m", 12.63, 11.89),
])  # fmt: skip
def test_a_long_cache_on_apple_adds_the_time_that_was_measured(weights: str, short: float, deep: float) -> None:
    """Tokens/s of Qwen3.8-27B on an M1 Max, short and at 12,700 tokens: ggml-org/llama.cpp/issues/27525."""
    asked = {"model": "qwen3.8-27b", "gpu": "m1-max-32", "engine": "llama.cpp", "weights": weights, "estimate": True}
    near, far = kvcalc.ask("decode", asked | {"context": [128, 12_700]}).rows
    assert far.estimate_s - near.estimate_s == pytest.approx(1 / deep - 1 / short, rel=0.3)
