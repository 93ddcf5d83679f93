"""Checks for machines: JUnit XML, GitHub's annotations and its step summary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.render.tables import expected_text, plain_text

if TYPE_CHECKING:
    from kvcalc.core.reports.checks import ChecksReport

__all__ = ["github_annotations", "junit_xml", "markdown_summary"]


def junit_xml(report: ChecksReport) -> str:
    """Return a report as JUnit XML: a test case for each assertion, and one for each figure that got worse."""
    from xml.etree.ElementTree import Element, SubElement, indent, tostring

    worse = [change for change in report.changes if change.worse]
    suite = Element(
        "testsuite",
        name="kvcalc check",
        tests=str(len(report.checks) + len(worse)),
        failures=str(report.failures + len(worse)),
        errors="0",
    )
    cases = [(check.name, check.where, "" if check.passed else check.message) for check in report.checks]
    cases += [(f"{change.name}: since before", change.where, change.message) for change in worse]
    for name, where, failure in cases:
        file, _, line = where.rpartition(":")
        case = SubElement(suite, "testcase", name=_printable(name), classname="kvcalc.check", file=file, line=line)
        if failure:
            SubElement(case, "failure", message=_printable(failure)).text = f"{where}: {_printable(failure)}"
    root = Element("testsuites")
    root.append(suite)
    indent(root)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _printable(text: str) -> str:
    """XML knows no control characters."""
    return "".join(max(letter, " ") for letter in text)


def github_annotations(report: ChecksReport) -> str:
    """Return a line for each failure, which GitHub shows beside the line of the file that it came from."""
    lines = [(check.where, check.name, check.message) for check in report.checks if not check.passed]
    lines += [(change.where, change.name, change.message) for change in report.changes if change.worse]
    return "".join(_annotation(*line) for line in lines)


def _annotation(where: str, title: str, message: str) -> str:
    file, _, line = where.rpartition(":")
    fields = f"file={_escaped(file)},line={line},title={_escaped(title)}"
    return f"::error {fields}::{_escaped(message, value=False)}\n"


def _escaped(text: str, *, value: bool = True) -> str:
    """Escape what ends a workflow command, or a property of it."""
    for letter in ("%", "\r", "\n", *(":,"[:] if value else "")):
        text = text.replace(letter, f"%{ord(letter):02X}")
    return text


def markdown_summary(report: ChecksReport) -> str:
    """Return a report as Markdown: the verdict, failures and changes first, then every figure."""
    passed = len(report.checks) - report.failures
    lines = [f"### kvcalc check: {passed} of {len(report.checks)} hold", ""]
    if report.changes:
        lines += ["| changed | before | after | |", "| --- | --- | --- | --- |"]
        changes = [(each, plain_text(each.before), plain_text(each.after)) for each in report.changes]
        lines += [_line(each.name, was, now, "worse" if each.worse else "") for each, was, now in changes]
        lines.append("")
    lines += ["| | check | is | expected |", "| --- | --- | --- | --- |"]
    shown = (
        ("ok" if check.passed else "FAILED", check.name, plain_text(check.actual), expected_text(check.expected))
        for check in sorted(report.checks, key=lambda check: check.passed)
    )
    lines += [_line(*cells) for cells in shown]
    return "\n".join(lines) + "\n\n"


def _line(*cells: str) -> str:
    """Return a row of a table; names are not to be read as tags or further columns."""
    kept = (cell.replace("&", "&amp;").replace("<", "&lt;").replace("|", chr(92) + "|") for cell in cells)
    return f"| {' | '.join(kept)} |"
