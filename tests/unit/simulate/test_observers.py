"""What observers of a run are told, and when those that look at the clock speak: on a clock that is set by hand."""

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Request
from kvcalc.simulate import observers
from kvcalc.simulate.observers import CompositeObserver, Observer, Progress, Refusals, Served, TimeLimit, Waits, Watch

REQUEST = Request("a", 1.0, 70, 9)
SERVED = Served(REQUEST, 1.5, 2.0, 6.0, 5, 0, 0)
EVENTS = {
    "runs": ([],),
    "admitted": (REQUEST, 1.5, 0),
    "preempted": (REQUEST, 2.0),
    "gap": (REQUEST, 0.5),
    "finished": (SERVED,),
    "refused": (REQUEST, 1.0, "too long"),
}


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the clock on the wall shows."""
    shown = [0.0]
    monkeypatch.setattr(observers, "monotonic", lambda: shown[0])
    return shown


def noting(told, *names):
    """An observer of these events alone."""
    methods = {name: lambda _, *values, name=name: told.append((name, values)) for name in names}
    return type("Noting", (Observer,), methods)()


@pytest.mark.parametrize("name", EVENTS)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_each_event_reaches_all_that_take_it_in_and_once(name, count):
    told = []
    others = [noting(told, *(other for other in EVENTS if other != name)) for _ in range(2)]
    inner = CompositeObserver([noting(told, name) for _ in range(count)])
    getattr(CompositeObserver([others[0], inner, others[1]]), name)(*EVENTS[name])
    assert told == [(name, EVENTS[name])] * count


def test_a_wait_begins_at_the_arrival_or_at_the_last_preemption():
    waits = []
    observer = type("Noting", (Waits,), {"waited": lambda _, *both: waits.append(both)})()
    observer.admitted(REQUEST, 1.5, 0)
    observer.preempted(REQUEST, 2.0)
    observer.admitted(Request("b", 2.5, 1, 1), 3.0, 0)
    observer.admitted(REQUEST, 4.0, 0)
    observer.admitted(REQUEST, 5.0, 0)  # lost nothing since
    assert waits == [(1.0, 1.5), (2.5, 3.0), (2.0, 4.0), (1.0, 5.0)]


@pytest.mark.parametrize(
    ("count", "notes"),
    [(0, ()), (1, ("request r0 can never run: too long",)),
     (2, ("request r0 can never run: too long; 2 requests cannot",)),
     (1200, ("request r0 can never run: too long; 1,200 requests cannot",))],
)  # fmt: skip
def test_the_first_request_that_cannot_run_is_named_and_several_are_counted(count, notes):
    refusals = Refusals()
    for number in range(count):
        refusals.refused(Request(f"r{number}", 0.0, 1, 1), 0.0, "too long" if not number else "too late")
    assert refusals.notes() == notes


def test_progress_is_told_every_so_many_requests():
    told, every = [], observers._REPORTED_EVERY  # noqa: SLF001
    progress = Progress(lambda done, of: told.append((done, of)), of=3 * every)
    for _ in range(2 * every + 1):
        progress.finished(SERVED)
    assert told == [(every, 3 * every), (2 * every, 3 * every)]


def test_a_run_tells_what_it_has_come_to_no_oftener_than_asked(clock):
    told = []
    watch = Watch(lambda done: told.append((clock[0], done)), every_s=2.0)
    for seconds in (0.0, 1.9, 2.0, 2.1, 3.9, 4.5, 6.4, 6.5):
        clock[0] = seconds
        watch.finished(SERVED)
        watch.runs([])
    assert told == [(2.0, 3), (4.5, 6), (6.5, 8)]


@pytest.mark.parametrize("event", ["runs", "admitted", "preempted"])
def test_a_simulation_may_take_as_long_as_it_may_and_no_longer(clock, event):
    clock[0] = 100.0
    limit = TimeLimit(9.0)
    clock[0] = 109.0
    getattr(limit, event)(*EVENTS[event])
    clock[0] = 109.001
    with pytest.raises(InputError, match="takes longer than 9 s"):
        getattr(limit, event)(*EVENTS[event])
