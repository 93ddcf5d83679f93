"""Sweeps: the same rows as the reports themselves, from one process, several, or a cluster; stopped and resumed."""

import csv
import json

import pytest

import kvcalc
from kvcalc.api import Sweep, sweep
from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.render.records import records

DECODE = Sweep(
    axes={"model": ("llama3.1-8b",), "gpu": ("h100-sxm", "h200"), "context": (1024, 8192), "batch": (1, 8, 64)}
)
FIT = Sweep(
    report="fit",
    axes={"model": ("llama3.1-8b",), "gpu": ("rtx-4090", "h200"), "tensor_parallel": (1, 2, 4, 3), "batch": (1, 8)},
)


def _deployment(**options):
    return kvcalc.deployment("llama3.1-8b", **options)


@pytest.mark.parametrize("gpu", [0, 1])
def test_rows_are_those_of_the_report(gpu):
    rows = sweep(DECODE).rows[gpu * 6 : gpu * 6 + 6]
    wanted = records(
        kvcalc.decode(_deployment(gpu=("h100-sxm", "h200")[gpu]), batches=(1, 8, 64), contexts=(1024, 8192))
    )
    for row, want in zip(rows, wanted, strict=True):
        for name, value in want.items():
            if name not in ("gpus", "experts") and (name in row or value is not None):
                assert row[name] == (pytest.approx(value, rel=1e-12) if isinstance(value, float) else value), name


def test_prefill_size_and_fit_are_swept_too():
    axes = {"model": ("llama3.1-8b",), "gpu": ("h200",), "batch": (1, 8)}
    prefill = sweep(Sweep(report="prefill", axes=axes | {"prompt": (512, 1024)}))
    assert [(row["prompt"], row["batch"]) for row in prefill.rows] == [(512, 1), (512, 8), (1024, 1), (1024, 8)]
    size = sweep(Sweep(report="size", axes=axes | {"context": (100,)}))
    assert [row["kv.total_bytes"] for row in size.rows] == [100 * 131_072, 800 * 131_072]
    assert [row["fits"] for row in sweep(FIT).rows[:2]] == [False, False]


def test_a_point_without_an_answer_says_why_and_the_others_have_theirs():
    found = sweep(FIT)
    failed = [row for row in found.rows if row["error"]]
    assert len(found.rows) == found.points == 16
    assert {row["tensor_parallel"] for row in failed} == {3}
    assert all("not shared evenly by 3" in row["error"] for row in failed)
    assert found.notes == ("4 points have no answer; the column error says why",)


def test_formats_are_swept():
    rows = sweep(Sweep(axes={"model": ("llama3.1-8b",), "gpu": ("h200",), "kv_dtype": ("bf16", "fp8")})).rows
    assert [row["kv_read_bytes"] / rows[1]["kv_read_bytes"] for row in rows] == [2, 1]


def test_processes_give_the_same_rows_in_the_same_order():
    assert sweep(FIT, workers=2) == sweep(FIT)


@pytest.mark.parametrize(
    ("axes", "error"),
    [
        ({"model": ("llama3.1-9b",), "gpu": ("h200",)}, UnknownNameError),
        ({"model": ("llama3.1-8b",), "gpu": ("h201",)}, UnknownNameError),
        ({"model": ("llama3.1-8b",)}, InputError),
        ({"model": ("llama3.1-8b",), "gpu": ("h200",), "batch": ()}, InputError),
    ],
)
def test_a_mistake_is_told_before_anything_is_computed(axes, error):
    with pytest.raises(error):
        sweep(Sweep(axes=axes))


def test_a_report_that_cannot_be_swept_is_refused():
    with pytest.raises(InputError) as error:
        Sweep(report="decoed", axes={})
    assert error.value.hint == "did you mean decode?"


def _saved(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return [{name: value for name, value in row.items() if value} for row in csv.DictReader(file)]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
    else:
        rows = pytest.importorskip("pyarrow.parquet").read_table(path).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_sweep_that_was_stopped_goes_on_where_it_was(tmp_path, ending):
    path, whole = tmp_path / f"rows.{ending}", tmp_path / f"whole.{ending}"
    sweep(FIT, save=whole)

    class StopError(Exception):
        pass

    def stop(done, of):
        assert of == 8
        if done == 3:
            raise StopError

    with pytest.raises(StopError):
        sweep(FIT, save=path, progress=stop)
    assert not path.exists()
    with pytest.raises(InputError, match="was stopped"):
        sweep(FIT, save=path)
    with pytest.raises(InputError, match="other options"):
        sweep(DECODE, save=path, resume=True)
    told = []
    report = sweep(FIT, save=path, resume=True, progress=lambda done, of: told.append((done, of)))
    assert told == [(done, 8) for done in range(4, 9)]
    assert (report.rows, report.saved, report.points) == ((), str(path), 16)
    assert path.read_bytes() == whole.read_bytes()
    rows = [{name: value for name, value in row.items() if value is not None} for row in sweep(FIT).rows]
    if ending == "csv":
        rows = [{name: str(value) for name, value in row.items() if value != ""} for row in rows]
    assert _saved(path) == rows
    assert sorted(found.name for found in tmp_path.iterdir()) == sorted([path.name, whole.name])


def test_a_sweep_over_a_trace_that_has_changed_is_not_resumed(tmp_path):
    trace, path = tmp_path / "trace.csv", tmp_path / "rows.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,3\n"
    swept = Sweep(
        report="simulate",
        axes={"model": ("llama3.1-8b",), "gpu": ("h200",), "replicas": (1, 2)},
        options={"trace": str(trace)},
    )

    def stop(done, of):
        raise KeyboardInterrupt(done, of)

    trace.write_text(head)
    with pytest.raises(KeyboardInterrupt):
        sweep(swept, save=path, workers=1, progress=stop)
    trace.write_text(head + "1,20,4\n")
    with pytest.raises(InputError, match="other options"):
        sweep(swept, save=path, workers=1, resume=True)
    trace.write_text(head)
    sweep(swept, save=path, workers=1, resume=True)
    assert [row["summary.requests"] for row in _saved(path)] == ["1", "1"]


@pytest.mark.parametrize("name", ["rows", "rows.xlsx", "rows.csv.gz"])
def test_a_file_of_another_kind_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="rows are saved as"):
        sweep(FIT, save=tmp_path / name)


