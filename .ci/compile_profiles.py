"""Build hook: put each shipped profile into the wheel as JSON too, so that it is read without the YAML library."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompileProfiles(BuildHookInterface):
    """Called by the build of a wheel; the definition of what a profile is stays in the package."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the JSON files and say where they go."""
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        from kvcalc.profiles.reader import compiled_text

        target = Path(tempfile.mkdtemp())
        places = {folder: folder.name for folder in root.glob("*_profiles")}
        places[root / "kvcalc" / "profiles" / "calibrations"] = "profiles/calibrations"
        for path in sorted(path for folder in places for path in folder.glob("*.yaml")):
            place = places[path.parent]
            compiled = target / place / f"{path.stem}.json"
            compiled.parent.mkdir(parents=True, exist_ok=True)
            compiled.write_text(compiled_text(path), encoding="utf-8")
            build_data["force_include"][str(compiled)] = f"kvcalc/{place}/{compiled.name}"
