"""What each command prints is pinned: its table at two widths, and every field of its JSON."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path

import pytest

from kvcalc.cli.main import COMMANDS
from kvcalc.render.layout import Grid, laid_out, words_of
from kvcalc.render.tables import table_parts

ROOT = Path(__file__).parents[2]


def _writer():
    spec = importlib.util.spec_from_file_location("write_goldens", ROOT / "tests" / "tools" / "write_goldens.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


WRITER = _writer()
TABLES = WRITER.tables.TABLES
PINNED = {name: WRITER.tables.pinned(name) for name in TABLES}


@pytest.mark.parametrize("case", WRITER.CASES)
def test_a_command_prints_what_is_pinned(case: str) -> None:
    changed = WRITER.differences(case)
    assert not changed, f"python tests/tools/write_goldens.py {case} pins what is printed now:\n{changed}"


@pytest.mark.parametrize(("table", "row"), [(name, row) for name, table in TABLES.items() for row in table.inputs])
def test_a_row_of_a_table_is_answered_as_it_is_pinned(table: str, row: str) -> None:
    assert TABLES[table].answer(TABLES[table].inputs[row]) == PINNED[table][row]


def test_every_row_of_a_table_is_pinned() -> None:
    assert {name: set(rows) for name, rows in PINNED.items()} == {
        name: set(each.inputs) for name, each in TABLES.items()
    }


def test_every_command_that_reports_is_pinned() -> None:
    first_words = {
        name if command == "fixed report" else shlex.split(command)[1] for name, command in WRITER.CASES.items()
    }
    assert first_words == set(COMMANDS) - {"completion", "explore"}


LAYOUTS = [name for name, command in WRITER.CASES.items() if WRITER.is_laid_out(command)]


@pytest.mark.parametrize("case", LAYOUTS)
def test_no_number_and_no_word_is_broken_at_any_width(case: str) -> None:
    grids = [part for part in table_parts(WRITER.report_of(case)) if isinstance(part, Grid)]
    for width in range(60, 141, 4):
        for each in grids:
            shown = laid_out([each], width=width, styled=False)
            assert not _broken(each, shown), (width, shown)
            lines = shown.splitlines()
            longest = max((len(word) for row in each.rows for cell in row for word in words_of(cell)), default=0)
            indent = max(len(column.name) for column in each.columns) + 2
            assert all(len(line) <= max(width, indent + longest) for line in lines), (width, shown)


# Cases that draw a chart in characters with nothing else that may be wider: no address, no command to copy.
DRAWN = [name for name, command in WRITER.CASES.items() if command.split()[1] in {"demo", "speculate"}]


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("case", DRAWN)
def test_a_chart_is_no_wider_than_the_terminal(case: str, width: int) -> None:
    printed = WRITER.printed(case, width)
    assert [line for line in printed.splitlines() if len(line) > width] == []


def _broken(grid: Grid, shown: str) -> list[str]:
    """The words and numbers of a grid that no line of it has whole, but those of columns that gave way."""
    note = " ".join(shown.partition("(not shown: ")[2].split())
    kept = [index for index, column in enumerate(grid.columns) if not column.name or column.name not in note]
    words = {word for row in grid.rows for index in kept for word in words_of(row[index])}
    return sorted(word for word in words if word not in shown)


HELP_PAGES = WRITER.help_pages()


@pytest.mark.parametrize("page", HELP_PAGES)
def test_help_is_what_is_pinned(page: str) -> None:
    pinned = (WRITER.HELP / page).read_text(encoding="utf-8")
    assert HELP_PAGES[page] == pinned, "python tests/tools/write_goldens.py pins what is printed now"


def test_no_line_of_help_is_wider_than_the_terminal() -> None:
    assert set(HELP_PAGES) == {path.name for path in WRITER.HELP.iterdir()}
    wide = [line for text in HELP_PAGES.values() for line in text.splitlines() if len(line) > WRITER.WIDTHS[0]]
    assert not [line for line in wide if len(line.split()) > 1]


def test_no_file_is_left_of_a_case_that_is_gone() -> None:
    files = [path for path in WRITER.GOLDEN.iterdir() if path.suffix in {".txt", ".json"}]
    tables = {WRITER.GOLDEN / f"table-{name}.json" for name in TABLES}
    assert set(files) == tables.union(*map(WRITER.files_of, WRITER.CASES))
