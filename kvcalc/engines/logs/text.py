"""The text of a log from its bytes: encodings, colours, progress bars, and lines that a terminal wrapped."""

from __future__ import annotations

import re
from collections import Counter

__all__ = ["decoded", "plain_text", "unwrapped"]

# Colours and cursor movements; an incomplete one at the end of a cut log stays.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[@-~]")
# The escape character as cat -v, syslog, JSON and Python spell it.
_SPELLED_ESCAPES = ("^[", "#033", "\\u001b", "\\x1b", "\\033")
# A colour whose escape character was lost, as in text copied from a web page.
_BARE_COLOURS = re.compile(r"\[\d{1,3}(?:;\d{1,3}){1,4}m|\[0m")
# A line of the files that docker keeps.
_JSON_LINE = re.compile(r'^\{"log": ?"(.*?)(?:\\n)?", ?"stream".*$', re.MULTILINE)

_SAMPLE_BYTES = 4096
_ZERO_SHARE = 0.4
# Widths of terminals, and how many full lines a wrapped log has at least. Longer logs were not copied from a screen.
_NARROWEST, _WIDEST = 40, 250
_FULL_LINES = 2
_MAX_WRAPPED_CHARACTERS = 2**20
# The ways in which a line of a log begins, and the rest of a wrapped one seldom does.
_BEGINNING = re.compile(
    r"[ \t]*(?:\([A-Z]\w|\[\d|\[pod/|\d{4}-\d\d|\d{1,4}\.\d\d\.\d|\d\d:\d\d:\d"
    r"|(?:INFO|WARN|ERROR|DEBUG|Traceback|ValueError)\b"
    r"|(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) |[a-z]+_[a-z_]+: |(?:build|main|srv|slot|system_info)\b"
    r"|time=|[\w.-]+ +\| )"
)


def decoded(data: bytes) -> str:
    r"""Return the text of a file in UTF-8 or UTF-16 (as PowerShell writes it); other bytes become replacement marks.

    >>> decoded("ready\r\n".encode("utf-16"))
    'ready\r\n'
    """
    sample = data[:_SAMPLE_BYTES]
    for first, encoding in ((1, "utf-16-le"), (0, "utf-16-be")):
        half = sample[first::2]
        if half.count(0) > _ZERO_SHARE * max(1, len(half)):
            return data.decode(encoding, errors="replace").removeprefix("\ufeff")
    return data.decode("utf-8", errors="replace").removeprefix("\ufeff")


def plain_text(text: str) -> str:
    r"""Return a log without colours, its progress bars cut into lines, and lines whole that a terminal wrapped.

    >>> plain_text("\x1b[32mINFO\x1b[0m ready\r\n")
    'INFO ready\n'
    """
    for spelled in _SPELLED_ESCAPES:
        if spelled + "[" in text:
            text = text.replace(spelled + "[", "\x1b[")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "[0m" in text or "[0;0m" in text:
        text = _BARE_COLOURS.sub("", text)
    if '{"log"' in text:
        text = _JSON_LINE.sub(lambda match: match[1].replace('\\"', '"'), text)
    return unwrapped(text.replace("\r\n", "\n").replace("\r", "\n"))


def unwrapped(text: str) -> str:
    r"""Return a log with those lines joined that a terminal broke at its width, each still at its own number.

    A log is taken for wrapped where no line is longer than a terminal is wide and several fill it. What begins like a
    line of its own is never joined to the one before it.

    >>> words = "word " * 8
    >>> unwrapped("\n".join([words, words, words, "end"])) == words * 3 + "end\n\n\n"
    True
    """
    if len(text) > _MAX_WRAPPED_CHARACTERS:
        return text
    lines = text.split("\n")
    lengths = Counter(map(len, lines))
    width = max(lengths)
    if not _NARROWEST <= width <= _WIDEST or lengths[width] < _FULL_LINES:
        return text
    whole: list[str] = []
    joined = 0
    for index, line in enumerate(lines):
        if index and len(lines[index - 1]) == width and line and not _BEGINNING.match(line):
            whole[-1] += line
            joined += 1
            continue
        # the lines that were joined to the last one leave as many empty ones after it
        whole += [""] * joined + [line]
        joined = 0
    return "\n".join([*whole, *[""] * joined])
