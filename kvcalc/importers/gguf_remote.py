"""GGUF files on the web: ``https:`` addresses, and ``hf:owner/repo/file.gguf`` on the Hugging Face hub.

Only the header is fetched, by ranges that double until it is whole.
"""

from __future__ import annotations

import os
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from kvcalc.core.errors import ProfileError
from kvcalc.core.units import MIB
from kvcalc.importers.gguf import GgufHeader, HeaderEndsError, gguf_model, parse_header, read_gguf, whole_header
from kvcalc.importers.web import WebFile, check_address

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from kvcalc.core.model import ModelProfile

__all__ = ["import_address"]

# Headers with a vocabulary of 262,144 words have 16 MiB; none in public files has more than 40.
_FIRST_BYTES, _MAX_BYTES = 2 * MIB, 128 * MIB
# A server that does not tell a file's size: no bound by it.
_UNKNOWN_SIZE = 2**62
_MAX_KEPT = 16
_HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?/(?P<file>[^?#]+\.gguf)", re.IGNORECASE)
_HUB_PAGE = re.compile(r"(/[\w.-]+/[\w.-]+)/blob/(.+)")
_HINT = "hf:OWNER/REPO/FILE.gguf or https://HOST/PATH/FILE.gguf"


@lru_cache(maxsize=_MAX_KEPT)
def import_address(address: str, name: str) -> ModelProfile:
    """Return the profile of a GGUF file on the web, from its header.

    Args:
        address: ``https://…/file.gguf``, or ``hf:owner/repo/file.gguf`` (``hf:owner/repo@revision/file.gguf``); of a
            split file, any part.
        name: catalogue name for the profile.

    Raises:
        ProfileError: an address that is not read, a server or a file that cannot be, or huggingface-hub is not
            installed for ``hf:``.
        UnsupportedError: an architecture that kvcalc does not know.
    """
    address = address.strip()
    if address.lower().startswith("hf:"):
        return _from_hub(address, name)
    check_address(address)
    parts = urlsplit(address)
    page = _HUB_PAGE.fullmatch(parts.path) if parts.hostname == "huggingface.co" else None
    path = f"{page[1]}/resolve/{page[2]}" if page else parts.path
    folder, _, file = path.rpartition("/")
    if not file.lower().endswith(".gguf"):
        raise ProfileError("of files on the web .gguf alone is read", where=address[:200], hint=_HINT)

    def of(part: str) -> str:
        return urlunsplit(parts._replace(path=f"{folder}/{quote(part)}", fragment=""))

    return _imported(unquote(file), of, {}, name)


def _from_hub(address: str, name: str) -> ModelProfile:
    """Return the profile of a file on the hub: from its local cache where it is there, else by ranges."""
    match = _HUB.fullmatch(address)
    if match is None or ".." in match["file"]:
        raise ProfileError("not a file on the hub", where=address[:200], hint=_HINT)
    try:
        from huggingface_hub import get_token, hf_hub_url, try_to_load_from_cache
    except ImportError:
        hint = "pip install 'kvcalc[hub]', or give the https: address of the file"
        raise ProfileError("huggingface-hub is not installed", where=address[:200], hint=hint) from None
    repo, revision, token = match["repo"], match["revision"], get_token()
    folder, slash, file = match["file"].rpartition("/")
    cached = try_to_load_from_cache(repo, match["file"], revision=revision)
    if isinstance(cached, str):
        return gguf_model(read_gguf(Path(cached)), name=name)
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        what = "the hub is switched off (HF_HUB_OFFLINE), and the file is not in its cache"
        raise ProfileError(what, where=address[:200])

    def of(part: str) -> str:
        return str(hf_hub_url(repo, f"{folder}{slash}{part}", revision=revision))

    return _imported(file, of, {"Authorization": f"Bearer {token}"} if token else {}, name)


def _imported(file: str, address_of: Callable[[str], str], headers: Mapping[str, str], name: str) -> ModelProfile:
    header = whole_header(file, lambda part: _read(address_of(part), headers))
    return gguf_model(header, name=name)


def _read(address: str, headers: Mapping[str, str]) -> GgufHeader:
    """Return the header of one file, its beginning fetched until it holds the whole of it.

    Raises:
        ProfileError: the file cannot be fetched, or is none.
    """
    length = _FIRST_BYTES
    with WebFile(address, headers) as file:
        file.grow(length)
        while True:
            size = _UNKNOWN_SIZE if file.size is None else file.size
            try:
                return parse_header(bytes(file.data), size, where=file.where)
            except HeaderEndsError as error:
                if length >= _MAX_BYTES:
                    what = f"its header has more than {_MAX_BYTES // MIB} MiB"
                    raise ProfileError(what, where=file.where) from None
                length *= 2
                if not file.grow(length):
                    raise ProfileError(error.what, where=file.where) from None
