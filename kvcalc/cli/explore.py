"""``kvcalc explore``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Annotated

from typer import Option

from kvcalc.core.errors import InputError

Host = Annotated[str, Option("--host", help="Address to listen on; beyond 127.0.0.1 others can reach it.")]
Port = Annotated[int, Option("--port", help="Port to listen on; 0 for any free one.")]
Token = Annotated[
    str | None,
    Option("--token", help="Access token [default: random with a --host beyond this machine, else none]; '' for none."),
]
Browser = Annotated[bool, Option("--browser/--no-browser", help="Open the page in the browser.")]


def command(host: Host = "127.0.0.1", port: Port = 8977, token: Token = None, browser: Browser = True) -> None:
    """The calculator in the browser, with sliders; it needs no network.

    Prints the page's address and serves it until interrupted.

    Example: kvcalc explore --port 8977 --no-browser
    """
    if not all(map(find_spec, ("starlette", "uvicorn", "vl_convert"))):
        raise InputError("explore needs starlette, uvicorn and vl-convert", hint='pip install "kvcalc[explore]"')
    from kvcalc.explore.server import Place, serve

    place = Place(host=host, port=port, token=token)

    def ready(address: str) -> None:
        sys.stdout.write(f"{address}\n")
        sys.stdout.flush()
        if place.warning:
            sys.stderr.write(f"warning: {place.warning}\n")
        sys.stderr.write("note: Ctrl+C ends it\n")
        if browser:
            import webbrowser

            webbrowser.open(address)

    serve(place, ready=ready)
