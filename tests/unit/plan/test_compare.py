"""Side by side: the quantities are those of the other reports, ratios are to the first, the best is marked."""

import csv
import io
import json

import pytest

import kvcalc
from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.questions.compare import side_labels


def _run(arguments, capsys):
    with pytest.raises(SystemExit) as done:
        main(["compare", *arguments])
    printed = capsys.readouterr()
    assert done.value.code == 0, printed.err
    return printed.out


def _rows(arguments, capsys):
    report = json.loads(_run([*arguments, "--json"], capsys))
    return [side["label"] for side in report["sides"]], {row["quantity"]: row for row in report["rows"]}


def test_quantities_are_those_of_the_reports(capsys):
    labels, rows = _rows(["llama3.1-8b", "qwen3-8b", "--gpu", "h100-sxm", "--context", "8192", "--batch", "8"], capsys)
    assert labels == ["llama3.1-8b", "qwen3-8b"]
    for place, name in enumerate(labels):
        deployment = kvcalc.deployment(name, gpu="h100-sxm")
        step = kvcalc.decode(deployment, batches=[8], contexts=[8192]).rows[0]
        assert rows["decode.tokens_per_s"]["values"][place] == step.tokens_per_s
        assert rows["decode.tokens_per_s_per_gib"]["values"][place] == step.tokens_per_s_per_gib
        assert rows["fit.max_batch"]["values"][place] == kvcalc.fit(deployment, context=8192, batch=8).max_batch
        assert (
            rows["size.kv.total_bytes"]["values"][place]
            == kvcalc.size(deployment, context=8192, batch=8).kv.total_bytes
        )
    per_token = rows["size.kv.bytes_per_token"]
    assert per_token["values"] == [131072, 147456]
    assert per_token["differences"] == [0, 16384]
    assert per_token["ratios"] == [1, 1.125]
    assert per_token["best"] == [0]


def test_the_speed_of_what_does_not_fit_is_never_the_best(capsys):
    _, rows = _rows(["--model", "llama3.1-70b", "--gpu", "b200,h100-sxm", "--weights", "int4"], capsys)
    assert rows["decode.fits"]["values"] == [True, True]
    _, rows = _rows(["llama3.1-70b@h100-sxm", "llama3.1-70b@4xa100-80gb"], capsys)
    assert rows["decode.fits"]["values"] == [False, True]
    assert rows["decode.tokens_per_s"]["best"] == [1]


def test_lists_are_combined_and_told_apart_by_what_varies(capsys):
    labels, rows = _rows(
        ["--model", "qwen3-8b", "--gpu", "h100-sxm", "--gpus", "1,2", "--kv-dtype", "bf16,fp8"], capsys
    )
    assert labels == [
        "1xh100-sxm kv-dtype=bf16",
        "1xh100-sxm kv-dtype=fp8",
        "2xh100-sxm kv-dtype=bf16",
        "2xh100-sxm kv-dtype=fp8",
    ]
    assert rows["size.kv.total_bytes"]["ratios"] == [1, 0.5, 1, 0.5]


def test_an_argument_spells_a_whole_deployment(capsys):
    labels, rows = _rows(["llama3.1-70b@2xh200", "llama3.1-70b@4xh100-sxm,tp=2,pp=2,kv-dtype=fp8,batch=16"], capsys)
    assert len(set(labels)) == 2
    other = kvcalc.deployment("llama3.1-70b", gpu="h100-sxm", tensor_parallel=2, pipeline_parallel=2, kv_dtype="fp8")
    assert rows["decode.ideal_s"]["values"][1] == kvcalc.decode(other, batches=[16]).rows[0].ideal_s


def test_accelerators_alone_are_compared_by_their_profiles(capsys):
    labels, rows = _rows(["h100-sxm", "h200"], capsys)
    assert labels == ["h100-sxm", "h200"]
    assert rows["gpu.memory_bandwidth_bytes_per_s"]["values"] == [3.35e12, 4.8e12]
    assert rows["gpu.memory_bandwidth_bytes_per_s"]["best"] == [1]


