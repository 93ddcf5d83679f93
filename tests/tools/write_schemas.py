"""Write the JSON Schemas that editors complete profile files from: ``python tests/tools/write_schemas.py``."""

from __future__ import annotations

import json
from pathlib import Path

from kvcalc.api import profile_schema

FOLDER = Path(__file__).parents[2] / "kvcalc" / "profiles" / "schemas"


def schema_text(kind: str) -> str:
    """Return the text of a schema file."""
    return json.dumps(profile_schema(kind), indent=1) + "\n"


if __name__ == "__main__":
    for kind in ("model", "hardware", "calibration"):
        (FOLDER / f"{kind}.schema.json").write_text(schema_text(kind))
