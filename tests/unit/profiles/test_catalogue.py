"""The shipped profiles: valid, sourced, plausible, and found by name and alias."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from pathlib import Path

import jsonschema
import pytest

import kvcalc
from kvcalc.api import profile_names, profile_schema
from kvcalc.profiles.catalog import lookup, shipped_folder, stamp
from kvcalc.profiles.loader import load_hardware_file, load_model_file
from kvcalc.profiles.origins import noting_origins, origin_notes, origins_data
from kvcalc.profiles.reader import read_yaml, read_yaml_file
from kvcalc.profiles.writer import profile_yaml

MODELS = sorted(shipped_folder("model").glob("*.yaml"))
HARDWARE = sorted(shipped_folder("hardware").glob("*.yaml"))
VALIDATORS = {
    kind: jsonschema.Draft202012Validator(profile_schema(kind)) for kind in ("model", "hardware", "calibration")
}
SCHEMAS = Path(kvcalc.__file__).parent / "profiles" / "schemas"


def test_the_catalogue_is_as_large_as_promised() -> None:
    assert len(MODELS) >= 60
    assert len(HARDWARE) >= 45


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_model_profile_is_valid_and_round_trips(path: Path) -> None:
    model = load_model_file(path)
    assert model.name == path.stem
    VALIDATORS["model"].validate(read_yaml_file(path).data)
    again = read_yaml(profile_yaml(model), where="again")
    assert again.data == read_yaml_file(path).data
    assert model.sources
    assert model.provenance["default"] in model.sources
    assert kvcalc.size(kvcalc.deployment(model)).weights.parameters > 0


@pytest.mark.parametrize("path", HARDWARE, ids=lambda path: path.stem)
def test_hardware_profile_is_valid_sourced_and_dense(path: Path) -> None:
    card = load_hardware_file(path)
    assert card.name == path.stem
    VALIDATORS["hardware"].validate(read_yaml_file(path).data)
    assert card.provenance["default"] in card.sources
    peaks = card.peak_flop_per_s
    for narrow, wide in [("fp8", "bf16"), ("fp8", "fp16"), ("fp4", "fp8"), ("bf16", "tf32")]:
        if narrow in peaks and wide in peaks:
            # a factor beyond 4 would be a sparse figure beside a dense one; vendors round to three digits
            assert 0.99 <= card.peak(narrow) / card.peak(wide) <= 4.01, (narrow, wide)
    if card.memory_bytes is not None:
        assert 0.85 < card.memory_bytes / card.memory_label_bytes < 1.1


@pytest.mark.parametrize("paths", [MODELS, HARDWARE], ids=["models", "hardware"])
def test_names_and_aliases_are_unique(paths: list[Path]) -> None:
    names = Counter(
        str(name).lower() for path in paths for name in (path.stem, *(read_yaml_file(path).data.get("aliases") or ()))
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("paths", [MODELS, HARDWARE], ids=["models", "hardware"])
def test_every_source_says_where_it_can_be_read_or_that_it_is_unverified(paths: list[Path]) -> None:
    for path in paths:
        for name, source in read_yaml_file(path).data["sources"].items():
            assert re.fullmatch(r"20\d\d-\d\d-\d\d", str(source.get("date", ""))), (path.name, name)
            if not source.get("url"):
                assert source["kind"] == "derived" or source.get("verified") is False, (path.name, name)


def _undescribed(schema: object) -> object:
    """A schema without descriptions of classes, which older versions of pydantic leave out."""
    if isinstance(schema, dict):
        return {name: _undescribed(part) for name, part in schema.items() if name != "description"}
    return [_undescribed(part) for part in schema] if isinstance(schema, list) else schema


def test_editor_schemas_are_up_to_date() -> None:
    for kind in ("model", "hardware", "calibration"):
        assert _undescribed(json.loads((SCHEMAS / f"{kind}.schema.json").read_text())) == _undescribed(
            profile_schema(kind)
        )


@pytest.mark.parametrize("path", [*MODELS, *HARDWARE], ids=lambda path: path.stem)
def test_editors_are_pointed_to_the_schema(path: Path) -> None:
    kind = "model" if path in MODELS else "hardware"
    first = path.read_text().splitlines()[0]
    assert first == f"# yaml-language-server: $schema=../kvcalc/profiles/schemas/{kind}.schema.json"


@pytest.mark.parametrize(
    ("alias", "name"),
    [("h100", "h100-sxm"), ("H100-SXM5", "h100-sxm"), ("a100", "a100-80gb"), ("trillium", "tpu-v6e")],
)
def test_an_alias_leads_to_one_accelerator(alias: str, name: str) -> None:
    entry = lookup(alias, "hardware")
    assert (entry.path.stem, entry.by_alias) == (name, True)


def test_a_hugging_face_id_leads_to_the_model_whatever_its_case() -> None:
    assert kvcalc.load_model("meta-llama/llama-2-70b-HF").name == "llama2-70b"


def test_listed_names_are_those_of_the_files() -> None:
    assert {path.stem for path in MODELS} <= set(profile_names("model"))


def _h100(folder: Path, title: str, name: str = "h100-sxm") -> Path:
    """Write a card like the H100 with another title."""
    own = (shipped_folder("hardware") / "h100-sxm.yaml").read_text()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(own.replace("name: h100-sxm", f"name: {name}").replace("title: ", f"title: {title} "))
    return path


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Folders of a user: those of the environment, the current one, that of the configuration."""
    made = {"environment": tmp_path / "env", "current": tmp_path / "here", "user": tmp_path / "config" / "kvcalc"}
    for folder in made.values():
        folder.mkdir(parents=True)
    monkeypatch.chdir(made["current"])
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("KVCALC_PROFILES", str(made["environment"]))
    return made


