"""Tasks on workers: in this process, on a pool of processes, or on a Dask cluster; each result exactly once."""

from __future__ import annotations

import os
import re
from collections import deque
from concurrent.futures import FIRST_COMPLETED, CancelledError, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import parent_process
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from kvcalc.child import end_with_parent, started_apart
from kvcalc.core.errors import InputError, KvcalcError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Executor, Future
    from contextlib import AbstractContextManager

__all__ = ["Pool", "cluster_pool", "cores", "process_pool", "run_tasks"]

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")

# Tasks handed out and not yet back, for each worker: enough that none waits for the next.
_AHEAD = 4
# Pools that may break one after another before the tasks are taken to be what breaks them.
_MAX_BREAKS = 3
_MAX_WORKERS = 1024
_CONNECT = "10s"
# How often those who do the tasks are looked after while no result comes.
_LOOK_EVERY_S = 1.0
# Workers that end are replaced within seconds, where there is somebody to replace them.
_WITHOUT_WORKERS_S = 15.0
_ANSWER_S = 10.0
_CLOSE_S = 1.0
# ``inproc`` is a scheduler in this process.
_ADDRESS = re.compile(r"inproc://\S+|(?:tcp|tls)://(?:\[[^\]/\s]+\]|[^\[\]:/\s]+):(\d{1,5})")
_MAX_PORT = 65_535
_LOGGERS = ("distributed", "distributed.client", "tornado", "tornado.application")


@dataclass(frozen=True, slots=True)
class Pool:
    """Workers of tasks.

    Args:
        executor: takes them.
        check: raises where nobody is left to do them; called every second in which no result comes.
    """

    executor: Executor
    check: Callable[[], None] = lambda: None


def run_tasks(
    function: Callable[[_Task], _Result],
    tasks: Iterable[_Task],
    *,
    pool: Callable[[], AbstractContextManager[Pool]] | None = None,
    workers: int = 1,
) -> Iterator[tuple[_Task, _Result]]:
    """Yield each task with its result as they come; never more than a few tasks for each worker are under way.

    A pool whose process dies is made again and given the tasks that were not back, so that none is lost and none counts
    twice. The functions must give the same result however often they are called. Whatever ends the iteration early ends
    the pool, and the tasks under way with it.

    Args:
        function: what is done; for a pool, a function of a module, not the main one, which takes and returns what can
            be pickled.
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
            with pool() as workforce:
                yield from _run(function, workforce, left, todo, under_way, slots=workers * _AHEAD)
        except BrokenProcessPool:
            breaks += 1
            if breaks > _MAX_BREAKS:
                raise KvcalcError(
                    f"worker processes ended {breaks} times without a result",
                    hint="they may have run out of memory: try fewer with --workers",
                ) from None
            todo.extendleft(reversed(under_way.values()))
        else:
            return


def _run(
    function: Callable[[_Task], _Result],
    pool: Pool,
    left: Iterator[_Task],
    todo: deque[_Task],
    under_way: dict[Future[_Result], _Task],
    *,
    slots: int,
) -> Iterator[tuple[_Task, _Result]]:
    """Do the tasks of ``todo``, then those left; a task that is not yielded is always in one of the collections."""
    while True:
        todo.extend(islice(left, max(0, slots - len(under_way) - len(todo))))
        while todo:
            under_way[pool.executor.submit(function, todo[0])] = todo[0]
            todo.popleft()
        if not under_way:
            return
        done, _ = wait(under_way, timeout=_LOOK_EVERY_S, return_when=FIRST_COMPLETED)
        if not done:
            pool.check()
        for future in done:
            result = future.result()
            yield under_way.pop(future), result


def process_pool(workers: int | None) -> tuple[Callable[[], AbstractContextManager[Pool]] | None, int]:
    """Return the maker of a pool of processes on this machine, and their number; no pool for one process.

    Where no number is given there are as many as cores; a process that is a worker itself starts none. The processes
    end with the pool, and with the process that made it, however that ends.

    Raises:
        InputError: no process, or too many.
    """
    number = workers if workers is not None else cores() if parent_process() is None else 1
    if not 1 <= number <= _MAX_WORKERS:
        raise InputError(f"workers must be from 1 to {_MAX_WORKERS:,}, not {number}")
    return (None if number == 1 else partial(_processes, number)), number


def cores() -> int:
    """Count the cores that this process may run on: those of the machine where the system does not say."""
    known = getattr(os, "sched_getaffinity", None)  # Linux has it
    return len(known(0)) if known is not None else os.cpu_count() or 1


@contextmanager
def _processes(number: int) -> Iterator[Pool]:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    class Processes(ProcessPoolExecutor):
        """Starts processes that a terminal's signals pass by: when they end is for their parent to say."""

        def submit(self, *task: Any, **options: Any) -> Future[Any]:
            with started_apart():
                return super().submit(*task, **options)

    with started_apart():  # what counts the pool's semaphores is started here, as a process too
        executor = Processes(number, mp_context=get_context("spawn"), initializer=end_with_parent)
    try:
        yield Pool(executor)
    except BaseException:
        for process in list((executor._processes or {}).values()):  # noqa: SLF001  public as kill_workers from 3.14 on
            process.kill()
        raise
    finally:
        executor.shutdown()


