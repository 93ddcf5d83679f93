"""GGUF files on the web: ranges, servers without them, redirects, and what is refused; a server of this machine alone."""

from __future__ import annotations

import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
from gguf_files import llama_tensors, write_gguf

from kvcalc import api
from kvcalc.core.errors import ProfileError
from kvcalc.importers import gguf_remote, web
from kvcalc.importers.gguf import import_gguf

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.core.model import ModelProfile

_KEYS = {
    "block_count": 2,
    "embedding_length": 64,
    "feed_forward_length": 128,
    "context_length": 256,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
}
_TENSORS = llama_tensors(2, 64, 128, 96, heads=4, kv=2, width=16)
Reply = Callable[[BaseHTTPRequestHandler], None]


def _same(one: ModelProfile, other: ModelProfile) -> bool:
    """Whether two profiles differ in the address of their file alone."""
    return replace(one, sources={}) == replace(other, sources={})


class Server:
    """A web server of this machine: replies by path, and the requests that came."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {}
        self.asked: list[tuple[str, str, str]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers.get("Range", ""), self.headers.get("Authorization", "")))
                outer.replies[self.path.partition("?")[0]](self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = Thread(target=self.http.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.http.server_port}{path}"

    def holds(self, path: str, content: bytes, *, ranges: bool = True, tag: str = '"1"') -> None:
        self.replies[path] = lambda handler: _send(handler, content, ranges=ranges, tag=tag)


def _send(handler: BaseHTTPRequestHandler, content: bytes, *, ranges: bool, tag: str, status: int = 206) -> None:
    asked = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers.get("Range", ""))
    same = handler.headers.get("If-Range", tag) == tag
    if ranges and asked and same:
        start, end = int(asked[1]), min(int(asked[2]), len(content) - 1)
        handler.send_response(status)
        handler.send_header("Content-Range", f"bytes {start}-{end}/{len(content)}")
        handler.send_header("ETag", tag)
        piece = content[start : end + 1]
    else:
        handler.send_response(200)
        piece = content
    handler.send_header("Content-Length", str(len(piece)))
    handler.end_headers()
    with suppress(OSError):  # the reader may have seen enough
        handler.wfile.write(piece)


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask without a proxy, and anew in each test."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    gguf_remote.import_address.cache_clear()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a header of some 30 kB."""
    return write_gguf(tmp_path / "a.gguf", "llama", _KEYS, _TENSORS, vocabulary=1500)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_remote, "_FIRST_BYTES", 1024)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("ranges", [True, False], ids=["ranges", "whole file"])
def test_a_header_is_read_from_a_server(server: Server, file: Path, ranges: bool) -> None:  # noqa: FBT001
    server.holds("/a.gguf", file.read_bytes(), ranges=ranges)
    model = api.load_model(server.url("/a.gguf"))
    assert _same(model, import_gguf(file, "a"))
    assert server.url("/a.gguf") in str(model.sources)
    assert (len(server.asked) == 1) is not ranges
    if ranges:
        spans = [tuple(map(int, re.findall(r"\d+", asked))) for _, asked, _ in server.asked]
        assert [span[0] for span in spans] == [0, *(span[1] + 1 for span in spans[:-1])]
        assert spans[0] == (0, 1023)


def test_no_more_than_twice_the_header_is_fetched(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_remote, "_FIRST_BYTES", 1024)
    tensors = llama_tensors(2, 2048, 4096, 96, heads=4, kv=2, width=512)
    file = write_gguf(tmp_path / "a.gguf", "llama", _KEYS | {"embedding_length": 2048, "feed_forward_length": 4096},
                      tensors, vocabulary=100)  # fmt: skip
    server.holds("/a.gguf", file.read_bytes())
    api.load_model(server.url("/a.gguf"))
    fetched = sum(
        int(end) - int(start) + 1 for start, end in (re.findall(r"\d+", asked) for _, asked, _ in server.asked)
    )
    assert fetched <= 8192 < file.stat().st_size / 100


def test_a_model_is_asked_for_once_in_a_process(server: Server, file: Path) -> None:
    server.holds("/a.gguf", file.read_bytes())
    first, again = (api.load_model(server.url("/a.gguf")) for _ in range(2))
    assert first == again
    assert len(server.asked) == 1


