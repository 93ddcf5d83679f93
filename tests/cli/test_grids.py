"""Grids are counted before they are made: too large a one is refused at once, with what to do instead."""

import pytest

from kvcalc.cli import main
from kvcalc.core.errors import InputError, ProfileError
from kvcalc.core.ranges import check_combinations
from kvcalc.profiles.checks import read_checks

MANY = "1-20000"
ON = ("--model", "llama3.1-8b", "--gpu", "h200")


def _refused(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 2)
    return err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("decode", *ON, "--batch", MANY, "--context", MANY), "rows of batch and context, more than 10,000"),
        (("prefill", *ON, "--batch", MANY, "--prompt", MANY), "rows of batch and prompt, more than 10,000"),
        (("roofline", *ON, "--batch", MANY, "--context", MANY), "points of model, batch and context, more than"),
        (("speculate", *ON, "--method", "ngram", "--acceptance", "0.5", "--batch", MANY, "--context", MANY),
         "rows of batch, context and gamma, more than 10,000"),
        (("crosscheck", "--model", "llama3.2-1b", "--batch", MANY, "--context", MANY), "steps of model, batch"),
        (("compare", "llama3.1-8b@h200", "--batch", MANY, "--context", MANY), "sides, more than 100"),
        (("sweep", *ON, "--batch", MANY, "--context", MANY), "a grid of 400,000,000 points"),
        (("sweep", *ON, "--batch", "1-120001"), "120,001 rows, more than the 120,000 kept in memory"),
    ],
)  # fmt: skip
def test_a_grid_without_end_is_refused_at_once(capsys, words, told):
    assert told in _refused(capsys, *words)


def test_a_matrix_of_checks_is_counted_before_it_is_spelled_out(capsys, tmp_path):
    file = tmp_path / "checks.yaml"
    matrix = f"batch: {MANY}, context: {MANY}, gpus: {MANY}"
    file.write_text(f"checks:\n- {{model: llama3.1-8b, gpu: h200, matrix: {{{matrix}}}, expect: {{fits: true}}}}\n")
    err = _refused(capsys, "check", str(file))
    assert err.startswith(f"error: {file}:2: 8,000,000,000,000 checks, where a file may have 10,000 in all")


@pytest.mark.parametrize(("first", "second", "fits"), [(9999, 1, True), (10_000, 1, False), (9999, 2, False)])
def test_a_file_has_ten_thousand_checks_and_not_one_more(tmp_path, first, second, fits):
    file = tmp_path / "checks.yaml"
    file.write_text("checks:\n" + "".join(
        f"- {{model: llama3.1-8b, gpu: h200, matrix: {{batch: 1-{count}}}, expect: {{fits: true}}}}\n" for count in (first, second)
    ))  # fmt: skip
    if fits:
        assert len(read_checks(file)) == first + second
    else:
        with pytest.raises(ProfileError, match="where a file may have 10,000 in all"):
            read_checks(file)


def test_as_many_combinations_as_allowed_are_allowed():
    check_combinations("rows", range(100), range(100))
    with pytest.raises(InputError, match=r"10,001 rows, more than 10,000"):
        check_combinations("rows", range(10_001))


@pytest.mark.parametrize("seeds", ["1.5,1.9", "1,1.0", "1e3", "nan"])
def test_seeds_are_whole_numbers(capsys, seeds):
    words = (
        "sweep",
        "--report",
        "simulate",
        *ON,
        "--prompt",
        "9",
        "--output-tokens",
        "9",
        "--rate",
        "1",
        "--seed",
        seeds,
    )
    assert f"seed: {seeds!r} is not a list of whole numbers" in _refused(capsys, *words)


def test_what_is_listed_twice_in_two_spellings_is_run_once(capsys):
    words = ("sweep", "--report", "simulate", *ON, "--prompt", "9", "--output-tokens", "9", "--requests", "2",
             "--rate", "1,1.0,2", "--seed", "1,01,-3", "--output", "csv")  # fmt: skip
    with pytest.raises(SystemExit) as ended:
        main.main(words)
    assert not ended.value.code
    assert len(capsys.readouterr().out.splitlines()) == 1 + 2 * 2