def test_users_profiles_are_found_in_the_order_of_the_folders(folders: dict[str, Path]) -> None:
    searched = {label: _h100(folders[label], label, "mine") for label in ("environment", "user")}
    seen = []
    for label, path in searched.items():
        seen.append(kvcalc.load_hardware("mine").title.split()[0] == label)
        path.unlink()
    assert seen == [True, True]
    with pytest.raises(kvcalc.UnknownNameError):
        kvcalc.load_hardware("mine")


@pytest.mark.parametrize("below", ["", "hardware_profiles"])
def test_the_current_folder_is_searched_for_paths_alone(folders: dict[str, Path], below: str) -> None:
    path = _h100(folders["current"] / below, "current").relative_to(folders["current"])
    assert kvcalc.load_hardware("h100-sxm").title.startswith("NVIDIA")
    assert kvcalc.load_hardware(f"./{path}").title.startswith("current")
    mine = _h100(folders["current"] / below, "current", "mine").relative_to(folders["current"])
    with pytest.raises(kvcalc.UnknownNameError) as unknown:
        kvcalc.load_hardware("mine")
    assert unknown.value.hint == f"for the file in the current folder write ./{mine}"


def test_the_current_folder_is_searched_where_the_environment_asks(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _h100(folders["current"], "current")
    monkeypatch.setenv("KVCALC_PROFILES", ".")
    assert kvcalc.load_hardware("h100-sxm").title.startswith("current")


def test_a_folder_with_a_checkpoint_does_not_hide_the_catalogue(folders: dict[str, Path]) -> None:
    for name in ("gpt2", "mine"):
        (folders["current"] / name).mkdir()
        (folders["current"] / name / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    assert kvcalc.load_model("gpt2").layers == 12
    assert kvcalc.load_model("./gpt2").layers == 2
    assert kvcalc.load_model("mine").layers == 2


def test_an_empty_file_is_no_profile(folders: dict[str, Path]) -> None:
    """As the shell leaves it for the output of ``kvcalc gpus show h100-sxm > h100-sxm.yaml``."""
    (folders["environment"] / "h100-sxm.yaml").touch()
    assert kvcalc.load_hardware("h100-sxm").title.startswith("NVIDIA")


def test_origins_say_which_file_each_profile_came_from(folders: dict[str, Path]) -> None:
    mine = _h100(folders["environment"], "environment")
    other = _h100(folders["user"], "user", "other")
    with noting_origins() as noted:
        for name in ("h100-sxm", "other", "h200", str(other)):
            kvcalc.load_hardware(name)
        kvcalc.load_model("llama2-7b")
    assert origins_data(noted) == {
        "model": {"llama2-7b": "catalogue"},
        "hardware": {"h100-sxm": str(mine), "other": str(other), "h200": "catalogue", str(other): str(other)},
        "shadowed": ["h100-sxm"],
    }
    (note,) = origin_notes(noted)
    assert note == f"h100-sxm was read from {mine}, not from kvcalc's own profile of that name"


def test_an_id_that_is_a_folder_here_shadows_the_catalogue(folders: dict[str, Path]) -> None:
    folder = folders["current"] / "meta-llama" / "Llama-2-7b-hf"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "llama", "num_hidden_layers": 2}')
    with noting_origins() as noted:
        assert kvcalc.load_model("meta-llama/Llama-2-7b-hf").layers == 2
    assert origins_data(noted)["shadowed"] == ["meta-llama/Llama-2-7b-hf"]


@pytest.mark.parametrize(("added", "shipped"), [("", True), ("# mine\n", False)])
def test_a_copy_of_a_shipped_profile_is_as_good_as_shipped(tmp_path, monkeypatch, *, added, shipped):
    own = lookup("llama2-7b", "model").path.read_text()
    (tmp_path / "model_profiles").mkdir()
    copy = tmp_path / "model_profiles" / "llama2-7b.yaml"
    copy.write_text(own + added)
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    entry = lookup("llama2-7b", "model")
    assert (entry.path.resolve(), entry.shipped, entry.shadows) == (copy, shipped, not shipped)


def test_the_stamp_follows_the_content_of_users_files(monkeypatch, tmp_path):
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    path = tmp_path / "mine.yaml"
    stamps = []
    for text in ("a: 1", "a: 2", "a: 1"):
        path.write_text(text, encoding="utf-8")
        os.utime(path, ns=(10**18, 10**18))
        stamps.append(stamp())
    assert stamps[0] != stamps[1]
    assert stamps[0] == stamps[2]
