"""``kvcalc calibrate``: what it writes is taken by other commands, and what is no measurement is one line and exit code 2."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvcalc.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "measured-gpt-oss-120b.csv"
SERVED = Path(__file__).parents[1] / "measurements" / "benchmarks"


def run(capsys, *words):
    with pytest.raises(SystemExit) as done:
        main([*map(str, words)])
    out = capsys.readouterr()
    return done.value.code, out.out, out.err


def test_the_calibration_that_is_written_estimates_what_was_measured(capsys, tmp_path):
    mine = tmp_path / "mine.yaml"
    code, out, _ = run(capsys, "calibrate", EXAMPLE, "--name", "mine", "--write-calibration", mine, "--json")
    told = json.loads(out)
    assert code == 0
    assert told["schema"] == "kvcalc.calibrate/1"
    assert told["after"] < 0.05 < told["before"]
    assert 0 < len(told["terms"]) <= len(told["points"])
    assert told["assumed"]
    deployed = ("--model", "gpt-oss-120b", "--gpu", "h200", "--tp", "2", "--engine", "vllm", "--json")
    for words in (("decode", "--batch", "4", "--context", "1536"), ("prefill", "--batch", "1", "--prompt", "1024"),
                  ("simulate", "--rate", "2", "--requests", "4", "--prompt", "512", "--output-tokens", "8",
                   "--step-times", "estimate")):  # fmt: skip
        code, out, err = run(capsys, *words, *deployed, "--calibration", mine)
        assert code == 0, err
        assert "mine" in out


def test_options_come_before_what_files_say(capsys):
    code, out, _ = run(capsys, "calibrate", SERVED / "vllm_serve_c8.json", SERVED / "vllm_serve_c1.json",
                       "--gpu", "h200", "--tp", "2", "--weights", "fp8", "--json")  # fmt: skip
    told = json.loads(out)["deployment"]
    assert code == 0
    assert (told["gpu"], told["tensor_parallel"], told["weights"]) == ("h200", 2, "fp8")


def test_a_file_that_names_no_card_asks_for_it(capsys):
    code, _, err = run(capsys, "calibrate", SERVED / "aiperf.json")
    assert code == 2
    assert err == "error: the file does not name the GPU\nhint: give --gpu\n"


def test_lengths_that_a_file_does_not_say_are_asked_for(capsys):
    file = SERVED / "inferencemax_agg.json"
    code, _, err = run(capsys, "calibrate", file)
    assert code == 2
    assert "--prompt" in err
    assert run(capsys, "calibrate", file, "--prompt", "256", "--output-tokens", "32")[0] == 0


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00bad", b"not,a,table\n1,2,3\n", b'{"model_id": "m"', b"\x00" * 1000]
)
def test_what_is_no_measurement_is_one_line(capsys, tmp_path, content):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    code, out, err = run(capsys, "calibrate", path)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize(("words", "said"), [
    (("nowhere.json",), "cannot be read"),
    ((EXAMPLE, EXAMPLE), "given twice"),
    ((EXAMPLE, "--name", "My Name"), "none for a calibration"),
    ((EXAMPLE, "--calibration", "nosuch"), "nosuch"),
    ((EXAMPLE, "--model", "nosuch-model"), "nosuch-model"),
    ((EXAMPLE, "--write-calibration", "/nowhere/at/all.yaml"), "nowhere"),
])  # fmt: skip
def test_options_that_lead_nowhere_are_told(capsys, words, said):
    code, _, err = run(capsys, "calibrate", *words)
    assert code == 2
    assert said in err
    assert "Traceback" not in err
