"""Traces of requests: files that say when each request came and how long it was.

Read line by line, so that a trace of any length takes little memory. Azure's traces of inference (CSV) and Mooncake's
(JSON lines, with ids of 512-token prefix blocks) are known by their column names; any other CSV or JSON-lines file is
read with a mapping of its columns.
"""

from __future__ import annotations

import csv
import json
import math
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, ProfileError, did_you_mean
from kvcalc.core.ranges import check_between
from kvcalc.core.requests import Request, Segment
from kvcalc.core.units import SECONDS_PER_DAY, ceil_div, parse_seconds
from kvcalc.files import BoundedLines, open_text, unique_keys

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["TraceColumns", "is_trace", "parse_columns", "read_trace"]

_MAX_TOKENS = 10**9
_LONGEST_S = 1e10
_LONGEST_ROW = 500_000
_MAX_PRIORITY = 10**9
_MAX_SHOWN = 60
# Length of ``2023-11-16 18:15:``: what comes before the seconds of a date.
_MINUTE = 17
# Tokens of one of Mooncake's blocks: Qin et al. 2024, arXiv 2407.00079, the trace's own description.
_HASHED_TOKENS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """Columns, or JSON keys, of a trace by their meaning.

    Args:
        prompt: tokens of the prompt.
        output: tokens generated.
        time: when the request came: a date, or a number of ``time_unit_s``; none where times are not in the file.
        hashes: a list of ids of the prompt's blocks, equal where a block and all before it are.
        priority: whole numbers, the lowest of which go first where the policy asks for it.
        time_unit_s: the unit of times that are numbers, in seconds.
        hashed_tokens: tokens of such a block.
    """

    prompt: str
    output: str
    time: str | None = None
    hashes: str | None = None
    priority: str | None = None
    time_unit_s: float = 1.0
    hashed_tokens: int = _HASHED_TOKENS

    @property
    def names(self) -> tuple[str | None, str, str, str | None, str | None]:
        """The columns in the order time, prompt, output, hashes, priority."""
        return self.time, self.prompt, self.output, self.hashes, self.priority

    def stand_in(self, header: Sequence[str]) -> bool:
        """Whether a header has all these columns."""
        return all(name is None or name in header for name in self.names)


_KNOWN = (
    TraceColumns(time="TIMESTAMP", prompt="ContextTokens", output="GeneratedTokens"),
    TraceColumns(
        time="timestamp",
        prompt="input_length",
        output="output_length",
        hashes="hash_ids",
        time_unit_s=parse_seconds("1ms"),
    ),
)
_FIELDS = ("time", "prompt", "output", "hashes", "priority")
_MAPPING_HINT = "name them: time=ts:ms,prompt=in_tokens,output=out_tokens (times are in seconds unless a unit follows)"


def parse_columns(text: str) -> TraceColumns:
    """Read a mapping of columns such as ``time=ts:ms,prompt=in,output=out,hashes=ids,priority=class``.

    Raises:
        InputError: a field that is not known, or no column for the prompt or the output.

    >>> parse_columns("time=ts:ms,prompt=in,output=out").time_unit_s
    0.001
    """
    named: dict[str, str] = {}
    for part in text.split(","):
        field, _, column = (word.strip() for word in part.partition("="))
        if field not in _FIELDS or not column:
            hint = did_you_mean(field, _FIELDS) or _MAPPING_HINT
            raise InputError(f"columns: {part!r} is not FIELD=COLUMN", hint=hint)
        named[field] = column
    if "prompt" not in named or "output" not in named:
        raise InputError("columns: prompt and output must both be named", hint=_MAPPING_HINT)
    time, _, unit = named.get("time", "").partition(":")
    return TraceColumns(
        time=time or None,
        prompt=named["prompt"],
        output=named["output"],
        hashes=named.get("hashes"),
        priority=named.get("priority"),
        time_unit_s=parse_seconds(f"1{unit}"),
    )


def is_trace(path: str | Path, *, columns: TraceColumns | str | None = None) -> bool:
    """Whether a file begins as a trace does: with a JSON object, or a header with the columns of a trace.

    Args:
        path: the file.
        columns: as `read_trace` takes them.

    Raises:
        InputError: columns that cannot be read.
        ProfileError: a file that cannot be read, or a first line of more than 500,000 characters.
    """
    path = Path(path)
    columns = parse_columns(columns) if isinstance(columns, str) else columns
    with open_text(path, errors="replace") as text:
        lines = BoundedLines(text, max_characters=_LONGEST_ROW, where=str(path))
        first = next((line for line in lines if line.strip()), "")
    if first.lstrip().startswith("{"):
        return True
    header = [name.strip() for name in next(csv.reader([first], delimiter=_delimiter(path)), [])]
    return any(known.stand_in(header) for known in ([columns] if columns else _KNOWN))


