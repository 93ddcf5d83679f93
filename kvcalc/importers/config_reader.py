"""Reading a checkpoint's config so that every key that was used, defaulted or left alone can be told afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Config", "KeyUse"]

# No real model comes near; larger numbers are a broken or hostile file.
_LARGEST = 10**12
_MOST_LAYERS = 10_000
_MISSING: Any = object()
_SHOWN = 60


class KeyUse:
    """What became of one key of a config.

    Args:
        key: dotted path of the key.
        value: the value in force.
        use: ``used`` (read from the file), ``defaulted`` (absent; the config class's own default) or ``ignored``.
        why: where a default comes from, or why a key was not read.
    """

    __slots__ = ("key", "use", "value", "why")

    def __init__(self, key: str, value: object, use: str, why: str = "") -> None:
        self.key = key
        self.value = value
        self.use = use
        self.why = why


class Config:
    """A config mapping with the defaults of its class, typed access, and a memory of what was read.

    Args:
        data: the mapping as it stands in the file.
        where: the file, for messages.
        path: dotted path of this mapping inside the file.
        defaults: values the config's class gives to keys that the file leaves out.
        uses: record shared with the parent config.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        where: str = "config.json",
        path: str = "",
        defaults: Mapping[str, Any] | None = None,
        uses: dict[str, KeyUse] | None = None,
    ) -> None:
        self.data = data
        self.where = where
        self.path = path
        self.defaults = defaults or {}
        self.uses: dict[str, KeyUse] = {} if uses is None else uses

    def key_path(self, key: str) -> str:
        """Return the dotted path of a key in the file."""
        return f"{self.path}.{key}" if self.path else key

    def raw(self, *keys: str, default: Any = _MISSING) -> Any:
        """Return the value of the first of these keys that the file has, else the class's default, else ``default``.

        Raises:
            ProfileError: the key is missing and nothing stands in for it.
        """
        for key in keys:
            if key in self.data:
                self.uses[self.key_path(key)] = KeyUse(self.key_path(key), self.data[key], "used")
                return self.data[key]
        for key in keys:
            if key in self.defaults:
                path = self.key_path(key)
                self.uses.setdefault(path, KeyUse(path, self.defaults[key], "defaulted", "the config class's default"))
                return self.defaults[key]
        if default is _MISSING:
            raise ProfileError(
                f"the config has no {' or '.join(repr(key) for key in keys)}",
                where=f"{self.where}, {self.path or 'top level'}",
                hint="the file is incomplete; describe the model in a profile instead",
            )
        path = self.key_path(keys[0])
        self.uses.setdefault(path, KeyUse(path, default, "defaulted", "absent"))
        return default

    def has(self, key: str) -> bool:
        """Return whether the file itself has the key with a value other than null."""
        return self.data.get(key) is not None

    def integer(self, *keys: str, default: Any = _MISSING, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        value = self.raw(*keys, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        most = _MOST_LAYERS if any(key.endswith(("layers", "n_layer")) for key in keys) else _LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.bad(keys[0], value, f"a whole number from {least} to {most:.0e}")
        return value

    def maybe_integer(self, *keys: str, least: int = 1) -> int | None:
        """Return a whole number, or none where the value is null or absent."""
        value = self.raw(*keys, default=None)
        return None if value is None else self.integer(*keys, default=value, least=least)

    def flag(self, *keys: str, default: Any = _MISSING) -> bool:
        """Return a truth value; null counts as false."""
        value = self.raw(*keys, default=default)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.bad(keys[0], value, "true or false")
        return value

    def text(self, *keys: str, default: Any = _MISSING) -> str:
        """Return a string; null counts as empty."""
        value = self.raw(*keys, default=default)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.bad(keys[0], value, "a string")
        return value

    def number(self, *keys: str, default: Any = _MISSING) -> float:
        """Return a finite number of zero or more."""
        value = self.raw(*keys, default=default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _LARGEST:
            raise self.bad(keys[0], value, "a number of zero or more")
        return value

    def sequence(self, *keys: str, default: Any = _MISSING, length: int | None = None) -> list[Any]:
        """Return a list, of a given length where that is asked for; null counts as empty."""
        value = self.raw(*keys, default=default)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            raise self.bad(keys[0], value, "a list")
        if length is not None and len(value) != length:
            raise self.bad(keys[0], f"{len(value)} entries", f"{length} entries, one for each layer")
        return list(value)

    def child(self, *keys: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """Return a mapping inside this one as a config of its own; empty where it is absent."""
        value = self.raw(*keys, default={})
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.bad(keys[0], value, "a mapping")
        return Config(
            value, where=self.where, path=self.key_path(keys[0]), defaults=defaults or {}, uses=self.uses
        )

    def choice(self, value: str, known: Sequence[str], *, key: str, what: str) -> str:
        """Return ``value`` if it is one of the known ones, else refuse the architecture by its name."""
        if value not in known:
            raise UnsupportedError(
                f"{what} {value!r} is not known to kvcalc",
                where=f"{self.where}, {self.key_path(key)}",
                hint=f"known: {', '.join(known)}; or describe the model in a profile",
            )
        return value

    def bad(self, key: str, value: object, wanted: str) -> ProfileError:
        """Return the error for a value that is not what its key needs."""
        shown = repr(value)
        shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
        return ProfileError(f"{self.key_path(key)} is {shown}, not {wanted}", where=self.where)
