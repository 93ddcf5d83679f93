"""Products of weights with vectors: every form multiplies alike, and a machine is given its fastest."""

from dataclasses import replace

import pytest
import torch

from kvcalc.measure import products
from kvcalc.measure.library import find_device
from kvcalc.measure.products import FORMS, LINEAR, PACKED, Products, can_pack, fastest_products, packed
from kvcalc.measure.weights import WeightMaker

from .models import small_device

DEVICE = find_device("cpu")
SMALL = 2**18


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_the_product(name, dtype, error, rows, biased):
    weight, vectors, bias = numbers(48, 32), numbers(rows, 32, seed=1), numbers(48, seed=2)
    wanted = vectors.to(dtype).double() @ weight.to(dtype).double().t() + (bias.to(dtype).double() if biased else 0)
    if (name == "vector" and rows > 1) or (name == "packed" and not can_pack(dtype, DEVICE)):
        pytest.skip("not a form for these")
    held = packed(weight.to(dtype)) if name == "packed" else weight.to(dtype)
    try:
        found = FORMS[name](vectors.to(dtype), held, bias.to(dtype) if biased else None)
    except (AttributeError, RuntimeError):
        pytest.skip("this torch has no oneDNN for it")
    torch.testing.assert_close(found.double(), wanted, atol=error * wanted.abs().max().item(), rtol=0)


@pytest.fixture
def timed(monkeypatch):
    """Give forms these seconds for so many vectors, in place of their own."""

    def give(seconds):
        def timed(vectors, _, *, layout):
            return [(seconds(name, vectors.shape[0]), name) for name in FORMS if (name == "packed") == layout]

        monkeypatch.setattr(products, "_timed", timed)
        products._fastest.cache_clear()  # noqa: SLF001  its own test

    yield give
    products._fastest.cache_clear()  # noqa: SLF001


@pytest.mark.skipif(not can_pack(torch.float32, DEVICE), reason="this torch does not pack")
def test_the_fastest_form_is_taken_for_each_number_of_vectors_in_one_layout(timed):
    fast = {("vector", 1), ("linear", 2), ("across", 4), ("across", 16), ("onednn", 64)}
    timed(lambda name, rows: 1.0 if (name, rows) in fast else 3.0 if name == "packed" else 9.0)
    found = fastest_products("fp32", DEVICE, read_bytes=SMALL)
    assert [found.form(rows) for rows in (1, 2, 3, 4, 63, 64, 500)] == [
        "vector", "linear", "linear", "across", "across", "onednn", "onednn",
    ]  # fmt: skip
    assert not found.packs
    timed(lambda name, rows: 1.0 if name == "packed" or (name, rows) == ("vector", 1) else 1.1)
    assert fastest_products("fp32", DEVICE, read_bytes=SMALL).packs


@pytest.mark.parametrize("name", ["bf16", "fp32"])
def test_the_forms_of_this_machine_are_timed_once(name, monkeypatch):
    products._fastest.cache_clear()  # noqa: SLF001
    first = fastest_products(name, DEVICE, read_bytes=SMALL)
    assert {form for _, form in first.forms} <= set(FORMS)
    assert len({form == "packed" for _, form in first.forms}) == 1
    monkeypatch.setattr(products, "_timed", None)
    assert fastest_products(name, DEVICE, read_bytes=SMALL) is first


def test_nothing_is_timed_where_there_is_no_room_or_no_need():
    usual = PACKED if can_pack(torch.float32, DEVICE) else LINEAR
    assert fastest_products("fp32", small_device(SMALL), read_bytes=SMALL) == usual
    assert fastest_products("fp32", replace(DEVICE, kind="cuda"), read_bytes=SMALL) == LINEAR


def test_a_matrix_is_held_in_the_order_of_its_products():
    across = WeightMaker(torch.float32, DEVICE, products=Products(((1, "across"),))).linear(32, 48)
    linear = WeightMaker(torch.float32, DEVICE, products=LINEAR).linear(32, 48)
    assert across.weight.equal(linear.weight)
    vectors = numbers(2, 3, 32).float()
    torch.testing.assert_close(across(vectors), linear(vectors))
