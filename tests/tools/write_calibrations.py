"""Fit the shipped calibrations: ``KVCALC_TRUTH=FOLDER python tests/tools/write_calibrations.py``.

The folder holds speeds.yaml, gemm.csv, attention.csv and serving.csv; the records that are shipped and not in it are added. The
same files give the same calibrations.
"""

from __future__ import annotations

import os
from pathlib import Path

import kvcalc.evidence
from kvcalc.evidence.calibrate import fit_families
from kvcalc.evidence.cases import Case
from kvcalc.evidence.kernels import kernel_case
from kvcalc.evidence.passes import case_of
from kvcalc.evidence.read import read_records
from kvcalc.profiles.catalog import shipped_folder
from kvcalc.profiles.writer import profile_yaml

FILES = ("speeds.yaml", "gemm.csv", "attention.csv", "serving.csv")
SHIPPED_ALONE = ("llama_cpp_llama3.yaml", "llama_cpp_more.yaml", "vllm_pages.yaml")


def files(folder: Path) -> list[Path]:
    """Return the files of records: those of the folder, and the shipped ones whose records are not in it."""
    shipped = Path(kvcalc.evidence.__file__).parent / "records"
    return [*(folder / name for name in FILES), *(shipped / name for name in SHIPPED_ALONE)]


def cases(folder: Path) -> list[Case]:
    """Return the records that can be held against a prediction."""
    records = [record for path in files(folder) for record in read_records(path)]
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
