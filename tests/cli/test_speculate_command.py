"""``kvcalc speculate``: the fields that scripts depend on, its outputs, charts and refusals."""

import csv
import io
import json
import re

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.plan.speculative import METHODS
from kvcalc.questions.speculate import METHOD_NAMES
from kvcalc.render.charts import chart_spec
from kvcalc.render.terminal import heat_map

CONTRACT = "speculate --model llama3.1-70b --draft llama3.1-8b --gpu h200 --gpus 2 --batch 8 --gamma 5 --acceptance 0.8"
NGRAM = "speculate --model llama3.1-8b --gpu h100-sxm --method ngram --context 512"


def run(capsys, line):
    with pytest.raises(SystemExit) as done:
        main(line.split())
    return done.value.code, *capsys.readouterr()


def test_the_fields_that_scripts_depend_on(capsys):
    code, out, _ = run(capsys, f"{CONTRACT} --json")
    found = json.loads(out)
    assert code == 0
    assert found["schema"] == "kvcalc.speculate/1"
    assert found["expected_tokens_per_pass"] == pytest.approx(3.68928)
    assert found["speedup"] == pytest.approx(2.243, abs=1e-3)
    assert found["break_even_acceptance"] == pytest.approx(0.394, abs=1e-3)
    assert (found["best_gamma"], found["break_even_batch"]) == (5, 209)


# vLLM's own lines for one run: "Mean acceptance length: 2.16", "Avg Draft acceptance rate: 38.8%" (3 draft tokens) and
# "Per-position acceptance rate: 0.543, 0.357, 0.264", whose sum and 1 is the first and whose mean is the second.
PRINTED = "speculate --model qwen3-32b-fp8 --gpu h100-sxm --method ngram --gamma 3 --json"


@pytest.mark.parametrize(
    "form",
    [
        "--acceptance-by-position 0.543,0.357,0.264",
        "--acceptance-conditional 0.543,0.6574585635359116,0.7394957983193278",
        "--accepted-length 2.164",
        "--draft-rate 0.388",
        "--acceptance 1000:543,357,264",
    ],
)
def test_each_form_that_an_engine_prints_gives_the_same_tokens_of_a_pass(capsys, form):
    code, out, err = run(capsys, f"{PRINTED} {form}")
    assert (code, err) == (0, "")
    assert json.loads(out)["expected_tokens_per_pass"] == pytest.approx(2.164, abs=1e-12)


def test_a_list_by_position_must_say_which_reading_it_is(capsys):
    code, _, err = run(capsys, f"{PRINTED} --acceptance 0.543,0.357,0.264")
    assert code == 2
    assert "acceptance 0.543,0.357,0.264 is a list by position, which has two readings" in err
    assert "--acceptance-by-position" in err.partition("hint: ")[2]
    assert "--acceptance-conditional" in err.partition("hint: ")[2]


def test_what_does_not_fit_is_no_speed_in_headline_or_map(capsys):
    _, out, _ = run(capsys, "speculate --model llama3.1-70b --gpu h200 --gpus 2 --method ngram --gamma 3"
                            " --acceptance 0.6 --context 8192 --batch 64,1,2")  # fmt: skip
    first, *lines = out.splitlines()
    assert re.match(
        r"DOES NOT FIT: batch 64, context 8,192, gamma 3 needs \S+ GiB of \S+ GiB per GPU, .*; it fits up",
        first,
    )
    assert "PAYS" not in out
    rows = {line.split()[0]: line for line in lines[lines.index("- does not fit into memory") - 3 :]}
    assert rows["64"].split()[1:] == ["-"] * 10
    assert "2.18" in rows["1"]


def test_the_table_says_all_of_it(capsys):
    code, out, err = run(capsys, CONTRACT)
    assert (code, err) == (0, "")
    for words in (
        "PAYS IN IDEAL TIMES: llama3.1-70b decodes 2.24 times as fast with speculation (batch 8, context 4,096, gamma 5);",
        "1 to 209",
        "largest draft that pays",
        "memory added",
        "Rules of thumb",
        "Speed-up by batch and acceptance",
    ):
        assert words in out
    _, out, _ = run(capsys, f"{NGRAM} --acceptance 0.3 --batch 512 --gamma 4")
    assert re.match(r"DOES NOT PAY: .* decodes 0.53 times", out)


