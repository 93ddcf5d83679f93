"""Sweeps: the same rows as the reports themselves, from one process, several, or a cluster; stopped and resumed."""

import csv
import errno
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kvcalc
from kvcalc.api import Sweep, sweep
from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError
from kvcalc.questions.sweep import inputs as sweep_inputs
from kvcalc.questions.sweep.inputs import input_digests
from kvcalc.questions.sweep.tasks import Work, columns_of
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


TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,10,3\n"


def _stop(done, of):
    raise KeyboardInterrupt(done, of)


SMALL = kvcalc.api.profile_text(kvcalc.load_model("llama3.2-1b"))
CALIBRATION = Path(kvcalc.__file__).parent / "profiles" / "calibrations" / "vllm-hopper.yaml"
# Files that decide the rows of a sweep, by what they are called: what they hold at first, if anything, and then.
EDITS = {
    "model own.yaml": ("own.yaml", SMALL, SMALL.replace("repeat: 16", "repeat: 15")),
    "gpu card.yaml": ("card.yaml", *(kvcalc.api.profile_text(kvcalc.load_hardware(name)) for name in ("h200", "b200"))),
    "draft small.yaml": ("small.yaml", SMALL, SMALL.replace("width: 8192", "width: 8128")),
    "trace trace.csv": ("trace.csv", TRACE, TRACE + "1,20,4\n"),
    "model llama3.1-8b": ("model_profiles/llama3.1-8b.yaml", None, SMALL.replace("llama3.2-1b", "llama3.1-8b")),
    "calibration vllm-hopper": (
        "calibration_profiles/vllm-hopper.yaml", None, CALIBRATION.read_text().replace("step_s: 0.00", "step_s: 0.01"),
    ),
}  # fmt: skip


