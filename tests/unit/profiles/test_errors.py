"""A fault in a profile is told with file, line and field, and a hint where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

import kvcalc
from kvcalc.profiles.catalog import shipped_folder
from kvcalc.profiles.loader import load_hardware_file, load_model_file

GOOD = (shipped_folder("model") / "llama2-70b.yaml").read_text()
CARD = (shipped_folder("hardware") / "h100-sxm.yaml").read_text()


def line_of(text: str, part: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if part in line)


@pytest.mark.parametrize(
    ("old", "new", "says", "hint"),
    [
        ("hidden_size: 8192", "hiden_size: 8192", "'hiden_size' is not known", "did you mean hidden_size"),
        ("hidden_size: 8192", "hidden_size: -8192", "greater than 0", "docs/profiles.md"),
        ("hidden_size: 8192", "hidden_size: 8e30", "integer", "docs/profiles.md"),
        ("hidden_size: 8192", "hidden_size: no", "integer", "docs/profiles.md"),
        ("hidden_size: 8192", "hidden_size: 8192\nhidden_size: 4096", "stands twice", "remove"),
        ("kv_heads: 8", "kv_heads: 0", "out of range", ""),
        ("kv_heads: 8", "kv_heads: 7", "cannot share", "multiple"),
        ("kv_heads: 8", "kv_haeds: 8", "'kv_haeds' is not known", "did you mean kv_heads"),
        ("kind: full", "kind: ful", "ful", ""),
        ("pattern: [decoder]", "pattern: [decodr]", "decodr", "decoder"),
        ("repeat: 80", "repeat: 0", "greater than", ""),
        ("repeat: 80", "repeat: 80000000", "less than", ""),
        ("dtype: fp16", "dtype: fp17", "fp17", "fp16"),
        ("provenance: {default: config}", "provenance: {default: nowhere}", "nowhere", "config"),
    ],
)
def test_a_fault_in_a_model_profile_is_placed(tmp_path: Path, old: str, new: str, says: str, hint: str) -> None:
    path = tmp_path / "model.yaml"
    assert old in GOOD
    path.write_text(GOOD.replace(old, new, 1))
    with pytest.raises(kvcalc.ProfileError) as caught:
        load_model_file(path)
    assert says in caught.value.what
    assert hint in caught.value.hint
    assert caught.value.where.startswith(str(path))
    if new != "pattern: [decodr]":
        nearby = {line_of(path.read_text(), new.splitlines()[-1]) + offset for offset in (-2, -1, 0)}
        assert int(caught.value.where.rpartition(":")[2]) in nearby


@pytest.mark.parametrize(
    ("source", "taken"),
    [
        ("{kind: datasheet}", False),
        ("{kind: third_party, url: ''}", False),
        ("{kind: third_party, verified: true}", False),
        ("{kind: third_party, verified: false}", True),
        ("{kind: datasheet, url: 'https://example.com'}", True),
        ("{kind: derived}", True),
        ("{kind: measured}", True),
        ("{kind: model_config}", True),
    ],
)
def test_a_source_has_an_address_unless_it_is_ones_own_or_said_to_be_unverified(
    tmp_path: Path, source: str, *, taken: bool
) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(
        "name: card\ntitle: A card\nvendor: me\nmemory_label_bytes: 24e9\nmemory_bandwidth_bytes_per_s: 600e9\n"
        f"peak_flop_per_s: {{bf16: 90e12}}\nsources:\n  mine: {source}\nprovenance: {{default: mine}}\n"
    )
    if taken:
        assert load_hardware_file(path).sources["mine"].kind in source
        return
    with pytest.raises(kvcalc.ProfileError, match="the source 'mine' has no url"):
        load_hardware_file(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no mapping"),
        ("- a\n- b\n", "no mapping"),
        ("a: [1, 2\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "not allowed"),
        ("name: x\n\tb: 1\n", "not valid YAML"),
        ("? [a]\n: 1\n", "a key must be a word"),
        ("[" * 5000, "YAML"),
        (
            "a: &a [x,x,x,x,x,x,x,x,x]\n"
            + "".join(f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(8)),
            "too large",
        ),
    ],
    ids=["empty", "list", "broken", "tag", "tab", "complex key", "deep", "laughs"],
)
def test_what_is_not_a_profile_is_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(text)
    with pytest.raises(kvcalc.ProfileError, match=says):
        load_model_file(path)


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_bytes(b"\xff\xfe\x00\x01" * 10)
    with pytest.raises(kvcalc.ProfileError, match="cannot be read"):
        load_hardware_file(path)


def test_numbers_are_those_of_yaml_1_2(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(CARD.replace("3.35e12", "3350e9"))
    assert load_hardware_file(path).memory_bandwidth_bytes_per_s == 3.35e12


def test_a_peak_for_an_unknown_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "card.yaml"
    path.write_text(CARD.replace("  bf16: ", "  bf17: "))
    with pytest.raises(kvcalc.ProfileError, match="bf17"):
        load_hardware_file(path)


def test_a_shipped_profile_that_was_broken_by_hand_is_explained_as_well(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(GOOD.replace("kv_heads: 8", "kv_haeds: 8"))
    with pytest.raises(kvcalc.ProfileError, match="kv_haeds"):
        load_model_file(path, trusted=True)


@pytest.mark.parametrize(
    ("setting", "says"),
    [
        ("kv_heads", "path=value"),
        ("kv_haeds=8", "no field"),
        ("blocks.decodr.mlp.width=3", "no part 'decodr'"),
        ("blocks.decoder.mixers.5.heads=3", "number below 1"),
        ("hidden_size=many", "integer"),
        ("kv_heads=3", "cannot share"),
        ("kv_heads=[", "not valid YAML"),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused(setting: str, says: str) -> None:
    with pytest.raises(kvcalc.KvcalcError, match=says):
        kvcalc.load_model("llama2-70b", settings=[setting])


def test_settings_reach_layers_formats_and_accelerators() -> None:
    model = kvcalc.load_model("gemma-3-27b", settings=["window=512", "layers.0.repeat=1", "dtype=fp16"])
    assert model.layers == 8
    assert {mixer.window for block in model.blocks for mixer in block.mixers if mixer.kind == "sliding"} == {512}
    card = kvcalc.deployment(model, gpu="h100-sxm", settings=["memory_bandwidth_bytes_per_s=4e12"]).hardware
    assert card is not None
    assert card.memory_bandwidth_bytes_per_s == 4e12


def test_a_profile_of_the_other_kind_is_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "profile.yaml"
    path.write_text(CARD)
    with pytest.raises(kvcalc.ProfileError, match="profile of an accelerator"):
        load_model_file(path)
    path.write_text(GOOD)
    with pytest.raises(kvcalc.ProfileError, match="profile of a model"):
        load_hardware_file(path)
