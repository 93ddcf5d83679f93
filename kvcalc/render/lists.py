"""Lists of profiles, and a profile as JSON."""

from __future__ import annotations

import json as json_module
from typing import TYPE_CHECKING, Any

from kvcalc.render.records import plain

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["names_text", "profile_json"]


def names_text(what: str, names: Sequence[str], *, json: bool) -> str:
    """Return names, one a line, or as a JSON object."""
    if json:
        return json_module.dumps({"schema": f"kvcalc.{what}/1", what: list(names)}, indent=2) + "\n"
    return "".join(f"{name}\n" for name in names)


def profile_json(profile: Any) -> str:
    """Return a profile as a JSON object, its layers one by one."""
    return json_module.dumps({"schema": "kvcalc.profile/1", **plain(profile)}, indent=2) + "\n"
