"""Predictions against the loop: what must hold, what is excused, what is kept, what is refused."""

import errno
import json
import sys
import weakref
from dataclasses import replace

import pytest
import torch

from kvcalc import api, files
from kvcalc.cli.main import main
from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.hardware import HardwareProfile
from kvcalc.measure import attention, kernels, library, steps
from kvcalc.measure.bench import bench_report
from kvcalc.measure.correctness import check_loop
from kvcalc.measure.crosscheck import Questions, crosscheck_report
from kvcalc.measure.library import find_device
from kvcalc.measure.probes import Plan
from kvcalc.measure.verdicts import byte_checks, cause
from kvcalc.plan.deployment import deploy
from kvcalc.sources import load_calibration

from .models import DEVICE, MODELS, small_device

pytestmark = pytest.mark.usefixtures("small_working_sets")
SLOW = HardwareProfile(
    name="slow", title="x", vendor="x", memory_label_bytes=1e9, memory_bandwidth_bytes_per_s=1e3,
    peak_flop_per_s={"fp32": 1e3},
)  # fmt: skip
FAST = replace(SLOW, name="fast", memory_bandwidth_bytes_per_s=1e15, peak_flop_per_s={"fp32": 1e18})
HALF = Calibration(
    name="half", engine="x", applies_to=("fast",), reach={"matrix": Reach(bandwidth_share=0.5, flop_share=0.5)},
    memory_interval=Interval(low=0.5, high=2), compute_interval=Interval(low=0.5, high=2), step_s=1.0,
    measured=Measured(device="x"),
)  # fmt: skip


def deployed(model, weights="fp32"):
    return deploy(model, weights=weights, kv=weights, activations=weights)


def asked(*names, hardware=FAST, batches=(1, 3), contexts=(8, 24), **more):
    return Questions(
        deployments=tuple(deployed(MODELS[name]) for name in names), batches=batches, contexts=contexts, rounds=3,
        hardware=hardware, calibration=HALF, **more,
    )  # fmt: skip


def report_on(*names, progress=lambda _: None, **more):
    return crosscheck_report(DEVICE, asked(*names, **more), progress=progress)


def failed(report):
    return [check.name for check in report.checks if not check.passed]


def test_bytes_are_exact_and_the_bound_holds_for_every_kind():
    report = report_on(*MODELS)
    assert failed(report) == []
    assert report.passed
    assert len(report.rows) == 4 * len(MODELS)
    assert all(row.ratio > 1 and row.least_s <= row.measured_s <= row.median_s for row in report.rows)
    assert all(row.samples_s and row.allocated_kv_bytes == row.predicted_kv_bytes for row in report.rows)


def test_a_bound_that_is_beaten_without_a_cause_fails():
    report = report_on("GQA", hardware=SLOW)
    assert failed(report) == ["bound: no step is faster without a cause"]
    assert not report.passed


def test_what_the_cache_may_hold_is_excused_and_told():
    report = report_on("GQA", hardware=replace(SLOW, last_level_cache_bytes=2**30))
    assert report.passed
    assert all(row.cache_resident and row.cause.startswith("cache-resident") for row in report.rows)


def test_fewer_experts_than_expected_are_a_cause():
    row = report_on("experts", hardware=SLOW, batches=(3,), contexts=(8,)).rows[0]
    fewer = replace(row, touched_experts=2, cause="")
    assert "2 experts, fewer than" in cause(fewer, deployed(MODELS["experts"]), 0)
    assert cause(replace(row, touched_experts=12, cause=""), deployed(MODELS["experts"]), 0) == ""


def test_bytes_that_differ_fail():
    rows = report_on("GQA").rows
    cache = [replace(rows[0], allocated_kv_bytes=rows[0].allocated_kv_bytes + 1), *rows[1:]]
    weights = [replace(rows[0], allocated_weight_bytes=1), *rows[1:]]
    assert [check.passed for check in byte_checks(cache)] == [False, True]
    assert [check.passed for check in byte_checks(weights)] == [True, False]


