"""Traces: the known ones by their columns, any other with a mapping, and what a bad row says."""

import json

import pytest

from kvcalc.core.errors import InputError, ProfileError
from kvcalc.core.requests import Segment
from kvcalc.importers.traces import TraceColumns, is_trace, parse_columns, read_trace

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
FIRST = "2023-11-16 18:59:59.9999999,374,44\r\n"


def _read(tmp_path, text, name="trace.csv", **options):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return list(read_trace(path, **options))


def _mooncake(**changed):
    row = {"timestamp": 27, "input_length": 1100, "output_length": 5, "hash_ids": [0, 7, 8]}
    return json.dumps(row | changed) + "\n"


def test_azure_times_count_from_the_first_request_to_the_last_digit(tmp_path):
    first, second = _read(tmp_path, AZURE + FIRST + "2023-11-16 19:00:00.0000001,2,7\r\n")
    assert (first.name, first.arrival_s, first.prompt_tokens, first.output_tokens) == ("1", 0.0, 374, 44)
    assert second.arrival_s == pytest.approx(2e-7, abs=1e-14)
    assert (second.prompt, second.output_stream) == ((), None)


@pytest.mark.parametrize(
    ("dates", "seconds"),
    [
        (("2024-02-28T23:59:59Z", "2024-02-29T00:00:01Z"), 2.0),
        (("2024-05-01 10:00:00+02:00", "2024-05-01 10:00:00+01:00"), 3600.0),
        (("2024-05-01 10:00:00", "2024-05-01 10:00:00.5"), 0.5),
        (("2024-05-01", "2024-05-02"), 86400.0),
        (("1.5", "4"), 2.5),
    ],
)
def test_dates_and_numbers_are_times(tmp_path, dates, seconds):
    text = AZURE + "".join(f"{date},1,1\n" for date in dates)
    assert _read(tmp_path, text)[1].arrival_s == seconds


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        (("2024-02-28 23:59:58", "2024-02-29 00:00:01"), [86398.0, 86401.0]),
        (("2024-05-01T10:00:00+02:00", "2024-05-01T10:00:00+01:00"), [8 * 3600.0, 9 * 3600.0]),
        (("172801.5", "172804"), [1.5, 4.0]),
    ],
)
def test_times_count_from_midnight_where_that_is_asked_for(tmp_path, times, seconds):
    found = _read(tmp_path, AZURE + "".join(f"{time},1,1\n" for time in times), since_midnight=True)
    assert [request.arrival_s for request in found] == seconds


@pytest.mark.parametrize(
    ("text", "columns", "known"),
    [
        (AZURE + FIRST, None, True),
        (_mooncake(), None, True),
        ("start,rate\n0,1\n", None, False),
        ("ts,in,out\n0,1,2\n", None, False),
        ("ts,in,out\n0,1,2\n", "time=ts,prompt=in,output=out", True),
        ("start,rate\n0,1\n", "time=ts,prompt=in,output=out", False),
        ("", None, False),
    ],
)
def test_a_trace_is_known_by_its_first_line(tmp_path, text, columns, known):
    (tmp_path / "file.csv").write_text(text)
    assert is_trace(tmp_path / "file.csv", columns=columns) is known


def test_requests_may_come_at_the_same_time(tmp_path):
    """Real traces are full of them: only a time that goes back is a fault."""
    same = _read(tmp_path, AZURE + FIRST + FIRST + FIRST.replace("374", "5"))
    assert [request.arrival_s for request in same] == [0.0, 0.0, 0.0]
    later = _mooncake(timestamp=127)
    assert [each.arrival_s for each in _read(tmp_path, _mooncake() + later + later, "t.jsonl")] == [0.0, 0.1, 0.1]


def test_mooncake_hashes_become_places_of_one_stream(tmp_path):
    first, second = _read(tmp_path, _mooncake() + _mooncake(timestamp=1027, hash_ids=[0, 9, 7]), "trace.jsonl")
    assert first.prompt == (Segment(0, 0, 512), Segment(0, 7 * 512, 588))
    assert second.prompt == (Segment(0, 0, 512), Segment(0, 9 * 512, 512), Segment(0, 7 * 512, 76))
    assert second.arrival_s == 1.0


