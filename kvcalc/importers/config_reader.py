"""Reading a checkpoint's config so that every key that was used, defaulted or left alone can be told afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import ProfileError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Config", "KeyUse"]

# No real model comes near; larger numbers are a broken or hostile file.
_LARGEST = 10**12
_MAX_LAYERS = 10_000
_MISSING: Any = object()
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class KeyUse:
    """Use of one key of a config.

    Args:
        key: dotted path of the key.
        value: the value in force.
        use: ``used`` (read from the file), ``defaulted`` (absent; the config class's own default) or ``ignored``.
        why: where a default comes from, or why a key was not read.
    """

    key: str
    value: object
    use: str
    why: str = ""


class Config:
    """A config mapping with the defaults of its class, typed access, and a memory of what was read.

    Args:
        data: the mapping as it stands in the file.
        where: the file, for messages.
        path: dotted path of this mapping inside the file.
        defaults: values the config's class gives to keys that the file leaves out.
        uses: record shared with the parent config.
        spellings: other names of keys, each with the name it stands for.
        given: keys that a config around this one decides, with what is known of each there.
        absent: paths of keys that were looked for and are not in the file, shared with the parent config.
    """

    def __init__(
        self,
        data: Mapping[str, Any],
        *,
        where: str = "config.json",
        path: str = "",
        defaults: Mapping[str, Any] | None = None,
        uses: dict[str, KeyUse] | None = None,
        spellings: Mapping[str, str] | None = None,
        given: Mapping[str, KeyUse] | None = None,
        absent: set[str] | None = None,
    ) -> None:
        self.data = data
        self.where = where
        self.path = path
        self.defaults = defaults or {}
        self.uses: dict[str, KeyUse] = {} if uses is None else uses
        self.spellings = spellings or {}
        self.given = given or {}
        self.absent: set[str] = set() if absent is None else absent

    def key_path(self, key: str) -> str:
        """Return the dotted path of a key in the file."""
        return f"{self.path}.{key}" if self.path else key

    def raw(self, *keys: str, default: Any = _MISSING) -> Any:
        """Return the value that the file gives to one of these spellings, else the class's default, else ``default``.

        A null counts where no other spelling has a value.

        Raises:
            ProfileError: the key is missing and nothing stands in for it, or two spellings of it contradict each other.
        """
        outer = next((self.given[key] for key in keys if key in self.given), None)
        if outer is not None:
            self.uses[outer.key] = outer
            return outer.value
        names = self._names(keys)
        present = [name for name in names if name in self.data]
        if present:
            return self._agreed([name for name in present if self.data[name] is not None] or present[:1])
        self.absent |= set(map(self.key_path, names))
        for name in names:
            if name in self.defaults:
                path = self.key_path(name)
                self.uses.setdefault(path, KeyUse(path, self.defaults[name], "defaulted", "the config class's default"))
                return self.defaults[name]
        if default is _MISSING:
            raise ProfileError(
                f"the config has no {' or '.join(repr(key) for key in keys)}",
                where=f"{self.where}, {self.path or 'top level'}",
                hint="the file is incomplete; describe the model in a profile instead",
            )
        path = self.key_path(keys[0])
        self.uses.setdefault(path, KeyUse(path, default, "defaulted", "absent"))
        return default

    def _names(self, keys: Sequence[str]) -> list[str]:
        """Return the keys and, after them, every other spelling of each."""
        names = list(keys)
        for key in keys:
            meant = self.spellings.get(key, key)
            names += [meant, *(name for name, other in self.spellings.items() if other == meant)]
        return list(dict.fromkeys(names))

    def _agreed(self, names: Sequence[str]) -> Any:
        """Return the value that these keys of the file share, and note them as used."""
        first, *others = names
        for name in others:
            if self.data[name] != self.data[first]:
                raise ProfileError(
                    f"{self.key_path(first)} is {_shown(self.data[first])}, but {self.key_path(name)}, "
                    f"another name for it, is {_shown(self.data[name])}",
                    where=self.where,
                    hint="remove the one that does not hold",
                )
        for name in names:
            self.uses[self.key_path(name)] = KeyUse(self.key_path(name), self.data[name], "used")
        return self.data[first]

    def pass_over(self, key: str, why: str) -> None:
        """Note that a key of the file has no effect, and why."""
        if key in self.data:
            self.uses.setdefault(self.key_path(key), KeyUse(self.key_path(key), self.data[key], "ignored", why))

    def has(self, key: str) -> bool:
        """Return whether the file itself has the key with a value other than null."""
        if key not in self.data:
            self.absent.add(self.key_path(key))
        return self.data.get(key) is not None

    def integer(self, *keys: str, default: Any = _MISSING, least: int = 1) -> int:
        """Return a whole number of at least ``least``."""
        value = self.raw(*keys, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        maximum = _MAX_LAYERS if any(key.endswith(("layers", "n_layer")) for key in keys) else _LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= maximum:
            raise self.bad(keys[0], value, f"a whole number from {least} to {maximum:.0e}")
        return value

    def maybe_integer(self, *keys: str, least: int = 1) -> int | None:
        """Return a whole number, or none where the value is null or absent."""
        value = self.raw(*keys, default=None)
        return None if value is None else self.integer(*keys, default=value, least=least)

    def integer_or(self, otherwise: int, *keys: str, least: int = 1) -> int:
        """Return a whole number, or what the architecture takes in its place where the value is null or absent."""
        value = self.maybe_integer(*keys, least=least)
        if value is not None:
            return value
        path = self.key_path(next((name for name in self._names(keys) if name in self.data), keys[0]))
        self.uses[path] = KeyUse(path, otherwise, "defaulted", "null or absent; what the architecture takes instead")
        return otherwise

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

    def integers(self, *keys: str, default: Any = _MISSING, length: int | None = None) -> list[int]:
        """Return a list of whole numbers of 1 or more; of a given length where that is asked for."""
        values = self.sequence(*keys, default=default, length=length)
        if not all(type(value) is int and 1 <= value <= _LARGEST for value in values) or (length and not values):
            raise self.bad(keys[0], values, "a list of whole numbers of 1 or more")
        return values

    def child(self, *keys: str, defaults: Mapping[str, Any] | None = None) -> Config:
        """Return a mapping inside this one as a config of its own; empty where it is absent."""
        value = self.raw(*keys, default={})
        if value is None:
            value = {}
        if not isinstance(value, dict):
            raise self.bad(keys[0], value, "a mapping")
        path = self.key_path(keys[0])
        return Config(value, where=self.where, path=path, defaults=defaults or {}, uses=self.uses, absent=self.absent)

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
        return ProfileError(f"{self.key_path(key)} is {_shown(value)}, not {wanted}", where=self.where)


def _shown(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
