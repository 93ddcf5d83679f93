"""Options of commands that ask no question: those of profiles."""

from __future__ import annotations

from typing import Annotated

from typer import Option

__all__ = ["Json", "Output", "Set"]

Set = Annotated[list[str] | None, Option("--set", help="Override a profile field: kv_heads=64. May be repeated.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]
Output = Annotated[str, Option("--output", "-o", help="table, json, jsonl, csv or md.")]
