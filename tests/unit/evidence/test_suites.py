"""The report: counts that add up, figures that can be checked by hand, exit codes."""

import json

import pytest

from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError
from kvcalc.core.reports.validate import Outcome
from kvcalc.evidence.suites import SUITES, figures

ROW = "- {{id: {name}, phase: decode, value: {value}, unit: tok/s, hardware: {gpu}, model: llama2-7b, engine: llama.cpp, weight_format: q4_0, batch: 1}}\n"


def outcome(name, **told):
    shared = {"suite": "decode", "source": "s", "first_hand": True, "quantity": "decode", "unit": "s"}
    return Outcome(id=name, **shared, **told)


def test_figures_by_hand():
    found = figures(
        [
            outcome("a", status="holds", measured=2.0, bound=1.0, estimate=2.2, estimate_least=1.0, estimate_most=3.0),
            outcome("b", status="holds", measured=4.0, bound=1.0, estimate=3.0, estimate_least=2.9, estimate_most=3.1),
            outcome("c", status="holds", measured=4.0, bound=1.0, estimate=4.0, fitted=True),
            outcome("d", status="violates", measured=1.0, bound=2.0),
            outcome("e", status="explained", measured=1.0, bound=2.0),
            outcome("f", status="no profile"),
            outcome("g", status="excluded"),
        ]
    )
    counts = (found.records, found.held, found.scored, found.fitted, found.without_calibration)
    assert counts == (7, 5, 2, 1, 2)
    assert (found.without_profile, found.excluded, found.explained, found.bound_violations) == (1, 1, 1, 1)
    assert (found.median_share, found.least_share, found.most_share) == (0.5, 0.25, 2.0)
    assert found.median_error == pytest.approx((0.1 - 0.25) / 2)
    assert found.median_abs_error == pytest.approx((0.1 + 0.25) / 2)
    assert found.interval_coverage == 0.5


@pytest.fixture(scope="module")
def shipped():
    return api.validate()


def test_every_record_is_counted_once(shipped):
    report = shipped
    assert set(report.suites) == set(SUITES)
    for found in (report.summary, *report.suites.values()):
        assert found.records == found.held + found.without_profile + found.excluded
        assert found.held == found.scored + found.fitted + found.without_calibration
    assert report.summary.records == len(report.outcomes) == sum(f.figures.records for f in report.sources)


def test_no_shipped_record_beats_its_bound(shipped):
    report = shipped
    assert [found.id for found in report.outcomes if found.status == "violates"] == []
    assert report.holds
    assert report.summary.held > 1000
    assert all(found.reason for found in report.outcomes if found.status in ("explained", "no profile", "excluded"))


def test_exact_numbers_are_equal(shipped):
    report = shipped
    assert report.suites["bytes"].interval_coverage == 1
    assert report.suites["logs"].interval_coverage == 1
    assert report.suites["bytes"].median_abs_error == 0
    assert report.suites["bytes"].records > 600


def test_an_unknown_suite_is_refused():
    with pytest.raises(InputError, match="unknown suite 'decod'") as caught:
        api.validate(suites=["decod"])
    assert "decode" in caught.value.hint


def run(*arguments):
    with pytest.raises(SystemExit) as done:
        main(["validate", *map(str, arguments)])
    return done.value.code


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "mine.yaml"
    rows = [("good", 100, "RTX 4090"), ("unknown", 100, "an abacus")]
    path.write_text("".join(ROW.format(name=name, value=value, gpu=gpu) for name, value, gpu in rows))
    return path


def test_own_records(records, capsys):
    assert run("--records", records, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["summary"]["records"] == 2
    assert printed["summary"]["bound_violations"] == 0
    assert printed["suites"]["decode"] | {"records": 2, "held": 1, "without_profile": 1} == printed["suites"]["decode"]
    assert {"scored", "median_abs_error", "interval_coverage"} <= set(printed["suites"]["decode"])


def test_ids_that_stand_twice_are_told(records, capsys):
    records.write_text(records.read_text() * 2)
    assert run("--records", records) == 0
    assert "2 records have the id of another" in capsys.readouterr().out


def test_a_record_that_is_too_fast_fails_the_run(records, capsys):
    records.write_text(records.read_text() + ROW.format(name="lie", value=900, gpu="RTX 4090"))
    assert run("--records", records) == 1
    shown = capsys.readouterr().out
    assert "BOUND BEATEN, UNEXPLAINED" in shown
    assert "lie" in shown


@pytest.mark.parametrize("output", ["table", "json", "jsonl", "csv", "md"])
def test_every_output(records, output, capsys):
    assert run("--records", records, "--output", output) == 0
    assert "good" in capsys.readouterr().out or output == "table"


def test_the_chart(records, tmp_path):
    assert run("--records", records, "--svg", tmp_path / "chart.svg") == 0
    assert "<svg" in (tmp_path / "chart.svg").read_text()


def test_a_chart_of_nothing_is_refused(records, tmp_path, capsys):
    records.write_text(ROW.format(name="unknown", value=100, gpu="an abacus"))
    assert run("--records", records, "--svg", tmp_path / "chart.svg") == 2
    assert "nothing to draw" in capsys.readouterr().err
