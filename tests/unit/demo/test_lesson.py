"""Demonstrations in a terminal: steps, plain text, animation, and their charts."""

import os
import select
import signal
import sys
import time

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.demo.lesson import animate, lesson_text, step_texts
from kvcalc.render.charts import chart_spec
from kvcalc.render.terminal import line_chart

REPORTS = {
    "kv-cache": lambda: kvcalc.demo_kv_cache(output_tokens=4),
    "speculate": lambda: kvcalc.demo_speculate(output_tokens=6),
    "paging": lambda: kvcalc.demo_paging(memory_tokens=8192),
    "drift": lambda: kvcalc.demo_drift(steps=12, trainings=1),
}
every_demo = pytest.mark.parametrize("name", REPORTS)


@every_demo
def test_plain_text_is_ascii_with_the_chart_in_letters(name):
    report = REPORTS[name]()
    text = lesson_text(report, steps=True, plain=True)
    assert text.isascii()
    assert "\x1b" not in text
    assert "  A  " in text
    assert all(line in text for step in step_texts(report, plain=True) for line in step.splitlines())


@every_demo
def test_steps_are_told_one_by_one_and_only_on_demand(name):
    report = REPORTS[name]()
    assert len(step_texts(report)) == len(report.steps)
    assert step_texts(report)[0] not in lesson_text(report)


@every_demo
def test_every_demonstration_has_a_chart(name):
    spec = chart_spec(REPORTS[name]())
    values = spec["layer"][0]["data"]["values"]
    assert len(values) >= 4
    assert spec["title"]["subtitle"][-1].startswith("source: kvcalc")


def test_the_kv_cache_chart_shows_the_projections_of_each_pass():
    report = REPORTS["kv-cache"]()
    rows = chart_spec(report)["layer"][0]["data"]["values"]
    assert [row["projections"] for row in rows if row["run"] == "without"] == [3, 4, 5, 6]
    assert [row["projections"] for row in rows if row["run"] != "without"] == [3, 1, 1, 1]


def test_charts_of_traffic_and_levers_show_what_the_reports_say():
    deployment = kvcalc.deployment("llama2-7b")
    traffic = kvcalc.traffic(deployment, output_tokens=64)
    rows = chart_spec(traffic)["layer"][0]["data"]["values"]
    assert [row["bytes"] for row in rows if row["read"] == "cache"] == [row.kv_read_bytes for row in traffic.rows]
    levers = kvcalc.levers(deployment, with_levers="gqa,fp8")
    rows = chart_spec(levers)["layer"][0]["data"]["values"]
    assert [row["bytes"] for row in rows if row["what"] == "held"] == [row.kv_total_bytes for row in levers.rows]


def test_without_a_terminal_frames_are_printed_at_once(capsys, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("it waits"))
    animate(["one", "two"] * 50)
    assert capsys.readouterr().out == "one\ntwo\n" * 50


# Each frame stays until somebody ends it.
_WATCHED = """
from kvcalc.cli.main import main
from kvcalc.demo import lesson
lesson._FRAME_S, lesson._WHOLE_S = 3600, 1e9
main(["demo", "kv-cache", "--watch"])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a pseudo-terminal")
def test_an_interrupted_animation_ends_cleanly():
    import pty

    child, terminal = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.execv(sys.executable, [sys.executable, "-c", _WATCHED])  # noqa: S606
    shown, interrupted, until = b"", False, time.monotonic() + 120
    while time.monotonic() < until:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            more = os.read(terminal, 65536)
        except OSError:
            break
        if not more:
            break
        shown += more
        if b"step 1" in shown and not interrupted:
            os.kill(child, signal.SIGINT)
            interrupted = True
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"Traceback" not in shown
    hidden, visible = shown.rfind(b"\x1b[?25l"), shown.rfind(b"\x1b[?25h")
    assert -1 < hidden < visible


def test_watching_without_colour_prints_the_steps(capsys):
    with pytest.raises(SystemExit) as done:
        main(["demo", "kv-cache", "--output-tokens", "2", "--watch", "--plain"])
    assert not done.value.code
    assert "step 2, decode" in capsys.readouterr().out


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("log", [False, True])
def test_a_line_of_one_point_or_of_one_height_is_drawn(plain, log):
    one = line_chart({"one": [(1, 5)]}, x="x", y="y", log=log, plain=plain)
    flat = line_chart({"flat": [(1, 5), (1000, 5)]}, x="x", y="y", log=log, plain=plain)
    assert "A" in one
    assert "flat" in flat


def test_the_ends_of_an_axis_hold_all_points():
    shown = line_chart({"low": [(0, -3)], "high": [(10, 7)]}, x="x", y="y", plain=True)
    assert "A" in shown.partition("\n  A")[0]
    assert "B" in shown.partition("\n  A")[0]


def test_a_loss_that_does_not_help_is_not_said_to():
    worse, better = (kvcalc.demo_drift(trainings=1, seed=seed) for seed in (1, 0))
    assert worse.reduction < 1 < better.reduction
    told = lesson_text(worse, steps=False, plain=True)
    assert "1.2 times farther off after 100 steps: 0.111 instead of 0.092. One training" in told
    assert "does not help in every training" in told
    assert "times nearer" in lesson_text(better, steps=False, plain=True)


def test_one_token_is_made_without_a_saving():
    told = lesson_text(kvcalc.demo_kv_cache(output_tokens=1), steps=True, plain=True)
    assert "1 new, batch 1" in told
    assert "of that" not in told
    assert "attention outputs differ by 0\n" in told
    assert "1/11.4 of that" in lesson_text(kvcalc.demo_kv_cache(), steps=False, plain=True)


@pytest.mark.parametrize("tokens", range(1, 25))
def test_drafts_are_drawn_at_every_length(tokens):
    report = kvcalc.demo_speculate(output_tokens=tokens)
    for plain in (True, False):
        assert "draft poor" in lesson_text(report, steps=False, plain=plain)
