"""Machines and rates that cannot be: ``kvcalc fit --device`` says so in one line, and what it knows of odd ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from command_lines import answer, run

from kvcalc.plan.local.hosts import FASTEST_BYTES_PER_S, FASTEST_DESKTOP_BYTES_PER_S

LLAMA = "--model llama3.1-8b --weights q4_k_m"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--device 24GiB --host-bandwidth 80", "has no unit"),
        ("--device 24GiB --host ddr5-5600x0", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-000x2", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-6000", "kind-transfers x channels"),
        ("--device 24GiB --host ddr9-1", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-5600x9999999", "kind-transfers x channels"),
        ("--device 24GiB --host ddr5-5600x2 --host-bandwidth 80GB/s", "two bandwidths"),
        ("--device 24GiB --used 30GiB", "is more than the 24.00 GiB"),
        ("--device 0GiB", "a device of no memory"),
        ("--device=-5GiB", "a device of no memory"),
        ("--device rtx-4090 --device cpu", "stands for no device"),
        ("--device m3-max-40 --device m3-max-40", "are no one machine"),
        ("--device m3-max-40 --device rtx-4090", "are no one machine"),
        ("--device dgx-spark --device strix-halo", "are no one machine"),
    ],
)
def test_a_machine_that_cannot_be_is_refused(capsys, options, said):
    code, out, err = run(capsys, f"fit {LLAMA} {options}")
    assert (code, out) == (2, "")
    assert said in err, err
    assert "Traceback" not in err


def test_a_bandwidth_with_a_unit_is_taken(capsys):
    report = answer(capsys, f"fit {LLAMA} --device 24GiB --host-bandwidth 80GB/s")
    assert report["host"]["bandwidth_bytes_per_s"] == 80e9


def test_a_rate_to_other_nodes_needs_a_unit(capsys):
    code, _, err = run(
        capsys,
        f"plan {LLAMA} --gpu h100-sxm --prompt 2000 --output-tokens 300 --rate 9 --slo tpot_p95=40ms --price h100-sxm=2.5 --scale-out 50",
    )
    assert code == 2
    assert "has no unit" in err


def test_a_given_host_memory_is_that_of_a_unified_device_too(capsys):
    line = "fit --model qwen3-32b --weights q6_k --device m3-max-40"
    by_host, by_memory = (answer(capsys, f"{line} {option} 36GiB") for option in ("--host-memory", "--memory"))
    assert by_host["devices"] == by_memory["devices"]
    assert by_host["devices"][0]["memory_bytes"] == 27 * 2**30
    assert any("27.00 GiB of 36.00 GiB" in note for note in by_host["notes"])
    code, _, err = run(capsys, f"{line} --memory 64GiB --host-memory 36GiB")
    assert code == 2
    assert "fills 64.00 GiB of its host's 36.00 GiB" in err
    listed = answer(capsys, "models fit --device m3-max-40 --host-memory 36GiB qwen3-32b")
    assert any("27.00 GiB of 36.00 GiB" in note for note in listed["notes"])


def test_the_part_of_a_shared_memory_that_the_gpu_may_fill_is_given_beside_it(capsys):
    line = "fit --model qwen3-32b --weights q6_k --device"
    report = answer(capsys, f"{line} m3-max-40 --host-memory 36GiB --memory 30GiB")
    assert (report["devices"][0]["memory_bytes"], report["host"]["memory_bytes"]) == (30 * 2**30, 36 * 2**30)
    said = [
        answer(capsys, f"{line} strix-halo {more}")["notes"] for more in ("", "--memory 64GiB --host-memory 128GiB")
    ]
    assert [any("Linux lets the GPU fill half" in note for note in notes) for notes in said] == [True, False]
    assert not any("Linux lets" in note for note in answer(capsys, f"{line} dgx-spark")["notes"])


def test_copies_for_overlap_are_noted_where_two_cards_hold_layers(capsys):
    line = f"fit {LLAMA} --device rtx-4090 --device rtx-3060"
    said = [answer(capsys, f"{line} {more}")["notes"] for more in ("-ts 1,0", "-ts 2,1")]
    assert [any("copies of their inputs" in note for note in notes) for notes in said] == [False, True]


@pytest.mark.parametrize("length", ["--ctx-size 131072", "--context 65536 --batch 2"])
def test_a_context_beyond_the_model_is_noted_once(capsys, length):
    for command in ("fit", "size"):
        report = answer(capsys, f"{command} --model qwen3-8b --weights q4_k_m --device rtx-4090 {length}")
        said = [note for note in report["notes"] if "is beyond the 40,960 tokens" in note]
        assert len(said) == 1, report["notes"]


def test_models_of_shorter_contexts_are_counted(capsys):
    report = answer(capsys, "models fit --device rtx-4090 --context 131072 qwen3-8b")
    assert any(note.startswith("1 model made for fewer tokens") for note in report["notes"])
    report = answer(capsys, "models fit --device rtx-4090 --context 4096 qwen3-8b")
    assert not any("fewer tokens" in note for note in report["notes"])


def test_a_shared_memory_says_what_both_need_and_no_command(capsys):
    line = "fit --model llama3.1-8b --weights q8_0 --device dgx-spark --host-memory 8GiB --gpu-layers 16"
    report = answer(capsys, line)
    assert not report["fits"]
    _, out, _ = run(capsys, line)
    assert "llama-server" not in out
    found = re.search(r"device and host together need ([\d.]+) GiB of ([\d.]+) GiB", out)
    assert found is not None, out
    places = (*report["devices"], report["host"])
    assert float(found[1]) == pytest.approx(sum(place["reserved_bytes"] for place in places) / 2**30, abs=0.01)
    assert float(found[1]) > float(found[2])


def test_what_the_context_of_a_card_takes_is_said_to_be_off_its_free_memory(capsys):
    report = answer(capsys, f"fit {LLAMA} --device rtx-4090")
    assert any("already subtracted from the free memory" in note for note in report["notes"])


def test_the_engines_own_fit_reads_the_same_in_text_and_json(capsys):
    line = f"fit {LLAMA} --device rtx-4090"
    flags = answer(capsys, line)["engine_fit"]["flags"]
    assert "-ngl -1" in flags
    assert f"own --fit takes {flags}:" in run(capsys, line)[1]


def test_hosts_faster_than_those_measured_are_said_to_be(capsys):
    speeds = Path(__file__).parents[1] / "conformance" / "split_speeds.yaml"
    measured = [float(row["host_bytes_per_s"]) for row in yaml.safe_load(speeds.read_text())]
    assert max(measured) == FASTEST_BYTES_PER_S
    assert max(rate for rate in measured if rate < 300e9) == FASTEST_DESKTOP_BYTES_PER_S
    line = "fit --model qwen3-30b-a3b --weights q4_k_m --device cpu --host"
    desktop, server, beyond = (answer(capsys, f"{line} ddr5-{each}") for each in ("5600x2", "4800x8", "6400x12"))
    said = ["outside what was measured" in " ".join(each["notes"]) for each in (desktop, server, beyond)]
    assert said == [False, True, True]
    spread = [each["speed"]["estimate_high_s"] / each["speed"]["estimate_s"] for each in (desktop, server, beyond)]
    assert spread[2] == pytest.approx(spread[1] * 614.4 / 460.8, rel=0.02)


def test_a_unified_device_has_no_more_memory_than_its_host(capsys):
    report = answer(capsys, f"fit {LLAMA} --device dgx-spark --host-memory 64GiB")
    assert report["devices"][0]["memory_bytes"] <= report["host"]["memory_bytes"] == 64 * 2**30


def test_a_model_whose_tensors_are_not_known_cannot_be_placed(capsys):
    code, out, err = run(capsys, "fit --model flan-t5-xl --weights q8_0,head=q6_k --device 24GiB")
    assert (code, out) == (2, "")
    assert "cannot be placed on devices" in err
    assert "--gpu" in err


@pytest.mark.parametrize(
    "machine",
    [
        "m4-pro-16 --memory 24GiB",
        "strix-halo --host-memory 24GiB --host-bandwidth 500GB/s --used 8GiB",
        "dgx-spark --host-memory 24GiB --used 8GiB",
    ],
)
def test_a_unified_gpu_holds_all_that_it_can(capsys, machine):
    line = f"fit --model qwen3-30b-a3b --weights q4_k_m --ctx-size 8192 --device {machine}"
    report = answer(capsys, line)
    assert report["placement"]["gpu_layers"] == report["placement"]["all_layers"]
    moved = report["placement"]["n_cpu_moe"]
    assert 0 < moved < 10
    assert report["placement"]["overrides"] == []
    device = report["devices"][0]
    spare = device["memory_bytes"] - device["used_bytes"] - device["overhead_bytes"] - device["reserved_bytes"]
    fewer = answer(capsys, f"{line} --n-cpu-moe {moved - 1}")["devices"][0]
    assert 256 * 2**20 <= spare < fewer["reserved_bytes"] - device["reserved_bytes"] + 256 * 2**20


def test_a_dense_model_leaves_the_fewest_layers_to_the_host_of_a_unified_gpu(capsys):
    line = "fit --model qwen3-32b --weights q4_k_m --device m4-pro-16 --memory 24GiB"
    report = answer(capsys, line)
    layers = report["placement"]["gpu_layers"]
    assert 0 < layers < report["placement"]["all_layers"]
    more = answer(capsys, f"{line} --gpu-layers {layers + 1}")["devices"][0]
    assert more["reserved_bytes"] > more["memory_bytes"] - 256 * 2**20


def test_the_cpu_beside_a_unified_gpu_has_no_estimate(capsys):
    line = f"fit {LLAMA} --device m4-pro-16 --memory 24GiB"
    alone, both = answer(capsys, line), answer(capsys, f"{line} --gpu-layers 20")
    assert alone["speed"]["estimate_s"] > alone["speed"]["decode_ideal_s"]
    assert both["speed"]["estimate_s"] is None
    assert both["tokens_per_s"] > 0
    said = [any(note.startswith("no estimate:") for note in each["notes"]) for each in (alone, both)]
    assert said == [False, True]
