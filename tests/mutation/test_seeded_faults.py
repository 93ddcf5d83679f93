"""The tests themselves under test: each seeded fault in a formula must turn a test red, and no fault none."""

import compileall
import os
import shutil
import subprocess
import sys
from pathlib import Path
from py_compile import PycInvalidationMode

import pytest

from .faults import FAULTS, FIGURES

ROOT = Path(__file__).parents[2]
COST = Path("kvcalc", "cost")
# Start-up is most of the time here: no plugins, and so none of the options that they add.
LEAN, WITHOUT_THEIRS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}, ["-o", "addopts="]
SHARED = ("hardware_profiles", "model_profiles", "pyproject.toml")
every_fault = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.replace(" ", "-"))


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """A copy of the package and of the tests that notice faults in it, compiled: a file that is changed is so again.

    What is compiled is known by the content of its source, so that no change is missed, however soon it comes.
    """
    folder, compiled = tmp_path_factory.mktemp("copy"), shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "kvcalc", folder / "kvcalc", ignore=compiled)
    shutil.copytree(ROOT / "tests" / "property", folder / "tests" / "property", ignore=compiled)
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "tests")
    (folder / "tests" / "unit").mkdir()
    shutil.copy(ROOT / FIGURES, folder / FIGURES)
    for name in SHARED:
        (folder / name).symlink_to(ROOT / name)
    compileall.compile_dir(folder / "kvcalc", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    return folder


def _run(folder, *tests):
    """Run tests of a copied package on that package: its folder is the current one and stands first on the path."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "--no-header", "--doctest-modules", *WITHOUT_THEIRS]
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        cwd=folder,
        env=own | {"PYTHONPATH": str(folder), "HYPOTHESIS_PROFILE": "mutation"} | LEAN,
        capture_output=True,
        text=True,
        check=False,
    )


def _test_of(fault):
    return str(COST / fault.file) if fault.test == "doctest" else fault.test


def test_without_a_fault_everything_passes(copy):
    run = _run(copy, *sorted({_test_of(fault) for fault in FAULTS}))
    assert run.returncode == 0, run.stdout[-3000:]


def test_the_copy_is_what_is_tested(copy):
    script = "import kvcalc.cost.cache as found; print(found.__file__)"
    run = subprocess.run([sys.executable, "-c", script], cwd=copy, capture_output=True, text=True, check=True)
    assert Path(run.stdout.strip()).is_relative_to(copy.resolve())


@every_fault
def test_a_fault_stands_where_the_list_says(fault):
    found = (ROOT / COST / fault.file).read_text(encoding="utf-8").count(fault.original)
    assert found == 1, f"update the fault {fault.name!r}: {fault.original!r} stands {found} times in {fault.file}"


@every_fault
def test_a_fault_is_noticed(fault, copy):
    file = copy / COST / fault.file
    text = file.read_text(encoding="utf-8")
    assert fault.original in text, f"update the fault {fault.name!r}"
    file.write_text(text.replace(fault.original, fault.mutated), encoding="utf-8")
    try:
        run = _run(copy, _test_of(fault))
    finally:
        file.write_text(text, encoding="utf-8")
    assert run.returncode == 1, f"nothing notices that {fault.name} in {fault.file}:\n{run.stdout[-2000:]}"
    assert "1 failed" in run.stdout