def test_resuming_nothing_is_refused():
    with pytest.raises(InputError, match="was not saved"):
        sweep(FIT, resume=True)


def test_a_cluster_gives_the_same_rows_in_the_same_order():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs="CRITICAL"
    ) as cluster:
        assert sweep(FIT, scheduler=cluster.scheduler_address) == sweep(FIT)


def test_the_front_and_the_best_within_limits_are_chosen_by_hand_alike():
    swept = Sweep(axes={"model": ("llama3.1-8b",), "gpu": ("h100-sxm", "h200"), "gpus": (1, 2), "batch": (1, 64, 4096)})
    rows = [row for row in sweep(swept).rows if row["fits"]]
    speeds = [(1 / row["ideal_s"], row["batch"] / row["ideal_s"] / row["gpus"]) for row in rows]
    unbeaten = [
        row
        for row, mine in zip(rows, speeds, strict=True)
        if not any(other != mine and other[0] >= mine[0] and other[1] >= mine[1] for other in speeds)
    ]
    found = sweep(swept, pareto=True, slo="tpot_p95=10ms")
    assert sorted(found.rows, key=rows.index) == unbeaten
    within = [row for row in rows if row["ideal_s"] <= 0.01]
    assert found.best == max(within, key=lambda row: row["batch"] / row["ideal_s"] / row["gpus"])
    assert sweep(swept, slo="tpot_p95=1us").best is None


@pytest.mark.parametrize(
    ("swept", "options", "told"),
    [
        (DECODE, {"slo": "ttft_p95=1s"}, "says nothing of ttft_p95"),
        (DECODE, {"slo": "tpot=1s"}, "not a limit"),
        (FIT, {"pareto": True}, "no two speeds"),
        (DECODE, {"pareto": True, "save": "rows.csv"}, "keeps no rows"),
    ],
)
def test_what_cannot_be_chosen_by_is_refused(swept, options, told):
    with pytest.raises(InputError, match=told):
        sweep(swept, **options)


def test_speculation_is_swept_over_drafts_rates_and_cells():
    swept = Sweep(
        report="speculate",
        axes={
            "model": ("llama3.1-70b",),
            "gpu": ("h200",),
            "gpus": (2,),
            "draft": ("llama3.1-8b", "llama3.2-1b"),
            "acceptance": (0.6, 0.8),
            "context": (1024, 4096),
            "batch": (1, 64),
        },
    )
    rows = sweep(swept).rows
    target = kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)
    alone = [
        row
        for draft in swept.axes["draft"]
        for rate in swept.axes["acceptance"]
        for row in kvcalc.speculate(target, draft, acceptance=rate, batches=(1, 64), contexts=(1024, 4096)).rows
    ]
    assert [row["speedup"] for row in rows] == [row.speedup for row in alone]
    assert [(row["context"], row["batch"]) for row in rows[:4]] == [(1024, 1), (1024, 64), (4096, 1), (4096, 64)]


@pytest.mark.parametrize(
    ("axes", "options", "tokens"),
    [
        ({"accepted_length": (2.164, 2.5)}, {}, [2.164, 2.5]),
        ({"draft_rate": (0.388, 0.5)}, {}, [2.164, 2.5]),
        ({}, {"acceptance_by_position": "0.543,0.357,0.264"}, [2.164]),
    ],
)
def test_speculation_is_swept_over_what_engines_print(axes, options, tokens):
    fixed = {"model": ("llama3.1-8b",), "gpu": ("h200",), "method": ("ngram",), "gamma": (3,)}
    rows = sweep(Sweep(report="speculate", axes=fixed | axes, options=options)).rows
    assert [row["expected_tokens_per_pass"] for row in rows] == pytest.approx(tokens)


def test_a_sweep_of_speculation_without_an_acceptance_says_so():
    swept = Sweep(report="speculate", axes={"model": ("llama3.1-8b",), "gpu": ("h200",), "method": ("ngram",)})
    assert sweep(swept).rows[0]["error"] == "a sweep of speculation needs an acceptance"