@pytest.fixture
def edit(tmp_path, monkeypatch):
    """Edits one of the files that a sweep stands on; the folder is searched for profiles."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    for folder in ("model_profiles", "calibration_profiles"):
        (tmp_path / folder).mkdir()
    for name, before, after in EDITS.values():
        assert before != after
        if before is not None:
            (tmp_path / name).write_text(before)
    return lambda what: (tmp_path / EDITS[what][0]).write_text(EDITS[what][2])


STANDS_ON_FILES = Sweep(
    report="simulate",
    axes={"model": ("own.yaml", "llama3.1-8b"), "gpu": ("card.yaml",), "draft": ("small.yaml",)},
    options={"trace": "trace.csv", "step_times": "estimate", "gamma": 2, "acceptance": 0.5},
)


@pytest.mark.parametrize("what", EDITS)
def test_a_sweep_is_not_resumed_when_the_content_of_what_it_stands_on_has_changed(edit, what):
    with pytest.raises(KeyboardInterrupt):
        sweep(STANDS_ON_FILES, save="rows.csv", workers=1, progress=_stop)
    edit(what)
    with pytest.raises(InputError) as error:
        sweep(STANDS_ON_FILES, save="rows.csv", workers=1, resume=True)
    assert error.value.what == f"rows.csv.parts: {what} changed since these rows were computed"
    assert not Path("rows.csv").exists()


def test_a_sweep_is_resumed_when_what_it_stands_on_is_the_same_in_other_words(edit):
    sweep(STANDS_ON_FILES, save="whole.csv", workers=1)
    with pytest.raises(KeyboardInterrupt):
        sweep(STANDS_ON_FILES, save="rows.csv", workers=1, progress=_stop)
    edit("model own.yaml")
    Path("own.yaml").write_text(f"# a comment\n{SMALL}")
    sweep(STANDS_ON_FILES, save="rows.csv", workers=1, resume=True)
    assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()


@pytest.mark.parametrize("what", ["trace trace.csv", "calibration vllm-hopper"])
def test_a_sweep_ends_when_what_it_stands_on_changes_meanwhile_and_goes_on_when_that_is_put_back(edit, what):
    sweep(STANDS_ON_FILES, save="whole.csv", workers=1)
    with pytest.raises(InputError, match=f"{what} has changed since the sweep began"):
        sweep(STANDS_ON_FILES, save="rows.csv", workers=1, progress=lambda *_: edit(what))
    assert len(list(Path("rows.csv.parts").glob("0*"))) == 1
    name, before, _ = EDITS[what]
    Path(name).unlink() if before is None else Path(name).write_text(before)
    sweep(STANDS_ON_FILES, save="rows.csv", workers=1, resume=True)
    assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()


def test_profiles_that_were_read_are_used_to_the_end_whatever_becomes_of_their_files(edit):
    swept = replace(STANDS_ON_FILES, axes=STANDS_ON_FILES.axes | {"model": ("own.yaml",), "seed": (1, 2, 3)})
    sweep(swept, save="whole.csv", workers=1)
    sweep(swept, save="rows.csv", workers=1, progress=lambda *_: edit("model own.yaml"))
    assert Path("rows.csv").read_bytes() == Path("whole.csv").read_bytes()
    sweep(swept, save="rows.csv", workers=1)
    assert Path("rows.csv").read_bytes() != Path("whole.csv").read_bytes()


@pytest.mark.parametrize("what", EDITS)
def test_a_worker_that_reads_other_files_than_the_sweep_began_with_refuses(edit, what):
    digests = input_digests(STANDS_ON_FILES)
    tasks = list(STANDS_ON_FILES.grid.tasks())
    edit(what)
    vars(sweep_inputs)["_read"].cache_clear()  # as in a process that has read nothing yet
    with pytest.raises(InputError, match=f"{what} has changed since the sweep began"):
        [columns_of(Work(replace(STANDS_ON_FILES, axes={}), digests), task) for task in tasks]


@pytest.mark.parametrize(("trace", "told"), [("/dev/zero", "a device"), ("no.csv", "No such file"), (None, "a pipe")])
def test_a_trace_that_cannot_be_read_again_and_again_is_refused_before_anything_is_computed(trace, told):
    handles = os.pipe()
    options = {"trace": trace or f"/dev/fd/{handles[0]}"}
    os.close(handles[1])
    swept = Sweep(report="simulate", axes={"model": ("llama3.1-8b",), "gpu": ("h200",)}, options=options)
    with pytest.raises(KvcalcError, match=told):
        sweep(swept, workers=1)
    os.close(handles[0])


def test_another_version_of_kvcalc_does_not_go_on_with_a_sweep(tmp_path, monkeypatch):
    with pytest.raises(KeyboardInterrupt):
        sweep(FIT, save=tmp_path / "rows.csv", progress=_stop)
    monkeypatch.setattr("kvcalc.questions.sweep.inputs.__version__", "0.0.1")
    with pytest.raises(InputError, match="kvcalc's version changed since"):
        sweep(FIT, save=tmp_path / "rows.csv", resume=True)


def test_digests_are_the_same_in_every_process():
    script = (
        "from kvcalc.api import Sweep, profile_names; from kvcalc.questions.sweep.inputs import input_digests\n"
        "axes = {'model': profile_names('model')[::4], 'gpu': profile_names('hardware')}\n"
        "print(input_digests(Sweep(axes=axes, options={'step_times': 'estimate'})))"
    )
    environments = [
        os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} for seed in "12"
    ]
    first, second = (subprocess.run([sys.executable, "-c", script], env=each, check=True, capture_output=True).stdout for each in environments)  # fmt: skip
    assert first == second
    assert b" at 0x" not in first


def _cut(parts):
    parts[0].write_bytes(parts[0].read_bytes()[:-20])


def _empty(parts):
    parts[0].write_bytes(b"")


def _swap(parts):
    number = parts[0].name.partition("-")[0]
    parts[1].rename(parts[0].with_name(number + parts[1].name[len(number) :]))
    parts[0].unlink()


def _of_another_run(parts):
    other = parts[0].parents[1] / f"other{parts[0].suffix}"
    with pytest.raises(KeyboardInterrupt):
        sweep(replace(FIT, options={"context": 100}), save=other, progress=_stop)
    (part,) = other.with_name(f"{other.name}.parts").glob("000000000-*")
    parts[0].unlink()
    part.rename(parts[0].with_name(part.name))


@pytest.mark.parametrize("damage", [_cut, _empty, _swap, _of_another_run])
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_parts_that_are_not_what_they_say_are_computed_again(tmp_path, ending, damage):
    if ending == "parquet":
        pytest.importorskip("pyarrow")
    path, whole = tmp_path / f"rows.{ending}", tmp_path / f"whole.{ending}"
    sweep(FIT, save=whole)

    def stop(done, of):
        if done == 3:
            raise KeyboardInterrupt(of)

    with pytest.raises(KeyboardInterrupt):
        sweep(FIT, save=path, progress=stop)
    parts = sorted((tmp_path / f"{path.name}.parts").glob("0*"))
    assert [part.name[:12] for part in parts] == ["000000000-2-", "000000001-2-", "000000002-2-"]  # each has two rows
    damage(parts)
    report = sweep(FIT, save=path, resume=True)
    assert report.notes == ("1 parts were not as they had been written and were computed again", *sweep(FIT).notes)
    assert path.read_bytes() == whole.read_bytes()


def test_a_part_that_is_damaged_before_the_end_is_told_and_computed_again(tmp_path):
    path = tmp_path / "rows.csv"

    def damage(done, of):
        if done == of:
            _cut(sorted((tmp_path / "rows.csv.parts").glob("0*")))

    with pytest.raises(KvcalcError, match="is not as it was written"):
        sweep(FIT, save=path, progress=damage)
    assert not path.exists()
    assert len(sweep(FIT, save=path, resume=True).notes) == 2
    assert len(_saved(path)) == 16


def test_a_run_to_a_file_that_another_saves_to_is_refused_and_disturbs_it_not(tmp_path):
    path = tmp_path / "rows.csv"

    def another(done, of):
        for resume in (False, True) if done < of else ():
            with pytest.raises(InputError, match=r"another run is saving its rows to .*rows\.csv"):
                sweep(FIT, save=path, resume=resume)

    sweep(FIT, save=path, progress=another)
    assert len(_saved(path)) == 16
    sweep(DECODE, save=path)
    assert len(_saved(path)) == 12


def test_a_sweep_that_saved_nothing_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="workers must be from"):
        sweep(FIT, save=tmp_path / "rows.csv", workers=0)
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InputError, match="it is a folder"):
        sweep(FIT, save=tmp_path / "folder.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_a_sweep_that_cannot_even_say_what_it_is_leaves_nothing(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), None) if handle else AssertionError

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sweep(FIT, save=tmp_path / "rows.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("full_at", ["part", "whole"])
def test_a_sweep_whose_disk_was_full_goes_on_when_there_is_room(tmp_path, monkeypatch, full_at):
    path = tmp_path / "rows.csv"
    fsync = os.fsync

    def full(handle):
        name = str(Path(f"/proc/self/fd/{handle}").readlink())
        if ".rows.csv." in name if full_at == "whole" else ".000000003-" in name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sweep(FIT, save=path)
    monkeypatch.setattr(os, "fsync", fsync)
    assert not path.exists()
    assert not list(tmp_path.rglob(".*.part"))
    done = []
    sweep(FIT, save=path, resume=True, progress=lambda number, _: done.append(number))
    assert done == ([] if full_at == "whole" else [4, 5, 6, 7, 8])
    assert len(_saved(path)) == 16


@pytest.mark.parametrize("name", ["rows", "rows.xlsx", "rows.csv.gz"])
def test_a_file_of_another_kind_is_refused(tmp_path, name):
    with pytest.raises(InputError, match="rows are saved as"):
        sweep(FIT, save=tmp_path / name)


@pytest.mark.parametrize("options", [{"pareto": True}, {"slo": "tpot_p95=10ms"}])
def test_a_sweep_that_is_saved_keeps_no_rows_to_choose_from(tmp_path, options):
    with pytest.raises(InputError, match="keeps no rows to choose from"):
        sweep(DECODE, save=tmp_path / "rows.csv", **options)


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


def test_decode_sweeps_without_numpy_have_the_same_columns_and_numbers(monkeypatch):
    swept = Sweep(axes={"model": ("qwen3-30b-a3b",), "gpu": ("h200",), "context": (1024, 8192), "batch": (1, 8)})
    fast = sweep(swept).rows
    monkeypatch.setattr("kvcalc.questions.sweep.tasks.find_spec", lambda _: None)
    monkeypatch.setitem(sys.modules, "kvcalc.simulate.decode_grid", None)
    slow = sweep(swept).rows
    assert len(slow) == 4
    for one, other in zip(slow, fast, strict=True):
        assert set(one) == set(other)
        for name, value in other.items():
            assert one[name] == (pytest.approx(value, rel=1e-14) if isinstance(value, float) else value), name


@pytest.mark.parametrize("name", ["kv-cache", "speculate", "drift"])
def test_a_demonstration_without_numpy_says_what_to_install(name, monkeypatch):
    monkeypatch.setattr("kvcalc.demo.find_spec", lambda _: None)
    with pytest.raises(kvcalc.InputError, match="NumPy, which is not installed") as error:
        kvcalc.ask(f"demo {name}", {})
    assert error.value.hint == "pip install 'kvcalc[demo]'"
