"""Fit the shipped calibrations: ``KVCALC_TRUTH=FOLDER python tests/tools/write_calibrations.py``.

The folder holds speeds.yaml, gemm.csv, attention.csv and serving.csv; the same files give the same calibrations.
"""

from __future__ import annotations

import os
from pathlib import Path

from kvcalc.evidence.calibrate import fit_families
from kvcalc.evidence.cases import Case
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import read_records
from kvcalc.profiles.catalog import shipped_folder
from kvcalc.profiles.writer import profile_yaml

FILES = ("speeds.yaml", "gemm.csv", "attention.csv", "serving.csv")


def cases(folder: Path) -> list[Case]:
    """Return the records of the folder that can be held against a prediction."""
    records = [record for name in FILES for record in read_records(folder / name)]
    found = (kernel_case(record) if record.suite == "kernels" else case_of(record) for record in records)
    return [case for case in found if isinstance(case, Case)]


def calibration_texts(folder: Path) -> dict[str, str]:
    """Return the text of each calibration's file, by name."""
    return {found.name: profile_yaml(found) for found in fit_families(cases(folder))}


if __name__ == "__main__":
    target = shipped_folder("calibration")
    for name, text in calibration_texts(Path(os.environ["KVCALC_TRUTH"])).items():
        (target / f"{name}.yaml").write_text(text, encoding="utf-8")
        print(f"{name}.yaml")