def read_trace(
    path: str | Path,
    *,
    columns: TraceColumns | str | None = None,
    times: Iterable[float] | None = None,
    since_midnight: bool = False,
) -> Iterator[Request]:
    """Yield the requests of a trace in the order of the file, one at a time.

    Times count from the first request. A CSV file has a header; any other file holds one JSON object a line.

    Args:
        path: the file.
        columns: which column holds what, as `parse_columns` returns or takes it; found by their names for Azure's and
            Mooncake's traces where left out.
        times: when the requests come instead, as long as there are any; the file's times are then not looked at.
        since_midnight: count times from the midnight before the first request, of UTC where dates name a zone, and of
            numbers from the last whole day of them.

    Raises:
        InputError: a row that cannot be used, with its line; columns that are not there; a trace without requests.
        ProfileError: a file that cannot be read, or a row of more than 500,000 characters.
    """
    path = Path(path)
    columns = parse_columns(columns) if isinstance(columns, str) else columns
    rows = _csv_rows if path.suffix.lower() in (".csv", ".tsv") else _json_rows
    clock = _Clock(since_midnight=since_midnight)
    given = None if times is None else iter(times)
    number = 0
    for number, (line, columns_found, values) in enumerate(rows(path, columns), 1):
        time, prompt, output, hashes, priority = values
        arrival_s = None if given is None else next(given, None)
        if given is not None and arrival_s is None:
            return
        try:
            prompt_tokens = _tokens(prompt, columns_found.prompt)
            yield Request(
                name=str(number),
                arrival_s=clock.since_first_s(time, columns_found) if arrival_s is None else arrival_s,
                prompt_tokens=prompt_tokens,
                output_tokens=_tokens(output, columns_found.output),
                prompt=_segments(hashes, prompt_tokens, columns_found) if columns_found.hashes else (),
                priority=_priority(priority, columns_found.priority) if columns_found.priority else 0,
            )
        except InputError as error:
            raise InputError(error.what, where=f"{path}:{line}", hint=error.hint) from None
    if not number:
        raise InputError("the trace holds no requests", where=str(path))


_Row = tuple[int, TraceColumns, "Sequence[Any]"]


def _csv_rows(path: Path, columns: TraceColumns | None) -> Iterator[_Row]:
    """Yield line, columns and the values of time, prompt, output, hashes and priority of each row that is not empty."""
    with open_text(path, errors="replace") as text:
        lines = BoundedLines(text, max_characters=_LONGEST_ROW, where=str(path))
        reader = csv.reader(lines, delimiter=_delimiter(path))
        try:
            header = [name.strip() for name in next(reader, [])]
            known = columns or _known(header, path)
            places = [_place(header, name, path) for name in known.names]
            longest = max(index for index in places if index is not None)
            # of a column that is not there, another's values, which nobody looks at
            values = itemgetter(*[longest if index is None else index for index in places])
            for row in reader:
                if len(row) == len(header):
                    lines.next_record()
                    yield reader.line_num, known, values(row)
                elif any(cell.strip() for cell in row):
                    than = "fewer" if len(row) < len(header) else "more"
                    problem = f"{len(row)} cells, {than} than the header's {len(header)}"
                    raise InputError(problem, where=f"{path}:{reader.line_num}")
        except csv.Error as error:
            raise InputError(f"not CSV: {error}", where=f"{path}:{reader.line_num}") from None


def _delimiter(path: Path) -> str:
    return "\t" if path.suffix.lower() == ".tsv" else ","


def _place(header: list[str], name: str | None, path: Path) -> int | None:
    if name is None:
        return None
    if name not in header:
        raise _missing(name, header, f"{path}:1")
    if header.count(name) > 1:
        raise InputError(f"{header.count(name)} columns are named {name!r}", where=f"{path}:1")
    return header.index(name)


def _json_rows(path: Path, columns: TraceColumns | None) -> Iterator[_Row]:
    """Yield the same as `_csv_rows` from one JSON object a line."""
    known = columns
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
    with open_text(path, errors="replace") as file:
        lines = BoundedLines(file, max_characters=_LONGEST_ROW, where=str(path))
        for line, text in enumerate(lines, 1):
            if not text.strip():
                continue
            lines.next_record()
            where = f"{path}:{line}"
            try:
                row = decoder.decode(text)
            except ProfileError as error:
                raise InputError(error.what, where=where) from None
            except ValueError as error:
                raise InputError(f"not JSON: {error}"[:200], where=where, hint="one JSON object a line") from None
            except RecursionError:
                raise InputError("not a request: nested too deeply", where=where) from None
            if not isinstance(row, dict):
                raise InputError("not a JSON object", where=where, hint="one JSON object a line")
            if known is None:
                known = _known(list(row), path)
            for name in known.names:
                if name is not None and name not in row:
                    raise _missing(name, list(row), where)
            yield line, known, [None if name is None else row[name] for name in known.names]


