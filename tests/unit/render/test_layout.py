"""Lines and grids: what fits stays in one line, the widest column gives way first, nothing is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.render.layout import Column, Grid, Text, laid_out

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
    shown = laid_out([_grid(("abc", "one two three"), header=False)], width=13, styled=False)
    assert shown == "abc  one two\n     three\n"


def test_a_word_that_is_too_long_is_broken_inside():
    assert laid_out([_grid(("abc", "x" * 10), header=False)], width=10, styled=False) == "abc  xxxxx\n     xxxxx\n"


def test_styles_are_printed_only_where_they_are_wanted():
    parts = [Text("bad", style="bold red"), Text()]
    assert laid_out(parts, width=80, styled=True) == "\x1b[1;31mbad\x1b[0m\n\n"
    assert laid_out(parts, width=80, styled=False) == "bad\n\n"


@given(st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=5), st.integers(12, 60))
def test_nothing_is_lost_and_the_width_is_kept(rows, width):
    grid = Grid([Column("x"), Column("y", justify="right"), Column("z")], [list(row) for row in rows])
    shown = laid_out([grid], width=width, styled=False)
    assert all(len(line) <= max(width, 7) for line in shown.splitlines())
    letters = sorted("".join("".join(row) for row in [("x", "y", "z"), *rows]).replace(" ", ""))
    assert sorted(shown.replace(" ", "").replace("\n", "")) == letters


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
