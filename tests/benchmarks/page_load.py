"""How long the page takes: to its first number on a first and on a second visit, and to a new number after a change.

The static folder is served to Chromium at 10 MB/s in all, scripts and WebAssembly compressed as hosts of static files do; the local
server as it is. Needs npm, chromium and `pip install 'kvcalc[explore,browser-test]'`, and a machine that does nothing else.

    python tests/benchmarks/page_load.py [--visits 3] [--keys 20]
"""

from __future__ import annotations

import argparse
import gzip
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
BYTES_PER_S = 10e6
PIECE = 65_536
COMPRESSED = {".html", ".css", ".js", ".mjs", ".json", ".wasm"}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
# The page notes by itself when its first number is there: asking it all the time would take a part of the two cores.
NOTE_FIRST_NUMBER = """new MutationObserver((_, observer) => {
  if (!document.querySelector("main > :not(.empty) .figure .number")) return;
  globalThis.firstNumberMs = performance.now();
  observer.disconnect();
}).observe(document, { childList: true, subtree: true, attributes: true, attributeFilter: ["class"] })"""
# Time from a key on a slider to another number, in the page's own clock.
KEY = """(key) => new Promise((done) => {
  const number = () => document.querySelector("[data-quantity='kv.total_bytes']").dataset.value;
  const before = number(), start = performance.now(), slider = document.getElementById("context-slider");
  slider.value = Number(slider.value) + key;
  slider.dispatchEvent(new Event("input", { bubbles: true }));
  const look = () => (number() === before ? setTimeout(look, 1) : done(performance.now() - start));
  look();
})"""


class Line:
    """A line of 10 MB/s that all answers share."""

    def __init__(self) -> None:
        self._free_at, self._lock = 0.0, threading.Lock()

    def wait(self, size: int) -> None:
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + size / BYTES_PER_S
            until = self._free_at
        time.sleep(max(0.0, until - time.monotonic()))


class Throttled(SimpleHTTPRequestHandler):
    line = Line()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        path = path / "index.html" if path.is_dir() else path
        if not path.is_file():
            self.send_error(404)
            return
        body = sent(path)
        self.send_response(200)
        self.send_header("Content-Type", self.guess_type(str(path)))
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=600")
        if path.suffix in COMPRESSED:
            self.send_header("Content-Encoding", "gzip")
        self.end_headers()
        for start in range(0, len(body), PIECE):
            piece = body[start : start + PIECE]
            self.line.wait(len(piece))
            self.wfile.write(piece)


@cache
def sent(path: Path) -> bytes:
    """Return a file as hosts of static files send it."""
    body = path.read_bytes()
    return gzip.compress(body) if path.suffix in COMPRESSED else body


def first_number_s(page, address: str) -> float:
    """Return the time from the start of a visit to its first number, by the page's own clock."""
    page.add_init_script(NOTE_FIRST_NUMBER)
    page.goto(address, wait_until="commit")
    while not (noted := page.evaluate("globalThis.firstNumberMs")):
        page.wait_for_timeout(200)
    return noted / 1000


def keys_ms(page, count: int) -> list[float]:
    times = []
    for index in range(count):
        times.append(page.evaluate(KEY, 1 if index < count // 2 else -1))
        page.wait_for_function("document.querySelector('main').getAttribute('aria-busy') === 'false'")
        page.wait_for_timeout(150)
    return times


def static_page(browser, visits: int, keys: int) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "kvcalc", "explore", "--export", folder], cwd=ROOT, check=True)
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Throttled, directory=folder))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_address[1]}/"
        for path in Path(folder).rglob("*"):
            if path.is_file():
                sent(path)
        cold, warm, other, changes = [], [], [], []
        for _ in range(visits):
            context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
            page = context.new_page()
            cold.append(first_number_s(page, address))
            page.locator("html[data-kept]").wait_for(state="attached", timeout=60_000)
            page.close()
            again = context.new_page()
            warm.append(first_number_s(again, address))
            again.wait_for_timeout(3000)
            other.append(first_number_s(again, f"{address}?model=gemma-3-27b&gpu=h200"))
            again.wait_for_timeout(3000)
            changes += keys_ms(again, keys)
            context.close()
        size = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
        server.shutdown()
    return {"bytes": size, "first_visit_s": cold, "second_visit_s": warm, "second_visit_other_question_s": other,
            "key_ms": statistics.median(changes)}  # fmt: skip


def local_server(browser, keys: int) -> dict[str, object]:
    command = [sys.executable, "-m", "kvcalc", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            context = browser.new_context(viewport={"width": 1440, "height": 900}, bypass_csp=True)
            page = context.new_page()
            first = first_number_s(page, server.stdout.readline().strip())
            page.wait_for_timeout(3000)
            times = keys_ms(page, keys)
        finally:
            server.terminate()
    return {"first_number_s": first, "key_ms": statistics.median(times), "slowest_ms": max(times)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visits", type=int, default=3)
    parser.add_argument("--keys", type=int, default=20)
    given = parser.parse_args()
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        print(
            json.dumps(
                {"static": static_page(browser, given.visits, given.keys), "local": local_server(browser, given.keys)},
                indent=2,
            )
        )
        browser.close()


if __name__ == "__main__":
    main()
