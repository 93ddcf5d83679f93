"""Every option of every calculator changes its answer: none is read and then forgotten."""

import json
import shlex

import pytest

from kvcalc.cli.main import main

BASE = {
    "size": "--model llama3.1-8b --context 4096",
    "decode": "--model mixtral-8x7b --gpu h100-sxm --context 4096 --gpus 2",
    "prefill": "--model mixtral-8x7b --gpu h100-sxm --prompt 4096 --gpus 2",
    "fit": "--model llama3.1-8b --gpu h100-sxm --context 4096",
    "roofline": "--model llama3.1-8b --gpu h100-sxm --context 4096",
    "levers": "--model llama3.1-8b --gpu h100-sxm --context 4096",
    "traffic": "--model llama3.1-8b --output-tokens 64",
    "speculate": "--model llama3.1-70b --draft llama3.1-8b --gpu h200 --gpus 2 --acceptance 0.7 --gamma 3",
    "compare": "llama3.1-8b qwen3-8b --gpu h100-sxm --context 4096",
    "solve": "--model llama3.1-8b --gpu h100-sxm --context 4096 --batch ?",
    "simulate": "--model llama3.1-8b --gpu h100-sxm --prompt 512 --output-tokens 16 --rate 4 --requests 12",
}
# Another value of each option.
OTHER = {
    "--model": "qwen3-8b", "--gpu": "h200", "--gpus": "4", "--batch": "7", "--context": "3000", "--prompt": "300",
    "--output-tokens": "40", "--weights": "fp8", "--kv-dtype": "fp8", "--activations": "fp8", "--tp": "2",
    "--pp": "2", "--ep": "2", "--dp": "2", "--engine": "llama.cpp", "--set": "kv_heads=4", "--price": "2.5",
    "--utilization": "0.5", "--max-model-len": "5000", "--max-num-seqs": "3", "--max-num-batched-tokens": "600",
    "--block-size": "32", "--kv-memory": "3GiB", "--activation-memory": "3GiB", "--with": "fp8",
    "--draft": "llama3.2-1b", "--acceptance": "0.5", "--gamma": "2", "--method": "ngram", "--rate": "9",
    "--requests": "7", "--seed": "5", "--replicas": "2", "--arrival": "constant", "--estimate": "",
    "--calibration": "vllm-hopper", "--tokens-per-s": "3000", "--window": "512", "--engine-version": "0.19",
    "--draft-weights": "fp8", "--slo": "ttft_p95=1s",
}  # fmt: skip
# The options of each command that change the answer to its question above; others need another question.
COUNTING = {
    "size": "model gpus batch context weights kv-dtype tp pp dp engine set",
    "decode": "model gpu gpus batch context weights kv-dtype pp ep dp set price utilization estimate calibration",
    "prefill": "model gpu gpus batch prompt weights kv-dtype pp dp set price utilization estimate calibration",
    "fit": "model gpu gpus batch context weights kv-dtype tp pp dp engine set utilization max-model-len max-num-seqs "
    "max-num-batched-tokens block-size kv-memory activation-memory engine-version",
    "roofline": "model gpu gpus batch context weights kv-dtype tp pp dp set",
    "levers": "model gpu gpus batch context weights kv-dtype tp pp dp set max-model-len with",
    "traffic": "model gpus batch prompt output-tokens weights kv-dtype tp set with window",
    "speculate": "gpus batch context weights kv-dtype activations pp dp engine set utilization max-num-seqs max-num-batched-tokens "
    "draft acceptance gamma method draft-weights",
    "compare": "gpu gpus batch context weights kv-dtype tp pp dp engine set price utilization max-model-len max-num-seqs "
    "max-num-batched-tokens engine-version",
    "solve": "model gpu gpus context weights kv-dtype tp pp dp engine set price utilization max-num-seqs max-num-batched-tokens "
    "block-size kv-memory tokens-per-s engine-version",
    "simulate": "model gpu gpus prompt output-tokens weights kv-dtype tp pp set utilization max-num-seqs max-num-batched-tokens "
    "block-size kv-memory rate requests seed replicas arrival engine-version slo",
}  # fmt: skip
CASES = [(name, f"--{option}") for name, options in COUNTING.items() for option in options.split()]


def _replaced(name, option):
    words = shlex.split(BASE[name])
    if option in words:
        index = words.index(option)
        del words[index : index + 2]
    if option == "--method":
        index = words.index("--draft")
        del words[index : index + 2]
    return [*words, option, *([OTHER[option]] if OTHER[option] else [])]


def _answer(capsys, name, words):
    with pytest.raises(SystemExit) as done:
        main([name, *words, "--json"])
    printed = capsys.readouterr()
    assert done.value.code == 0, printed.err
    report = json.loads(printed.out)
    # what is only repeated from the question is no answer
    for key in (
        "formats",
        "notes",
        "model",
        "gpu",
        "gpus",
        "batch",
        "context",
        "engine",
        "source",
        "prompt_tokens",
        "setup",
        "load",
    ):
        report.pop(key, None)
    return report


@pytest.fixture(scope="module")
def answers():
    return {}


@pytest.mark.parametrize(("name", "option"), CASES)
def test_another_value_gives_another_answer(name, option, answers, capsys):
    if name not in answers:
        answers[name] = _answer(capsys, name, shlex.split(BASE[name]))
    assert _answer(capsys, name, _replaced(name, option)) != answers[name]
