"""Access with a token, where there is one."""

from __future__ import annotations

import secrets
from http.cookies import CookieError, SimpleCookie
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlencode

from starlette.responses import RedirectResponse, Response

from kvcalc.explore.answers import mistake

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

__all__ = ["TokenGate", "new_token"]

_NAME = "token"


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(16)


class TokenGate:
    """Middleware that answers only those who bring the token.

    The page's address brings it once and is then left without it: a cookie remembers it. Programs send it as
    ``Authorization: Bearer``.

    Args:
        app: what is guarded.
        token: what has to be brought.
    """

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self.app = app
        self._token = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or answer it with a cookie or with what is missing."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        cookie = f"kvcalc-{scope['server'][1]}" if scope.get("server") else "kvcalc"  # cookies know no ports
        fields = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        brought = [text for name, text in fields if name == _NAME]
        response: Response | None = None
        if scope["path"] == "/" and any(map(self._fits, brought)):
            rest = urlencode([field for field in fields if field[0] != _NAME])
            response = RedirectResponse(f"/?{rest}" if rest else "/", status_code=303)
            response.set_cookie(cookie, self._token.decode(), httponly=True, samesite="lax")
        elif not any(map(self._fits, _given(scope, cookie))):
            body = mistake("a token is needed", "open the address that kvcalc explore printed: it holds the token")
            response = Response(body, status_code=401, media_type="application/json")
        await (response or self.app)(scope, receive, send)

    def _fits(self, text: str) -> bool:
        return secrets.compare_digest(text.encode("utf-8", "replace"), self._token)


def _given(scope: Scope, cookie: str) -> list[str]:
    """Return the tokens in a request's headers."""
    tokens = []
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"authorization" and text[:7].lower() == "bearer ":
            tokens.append(text[7:].strip())
        if name == b"cookie":
            try:
                tokens += [morsel.value for key, morsel in SimpleCookie(text).items() if key == cookie]
            except CookieError:
                continue
    return tokens
