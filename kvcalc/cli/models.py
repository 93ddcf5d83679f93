"""``kvcalc models``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from kvcalc.cli.options import Json, Set
from kvcalc.cli.profiles import profiles_app

app = profiles_app("model", "List, show, import, lint and validate model profiles.")

Source = Annotated[str, Argument(help="config.json or its folder, .gguf, .safetensors, or a Hugging Face id.")]
Linted = Annotated[Path, Argument(help="A config.json, its folder, or a .safetensors beside it.")]
Target = Annotated[Path | None, Option("--output-file", "-o", help="Write here instead of to standard output.")]


@app.command("import")
def import_(source: Source, target: Target = None, settings: Set = None) -> None:
    """Write the profile of a checkpoint's own files, with provenance.

    Example: kvcalc models import ./checkpoint/config.json -o my-model.yaml
    """
    from kvcalc import api
    from kvcalc.cli.shared import tell_origins
    from kvcalc.render.files import check_writable, write_whole

    check_writable([target])
    text = api.profile_text(api.load_model(source, settings=settings or ()))
    tell_origins()
    if target is None:
        sys.stdout.write(text)
    else:
        write_whole(target, text.encode())
        sys.stderr.write(f"wrote {target}\n")


@app.command()
def lint(source: Linted, json: Json = False) -> None:
    """Say of each key of a config that decides memory or compute: used, defaulted or ignored.

    Example: kvcalc models lint ./checkpoint/config.json
    """
    from kvcalc import api
    from kvcalc.render.lint import lint_text

    sys.stdout.write(lint_text(api.lint_config(source), json=json))
