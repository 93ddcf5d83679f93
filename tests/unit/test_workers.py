"""Tasks on workers: each result once, whatever becomes of a process."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.workers import cluster_pool, process_pool, run_tasks


def _die_once(folder, number):
    """Square a number; the process that is first asked for 5 ends before it has answered."""
    if number == 5:
        try:
            (folder / "died").touch(exist_ok=False)
        except FileExistsError:
            return number * number
        os._exit(1)
    return number * number


def _always_die(number):
    os._exit(1)
    return number


@pytest.fixture
def importable(monkeypatch):
    """Let new processes find this module."""
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])


def test_without_a_pool_tasks_are_done_in_order():
    assert list(run_tasks(str, range(4))) == [(0, "0"), (1, "1"), (2, "2"), (3, "3")]


@pytest.mark.usefixtures("importable")
def test_a_process_that_dies_loses_nothing_and_nothing_counts_twice(tmp_path):
    pool, workers = process_pool(2)
    found = list(run_tasks(partial(_die_once, tmp_path), range(30), pool=pool, workers=workers))
    assert (tmp_path / "died").exists()
    assert sorted(found) == [(number, number * number) for number in range(30)]


@pytest.mark.usefixtures("importable")
def test_processes_that_die_again_and_again_are_given_up():
    pool, workers = process_pool(2)
    with pytest.raises(KvcalcError, match="ended 4 times without a result"):
        list(run_tasks(_always_die, range(3), pool=pool, workers=workers))


def test_only_a_few_tasks_are_taken_ahead():
    taken = []

    def tasks():
        for number in range(1000):
            taken.append(number)
            yield number

    found = run_tasks(str, tasks(), pool=partial(ThreadPoolExecutor, 2), workers=2)
    next(found)
    assert len(taken) <= 9
    found.close()


def test_an_error_of_a_task_is_passed_on():
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(lambda number: 1 // number, range(3), pool=partial(ThreadPoolExecutor, 2), workers=2))


@pytest.mark.parametrize("workers", [0, -1, 10**6])
def test_a_number_of_workers_that_cannot_be_is_refused(workers):
    with pytest.raises(InputError, match="workers must be from 1"):
        process_pool(workers)


def test_one_process_needs_no_pool():
    assert process_pool(1) == (None, 1)


@pytest.mark.parametrize("address", ["nowhere", "tcp://127.0.0.1:1", "ftp://x"])
def test_a_cluster_that_is_not_there_is_an_error_that_says_so(address, monkeypatch):
    monkeypatch.setattr("kvcalc.workers._CONNECT", "0.3s")
    with pytest.raises(InputError, match="no Dask scheduler at"):
        cluster_pool(address)
