"""Profiles written as YAML read back equal, and the schema accepts what the writer writes."""

import pytest
from hypothesis import given

from kvcalc.profiles.document import hardware_from_document, model_from_document
from kvcalc.profiles.loader import load_hardware_file, load_model_file
from kvcalc.profiles.reader import read_yaml
from kvcalc.profiles.schema import HardwareDocument, ModelDocument, validate
from kvcalc.profiles.writer import profile_yaml

from .strategies import accelerators, described_models


def _read_back(profile):
    return read_yaml(profile_yaml(profile), where="text")


@given(described_models())
def test_a_model_reads_back_as_it_was_written(model):
    assert model_from_document(_read_back(model).data) == model


@given(accelerators())
def test_an_accelerator_reads_back_as_it_was_written(hardware):
    assert hardware_from_document(_read_back(hardware).data) == hardware


@given(described_models())
def test_the_schema_accepts_every_model_that_is_written(model):
    validate(_read_back(model), ModelDocument)


@given(accelerators())
def test_the_schema_accepts_every_accelerator_that_is_written(hardware):
    validate(_read_back(hardware), HardwareDocument)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("profiles") / "profile.yaml"


@given(model=described_models())
def test_a_written_model_loads_as_a_users_file(file, model):
    file.write_text(profile_yaml(model), encoding="utf-8", newline="")
    assert load_model_file(file) == model


@given(hardware=accelerators())
def test_a_written_accelerator_loads_as_a_users_file(file, hardware):
    file.write_text(profile_yaml(hardware), encoding="utf-8", newline="")
    assert load_hardware_file(file) == hardware
