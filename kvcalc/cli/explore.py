"""``kvcalc explore``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from typer import Option

from kvcalc.core.errors import InputError

Host = Annotated[str, Option("--host", help="Address to listen on; beyond 127.0.0.1 others can reach it.")]
Port = Annotated[int, Option("--port", help="Port to listen on; 0 for any free one.")]
Token = Annotated[
    str | None,
    Option("--token", help="Access token [default: random with a --host beyond this machine, else none]; '' for none."),
]
Export = Annotated[
    Path | None, Option("--export", help="Write the page as static files into this folder, for any web host.")
]
Runtime = Annotated[
    Path | None,
    Option("--runtime", help="Folder of an unpacked pyodide package [default: npm fetches it]; with --export."),
]
SecondsPerQuestion = Annotated[
    float, Option("--seconds-per-question", help="Longest time for an answer of the page, in seconds.")
]
Browser = Annotated[bool, Option("--browser/--no-browser", help="Open the page in the browser.")]


def command(
    host: Host = "127.0.0.1",
    port: Port = 8977,
    token: Token = None,
    browser: Browser = True,
    seconds_per_question: SecondsPerQuestion = 10.0,
    export: Export = None,
    runtime: Runtime = None,
) -> None:
    """The calculator in the browser, with sliders; it needs no network.

    Prints the page's address and serves it until interrupted. With --export it writes the page as a folder of
    files that computes in the visitor's browser and sends nothing anywhere.

    Example: kvcalc explore --port 8977 --no-browser
    """
    if export is not None:
        _export(export, runtime)
        return
    if runtime is not None:
        raise InputError("--runtime goes with --export")
    if not all(map(find_spec, ("starlette", "uvicorn", "vl_convert"))):
        raise InputError("explore needs starlette, uvicorn and vl-convert", hint='pip install "kvcalc[explore]"')
    from kvcalc.explore.server import Place, serve

    served_at = Place(host=host, port=port, token=token, limit_s=seconds_per_question)

    def ready(address: str) -> None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if served_at.warning:
            sys.stderr.write(f"warning: {served_at.warning}\n")
        sys.stderr.write("note: Ctrl+C ends it\n")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(served_at, ready=ready)


def _export(folder: Path, runtime: Path | None) -> None:
    """Write the page's files and say how many, and how to look at them."""
    if find_spec("vl_convert") is None:
        raise InputError("--export needs vl-convert", hint='pip install "kvcalc[explore]"')
    from kvcalc.core.units import bytes_text
    from kvcalc.explore.export import export

    written = export(folder, runtime)
    total = sum(path.stat().st_size for path in written)
    sys.stdout.write(f"{folder}: {len(written)} files, {bytes_text(total)}\n")
    sys.stderr.write(f"note: python3 -m http.server --directory {folder} shows it; any host of static files will do\n")