@pytest.mark.parametrize("name", ["GQA", "MLA", "sliding window"])
def test_a_loop_that_reads_its_cache_wrongly_is_found(name, monkeypatch):
    right = kernels.attend

    def wrong(queries, keys, values, mask=None, **scoring):
        if mask is None and keys.shape[2] > 1:
            return right(queries, keys[:, :, 1:], values[:, :, 1:], mask, **scoring)
        return right(queries, keys, values, mask, **scoring)

    assert all(check.passed for check in check_loop(MODELS[name], DEVICE))
    monkeypatch.setattr("kvcalc.measure.kernels.attend", wrong)
    monkeypatch.setattr("kvcalc.measure.latent.attend", wrong)
    assert not check_loop(MODELS[name], DEVICE)[0].passed


def test_a_loop_that_projects_everything_anew_is_found(monkeypatch):
    call = attention.GroupedAttention.__call__

    def twice(self, hidden, cache, run):
        run.projected += run.start * hidden.shape[0]
        return call(self, hidden, cache, run)

    monkeypatch.setattr(attention.GroupedAttention, "__call__", twice)
    assert [check.passed for check in check_loop(MODELS["GQA"], DEVICE)] == [True, False]


def test_logits_that_are_no_numbers_are_found(monkeypatch):
    monkeypatch.setattr("kvcalc.measure.decoder.normalised", lambda vectors, *_: vectors * float("nan"))
    assert not check_loop(MODELS["GQA"], DEVICE)[0].passed


