"""Reports in Python: they print as their table, and hand their figures on as data, frames and charts."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from typing import Any

import pytest

import kvcalc
from kvcalc.core.reports.common import Report
from kvcalc.render.python import Chart
from kvcalc.render.tables import table_text

SIZE = kvcalc.size("llama2-70b")
DECODE = kvcalc.decode(kvcalc.deployment("llama2-7b", gpu="h200"), batch=[1, 8])


def test_a_report_prints_as_its_table_and_shows_as_its_answer() -> None:
    assert str(SIZE) == table_text(SIZE).rstrip("\n")
    assert repr(SIZE) == (
        "<SizeReport: llama2-70b needs 1.25 GiB of KV cache for one sequence of 4,096 tokens, and 128.48 GiB of weights.>"
    )
    assert "\n" not in repr(DECODE)


def test_a_notebook_shows_a_report_as_tables() -> None:
    shown = DECODE._repr_html_()
    assert shown.startswith("<p><b>llama2-7b on h200 decodes at most")
    assert shown.count("<table>") == str(DECODE).count("per step, by part") + 1
    assert "<script" not in shown


def test_data_is_that_of_json() -> None:
    assert json.loads(SIZE.to_json()) == SIZE.to_dict()
    assert SIZE.to_dict()["kv"]["bytes_per_token"] == SIZE.kv.bytes_per_token


class _Frames(types.ModuleType):
    def DataFrame(self, rows: list[dict[str, Any]]) -> tuple[str, list[dict[str, Any]]]:  # noqa: N802  as pandas names it
        return self.__name__, rows


def _installed(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    real = importlib.util.find_spec
    known = {name: importlib.util.spec_from_loader(name, None) for name in names}
    monkeypatch.setattr(
        "kvcalc.render.python.find_spec", lambda name: known.get(name) if name in ("pandas", "polars") else real(name)
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, _Frames(name))


@pytest.mark.parametrize(("installed", "asked", "used"), [
    (("pandas",), None, "pandas"), (("polars",), None, "polars"), (("pandas", "polars"), None, "pandas"),
    (("pandas", "polars"), "polars", "polars"),
])  # fmt: skip
def test_rows_become_a_frame_of_what_is_installed(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], asked: str | None, used: str
) -> None:
    _installed(monkeypatch, *installed)
    library, rows = DECODE.to_frame(asked)
    assert library == used
    assert [row["tokens_per_s"] for row in rows] == [row.tokens_per_s for row in DECODE.rows]


@pytest.mark.parametrize(
    ("asked", "says"), [(None, "needs pandas or polars"), ("polars", "needs polars"), ("arrow", "not 'arrow'")]
)
def test_a_frame_without_a_library_is_one_clear_error(
    monkeypatch: pytest.MonkeyPatch, asked: str | None, says: str
) -> None:
    _installed(monkeypatch)
    with pytest.raises(kvcalc.InputError, match=says):
        DECODE.to_frame(asked)


def test_a_chart_is_a_specification_that_notebooks_draw() -> None:
    chart = DECODE.chart()
    assert isinstance(chart, Chart)
    assert chart["$schema"].endswith("vega-lite/v5.json") or "vega-lite" in chart["$schema"]
    assert next(iter(chart._repr_mimebundle_())) == "application/vnd.vegalite.v5+json"
    assert DECODE.chart("memory") != chart
    with pytest.raises(kvcalc.KvcalcError):
        SIZE.chart()


def test_every_report_prints_itself() -> None:
    for name in kvcalc.__all__:
        if name.endswith("Report"):
            assert issubclass(getattr(kvcalc, name), Report)


def test_counts_are_given_by_one_habit() -> None:
    card = kvcalc.deployment("llama3.1-8b", gpu="h200")
    rows = kvcalc.decode(card, batches=[1, 8], contexts=[8000]).rows
    assert kvcalc.decode(card, batch=[1, 8], context=8000).rows == rows
    assert kvcalc.decode(card, batch="1,8", context="8k").rows == rows
    assert kvcalc.decode(card, batch=8, context="8k").rows == rows[1:]
    assert kvcalc.decode(card, batch=range(1, 9, 7), context=["8k"]).rows == rows
    assert kvcalc.size(card, batch="8", context="8k") == kvcalc.size(card, batch=8, context=8000)
    assert kvcalc.prefill(card, prompt="1k").rows == kvcalc.prefill(card, prompts=[1000]).rows
    assert kvcalc.fit(card, context="8k").max_batch == kvcalc.fit(card, context=8000).max_batch


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda: kvcalc.size(3), "a deployment or a model is needed, not int 3"),
        (lambda: kvcalc.size("llama2-7b", batch=[1, 2]), "batch takes one number here"),
        (lambda: kvcalc.size("llama2-7b", context={}), "context"),
        (lambda: kvcalc.decode(kvcalc.deployment("llama2-7b", gpu="h200"), batch=[]), "one number at least"),
        (lambda: kvcalc.decode(kvcalc.deployment("llama2-7b", gpu="h200"), batch=1.5), "not a whole number"),
        (lambda: kvcalc.decode("llama2-7b"), "accelerator"),
        (lambda: kvcalc.deployment("llama2-7b", gpu="h200", gpus="two"), "gpus takes a whole number"),
        (lambda: kvcalc.deployment("llama2-7b", kv_dtype=8), "kv-dtype takes one text, not 8"),
    ],
)
def test_a_wrong_kind_is_our_error(ask: Any, says: str) -> None:
    with pytest.raises(kvcalc.KvcalcError, match=says):
        ask()


def test_a_hint_is_part_of_the_message() -> None:
    with pytest.raises(kvcalc.UnknownNameError) as caught:
        kvcalc.load_model("lama2-70b")
    assert str(caught.value).endswith("\nhint: " + caught.value.hint)
    assert caught.value.hint


def test_a_deployment_shows_in_a_line() -> None:
    deployment = kvcalc.deployment("llama3.1-8b", gpu="h200", gpus=2)
    assert repr(deployment) == "<Deployment: llama3.1-8b on 2 x h200; weights bf16>"
    assert isinstance(deployment, kvcalc.Deployment)