def test_every_row_of_lists_in_csv(capsys):
    _, out, _ = run(capsys, f"{NGRAM} --acceptance 0.7 --batch 1-4*2 --gamma 2,3 --context 512,1024 --output csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    places = [(row["context"], row["batch"], row["gamma"]) for row in rows]
    assert places == [(c, b, g) for c in ("512", "1024") for b in "124" for g in "23"]
    assert {"model", "method", "acceptance_rate", "speedup", "serial_speedup", "break_even_acceptance", "fits"} <= set(
        rows[0]
    )


@pytest.mark.parametrize("output", ["jsonl", "md", "json", "table"])
def test_every_output_format(capsys, output):
    code, out, _ = run(capsys, f"{NGRAM} --acceptance 0.7 --output {output}")
    assert code == 0
    assert "0.7" in out


def test_an_assumed_acceptance_is_told(capsys):
    _, out, err = run(capsys, f"{NGRAM} --json")
    assert "assumed acceptance 0.8" in err
    assert json.loads(out)["acceptance"][0] == 0.8


def test_formats_of_target_and_draft(capsys):
    line = f"{CONTRACT} --weights fp8 --kv-dtype fp8 --draft-weights int4-g128 --draft-tp 1 --json"
    found = json.loads(run(capsys, line)[1])
    assert (found["formats"]["weights"], found["draft_formats"]["weights"]) == ("fp8", "int4-g128")
    assert found["formats"]["kv"] == found["draft_formats"]["kv"] == "fp8"


def test_a_tree_of_equal_widths(capsys):
    line = f"{NGRAM.replace('ngram', 'eagle')} --tree 2,2,2 --acceptance 0.6 --json"
    row = json.loads(run(capsys, line)[1])["rows"][0]
    assert (row["gamma"], row["draft_tokens"]) == (3, 14)


def test_explanations_are_printed_and_in_the_json(capsys):
    _, out, _ = run(capsys, f"{NGRAM} --acceptance 0.7 --gamma 4 --explain")
    assert "expected_tokens_per_pass = E = (1 - alpha^(gamma + 1)) / (1 - alpha)" in out
    assert "source: Leviathan et al. 2023" in out
    found = json.loads(run(capsys, f"{NGRAM} --acceptance 0.7 --gamma 4 --explain --json")[1])
    assert {"speedup", "verify_ratio"} <= {step["quantity"] for step in found["explain"]}


def test_the_chart_is_the_map(capsys, tmp_path):
    target = tmp_path / "map.svg"
    code, _, err = run(capsys, f"{NGRAM} --acceptance 0.7 --gamma 4 --svg {target}")
    assert (code, err) == (0, f"chart: {target}\n")
    assert "speed-up" in target.read_text(encoding="utf-8")
    report = kvcalc.speculate(
        kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), acceptance=0.7, method="ngram", gammas=[4], contexts=[512]
    )
    values = chart_spec(report)["layer"][0]["data"]["values"]
    assert [row["speedup"] for row in values] == [cell.speedup for cell in report.map if cell.fits]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--acceptance 1.2", "acceptance must be from 0 to 1, not 1.2"),
        ("--acceptance 0.7 --gamma 0", "gamma must be from 1"),
        ("--acceptance 0.7 --gamma 1000", "gamma must be from 1 to 256, not 1000"),
        ("--acceptance 100:90,95", "accepted 90, 95 of 100 drafts cannot be"),
        ("--acceptance 0.7 --method magic", "unknown speculative method 'magic'"),
        ("--acceptance 0.7 --method medusa --draft llama3.2-1b", "medusa takes no draft model"),
        ("--acceptance 0.7 --method draft-model --draft llama2-7b", "vocabularies differ"),
        ("--acceptance 0.7 --method draft-model --draft llama3.2-1b --draft-tp 2", "on 2 tensor-parallel ranks of 1"),
        ("--acceptance 0.7 --tree 0", "tree must be from 1"),
        ("--acceptance 0.7 --tree 2, --method eagle", "tree: '' is not a count"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line_and_a_hint(capsys, arguments, words):
    code, out, err = run(capsys, f"{NGRAM} {arguments}")
    assert (code, out) == (2, "")
    first, *rest = err.splitlines()
    assert first.startswith("error: ")
    assert words in first
    assert all(line.startswith("hint: ") for line in rest)


def test_a_best_length_at_the_end_of_the_search_says_so(capsys):
    assert "longest tried" in run(capsys, f"{NGRAM} --acceptance 0.8")[1]
    assert "the longest tried" not in run(capsys, f"{NGRAM} --acceptance 0.1 --batch 64")[1]


def test_the_help_names_every_method():
    assert METHOD_NAMES.replace(" or ", ", ").split(", ") == list(METHODS)


def test_a_map_without_gain_has_no_shade():
    shown = heat_map({("0.1", "1"): 0.9, ("0.2", "1"): 1.0}, across="acceptance", down="batch", middle=1.0)
    assert shown.splitlines()[1].split() == ["1", "0.90", "1.00"]


def test_the_verdict_of_an_estimate_is_the_first_line(capsys):
    code, out, err = run(capsys, f"{CONTRACT} --estimate")
    assert (code, err) == (0, "")
    assert re.match(
        r"PAYS: llama3.1-70b decodes 1\.\d\d times as fast with speculation \(80%: 1\.\d\d to \d\.\d\d; batch 8", out
    )
    assert "calibration vllm-hopper" in out
    code, out, _ = run(capsys, f"{CONTRACT} --estimate --json")
    found = json.loads(out)
    assert found["verdict"] == "pays"
    assert found["estimate_low_speedup"] > 1
    assert found["rows"][0]["estimate_speedup"] == found["estimate_speedup"] < found["speedup"]


def test_a_gain_that_may_be_none_may_pay(capsys):
    asked = "speculate --model llama3.1-8b --gpu h100-sxm --method eagle --gamma 3 --acceptance 0.35 --context 512 --estimate"
    code, out, _ = run(capsys, asked)
    assert code == 0
    assert out.startswith("MAY PAY: llama3.1-8b decodes 1.")
    code, out, _ = run(capsys, f"{asked} --explain")
    assert "estimate_host_s" in out
