"""The beginning of a file on a web server, read by ranges within bounds of time and size; nothing is written.

https is read, and plain http on this machine alone. A redirect may lead nowhere else, and takes no authorization along
to another host. A server without ranges sends the whole file: it is read as far as is needed, and left.
"""

from __future__ import annotations

import re
from http.client import HTTPException
from time import monotonic
from typing import TYPE_CHECKING, Any, Self
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from kvcalc.core.errors import ProfileError
from kvcalc.core.units import KIB

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["WebFile", "check_address"]

# Of one wait for the server, and of everything that is read of one file.
_WAIT_S, _LONGEST_S = 10.0, 120.0
_MAX_REDIRECTS = 5
_PIECE_BYTES = 64 * KIB
_PARTIAL, _WHOLE = 206, 200
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")
_REASONS = {
    401: "the server asks for a login",
    403: "the server refuses access",
    404: "the server has no such file",
    416: "the file ends earlier than its header does",
    429: "the server asks to wait",
}


def check_address(address: str) -> None:
    """Refuse an address that is not read: of another scheme, without a host, with a password.

    Raises:
        ProfileError: such an address.
    """
    try:
        parts = urlsplit(address)
        host = parts.hostname
        _ = parts.port
    except ValueError as error:
        raise ProfileError(f"not a web address: {error}", where=_shown(address)) from None
    if parts.scheme not in ("https", "http") or (parts.scheme == "http" and host not in _LOOPBACK):
        raise ProfileError(f"{parts.scheme or 'no scheme'}: is not read", where=_shown(address), hint="https: is")
    if not host or not address.isascii() or any(map(str.isspace, address)):
        raise ProfileError("not a web address", where=_shown(address), hint="https://HOST/PATH/FILE.gguf")
    if parts.username is not None or parts.password is not None:
        raise ProfileError("an address with a password is not read", where=f"https://{host}")


def _shown(address: str) -> str:
    """Return an address as messages show it: without a query, which may hold a signature."""
    return address.partition("?")[0][:200]


class _Redirects(HTTPRedirectHandler):
    """Follows few redirects, each to an address that is read; what authorizes stays with its host."""

    max_redirections = _MAX_REDIRECTS

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        """Return the request that a redirect leads to."""
        check_address(newurl)
        if urlsplit(newurl).scheme != urlsplit(req.full_url).scheme:
            raise ProfileError("a redirect to another scheme is not followed", where=_shown(newurl))
        onward = super().redirect_request(req, fp, code, msg, headers, newurl)
        if onward is not None and urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]:
            onward.remove_header("Authorization")
        return onward


class WebFile:
    """A file on a web server, of which a beginning is held that grows as more is asked for.

    Args:
        address: where it is.
        headers: further lines of a request, as what authorizes it.

    Raises:
        ProfileError: an address that is not read.
    """

    def __init__(self, address: str, headers: Mapping[str, str] | None = None) -> None:
        check_address(address)
        self.where = _shown(address)
        self.data = bytearray()
        self.size: int | None = None
        self._address, self._headers = address, dict(headers or {})
        self._tag = ""
        self._end_s = monotonic() + _LONGEST_S
        self._rest: Any = None
        self._opener = _opener()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def grow(self, length: int) -> bool:
        """Hold so many bytes of the file, or all where it has fewer; return whether there are now more than before.

        Raises:
            ProfileError: the server cannot be reached, refuses, takes too long, or sends something else.
        """
        before = len(self.data)
        if self.size is not None:
            length = min(length, self.size)
        if length > before:
            try:
                self._read(length)
            except HTTPError as error:
                error.close()
                reason = _REASONS.get(error.code, f"the server answers {error.code} {error.reason}"[:120])
                raise self._error(reason) from None
            except (OSError, HTTPException, ValueError) as error:
                raise self._error(_told(error)) from None
        return len(self.data) > before

    def _read(self, length: int) -> None:
        response = self._rest or self._asked(length)
        while len(self.data) < length:
            if monotonic() > self._end_s:
                raise TimeoutError
            piece = response.read1(min(_PIECE_BYTES, length - len(self.data)))
            if not piece:
                break
            self.data += piece
        if self._rest is None:
            response.close()
        elif len(self.data) < length:
            self.size = len(self.data)

    def _asked(self, length: int) -> Any:
        """Return the answer to the request for the next bytes, checked to be these."""
        start = len(self.data)
        asked = {"Range": f"bytes={start}-{length - 1}", "Accept-Encoding": "identity", "User-Agent": "kvcalc"}
        if self._tag:
            asked["If-Range"] = self._tag
        request = Request(self._address, headers=self._headers | asked)  # noqa: S310  `check_address` has seen it
        response = self._opener.open(request, timeout=_WAIT_S)
        self._check(response, start)
        return response

    def _check(self, response: Any, start: int) -> None:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise self._error("the server sends it compressed")
        if response.status == _WHOLE and start == 0:
            announced = response.headers.get("Content-Length", "")
            self.size = int(announced) if announced.isdigit() else None
            self._rest = response
            return
        sent = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if response.status != _PARTIAL or sent is None or int(sent[1]) != start:
            raise self._error("the file changed while it was read" if start else "the server sends another range")
        size = None if sent[3] == "*" else int(sent[3])
        if start and size != self.size:
            raise self._error("the file changed while it was read")
        self.size = size
        tag = response.headers.get("ETag", "")
        self._tag = "" if tag.startswith("W/") else tag

    def _error(self, reason: str) -> ProfileError:
        self._close()
        return ProfileError(f"cannot be read: {reason}", where=self.where)

    def _close(self) -> None:
        if self._rest is not None:
            self._rest.close()
            self._rest = None


def _opener() -> OpenerDirector:
    """Return an opener of addresses, with redirects of our own, and proxies as the environment names them."""
    return build_opener(ProxyHandler(), _Redirects())


def _told(error: Exception) -> str:
    reason = error.reason if isinstance(error, URLError) else error
    if isinstance(reason, TimeoutError):
        return f"the server takes too long (more than {_WAIT_S:.0f} s for an answer or {_LONGEST_S:.0f} s in all)"
    lines = str(getattr(reason, "strerror", None) or reason).splitlines()
    return lines[0][:160] if lines else type(reason).__name__