def test_any_file_is_read_with_a_mapping(tmp_path):
    columns = parse_columns("time=when:ms,prompt=in,output=out")
    csv = _read(tmp_path, "in,x,out,when\n5,,6,100\n7,,8,350\n", columns=columns)
    lines = '{"in": 5, "out": 6, "when": 100}\n\n{"out": 8, "in": 7, "when": 350.0}\n'
    assert csv == _read(tmp_path, lines, "trace.json", columns=columns)
    assert [request.arrival_s for request in csv] == [0.0, 0.25]
    assert [(request.prompt_tokens, request.output_tokens) for request in csv] == [(5, 6), (7, 8)]


def test_times_that_are_replaced_are_not_looked_at(tmp_path):
    columns = TraceColumns(prompt="in", output="out")
    found = _read(tmp_path, "in,out\n1,2\n3,4\n5,6\n", columns=columns, times=[7.0, 8.0])
    assert [(one.arrival_s, one.prompt_tokens) for one in found] == [(7.0, 1), (8.0, 3)]
    assert len(_read(tmp_path, AZURE + "never,1,1\n", times=[0.0])) == 1


@pytest.mark.parametrize(
    ("text", "where", "what"),
    [
        (AZURE, "trace.csv", "no requests"),
        ("", "trace.csv:1", "not those of a known trace: none"),
        ("a,b\n1,2\n", "trace.csv:1", "not those of a known trace: a, b"),
        (AZURE + FIRST + "2023-11-16 19:00:00,-5,7\n", "trace.csv:3", "ContextTokens must be from 1"),
        (AZURE + FIRST + "2023-11-16 19:00:00,5,0\n", "trace.csv:3", "GeneratedTokens must be from 1"),
        (AZURE + FIRST + "2023-11-16 19:00:00,5.5,7\n", "trace.csv:3", "'5.5' is not a whole number"),
        (AZURE + FIRST + "\n2023-11-16 19:00:00,,7\n", "trace.csv:4", "'' is not a whole number"),
        (AZURE + FIRST + "2023-11-16 19:00:00,5\n", "trace.csv:3", "2 cells, fewer than the header's 3"),
        (AZURE + FIRST + "2023-11-16 19:00:00,1,024,44\n", "trace.csv:3", "4 cells, more than the header's 3"),
        (AZURE.strip() + ",ContextTokens\n" + "2023,5,7,6\n", "trace.csv:1", "2 columns are named 'ContextTokens'"),
        (AZURE.strip() + ",Note\n" + "2023,5,7\n", "trace.csv:2", "3 cells, fewer than the header's 4"),
        (AZURE + FIRST + "2023-11-16 18:59:58,5,7\n", "trace.csv:3", "the time goes back by 2 s"),
        (AZURE + "yesterday,5,7\n", "trace.csv:2", "'yesterday' is not a time"),
        (AZURE + "nan,5,7\n", "trace.csv:2", "'nan' is not a time"),
        (AZURE + FIRST + f"2023-11-16 19:00:00,{'9' * 5000},7\n", "trace.csv:3", "is not a whole number"),
        (b"\xff\xfe\x00", "trace.csv:1", "not those of a known trace"),
    ],
)  # fmt: skip
def test_a_bad_row_says_where_it_is(tmp_path, text, where, what):
    with pytest.raises(InputError, match=what) as error:
        _read(tmp_path, text)
    assert error.value.where.endswith(where)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("{", "not JSON"),
        ("[1]\n", "not a JSON object"),
        (_mooncake().replace("{", '{"input_length": 3, ', 1), "the key 'input_length' stands twice"),
        ("[" * 100_000, "not JSON|nested too deeply"),
        (_mooncake(hash_ids=[0]), "1 ids in hash_ids for a prompt of 1,100 tokens"),
        (_mooncake(hash_ids=[0, -1, 3]), "not a list of whole numbers"),
        (_mooncake(hash_ids="x"), "not a list of whole numbers"),
        (_mooncake(input_length=True), "not a whole number"),
        (_mooncake(input_length=None), "not a whole number"),
        (_mooncake(timestamp=None), "not a time"),
        (_mooncake(timestamp=float("inf")), "not a time"),
    ],
)
def test_a_bad_line_says_where_it_is(tmp_path, text, what):
    with pytest.raises(InputError, match=what) as error:
        _read(tmp_path, _mooncake() + text, "trace.jsonl")
    assert error.value.where.endswith("trace.jsonl:2")


