"""Exact weight bytes from the headers of ``.safetensors`` files; the weights themselves are never read.

The format: 8 bytes with the length of the header, a header of flat JSON (name to dtype, shape and offsets), the tensors
back to back. https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError
from kvcalc.cost.parameters import parameters
from kvcalc.importers.checkpoint import Tensor, TensorTable, element_count, open_file
from kvcalc.importers.hugging_face import import_config, read_config_file
from kvcalc.importers.tensor_checks import check_tensors
from kvcalc.importers.tensor_parts import with_stored_parts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvcalc.core.model import ModelProfile
    from kvcalc.importers.checkpoint import Read

__all__ = ["import_safetensors", "read_header", "read_safetensors", "shard_names"]

# The format's own limit; and more tensors, shards or text in one entry than any checkpoint has.
_MAX_HEADER_BYTES = 100_000_000
_MAX_TENSORS = 250_000
_MAX_INDEXED = 500_000
_MAX_INDEX_KEYS = 100
_MAX_SHARDS = 10_000
_MAX_METADATA = 100_000
_LONGEST_ENTRY = 4096
_MAX_INDEX_BYTES = 100_000_000
# No format stores a parameter in less than half a bit: a file with less is an adapter, or empty.
_MAX_PARAMETERS_OF_A_BYTE = 16

_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "I64": 64, "U64": 64, "F64": 64, "C64": 64, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
}  # fmt: skip

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \n\r\t]+")

_SHARD = re.compile(r"(?P<stem>.*)-(?P<place>\d{5,6})-of-(?P<count>\d{5,6})\.safetensors")


class _Text:
    """A cursor over JSON text that takes flat objects entry by entry, so that hostile text is refused early."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self.at = 0

    def error(self, what: str) -> ProfileError:
        return ProfileError(f"{what} (at character {self.at} of the JSON)", where=self.where)

    def peek(self) -> str:
        space = _SPACE.match(self.text, self.at)
        self.at = space.end() if space else self.at
        return self.text[self.at : self.at + 1]

    def take(self, wanted: str) -> None:
        if self.peek() != wanted:
            raise self.error(f"not valid JSON: {wanted!r} is missing")
        self.at += 1

    def string(self) -> str:
        self.take('"')
        try:
            value, self.at = _DECODER.raw_decode(self.text, self.at - 1)
        except ValueError as error:
            raise self.error("not valid JSON: a string does not end") from error
        return str(value)

    def keys(self) -> Iterator[str]:
        """Yield the keys of an object; the caller takes each value."""
        self.take("{")
        if self.peek() == "}":
            self.at += 1
            return
        while True:
            key = self.string()
            self.take(":")
            yield key
            if self.peek() == "}":
                self.at += 1
                return
            self.take(",")

    def small_object(self) -> dict[str, Any]:
        """Take an object without objects inside."""
        self.peek()
        end = self.text.find("}", self.at, self.at + _LONGEST_ENTRY)
        if end < 0:
            raise self.error("an entry that does not end, or is too long")
        try:
            value = json.loads(self.text[self.at : end + 1], object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise self.error("not a usable entry") from error
        if not isinstance(value, dict):
            raise self.error("an entry that is no object")
        self.at = end + 1
        return value

    def end(self) -> None:
        if self.peek().strip("\x00"):
            raise self.error("not valid JSON: more text after the end")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    by_key = dict(pairs)
    if len(by_key) != len(pairs):
        raise ValueError
    return by_key


def read_header(read: Read, size: int, *, where: str) -> dict[str, Tensor]:
    """Return the tensors of one file.

    Args:
        read: gives bytes by offset and length; called twice.
        size: bytes of the whole file.
        where: the file, for messages.

    Raises:
        ProfileError: the file is truncated, corrupt or hostile.
    """
    start = read(0, 8)
    if len(start) < 8:  # noqa: PLR2004
        raise ProfileError(f"the file has {len(start)} bytes: not a safetensors file", where=where)
    (length,) = struct.unpack("<Q", start)
    if length > _MAX_HEADER_BYTES:
        raise ProfileError(f"a header of {length} bytes; the format allows {_MAX_HEADER_BYTES}", where=where)
    raw = read(8, length) if 8 + length <= size else b""
    if len(raw) != length or length < 2:  # noqa: PLR2004
        raise ProfileError(f"the file ends inside its header of {length} bytes", where=where)
    try:
        text = _Text(raw.decode("utf-8"), where)
    except UnicodeDecodeError as error:
        raise ProfileError("the header is not UTF-8 text", where=where) from error
    return _tensors(text, size - 8 - length)


def _tensors(text: _Text, data_bytes: int) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    spans: list[tuple[int, int]] = []
    metadata = False
    for name in text.keys():  # noqa: SIM118
        if name == "__metadata__":
            if metadata:
                raise text.error("the key '__metadata__' stands twice")
            metadata = True
            for count, _ in enumerate(text.keys()):
                if count >= _MAX_METADATA:
                    raise text.error(f"more than {_MAX_METADATA} entries of metadata")
                text.string()
            continue
        if name in tensors:
            raise text.error(f"the tensor {name[:80]!r} stands twice")
        if len(tensors) >= _MAX_TENSORS:
            raise text.error(f"more than {_MAX_TENSORS} tensors")
        tensors[name], span = _tensor(name, text.small_object(), text)
        spans.append(span)
    text.end()
    _check_spans(spans, data_bytes, text.where)
    return tensors


def _tensor(name: str, entry: dict[str, Any], text: _Text) -> tuple[Tensor, tuple[int, int]]:
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    bits = _BITS.get(dtype) if isinstance(dtype, str) else None
    if bits is None:
        raise text.error(f"the tensor {name[:80]!r} has the unknown dtype {str(dtype)[:40]!r}")
    sides, span = _whole_numbers(shape), _whole_numbers(offsets)
    if sides is None or span is None or len(span) != 2:  # noqa: PLR2004
        raise text.error(f"the tensor {name[:80]!r} has no usable shape or data_offsets")
    elements = element_count(sides, name=name, where=text.where)
    begin, end = span
    if not 0 <= begin <= end or (end - begin) * 8 != elements * bits:
        raise text.error(f"the tensor {name[:80]!r} has {elements} elements of {dtype} in {end - begin} bytes")
    return Tensor(str(dtype), sides, end - begin), (begin, end)


def _whole_numbers(value: object) -> tuple[int, ...] | None:
    if isinstance(value, list) and all(isinstance(entry, int) and not isinstance(entry, bool) for entry in value):
        return tuple(value)
    return None


def _check_spans(spans: list[tuple[int, int]], data_bytes: int, where: str) -> None:
    """Refuse tensors that overlap, leave holes or lie beyond the file."""
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            what = "overlap" if begin < at else "leave a hole"
            raise ProfileError(f"tensors {what} at byte {min(begin, at)} of the data", where=where)
        at = end
    if at > data_bytes:
        raise ProfileError(f"the file is truncated: tensors of {at} bytes, {data_bytes} in the file", where=where)
    if at < data_bytes:
        raise ProfileError(f"{data_bytes - at} bytes after the last tensor", where=where)


def read_safetensors(path: Path) -> TensorTable:
    """Return the tensors of a file, or of all shards of an index.

    A shard (``…-00001-of-00005.safetensors``) stands for its whole checkpoint.

    Args:
        path: a ``.safetensors`` file or a ``.safetensors.index.json``.

    Raises:
        ProfileError: a file is missing, truncated, corrupt or hostile.
    """
    if path.name.endswith(".json"):
        return _indexed(path)
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return TensorTable(str(path), _local(path))
    index = path.with_name(f"{shard['stem']}.safetensors.index.json")
    if index.is_file():
        return _indexed(index)
    tensors: dict[str, Tensor] = {}
    for name in shard_names(path):
        local = _local(_shard(path.with_name(name), path))
        if not tensors.keys().isdisjoint(local):
            raise ProfileError("a tensor stands in two shards", where=str(path.with_name(name)))
        tensors |= local
    return TensorTable(str(path), tensors)


def shard_names(path: Path) -> list[str]:
    """Return the names of the files that hold a checkpoint's tensors, whether they are there or not.

    Args:
        path: a ``.safetensors`` file, one shard of several, or a ``.safetensors.index.json``.

    Raises:
        ProfileError: an index that cannot be used, or a name that speaks of more shards than any checkpoint has.
    """
    if path.name.endswith(".json"):
        return list(dict.fromkeys(_index(path).values()))
    shard = _SHARD.fullmatch(path.name)
    if shard is None:
        return [path.name]
    count = int(shard["count"])
    if not 1 <= count <= _MAX_SHARDS:
        raise ProfileError(f"the name speaks of {count} shards", where=str(path))
    width = len(shard["place"])
    return [f"{shard['stem']}-{number:0{width}d}-of-{shard['count']}.safetensors" for number in range(1, count + 1)]


def _local(path: Path) -> dict[str, Tensor]:
    with open_file(path) as (read, size):
        return read_header(read, size, where=str(path))


def _shard(path: Path, named: Path) -> Path:
    try:
        missing = not path.is_file()
    except (OSError, ValueError):
        missing = True  # no file can have such a name
    if missing:
        raise ProfileError(
            f"the shard {path.name[:80]!r} is missing", where=str(named), hint="all shards must stand beside it"
        )
    return path


def _index(path: Path) -> dict[str, str]:
    """Return the file of each tensor that an index names."""
    with open_file(path) as (read, size):
        if size > _MAX_INDEX_BYTES:
            raise ProfileError(f"an index of {size} bytes", where=str(path))
        try:
            text = _Text(read(0, size).decode("utf-8-sig"), str(path))
        except UnicodeDecodeError as error:
            raise ProfileError("the index is not UTF-8 text", where=str(path)) from error
    files = _weight_map(text)
    for name in dict.fromkeys(files.values()):
        if not name or any(sign in name for sign in "/\\\x00") or name.startswith("."):
            raise ProfileError(f"the index names the file {name[:80]!r} outside its folder", where=str(path))
    return files


def _indexed(path: Path) -> TensorTable:
    files = _index(path)
    shards = {name: _local(_shard(path.with_name(name), path)) for name in dict.fromkeys(files.values())}
    tensors: dict[str, Tensor] = {}
    for tensor, name in files.items():
        if tensor not in shards[name]:
            raise ProfileError(f"the tensor {tensor[:80]!r} is not in {name!r}, as the index says", where=str(path))
        tensors[tensor] = shards[name][tensor]
    return TensorTable(str(path), tensors)


def _weight_map(text: _Text) -> dict[str, str]:
    files: dict[str, str] = {}
    names: dict[str, str] = {}
    has_map = False
    for count, key in enumerate(text.keys()):
        if count >= _MAX_INDEX_KEYS:
            raise text.error("an index of more than metadata and a weight_map")
        if key != "weight_map":
            text.small_object()
            continue
        if has_map:
            raise text.error("the key 'weight_map' stands twice")
        has_map = True
        for name in text.keys():  # noqa: SIM118
            if name in files or len(files) >= _MAX_INDEXED:
                raise text.error(f"the tensor {name[:80]!r} stands twice, or there are too many")
            file = text.string()
            files[name] = names.setdefault(file, file)  # the same text once
            if len(names) > _MAX_SHARDS:
                raise text.error(f"more than {_MAX_SHARDS} shards")
    text.end()
    if not files:
        raise ProfileError("the index has no weight_map", where=text.where)
    return files


def import_safetensors(path: Path, name: str) -> ModelProfile:
    """Return the profile of the ``config.json`` beside a weight file, with the file's own bytes.

    Each part of the model gets the exact mixture of the formats its tensors are stored in, scales included. Towers are
    parts of their own; prediction layers and a copy of a tied head, which are not loaded with it, are no part of it.

    Args:
        path: a ``.safetensors`` file or a ``.safetensors.index.json``.
        name: catalogue name for the profile.

    Raises:
        ProfileError: a file is missing or cannot be used, or the config contradicts its tensors.
        UnsupportedError: an architecture that kvcalc does not know.
    """
    config = path.with_name("config.json")
    if not config.is_file():
        raise ProfileError(
            f"the file holds tensors but not how they are used: {config.name} is missing beside it",
            where=str(path),
            hint="put the model's config.json into the same folder",
        )
    table = read_safetensors(path)
    data = read_config_file(config)
    described, _ = import_config(data, name=name, where=str(config))
    profile, unchecked = check_tensors(table, described, data)
    if table.total_bytes * _MAX_PARAMETERS_OF_A_BYTE < sum(parameters(profile).values()):
        what = f"tensors of {table.total_bytes:,} bytes are not the weights that {config.name} describes"
        raise ProfileError(what, where=str(path), hint=f"give {config.name} itself for its own formats")
    stored = with_stored_parts(table, profile)
    return replace(stored, notes=(*stored.notes, f"weight bytes as stored in {path.name}", *unchecked))
