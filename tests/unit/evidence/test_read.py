"""Records from files: lists, groups, CSV tables, and what is wrong with one."""

import pytest

from kvcalc.core.errors import InputError, ProfileError
from kvcalc.evidence.read import read_records, shipped_records
from kvcalc.evidence.record import Record, short_source

ROW = "- {id: a-1, phase: decode, value: 50, unit: tok/s, hardware: RTX 4090, model: Llama 2 7B, weight_format: q4_0, batch: 1}\n"
GEMM = "gpu,framework,version,device,op_name,kernel_source,gemm_dtype,m,n,k,latency_ms\n"


def written(folder, text, name="records.yaml"):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_list_of_rows(tmp_path):
    (record,) = read_records(written(tmp_path, ROW))
    assert (record.id, record.value, record.batch, record.suite, record.first_hand) == ("a-1", 50, 1, "decode", False)


def test_groups_share_what_stands_above_their_rows(tmp_path):
    text = (
        "groups:\n- {unit: tok/s, hardware: l40s, model: llama2-7b, phase: prefill, batch: 1, provenance: first-hand page,\n"
        "   columns: [id, input_len, value], rows: [[a, 512, 1000.5], [b, 1024, 900]]}\n"
    )
    first, second = read_records(written(tmp_path, text))
    assert (first.prompt_tokens, first.value, second.id, second.hardware) == (512, 1000.5, "b", "l40s")
    assert first.first_hand


@pytest.mark.parametrize(
    ("row", "devices"),
    [(ROW, 1), (ROW.replace("batch", "n_devices: 4, batch"), 4), (ROW.replace("batch", "tensor_parallel: 2, batch"), 2),
     (ROW.replace("RTX 4090", "3x RTX 4090"), 3)],
)  # fmt: skip
def test_how_many_accelerators(tmp_path, row, devices):
    assert read_records(written(tmp_path, row))[0].devices == devices


def test_a_format_left_to_the_engine_is_none(tmp_path):
    (record,) = read_records(written(tmp_path, ROW.replace("q4_0", "auto").replace("batch", "kv_dtype: auto, batch")))
    assert (record.weights, record.kv) == (None, None)


def test_an_id_is_made_where_there_is_none(tmp_path):
    assert read_records(written(tmp_path, ROW.replace("id: a-1, ", "")))[0].id == "records 1"


def test_no_file_is_refused():
    with pytest.raises(InputError, match="empty"):
        read_records("")


def test_words_in_place_of_a_count_are_a_count_that_was_not_printed(tmp_path):
    (record,) = read_records(written(tmp_path, ROW.replace("batch: 1", "batch: max load")))
    assert record.batch is None


def test_the_depth_that_a_note_prints(tmp_path):
    row = ROW.replace("decode", "prefill").replace("batch: 1", "batch: 1, note: context depth 4096, input_len: 2048")
    (record,) = read_records(written(tmp_path, row))
    assert record.depth_tokens == 4096


def test_a_table_is_known_by_its_columns(tmp_path):
    text = GEMM + "l40s,TRTLLM,1.0.0,NVIDIA L40S,gemm,torch_flow,bfloat16,8,1024,2048,0.0075\n"
    (record,) = read_records(written(tmp_path, text, "any-name.csv"))
    assert (record.phase, record.shape, record.weights, record.suite) == (
        "gemm",
        {"m": 8, "n": 1024, "k": 2048},
        "bfloat16",
        "kernels",
    )
    assert record.seconds_per_token == pytest.approx(7.5e-6)


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        pytest.param("a.yaml", "", "holds no mapping", id="nothing"),
        pytest.param("a.yaml", "[]", "holds no records", id="an empty list"),
        pytest.param("a.yaml", "- 5\n", "must be a mapping", id="a number"),
        pytest.param("a.yaml", ROW.replace("value: 50, ", ""), "'value' is missing", id="no value"),
        pytest.param("a.yaml", ROW.replace("50", "-3"), "value:", id="a negative value"),
        pytest.param("a.yaml", ROW.replace("50", "fast"), "value:", id="a word for a value"),
        pytest.param("a.yaml", ROW.replace("50", ".nan"), "value:", id="no number"),
        pytest.param("a.yaml", "groups: [{columns: [id], rows: [[1, 2]]}]", "list of 1 values", id="a row too long"),
        pytest.param("a.yaml", "groups: [{rows: [[1, 2]]}]", "needs `columns`", id="no columns"),
        pytest.param("a.csv", "a,b\n1,2\n", "no known table", id="other columns"),
        pytest.param("a.csv", "", "no known table", id="an empty table"),
        pytest.param("a.csv", GEMM + "x,y,1,L40S,gemm,k,bf16,eight,1,1,1\n", "cannot be read", id="a word for a size"),
        pytest.param("a.csv", GEMM + "x,y\n", "cannot be read", id="a row cut short"),
        pytest.param(
            "a.csv", GEMM.replace("gpu,", "") + "T,1,L40S,gemm,k,bf16,1,1,1,1\n", "'gpu' is missing", id="a column"
        ),
        pytest.param("missing.yaml", None, "No such file", id="no file"),
        pytest.param("missing.csv", None, "No such file", id="no table"),
    ],
)
def test_what_is_wrong_is_said_with_the_place(tmp_path, name, text, told):
    path = tmp_path / name if text is None else written(tmp_path, text, name)
    with pytest.raises(ProfileError, match=told) as caught:
        read_records(path)
    assert caught.value.where.startswith(str(path))


def test_the_line_of_a_bad_value_is_told(tmp_path):
    path = written(tmp_path, ROW + ROW.replace("a-1", "a-2").replace("50", "none"))
    with pytest.raises(ProfileError) as caught:
        read_records(path)
    assert caught.value.where == f"{path}:2"


def record(**changed):
    return Record(**{"id": "x", "phase": "decode", "value": 100.0, "unit": "tok/s", "hardware": "l40s"} | changed)


@pytest.mark.parametrize(
    ("changed", "seconds"),
    [
        ({}, 0.01),
        ({"unit": "tok/s total (S_TG)"}, 0.01),
        ({"unit": "tokens/sec"}, 0.01),
        ({"unit": "out tok/s/GPU", "devices": 4}, 0.0025),
        ({"unit": "tok/s/user", "batch": 8}, 0.00125),
        ({"unit": "ms per token (TPOT)"}, 0.1),
        ({"unit": "s", "value": 2}, 2),
    ],
)
def test_units_as_they_are_printed(changed, seconds):
    assert record(**changed).seconds_per_token == pytest.approx(seconds)


def test_a_unit_that_is_neither_time_nor_rate_is_refused():
    with pytest.raises(Exception, match="neither a time nor a rate"):
        _ = record(unit="requests/s").seconds_per_token


def test_sources_are_shortened_but_told():
    assert short_source("https://docs.example.org/page/") == "docs.example.org/page"
    assert short_source("") == "not told"


def test_shipped_records_are_first_hand_and_told():
    records = shipped_records()
    assert len(records) > 500
    assert all(found.first_hand and found.source for found in records)
    assert len({found.id for found in records}) == len(records)
