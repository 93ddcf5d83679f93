"""Demonstrations of how inference works: one module each, with its computation, report, table, steps and charts."""

from __future__ import annotations

from importlib.util import find_spec

from kvcalc.core.errors import InputError

__all__ = ["require_numpy"]


def require_numpy() -> None:
    """Refuse a demonstration that computes with arrays where NumPy is not installed.

    Raises:
        InputError: it is not.
    """
    if find_spec("numpy") is None:
        raise InputError("this demonstration computes with NumPy, which is not installed",
                         hint="pip install 'kvcalc[demo]'")  # fmt: skip