def test_the_parts_of_a_split_file_are_read_together(server: Server, tmp_path: Path) -> None:
    names = list(_TENSORS)
    parts = []
    for place, own in enumerate((names[:5], names[5:])):
        keys = {".split.count": 2, ".split.no": place, ".split.tensors.count": len(names)}
        path = tmp_path / f"a-0000{place + 1}-of-00002.gguf"
        parts.append(
            write_gguf(path, "llama", (_KEYS if not place else {}) | keys, {name: _TENSORS[name] for name in own})
        )
        server.holds(f"/x/{path.name}", path.read_bytes())
    model = api.load_model(server.url(f"/x/{parts[1].name}?download=true"))
    assert _same(model, import_gguf(parts[1], parts[1].stem))
    assert {path for path, _, _ in server.asked} == {f"/x/{part.name}?download=true" for part in parts}


def _redirect(to: str, status: int = 302) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        handler.send_header("Location", to)
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    return reply


def _hub(monkeypatch: pytest.MonkeyPatch, server: Server, *, cached: str | None = None) -> None:
    hub = ModuleType("huggingface_hub")

    def url(repo: str, file: str, *, revision: str | None) -> str:
        return server.url(f"/{repo}/resolve/{revision or 'main'}/{file}")

    vars(hub).update(hf_hub_url=url, get_token=lambda: "secret", try_to_load_from_cache=lambda *_, **__: cached)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)


def test_a_file_of_the_hub_is_read_with_a_login_that_stays_with_its_host(
    server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _hub(monkeypatch, server)
    server.holds("/store", file.read_bytes())
    server.replies["/o/r/resolve/v1/q4/a.gguf"] = _redirect("/o/s/resolve/v1/q4/a.gguf", 307)
    server.replies["/o/s/resolve/v1/q4/a.gguf"] = _redirect(server.url("/store?signed", "localhost"))
    assert _same(api.load_model("hf:o/r@v1/q4/a.gguf"), import_gguf(file, "a"))
    assert [login for _, _, login in server.asked] == ["Bearer secret", "Bearer secret", ""]


def test_a_file_in_the_hubs_cache_is_read_there(server: Server, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, server, cached=str(file))
    assert _same(api.load_model("hf:o/r/a.gguf"), import_gguf(file, "a"))
    assert not server.asked


def test_the_hub_is_not_asked_where_it_is_switched_off(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    _hub(monkeypatch, server)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ProfileError, match="switched off"):
        api.load_model("hf:o/r/a.gguf")
    assert not server.asked


def test_without_the_library_the_hint_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ProfileError, match="huggingface-hub is not installed") as caught:
        api.load_model("hf:o/r/a.gguf")
    assert "kvcalc[hub]" in caught.value.hint


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("file:///models/a.gguf", "file: is not read"),
        ("ftp://example.com/a.gguf", "ftp: is not read"),
        ("http://example.com/a.gguf", "http: is not read"),
        ("http://127.0.0.1.example.com/a.gguf", "http: is not read"),
        ("https:///a.gguf", "not a web address"),
        ("https://[::1/a.gguf", "not a web address"),
        ("https://example.com:99999/a.gguf", "not a web address"),
        ("https://example.com/a b.gguf", "not a web address"),
        ("https://user:word@example.com/a.gguf", "with a password"),
        ("https://example.com/config.json", "of files on the web .gguf alone"),
        ("s3://bucket/a.safetensors?x", "s3: is not read"),
        ("hf:owner/a.gguf", "not a file on the hub"),
        ("hf:owner/repo", "not a file on the hub"),
        ("hf:owner/repo/../../a.gguf", "not a file on the hub"),
    ],
)
def test_addresses_that_are_not_read_are_refused_before_anything_is_asked(
    address: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "_opener", lambda: pytest.fail("something was asked"))
    with pytest.raises(ProfileError, match=re.escape(reason)) as caught:
        api.load_model(address)
    assert "user" not in str(caught.value)


@pytest.mark.parametrize(
    ("to", "reason"),
    [
        ("file:///etc/passwd", "not allowed"),
        ("http://example.com/a.gguf", "http: is not read"),
        ("https://localhost/a.gguf", "another scheme"),
        ("/a.gguf", "the server answers 302"),
    ],
    ids=["file", "other host", "other scheme", "loop"],
)
def test_redirects_lead_to_the_web_alone_and_end(server: Server, to: str, reason: str) -> None:
    server.replies["/a.gguf"] = _redirect(to)
    with pytest.raises(ProfileError, match=re.escape(reason)):
        api.load_model(server.url("/a.gguf"))
    assert len(server.asked) <= 11