def test_a_key_that_goes_missing_is_named(tmp_path):
    with pytest.raises(InputError, match="no column 'output_length'"):
        _read(tmp_path, _mooncake() + '{"timestamp": 28, "input_length": 3, "hash_ids": [1]}', "trace.jsonl")


def test_a_column_that_is_not_there_is_hinted_at(tmp_path):
    with pytest.raises(InputError, match="no column 'inn'") as error:
        _read(tmp_path, "in,out\n1,2\n", columns=parse_columns("prompt=inn,output=out"), times=[0.0])
    assert error.value.hint == "did you mean in?"


def test_a_trace_without_times_asks_for_them(tmp_path):
    with pytest.raises(InputError, match="no times"):
        _read(tmp_path, "in,out\n1,2\n", columns=parse_columns("prompt=in,output=out"))


@pytest.mark.parametrize(
    "text", ["", "prompt=in", "prompt=in,output=", "size=in,output=out", "time=t:weeks,prompt=a,output=b"]
)
def test_a_mapping_that_says_too_little_is_refused(text):
    with pytest.raises(InputError):
        parse_columns(text)


def test_rows_are_read_as_they_are_asked_for(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + FIRST + "rubbish\n")
    assert next(read_trace(path)).prompt_tokens == 374


def test_a_column_of_priorities(tmp_path):
    columns = parse_columns("time=t,prompt=in,output=out,priority=class")
    found = _read(tmp_path, "t,in,out,class\n0,5,6,2\n1,5,6,-1\n", columns=columns)
    assert [request.priority for request in found] == [2, -1]
    for wrong in ("high", "1.5", "", "1000000001"):
        with pytest.raises(InputError, match="class") as error:
            _read(tmp_path, f"t,in,out,class\n0,5,6,2\n1,5,6,{wrong}\n", columns=columns)
        assert ":3" in str(error.value)


def test_tokens_beyond_any_number_are_refused(tmp_path):
    with pytest.raises(InputError, match="input_length inf is not a whole number of tokens"):
        _read(tmp_path, _mooncake().replace("1100", "1e400"), "trace.jsonl")


def test_a_time_beyond_any_trace_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"1e\+300 s after the first") as caught:
        _read(tmp_path, "t,p,o\n0,5,5\n1e300,5,5\n", columns=parse_columns("time=t,prompt=p,output=o"))
    assert caught.value.where.endswith("trace.csv:3")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("trace.csv", AZURE + "," * 600_000 + "\n"),
        ("trace.csv", AZURE + '"a\n",' * 300_000),
        ("trace.csv", AZURE + "\n" * 600_000),
        ("trace.jsonl", "\n" * 600_000),
        ("trace.jsonl", '{"timestamp": [' + "[]," * 400_000),
    ],
)
def test_a_row_that_does_not_end_is_refused_before_it_is_read_whole(tmp_path, name, text):
    with pytest.raises(ProfileError, match="500,000 characters in one row"):
        _read(tmp_path, text, name)


@pytest.mark.parametrize("name", ["trace.tsv", "TRACE.TSV"])
def test_tabs_are_between_the_cells_of_a_tsv_whatever_the_case_of_its_ending(tmp_path, name):
    columns = TraceColumns(prompt="in, all", output="out")
    (found,) = _read(tmp_path, "in, all\tout\n5\t6\n", name, columns=columns, times=[0.0])
    assert (found.prompt_tokens, found.output_tokens) == (5, 6)
