"""``kvcalc check``: files to start from, and what CI reads beside the report."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Exit

from kvcalc.core.errors import InputError
from kvcalc.questions.check import CHECKS_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.checks import ChecksReport
    from kvcalc.questions.declared import Question

__all__ = ["run"]

_EXAMPLE = """\
# Run with `kvcalc check`. `kvcalc check --schema > kvcalc.checks.schema.json` lets editors complete this file.
# yaml-language-server: $schema=kvcalc.checks.schema.json
defaults:  # options of the command line, for every check that has them
  gpu: h100-sxm
checks:
- name: chat on one GPU
  model: llama3.1-8b
  context: 8192
  batch: 32
  expect:
    fits: true
    kv_bytes_per_token: 131072
    kv_headroom: {min: 10%}
    decode.tokens_per_s_per_sequence: {min: 30}
- name: first token of a long prompt
  model: llama3.1-8b
  prompt: 8192
  expect:
    prefill.ideal_s: {max: 150ms}
- name: every GPU holds one long prompt
  model: llama3.1-8b
  matrix: {gpu: [h100-sxm, l40s, a100-80gb], kv_dtype: [bf16, fp8]}
  context: 65536
  max_model_len: 65536
  expect: {fits: true}
  record: [decode.tokens_per_s]  # written down for --against, not asserted
"""


def run(asked: type[Question], given: Mapping[str, Any], output: str, charts: dict[str, str | None]) -> None:
    """Check, and print the report; exit code 1 where something does not hold."""
    from kvcalc.cli.shared import emit
    from kvcalc.files import check_writable

    del charts
    checks: Any = asked(**given)
    if checks.measured is None and (checks.init or checks.schema):
        _write_example() if checks.init else _print_schema()
        return
    check_writable((checks.junit,))
    answer = checks.answer()
    if checks.measured is None:
        _hand_over(answer.report, junit=checks.junit, github=checks.github)
    emit(answer.report, output)
    if not answer.passed:
        raise Exit(1)


def _hand_over(report: ChecksReport, *, junit: str | None, github: bool) -> None:
    """Write what CI systems read."""
    from kvcalc.files import write_whole
    from kvcalc.render.ci import github_annotations, junit_xml, markdown_summary

    if junit is not None:
        write_whole(junit, junit_xml(report).encode())
    if github:
        sys.stderr.write(github_annotations(report))
        summary = os.environ.get("GITHUB_STEP_SUMMARY")
        if summary:
            with Path(summary).open("a", encoding="utf-8") as file:
                file.write(markdown_summary(report))


def _print_schema() -> None:
    from kvcalc import api

    sys.stdout.write(json.dumps(api.check_schema(), indent=1) + "\n")


def _write_example() -> None:
    from kvcalc.files import write_whole

    if CHECKS_FILE.exists():
        raise InputError(f"{CHECKS_FILE} is there already", hint="remove it, or edit it")
    write_whole(CHECKS_FILE, _EXAMPLE.encode())
    sys.stderr.write(f"wrote {CHECKS_FILE}\n")
