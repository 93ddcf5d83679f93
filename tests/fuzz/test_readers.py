"""Readers of foreign input, fed with damage for some seconds: an answer or one clear error, in bounded time, never a traceback.

``KVCALC_FUZZ_S`` is the time for all of them together (1 s each where it is not set), ``KVCALC_FUZZ_SEED`` the seed. A case that
fails names itself; ``KVCALC_FUZZ_CASE=config:0:123`` runs it alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvcalc.core.errors import KvcalcError

from . import damage, targets

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = os.environ.get("KVCALC_FUZZ_SEED", "0")
BUDGET_S = float(os.environ.get("KVCALC_FUZZ_S") or len(targets.TARGETS)) / len(targets.TARGETS)
ALONE = os.environ.get("KVCALC_FUZZ_CASE", "")
# No single input may keep a reader longer.
LIMIT_S = 10


@contextlib.contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """End what takes longer, where the system has alarms."""
    if not hasattr(signal, "setitimer"):
        yield
        return

    def late(*_: object) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_case(name: str, seed: str, number: int) -> None:
    """Feed one reader with one damaged input; the same name, seed and number give the same input."""
    random = Random(f"{name}:{seed}:{number}")  # noqa: S311
    with tempfile.TemporaryDirectory() as folder, _at_most(LIMIT_S):
        try:
            with contextlib.suppress(KvcalcError):
                targets.TARGETS[name](random, Path(folder))
        except Exception as error:
            error.add_note(f"again: KVCALC_FUZZ_CASE={name}:{seed}:{number} pytest tests/fuzz")
            raise


@pytest.mark.parametrize("name", targets.TARGETS)
def test_damage_gives_only_clear_errors(name: str) -> None:
    if ALONE:
        target, seed, number = ALONE.split(":")
        if target == name:
            run_case(target, seed, int(number))
        return
    end, number = time.monotonic() + BUDGET_S, 0
    while time.monotonic() < end:
        run_case(name, SEED, number)
        number += 1
    assert number >= 1


def test_what_is_not_damaged_is_read(tmp_path: Path) -> None:
    """Fuzzing that only meets the first check of a reader finds nothing: each example is one that is taken."""
    targets.read_gguf_bytes(targets.gguf_file())
    data = targets.safetensors_file(targets.safetensors_header())
    assert len(targets.read_header(lambda at, size: data[at : at + size], len(data), where="m")) == 2
    for name, text in targets.TRACES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        columns = targets.parse_columns("time=when:ms,prompt=in,output=out") if name == "own.csv" else None
        assert name == "own.tsv" or len(list(targets.read_trace(tmp_path / name, columns=columns))) == 2
    (tmp_path / "c.yaml").write_text(targets.CHECKS, encoding="utf-8")
    assert targets.api.check_files([tmp_path / "c.yaml"]).checks


def test_the_same_seed_damages_in_the_same_way() -> None:
    one, other = (damage.damaged_text(targets.CHECKS, Random("x")) for _ in range(2))  # noqa: S311
    assert one == other
    assert one != damage.damaged_text(targets.CHECKS, Random("y"))  # noqa: S311