def test_csv_has_a_column_for_each_side_and_ratio(capsys):
    table = list(csv.DictReader(io.StringIO(_run(["h100-sxm", "h200", "--output", "csv"], capsys))))
    row = next(row for row in table if row["quantity"] == "gpu.memory_bandwidth_bytes_per_s")
    assert float(row["h200"]) / float(row["h100-sxm"]) == pytest.approx(float(row["h200 / h100-sxm"]))
    assert row["best"] == "h200"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["llama3.1-8b"], "nothing to compare"),
        ([], "nothing to compare"),
        (["llama3.1-8b", "llama3.1-8b"], "the same"),
        (["h100-sxm", "llama3.1-8b"], "models"),
        (["llama3.1-8b,kvdtype=fp8", "qwen3-8b"], "kv-dtype"),
        (["llama3.1-8b", "qwen3-8b", "--batch", "1-100"], "sides"),
        (["llama3.1-8b", "lama2"], "unknown"),
    ],
)
def test_mistakes_are_told(arguments, told, capsys):
    with pytest.raises(SystemExit) as done:
        main(["compare", *arguments])
    printed = capsys.readouterr()
    assert done.value.code == 2
    assert told in printed.err
    assert not printed.out


def test_from_python():
    sides = [api.side(fmt, kvcalc.deployment("gemma-3-27b", kv_dtype=fmt)) for fmt in ("bf16", "fp8")]
    row = next(row for row in api.compare(sides).rows if row.quantity == "size.kv.total_bytes")
    assert row.best == (1,)


@pytest.mark.parametrize("engine", [[], ["--engine", "llama.cpp"]])
def test_fields_are_replaced_on_every_side_beside_an_engine(engine, capsys):
    def compared(*arguments):
        _, rows = _rows(["llama2-70b", "llama3.1-70b", "--gpu", "h200", *engine, *arguments], capsys)
        return rows["size.kv.bytes_per_token"]["values"]

    assert compared("--set", "kv_heads=64") == [8 * size for size in compared()]


def test_a_side_without_what_varies_has_a_name_and_the_reason_of_fit(capsys):
    sides = ["gpt-oss-120b@h100-sxm", "gpt-oss-120b@h100-sxm,kv-dtype=fp8", "--context", "8192", "--batch", "4"]
    shown = _run(sides, capsys)
    fitted = kvcalc.fit(kvcalc.deployment("gpt-oss-120b", gpu="h100-sxm"), context=8192, batch=4)
    assert not fitted.fits
    assert shown.startswith(f"DOES NOT FIT: gpt-oss-120b: {fitted.reason}. Its speeds are hypothetical. ")
    report = json.loads(_run([*sides, "--json"], capsys))
    assert [side["label"] for side in report["sides"]] == ["gpt-oss-120b", "kv-dtype=fp8"]
    assert [side["misfit"] for side in report["sides"]] == [fitted.reason, ""]


def test_options_of_the_engine_are_those_of_fit_and_refused_without_a_model(capsys):
    options = ["--engine-version", "0.19", "--max-model-len", "16384", "--no-towers"]
    _, rows = _rows(["qwen3-vl-8b@l4", "qwen3-8b@l4", *options], capsys)
    with pytest.raises(SystemExit):
        main(["fit", "--model", "qwen3-vl-8b", "--gpu", "l4", *options, "--json"])
    fitted = json.loads(capsys.readouterr().out)
    assert rows["fit.max_batch"]["values"][0] == fitted["max_batch"]
    assert rows["fit.max_context"]["values"][0] == fitted["max_context"]
    with pytest.raises(SystemExit) as done:
        main(["compare", "h100-sxm", "h200", "--max-model-len", "16384"])
    assert done.value.code == 2
    assert "--max-model-len needs an engine" in capsys.readouterr().err


def test_a_label_names_the_model_then_its_gpus_then_the_rest():
    first, second = {"model": "a", "gpu": "h"}, {"model": "b", "gpu": "h", "gpus": "4", "kv_dtype": "fp8"}
    assert side_labels([first, second]) == ["a h", "b 4xh kv-dtype=fp8"]
    assert side_labels([{"gpu": "h", "price": "2"}, {"gpu": "k", "price": "3"}]) == ["h price=2", "k price=3"]
