"""Command lines that start engines: they say what the deployment is, and nothing that is the engine's default."""

import argparse
import os
import shutil
import subprocess
from itertools import pairwise

import pytest

from kvcalc import api
from kvcalc.core.errors import UnsupportedError
from kvcalc.engines.commands import command_text, needed_checkpoint, start_command
from kvcalc.engines.options import EngineOptions


def words(engine, model="llama3.1-8b", gpu="h100-sxm", options=None, drafting=None, role="", **asked):
    options = options or EngineOptions()
    made = api.deployment(model, gpu=gpu, engine=engine, options=options, **asked)
    return start_command(
        engine, made.model, made.formats, made.parallel, made.options,
        weights=asked.get("weights"), drafting=drafting, role=role,
    )  # fmt: skip


def test_vllm_takes_its_defaults_where_nothing_is_asked_for():
    assert words("vllm") == ("vllm", "serve", "meta-llama/Meta-Llama-3.1-8B", "--port", "8000")


def test_vllm_is_told_sizes_formats_and_limits():
    options = EngineOptions(max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=2048, prefix_caching=False)
    made = words("vllm", options=options, tensor_parallel=2, kv_dtype="fp8", weights="fp8",
                 drafting={"method": "ngram", "num_speculative_tokens": 3}, role="prefill")  # fmt: skip
    told = dict(pairwise(made))
    assert told["--tensor-parallel-size"] == "2"
    assert told["--kv-cache-dtype"] == told["--quantization"] == "fp8"
    assert (told["--max-model-len"], told["--max-num-seqs"]) == ("4096", "64")
    assert "--no-enable-prefix-caching" in made
    assert told["--speculative-config"] == '{"method": "ngram", "num_speculative_tokens": 3}'
    assert "kv_producer" in told["--kv-transfer-config"]
    assert "--pipeline-parallel-size" not in made


def test_experts_shared_by_copies_of_the_attention():
    made = words("vllm", "deepseek-v3", gpu="h200", data_parallel=8, expert_parallel=8)
    assert "--enable-expert-parallel" in made
    assert made[made.index("--data-parallel-size") + 1] == "8"
    sizes = words("sglang", "deepseek-v3", gpu="h200", data_parallel=8, expert_parallel=8)
    assert [sizes[sizes.index(flag) + 1] for flag in ("--tp-size", "--dp-size", "--ep-size")] == ["8", "8", "8"]
    assert "--enable-dp-attention" in sizes


def test_llama_cpp_makes_its_context_for_all_slots():
    options = EngineOptions(parallel=4, max_model_len=2048)
    made = words("llama.cpp", options=options, weights="q4_k_m")
    assert made[made.index("-c") + 1] == "8192"
    assert made[made.index("-m") + 1] == "llama3.1-8b-Q4_K_M.gguf"
    assert made[made.index("-np") + 1] == "4"


def test_llama_cpp_is_told_types_of_its_cache_and_takes_the_trained_context_where_none_is_asked_for():
    made = words("llama.cpp", options=EngineOptions(cache_type_k="q8_0", cache_type_v="q8_0", ubatch=1024))
    told = dict(pairwise(made))
    assert (told["-c"], told["-ctk"], told["-ctv"], told["-ub"], told["-ngl"]) == ("0", "q8_0", "q8_0", "1024", "all")


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("model", "weights"), [("llama3.1-8b", "int4-g128"), ("llama3.1-8b", "nvfp4"), ("gpt-oss-120b", "bf16")]
)
def test_a_command_never_loads_other_weights_than_planned(engine, model, weights):
    made = words(engine, model, gpu="b200", weights=weights)
    file = needed_checkpoint(engine, api.deployment(model).model, weights)
    assert file.name in made
    assert file.name.startswith("./")  # no id that could be looked up
    assert file.is_local
    assert weights in file.note
    assert not any("/" in word and word != file.name for word in made[:6])


