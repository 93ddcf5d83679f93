"""Tasks on workers: in this process, on a pool of processes, or on a Dask cluster; each result exactly once."""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import FIRST_COMPLETED, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, TypeVar

from kvcalc.core.errors import InputError, KvcalcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager

__all__ = ["cluster_pool", "process_pool", "run_tasks"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

# Tasks handed out and not yet back, for each worker: enough that none waits for the next.
_AHEAD = 4
# Pools that may break one after another before the tasks are taken to be what breaks them.
_MOST_BREAKS = 3
_MOST_WORKERS = 1024
_CONNECT = "10s"


def run_tasks(
    function: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    *,
    pool: Callable[[], AbstractContextManager[Executor]] | None = None,
    workers: int = 1,
) -> Iterator[tuple[_Task, _Result]]:
    """Yield each task with its result as they come; never more than a few tasks for each worker are under way.

    A pool whose process dies is made again and given the tasks that were not back, so that none is lost and none counts
    twice. The functions must give the same result however often they are called.

    Args:
        function: what is done; for a pool, a function of a module, which takes and returns what can be pickled.
        tasks: what it is done to.
        pool: makes the pool; without one, the tasks are done here and in order.
        workers: processes or threads that the pool has.

    Raises:
        KvcalcError: pools broke again and again; or what the function raised.
    """
    if pool is None:
        yield from ((task, function(task)) for task in tasks)
        return
    left: Iterator[_Task] = iter(tasks)
    todo: deque[_Task] = deque()
    breaks = 0
    while True:
        under_way: dict[Future[_Result], _Task] = {}
        try:
            with pool() as executor:
                yield from _run(function, executor, left, todo, under_way, most=workers * _AHEAD)
        except BrokenProcessPool:
            breaks += 1
            if breaks > _MOST_BREAKS:
                raise KvcalcError(
                    f"worker processes ended {breaks} times without a result",
                    hint="they may have run out of memory: try fewer with --workers",
                ) from None
            todo.extendleft(reversed(under_way.values()))
        else:
            return


def _run(
    function: Callable[[_Task], _Result],
    executor: Executor,
    left: Iterator[_Task],
    todo: deque[_Task],
    under_way: dict[Future[_Result], _Task],
    *,
    most: int,
) -> Iterator[tuple[_Task, _Result]]:
    """Do the tasks of ``todo``, then those left; a task that is not yielded is always in one of the collections."""
    try:
        while True:
            todo.extend(islice(left, max(0, most - len(under_way) - len(todo))))
            while todo:
                under_way[executor.submit(function, todo[0])] = todo[0]
                todo.popleft()
            if not under_way:
                return
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                result = future.result()
                yield under_way.pop(future), result
    except BaseException:
        for future in under_way:
            future.cancel()
        raise


def process_pool(workers: int | None) -> tuple[Callable[[], AbstractContextManager[Executor]] | None, int]:
    """Return what makes a pool of processes on this machine, and how many; no pool for one process.

    Raises:
        InputError: no process, or too many.
    """
    number = len(os.sched_getaffinity(0)) if workers is None else workers
    if not 1 <= number <= _MOST_WORKERS:
        raise InputError(f"workers must be from 1 to {_MOST_WORKERS:,}, not {number}")
    if number == 1:
        return None, 1
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    return partial(ProcessPoolExecutor, number, mp_context=get_context("spawn")), number


def cluster_pool(address: str) -> tuple[Callable[[], AbstractContextManager[Executor]], int]:
    """Return what connects to a Dask cluster and gives its tasks, and how many threads its workers have.

    Raises:
        InputError: Dask is not installed, or there is no scheduler at the address.
    """
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("a cluster needs Dask", hint="pip install 'kvcalc[cluster]'") from None

    @contextmanager
    def connected() -> Iterator[Executor]:
        with _connect(Client, address) as client, client.get_executor(pure=False) as executor:
            try:
                yield executor
            except KilledWorker as error:
                raise KvcalcError(f"workers of the cluster ended again and again: {error}"[:300]) from None
            except ImportError as error:
                hint = "install the same kvcalc on them"
                raise KvcalcError(
                    f"the workers of the cluster cannot run the tasks: {error}"[:300], hint=hint
                ) from None

    with _connect(Client, address) as client:
        threads = sum(client.nthreads().values())
    if not threads:
        raise InputError(f"the cluster at {address} has no workers", hint=f"start one: dask worker {address}")
    return connected, threads


def _connect(client: Callable[..., _Result], address: str) -> _Result:
    try:
        return client(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, ValueError) as error:
        told = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"no Dask scheduler at {address}: {told}"[:300], hint="for example tcp://10.0.0.1:8786"
        ) from None
