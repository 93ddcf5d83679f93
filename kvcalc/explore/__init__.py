"""The explorer: a local page with sliders over the same numbers as the command line."""

from __future__ import annotations

__all__ = ["Place", "serve"]

from kvcalc.explore.server import Place, serve
