"""Lines and grids: what fits stays in one line, prose is broken, then columns give way by rank, then rows become records."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.render.layout import Column, Drawing, Grid, Text, laid_out, words_of
from kvcalc.render.tables import facts, takes_unicode

cells = st.text("ab c", max_size=30).map(str.strip)


def _grid(*rows, **options):
    return Grid([Column(name) for name in ("one", "two")], [list(row) for row in rows], **options)


def test_columns_are_as_wide_as_their_cells():
    assert (
        laid_out([_grid(("a", "bbbb"), ("cccccc", "d"))], width=80, styled=False)
        == "one     two\na       bbbb\ncccccc  d\n"
    )


def test_numbers_stand_right():
    grid = Grid([Column("n", justify="right")], [["1"], ["100"]])
    assert laid_out([grid], width=80, styled=False) == "  n\n  1\n100\n"


def test_the_widest_column_is_broken_between_words():
    shown = laid_out([_grid(("abc", "one two three"))], width=13, styled=False)
    assert shown == "one  two\nabc  one two\n     three\n"


def test_a_word_that_is_too_long_is_not_broken():
    assert laid_out([_grid(("abc", "x" * 10), header=False)], width=10, styled=False) == f"abc\n    {'x' * 10}\n"


def test_a_number_keeps_its_unit():
    shown = laid_out([_grid(("abc", "takes 1.25 GiB of 24 GB"))], width=15, styled=False)
    assert shown == "one  two\nabc  takes\n     1.25 GiB\n     of 24 GB\n"


def test_a_value_is_not_broken_for_the_remark_beside_it_which_then_stands_below():
    value, remark = "p50 8.83 ms, p95 9.62 ms, p99 9.90 ms", "p95 9.27 ms to 11.16 ms (80% interval)"
    facts_of = facts([("TTFT", value, remark), ("load", "9 requests/s", "24 running")])
    assert laid_out([facts_of], width=60, styled=False).splitlines() == [
        f"TTFT  {value}", f"      {remark}", "load  9 requests/s  24 running",
    ]  # fmt: skip
    assert laid_out([facts_of], width=20, styled=False).splitlines()[:2] == ["TTFT", "    p50 8.83 ms, p95"]


NUMBERS = [Column("batch", justify="right"), Column("tokens/s", justify="right"), Column("serial", justify="right", rank=2),
           Column("FLOP/B", justify="right", rank=1)]  # fmt: skip
ROW = ["1", "1,219.26", "10.25 ms", "1,234.50"]


def test_columns_give_way_by_rank_and_are_named():
    shown = laid_out([Grid(NUMBERS, [ROW])], width=28, styled=False)
    assert shown.splitlines()[:2] == ["batch  tokens/s    FLOP/B", "    1  1,219.26  1,234.50"]
    assert "not shown: serial" in " ".join(shown.split())
    shown = laid_out([Grid(NUMBERS, [ROW])], width=20, styled=False)
    assert shown.splitlines()[:2] == ["batch  tokens/s", "    1  1,219.26"]


def test_rows_become_records_side_by_side_where_no_column_may_go():
    columns = [Column(column.name, justify="right") for column in NUMBERS]
    shown = laid_out([Grid(columns, [ROW, ["8", "2,000.00", "9.00 ms", "7.00"]])], width=30, styled=False)
    assert shown.splitlines() == [
        "batch     1         8",
        "tokens/s  1,219.26  2,000.00",
        "serial    10.25 ms  9.00 ms",
        "FLOP/B    1,234.50  7.00",
    ]


def test_lines_are_broken_between_words_where_they_are_wider_than_the_terminal():
    note = Text("note: started for the 8,192 tokens asked for")
    assert laid_out([note], width=24, styled=False) == "note: started for the\n  8,192 tokens asked for\n"
    assert laid_out([note], width=24, styled=False, wraps=False) == f"{note.plain}\n"
    command = Text("start it with: --max-model-len 8192", wraps=False)
    assert laid_out([command], width=24, styled=False) == f"{command.plain}\n"


def test_nothing_but_ascii_is_printed_where_only_that_is_taken():
    drawing = Drawing(lambda width, plain: f"{width} {'#' if plain else '█'}")
    shown = laid_out([Text("290.11 µs …"), drawing], width=60, styled=False, ascii_only=True)
    assert shown == "290.11 us ...\n60 #\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TERM": "dumb"}, False),
        ({"LC_ALL": "C"}, False),
        ({"LANG": "C"}, False),
        ({"LC_ALL": "en_US.UTF-8", "LANG": "C"}, True),
        ({"TERM": "xterm"}, True),
    ],
)
def test_the_kind_of_terminal_and_the_locale_decide_what_is_taken(variables, expected, monkeypatch):
    for name in ("TERM", "LC_ALL", "LC_CTYPE", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert takes_unicode() is expected


def test_styles_are_printed_only_where_they_are_wanted():
    parts = [Text("bad", style="bold red"), Text()]
    assert laid_out(parts, width=80, styled=True) == "\x1b[1;31mbad\x1b[0m\n\n"
    assert laid_out(parts, width=80, styled=False) == "bad\n\n"


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5), st.integers(12, 60))
def test_nothing_is_lost_and_the_width_is_kept(rows, width):
    grid = Grid([Column("x"), Column("y"), Column("z")], [list(row) for row in rows])
    shown = laid_out([grid], width=width, styled=False)
    words = sorted(word for row in rows for cell in row for word in words_of(cell) if word)
    longest = max(map(len, words), default=0)
    assert all(len(line) <= max(width, len("x  ") + longest) for line in shown.splitlines())
    names = {"x", "y", "z"}
    assert sorted(word for word in shown.split() if word not in names) == words


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_no_colour_where_it_is_not_wanted(variable, value, monkeypatch):
    import sys

    import kvcalc
    from kvcalc.render.tables import table_text

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    report = kvcalc.decode(kvcalc.deployment("llama2-70b", gpu="h100-sxm"))
    assert "\x1b[" in table_text(report)
    monkeypatch.setenv(variable, value)
    assert "\x1b[" not in table_text(report)
