"""Write docs/validation.md from what `kvcalc validate` finds: ``python tests/tools/write_validation.py``."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc import api
from kvcalc.evidence.names import listed_rules
from kvcalc.render.reports.validate import BOOK_COLUMNS, COLUMNS, book_cells, figure_cells

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvcalc.core.reports.validate import ValidateReport

PAGE = Path(__file__).parents[2] / "docs" / "validation.md"

INTRODUCTION = """# Validation

`kvcalc validate` compares kvcalc's predictions with published measurements, and exits with 1 if a measurement beats its bound without
a computed cause. `tests/tools/write_validation.py` writes this page from its output; a test keeps it current.

The records ship with kvcalc (`kvcalc/evidence/records`, `kvcalc/evidence/facts`): numbers as they were printed, each with its
source. `--records FILE` takes your own; empty fields are fine:

- a YAML list with the keys `id`, `phase` (`decode`, `prefill`, `end_to_end`, `ttft`, `tpot`), `value`, `unit`, `hardware`, `model`,
  `weight_format`, `engine`, `batch`, `input_len`, `output_len`, `n_devices`, `tensor_parallel` and `source_url`;
- a CSV table of matrix products, decode attention, served latencies or desktop speeds, recognised by its columns;
- a folder of served runs.

`--rows` adds the prediction for each row of the file (`rows[]` in JSON: `id`, `predicted_tpot_s`, `low_tpot_s`, `high_tpot_s`,
`predicted_ttft_s`, `fitted`, `reason` …). If an engine has no calibration for such accelerators, a neighbour's is used with a wide interval, and
the row is not scored. `--suite NAME` takes one suite; `--svg FILE`, `--png FILE` and `--html FILE` draw every record over its bound.
`kvcalc check --measured 3000tok/s --model … --gpu …` checks a single figure.

## What the figures mean

- **held**: records compared with a bound or an exact number. The others have no profile or are left out (see below).
- **of bound**: the bound's time divided by the measured time, that is the share of the highest possible speed that was reached (median). A
  record above 100 % beats its bound.
- **explained**: records above 100 % that a known effect, computed for each, explains. No tolerance was widened.
- **beaten**: records above 100 % without an explanation. There must be none.
- **scored**: records with an exact prediction, or with an estimate that was fitted neither to them nor to their group. **error** is the
  median of estimate / measured - 1, **p90** its 90th percentile, **|err|** the median of its absolute value, **inside** the share of records
  inside the 80% interval.
- **fitted**: records in a group that parameters were fitted to. They are not scored.
- `speculative` are published speed-ups: ratios of two times, to which no bound applies.
- `bytes` and `logs` are exact: each number must be equal, or within the digits that an engine prints.

Where a record omits something, kvcalc assumes what keeps the bound valid: the fastest accelerator that the name may mean; as many sequences
as the memory holds, if the load was not printed or is larger than that; for served requests only the decoded tokens, at the concurrency that
Little's law gives. Without a printed weight format the checkpoint's own is taken, and there is no estimate. GGUF files are computed tensor by
tensor; records that print the file's size confirm the result.
"""

BOOKS = """
The same estimates in three groups: records that a fit used (fitted), records that ship with kvcalc and that no fit used (shipped), and others
(unseen). Each has the median absolute error, its 90th percentile and the share inside the interval. A measured speed that ships with kvcalc is
never unseen; exact counts (bytes, logs) and the closed formula of a speed-up, to which nothing is fitted, always are.

"""

CAUSES = """
## Measurements that beat their bound, and why

Each cause is computed; no tolerance is added. Data that stay in the last-level cache between runs are not read again; tokens that share
experts read fewer than uniform routing expects; a KV cache of unknown format may have 8 bits; weights may be multiplied in their own narrower
format. With its cause included, each bound holds.
"""


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    marks = ["---"] * left + ["---:"] * (len(columns) - left)
    lines = [columns, marks, *rows]
    return "".join(f"| {' | '.join(text.replace('|', chr(92) + '|') for text in line)} |\n" for line in lines)


def reasons(report: ValidateReport, status: str) -> list[tuple[str, str]]:
    counted = Counter(outcome.reason for outcome in report.outcomes if outcome.status == status and outcome.reason)
    return [
        (reason, f"{count:,}") for reason, count in sorted(counted.items(), key=lambda entry: (-entry[1], entry[0]))
    ]


def page() -> str:
    report = api.validate()
    text = INTRODUCTION
    text += f"\n## Suites\n\n{len(report.outcomes):,} shipped records.\n\n"
    text += table(("suite", *COLUMNS), ((name, *figure_cells(figures)) for name, figures in report.suites.items()))
    text += BOOKS
    text += table(("suite", *BOOK_COLUMNS), ((name, *book_cells(figures)) for name, figures in report.suites.items()))
    for suite in report.suites:
        rows = [
            (entry.source, entry.quantity, *figure_cells(entry.figures))
            for entry in report.sources
            if entry.suite == suite
        ]
        text += f"\n### {suite}, by source\n\n" + table(("source", "of", *COLUMNS), rows, left=2)
    text += CAUSES + "\n" + table(("cause", "records"), reasons(report, "explained"))
    text += "\n## Records that are left out\n\nBy the pattern of their id, in any file:\n\n"
    text += table(("records", "why"), listed_rules("excluded"), left=2)
    text += "\nRecords of a model, an accelerator or a format without a profile are left out too: they are counted, never guessed.\n"
    text += "\n## Records too old for an estimate\n\n"
    text += "These are compared with the bound alone. So are contexts above 1,024 tokens in runs without flash attention (`-fa 0`).\n\n"
    text += table(("records", "why"), listed_rules("superseded"), left=2)
    text += "\n## Single sequences far slower than their bound\n\n"
    text += "Decode steps of one sequence of a dense model reach 40 % of their bound or more, except for these records. The reasons are inferred from the\n"
    text += "shape of the step; no source measured them.\n\n"
    text += table(("records", "why"), listed_rules("slow"), left=2)
    return text


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
