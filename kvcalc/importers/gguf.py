"""The header of ``.gguf`` files: metadata and exact bytes of every tensor; the weights themselves are never read.

The format: magic, version, counts, metadata (key, type, value), tensor infos, then the tensors at aligned offsets.
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError
from kvcalc.core.formats import GGML_TYPES
from kvcalc.core.units import ceil_div
from kvcalc.files import open_regular
from kvcalc.importers.checkpoint import Tensor, TensorTable, element_count
from kvcalc.importers.gguf_families import gguf_profile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kvcalc.core.model import ModelProfile

__all__ = [
    "GgufHeader",
    "HeaderEndsError",
    "gguf_model",
    "import_gguf",
    "parse_header",
    "read_gguf",
    "whole_header",
]

# More than any real file has; beyond them a file is broken or hostile.
_MAX_KEYS = 100_000
_MAX_TENSORS = 250_000
_MAX_STRINGS = 10_000_000
_MAX_SHARDS = 10_000
_LONGEST_NAME = 65_535
# Longer strings and arrays (vocabularies, chat templates) are passed over: nothing here needs them.
_KEPT_STRING = 4096
_KEPT_ARRAY = 4096
# Numbers of all arrays together: those of real files stand once a layer.
_KEPT_IN_ALL = 500_000

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

_SPLIT = re.compile(r"(?P<stem>.*)-(?P<place>\d{5})-of-(?P<count>\d{5})\.gguf")


class HeaderEndsError(ProfileError):
    """A header that goes on beyond the bytes that are at hand."""


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Contents of a file's header.

    Args:
        where: the file that was named.
        metadata: keys to numbers, short strings and short arrays of numbers; what is longer is left out.
        tensors: name to tensor; shapes as the file orders them (the row's width first).
        missing_bytes: bytes of the tensors' data that the file does not have, as where only its header was fetched.
    """

    where: str
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    missing_bytes: int = 0

    @property
    def table(self) -> TensorTable:
        """The tensors as a table."""
        return TensorTable(self.where, self.tensors)


