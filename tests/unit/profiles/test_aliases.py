"""Aliases with fields of their own: what the checkpoint of an id says otherwise than its profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvcalc
from kvcalc.core.errors import ProfileError

if TYPE_CHECKING:
    from pathlib import Path

_PROFILE = """
name: mine
architecture: llama
aliases: [Some/Base, Some/Chat, some-chat]
alias_fields:
  Some/Chat: {context_limit: 512, dtype: fp16, text_only: true}
hidden_size: 16
context_limit: 4096
embeddings: [{name: token, rows: 32, width: 16}]
blocks:
  a: {mixers: [{kind: full, heads: 2, kv_heads: 1, head_dim: 8}]}
layers: [a]
towers: [{part: vision, parameters: 100}]
"""


# max_position_embeddings of the config.json of each id
@pytest.mark.parametrize(
    ("name", "limit"),
    [
        *((f"Qwen/Qwen2.5-{size}-Instruct", 32_768) for size in ("1.5B", "7B", "14B", "32B", "72B")),
        *((f"Qwen/Qwen2.5-Coder-{size}-Instruct", 32_768) for size in ("7B", "32B")),
        *((f"Qwen/Qwen2.5-{size}", 131_072) for size in ("1.5B", "7B", "14B", "32B", "72B")),
        ("qwen2.5-7b", 131_072),
        ("qwen2.5-7b-instruct", 32_768),
        ("QWEN/qwen2.5-7b-INSTRUCT", 32_768),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 131_072),
        ("mistralai/Mistral-Nemo-Base-2407", 128_000),
        ("mistralai/Mistral-Nemo-Instruct-2407", 131_072),
        ("mistral-nemo-instruct-2407", 131_072),
    ],
)
def test_an_id_has_the_limit_that_its_own_config_says(name: str, limit: int) -> None:
    assert kvcalc.load_model(name).context_limit == limit


def test_the_limit_of_an_id_decides_what_an_engine_is_started_for() -> None:
    base, chat = (kvcalc.fit(kvcalc.deployment(f"Qwen/Qwen2.5-7B{name}", gpu="h100-sxm")) for name in ("", "-Instruct"))
    assert (base.max_model_len, chat.max_model_len) == (131_072, 32_768)
    assert any("as Qwen/Qwen2.5-7B-Instruct has it: context_limit 32768" in note for note in chat.notes)


def test_an_alias_may_have_fields_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model_profiles").mkdir()
    (tmp_path / "model_profiles" / "mine.yaml").write_text(_PROFILE)
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    base, chat, other = (kvcalc.load_model(name) for name in ("Some/Base", "Some/Chat", "some-chat"))
    assert (base.context_limit, base.dtype, len(base.towers)) == (4096, "bf16", 1)
    assert (chat.context_limit, chat.dtype, chat.towers) == (512, "fp16", ())
    assert other == base
    assert any("no towers" in note for note in chat.notes)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ("Some/Chat: {context_limit: 512", "Some/Chta: {context_limit: 512"),
        ("dtype: fp16", "dtype: fp17"),
        ("text_only", "text_onyl"),
        ("context_limit: 512", "context_limit: -1"),
    ],
)
def test_a_field_of_an_alias_is_checked(tmp_path: Path, wrong: str, told: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(_PROFILE.replace(wrong, told))
    with pytest.raises(ProfileError):
        kvcalc.load_model(path)
    path.write_text(_PROFILE)
    assert kvcalc.load_model(path).context_limit == 4096


def test_a_text_model_of_a_family_with_towers_has_none() -> None:
    assert kvcalc.load_model("mistralai/Mistral-Small-3.1-24B-Instruct-2503").towers
    assert not kvcalc.load_model("mistralai/Devstral-Small-2507").towers


@pytest.mark.parametrize(
    ("name", "formats"),
    [
        # hf_quant_config.json of each: what it excludes, and the format of its cache
        ("nvidia/MiniMax-M2.5-NVFP4", {"experts": "nvfp4"}),
        ("nvidia/Gemma-4-26B-A4B-NVFP4", {"experts": "nvfp4"}),
        ("nvidia/Qwen3.6-27B-NVFP4", {"attention": "fp8", "mlp": "nvfp4"}),
        ("nvidia/Gemma-4-31B-IT-NVFP4", {"mlp": "nvfp4"}),
    ],
)
def test_an_alias_may_store_its_weights_otherwise(name: str, formats: dict[str, str]) -> None:
    model = kvcalc.load_model(name)
    assert model.weight_formats == formats
    assert model.kv_dtype == "fp8"
    assert any(note.startswith(f"as {name} has it: kv_dtype fp8, weights as nvfp4") for note in model.notes)