def cluster_pool(address: str) -> tuple[Callable[[], AbstractContextManager[Pool]], int]:
    """Return the connection to a Dask cluster that does tasks, and the number of its workers' threads.

    Raises:
        InputError: Dask is not installed, or there is no scheduler at the address.
    """
    try:
        import distributed  # noqa: F401  whether it is there
    except ImportError:
        raise InputError("a cluster needs Dask", hint="pip install 'kvcalc[cluster]'") from None
    address_parts = _ADDRESS.fullmatch(address)
    if address_parts is None or not 1 <= int(address_parts[1] or 1) <= _MAX_PORT:
        raise _no_scheduler(address, "not an address of the form tcp://HOST:PORT")
    with _connected(address) as client:
        threads = sum(client.nthreads().values())
    if not threads:
        raise InputError(f"the cluster at {address} has no workers", hint=f"start one: dask worker {address}")
    return partial(_cluster, address), threads


@contextmanager
def _cluster(address: str) -> Iterator[Pool]:
    from distributed import KilledWorker

    with _connected(address) as client:
        executor = client.get_executor(pure=False)
        try:
            yield Pool(executor, _Watch(client, address))
        except KilledWorker as error:
            raise KvcalcError(f"workers of the cluster ended again and again: {error}"[:300]) from None
        except ImportError as error:
            hint = "install the same kvcalc on them"
            raise KvcalcError(f"the workers of the cluster cannot run the tasks: {error}"[:300], hint=hint) from None
        except Exception as error:
            if isinstance(error, KvcalcError) or (client.status == "running" and not isinstance(error, CancelledError)):
                raise
            raise KvcalcError(f"the Dask scheduler at {address} has gone") from None
        finally:
            with suppress(Exception):  # there may be nobody who could cancel what is under way
                executor.shutdown(wait=False)


class _Watch:
    """Looks whether a cluster has workers; called while its tasks are waited for."""

    def __init__(self, client: Any, address: str) -> None:
        self._client, self._address = client, address
        self._none_since_s: float | None = None

    def __call__(self) -> None:
        """Look.

        Raises:
            KvcalcError: no worker for some time, or no answer.
        """
        try:
            threads = self._client.sync(self._client.scheduler.ncores, callback_timeout=_ANSWER_S)
        except (OSError, TimeoutError):
            raise KvcalcError(f"the Dask scheduler at {self._address} does not answer") from None
        if threads:
            self._none_since_s = None
            return
        now_s = monotonic()
        self._none_since_s = self._none_since_s or now_s
        if now_s - self._none_since_s >= _WITHOUT_WORKERS_S:
            raise KvcalcError(
                f"the cluster at {self._address} has no workers left", hint=f"start one: dask worker {self._address}"
            )


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Give a client of a scheduler, which tells its faults by what it raises, not in a log of its own."""
    import logging

    from distributed import Client

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        client = _connect(Client, address)
        try:
            yield client
        finally:
            client.close(timeout=_CLOSE_S)
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _connect(kind: Any, address: str) -> Any:
    client = kind.__new__(kind)
    try:
        client.__init__(address, timeout=_CONNECT, set_as_default=False)
    except (OSError, TypeError, ValueError) as error:
        with suppress(Exception):
            client.close(timeout=_CLOSE_S)
        client.status = "closed"  # at its end it would else be closed again, which takes 20 s and prints an error
        raise _no_scheduler(address, str(error).partition("\n")[0] or type(error).__name__) from None
    return client


def _no_scheduler(address: str, why: str) -> InputError:
    return InputError(f"no Dask scheduler at {address}: {why}"[:300], hint="for example tcp://10.0.0.1:8786")
