"""Fit the shipped calibrations: ``KVCALC_TRUTH=FOLDER python tests/tools/write_calibrations.py``.

The folder holds speeds.yaml, gemm.csv, attention.csv, serving.csv and silicon.csv; the records that are shipped and not in it are added. The
same files give the same calibrations.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import kvcalc.evidence
from kvcalc.evidence.books import fitted_lines, group_of
from kvcalc.evidence.calibrate import fit_families
from kvcalc.evidence.campaigns import campaign, engine_of
from kvcalc.evidence.cases import Case
from kvcalc.evidence.kernel_reach import read_kernels
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import read_records
from kvcalc.plan.estimates import best_calibration
from kvcalc.profiles.catalog import shipped_folder
from kvcalc.profiles.writer import profile_yaml

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.evidence.calibrate import Fits

FILES = ("speeds.yaml", "gemm.csv", "attention.csv", "serving.csv", "silicon.csv")
KERNELS = Path(__file__).parents[1] / "evidence" / "serving_kernels.csv"
FITTED = "fitted.txt"
SHIPPED_ALONE = ("llama_cpp_llama3.yaml", "llama_cpp_more.yaml", "vllm_pages.yaml")


def files(folder: Path) -> list[Path]:
    """Return the files of records: those of the folder, and the shipped ones whose records are not in it."""
    shipped = Path(kvcalc.evidence.__file__).parent / "records"
    return [*(folder / name for name in FILES), *(shipped / name for name in SHIPPED_ALONE)]


@cache
def cases(folder: Path) -> tuple[Case, ...]:
    """Return the records that can be held against a prediction."""
    records = [record for path in files(folder) for record in read_records(path)]
    found = (kernel_case(record) if record.suite == "kernels" else case_of(record) for record in records)
    return tuple(case for case in found if isinstance(case, Case))


def fitted(found: Sequence[Calibration], known: Sequence[Case]) -> str:
    """Return the text of the file that says which measurements were fitted to."""
    own = []
    for case in known:
        calibration = best_calibration(found, case.hardware, (engine_of(case.record),))
        names = {campaign(case.record), group_of(case.record)}
        if calibration is not None and not names.isdisjoint(calibration.measured.trained_on):
            own.append(case.record)
    return fitted_lines(own)


@cache
def fits(folder: Path) -> Fits:
    """Return all calibrations, and the records that their intervals come from."""
    return fit_families(cases(folder), kernels=read_kernels(KERNELS))


def calibration_texts(folder: Path) -> dict[str, str]:
    """Return the text of each calibration's file, by name, and of the measurements they were fitted to."""
    known, found = cases(folder), fits(folder).calibrations
    return {each.name: profile_yaml(each) for each in found} | {FITTED: fitted(found, known)}


if __name__ == "__main__":
    target = shipped_folder("calibration")
    for name, text in calibration_texts(Path(os.environ["KVCALC_TRUTH"])).items():
        path = Path(kvcalc.evidence.__file__).with_name(FITTED) if name == FITTED else target / f"{name}.yaml"
        path.write_text(text, encoding="utf-8")
        print(path.name)