def test_estimates_are_held_against_measurements():
    report = report_on("GQA", "MLA")
    errors = sorted(abs(row.estimate_s / row.measured_s - 1) for row in report.rows)
    assert report.median_abs_error == {"fp32": errors[len(errors) // 2]}
    assert report.p90_abs_error["fp32"] == errors[6]


def test_growth_with_the_context_is_told():
    growth = report_on("GQA", hardware=replace(FAST, memory_bandwidth_bytes_per_s=1e10)).growth
    per_token = 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width, fp32
    assert [found.batch for found in growth] == [1, 3]
    assert growth[0].bound_s_per_token == pytest.approx(per_token / 1e10)


def test_what_was_measured_before_an_interruption_is_kept():
    def stop(step):
        if step.startswith("MLA: weights"):
            raise KeyboardInterrupt

    report = report_on("GQA", "MLA", progress=stop)
    assert report.interrupted
    assert {row.model for row in report.rows} == {"GQA"}
    assert "interrupted: the rows that were done" in report.notes


def test_repetitions_before_an_interruption_are_kept(monkeypatch):
    calls = []

    def stopping(call):
        calls.append(call)
        if len(calls) > 10:
            raise KeyboardInterrupt
        call()
        return 1.0

    monkeypatch.setattr("kvcalc.measure.clock._monotonic_clock", stopping)
    report = report_on("GQA", check=False)
    assert report.interrupted
    assert [len(row.samples_s) for row in report.rows] == [3, 3, 2, 2]


def test_an_interruption_before_the_first_step_is_passed_on():
    def stop(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        report_on("GQA", progress=stop, check=False)


def test_too_little_memory_is_refused_before_anything_is_allocated(monkeypatch):
    monkeypatch.setattr("kvcalc.measure.decoder.Decoder.__init__", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(InputError, match="are free"):
        crosscheck_report(small_device(2**20), asked("GQA"), progress=lambda _: None)


def test_a_bench_with_too_little_memory_is_refused():
    with pytest.raises(InputError, match="a bench needs"):
        bench_report(
            small_device(2**20, last_level_cache_bytes=2**20), Plan(formats=("fp32",)), progress=lambda _: None
        )


NO_ROOM = [
    torch.OutOfMemoryError("no room"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 100663296 bytes."),
    MemoryError(),
]


@pytest.mark.parametrize("error", NO_ROOM, ids=["GPU", "CPU", "Python"])
@pytest.mark.parametrize(("place", "check"), [("steps", False), ("correctness", True)])
def test_memory_that_runs_out_all_the_same_is_told(error, place, check, monkeypatch):
    def full(*_, **__):
        raise error

    monkeypatch.setattr(f"kvcalc.measure.{place}.Decoder", full)
    with pytest.raises(InputError, match=r"GQA.* found no room on cpu"):
        report_on("GQA", check=check)


def test_an_error_of_another_kind_is_no_lack_of_memory():
    with pytest.raises(RuntimeError, match="shapes"), library.told_memory("it", DEVICE):
        raise RuntimeError("shapes differ")


def test_caches_of_a_group_are_gone_when_the_next_is_made(monkeypatch):
    held = []
    prepare = steps._prepare  # noqa: SLF001  counted here

    def counted(*arguments):
        alive = sum(cache() is not None for cache in held)
        found = prepare(*arguments)
        held.append(weakref.ref(found.cache.tensors[0]))
        groups[-1].append(alive)
        return found

    groups = [[]]
    monkeypatch.setattr(steps, "_prepare", counted)
    monkeypatch.setattr(steps, "in_groups", lambda *_: [[(1, 8), (3, 8)], [(1, 24)], [(3, 24)]])
    assert len(report_on("GQA", check=False).rows) == 4
    assert groups == [[0, 1, 0, 0]]


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as done:
        main(["crosscheck", "--device", "cpu", *arguments])
    return done.value.code, capsys.readouterr()


SHORT = ("--model", "smollm2-135m", "--layers", "1", "--context", "16", "--rounds", "2", "--weights", "fp32")


@pytest.fixture
def profiles(tmp_path):
    api.write_profile(FAST, tmp_path / "fast.yaml")
    api.write_profile(SLOW, tmp_path / "slow.yaml")
    api.write_profile(HALF, tmp_path / "half.yaml")
    return tmp_path


def test_the_command_prints_the_fields_that_scripts_read(profiles, capsys):
    code, printed = run(
        capsys, *SHORT, "--gpu", f"{profiles}/fast.yaml", "--calibration", f"{profiles}/half.yaml", "--json"
    )
    assert code == 0
    row = json.loads(printed.out)["rows"][0]
    wanted = {"predicted_kv_bytes", "allocated_kv_bytes", "bound_s", "estimate_s", "measured_s", "ratio"}
    assert wanted <= set(row)
    assert row["predicted_kv_bytes"] == row["allocated_kv_bytes"] == 16 * 3 * 64 * 2 * 4
    assert "measuring: " in printed.err


@pytest.mark.parametrize("output", ["table", "csv", "md", "jsonl"])
def test_the_command_prints_every_output(profiles, capsys, output):
    code, printed = run(
        capsys, *SHORT, "--gpu", f"{profiles}/fast.yaml", "--calibration", f"{profiles}/half.yaml", "-o", output,
        "--svg", f"{profiles}/chart.svg",
    )  # fmt: skip
    assert code == 0
    assert "smollm2-135m" in printed.out
    assert "<svg" in (profiles / "chart.svg").read_text()


def test_what_cannot_be_written_holds_up_nothing_else(profiles, capsys, monkeypatch):
    whole = files.write_whole

    def full(path, content):
        if str(path).endswith("gpu.yaml"):
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        whole(path, content)

    monkeypatch.setattr(files, "write_whole", full)
    code, printed = run(
        capsys, *SHORT, "--no-check", "--gpu", f"{profiles}/fast.yaml", "--calibration", f"{profiles}/half.yaml", "--json",
        "--write-gpu", f"{profiles}/gpu.yaml", "--write-calibration", f"{profiles}/own.yaml", "--svg", f"{profiles}/c.svg",
    )  # fmt: skip
    assert code == 2
    assert "error: No space left on device" in printed.err
    assert json.loads(printed.out)["rows"]
    assert load_calibration(profiles / "own.yaml") == HALF
    assert (profiles / "c.svg").exists()


def test_a_calibration_that_there_is_not_is_not_written_in_silence(profiles, capsys):
    code, printed = run(
        capsys, *SHORT, "--no-check", "--gpu", f"{profiles}/fast.yaml", "--write-calibration", f"{profiles}/own.yaml"
    )
    assert code == 0
    assert f"nothing was written to {profiles}/own.yaml: no calibration was fitted" in printed.err


@pytest.mark.parametrize("option", ["--write-gpu", "--write-calibration", "--svg"])
def test_a_folder_is_no_file_to_write(profiles, capsys, option):
    code, printed = run(capsys, *SHORT, "--gpu", f"{profiles}/fast.yaml", option, str(profiles))
    assert (code, printed.out) == (2, "")
    assert printed.err.startswith(f"error: {profiles}: it is a folder")


def test_a_file_that_is_not_ours_to_write_is_refused_first(profiles, capsys, monkeypatch):
    monkeypatch.setattr("os.access", lambda *_: False)
    code, printed = run(capsys, *SHORT, "--gpu", f"{profiles}/fast.yaml", "--png", f"{profiles}/c.png")
    assert (code, printed.out) == (2, "")
    assert "c.png: it cannot be written to" in printed.err


def test_a_failed_check_exits_with_1(profiles, capsys):
    code, printed = run(
        capsys, *SHORT, "--gpu", f"{profiles}/slow.yaml", "--calibration", f"{profiles}/half.yaml", "--no-check"
    )
    assert code == 1
    assert "FAILED" in printed.out


REFUSED = {
    ("--model", "whisper-tiny"): "builds no encoder",
    ("--model", "mamba-130m"): "mamba-130m: the decoder builds no mamba state layer",
    ("--model", "llama3.2-1b", "--layers", "99"): "--layers 99: llama3.2-1b has 16",
    ("--model", "llama3.1-405b"): "GiB are free",
    ("--model", "llama3.2-1b", "--fit-memory", "1MiB"): "one layer of llama3.2-1b",
    ("--model", "llama3.2-1b", "--weights", "fp8"): "not in fp8",
    ("--model", "llama3.2-1b", "--weights", "nonsense"): "unknown number format",
    ("--model", "llama3.2-1b", "--rounds", "0"): "--rounds must be from 1",
    ("--model", "gpt2", "--context", "4096"): "beyond the 1,024 positions",
    ("--model", ","): "has an empty name",
    ("--model", "llama3.2-1b", "--kernels", "fast"): "'fast' is no variant of the loop's kernels",
    ("--model", "llama3.2-1b", "--loop-tokens", "200000"): "--loop-tokens must be from 1 to 100,000",
    ("--model", "gemma-3-1b", "--draft", "llama3.2-1b"): "cannot be taken back",
    ("--model", "llama3.2-1b", "--draft", "gpt2"): "the draft gpt2 knows 50,257 tokens and llama3.2-1b 128,256",
    ("--model", "llama3.2-1b", "--draft", "llama3.2-1b", "--gamma", "0"): "--gamma must be",
    ("--model", "llama3.2-1b", "--draft", "llama3.2-1b", "--acceptance", "2"): "--acceptance is a probability",
    ("--model", "llama3.2-1b", "--write-gpu", "no/such/folder.yaml"): "there is no such folder",
    ("--model", "llama3.2-1b", "--device", "tpu"): "is not a device",
    ("--model", "llama3.2-1b", "--context", "100000000"): "GiB are free",
}


@pytest.mark.parametrize(("arguments", "words"), REFUSED.items(), ids=[" ".join(found) for found in REFUSED])
def test_bad_input_is_refused_in_one_line(arguments, words, capsys):
    code, printed = run(capsys, *arguments)
    assert code == 2
    assert words in printed.err.replace("TiB", "GiB")
    assert printed.err.startswith("error: ")
    assert not printed.out


def test_without_torch_the_hint_is_how_to_install_it(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="not installed") as error:
        find_device("cpu")
    assert error.value.hint == "pip install 'kvcalc[torch]'"


def test_a_torch_that_does_not_load_is_told(monkeypatch):
    monkeypatch.setattr(library, "find_spec", lambda _: True)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="is installed and does not load"):
        library.require_torch()


def test_a_driver_is_named_as_the_system_names_it(monkeypatch, tmp_path):
    told = tmp_path / "version"
    told.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (dvs-builder@U16)\n"
        "GCC version:  gcc version 13.3.0\n"
    )
    monkeypatch.setattr(library, "_GPU_DRIVER", told)
    assert library._driver(torch) == "570.86.15"  # noqa: SLF001  its own test
    told.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n")
    assert library._driver(torch) == "550.54.15"  # noqa: SLF001


def test_what_torch_keeps_of_freed_tensors_is_free(monkeypatch):
    order = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: order.append("given back"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (order.append("asked"), 7)[::-1])
    assert replace(DEVICE, kind="cuda").free_bytes() == 7
    assert order == ["given back", "asked"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_told():
    with pytest.raises(InputError, match="--device cuda: torch"):
        find_device("cuda")
    assert find_device("auto").kind == "cpu"


def test_an_unsupported_model_is_an_error_of_its_own():
    with pytest.raises(UnsupportedError):
        api.crosscheck(["t5-small"], device="cpu")
