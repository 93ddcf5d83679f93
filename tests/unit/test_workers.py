"""Tasks on workers: each result once, whatever becomes of a process."""

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from kvcalc import workers as workers_module
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.workers import Pool, cluster_pool, process_pool, run_tasks

pytestmark = pytest.mark.slow


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


@contextmanager
def _threads():
    """A pool of two threads, whose tasks that have not begun end with it."""
    executor = ThreadPoolExecutor(2)
    yield Pool(executor)
    executor.shutdown(cancel_futures=True)


def _wait_for_kill(folder, number):
    """Square a number once a worker has been killed, leaving a note of who has begun what."""
    (folder / f"begun-{os.getpid()}-{number}").touch()
    _until((folder / "killed").exists)
    return number * number


def _until(true, seconds=120.0):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.01)


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

    found = run_tasks(str, tasks(), pool=_threads, workers=2)
    next(found)
    assert len(taken) <= 9
    found.close()


def test_an_error_of_a_task_is_passed_on():
    with pytest.raises(ZeroDivisionError):
        list(run_tasks(lambda number: 1 // number, range(3), pool=_threads, workers=2))


@pytest.mark.parametrize("workers", [0, -1, 10**6])
def test_a_number_of_workers_that_cannot_be_is_refused(workers):
    with pytest.raises(InputError, match="workers must be from 1"):
        process_pool(workers)


def test_one_process_needs_no_pool():
    assert process_pool(1) == (None, 1)


@pytest.mark.parametrize(
    "address", ["nowhere", "tcp://127.0.0.1:1", "ftp://x", "tcp://127.0.0.1:99999", "tls://127.0.0.1:1", "tcp://:5", ""]
)
@pytest.mark.usefixtures("distributed")
def test_a_cluster_that_is_not_there_is_an_error_that_says_so(address, monkeypatch, capfd):
    """Nor is anything printed when the client that failed is collected, which takes no time either: it took 20 s."""
    monkeypatch.setattr("kvcalc.workers._CONNECT", "0.3s")
    start = time.monotonic()
    with pytest.raises(InputError, match="no Dask scheduler at"):
        cluster_pool(address)
    gc.collect()
    assert time.monotonic() - start < 10
    assert capfd.readouterr().err == ""


# A program whose tasks end in ten minutes, and their module, which says who works. Like many a script it has no guard.
_SLEEPERS = """
import sys
from functools import partial
from kvcalc.workers import process_pool, run_tasks
from sleeping import sleep

pool, workers = process_pool(2)
list(run_tasks(partial(sleep, sys.argv[1]), range(9), pool=pool, workers=workers))
"""
_SLEEPING = """
import os, time
from pathlib import Path

def sleep(folder, number):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
"""


@pytest.fixture
def sleepers(tmp_path):
    """A running program and the processes of its pool, each at work."""
    script, folder = tmp_path / "sleepers.py", tmp_path / "pids"
    script.write_text(_SLEEPERS)
    (tmp_path / "sleeping.py").write_text(_SLEEPING)
    folder.mkdir()
    with subprocess.Popen(
        [sys.executable, script, folder],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509  no threads there
    ) as program:
        try:
            _until(lambda: len(list(folder.iterdir())) == 2 or program.poll() is not None)
            yield program, [int(path.name) for path in folder.iterdir()]
        finally:
            if program.poll() is None:
                program.kill()


def _is_there(pid):
    """Whether a process runs: one that has ended may still wait for its parent to take note."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("group", [False, True])
def test_an_interruption_ends_a_pool_whose_tasks_would_take_long(sleepers, group):
    program, pids = sleepers
    (os.killpg if group else os.kill)(program.pid, signal.SIGINT)
    err = program.communicate(timeout=60)[1]  # 0.2 s where the machine has nothing else to do
    assert len(pids) == 2
    assert not any(map(_is_there, pids))
    assert err.count("Traceback") == err.count("KeyboardInterrupt") == 1  # its own: none of the workers'


def test_processes_end_with_their_parent_however_it_ends(sleepers):
    program, pids = sleepers
    program.kill()
    assert len(pids) == 2
    _until(lambda: not any(map(_is_there, pids)))


@pytest.fixture
def distributed():
    return pytest.importorskip("distributed")


@pytest.fixture
def cluster(distributed):
    """A scheduler in this process, without workers."""
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=1, processes=False, dashboard_address="127.0.0.1:0", silence_logs="CRITICAL",
        host="127.0.0.1", protocol="tcp",
    ) as cluster:  # fmt: skip
        yield cluster


_WORKER = "import asyncio, sys; from distributed import Worker\nasync def work():\n    async with Worker(sys.argv[1], nthreads=1, dashboard=False) as worker: await worker.finished()\nasyncio.run(work())"  # fmt: skip


@pytest.fixture
def worker(tmp_path):
    """Starts a worker of a cluster, in a process of its own that nobody replaces."""
    running = []

    def start(address):
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, address],
            env=os.environ | {"PYTHONPATH": path},
            cwd=tmp_path,
            stderr=subprocess.DEVNULL,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()


@pytest.mark.usefixtures("importable")
def test_a_cluster_whose_worker_is_killed_at_work_loses_nothing_and_counts_nothing_twice(cluster, worker, tmp_path):
    victim, other = worker(cluster.scheduler_address), worker(cluster.scheduler_address)
    cluster.wait_for_workers(2, timeout=120)

    def kill():
        _until(lambda: list(tmp_path.glob(f"begun-{victim.pid}-*")))
        victim.kill()
        victim.wait()
        (tmp_path / "killed").touch()

    killer = threading.Thread(target=kill)
    killer.start()
    pool, workers = cluster_pool(cluster.scheduler_address)
    results = list(run_tasks(partial(_wait_for_kill, tmp_path), range(12), pool=pool, workers=workers))
    killer.join()
    assert workers == 2
    assert sorted(results) == [(number, number * number) for number in range(12)]
    begun = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"begun-{victim.pid}-*")}
    again = {int(path.name.rpartition("-")[2]) for path in tmp_path.glob(f"begun-{other.pid}-*")}
    assert begun
    assert again == set(range(12))


@pytest.fixture
def impatient(monkeypatch):
    """Look after clusters every tenth of a second, and wait half a second for their workers."""
    monkeypatch.setattr(workers_module, "_LOOK_EVERY_S", 0.1)
    monkeypatch.setattr(workers_module, "_WITHOUT_WORKERS_S", 0.5)


@pytest.mark.usefixtures("importable", "impatient")
def test_a_cluster_without_a_worker_left_says_so_and_ends(cluster, worker, tmp_path):
    last = worker(cluster.scheduler_address)
    cluster.wait_for_workers(1, timeout=120)
    pool, workers = cluster_pool(cluster.scheduler_address)
    (tmp_path / "killed").touch()
    results = run_tasks(partial(_wait_for_kill, tmp_path), range(1000), pool=pool, workers=workers)
    next(results)
    last.kill()
    with pytest.raises(KvcalcError, match="has no workers left"):
        list(results)


_SCHEDULER = "import sys, time; from distributed import LocalCluster\nif __name__ == '__main__':\n    cluster = LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address='127.0.0.1:0', host='127.0.0.1', protocol='tcp')\n    print(cluster.scheduler_address, flush=True)\n    time.sleep(600)"  # fmt: skip


# One that is killed may be noticed by the connection that ends or by the question that is not answered.
@pytest.mark.parametrize(
    ("ending", "told"), [(signal.SIGKILL, "(has gone|does not answer)"), (signal.SIGSTOP, "does not answer")]
)
@pytest.mark.usefixtures("distributed", "impatient")
def test_a_scheduler_that_dies_or_hangs_is_an_error_and_nothing_else_is_printed(monkeypatch, capfd, ending, told):
    monkeypatch.setattr(workers_module, "_ANSWER_S", 0.5)
    with subprocess.Popen([sys.executable, "-c", _SCHEDULER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as scheduler:  # fmt: skip
        try:
            address = scheduler.stdout.readline().strip()
            pool, workers = cluster_pool(address)
            results = run_tasks(time.sleep, [0.01] * 1000, pool=pool, workers=workers)
            next(results)
            scheduler.send_signal(ending)
            with pytest.raises(KvcalcError, match=f"the Dask scheduler at {address} {told}"):
                list(results)
        finally:
            scheduler.kill()
    assert capfd.readouterr().err == ""
