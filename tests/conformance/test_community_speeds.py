"""Decode estimates of single cards, judged by medians of anonymous desktop speeds that no calibration was fitted to."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

TRUTH = os.environ.get("KVCALC_TRUTH")
TOOL = Path(__file__).parents[1] / "tools" / "judge_community.py"
HEAD = (
    "gpu,gpus,vram_gb,unified_memory_gb,chip,cpu,os,mixed_gpus,model,base_model,engine,engine_version,quantization,backend,context,"
    "prompt_tokens,output_tokens,batch,ttft_ms,decode_tokens_per_s,prefill_tokens_per_s,peak_vram_gb,gpu_layers,kv_cache_dtype,"
    "tensor_parallel,flash_attn,spec_decoding,mtp,flags,created"
)
ROW = "RTX 4090,1,24,,,,,{mixed},llama3.1-8b,,llama.cpp,,Q4_K_M,{backend},4096,128,128,1,,{rate},,,{layers},,,,{drafts},False,{flags},"


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("judge_community", TOOL)
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge_community"] = module
    spec.loader.exec_module(module)
    return module


def _row(**given):
    return ROW.format(
        **{"mixed": "False", "backend": "cuda", "rate": 130, "layers": "", "drafts": "False", "flags": "", **given}
    )


def test_runs_that_say_nothing_of_one_card_are_left_out(tool, tmp_path):
    others = [{"mixed": "True"}, {"backend": "cpu"}, {"layers": 10}, {"drafts": "True"}, {"flags": "-ncmoe 4"}]
    lines = [HEAD, _row(rate=120), _row(rate=130), _row(rate=20), *(_row(**other) for other in others)]
    path = tmp_path / "speeds.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    (group,) = tool.groups_of(path)
    assert (group.card, group.runs) == ("rtx-4090", 3)
    assert group.measured_s == pytest.approx(1 / 120)


@pytest.mark.skipif(not TRUTH, reason="KVCALC_TRUTH is not set")
def test_half_of_the_groups_are_estimated_within_a_quarter(tool):
    verdict = tool.verdict_of(tool.groups_of(Path(TRUTH) / "community.csv"))
    assert verdict.groups > 50
    assert 0.9 < verdict.median_ratio < 1.1
    assert verdict.median_error < 0.25
    assert verdict.beaten <= 1
