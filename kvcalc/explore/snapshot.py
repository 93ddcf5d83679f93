"""Python's memory once kvcalc is loaded, so that a page need not begin from nothing: Pyodide's snapshot.

Node makes it, from the files that the page loads. Where there is no node the page starts without, some seconds later.
"""

from __future__ import annotations

import gzip
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PACK", "SNAPSHOT", "snapshot_bytes", "snapshot_files"]

SNAPSHOT = "snapshot.bin"
PACK = "kvcalc.bin"
_WAIT_S = 120
_LEVEL = 6  # the highest gives a hundredth less, in five times the time
# The questions that a page opens with are asked once, so that what they load is in memory.
_PROGRAM = """
import { readFileSync, writeFileSync } from "node:fs";
import { pathToFileURL } from "node:url";
const folder = process.argv[2];
const { loadPyodide } = await import(pathToFileURL(`${folder}/pyodide.mjs`));
const python = await loadPyodide({ indexURL: `${folder}/`, _makeSnapshot: true });
for (const [name, text] of Object.entries(JSON.parse(readFileSync(`${folder}/files.json`, "utf8")))) {
  const path = `/kvcalc/${name}`;
  python.FS.mkdirTree(path.slice(0, path.lastIndexOf("/")));
  python.FS.writeFile(path, text);
}
python.runPython(`
import gc, sys
sys.path.insert(0, "/kvcalc")
from kvcalc.explore.here import answered
on = "model=llama3.1-8b&gpu=h100-sxm"
several = on + "&batch=1,8&context=512,1024"
for name, query in (("size", "model=llama3.1-8b"), ("fit", on), ("decode", several), ("engines", on)):
    status, text = answered(name, query)
    assert status == 200, text
gc.collect()
`);
writeFileSync(`${folder}/snapshot`, python.makeMemorySnapshot());
"""


def snapshot_files(runtime: Mapping[str, bytes], package: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return a snapshot of Python with kvcalc loaded, and kvcalc's files as one that a browser unpacks fast.

    Args:
        runtime: the files of Pyodide.
        package: the files of kvcalc, by their paths in an archive.

    Returns:
        Both compressed, by their names; nothing where node is missing, or cannot run this runtime.
    """
    node = shutil.which("node")
    if node is None:
        return {}
    files = json.dumps({name: body.decode() for name, body in sorted(package.items())})
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        for name, body in runtime.items():
            (folder / name).write_bytes(body)
        (folder / "files.json").write_text(files, encoding="utf-8")
        (folder / "make.mjs").write_text(_PROGRAM, encoding="utf-8")
        try:
            subprocess.run(  # noqa: S603  node, with a program of our own
                [node, str(folder / "make.mjs"), path], check=True, capture_output=True, timeout=_WAIT_S
            )
            memory = (folder / "snapshot").read_bytes()
        except (OSError, subprocess.SubprocessError):
            return {}
    return {SNAPSHOT: _compressed(memory), PACK: _compressed(files.encode())}


def snapshot_bytes(snapshot: Mapping[str, bytes]) -> int:
    """Return the bytes of memory that a snapshot unpacks to, which are gzip's last four; 0 where there is none."""
    return int.from_bytes(snapshot[SNAPSHOT][-4:], "little") if snapshot else 0


def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, _LEVEL, mtime=0)