def test_weights_that_an_engine_makes_itself_need_no_other_checkpoint():
    for weights, flag in (("fp8", "--quantization"), ("fp16", "--dtype")):
        made = words("vllm", weights=weights)
        assert "meta-llama/Meta-Llama-3.1-8B" in made
        assert flag in made
    assert "--dtype" not in words("vllm", weights="bf16")
    assert needed_checkpoint("vllm", api.deployment("llama3.1-8b").model, "fp8").note == ""


def test_an_engine_whose_command_is_not_described_is_refused():
    with pytest.raises(UnsupportedError, match="transformers"):
        words("transformers")


def test_a_command_can_be_pasted():
    assert command_text(("vllm", "--x", '{"a": 1}')) == "vllm --x '{\"a\": 1}'"


COMMANDS = [
    ("llama3.1-8b", {}),
    ("llama3.1-70b", {"tensor_parallel": 4, "pipeline_parallel": 2, "kv_dtype": "fp8", "weights": "fp8"}),
    ("deepseek-v3", {"data_parallel": 8, "expert_parallel": 8}),
    ("gpt-oss-120b", {"tensor_parallel": 2, "expert_parallel": 2, "kv_dtype": "fp8_e5m2"}),
]
LIMITS = EngineOptions(max_model_len=4096, max_num_seqs=64, max_num_batched_tokens=2048, utilization=0.85)


@pytest.mark.parametrize(("model", "asked"), COMMANDS)
def test_the_parser_of_vllm_takes_its_commands(model, asked):
    arguments = pytest.importorskip("vllm.entrypoints.common.cli_args", reason="vLLM is not installed")
    parsers = pytest.importorskip("vllm.utils.argparse_utils")
    parser = arguments.make_arg_parser(parsers.FlexibleArgumentParser(add_help=False))
    for options in (EngineOptions(), LIMITS):
        parsed = parser.parse_args(list(words("vllm", model, gpu="h200", options=options, **asked)[2:]))
        assert parsed.tensor_parallel_size == asked.get("tensor_parallel", 1)
        assert parsed.max_num_seqs == options.max_num_seqs


@pytest.mark.parametrize(("model", "asked"), COMMANDS)
def test_the_parser_of_sglang_takes_its_commands(model, asked):
    arguments = pytest.importorskip("sglang.srt.server_args", reason="SGLang is not installed")
    parser = argparse.ArgumentParser()
    arguments.ServerArgs.add_cli_args(parser)
    parsed = parser.parse_args(list(words("sglang", model, gpu="h200", options=LIMITS, **asked)[3:]))
    assert parsed.max_running_requests == LIMITS.max_num_seqs


SERVER = shutil.which("llama-server") or os.environ.get("KVCALC_LLAMA_SERVER", "")


@pytest.mark.skipif(not SERVER, reason="llama-server is not built: put it in PATH, or name it in KVCALC_LLAMA_SERVER")
@pytest.mark.parametrize(
    ("model", "asked", "options"),
    [
        ("llama3.1-8b", {"weights": "q4_k_m"}, EngineOptions(parallel=4, max_model_len=2048)),
        ("gpt-oss-20b", {"pipeline_parallel": 2}, EngineOptions(parallel=16, max_model_len=8192, kv_unified=True)),
        ("gemma-3-27b", {}, EngineOptions(cache_type_k="q8_0", cache_type_v="q8_0", swa_full=True, ubatch=256)),
    ],
)
def test_the_parser_of_llama_cpp_takes_its_commands(model, asked, options):
    made = words("llama.cpp", model, options=options, **asked)
    parsed = subprocess.run([SERVER, *made[1:], "--help"], capture_output=True, check=False, timeout=60)
    assert parsed.returncode == 0, parsed.stderr[-300:]
    wrong = subprocess.run([SERVER, "--no-such-option", "--help"], capture_output=True, check=False, timeout=60)
    assert wrong.returncode != 0
