"""Keys that say the same thing twice, and not the same: which of them holds is told in every answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.importers.quantization import QUANTIZATIONS
from kvcalc.importers.unread import looks_relevant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvcalc.importers.config_reader import Config

__all__ = ["contradiction_notes"]

# The order of the layers: as a list, and as the number of layers after which it repeats.
_LISTS = ("layer_types", "layers_block_type")
_PERIODS = ("full_attention_interval", "sliding_window_pattern", "_sliding_window_pattern", "attn_layer_period",
            "global_attn_every_n_layers", "attention_every_n_layers")  # fmt: skip


def contradiction_notes(chain: Sequence[Config]) -> tuple[str, ...]:
    """Name the keys of a config that contradict each other.

    Args:
        chain: the configs from the outermost to that of the text model, after they were read.
    """
    return (*_levels(chain), *_dtypes(chain), *_quantizations(chain), *_orders(chain[-1]))


def _levels(chain: Sequence[Config]) -> Iterator[str]:
    """Yield keys of the text model that a config around it gives too, with another value."""
    text = chain[-1]
    for outer in chain[:-1]:
        for key, value in text.data.items():
            use = text.uses.get(text.key_path(key))
            other = outer.data.get(key)
            if use is None or other is None or value is None or other == value or not looks_relevant(key):
                continue
            if isinstance(value, dict) or isinstance(other, dict):
                continue
            paths = [outer.key_path(key), text.key_path(key)]
            holds = paths[use.use == "used"]
            yield f"{paths[0]} is {_shown(other)} and {paths[1]} is {_shown(value)}: {holds} holds"


def _dtypes(chain: Sequence[Config]) -> Iterator[str]:
    """Yield formats of unquantised tensors that differ from the outermost, which decides."""
    named = [
        (config.key_path(key), str(config.data[key]).removeprefix("torch."))
        for config in chain
        for key in ("dtype", "torch_dtype")
        if config.data.get(key) not in (None, "auto")
    ]
    for path, value in named[1:]:
        if value != named[0][1]:
            yield f"{named[0][0]} is {named[0][1]} and {path} is {value}: {named[0][0]} holds"


def _quantizations(chain: Sequence[Config]) -> Iterator[str]:
    """Yield other descriptions of the same quantisation."""
    top, text = chain[0], chain[-1]
    configs = (top,) if text is top else (top, text)
    given = [
        (config.key_path(key), config.data[key]) for config in configs for key in QUANTIZATIONS if config.data.get(key)
    ]
    for path, value in given[1:]:
        if value != given[0][1]:
            yield f"{given[0][0]} and {path} say different things: {given[0][0]} holds"


def _orders(text: Config) -> Iterator[str]:
    """Yield lists of layers that do not repeat as a number beside them says."""
    lists = [(key, text.data[key]) for key in _LISTS if isinstance(text.data.get(key), list)]
    periods = [(key, text.data[key]) for key in _PERIODS if type(text.data.get(key)) is int and text.data[key] > 1]
    for key, kinds in lists:
        for name, period in periods:
            if not _repeats([str(kind) for kind in kinds], period):
                yield f"{text.key_path(key)} does not repeat as {name} = {period} says: {key} holds"


def _repeats(kinds: list[str], period: int) -> bool:
    """Whether some kind stands in every ``period``-th layer and nowhere else.

    >>> _repeats(["a", "a", "b", "a", "a", "b", "a"], 3), _repeats(["a", "b", "a", "b"], 3)
    (True, False)
    """
    for kind in set(kinds):
        places = [index for index, other in enumerate(kinds) if other == kind]
        if places == list(range(places[0] % period, len(kinds), period)):
            return True
    return len(kinds) < period


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)[:60]