def _known(header: list[str], path: Path) -> TraceColumns:
    for columns in _KNOWN:
        if columns.stand_in(header):
            return columns
    shown = ", ".join(header)[:200] or "none"
    raise InputError(f"the columns are not those of a known trace: {shown}", where=f"{path}:1", hint=_MAPPING_HINT)


def _missing(name: str, there: Iterable[str], where: str) -> InputError:
    names = list(there)
    hint = did_you_mean(name, names) or f"columns: {', '.join(names)[:200]}"
    return InputError(f"no column {name!r}", where=where, hint=hint)


def _tokens(value: Any, column: str) -> int:
    """Return a number of tokens: at least one.

    >>> _tokens("374", "p"), _tokens(44.0, "p")
    (374, 44)
    """
    number = _integer(value, column, "a whole number of tokens")
    if not 1 <= number <= _MAX_TOKENS:
        raise InputError(f"{column} must be from 1 to {_MAX_TOKENS:,} tokens, not {number}"[:200])
    return number


def _priority(value: Any, column: str) -> int:
    """Return a priority, of either sign."""
    number = _integer(value, column, "a whole number")
    check_between(column, number, -_MAX_PRIORITY, _MAX_PRIORITY)
    return number


def _integer(value: Any, column: str, what: str) -> int:
    try:
        return int(value) if type(value) is str or type(value) is int else _whole(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{column} {_shown(value)} is not {what}") from None


def _whole(value: Any) -> int:
    if not isinstance(value, float) or value != int(value):
        raise ValueError
    return int(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


class _Clock:
    """Times since the first one, which must not go back. Dates keep their last digit: whole minutes count apart.

    Args:
        since_midnight: count them from the midnight before the first one instead.
    """

    def __init__(self, *, since_midnight: bool) -> None:
        self._first: tuple[float, float] | None = None
        self._since_midnight = since_midnight
        self._last_s = 0.0

    def since_first_s(self, value: Any, columns: TraceColumns) -> float:
        if columns.time is None:
            raise InputError("the trace has no times", hint="name a time column, or give --arrival and --rate")
        whole_s, rest, unit_s = _time(value, columns)
        if not math.isfinite(rest):
            raise InputError(f"{columns.time} {_shown(value)} is not a time")
        if self._first is None:
            begin_s = whole_s + rest * unit_s
            self._first = (begin_s - begin_s % SECONDS_PER_DAY, 0.0) if self._since_midnight else (whole_s, rest)
        passed_s = (whole_s - self._first[0]) + (rest - self._first[1]) * unit_s
        if passed_s > _LONGEST_S:
            raise InputError(f"{columns.time} is {passed_s:g} s after the first, longer than any trace")
        if passed_s < self._last_s:
            raise InputError(
                f"the time goes back by {self._last_s - passed_s:g} s",
                hint="sort the file by time, or replace its times with --arrival and --rate",
            )
        self._last_s = passed_s
        return passed_s


def _time(value: Any, columns: TraceColumns) -> tuple[float, float, float]:
    """Return a date or a number as whole seconds, the rest to be added, and the unit of the rest in seconds."""
    try:
        return 0.0, float(value), columns.time_unit_s
    except (TypeError, ValueError):
        text = str(value).strip()
    try:
        return datetime.fromisoformat(f"{text[:_MINUTE]}00+00:00").timestamp(), float(text[_MINUTE:]), 1.0
    except ValueError:
        pass  # a date of another form, or with a time zone
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise InputError(f"{columns.time} {_shown(value)} is not a time") from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp(), 0.0, 1.0


def _segments(hashes: Any, prompt_tokens: int, columns: TraceColumns) -> tuple[Segment, ...]:
    """Return the prompt as places in one stream that holds block after block, numbered by their ids."""
    size = columns.hashed_tokens
    if not isinstance(hashes, list) or not all(type(block) is int and block >= 0 for block in hashes):
        raise InputError(f"{columns.hashes} {_shown(hashes)} is not a list of whole numbers of 0 or more")
    if len(hashes) != ceil_div(prompt_tokens, size):
        raise InputError(
            f"{len(hashes)} ids in {columns.hashes} for a prompt of {prompt_tokens:,} tokens",
            hint=f"an id for each block of {size} tokens, the last one as long as what is left",
        )
    segments: list[Segment] = []
    left = prompt_tokens
    for block in hashes:
        tokens = min(size, left)
        left -= tokens
        if segments and segments[-1].start + segments[-1].tokens == block * size:
            segments[-1] = Segment(0, segments[-1].start, segments[-1].tokens + tokens)
        else:
            segments.append(Segment(0, block * size, tokens))
    return tuple(segments)