class _Cursor:
    """A place in the file, with reads that end in one clear error where the file does."""

    def __init__(self, data: bytes | mmap.mmap, size: int, where: str) -> None:
        self.data = data
        self.size = size
        self.where = where
        self.at = 0
        self.kept = 0

    def error(self, what: str) -> ProfileError:
        return ProfileError(f"{what} (at byte {self.at})", where=self.where)

    def ends(self) -> HeaderEndsError:
        return HeaderEndsError(f"the file ends inside its header (at byte {self.at})", where=self.where)

    def number(self, code: str) -> Any:
        try:
            (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        except struct.error as error:
            raise self.ends() from error
        self.at += struct.calcsize(f"<{code}")
        return value

    def skip(self, length: int) -> None:
        if length > self.size - self.at:
            raise self.error(f"the header speaks of {length} more bytes than the file has")
        if length > len(self.data) - self.at:
            raise self.ends()
        self.at += length

    def string(self, longest: int) -> str | None:
        """Return a string, or none where it is longer than wanted (and then passed over)."""
        length = self.number("Q")
        start = self.at
        self.skip(length)
        if length > longest:
            return None
        raw = self.data[start : self.at]
        return raw.decode("utf-8", errors="replace")

    def name(self, what: str) -> str:
        value = self.string(_LONGEST_NAME)
        if value is None:
            raise self.error(f"the name of {what} is longer than {_LONGEST_NAME} bytes")
        return value

    def skip_strings(self, count: int) -> None:
        """Pass over an array of strings without decoding any: a length, then that many bytes, each time."""
        if count > _MAX_STRINGS or count > (self.size - self.at) // 8:
            raise self.error(f"an array of {count} strings")
        read, data, at = struct.Struct("<Q").unpack_from, self.data, self.at
        try:
            for _ in repeat(None, count):
                at += read(data, at)[0] + 8
        except (struct.error, OverflowError) as error:
            if at <= self.size and len(data) < self.size:
                raise self.ends() from error
            raise self.error("an array of strings that goes on beyond the file") from error
        self.skip(at - self.at)


def parse_header(data: bytes | mmap.mmap, size: int, *, where: str) -> GgufHeader:
    """Read the header of one file; the tensors' data may be missing.

    Args:
        data: the file's bytes from its beginning, or a mapping of them; only the header's are touched.
        size: bytes of the whole file.
        where: the file, for messages.

    Raises:
        HeaderEndsError: ``data`` ends inside the header.
        ProfileError: the header is corrupt or hostile, or of a version that is not read.
    """
    cursor = _Cursor(data, size, where)
    if size < 4 or data[:4] != b"GGUF":  # noqa: PLR2004
        raise ProfileError("not a GGUF file: the magic is missing", where=where)
    cursor.at = 4
    version = cursor.number("I")
    if version & 0xFFFF == 0:
        raise ProfileError("a big-endian GGUF file, which is not supported", where=where, hint="convert it again")
    if version not in (2, 3):
        raise ProfileError(f"GGUF version {version} is not supported", where=where, hint="versions 2 and 3 are")
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    if tensors > _MAX_TENSORS or keys > _MAX_KEYS:
        raise cursor.error(f"a header of {tensors} tensors and {keys} keys")
    metadata: dict[str, Any] = {}
    seen: set[str] = set()
    for _ in range(keys):
        key = cursor.name("a key")
        if key in seen:
            raise cursor.error(f"the key {key[:80]!r} stands twice")
        seen.add(key)
        value = _value(cursor, cursor.number("I"))
        if value is not None:
            metadata[key] = value
    read, end = _tensors(cursor, tensors, metadata.get("general.alignment", 32))
    return GgufHeader(where, metadata, read, missing_bytes=max(0, end - size))


def _value(cursor: _Cursor, kind: int) -> Any:
    if kind in _SCALARS:
        return cursor.number(_SCALARS[kind])
    if kind == _STRING:
        return cursor.string(_KEPT_STRING)
    if kind != _ARRAY:
        raise cursor.error(f"a value of the unknown type {kind}")
    kind, count = cursor.number("I"), cursor.number("Q")
    if kind == _STRING:
        cursor.skip_strings(count)
        return None
    if kind not in _SCALARS:
        raise cursor.error("an array of arrays" if kind == _ARRAY else f"an array of the unknown type {kind}")
    start = cursor.at
    cursor.skip(count * struct.calcsize(f"<{_SCALARS[kind]}"))
    if count > _KEPT_ARRAY:
        return None
    cursor.kept += count
    if cursor.kept > _KEPT_IN_ALL:
        raise cursor.error(f"arrays of more than {_KEPT_IN_ALL:,} numbers in all")
    return list(struct.unpack_from(f"<{count}{_SCALARS[kind]}", cursor.data, start))


def _tensors(cursor: _Cursor, count: int, alignment: object) -> tuple[dict[str, Tensor], int]:
    """Return the tensors by name, and where the data of the last ends."""
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 1 <= alignment <= 2**20:
        raise cursor.error(f"an alignment of {alignment!r}")
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    for _ in range(count):
        name = cursor.name("a tensor")
        if name in tensors:
            raise cursor.error(f"the tensor {name[:80]!r} stands twice")
        dimensions = cursor.number("I")
        if not 1 <= dimensions <= 4:  # noqa: PLR2004
            raise cursor.error(f"the tensor {name[:80]!r} has {dimensions} dimensions")
        shape = tuple(cursor.number("Q") for _ in range(dimensions))
        tensor = _tensor(cursor, name, shape, cursor.number("I"))
        offset = cursor.number("Q")
        if offset % alignment:
            raise cursor.error(f"the tensor {name[:80]!r} begins at {offset}, which is not aligned to {alignment}")
        spans.append((offset, tensor.size))
        tensors[name] = tensor
    data = _end_of_data(spans, cursor)
    return tensors, ceil_div(cursor.at, alignment) * alignment + data if data else cursor.at


def _tensor(cursor: _Cursor, name: str, shape: tuple[int, ...], kind: int) -> Tensor:
    if kind not in GGML_TYPES:
        raise cursor.error(f"the tensor {name[:80]!r} has the unknown type {kind}")
    dtype, block, block_bytes = GGML_TYPES[kind]
    elements = element_count(shape, name=name, where=cursor.where)
    if (shape[0] if shape else 1) % block:
        raise cursor.error(f"the tensor {name[:80]!r} has rows of {shape[0]} in blocks of {block}")
    return Tensor(dtype, shape, elements // block * block_bytes)


def _end_of_data(spans: list[tuple[int, int]], cursor: _Cursor) -> int:
    at = 0
    for offset, size in sorted(spans):
        if offset < at:
            raise ProfileError(f"tensors overlap at byte {offset} of the data", where=cursor.where)
        at = offset + size
    return at


def read_gguf(path: Path) -> GgufHeader:
    """Return the header of a file; of a split file, that of all its parts together.

    Args:
        path: a ``.gguf`` file, or any part of a split one (``…-00002-of-00005.gguf``).

    Raises:
        ProfileError: a file is missing, its header truncated, corrupt or hostile.
    """
    return whole_header(
        path.name, lambda name: _local(path if name == path.name else _part(path.with_name(name), path))
    )


def whole_header(name: str, read: Callable[[str], GgufHeader]) -> GgufHeader:
    """Return the header of a file; of a split file, that of all its parts together.

    Args:
        name: the file's name, without its folder.
        read: returns the header of a file of that folder, by its name.

    Raises:
        ProfileError: a part that does not belong to the others, or what ``read`` raises.
    """
    named = _SPLIT.fullmatch(name)
    header = read(name)
    count = header.metadata.get("split.count", 1)
    if not isinstance(count, int) or count <= 1:
        return header
    if named is None or int(named["count"]) != count or count > _MAX_SHARDS:
        raise ProfileError(f"one of {count} parts, but its name does not say which", where=header.where)
    places = (f"{named['stem']}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1))
    parts = [header if number == name else read(number) for number in places]
    tensors: dict[str, Tensor] = {}
    for part in parts:
        if not tensors.keys().isdisjoint(part.tensors):
            raise ProfileError("a tensor stands in two parts of the split file", where=part.where)
        tensors |= part.tensors
    declared = parts[0].metadata.get("split.tensors.count", len(tensors))
    if declared != len(tensors):
        raise ProfileError(f"the parts hold {len(tensors)} tensors, not {declared}", where=header.where)
    missing = sum(part.missing_bytes for part in parts)
    return replace(parts[0], where=header.where, tensors=tensors, missing_bytes=missing)


def _part(path: Path, named: Path) -> Path:
    if not path.is_file():
        raise ProfileError(
            f"the part {path.name!r} of the split file is missing",
            where=str(named),
            hint="all parts must stand in the same folder",
        )
    return path


def _local(path: Path) -> GgufHeader:
    with open_regular(path) as file:
        size = file.seek(0, 2)
        if size == 0:
            raise ProfileError("not a GGUF file: it is empty", where=str(path))
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return parse_header(data, size, where=str(path))


def import_gguf(path: Path, name: str) -> ModelProfile:
    """Return the profile of a GGUF file: layers from its metadata, formats and bytes from its tensors.

    Args:
        path: a ``.gguf`` file, or any part of a split one.
        name: catalogue name for the profile.

    Raises:
        UnsupportedError: an architecture that kvcalc does not know.
        ProfileError: a file that cannot be read, or whose tensors contradict its metadata.
    """
    return gguf_model(read_gguf(path), name=name)


def gguf_model(header: GgufHeader, *, name: str) -> ModelProfile:
    """Return the profile of a file by its header; arguments and errors as `import_gguf`."""
    kind = header.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedError(f"the file holds no model: its general.type is {kind!r}", where=header.where)
    profile = replace(gguf_profile(header.metadata, header.table, name=name), file_tensors=header.tensors)
    if not header.missing_bytes:
        return profile
    note = f"the file ends {header.missing_bytes:,} bytes before its weights do: only its header was read"
    return replace(profile, notes=(*profile.notes, note))
