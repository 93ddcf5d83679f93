"""Put what the commands print into the README's examples: ``python tests/tools/fill_readme.py``."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

from kvcalc.cli.main import main

README = Path(__file__).parents[2] / "README.md"


def printed(command: str) -> str:
    """Return what a command prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main(shlex.split(command)[1:])
    return out.getvalue()


if __name__ == "__main__":
    text = README.read_text()
    README.write_text(
        re.sub(
            r"```console\n\$ (kvcalc .+)\n(?:.*\n)*?```",
            lambda found: f"```console\n$ {found[1]}\n{printed(found[1])}```",
            text,
        )
    )
