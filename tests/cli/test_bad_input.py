"""A user's mistake gives one line, a hint and exit code 2, never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcalc.cli.main import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    return int(stopped.value.code or 0), out, err


SIZE = ("size", "--model", "llama2-70b")
TRAFFIC = ("traffic", "--model", "llama2-7b")
FIT = ("fit", "--model", "llama2-7b", "--gpu", "h100-sxm")
DECODE = ("decode", "--model", "llama2-70b", "--gpu", "h100-sxm")
MEASURED = ("check", "--measured", "9tok/s", "--model", "llama2-70b", "--gpu", "h100-sxm")


@pytest.mark.parametrize(
    ("arguments", "says", "hint"),
    [
        (("sise",), "unknown command 'sise'", "did you mean size?"),
        (("cost",), "unknown command 'cost'", "did you mean plan?"),
        ((*FIT, "--utilization", "90%"), "utilization must be a number, not '90%'", "for a share write 0.9"),
        ((*FIT, "--utilization", "90"), "at most 1, not 90", "0.9 is 90% of"),
        ((*FIT[:-1], "2x4090"), "unknown GPU '2x4090'", "--gpu rtx-4090 --gpus 2"),
        ((*FIT[:-1], "h100 x 8"), "unknown GPU 'h100 x 8'", "--gpu h100-sxm --gpus 8"),
        ((*FIT[:-1], "2xh1001"), "unknown GPU '2xh1001'", "kvcalc gpus lists them"),
        ((*SIZE, "--memory", "24GB"), "needs an accelerator", "--device 24GiB"),
        ((*DECODE, "--batch-size", "8"), "--batch-size is an option of llama.cpp", "write --batch for sequences"),
        ((*DECODE, "--ubatch", "8"), "--ubatch is an option of llama.cpp", "or leave it out"),
        (("size",), "--model is missing", "for example: kvcalc size --model llama2-70b"),
        (("fit", "llama3.1-8b", "--gpu", "h100"), "--model is missing", "hint: --model llama3.1-8b"),
        (("fit", "Q4.gguf", "--gpu", "h100"), "--model is missing", "hint: --model Q4.gguf"),
        (("roofline", "3090"), "--gpu is missing", "hint: --gpu 3090"),
        ((*SIZE, "h100"), "'h100' belongs to no option", "hint: --gpu h100"),
        ((*SIZE, "zzzz"), "'zzzz' belongs to no option", "--help"),
        ((*SIZE, "--gpu"), "--gpu needs a value", "kvcalc size --help"),
        (("completion",), "the argument SHELL is missing", "kvcalc completion bash"),
        (("models", "quants", "qwen3-8b", "--vram", "8GB"), "no option --vram", "did you mean --memory?"),
        ((*DECODE, "--device", "3060"), "no option --device", "kvcalc fit --device"),
        (("plan", "--model", "qwen3-8b", "--gpu", "h100", "--rate", "1"), "--slo is missing", "--slo tpot_p95=40ms"),
        (("plan", "--model", "qwen3-8b", "--users", "9"), "no option --users", "--rate is the users divided by"),
        (("plan", "--model", "qwen3-8b", "--budget", "9"), "no option --budget", "--price"),
        ((*SIZE, "--modle", "x"), "--modle", "did you mean --model?"),
        ((*SIZE, "--ctx", "8k"), "there is no option --ctx", "did you mean --context?"),
        ((*SIZE, "--seq-len", "8k"), "--seq-len", "--context"),
        ((*SIZE, "-fitt", "1024"), "there is no option -fitt", "--help"),
        ((*SIZE, "--mmproj", "tower.gguf"), "--mmproj takes no file", "--mmproj-file tower.gguf"),
        (("models", "fit", "zzzz", "--device", "24GiB"), "no model matches 'zzzz'", "kvcalc models lists all"),
        (("models", "fit", "llama", "--device", "cpu"), "the host's memory is missing", "--host-memory"),
        (("fit", "--model", "deepseek-v3", "--device", "24GiB"), "a mixture of fp8", "--weights q4_k_m"),
        ((*DECODE, "--cost", "2"), "--cost", "--price"),
        ((*SIZE, "--quant", "fp8"), "--quant", "--weights"),
        ((*SIZE, "--acceptance", "1"), "--acceptance", "is an option of"),
        ((*SIZE, "--zzz", "1"), "--zzz", "--help"),
        (("size", "--model", "lama2-70b"), "unknown model 'lama2-70b'", "did you mean llama2-70b"),
        (("size", "--model", ""), "unknown model", "kvcalc models"),
        (("size", "--model", "no/such/folder/config.json"), "no such file", ""),
        (("size", "--model", "missing.yaml"), "no such file", ""),
        (("decode", "--model", "llama2-70b", "--gpu", "h10"), "unknown GPU 'h10'", "h100"),
        (("decode", "--model", "llama2-70b"), "--gpu is missing", "for example: kvcalc decode"),
        ((*SIZE, "--context", "0"), "context must be", ""),
        ((*SIZE, "--context", "-5"), "context must be", ""),
        ((*SIZE, "--context", "many"), "context", "for example"),
        ((*SIZE, "--context", "1.5"), "not a whole number", ""),
        ((*SIZE, "--context", "1,2"), "takes one number", ""),
        ((*SIZE, "--context", "1e30"), "context must be", ""),
        ((*SIZE, "--batch", "0"), "batch must be", ""),
        ((*SIZE, "--batch", "1x"), "unknown unit", ""),
        ((*SIZE, "--kv-dtype", "bf17"), "unknown number format 'bf17'", "bf16"),
        ((*SIZE, "--weights", "int4-g0"), "int4-g0", ""),
        ((*SIZE, "--weights", "bf16,expert=fp8"), "names no part", "experts"),
        ((*SIZE, "--activations", ""), "unknown number format", ""),
        ((*SIZE, "--gpus", "0"), "gpus must be 1 or more", ""),
        ((*SIZE, "--gpus", "x"), "gpus takes a whole number, not 'x'", "for example"),
        ((*SIZE, "--tp", "-1"), "tensor parallel size", ""),
        ((*SIZE, "--gpus", "8", "--tp", "4"), "8 GPUs are not", "leave out --gpus"),
        ((*SIZE, "--gpus", "8", "--pp", "3"), "cannot be shared", "--tp"),
        ((*SIZE, "--pp", "200"), "200 pipeline stages for 80 layers", ""),
        ((*SIZE, "--tp", "128"), "not shared evenly by 128", "--tp can be 1, 2, 4"),
        ((*SIZE, "--ep", "3"), "does not divide", ""),
        ((*SIZE, "--set", "kv_heads"), "path=value", "kv_heads=8"),
        ((*SIZE, "--set", "kv_heads=64", "--set", "kv_heads=8"), "kv_heads is 8, but --set kv_heads is 64", "once"),
        (
            (*SIZE, "--set", "blocks.decoder.mixers.0.kv_heads=4", "--set", "kv_heads=8"),
            "mixers.0.kv_heads is 4",
            "once",
        ),
        ((*SIZE, "--set", "kv_haeds=8"), "no field 'kv_haeds'", "did you mean kv_heads"),
        ((*SIZE, "--set", "kv_heads=-8"), "kv_heads", ""),
        ((*SIZE, "--set", "memory_bytes=1"), "field of an accelerator", "--gpu"),
        ((*SIZE, "--engine", "vlm"), "'vlm' is not modelled", ""),
        ((*SIZE, "--json", "--output", "csv"), "contradict", ""),
        ((*SIZE, "--output", "xml"), "'xml' is not a format", "json"),
        ((*DECODE, "--batch", "8-1"), "ends before it starts", ""),
        ((*DECODE, "--batch", "1-"), "the range '1-' has no end", "1-256*2"),
        ((*DECODE, "--utilization", "90"), "at most 1, not 90", "0.9 is 90%"),
        (("fit", "--model", "gpt2", "--device", "24"), "'24' has no unit", "24GiB"),
        (("size", "--model", "Qwen3-8B-Q4_K_M.gguf"), "no such file", "without the file: --model Qwen3-8B-Q4_K_M"),
        (("why", "CUDA out of memory."), "there is no file 'CUDA out of memory.'", "- for standard input"),
        ((*DECODE, "--batch", "1-10*1"), "must grow", "1-256*2"),
        ((*DECODE, "--batch", "1-10+0"), "from 1 to", ""),
        ((*DECODE, "--batch", "1-2000000000"), "from 1 to", ""),
        ((*DECODE, "--batch", "1-900000000"), "more than", ""),
        ((*DECODE, "--batch", ""), "batch", ""),
        (("prefill", "--model", "llama2-70b", "--gpu", "h100", "--prompt", "0"), "prompt must be", ""),
        ((*TRAFFIC, "--output-tokens", "0"), "output-tokens must be", ""),
        ((*TRAFFIC, "--prompt", "-1"), "prompt must be 0 or more", ""),
        ((*TRAFFIC, "--prompt", "1,2"), "takes one number", ""),
        ((*TRAFFIC, "--batch", "0"), "batch must be", ""),
        ((*TRAFFIC, "--window", "0"), "window: '0'", ""),
        ((*TRAFFIC, "--budget", "many"), "evict: 'many' is not a count", ""),
        ((*TRAFFIC, "--chunk", "1"), "hierarchy: '1'", "4x4"),
        ((*TRAFFIC, "--chunk", "x"), "hierarchy: 'x' is not a count", "4x4"),
        (("levers", "--model", "llama2-7b", "--context", "512", "--max-model-len", "10"), "than max-model-len 10", ""),
        (("levers", "--model", "mamba-2.8b", "--with", "fp8"), "no layer keeps a cache that grows", ""),
        ((*TRAFFIC, "--with", "wndow=5"), "unknown lever 'wndow'", "did you mean window"),
        (("levers", "--model", "llama2-7b", "--with", "gqa=5"), "do not divide", "same number of query heads"),
        (("levers", "--model", "llama2-7b", "--with", "zz"), "unknown lever 'zz'", "levers: mqa"),
        (("levers", "--model", "llama2-7b", "--gpu", "h10"), "unknown GPU 'h10'", "h100"),
        (("demo", "kv-cash"), "kvcalc demo has no subcommand 'kv-cash'", "did you mean kv-cache?"),
        (("demo", "zzz"), "kvcalc demo has no subcommand 'zzz'", "kv-cache, speculate"),
        (("demo", "kv-cache", "--output-tokens", "0"), "output-tokens must be", ""),
        (("demo", "kv-cache", "--kv-heads", "3"), "do not divide", "same number"),
        (("demo", "speculate", "--gamma", "-1"), "gamma must be", ""),
        (("demo", "paging", "--block-size", "0"), "block-size must be", ""),
        (("demo", "paging", "--memory-tokens", "4097", "--block-size", "4000"), "blocks of 4,000", "whole blocks"),
        (("demo", "drift", "--horizon", "1"), "horizon must be", ""),
        (("demo", "drift", "--consistency", "0"), "consistency loss", ""),
        (("roofline", "--gpu", "nothing-like-it"), "unknown GPU", "kvcalc gpus"),
        (("models", "show", "lama2-70b"), "unknown model", "llama2-70b"),
        (("models", "lint", "nowhere.json"), "cannot be read", ""),
        (("gpus", "validate", "nowhere.yaml"), "cannot be read", ""),
        (("models", "shwo"), "shwo", ""),
        (("check", "--measured", "9tok/s", "--tolerance", "1%"), "cannot be combined with --measured", ""),
        ((*MEASURED, "--prompt", "9"), "a decode has no prompt here", "give --context"),
        ((*MEASURED, "--phase", "prefill", "--context", "9"), "a prefill has no context here", "give --prompt"),
        (("check", "--tolerance", "inf"), "tolerance must be a number, not 'inf'", ""),
        (("check", "x.yaml", "--measured", "9tok/s"), "cannot be combined with --measured", ""),
        ((*DECODE, "--price", "nan"), "price must be a number, not 'nan'", ""),
        ((*DECODE, "--power-share", "inf"), "power-share must be a number, not 'inf'", ""),
        (("fit", "--model", "llama2-7b", "--gpu", "h100-sxm", "--utilization", "nan"), "utilization must be", ""),
        ((*SIZE, "--set", "provenance=x"), "--set provenance is no number", "profile file"),
        ((*SIZE, "--set", "notes=x"), "--set notes is no number", "profile file"),
        ((*SIZE, "--set", "hidden_size=1e400"), "1e400 is too large for a number", ""),
    ],
)
def test_a_mistake_gets_one_line_and_a_hint(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str, hint: str
) -> None:
    code, out, err = run(capsys, *arguments)
    lines = [line for line in err.splitlines() if not line.startswith("note:")]
    assert code == 2
    assert out == ""
    assert lines[0].startswith("error: ")
    assert says in lines[0]
    assert len(lines) <= 2
    assert all(line.startswith("hint: ") for line in lines[1:])
    assert hint in "".join(lines[1:])
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not valid JSON"),
        ("[]", "no JSON object"),
        ("{}", "names no model_type"),
        ('{"model_type": "llama", "model_type": "gemma"}', "stands twice"),
        ('{"model_type": "quantum_llama"}', "'quantum_llama' is not known"),
        ('{"model_type": "llama", "num_hidden_layers": -3}', "num_hidden_layers"),
        ('{"model_type": "llama", "num_hidden_layers": "many"}', "num_hidden_layers"),
        ('{"model_type": "llama", "hidden_size": 1e400}', "hidden_size"),
        ('{"model_type": 7}', "model_type"),
        ("[" * 100_000, "JSON"),
        ('{"a":' * 500 + "1" + "}" * 500, "deep"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str, says: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    code, _, err = run(capsys, "size", "--model", str(path))
    assert code == 2
    assert says in err
    assert str(tmp_path) in err
    assert len(err.splitlines()) <= 2


def test_a_folder_stands_for_its_config(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "num_hidden_layers": 2}))
    code, out, _ = run(capsys, "size", "--model", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(out)["kv"]["bytes_per_token"] == 2 * 2 * 4096 * 2
    (tmp_path / "config.json").unlink()
    code, _, err = run(capsys, "size", "--model", str(tmp_path))
    assert (code, "no config.json" in err) == (2, True)


def test_unreadable_and_binary_files_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for name in ("model.yaml", "config.json", "model.gguf", "model.safetensors"):
        path = tmp_path / name
        path.write_bytes(bytes(range(256)) * 8)
        code, _, err = run(capsys, "size", "--model", str(path))
        assert code == 2, name
        assert name in err
        assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--chunked-prefill-size=-1", "chunked-prefill-size must be 1 or more, not '-1'"),
        ("--max-num-batched-tokens=-1", "max-num-batched-tokens must be 1 or more, not '-1'"),
        ("--context-length=-1", "context-length must be 1 or more, not '-1'"),
        ("--page-size=0", "page-size must be 1 or more, not 0"),
        ("--max-running-requests=0", "max-running-requests must be 1 or more, not 0"),
    ],
)
def test_an_option_is_named_as_it_was_written(capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    code, _, error = run(capsys, "fit", "-m", "llama3.1-8b", "--gpu", "h100-sxm", "--engine", "sglang", option)
    assert (code, error.splitlines()[0]) == (2, f"error: {message}")
