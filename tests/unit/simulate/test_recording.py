"""What a run leaves on disk: a row for each request, every figure in its own column, and spans on a timeline."""

from kvcalc.core.requests import Request
from kvcalc.simulate.observers import Run, Served
from kvcalc.simulate.recording import REQUEST_COLUMNS, RequestRows, TimelineRecorder

# Every figure is another one, so that two that change places are seen.
REQUEST = Request("a", 1.0, 70, 9)
SERVED = Served(
    REQUEST, admitted_s=1.5, first_token_s=2.25, finish_s=6.25, output_tokens=5, preemptions=2, cached_tokens=48
)


def rows_of(*events):
    rows = []
    recorder = RequestRows(rows.append)
    for name, arguments in events:
        getattr(recorder, name)(*arguments)
    return [dict(zip(REQUEST_COLUMNS, row, strict=True)) for row in rows]


def test_a_request_has_each_figure_in_its_column():
    (row,) = rows_of(("finished", (SERVED,)))
    assert row == {
        "request": "a", "arrival_s": 1.0, "admitted_s": 1.5, "first_token_s": 2.25, "finish_s": 6.25, "prompt_tokens": 70,
        "output_tokens": 5, "cached_tokens": 48, "preemptions": 2, "queue_s": 0.5, "ttft_s": 1.25, "tpot_s": 1.0, "e2e_s": 5.25,
        "refused": None,
    }  # fmt: skip


def test_an_answer_of_one_token_has_no_time_per_token():
    (row,) = rows_of(("finished", (SERVED._replace(output_tokens=1, finish_s=2.25),)))
    assert (row["tpot_s"], row["e2e_s"]) == (None, 1.25)


def test_a_refused_request_has_its_prompt_and_the_reason_but_no_times():
    (row,) = rows_of(("refused", (REQUEST, 3.0, "too long")))
    assert {name: value for name, value in row.items() if value is not None} == {
        "request": "a", "arrival_s": 1.0, "prompt_tokens": 70, "output_tokens": 0, "cached_tokens": 0, "preemptions": 0,
        "refused": "too long",
    }  # fmt: skip


class Timeline:
    """Keeps what it is given."""

    def __init__(self):
        self.written = []

    def __getattr__(self, kind):
        return lambda *values: self.written.append((kind, *values))


def test_a_request_has_a_span_for_each_stretch_that_takes_time():
    timeline = Timeline()
    recorder = TimelineRecorder(timeline)
    recorder.finished(SERVED)
    recorder.finished(SERVED._replace(admitted_s=1.0, finish_s=2.25))  # it neither waits nor decodes
    assert timeline.written == [
        ("process", 0, "requests"),
        ("span", 0, "a", "queue", 1.0, 1.5),
        ("span", 0, "a", "prefill", 1.5, 2.25),
        ("span", 0, "a", "decode", 2.25, 6.25),
        ("span", 0, "a", "prefill", 1.0, 2.25),
    ]


def test_the_queue_is_counted_at_each_change_in_order_of_time():
    """Who leaves at the moment at which another comes has left before."""
    timeline = Timeline()
    recorder = TimelineRecorder(timeline)
    for start_s, end_s in ((2.0, 3.0), (1.0, 2.0), (4.0, 4.0), (2.5, 5.0)):
        recorder.waited(start_s, end_s)
    recorder.end()
    counts = [(at_s, values["waiting"]) for kind, _, _, at_s, values in timeline.written[1:] if kind == "count"]
    assert counts == [(1.0, 1), (2.0, 0), (2.0, 1), (2.5, 2), (3.0, 1), (5.0, 0)]


def test_each_engine_has_a_track_of_its_own_behind_that_of_requests():
    timeline = Timeline()
    recorder = TimelineRecorder(timeline)
    run = Run(**{name: place + 1 for place, name in enumerate(Run._fields)})
    for number in (0, 1):
        recorder.engine(number).runs([run])
    assert timeline.written[1:3] == [
        ("process", 1, "engine 0"),
        (
            "work", 1, f"{run.running} running", run.start_s, run.end_s,
            {"steps": run.steps, "prefill_tokens": run.prefill_tokens, "limiter": run.limiter},
        ),
    ]  # fmt: skip
    assert timeline.written[3:5] == [
        ("count", 1, "requests", run.start_s, {"running": run.running}),
        ("count", 1, "blocks", run.start_s, {"used": run.blocks}),
    ]
    assert {process for _, process, *_ in timeline.written[5:]} == {2}
