"""What random faults there are: each changes the source in one place, and the same source has the same ones."""

import ast
from pathlib import Path

import yaml

from .random_faults import faults_of

ROOT = Path(__file__).parents[2]
SOURCE = '''"""Words."""
LIMIT = 4

def pick(model, least: int = 0) -> int:
    """Say something 1 + 1."""
    if model.size > least and model.ready:
        raise ValueError(f"{least + 1}")
    return min(model.size, -model.width * LIMIT)
'''


def test_every_kind_of_place_is_changed_and_words_are_not():
    kinds = {(each.before, each.after) for each in faults_of(SOURCE)}
    assert {
        ("model.size > least", "model.size >= least"),
        ("model.size > least and model.ready", "model.ready"),
        ("model.size > least and model.ready", "model.size > least or model.ready"),
        ("-model.width * LIMIT", "-model.width // LIMIT"),
        ("-model.width * LIMIT", "LIMIT"),
        ("-model.width", "model.width"),
        ("model.width", "model.ready"),
        ("min(model.size, -model.width * LIMIT)", "max(model.size, -model.width * LIMIT)"),
        ("4", "5"),
        ("0", "-1"),
    } <= kinds
    assert not any("1" in before for before, _ in kinds)


def test_a_fault_is_one_change_and_the_list_is_always_the_same():
    plain = ast.unparse(ast.parse(SOURCE)).splitlines()
    for fault in faults_of(SOURCE):
        changed = ast.unparse(fault.applied(SOURCE)).splitlines()
        assert sum(one != other for one, other in zip(plain, changed, strict=True)) == 1, fault
    assert [str(each) for each in faults_of(SOURCE)] == [str(each) for each in faults_of(SOURCE)]


def test_the_faults_that_are_known_to_change_nothing_can_still_be_made():
    """A listed fault whose code has changed says nothing any more: it is taken off the list."""
    listed = yaml.safe_load(Path(__file__).with_name("equivalent.yaml").read_text(encoding="utf-8"))
    for entry in listed:
        faults = faults_of((ROOT / entry["file"]).read_text(encoding="utf-8"))
        there = {(fault.owner, fault.before, fault.after) for fault in faults}
        assert (entry["owner"], entry["before"], entry["after"]) in there, entry
        assert entry["why"]
