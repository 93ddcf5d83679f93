"""What got worse since an earlier run: at the edge of the tolerance, and where a figure is known in one run alone."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kvcalc.core.reports.checks import CheckResult
from kvcalc.questions.regressions import changes_since

if TYPE_CHECKING:
    from pathlib import Path


def _worse(folder: Path, before: Any, after: Any, *, tolerance: float = 0.0) -> bool:
    """Whether a decoding speed that was and is so much counts as worse."""
    old = folder / "old.json"
    old.write_text(json.dumps({"schema": "kvcalc.check/1", "checks": [{"name": "a", "actual": before}]}))
    now = CheckResult(
        name="a", field="decode.tokens_per_s", passed=True, expected=None, actual=after, where="c.yaml:1", message=""
    )
    ((change,), _) = changes_since([now], old, tolerance)
    assert (change.before, change.after) == (before, after)
    return change.worse


@pytest.mark.parametrize(("after", "worse"), [(75.0, False), (74.9, True), (125.0, False)])
def test_a_loss_of_the_whole_tolerance_is_still_tolerated(tmp_path: Path, after: float, *, worse: bool) -> None:
    assert _worse(tmp_path, 100.0, after, tolerance=0.25) is worse


@pytest.mark.parametrize(
    ("before", "after", "worse"),
    [(3.0, None, True), (None, 3.0, False), (True, False, True), (False, True, False), ("memory", "compute", False)],
)
def test_what_is_not_known_any_more_got_worse(tmp_path: Path, before: Any, after: Any, *, worse: bool) -> None:
    assert _worse(tmp_path, before, after) is worse
