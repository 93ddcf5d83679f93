"""Whatever a user writes: an answer or a KvcalcError, never another exception."""

import json
import math
from contextlib import suppress
from copy import deepcopy

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from kvcalc.core.errors import KvcalcError, ProfileError
from kvcalc.core.formats import parse_format
from kvcalc.core.ranges import parse_counts
from kvcalc.core.units import parse_bytes, parse_count, parse_rate
from kvcalc.core.workload import Parallel, decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.plan.deployment import deploy
from kvcalc.plan.size import size_report
from kvcalc.profiles.document import hardware_to_document, model_to_document
from kvcalc.profiles.loader import load_hardware_file, load_model_file
from kvcalc.profiles.reader import read_yaml, read_yaml_file

from .strategies import accelerators, described_models, model_with_everything

number = st.sampled_from(
    ("0", "1", "-1", "8", "4.5", "1e3", "1e999", "1e-5", "9" * 30, "1_000", "1,000", ".5", "nan", "inf")
)
unit = st.sampled_from(("", "k", "M", "Ki", "GiB", "GB", "b", "B/s", "TFLOP/s", "e", " ", "/", "i"))
quantities = st.text(max_size=12) | st.builds("{}{}".format, number, unit)
lists = st.lists(quantities | st.sampled_from(("-", "*", "+", "1-64*2")), max_size=5).map("".join) | st.text(
    max_size=12
)


@given(quantities)
@example("1e999")
@example("1e400TB")
def test_any_text_is_a_quantity_or_refused(text):
    for parse in (parse_bytes, parse_count, parse_rate):
        with suppress(KvcalcError):
            found = parse(text)
            assert found >= 0
            assert math.isfinite(found)


@given(lists)
@example("1e999")
def test_any_text_is_a_list_of_counts_or_refused(text):
    with suppress(KvcalcError):
        found = parse_counts(text, what="batch")
        assert 1 <= len(found) <= 1_000_000
        assert all(1 <= value <= 10**9 for value in found)
        assert len(set(found)) == len(found)


@given(st.text(max_size=20) | st.from_regex(r"(mixed-|int4-g|fp8-g|q)[0-9a-z/:-]{0,12}", fullmatch=True))
def test_any_text_is_a_format_or_refused(text):
    with suppress(KvcalcError):
        assert parse_format(text).block_elements > 0


yaml_pieces = st.sampled_from(
    ("a", ": ", ":", "\n", "  ", "- ", "[", "]", "{", "}", ",", "&x ", "*x", "<<: ", "!!binary ", "!t ", "'", '"', "|", ">",
     "#", "%YAML 1.1\n", "---\n", "...", "1e9", "0x1", "~", "? ", "\t", "\\u0000", "\0", "\ufeff", "\x85")
)  # fmt: skip


@given(st.text(max_size=40) | st.lists(yaml_pieces, max_size=25).map("".join))
def test_any_text_is_a_mapping_or_a_profile_error(text):
    with suppress(ProfileError):
        assert isinstance(read_yaml(text, where="text").data, dict)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("bad") / "profile.yaml"


@given(content=st.binary(max_size=60))
def test_any_bytes_are_a_mapping_or_a_profile_error(file, content):
    file.write_bytes(content)
    with suppress(ProfileError):
        assert isinstance(read_yaml_file(file).data, dict)


@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{a: " * 5000, "&a [*a]", "a: &a [*a]", "a: " + "1" * 5000])
def test_deep_recursive_and_endless_yaml_is_read_or_refused(text):
    with suppress(ProfileError):
        assert isinstance(read_yaml(text, where="text").data, dict)


odd_values = st.one_of(
    st.sampled_from((None, True, "", "word", "0x10", [], {}, [[]], [None], {"kind": "full"}, {"a": {"b": 1}})),
    st.sampled_from((0, -1, 1, 2**31, 2**63, 10**15, 10**30, 0.5, -0.5, 1e300, float("inf"), 1e-300)),
)


def _places(value):
    """Every mapping or list of a document with each key or index in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        yield value, key
        yield from _places(entry)


@st.composite
def spoilt(draw, documents):
    """Draw a valid document in which up to two values were deleted, replaced, renamed or added to."""
    document = deepcopy(draw(documents))
    for _ in range(draw(st.integers(1, 2))):
        places = list(_places(document))
        assume(places)
        holder, key = draw(st.sampled_from(places))
        change = draw(st.sampled_from(("delete", "replace", "replace", "rename", "add")))
        value = draw(odd_values)
        if change == "delete":
            del holder[key]
        elif change == "replace":
            holder[key] = value
        elif isinstance(holder, list):
            holder.append(value)
        elif change == "rename":
            holder[draw(st.sampled_from((f"{key}x", "heads", "kind", "a.b", "")))] = holder.pop(key)
        else:
            holder[draw(st.sampled_from(("unknown", "window", "experts", "sources", "1")))] = value
    return document


def _write(file, document):
    """JSON is YAML, and its numbers are those of YAML 1.2."""
    file.write_text(json.dumps(document), encoding="utf-8")


def _use(file):
    """Load a model and compute everything with it, on one device and on two."""
    deployment = deploy(load_model_file(file))
    passes = [decode_step(batch=2, context=100), prefill_pass(batch=1, prompt=7)]
    size_report(deployment, context=100)
    for ranks in (1, 2):
        forward_cost(deployment.model, passes, deployment.formats, parallel=Parallel(tensor=ranks))


@given(document=spoilt(described_models().map(model_to_document)))
def test_any_spoilt_model_is_a_profile_that_can_be_used_or_a_profile_error(file, document):
    _write(file, document)
    with suppress(ProfileError):
        _use(file)


@pytest.mark.parametrize("value", [0, -1, 1, 2**31, 10**12, 0.5, None, True, "word", [], {}], ids=repr)
def test_any_single_field_can_be_spoilt(file, value):
    whole = model_to_document(model_with_everything())
    broken = []
    for place, (_, field) in enumerate(_places(whole)):
        document = deepcopy(whole)
        holder, key = list(_places(document))[place]
        holder[key] = value
        _write(file, document)
        try:
            with suppress(ProfileError):
                _use(file)
        except Exception as error:  # noqa: BLE001
            broken.append(f"{field} = {value!r}: {type(error).__name__}: {error}")
    assert not broken


def test_the_whole_model_can_be_used(file):
    _write(file, model_to_document(model_with_everything()))
    _use(file)


@given(document=spoilt(accelerators().map(hardware_to_document)))
def test_any_spoilt_accelerator_is_a_profile_that_can_be_used_or_a_profile_error(file, document):
    _write(file, document)
    with suppress(ProfileError):
        hardware = load_hardware_file(file)
        assert hardware.peak("bf16") > 0
        assert hardware.usable_memory_bytes >= 0
