"""Put what the commands print into the examples of README and guides: ``python tests/tools/fill_readme.py``."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
from functools import cache
from pathlib import Path
from unittest import mock

import kvcalc
from kvcalc.cli.main import main
from kvcalc.core.units import bytes_text
from kvcalc.engines.options import EngineOptions

TOKENS = 32_768
ENGINE_MODELS = ("llama3.1-8b", "gemma-3-27b", "gpt-oss-20b", "deepseek-v3", "qwen3-next-80b-a3b", "jamba-1.5-mini")
ROOT = Path(__file__).parents[2]
# The reference has no output in it; what contributors are shown is run in its place.
PAGES = [
    ROOT / "README.md",
    *(
        path
        for path in sorted((ROOT / "docs").glob("*.md"))
        if "```console" in path.read_text(encoding="utf-8") and path.name != "cli.md"
    ),
]


@cache  # guides in two languages show the same examples
def printed(command: str) -> str:
    """Return what a command prints to a file, however wide the reader's terminal is."""
    out = io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.suppress(SystemExit),
        mock.patch.dict(os.environ, {"COLUMNS": "", "TERM": "xterm", "LC_ALL": "C.UTF-8"}),
    ):
        main(shlex.split(command)[1:])
    return out.getvalue()


def engine_table() -> str:
    """Return what engines reserve for one sequence of 32,768 tokens, beside the logical bytes."""
    lines = ["| model | logical | vLLM | llama.cpp | transformers |", "|---|---|---|---|---|"]
    for name in ENGINE_MODELS:
        deployment = kvcalc.deployment(name, kv_dtype="bf16")
        logical = kvcalc.size(deployment, context=TOKENS).kv.total_bytes
        cells = []
        for engine in ("vllm", "llama.cpp", "transformers"):
            options = EngineOptions(cache_type_k="bf16", cache_type_v="bf16")
            reserved = kvcalc.size(deployment, context=TOKENS, engine=engine, options=options).reserved
            cells.append(f"{bytes_text(reserved.total_bytes)} ({reserved.total_bytes / logical - 1:+.1%})")
        lines.append(f"| {name} | {bytes_text(logical)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def filled(text: str) -> str:
    """Return the README's text with what the commands print today."""
    text = re.sub(
        r"```console\n\$ (kvcalc .+)\n(?:.*\n)*?```",
        lambda found: f"```console\n$ {found[1]}\n{printed(found[1])}```",
        text,
    )
    table = r"(<!-- table: engines -->\n)(?:\|.*\n)*"
    return re.sub(table, lambda found: found[1] + engine_table(), text)


if __name__ == "__main__":
    os.chdir(ROOT)
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
