"""What a question would ignore, or could not compute, is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.core.errors import KvcalcError

DECODE = {"model": "llama3.1-8b", "gpu": "h100-sxm"}


def checks(folder: Path, text: str) -> Path:
    path = folder / "checks.yaml"
    path.write_text(f"checks:\n- {{name: one, model: llama3.1-8b, gpu: h100-sxm, {text}}}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("key", ["ttft: 500ms", "acceptance: 0.8", "rate: 4", "trace: x.csv"])
def test_a_key_of_a_check_that_none_of_its_figures_reads_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(KvcalcError, match=rf"{key.partition(':')[0]!r} is an option of .*, and asks nothing of fit"):
        kvcalc.check_files([checks(tmp_path, f"{key}, expect: {{fits: true}}")])


def test_the_context_of_a_check_is_its_prompt_in_a_prefill(tmp_path: Path) -> None:
    path = checks(tmp_path, "context: 2048, expect: {prefill.prompt: 2048}")
    assert kvcalc.check_files([path]).passed


@pytest.mark.parametrize(("report", "idle", "taken"), [("prefill", "context", "prompt"), ("decode", "prompt", "context"),
                                                       ("size", "prompt", "context")])  # fmt: skip
def test_a_sweep_refuses_the_length_that_its_report_does_not_take(report: str, idle: str, taken: str) -> None:
    with pytest.raises(KvcalcError, match=f"{report} has no --{idle}") as caught:
        kvcalc.ask("sweep", {**DECODE, "report": report, idle: "100,200"})
    assert (caught.value.parameter, caught.value.hint) == (idle, f"give --{taken}")


def test_a_sweep_over_engines_says_which_row_is_whose(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--report", "fit", "--engine", "vllm,sglang"])
    table = capsys.readouterr().out
    assert "engine" in table.splitlines()[2]
    assert [name for name in ("vllm", "sglang") if name in table] == ["vllm", "sglang"]


@pytest.mark.parametrize("gamma", ["1e9", "1000000"])
def test_a_draft_longer_than_a_verification_is_refused_before_it_is_made(gamma: str) -> None:
    with pytest.raises(KvcalcError, match="more than") as caught:
        kvcalc.ask("speculate", {**DECODE, "method": "ngram", "gamma": gamma})
    assert caught.value.parameter == "gamma"


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("decode", {"gpu": ["h100-sxm"]}),
        ("decode", {"model": ["llama3.1-8b"]}),
        ("decode", {"weights": ["bf16"]}),
        ("decode", {"engine": {"vllm": 1}}),
        ("speculate", {"acceptance": True, "method": "ngram"}),
        ("fit", {"kv_memory": -1}),
        ("fit", {"utilization": 1.5}),
        ("fit", {"max_num_seqs": 0}),
    ],
)
def test_a_value_of_another_kind_is_one_error_that_names_its_parameter(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(KvcalcError) as caught:
        kvcalc.ask(name, {**DECODE, **given})
    assert caught.value.parameter == next(iter(given)).replace("_", "-")


def test_an_error_says_the_option_that_its_message_does_not_name(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as done:
        main(["fit", "--model", "llama3.1-8b", "--kv-memory", "nan"])
    assert done.value.code == 2
    assert capsys.readouterr().err.startswith("error: kv-memory: 'nan' is not a")
