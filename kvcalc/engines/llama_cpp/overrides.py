r"""Overrides of tensors' places: which tensors the patterns of ``--override-tensor`` move, and where to.

Most patterns name layers and then a tensor of the layer (``blk\.3\.ffn_up``). What they find in a layer depends on
the part behind the layer's number alone, so that it is searched once for all layers and all placements.

Source: llama.cpp commit 0c1e57098bba, ``llama_model_loader::create_tensor`` and ``common/arg.cpp``.
"""

from __future__ import annotations

import re
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.core.identity import ById
from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["EXPERTS", "HOST", "Override", "Overrides", "check_patterns", "overriding"]

# A place that is no device: the host's memory.
HOST = None
# The tensors of routed experts: ``LLM_FFN_EXPS_REGEX`` of ``common/common.h``.
EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
# The beginning of the names of a layer's tensors.
_LAYER = "blk."
# A pattern that names layers, by number, in a list or all of them, and behind them a plain expression: no groups in
# groups, no alternatives outside them, nothing that looks at what stands before.
_PLAIN = r"(?=[a-z](?![?*{]))(?:[^|()\\]|\\[^0-9]|\((?!\?)(?:[^()\\]|\\[^0-9])*\))*"
_OF_LAYERS = re.compile(rf"blk\\\.(?:\((?P<listed>\d+(?:\|\d+)*)\)|(?P<one>\d+)|\\d\+)\\\.(?P<rest>{_PLAIN})")
_OF_ALL = re.compile(rf"\\\.{_PLAIN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """Tensors that are stored somewhere else than their layer: ``--override-tensor pattern=buffer``.

    Args:
        pattern: regular expression that is searched in the tensor's name.
        device: index of the device they go to; none for the host.
    """

    pattern: str
    device: int | None = HOST


class _Rule(NamedTuple):
    """A pattern as it acts in a layer.

    Args:
        rest: the pattern, without the layer if it begins with one.
        is_first: whether it stands right behind the layer's number.
        layers: the layers, as they are written; none for all.
    """

    rest: str
    is_first: bool
    layers: tuple[str, ...] | None = None


@lru_cache(maxsize=4096)
def _rule(pattern: str) -> _Rule | None:
    """Return a pattern as it acts in a layer; none where only a whole name tells whether it is found.

    Raises:
        InputError: no regular expression.
    """
    match = _OF_LAYERS.fullmatch(pattern)
    rest = match["rest"] if match else pattern
    try:
        re.compile(rest)
    except re.error as error:
        raise InputError(
            f"override-tensor {pattern[:80]!r} is no regular expression: {error}", parameter="override-tensor"
        ) from None
    if match is None:
        return _Rule(rest, is_first=False) if _OF_ALL.fullmatch(pattern) else None
    layers = match["listed"] or match["one"]
    return _Rule(rest, is_first=True, layers=tuple(layers.split("|")) if layers else None)


def check_patterns(overrides: Iterable[Override]) -> None:
    """Refuse patterns that are no regular expressions.

    Raises:
        InputError: one is none.
    """
    for override in overrides:
        _rule(override.pattern)


# A rule, and the device it moves tensors to.
_Move = tuple[_Rule, int | None]


class Overrides:
    r"""Overrides in the order they are tried, and the answers for the tensors that were asked for.

    >>> moved = Overrides((Override(pattern=r"blk\.(1|2)\.ffn_up"), Override(pattern=r"\.ffn_down", device=1)))
    >>> moved.place("blk.1.ffn_up.weight", 0), moved.place("blk.3.ffn_up.weight", 0)
    (None, 0)
    >>> moved.of_layer(2, ("ffn_up.weight", "ffn_down.weight", "attn_q.weight"), 0)
    (None, 1, 0)
    """

    def __init__(self, overrides: tuple[Override, ...]) -> None:
        self.overrides = overrides
        self.known: dict[str, Override | None] = {}
        self.by_layer: dict[str, list[tuple[int, _Move]]] = {}
        self.of_all: list[tuple[int, _Move]] = []
        # those that name no layers: only they can move a tensor of none
        self.of_any: list[Override] = []
        self.is_plain = True
        for order, override in enumerate(overrides):
            rule = _rule(override.pattern)
            if rule is None:
                self.is_plain = False
                continue
            if not rule.is_first:
                self.of_any.append(override)
            if rule.layers is None:
                self.of_all.append((order, (rule, override.device)))
            else:
                move = rule._replace(layers=None), override.device
                for layer in dict.fromkeys(rule.layers):
                    self.by_layer.setdefault(layer, []).append((order, move))

    def place(self, name: str, home: int | None) -> int | None:
        """Return the place of a tensor.

        Args:
            name: its name in the file.
            home: where it stands unless an override moves it.
        """
        if self.is_plain and name.startswith(_LAYER):
            _, layer, rest = name.split(".", 2)
            return self._moved(layer, (rest,), home)[0]
        if name not in self.known:
            tried = self.of_any if self.is_plain and _LAYER not in name else self.overrides
            self.known[name] = next((each for each in tried if re.search(each.pattern, name)), None)
        device = self.known[name]
        return home if device is None else device.device

    def of_layer(self, layer: int, names: tuple[str, ...], home: int | None) -> tuple[int | None, ...]:
        """Return the places of a layer's tensors.

        Args:
            layer: the layer.
            names: their names in the file, behind the layer's number.
            home: where they stand unless an override moves them.
        """
        if self.is_plain:
            return self._moved(str(layer), names, home)
        return tuple(self.place(f"{_LAYER}{layer}.{name}", home) for name in names)

    def _moved(self, layer: str, names: tuple[str, ...], home: int | None) -> tuple[int | None, ...]:
        ordered = sorted((*self.by_layer.get(layer, ()), *self.of_all), key=itemgetter(0))
        return _moved(tuple(move for _, move in ordered), names, home)


@lru_cache(maxsize=4096)
def _moved(moves: tuple[_Move, ...], names: tuple[str, ...], home: int | None) -> tuple[int | None, ...]:
    """Return the places of a layer's tensors by the overrides of that layer, in order."""
    return tuple(next((device for rule, device in moves if _finds(rule, name)), home) for name in names)


@lru_cache(maxsize=4096)
def _finds(rule: _Rule, name: str) -> bool:
    return bool(re.match(rule.rest, name) if rule.is_first else re.search(rule.rest, f".{name}"))


@lru_cache(maxsize=64)
def overriding(same: ById[tuple[Override, ...]]) -> Overrides:
    """Return overrides ready to be asked, kept since placements are tried by the dozen."""
    return Overrides(same.value)
