"""The page as static files: kvcalc's own code in the browser, by Pyodide, for any host of files and for no network."""

from __future__ import annotations

import io
import json
import zipfile
from base64 import b64encode
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from kvcalc import api
from kvcalc.core.errors import InputError
from kvcalc.explore.answers import Asked, reply_to
from kvcalc.explore.carried import carried_demos
from kvcalc.explore.runtime import runtime_files
from kvcalc.explore.snapshot import snapshot_bytes, snapshot_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from importlib.resources.abc import Traversable
    from pathlib import Path

__all__ = ["CODE", "PAGE_POLICY", "export", "package_files"]

# What a page never asks: the terminal's own, the loops that are measured, and the page's files themselves.
_LEFT_OUT = ("cli/", "measure/", "explore/static/", "hardware_profiles/", "model_profiles/")
_CODE_SUFFIXES = (".py", ".json", ".yaml", ".txt")
CODE = "kvcalc.zip"
# The worker that computes begins before any of the page's own scripts is there: Python takes longest to load.
_BEGIN = (
    'if (typeof WebAssembly !== "undefined") globalThis.begun = new Worker("static/worker.js", '
    '{ type: "module", name: document.querySelector("meta[name=kvcalc-answers]").content });'
)
# Nothing but the page's own files, the line above, and WebAssembly; nothing is sent anywhere.
PAGE_POLICY = (
    f"default-src 'none'; script-src 'self' 'sha256-{b64encode(sha256(_BEGIN.encode()).digest()).decode()}' "
    "'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'"
)
_MARK = "<!-- static page -->"
# The order of a zip's entries and their time say nothing, so that two exports are equal.
_TIME = (2020, 1, 1, 0, 0, 0)


def export(folder: Path, runtime: Path | None = None) -> list[Path]:
    """Write the page into a folder that any host of static files can serve.

    Args:
        folder: where; made where it is missing, and only what an export wrote before may lie in it.
        runtime: an unpacked ``pyodide`` package of npm; left out, npm is asked for it.

    Returns:
        The files written.

    Raises:
        InputError: the folder holds other things or cannot be written, or the runtime is not to be had.
    """
    _check_folder(folder)
    python, package = runtime_files(runtime), package_files()
    snapshot = snapshot_files(python, package)
    written = {f"static/python/{name}": body for name, body in python.items()}
    written |= {f"static/{name}": body for name, body in snapshot.items()}
    static = dict(_tree(files("kvcalc.explore") / "static"))
    worker_of_visits = static.pop("visits.js").decode()
    index = static.pop("index.html").decode()
    written |= {f"static/{name}": body for name, body in static.items()}
    written["static/vega.js"] = api.chart_runtime().encode()
    written[f"static/{CODE}"] = _zipped(package)
    written["static/catalogue.json"] = reply_to(Asked("catalogue")).body
    written["static/demos.json"] = carried_demos()
    digests = [sha256(written[name]).digest() for name in sorted(written)]
    version = sha256(b"".join(digests) + index.encode()).hexdigest()[:16]
    carried: dict[str, str | int] = {"version": version, "snapshot": snapshot_bytes(snapshot)}
    if any(name.endswith(".whl") for name in python):
        carried["numpy"] = 1
    scripts = [name for name in static if name.endswith(".js")]
    written["index.html"] = index.replace(_MARK, _head(urlencode(carried), scripts)).encode()
    constants = {
        "VERSION": version,
        "FILES": ["./", *sorted(written)],
        "PACKED": [f"static/{name}" for name in snapshot],
    }
    declarations = "".join(f"const {name} = {json.dumps(value)};\n" for name, value in constants.items())
    written["visits.js"] = (declarations + worker_of_visits).encode()
    return [_write(folder / name, body) for name, body in written.items()]


def package_files() -> dict[str, bytes]:
    """Return the code and the profiles that answers need, by their paths in an archive."""
    code = {f"kvcalc/{name}": body for name, body in _tree(files("kvcalc")) if _is_needed(name)}
    return code | api.packed_profiles()


def _is_needed(name: str) -> bool:
    return name.endswith(_CODE_SUFFIXES) and not name.startswith(_LEFT_OUT)


def _tree(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _tree(entry, f"{prefix}{entry.name}/")
        elif not entry.name.endswith(".pyc"):
            yield prefix + entry.name, entry.read_bytes()


def _zipped(entries: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(entries):
            archive.writestr(zipfile.ZipInfo(name, _TIME), entries[name], zipfile.ZIP_DEFLATED)
    return buffer.getvalue()


def _head(carried: str, scripts: Iterable[str]) -> str:
    """Lines for the page's head where no server answers.

    Args:
        carried: what the folder holds for the worker, as a query.
        scripts: of the page; named here, they need not be found one through another.
    """
    return "\n  ".join(
        (
            f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">',
            f'<meta name="kvcalc-answers" content="{escape(carried)}">',
            f"<script>{_BEGIN}</script>",
            *(f'<link rel="modulepreload" href="static/{name}">' for name in scripts if name != "worker.js"),
        )
    )


def _check_folder(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is not a folder", parameter="export")
    known = {"index.html", "static", "visits.js"}
    if folder.is_dir() and (others := sorted(path.name for path in folder.iterdir() if path.name not in known)):
        what = f"{folder} holds other things than a page: {', '.join(others[:3])}"
        raise InputError(what, hint="name a folder that is new or empty", parameter="export")


def _write(path: Path, body: bytes) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}", parameter="export") from error
    return path
