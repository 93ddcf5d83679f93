"""What commands print: the JSON contract, the other formats, and what a person reads."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from kvcalc.cli.main import main
from kvcalc.core.units import GIB, MIB


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    out, err = capsys.readouterr()
    assert (stopped.value.code or 0) == 0, err
    return out, err


def data(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    loaded: dict[str, object] = json.loads(run(capsys, *arguments, "--json")[0])
    return loaded


def paths(value: object, prefix: str = "") -> set[str]:
    if isinstance(value, dict):
        return {path for key, entry in value.items() for path in paths(entry, f"{prefix}.{key}" if prefix else key)}
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return paths(value[0], f"{prefix}[]")
    return {prefix}


LOG = Path(__file__).parents[2] / "docs" / "examples" / "vllm-llama31-8b.log"

CONTRACT = {
    ("size", "--model", "llama2-70b", "--engine", "transformers"): """
        schema kv.bytes_per_token kv.bytes_per_sequence kv.state_bytes_per_sequence kv.cross_bytes_per_sequence
        kv.total_bytes kv.affine[].from_tokens kv.affine[].base_bytes kv.affine[].bytes_per_token
        reserved.kv_bytes reserved.state_bytes reserved.total_bytes weights.parameters weights.active_parameters
        weights.total_bytes per_gpu.kv_bytes per_gpu.weight_bytes""",
    ("roofline", "--gpu", "h100-sxm", "--model", "llama2-7b"): """
        schema ridge_flop_per_byte.bf16 points[].model points[].phase points[].batch points[].context
        points[].intensity_flop_per_byte points[].attainable_flop_per_s points[].limiter""",
    ("decode", "--gpu", "h100-sxm", "--model", "llama2-7b"): """
        schema rows[].batch rows[].context rows[].flop rows[].weight_bytes rows[].kv_read_bytes
        rows[].intensity_flop_per_byte rows[].ideal_s rows[].serial_s rows[].tokens_per_s
        rows[].tokens_per_s_per_sequence rows[].limiter rows[].fits""",
    ("fit", "--gpu", "h100-sxm", "--model", "llama2-7b"): """
        schema fits budget.memory_bytes budget.weight_bytes budget.activation_bytes budget.overhead_bytes
        budget.kv_bytes_available logical_kv_bytes reserved_kv_bytes kv_capacity_tokens max_concurrency num_blocks
        block_size max_batch max_context min_gpus""",
    ("reconcile", str(LOG)): """
        schema engine model rows[].quantity rows[].printed rows[].predicted rows[].agrees rows[].reason""",
    ("traffic", "--model", "llama2-7b", "--prompt", "0", "--output-tokens", "4096"): """
        schema weight_bytes kv_read_bytes growth_exponent kv_bytes rows[].output_tokens rows[].kv_read_bytes""",
    ("levers", "--model", "llama2-7b"): """
        schema rows[].lever rows[].cuts rows[].kv_total_bytes rows[].read_total_bytes rows[].retrofit""",
    ("prefill", "--gpu", "h100-sxm", "--model", "llama2-7b"): """
        schema rows[].batch rows[].prompt rows[].flop rows[].ideal_s rows[].serial_s rows[].limiter""",
}


@pytest.mark.parametrize("command", CONTRACT, ids=lambda command: command[0])
def test_json_has_the_fields_that_scripts_rely_on(capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    found = data(capsys, *command)
    assert set(CONTRACT[command].split()) <= paths(found)
    assert found["schema"] == f"kvcalc.{command[0]}/1"


def test_defaults_are_4096_tokens_or_the_models_limit_and_batch_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert data(capsys, "size", "--model", "llama3.1-8b")["context"] == 4096
    assert data(capsys, "size", "--model", "gpt2")["context"] == 1024
    assert data(capsys, "size", "--model", "gpt2")["batch"] == 1


def test_gpus_alone_means_tensor_parallel(capsys: pytest.CaptureFixture[str]) -> None:
    both = [
        data(capsys, "size", "--model", "llama3.1-8b", *extra)["per_gpu"] for extra in (("--gpus", "4"), ("--tp", "4"))
    ]
    assert both[0] == both[1]


def test_ranges_give_a_row_each_in_every_format(capsys: pytest.CaptureFixture[str]) -> None:
    command = ("decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--batch", "1-8*2", "--context", "1k,2k")
    rows = list(csv.DictReader(io.StringIO(run(capsys, *command, "--output", "csv")[0])))
    lines = [json.loads(line) for line in run(capsys, *command, "--output", "jsonl")[0].splitlines()]
    markdown = run(capsys, *command, "--output", "md")[0].splitlines()
    assert [(int(row["batch"]), int(row["context"])) for row in rows] == [
        (batch, context) for context in (1000, 2000) for batch in (1, 2, 4, 8)
    ]
    assert [row["ideal_s"] for row in lines] == [float(row["ideal_s"]) for row in rows]
    assert len(markdown) == 2 + len(rows)


def test_what_does_not_fit_is_said_first_and_its_speed_is_called_hypothetical(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, _ = run(capsys, "decode", "--model", "llama2-70b", "--gpu", "h100-sxm")
    assert out.startswith("DOES NOT FIT")
    assert "hypothetical" in out.splitlines()[0]
    fits, _ = run(capsys, "decode", "--model", "llama2-70b", "--gpu", "h100-sxm", "--gpus", "4")
    assert "hypothetical" not in fits


@pytest.mark.parametrize(
    ("asked", "remedy"),
    [
        (("--model", "llama3.1-8b", "--gpu", "rtx-4090"), "--max-model-len 33232 would fit."),
        (("--model", "llama3.1-70b", "--gpu", "h100-sxm"), "4 GPUs would hold it: --tp 4."),
        (("--model", "llama3.1-8b", "--gpu", "rtx-4090", "--gpus", "2", "--batch", "999"), "."),
    ],
)
def test_the_first_line_of_what_does_not_fit_says_what_would(
    asked: tuple[str, ...], remedy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first = run(capsys, "fit", *asked)[0].splitlines()[0]
    assert first.startswith("DOES NOT FIT")
    assert first.endswith(remedy)
    flags = [word.strip(".:") for word in remedy.partition("--")[2].split()[:2]]
    if flags:
        assert run(capsys, "fit", *asked, f"--{flags[0]}", flags[1])[0].startswith("FITS")


def test_an_ambiguous_name_is_noted_once_with_the_others_it_may_mean(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "roofline", "--gpu", "h100")
    assert (out + err).count("h100 is taken for h100-sxm; others of that name: h100-nvl, h100-pcie") == 1
    assert "note:" not in err
    assert "is taken for" not in "".join(run(capsys, "roofline", "--gpu", "h100-sxm"))


def test_a_context_beyond_the_models_limit_is_noted(capsys: pytest.CaptureFixture[str]) -> None:
    assert "beyond the 4,096 tokens" in run(capsys, "size", "--model", "llama2-70b", "--context", "8000")[0]


def test_explain_prints_formula_numbers_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "size", "--model", "llama2-70b", "--explain")
    assert "kv_heads x head_dim x b (fp16) + kv_heads x value_head_dim x b (fp16)" in out
    assert "8 * 128 * 2 + 8 * 128 * 2" in out
    assert "source: model_config https://" in out
    assert data(capsys, "size", "--model", "llama2-70b", "--explain")["explain"]


def test_the_roofline_chart_holds_every_point(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "roofline", "--gpu", "h100-sxm", "--model", "llama2-7b,gemma-3-27b", "--batch", "1,32")
    assert all(f"  {letter}  " in out for letter in "ABCDEFGH")
    assert "memory-bound at every batch" in out


def test_output_has_no_colour_codes_when_it_is_not_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert "\x1b" not in run(capsys, "decode", "--model", "llama2-70b", "--gpu", "h100-sxm")[0]


def test_import_writes_a_profile_that_gives_the_same_numbers(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory
) -> None:
    config = {"model_type": "llama", "num_hidden_layers": 3, "hidden_size": 64, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 100}  # fmt: skip
    source, target = tmp_path / "config.json", tmp_path / "tiny.yaml"
    source.write_text(json.dumps(config))
    run(capsys, "models", "import", str(source), "-o", str(target))
    direct, through = (data(capsys, "size", "--model", str(path)) for path in (source, target))
    assert {key: direct[key] for key in ("kv", "weights")} == {key: through[key] for key in ("kv", "weights")}


def test_lint_says_what_was_used_defaulted_and_ignored(
    capsys: pytest.CaptureFixture[str], tmp_path: pytest.TempPathFactory
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", "hidden_size": 64, "num_experts_of_mine": 7, "bos_token_id": 1}))
    keys = {entry["key"]: entry for entry in data(capsys, "models", "lint", str(path))["keys"]}
    assert keys["hidden_size"]["use"] == "used"
    assert (keys["num_hidden_layers"]["use"], keys["num_hidden_layers"]["value"]) == ("defaulted", 32)
    assert "looks relevant" in keys["num_experts_of_mine"]["why"]
    assert "neither" in keys["bos_token_id"]["why"]


def test_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert "llama2-70b" in run(capsys, "models")[0].split()
    found = data(capsys, "models", "list", "mixtral")["models"]
    assert {"mixtral-8x22b", "mixtral-8x7b"} <= set(found)
    assert all("mixtral" in name for name in found)
    assert set(found) <= set(run(capsys, "models", "list", "mixtral")[0].split())
    assert "h100-sxm" in data(capsys, "gpus", "list")["gpus"]
    assert "name: h100-sxm" in run(capsys, "gpus", "show", "h100")[0]
    assert run(capsys, "--version")[0].startswith("kvcalc 0.")
    assert "size" in run(capsys)[0]


def test_recipes_of_a_model_are_listed_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    table = run(capsys, "models", "quants", "llama3.1-8b", "--memory", "8GiB")[0]
    assert "longest context" in table
    assert "193 in q4_k, 33 in q6_k" in table
    rows = data(capsys, "models", "quants", "llama3.1-8b")["rows"]
    assert isinstance(rows, list)
    assert {"recipe", "total_bytes", "bits_per_weight"} <= rows[0].keys()


@pytest.mark.parametrize("plural", ["models", "gpus"])
def test_the_catalogue_is_listed_without_a_subcommand(capsys: pytest.CaptureFixture[str], plural: str) -> None:
    listed = data(capsys, plural, "list")
    assert data(capsys, plural) == listed
    assert listed[plural]


def test_json_says_where_profiles_came_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    card.write_text((Path(__file__).parents[2] / "hardware_profiles" / "h200.yaml").read_text())
    found = data(capsys, "decode", "--model", "llama2-7b", "--gpu", str(card), "--estimate")
    assert found["source"] == {
        "model": {"llama2-7b": "catalogue"},
        "hardware": {str(card): str(card)},
        "calibration": {"vllm-hopper": "catalogue"},
        "shadowed": [],
    }
    assert data(capsys, "compare", "h100-sxm", "h200")["source"]["hardware"] == {
        "h100-sxm": "catalogue",
        "h200": "catalogue",
    }


# 21,845 MiB of a Mac's 32,768 are the GPU's (an M2 Max, https://github.com/ollama/ollama/issues/434).
@pytest.mark.parametrize(
    ("command", "path"),
    [
        ("fit --model llama3.1-8b --gpu m1-max-32 --engine llama.cpp", ("budget", "memory_bytes")),
        ("decode --model llama3.1-8b --gpu m1-max-32", ("memory_bytes",)),
        ("prefill --model llama3.1-8b --gpu m1-max-32", ("memory_bytes",)),
    ],
)
def test_the_memory_one_has_is_the_memory_that_counts(
    capsys: pytest.CaptureFixture[str], command: str, path: tuple[str, ...]
) -> None:
    found: object = data(capsys, *command.split(), "--memory", "32GiB")
    for key in path:
        assert isinstance(found, dict)
        found = found[key]
    assert isinstance(found, int)
    assert found // MIB == 21_845


def test_a_sweep_a_comparison_and_a_roofline_take_a_memory(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = ("sweep", "--model", "llama3.1-8b", "--gpu", "m1-max-32", "--output", "jsonl")
    verdicts = [json.loads(run(capsys, *sweep, *more)[0])["fits"] for more in ((), ("--memory", "16GiB"))]
    assert verdicts == [True, False]
    compare = run(capsys, "compare", "m1-max-32", "m1-max-24", "--memory", "32GiB", "--output", "csv")[0]
    assert compare.count(str(int(0.66667 * 32 * GIB))) == 2
    assert "m1-max-32" in run(capsys, "roofline", "--gpu", "m1-max-32", "--memory", "32GiB")[0]
