"""Every model type of transformers that kvcalc imports: exact parameters and cache bytes of the class itself.

`transformers_types.json` holds the keys that matter of a small config of each type, with what transformers 5.24 (torch 2.13) counts
for it: parameters, those of the text model where there are towers, and ``[keys and values, states]`` in bytes after prompts of some
lengths, bf16, batch 1; windows are 37 tokens. ``tests/tools/measure_transformers.py`` measures the classes and
``tests/tools/transformers_types.py`` writes the file, also for another release. Where ``KVCALC_TRUTH`` names a folder with the full ground
truth, the configs are read as transformers wrote them, those of types that kvcalc refuses included.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import kvcalc
from kvcalc.core.errors import UnsupportedError
from kvcalc.importers.hugging_face import import_config, read_config_file

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("transformers_types.json").read_text(encoding="utf-8"))
TOWERS = ("vision", "audio")
# Whose towers, talkers or codecs are not all counted; a note in every answer says which.
PARTLY_COUNTED = {
    "apertus1p5", "deepseek_ocr2", "deepseek_vl_hybrid", "fast_vlm", "nemo_speechlm", "qwen2_5_omni", "vibevoice",
}  # fmt: skip
FULL = Path(os.environ["KVCALC_TRUTH"]) / "transformers_types" if os.environ.get("KVCALC_TRUTH") else None
FILES = sorted((FULL / "configs").glob("*.json")) if FULL else []


@pytest.mark.parametrize("page", ["README.md", "docs/tour.md"])
def test_the_documents_count_these_types(page: str) -> None:
    text = " ".join((Path(__file__).parents[2] / page).read_text(encoding="utf-8").split())
    assert f"small models of {len(CASES)} of the 330" in text


def _check(model: kvcalc.ModelProfile, case: dict[str, Any]) -> None:
    deployment = kvcalc.deployment(model, kv_dtype="bf16")
    weights = kvcalc.size(deployment).weights
    if "text" in case:
        assert weights.parameters - sum(weights.parts.get(tower, 0) for tower in TOWERS) == case["text"]
    if model.name not in PARTLY_COUNTED:
        assert weights.parameters == case["parameters"]
    for tokens, sizes in case.get("bytes", {}).items():
        reserved = kvcalc.size(deployment, context=int(tokens), engine="transformers").reserved
        assert reserved is not None
        assert [reserved.kv_bytes, reserved.state_bytes] == sizes, f"bytes after {tokens} tokens"


@pytest.mark.parametrize("name", CASES)
def test_a_type_has_the_parameters_and_bytes_of_its_class(name: str) -> None:
    _check(import_config(CASES[name]["config"], name=name)[0], CASES[name])


@pytest.mark.skipif(FULL is None, reason="KVCALC_TRUTH is not set")
@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_config_as_transformers_writes_it(path: Path) -> None:
    if path.stem not in CASES:
        with pytest.raises(UnsupportedError, match="model_type"):
            import_config(read_config_file(path), name=path.stem)
        return
    _check(import_config(read_config_file(path), name=path.stem)[0], CASES[path.stem])
