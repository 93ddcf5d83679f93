"""The script that measures a machine: what is kept when it is stopped, and what a part that fails does to the others."""

import importlib.util
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvcalc import api

SCRIPT = Path(__file__).parents[2] / "tools" / "measure_machine.py"


@pytest.fixture
def script(monkeypatch, tmp_path):
    """The script with a bench and crosschecks that measure nothing; it writes to a folder ``out``."""
    spec = importlib.util.spec_from_file_location("measure_machine", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "measure_machine", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["measure_machine", str(tmp_path), "--plan", "cuda"])
    monkeypatch.setattr(module, "render", lambda report, _: json.dumps(report.name))
    bench = SimpleNamespace(name="bench", hardware=None, calibration=None, interrupted=False)
    monkeypatch.setattr(api, "bench", lambda **_: bench)
    return module


def report(name, *, interrupted=False):
    return SimpleNamespace(
        name=name,
        rows=(),
        checks=(),
        notes=(),
        median_abs_error={},
        p90_abs_error={},
        passed=True,
        interrupted=interrupted,
    )


def crosschecks(monkeypatch, outcomes):
    """Let crosschecks end as given, one after another; the rest end well."""
    left = iter(outcomes)

    def crosscheck(models, **_):
        outcome = next(left, None) or report(models[0])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    monkeypatch.setattr(api, "crosscheck", crosscheck)


def written(folder):
    return sorted(path.stem for path in folder.glob("*.json"))


def test_a_part_that_fails_leaves_the_others_their_time(script, monkeypatch, tmp_path, capsys):
    crosschecks(monkeypatch, [RuntimeError("no such kernel")])
    assert script.main() == 1
    assert "no such kernel" in capsys.readouterr().err
    assert written(tmp_path) == sorted(["bench", *(part.name for part in script.PLANS["cuda"][1:])])


def test_what_a_stopped_part_had_measured_is_written_and_nothing_is_begun_after_it(script, monkeypatch, tmp_path):
    crosschecks(monkeypatch, [None, report("second", interrupted=True)])
    assert script.main() == script.STOPPED
    assert written(tmp_path) == sorted(["bench", *(part.name for part in script.PLANS["cuda"][:2])])


def test_a_part_that_is_stopped_at_its_beginning_ends_the_run(script, monkeypatch, tmp_path):
    crosschecks(monkeypatch, [KeyboardInterrupt()])
    assert script.main() == script.STOPPED
    assert written(tmp_path) == ["bench"]
