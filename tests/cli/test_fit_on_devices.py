"""``kvcalc fit --device`` and ``kvcalc size --device``: bytes of each device and the host, the command, bad input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from command_lines import answer, run

import kvcalc
from kvcalc.core.errors import InputError
from kvcalc.core.reports.machine import FoundDevice, FoundHost, MachineReport
from kvcalc.plan.local.answer import SPARE_BYTES
from kvcalc.questions.machines import host_bandwidth_of, link_of, shares_of
from kvcalc.render.charts import chart_spec

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "importers"))
from gguf_files import llama_tensors, write_gguf

LLAMA = "--model llama3.1-8b --weights q4_k_m"
MIXTURE = "--model qwen3-30b-a3b --weights q4_k_m"


@pytest.fixture
def small(tmp_path):
    """A GGUF file of 4 layers, and its header alone."""
    keys = {
        "block_count": 4, "embedding_length": 512, "feed_forward_length": 1024, "attention.head_count": 8,
        "attention.head_count_kv": 2, "context_length": 8192, "vocab_size": 1024,
    }  # fmt: skip
    tensors = llama_tensors(4, 512, 1024, 1024, heads=8, kv=2, width=64)
    whole = write_gguf(tmp_path / "small.gguf", "llama", keys, tensors)
    header = tmp_path / "ranged.gguf"
    header.write_bytes(whole.read_bytes()[: -(2**20)])
    return whole, header


def test_the_line_of_the_contract(capsys, small):
    line = (
        "fit --engine llama.cpp --model {} --device 24GiB --device 12GiB --ctx-size 8192 --gpu-layers 4 "
        "--tensor-split 2,1 --n-cpu-moe 1 --ubatch-size 512 --batch-size 2048"
    )
    for file in small:
        report = answer(capsys, line.format(file))
        assert [device["name"] for device in report["devices"]] == ["24GiB", "12GiB"]
        assert [device["layers"] for device in report["devices"]] == [3, 1]
        for place in (*report["devices"], report["host"]):
            parts = ("weight_bytes", "context_bytes", "compute_bytes", "repacked_bytes")
            assert place["reserved_bytes"] == sum(place[part] for part in parts)
        placement = report["placement"]
        assert (placement["gpu_layers"], placement["tensor_split"], placement["n_cpu_moe"]) == (4, [2, 1], 1)
        assert report["command"].startswith("llama-server -m ")
        assert "-ngl 4 -ts 2,1 -ncmoe 1" in report["command"]
    # 4 layers of keys and values: 8,192 cells of 128 + 128 elements in 16 bits
    kept = sum(place["context_bytes"] for place in (*report["devices"], report["host"]))
    assert kept == 4 * 8192 * 2 * 256
    assert report["context"] == 8192


def test_a_header_alone_says_so_and_gives_the_same_bytes(capsys, small):
    whole, header = (answer(capsys, f"fit --model {file} --device 1GiB") for file in small)
    assert whole["devices"] == header["devices"]
    assert whole["host"] == header["host"]
    assert any("only its header was read" in note for note in header["notes"])


def test_a_config_gives_what_its_catalogue_name_gives(capsys, tmp_path):
    config = {
        "model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, "num_key_value_heads": 2,
        "num_hidden_layers": 4, "intermediate_size": 1024, "vocab_size": 1024, "max_position_embeddings": 8192,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "hidden_act": "silu", "rms_norm_eps": 1e-5,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    report = answer(capsys, f"fit --model {tmp_path}/config.json --weights q8_0 --device 1GiB")
    layer = (512 * 512 * 2 + 2 * 512 * 128 + 3 * 512 * 1024) * 34 // 32 + 2 * 512 * 4
    assert report["devices"][0]["weight_bytes"] == 4 * layer + 512 * 1024 * 34 // 32 + 512 * 4
    assert report["host"]["weight_bytes"] == 512 * 1024 * 34 // 32


def test_the_first_line_is_the_answer(capsys):
    fits = run(capsys, f"fit {MIXTURE} --device 24GiB --n-cpu-moe 10 --context 32768")[1].splitlines()[0]
    assert fits == (
        "FITS: Q4_K_M: 38 of 48 layers and all attention on 24GiB, experts of 10 layers in RAM; 32,768-token context"
    )
    short = run(capsys, f"fit {MIXTURE} --device 12GiB -ngl all --context 4096")[1].splitlines()[0]
    assert short.startswith("DOES NOT FIT: 12GiB needs 17.")
    host = run(capsys, f"fit {MIXTURE} --device cpu --host-memory 8GiB")[1].splitlines()[0]
    assert "host needs" in host
    assert "all 48 layers in RAM" in host


def test_the_command_has_the_options_that_were_given(capsys):
    line = (
        f"fit {MIXTURE} --device rtx-4090 --device rtx-3060 -ngl 30 -ts 3/1 -cmoe -ot attn=CUDA1 -nkvo --no-op-offload "
        "-ctk q8_0 -ctv q8_0 -fa on -ub 1024 -b 4096 -np 2 -c 16384"
    )
    command = answer(capsys, line)["command"]
    assert command == (
        "llama-server -m qwen3-30b-a3b-Q4_K_M.gguf -c 16384 -np 2 --no-kv-unified -ctk q8_0 -ctv q8_0 -fa on -b 4096 "
        "-ub 1024 -ngl 30 -ts 3,1 -ot attn=CUDA1 -cmoe -nkvo --no-op-offload"
    )
    assert "-sm none -mg 1" in answer(capsys, f"fit {LLAMA} --device 8GiB --device 8GiB -sm none -mg 1")["command"]
    assert answer(capsys, f"fit {LLAMA} --device cpu")["command"].endswith("-dev none")


def test_one_device_alone_holds_all(capsys):
    devices = answer(capsys, f"fit {LLAMA} --device 8GiB --device 8GiB -sm none -mg 1")["devices"]
    assert devices[0]["reserved_bytes"] == 0
    assert devices[1]["layers"] == 33


def test_several_cards_may_be_named_at_once(capsys):
    report = answer(capsys, f"fit {LLAMA} --device 2xrtx-3090 --device rtx-4090")
    assert [each["name"] for each in report["devices"]] == ["rtx-3090", "rtx-3090", "rtx-4090"]


def test_a_model_as_published_is_said_to_have_smaller_files(capsys):
    notes = answer(capsys, "fit --model llama3.1-8b --device rtx-4090")["notes"]
    assert any(note.startswith("weights in bf16, as published: --weights q4_k_m") for note in notes)
    notes = answer(capsys, f"fit {LLAMA} --weights q8_0 --device rtx-4090")["notes"]
    assert not any("as published" in note for note in notes)


def test_what_other_programs_take_counts(capsys):
    report = answer(capsys, f"fit {LLAMA} --device 6GiB --used 1GiB --gpu-layers all")
    assert report["devices"][0]["used_bytes"] == 2**30
    assert not report["fits"]
    assert "of 5.00 GiB free" in report["reason"]
    assert answer(capsys, f"fit {LLAMA} --device 6GiB --gpu-layers all")["fits"]


def test_a_card_s_context_is_counted_beside_the_buffers(capsys):
    report = answer(capsys, f"fit {LLAMA} --device rtx-3060")
    assert report["devices"][0]["overhead_bytes"] == 200 * 2**20
    assert any("context takes" in note for note in report["notes"])
    assert report["host"]["repacked_bytes"] == 0


@pytest.mark.parametrize("card", ["m4-max-40", "strix-halo", "dgx-spark"])
def test_a_unified_memory_is_the_host_s_too(capsys, card):
    report = answer(capsys, f"fit {LLAMA} --device {card}")
    assert report["host"]["memory_bytes"] >= report["devices"][0]["memory_bytes"]
    assert any("share one memory" in note for note in report["notes"])
    small = answer(capsys, f"fit {LLAMA} --device {card} --host-memory 5GiB")
    assert small["devices"][0]["fits"]
    assert not small["host"]["fits"]
    assert "device and host together need" in small["reason"]


def test_metal_leaves_a_share_of_the_memory(capsys):
    device = answer(capsys, f"fit {LLAMA} --device m4-max-40 --memory 36GiB")["devices"][0]
    assert device["memory_bytes"] == 27 * 2**30


def test_the_machine_that_was_named_is_said(capsys):
    report = answer(capsys, f"fit {LLAMA} --device rtx-4090 --host ddr5-5600x2 --pcie 4x16 --host-memory 64GiB")
    assert report["host"]["memory_bytes"] == 64 * 2**30
    assert report["host"]["bandwidth_bytes_per_s"] == 89.6e9
    assert report["devices"][0]["link_bytes_per_s"] == pytest.approx(31.5e9, rel=1e-3)
    named = answer(capsys, f"fit {LLAMA} --device rtx-4090 --host ryzen-9950x")["host"]
    assert named["name"] == "ryzen-9950x"
    given = answer(capsys, f"fit {LLAMA} --device rtx-4090 --host-bandwidth 80GB/s")["host"]
    assert given["bandwidth_bytes_per_s"] == 80e9


def test_this_machine_is_asked(capsys, monkeypatch):
    gib = 2**30
    found = MachineReport(
        devices=(
            FoundDevice(title="NVIDIA GeForce RTX 4090", card="rtx-4090", memory_bytes=24 * gib, used_bytes=3 * gib),
            FoundDevice(title="A card", card=None, memory_bytes=8 * gib),
        ),
        host=FoundHost(cpu="A processor", card=None, threads=8, memory_bytes=32 * gib, used_bytes=2 * gib),
    )
    monkeypatch.setattr("kvcalc.questions.devices.this_machine", lambda: found)
    report = answer(capsys, f"fit {LLAMA} --device this")
    assert [(device["name"], device["used_bytes"]) for device in report["devices"]] == [
        ("rtx-4090", 3 * gib), ("A card", 0),
    ]  # fmt: skip
    assert (report["host"]["memory_bytes"], report["host"]["used_bytes"]) == (32 * gib, 2 * gib)


def test_a_draft_model_stands_beside(capsys):
    alone = answer(capsys, f"fit {LLAMA} --device 24GiB")
    both = answer(capsys, f"fit {LLAMA} --device 24GiB --model-draft llama3.2-1b --draft-weights q8_0")
    added = both["devices"][0]["weight_bytes"] - alone["devices"][0]["weight_bytes"]
    draft = answer(capsys, "fit --model llama3.2-1b --weights q8_0 --device 24GiB")
    assert added == draft["devices"][0]["weight_bytes"]
    assert both["command"].endswith("-md llama3.2-1b-Q8_0.gguf")


def test_a_draft_s_tokens_are_said_in_the_command(capsys):
    command = answer(capsys, f"fit {LLAMA} --device 24GiB --draft llama3.2-1b --gamma 5")["command"]
    assert command.endswith("-md llama3.2-1b.gguf --spec-draft-n-max 5")


def test_the_longest_sequence_is_the_context(capsys):
    assert answer(capsys, f"fit {LLAMA} --device 24GiB --max-model-len 9000 --parallel 2")["context"] == 9000
    assert answer(capsys, f"fit {LLAMA} --device 24GiB --context 0")["context"] == 131072


def test_the_file_of_a_projector_is_loaded_on_the_first_device(capsys, small):
    alone = answer(capsys, f"fit {LLAMA} --device 24GiB")
    both = answer(capsys, f"fit {LLAMA} --device 24GiB --mmproj-file {small[0]}")
    tensors = both["devices"][0]["weight_bytes"] - alone["devices"][0]["weight_bytes"]
    assert 0 < tensors < small[0].stat().st_size
    assert f"--mmproj {small[0]}" in both["command"]


def test_a_model_s_own_projector_is_loaded_on_the_first_device(capsys):
    line = "fit --model gemma-3-27b --weights q4_k_m --device 32GiB --gpu-layers 63"
    alone, both = answer(capsys, line), answer(capsys, f"{line} --mmproj")
    tower = 2 * 423_060_336
    assert both["devices"][0]["weight_bytes"] - alone["devices"][0]["weight_bytes"] == tower
    assert both["command"].endswith("--mmproj mmproj-gemma-3-27b-f16.gguf")


def test_mmproj_counts_the_towers_of_an_engine_s_size(capsys):
    line = "size --model gemma-3-27b --engine llama.cpp"
    assert "vision" not in answer(capsys, line)["weights"]["parts"]
    assert answer(capsys, f"{line} --mmproj")["weights"]["parts"]["vision"] == 423_060_336


def test_size_has_its_own_fields_and_those_of_the_devices(capsys):
    line = f"size {LLAMA} --device 24GiB --device 12GiB --ctx-size 8192"
    report = answer(capsys, line)
    assert report["schema"] == "kvcalc.size/1"
    assert report["kv"]["bytes_per_token"] == 131072
    fit = answer(capsys, line.replace("size", "fit", 1))
    for field in ("devices", "host", "placement", "command"):
        assert report[field] == fit[field]
    table = run(capsys, line)[1]
    assert "On each device" in table
    assert "llama-server" in table


def test_rows_are_the_devices_and_the_host(capsys):
    line = f"fit {LLAMA} --device 24GiB --device 12GiB -ngl 33"
    header, *rows = run(capsys, f"{line} --output csv")[1].splitlines()
    assert header.startswith("model,name,memory_bytes")
    assert [row.split(",")[1] for row in rows] == ["24GiB", "12GiB", "host"]


def test_the_chart_has_a_bar_for_each_place():
    report = kvcalc.ask("fit", {"model": "llama3.1-8b", "weights": "q4_k_m", "device": ["6GiB"], "gpu_layers": 33})
    rows = chart_spec(report)["layer"][0]["data"]["values"]
    own = {row["part"]: row["bytes"] for row in rows if row["place_name"] == "6GiB"}
    assert sum(own.values()) == 6 * 2**30
    assert own["weights"] == report.devices[0].weight_bytes
    assert {row["place_name"] for row in rows} == {"6GiB", "host"}


def test_sequences_share_a_context(capsys):
    many = answer(capsys, f"fit {LLAMA} --device 24GiB --context 4096 --batch 4")
    assert (many["context"], many["parallel"]) == (4096, 4)
    assert "-c 16384 -np 4" in many["command"]
    assert many["devices"][0]["context_bytes"] == 4 * 4096 * 131072


@pytest.mark.parametrize(("line", "says", "hint"), [
    ("--device nope", "unknown GPU 'nope'", "kvcalc gpus"),
    ("--device 24", "has no unit", "24GiB"),
    ("--device 24XB", "unknown", ""),
    ("--device 0GiB", "no memory", "--device cpu"),
    ("--device tpu-v5e", "no GPU that llama.cpp", ""),
    ("--device ryzen-9950x", "no GPU", "--host ryzen-9950x"),
    ("--device cpu --device cpu", "stands for no device", "alone"),
    ("--device this --device 24GiB", "all devices", "alone"),
    ("--device 24GiB --gpu rtx-4090", "two machines", "one of them"),
    ("--device 24GiB --engine vllm", "not vllm", "--engine llama.cpp"),
    ("--device 24GiB --gpus 2", "--gpus has no part", "leave it out"),
    ("--device 24GiB --kv-memory 2GiB", "--kv-memory has no part", "leave it out"),
    ("--gpu-layers 3", "--gpu-layers is of a machine's devices", "--device"),
    ("--host-memory 3GiB", "--host-memory is of", "--device"),
    ("--device 24GiB --gpu-layers many", "whole number", ""),
    ("--device 24GiB --tensor-split 1,2", "2 shares for 1 devices", "each --device"),
    ("--device 24GiB --tensor-split x", "must be a number", ""),
    ("--device 24GiB --tensor-split=-1", "below 0", ""),
    ("--device 24GiB --n-cpu-moe -1", "n-cpu-moe is -1", "from 0"),
    ("--device 24GiB --split-mode rows", "split mode is 'rows'", "none, layer"),
    ("--device 24GiB --split-mode row", "no buffers split by rows", "layer or none"),
    ("--device 24GiB --split-mode none --main-gpu 3", "no device 3", "0 to 0"),
    ("--device 24GiB --override-tensor exps", "is no override", "exps=CPU"),
    ("--device 24GiB --override-tensor exps=CUDA1", "no device 'CUDA1'", "CPU, CUDA0"),
    ("--device 24GiB --override-tensor exps=disk", "is no buffer", "CPU, CUDA0"),
    ("--device 24GiB --override-tensor (=CPU", "no regular expression", ""),
    ("--device 24GiB --pcie 9x9", "no PCIe link", "4x16"),
    ("--device 24GiB --pcie 4x16,4x4", "2 PCIe links for 1", ""),
    ("--device 24GiB --host nonsense", "unknown GPU 'nonsense'", ""),
    ("--device 24GiB --host-bandwidth fast", "fast", ""),
    ("--device 24GiB --used 1GiB --used 1GiB", "2 times --used", ""),
    ("--device 24GiB --batch 4 --parallel 2", "two numbers of sequences", "one of them"),
    ("--device 24GiB --context 4096 --ctx-size 8192", "two lengths", "one of them"),
    ("--device 24GiB --cache-type-v q8_0 --flash-attn off", "needs flash attention", "auto"),
    ("--device 24GiB --cache-type-k q9_9", "q9_9", ""),
    ("--device 24GiB --draft llama3.2-1b --draft-tp 2", "--draft-tp has no part", "leave it out"),
    ("--device 24GiB --method mtp", "--method has no part", "leave it out"),
    ("--device 24GiB --weights int8", "no weights in int8", "q4_k_m"),
    ("--device 24GiB --weights awq", "no weights in int4-g128-zp4", "q4_k_m"),
    ("--device 24GiB --mmproj-file missing.gguf", "missing.gguf", ""),
    ("--device 24GiB --model-draft nope", "unknown model 'nope'", ""),
])  # fmt: skip
def test_bad_input_is_one_line_and_a_hint(capsys, line, says, hint):
    model = LLAMA.partition(" --weights")[0] if "--weights" in line else LLAMA
    code, out, err = run(capsys, f"fit {model} {line}")
    assert (code, out) == (2, "")
    error, *rest = err.splitlines()
    assert says in error
    assert hint in "".join(rest)
    assert len(rest) <= 1


def test_parts_of_a_machine_in_words():
    assert host_bandwidth_of("DDR4-3200x2") == 51.2e9
    assert host_bandwidth_of("ryzen-9950x") is None
    assert link_of("gen3 x8").bytes_per_s == pytest.approx(7.88e9, rel=1e-3)
    assert shares_of(None) == ()
    with pytest.raises(InputError):
        link_of("4")


def test_without_options_of_the_placement_the_fastest_that_fits_is_chosen(capsys):
    report = answer(capsys, f"fit {MIXTURE} --device rtx-4070 --context 32768 --host ddr5-5600x2")
    assert report["chosen"]
    assert report["fits"]
    assert "experts of" in report["headline"]
    assert "-ncmoe" in report["command"]
    moved = report["placement"]["n_cpu_moe"]
    fewer = answer(
        capsys, f"fit {MIXTURE} --device rtx-4070 --context 32768 --host ddr5-5600x2 --n-cpu-moe {moved - 2}"
    )
    assert not fewer["chosen"]
    assert not fewer["fits"]
    more = answer(capsys, f"fit {MIXTURE} --device rtx-4070 --context 32768 --host ddr5-5600x2 --n-cpu-moe {moved + 2}")
    assert more["fits"]
    assert more["tokens_per_s"] < report["tokens_per_s"]


def test_our_choice_is_no_slower_than_the_engines_own_fit(capsys):
    for machine in ("--device rtx-4090 --device rtx-3060", "--device 12GiB", "--device rtx-5090"):
        report = answer(capsys, f"fit {LLAMA.replace('8b', '70b')} {machine} --context 8192")
        other = report["engine_fit"]
        assert report["chosen"]
        assert report["fits"]
        assert other["gpu_layers"] <= report["placement"]["all_layers"]
        if report["tokens_per_s"] is not None:
            assert report["tokens_per_s"] >= 0.99 * other["tokens_per_s"]


def test_a_chosen_placement_leaves_memory_on_every_device(capsys):
    report = answer(capsys, f"fit {MIXTURE} --device 8GiB --device 6GiB --context 4096")
    for device in report["devices"]:
        assert device["reserved_bytes"] <= device["memory_bytes"] - SPARE_BYTES


@pytest.mark.parametrize(("machine", "decided"), [("8GiB", False), ("4GiB", True), ("6GiB --device 6GiB", False)])
def test_memory_left_free_is_said_where_it_decided_the_choice(capsys, machine, decided):
    report = answer(capsys, f"fit {LLAMA} --device {machine} --context 4096")
    said = [note for note in report["notes"] if note.startswith("the choice leaves 256.00 MiB")]
    assert len(said) == decided
    given = answer(
        capsys, f"fit {LLAMA} --device {machine} --context 4096 --gpu-layers {report['placement']['gpu_layers']}"
    )
    assert not any("the choice leaves" in note for note in given["notes"])
    if decided:
        filled = re.search(r"it would be (\d+) of 32 layers", said[0])
        assert filled is not None
        assert int(filled[1]) > report["placement"]["gpu_layers"] - 1  # the output is one of those counted


def test_one_card_that_holds_all_layers_computes_one_batch_at_a_time(capsys):
    line = f"fit {LLAMA} --device rtx-3060 --device rtx-4070"
    report = answer(capsys, line)
    assert report["devices"][0]["layers"] == 0
    assert report["speed"]["overlapping_micro_batches"] == 1
    assert "on their way together" not in run(capsys, line)[1]
    both = f"{line} --tensor-split 1,1"
    assert answer(capsys, both)["speed"]["overlapping_micro_batches"] == 4
    assert "4 of them on their way together" in run(capsys, both)[1]


def test_the_speed_says_bound_estimate_and_what_was_taken_of_the_host(capsys):
    report = answer(capsys, f"fit {LLAMA} --device 4GiB --context 4096")
    assert report["speed"] is None
    report = answer(capsys, f"fit {LLAMA} --device rtx-4060 --gpu-layers 20 --context 4096")
    speed = report["speed"]
    assert speed["estimate_low_s"] < speed["estimate_s"] < speed["estimate_high_s"]
    assert speed["decode_ideal_s"] < speed["estimate_low_s"]
    assert speed["calibrations"] == ["llama.cpp-host", "llama.cpp-rtx"]
    assert any("taken to read" in note for note in report["notes"])
    faster = answer(capsys, f"fit {LLAMA} --device rtx-4060 --gpu-layers 20 --context 4096 --host ddr5-5600x8")
    assert faster["tokens_per_s"] > 1.5 * report["tokens_per_s"]
    assert not any("taken to read" in note for note in faster["notes"])


def test_prefill_on_a_host_of_unknown_flop_has_no_bound(capsys):
    assert answer(capsys, f"fit {LLAMA} --device cpu --context 4096")["speed"]["prefill_tokens_per_s"] is None
    assert answer(capsys, f"fit {LLAMA} --device rtx-4060 --context 4096")["speed"]["prefill_tokens_per_s"] > 1000


# Prompts of 512 tokens by llama.cpp on a Tesla P40, a llama of 7B in Q4_0, tokens/s.
# https://github.com/ggml-org/llama.cpp/pull/4766
P40_PREFILL = (912.0, 934.74)


@pytest.mark.parametrize("model", ["llama2-7b", "llama3.1-8b"])
def test_quantised_matrices_are_bound_by_the_fastest_arithmetic_of_the_card(model):
    asked = {"model": model, "weights": "q4_0", "device": ["p40"], "ctx_size": "512"}
    report = kvcalc.ask("fit", asked)
    assert report.speed.prefill_tokens_per_s > max(P40_PREFILL)


def test_the_bound_of_a_quantised_file_does_not_depend_on_the_format_of_its_checkpoint():
    speeds = [
        kvcalc.ask("fit", {"model": model, "weights": "q4_0", "device": ["rtx-4090"], "ctx_size": "512"}).speed
        for model in ("llama2-7b", "llama3.1-8b")
    ]
    assert speeds[0].prefill_tokens_per_s == pytest.approx(speeds[1].prefill_tokens_per_s, rel=0.2)


def test_experts_in_mxfp4_stay_so_without_being_asked(capsys: pytest.CaptureFixture[str]) -> None:
    line = "fit --model gpt-oss-20b --device rtx-3060"
    own, asked = answer(capsys, line), answer(capsys, f"{line} --weights mxfp4_moe")
    assert own["devices"] == asked["devices"]
    assert any("taken as --weights mxfp4_moe" in note for note in own["notes"])


def test_short_options_of_several_letters_are_llama_cpp_s(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"fit {LLAMA} --device rtx-3060"
    short = answer(capsys, f"{line} -md llama3.2-1b -kvu")
    assert short["command"] == answer(capsys, f"{line} --model-draft llama3.2-1b --kv-unified")["command"]
    code, _, err = run(capsys, f"{line} -mm missing.gguf")
    assert code == 2
    assert "mmproj-file: missing.gguf" in err


@pytest.mark.parametrize("option", ["-ncmoe 5", "-cmoe"])
def test_options_for_experts_are_idle_without_any(capsys: pytest.CaptureFixture[str], option: str) -> None:
    name = option.split(maxsplit=1)[0]
    dense, mixture = (answer(capsys, f"fit {each} --device rtx-3060 {option}") for each in (LLAMA, MIXTURE))
    assert f"{name} changes nothing: llama3.1-8b has no experts" in dense["notes"]
    assert not any(note.startswith(name) for note in mixture["notes"])


def test_a_recipe_in_the_model_s_name_is_asked_for_as_weights(capsys: pytest.CaptureFixture[str]) -> None:
    line = "--device 3060 --host-memory 32GiB --ctx-size 16384"
    typed = answer(capsys, f"fit --model qwen3-30b-a3b:Q4_K_M {line}")
    asked = answer(capsys, f"fit {MIXTURE} {line}")
    assert typed["command"] == asked["command"]
    assert typed["devices"] == asked["devices"]
    assert answer(capsys, "size --model qwen3-30b-a3b:Q4_K_M --weights bf16")["formats"]["weights"] == "bf16"
