"""Books of measurements, rows of files, and tables with empty fields."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from kvcalc import api
from kvcalc.core.errors import ProfileError
from kvcalc.evidence.books import book_of, fitted_lines, group_of, judges
from kvcalc.evidence.read import read_records, shipped_records

COLUMNS = ("id,backend,backend_version,model_path,system,precision,mode,isl,osl,concurrency,gemm_quant_mode,batch_size,tp_size,pp_size,"
           "attention_dp_size,moe_tp_size,moe_ep_size,decode_num_workers,decode_tp_size,silicon_ttft_ms,silicon_tpot_ms,source")  # fmt: skip
ROWS = (
    "one,vllm,0.19.0,Qwen/Qwen3-235B-A22B-FP8,h200_sxm,fp8,agg,1024,1024,16,fp8,16,4,1,,,,,,200,14,made up",
    "two,sglang,0.5.9,deepseek-ai/DeepSeek-R1,b200_sxm,fp8,disagg,1024,1024,64,fp8,,,,,,,,8,900,21,made up",
)


# 416 requests in all and a batch of 13 on two GPUs: 32 engines share them
SHARED = (
    "three,trtllm,1.3.0rc5,nvidia/Qwen3-32B-NVFP4,b200_sxm,fp4,agg,15000,500,416,nvfp4,13,2,1,1,1,1,,,719,13.66,made up"
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "served.csv"
    path.write_text("\n".join((COLUMNS, *ROWS)) + "\n")
    return path


def test_a_shipped_measurement_is_known_under_any_name() -> None:
    record = next(record for record in shipped_records() if record.phase == "decode" and record.is_time)
    assert book_of(record) in ("fitted", "shipped")
    assert book_of(replace(record, id="mine", source="elsewhere:README.md")) == book_of(record)
    assert book_of(replace(record, value=record.value * 1.1)) == "unseen"


def test_models_with_the_same_layers_are_one_group(table: Path) -> None:
    one, two = (read_records(table)[place] for place in (0, 2))
    assert (group_of(one), judges(group_of(one))) == ("qwen3-235b-a22b h200 vllm", True)
    assert (group_of(two), judges(group_of(two))) == ("deepseek-v3 b200 sglang", False)
    assert fitted_lines([one, one]).count("\n") == 1


def test_each_row_gets_a_prediction_whatever_it_leaves_empty(table: Path) -> None:
    rows = api.validate(records=table, rows=True).rows
    assert [row.id for row in rows] == ["one", "two"]
    for row in rows:
        assert row.low_tpot_s < row.predicted_tpot_s < row.high_tpot_s
        assert row.predicted_ttft_s > 0
        assert (row.fitted, row.book) == (row.id == "two", "fitted" if row.id == "two" else "unseen")
    assert (rows[0].measured_tpot_s, rows[0].reason) == (0.014, "")
    assert "how many engines decode" in rows[1].reason


def test_requests_of_several_engines_are_held_against_those_of_one(tmp_path: Path) -> None:
    path = tmp_path / "shared.csv"
    path.write_text(f"{COLUMNS}\n{SHARED}\n")
    ttft, tpot = api.validate(records=path).outcomes
    assert (tpot.status, tpot.reason, tpot.unscored_reason) == ("holds", "", "")
    assert tpot.batch == 416
    assert abs(tpot.error) < 0.25  # of one engine with all 416 it is seven times as long
    assert ttft.estimate < 1


def test_a_run_is_read_as_its_mean_latencies(tmp_path: Path) -> None:
    times = [
        {"input_toks": 10, "output_toks": 3, "queued_ts": 0.0, "first_token_ts": first, "last_token_ts": first + 2}
        for first in (1, 3)
    ]
    (tmp_path / "card_model.requests.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in times))
    meta = {
        "model": "Qwen/Qwen3-8B",
        "engine_kwargs": {"dtype": "bfloat16"},
        "hardware": {"device_name": "NVIDIA GeForce RTX 4090"},
    }
    (tmp_path / "card_model.meta.json").write_text(json.dumps(meta))
    ttft, tpot = read_records(tmp_path)
    assert (ttft.value, tpot.value, tpot.batch, tpot.prompt_tokens) == (2, 1, 1, 10)
    assert api.validate(records=tmp_path, rows=True).rows[0].predicted_tpot_s > 0
    (tmp_path / "card_model.requests.jsonl").write_text("[]\n")
    with pytest.raises(ProfileError, match="cannot be read as a run"):
        read_records(tmp_path)
