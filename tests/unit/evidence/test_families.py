"""What a family of calibrations says of itself is what its shipped calibration says."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from kvcalc.evidence.families import FAMILIES, Family
from kvcalc.profiles.catalog import shipped_folder
from kvcalc.profiles.loader import load_calibration_file

BY_NAME = {family.name: family for family in FAMILIES}
SHIPPED = {path.stem: load_calibration_file(path) for path in shipped_folder("calibration").glob("*.yaml")}
TIMES = ("step_s", "layer_s", "collective_s")


def test_each_shipped_calibration_is_of_one_family() -> None:
    # the host's is fitted from runs over unlike places, by tests/tools/fit_host.py
    assert sorted([*BY_NAME, "llama.cpp-host"]) == sorted(SHIPPED)
    assert len(BY_NAME) == len(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_calibration_is_measured_with_the_engine_and_on_the_cards_of_its_family(family: Family) -> None:
    calibration = SHIPPED[family.name]
    assert (calibration.engine, calibration.applies_to) == (family.engine, family.applies_to)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_what_is_fitted_is_what_the_family_leaves_free(family: Family) -> None:
    calibration = SHIPPED[family.name]
    kinds = {name.partition(".")[0] for name in family.free if "." in name}
    assert kinds <= calibration.reach.keys()
    # what is not fitted stays where the search starts: with a neighbour's, or at nothing
    if family.kernels_of:
        assert calibration.joins_inputs
        assert calibration.step_s > 0 < calibration.collective_s
        return
    near = SHIPPED.get(family.near)
    assert all(getattr(calibration, name) == getattr(near, name, 0) for name in TIMES if name not in family.free)
    assert "link_share" in family.free or calibration.link_share == getattr(near, "link_share", 1)
    assert calibration.reach.keys() >= family.reach.keys()
    assert {family.near, family.shares_of} <= {"", *BY_NAME}
    assert all(fnmatchcase(pattern.replace("*", "x"), pattern) for pattern in family.held_out)
