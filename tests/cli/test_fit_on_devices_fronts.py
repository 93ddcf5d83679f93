"""``fit --device`` and ``size --device`` as Ollama and LM Studio load models with llama.cpp."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from command_lines import answer

from kvcalc.cli.main import main

if TYPE_CHECKING:
    from collections.abc import Sequence

_MODEL = "-m qwen3-8b --weights q4_k_m"
_MOE = "-m qwen3-30b-a3b --weights q4_k_m"


def _layers(report: dict[str, Any]) -> dict[str, int]:
    return {each["name"]: each["layers"] for each in report["devices"]}


@pytest.mark.parametrize(
    ("devices", "context", "batch"),
    [
        ("--device 12GiB", 4096, 512),
        ("--device 24GiB", 32768, 1024),
        # the tier is that of all GPUs together
        ("--device 12GiB --device 12GiB", 32768, 1024),
        ("--device 48GiB", 40960, 2048),
    ],
)
def test_ollama_takes_the_context_of_all_devices_memory(
    capsys: pytest.CaptureFixture[str], devices: str, context: int, batch: int
) -> None:
    report = answer(capsys, f"fit {_MODEL} --engine ollama {devices}")
    assert report["context"] == context
    assert (f" -ub {batch}" in report["command"]) == (batch != 512)


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (f"{_MODEL} --device 12GiB --device 24GiB", ["24GiB"]),
        (f"{_MODEL} --device rtx-3060 --device rtx-4090", ["rtx-4090"]),
        # 4.7 GiB of weights and 0.6 GiB of cache are more than 80% of 6 GiB
        (f"{_MODEL} --context 4096 --device 6GiB --device 6GiB", ["6GiB", "6GiB"]),
        (f"{_MODEL} --context 4096 --device 8GiB --device 6GiB", ["8GiB"]),
        # one library serves a model
        (f"{_MOE} --device rx-7900-xtx --device rtx-3060 --context 65536", ["rx-7900-xtx"]),
    ],
)
def test_ollama_takes_one_gpu_where_that_holds_the_model(
    capsys: pytest.CaptureFixture[str], line: str, names: Sequence[str]
) -> None:
    report = answer(capsys, f"fit {line} --engine ollama")
    assert [each["name"] for each in report["devices"]] == names


@pytest.mark.parametrize("engine", ["ollama", "lm-studio"])
def test_the_placement_is_that_of_the_engines_own_fit(capsys: pytest.CaptureFixture[str], engine: str) -> None:
    on = f"fit {_MOE} --context 8192 --device 8GiB"
    report = answer(capsys, f"{on} --engine {engine} --ubatch 512")
    fit = answer(capsys, f"{on} --engine llama.cpp")["engine_fit"]
    if engine == "ollama":
        assert report["placement"]["overrides"] == [f"{each['pattern']}={each['place']}" for each in fit["overrides"]]
    assert not report["chosen"]
    assert any("--fit" in note for note in report["notes"])


def test_layers_that_were_asked_for_are_taken(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, f"fit {_MODEL} --engine ollama --device 8GiB --gpu-layers 10")
    assert _layers(report) == {"8GiB": 10}
    assert not any("--fit" in note for note in report["notes"])


def test_the_main_gpu_of_ollama_is_the_only_one(capsys: pytest.CaptureFixture[str]) -> None:
    line = f"fit {_MODEL} --engine ollama --context 4096 --device 6GiB --device 6GiB --main-gpu 1"
    assert "-sm none -mg 1" in answer(capsys, line)["command"]


def test_lm_studios_sequences_share_one_context(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, f"fit {_MODEL} --engine lm-studio --device 12GiB")
    assert "-c 4096 -np 4 -kvu" in report["command"]
    assert report["context"] == 4096


def test_requests_of_ollama_have_a_context_each(capsys: pytest.CaptureFixture[str]) -> None:
    report = answer(capsys, f"fit {_MODEL} --engine ollama --parallel 2 --device 12GiB")
    assert "-c 8192 -np 2" in report["command"]
    assert report["context"] == 4096


@pytest.mark.parametrize(("given", "context"), [("", 32768), (" --context 2048", 2048)])
def test_size_counts_the_same_context_by_device(capsys: pytest.CaptureFixture[str], given: str, context: int) -> None:
    report = answer(capsys, f"size {_MODEL} --engine ollama --device 24GiB{given}")
    assert report["context"] == context
    assert f"-c {context} " in report["command"]
    assert sum(each["context_bytes"] for each in (*report["devices"], report["host"])) == 147_456 * context


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--engine ollama --device 8GiB --tensor-split 1,2", "ollama has no tensor-split"),
        ("--engine ollama --device 8GiB --n-cpu-moe 4", "ollama has no n-cpu-moe"),
        ("--engine lm-studio --device 8GiB --override-tensor exps=CPU", "lm-studio has no override-tensor"),
        ("--engine ollama --engine-version 0.15.5 --device 8GiB", "by its own estimates"),
        ("--engine vllm --device 8GiB", "--device is for llama.cpp"),
    ],
)
def test_what_a_program_cannot_do_is_refused(capsys: pytest.CaptureFixture[str], line: str, message: str) -> None:
    with pytest.raises(SystemExit):
        main(["fit", *_MODEL.split(), *line.split()])
    assert message in capsys.readouterr().err
