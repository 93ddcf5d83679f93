"""Charts: what they show is what the report says, in a file of each kind that needs no network."""

import re

import pytest

import kvcalc
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError
from kvcalc.render.charts import Axis, chart_spec, heat_map


def _values(spec):
    return [row for layer in spec["layer"] for row in layer["data"]["values"]]


def test_the_roofline_bends_at_the_ridge_and_holds_every_pass():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    report = kvcalc.roofline("h100-sxm", [deployment], batches=[1, 64], contexts=[8192])
    ceilings, passes, labels = chart_spec(report)["layer"]
    bends = {row["format"]: row for row in ceilings["data"]["values"][1::3]}
    assert bends["bf16, fp16"]["intensity_flop_per_byte"] == report.ridge_flop_per_byte["bf16"]
    assert bends["bf16, fp16"]["attainable_flop_per_s"] == pytest.approx(989.4e12)
    shown = [(row["intensity_flop_per_byte"], row["attainable_flop_per_s"]) for row in passes["data"]["values"]]
    assert shown == [(point.intensity_flop_per_byte, point.attainable_flop_per_s) for point in report.points]
    decoded = [row["batch"] for row in labels["data"]["values"] if row["pass"].endswith("decode")]
    assert decoded == [1, 64]


@pytest.mark.parametrize(
    ("batches", "contexts", "across"), [([1, 2, 4], [512, 1024], "batch"), ([1], [512, 1024], "context")]
)
def test_the_longer_list_goes_across(batches, contexts, across):
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    report = kvcalc.decode(deployment, batches=batches, contexts=contexts)
    spec = chart_spec(report)
    assert spec["layer"][0]["encoding"]["x"]["field"] == across
    assert [row["tokens_per_s"] for row in _values(spec)] == [row.tokens_per_s for row in report.rows]


def test_a_prefill_shows_the_time_to_first_token():
    report = kvcalc.prefill(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), prompts=[512, 1024])
    assert [row["ideal_s"] for row in _values(chart_spec(report))] == [row.ideal_s for row in report.rows]


def test_a_report_without_a_chart_is_refused():
    with pytest.raises(InputError, match=r"kvcalc\.size has no chart"):
        chart_spec(kvcalc.size(kvcalc.deployment("llama3.1-8b")))


def test_files_of_each_kind(tmp_path, capsys):
    files = {kind: tmp_path / f"chart.{kind}" for kind in ("svg", "png", "html")}
    asked = [part for kind, path in files.items() for part in (f"--{kind}", str(path))]
    with pytest.raises(SystemExit) as done:
        main(["decode", "--model", "llama3.1-8b", "--gpu", "h100-sxm", "--batch", "1,8", "--json", *asked])
    printed = capsys.readouterr()
    assert done.value.code == 0
    assert printed.out.startswith("{")
    assert all(f"chart: {path}" in printed.err for path in files.values())
    assert files["svg"].read_text().startswith("<svg")
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    page = files["html"].read_text()
    assert not re.findall(r"<(?:script|link)[^>]+(?:src|href)=", page)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in files.values())


@pytest.mark.parametrize(
    ("values", "domain"), [((0.1, 0.5), [0, 1, 2]), ((0.5, 15.0), [0, 1, 15.0]), ((3.0,), [0, 1, 3.0])]
)
def test_the_colour_of_a_heat_map_turns_at_its_middle_and_its_numbers_stay_readable(values, domain):
    x, y, value = (Axis(field=name, title=name, scale="names") for name in "xyv")
    rows = [{"x": "1", "y": "1", "v": value} for value in values]
    cells, numbers, *_ = heat_map(rows, x=x, y=y, value=value, middle=1.0)["layer"]
    assert cells["encoding"]["color"]["scale"]["domain"] == domain
    assert numbers["encoding"]["color"]["condition"]["value"] == "white"
    assert f"> {1 + 0.6 * (domain[-1] - 1)} || datum.v < 0.4" in numbers["encoding"]["color"]["condition"]["test"]


def test_memory_is_drawn_against_what_the_gpu_has():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    report = kvcalc.decode(deployment, batches=[1, 64], contexts=[1024, 131072])
    lines, limit = chart_spec(report, view="memory")["layer"]
    assert [row["bytes"] for row in lines["data"]["values"]] == [row.memory_needed_bytes for row in report.rows]
    assert limit["data"]["values"] == [{"bytes": report.memory_bytes}]
    # what is far above the memory is cut off, so that the crossing is seen
    assert max(row.memory_needed_bytes for row in report.rows) > 2 * report.memory_bytes
    assert lines["encoding"]["y"]["scale"]["domainMax"] == 2 * report.memory_bytes
    assert lines["mark"]["clip"]
    assert lines["mark"]["point"]["clip"]


def test_no_tick_stands_between_two_things_that_are_counted():
    assert Axis(field="n", title="tokens", whole=True).encoding()["axis"]["tickMinStep"] == 1
    assert "tickMinStep" not in Axis(field="n", title="s").encoding()["axis"]


def test_intensity_tends_to_its_plateau():
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")
    report = kvcalc.roofline("h100-sxm", [deployment], batches=[1, 8, 64], contexts=[8192])
    line, plateau = chart_spec(report, view="intensity")["layer"]
    shown = [row["intensity"] for row in line["data"]["values"]]
    assert shown == [point.intensity_flop_per_byte for point in report.points if point.phase == "decode"]
    [limit] = plateau["data"]["values"]
    assert limit["intensity"] == report.plateaus[0].plateau_flop_per_byte > max(shown)


def test_the_parts_of_a_budget_make_up_what_an_engine_may_use():
    report = kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h100-sxm"), batch=8, context=8192)
    bars, limit = chart_spec(report)["layer"]
    parts = {row["part"]: row["bytes"] for row in bars["data"]["values"]}
    assert parts["cache"] == report.reserved_kv_bytes
    assert sum(parts.values()) == pytest.approx(report.budget.memory_bytes * report.budget.utilization, rel=0.01)
    assert limit["data"]["values"] == [{"bytes": report.budget.memory_bytes}]


def test_a_fit_without_a_budget_has_no_chart():
    report = kvcalc.fit(kvcalc.deployment("llama3.1-8b"), kv_memory_bytes=2**34)
    with pytest.raises(InputError, match="nothing to draw"):
        chart_spec(report)


def test_the_break_even_line_runs_between_cells_that_pay_and_cells_that_do_not():
    value = Axis(field="value", title="value")
    x, y = (Axis(field=name, title=name, scale="names") for name in ("x", "y"))
    rows = [{"x": column, "y": line, "value": 2.0 if (column, line) in {("b", "1"), ("c", "1"), ("c", "2")} else 0.5}
            for line in ("1", "2") for column in ("a", "b", "c")]  # fmt: skip
    _, _, upright, level = heat_map(rows, x=x, y=y, value=value, middle=1.0)["layer"]
    assert upright["data"]["values"] == [{"x": "b", "y": "1"}, {"x": "c", "y": "2"}]
    assert level["data"]["values"] == [{"x": "b", "y": "2"}]
