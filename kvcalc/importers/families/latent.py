"""PLACEHOLDER"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvcalc.importers.families.shape import Rule

__all__ = ["RULES"]

RULES: dict[str, Rule] = {}