def _status(status: int) -> Reply:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_error(status)

    return reply


@pytest.mark.parametrize(
    ("status", "reason"),
    [(401, "asks for a login"), (403, "refuses access"), (404, "no such file"), (500, "the server answers 500")],
)
def test_a_server_that_refuses_is_named_without_the_query(server: Server, status: int, reason: str) -> None:
    server.replies["/a.gguf"] = _status(status)
    with pytest.raises(ProfileError, match=reason) as caught:
        api.load_model(server.url("/a.gguf?signature=secret"))
    assert "secret" not in str(caught.value)
    assert "/a.gguf" in str(caught.value)


def test_what_is_no_gguf_file_is_refused(server: Server) -> None:
    server.holds("/a.gguf", b"<html>login</html>")
    with pytest.raises(ProfileError, match="not a GGUF file"):
        api.load_model(server.url("/a.gguf"))


@pytest.mark.parametrize("ranges", [True, False])
def test_a_file_that_ends_inside_its_header_is_refused(server: Server, file: Path, ranges: bool) -> None:  # noqa: FBT001
    server.holds("/a.gguf", file.read_bytes()[:5000], ranges=ranges)
    with pytest.raises(ProfileError, match="an array of 1500 strings"):
        api.load_model(server.url("/a.gguf"))


def test_a_header_without_an_end_is_left_at_its_bound(
    server: Server, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gguf_remote, "_FIRST_BYTES", 1024)
    monkeypatch.setattr(gguf_remote, "_MAX_BYTES", 4096)
    server.holds("/a.gguf", file.read_bytes())
    with pytest.raises(ProfileError, match="its header has more than"):
        api.load_model(server.url("/a.gguf"))
    assert max(int(re.findall(r"\d+", asked)[1]) for _, asked, _ in server.asked) == 4095


@pytest.mark.usefixtures("small_ranges")
def test_a_file_that_changes_meanwhile_is_refused(server: Server, file: Path) -> None:
    content, tags = file.read_bytes(), iter(('"1"', '"2"', '"3"'))
    server.replies["/a.gguf"] = lambda handler: _send(handler, content, ranges=True, tag=next(tags))
    with pytest.raises(ProfileError, match="changed while it was read"):
        api.load_model(server.url("/a.gguf"))


def test_another_range_than_was_asked_for_is_refused(server: Server, file: Path) -> None:
    server.replies["/a.gguf"] = lambda handler: _send(handler, file.read_bytes(), ranges=True, tag="", status=203)
    with pytest.raises(ProfileError, match="another range"):
        api.load_model(server.url("/a.gguf"))


def test_compressed_content_is_refused(server: Server) -> None:
    def reply(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Encoding", "gzip")
        handler.end_headers()

    server.replies["/a.gguf"] = reply
    with pytest.raises(ProfileError, match="compressed"):
        api.load_model(server.url("/a.gguf"))


def test_a_silent_server_is_left_after_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_WAIT_S", 0.2)
    left = Event()
    server.replies["/a.gguf"] = lambda _: left.wait(60)
    with pytest.raises(ProfileError, match="takes too long"):
        api.load_model(server.url("/a.gguf"))
    left.set()


def test_a_server_that_drips_is_left_after_a_while(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "_LONGEST_S", 0.5)

    def drip(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        with suppress(OSError):  # the reader goes
            for _ in range(1000):
                handler.wfile.write(b"G")
                time.sleep(0.05)

    server.replies["/a.gguf"] = drip
    with pytest.raises(ProfileError, match="takes too long"):
        api.load_model(server.url("/a.gguf"))


def test_a_server_that_is_not_there_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        address = f"http://127.0.0.1:{closed.getsockname()[1]}/a.gguf"
    with pytest.raises(ProfileError, match="refused") as caught:
        api.load_model(address)
    assert "/a.gguf" in str(caught.value)


def test_the_page_of_a_file_on_the_hub_is_taken_for_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def read(address: str, _: Any) -> Any:
        asked.append(address)
        raise ProfileError("enough")

    monkeypatch.setattr(gguf_remote, "_read", read)
    with pytest.raises(ProfileError, match="enough"):
        api.load_model("https://huggingface.co/o/r/blob/main/q4/a.gguf?x=1")
    assert asked == ["https://huggingface.co/o/r/resolve/main/q4/a.gguf?x=1"]
