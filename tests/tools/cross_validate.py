"""Judge the calibrations by leaving one campaign out: ``KVCALC_TRUTH=FOLDER python tests/tools/cross_validate.py``.

Each campaign is estimated by a calibration that was fitted to all the others of its engine and accelerators, held-out ones too;
its interval is that of these others, each as a fit without it has it. So every record judges, and none has been seen.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING

from write_calibrations import KERNELS, cases

from kvcalc.core.model import Mixture
from kvcalc.evidence.calibrate import cross_validated
from kvcalc.evidence.kernel_reach import read_kernels

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.evidence.calibrate import Judged


def measured_kind(judged: Judged) -> str:
    """Return what a record measures, as the tables group it."""
    record, deployment = judged.case.record, judged.case.deployment
    if deployment is None:
        return record.phase
    mixture = any(isinstance(block.mlp, Mixture) for block in deployment.model.block_counts)
    several = "one" if record.batch == 1 else "several"
    return f"{record.phase}, {several}, {'mixture' if mixture else 'dense'}"


def line(name: str, found: list[Judged]) -> str:
    """Return figures of a group: records, campaigns, signed error, its size, that of campaigns, coverage."""
    by_campaign: dict[str, list[float]] = {}
    for one in found:
        by_campaign.setdefault(one.campaign, []).append(abs(one.error))
    errors = [one.error for one in found]
    inside = mean(one.inside for one in found)
    of_campaigns = median(map(median, by_campaign.values()))
    return (
        f"{name:58}{len(found):6}{len(by_campaign):5}{median(errors):+8.1%}{median(map(abs, errors)):8.1%}"
        f"{of_campaigns:8.1%}{inside:8.1%}"
    )


def table(found: Iterable[Judged], key: str) -> str:
    """Return a table of groups."""
    groups: dict[str, list[Judged]] = {}
    for one in found:
        name = {
            "kind": measured_kind(one),
            "family": f"{one.family}: {measured_kind(one)}",
            "campaign": f"{one.family}: {one.campaign[-40:]}",
        }[key]
        groups.setdefault(name, []).append(one)
    head = f"{key:58}{'n':>6}{'src':>5}{'error':>8}{'|err|':>8}{'by src':>8}{'inside':>8}"
    return "\n".join([head, *(line(name, group) for name, group in sorted(groups.items()))])


if __name__ == "__main__":
    judged = list(
        cross_validated(
            cases(Path(os.environ["KVCALC_TRUTH"])), only=tuple(sys.argv[1:]), kernels=read_kernels(KERNELS)
        )
    )
    for key in ("kind", "family", "campaign"):
        print(table(judged, key), end="\n\n")
