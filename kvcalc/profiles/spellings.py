"""Typed names of models and cards as words: what does not count, and what the end of a name says of the weights."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Reading", "card_words", "readings", "words"]

_LONGEST = 200
_MAX_ENDINGS = 12

# A number with its unit (8b, 8x7b, 80gb, 4.0bpw), a number (3.1), letters, or a plus sign.
_WORD = re.compile(
    r"\d++(?:\.\d++)*+(?:x\d++(?:\.\d++)*+)?(?:bpw|bits?|gb|tb|[bmkt])(?![a-z])|\d++(?:\.\d++)*+|[a-z]++|\+"
)

# What vendors, shops and tools print around the name of a card.
_AROUND = re.compile(
    r"\((?:tm|r|c)\)|\b(?:nvidia|geforce|amd|radeon|intel|apple|instinct|tesla|quadro|google|aws|huawei|graphics|gpu"
    r"|processor|accelerator|edition|generation|macbook (?:pro|air)|mac (?:studio|mini|pro)|imac|integrated|oam"
    r"|tensor core)\b"
)
_SAME_WORD = (
    (re.compile(r"(?<=\d)[ -](?=gi?b\b)"), ""),
    (re.compile(r"(?<=\d)g(?:ib)?\b"), "gb"),
    (re.compile(r"\bmobile\b"), "laptop"),
)


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to read a typed name.

    Args:
        key: the words of the model's name, joined by blanks.
        weights: what the name says of the weights, as ``--weights`` takes it; empty where it says nothing.
        unsaid: a kind of file that the name gives, but not in which format; empty where there is none.
        mixture: a mixture of the publisher's own, which no name tells the bytes of; empty where there is none.
        kv: what the name says of the cache, as ``--kv-dtype`` takes it; empty where it says nothing.
    """

    key: str
    weights: str = ""
    unsaid: str = ""
    mixture: str = ""
    kv: str = ""


def words(name: str) -> str:
    """Return the words of a name, joined by blanks: case, blanks, hyphens, colons and underscores do not count.

    >>> words("Llama-3.1 8B"), words("llama3.1:8b"), words("Mixtral_8x7B-v0.1")
    ('llama 3.1 8b', 'llama 3.1 8b', 'mixtral 8x7b v 0.1')
    """
    return " ".join(_WORD.findall(name[:_LONGEST].lower().replace("_", " ")))


def card_words(name: str) -> str:
    """Return the words of a card's name without vendor and remarks.

    >>> card_words("NVIDIA GeForce RTX 4090"), card_words("AMD Instinct MI300X"), card_words("A100 80 GB")
    ('rtx 4090', 'mi 300 x', 'a 100 80gb')
    """
    text = " ".join(name[:_LONGEST].lower().replace("_", " ").replace("-", " ").split())
    text = _AROUND.sub(" ", text)
    for pattern, word in _SAME_WORD:
        text = pattern.sub(word, text)
    return words(text)


def _exl(match: re.Match[str]) -> str:
    return f"exl{match['kind']}-{match['bits']}bpw"


def _recipe(match: re.Match[str]) -> str:
    """Spell a recipe of llama.cpp; publishers' own mixtures (UD, XL) have no bytes that a name tells."""
    return "" if _MIXTURE.search(match[0]) else _spelled(match["recipe"])


def _spelled(recipe: str) -> str:
    return recipe.replace(" ", "_").replace("q_", "q", 1)


_RECIPE = r"i?q \d(?: [01]| k(?: xs| s| m| l| xl)?| xxs| xs| s| m| nl)?|tq [12] 0"
# Recipes of publishers: Unsloth's dynamic ones, and extra large ones.
_MIXTURE = re.compile(rf"\b(?:(?P<dynamic>ud) (?P<recipe>{_RECIPE})|(?P<large>q \d k xl))$")


def _fixed(weights: str) -> Callable[[re.Match[str]], str]:
    return lambda _: weights


# Endings that say how weights are stored, the longest first. Where the format is empty, the name does not tell it.
_FORMATS: tuple[tuple[str, Callable[[re.Match[str]], str]], ...] = (
    (r"mx ?fp 4 q (?P<bits>[48])(?: mlx)?", lambda match: f"mlx-{match['bits']}bit,experts=mxfp4"),
    (r"nv ?fp 4 ?a 16", _fixed("nvfp4a16")),
    (r"nv ?fp 4(?: qad)?(?: v \d)?|fp 4(?: v \d)?", _fixed("nvfp4")),
    (r"w mx ?fp 4 a fp 8|mx ?fp 4(?: moe)?", _fixed("mxfp4-w4a4")),
    (r"mx ?fp 8", _fixed("mxfp8-w8a8")),
    (r"fp 8 block(?: 128)?", _fixed("fp8-block")),
    (r"fp 8(?: (?:dynamic|static|kv|pertensor|per tensor|e 4 m 3))*", _fixed("fp8-dynamic")),
    (r"awq(?: int)?(?: 4| 4 ?bit)?(?: marlin| g ?128)*|4bit awq", _fixed("awq")),
    (r"gptq(?: int)? ?(?P<bits>8)(?: ?bit)?", _fixed("gptq-int8")),
    (r"gptq(?: int)?(?: 4| 4bit| 4b)?(?: marlin| g ?128| 128 ?g)*", _fixed("gptq")),
    (r"(?:w 4 a 16 |int 4 )?auto ?round(?: int 4| w 4 a 16)?", _fixed("w4a16")),
    (r"(?:int 4 )?w 4 a 16(?: g ?128)?(?: ct)?", _fixed("w4a16")),
    (r"w 8 a 16", _fixed("w8a16")),
    (r"w 4 ?a ?fp 8|w 4 a 8 fp 8", _fixed("w4afp8")),
    (r"w 4 a 8", _fixed("w4a8")),
    (r"(?:int 8 )?w 8 a 8(?: int 8)?", _fixed("w8a8")),
    (r"int ?4", _fixed("int4")),
    (r"int ?8", _fixed("w8a16")),
    (r"(?:unsloth )?(?:bnb|bitsandbytes) 4 ?bit|nf 4", _fixed("bnb-4bit")),
    (r"(?:unsloth )?(?:bnb|bitsandbytes) 8 ?bit", _fixed("bnb-8bit")),
    (r"hqq(?: 4 ?bit)?", _fixed("hqq")),
    (r"bit ?net", _fixed("bitnet")),
    (r"(?:mlx )?(?P<bits>[234568]) ?bit(?: mlx)?(?: dwq)?", lambda match: f"mlx-{match['bits']}bit"),
    (r"exl ?(?P<kind>[23]) (?P<bits>[\d.]+) ?bpw(?: h \d)?", _exl),
    (r"(?P<bits>[\d.]+) ?bpw(?: h \d)? exl ?(?P<kind>[23])", _exl),
    (r"exl ?[23]", _fixed("")),
    (r"(?:ggml|gguf)", _fixed("")),
    (rf"(?:ud )?(?P<recipe>{_RECIPE})", _recipe),
    (r"bf 16", _fixed("bf16")),
    (r"f(?:p|loat)? ?16", _fixed("fp16")),
    (r"f(?:p|loat)? ?32", _fixed("fp32")),
)


@cache
def _endings() -> tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...]:
    """Return the endings as patterns, which a name that the catalogue has as it stands never needs."""
    return tuple((re.compile(rf"(?:^| )(?:{pattern})$"), meaning) for pattern, meaning in _FORMATS)


# Endings of tuning and packing, which change neither shape nor format.
_TUNED = re.compile(
    r"(?:^| )(?:instruct|chat|it|base|pt|hf|think|thinking|reasoning|latest|unsloth|quantized|qat|mtp|i 1|imatrix|imat"
    r"|ct|original|mlx|dwq|text)$"
)
_UNSAID = re.compile(r"(?:^| )(gguf|ggml|mlx|exl ?[23])\b")
_CACHE_IN_FP8 = re.compile(r" fp 8(?: (?:dynamic|static))* kv\b")


def readings(name: str) -> Iterator[Reading]:
    """Yield ways to read a model's name, the most exact first: as it stands, without its owner, without its endings.

    >>> [reading.key for reading in readings("RedHatAI/Qwen3-8B-FP8-dynamic")]
    ['redhatai qwen 3 8b fp 8 dynamic', 'qwen 3 8b fp 8 dynamic', 'qwen 3 8b']
    >>> [(reading.key, reading.unsaid) for reading in readings("unsloth/gpt-oss-20b-GGUF")][-1]
    ('gpt oss 20b', 'gguf')
    """
    path = name.strip().rstrip("/").replace("\\", "/")
    yield Reading(words(path))
    key = words(path.rpartition("/")[2].removesuffix(".gguf"))
    yield Reading(key)
    unsaid = _UNSAID.search(key)
    kv = "fp8" if _CACHE_IN_FP8.search(key) else ""
    weights = mixture = ""
    for _ in range(_MAX_ENDINGS):
        mixture = mixture or _mixture(key)
        shorter, stored = _without_ending(key)
        if shorter == key or not shorter:
            return
        key, weights = shorter, stored or weights
        yield Reading(key, weights, "" if weights or unsaid is None else unsaid[1], mixture, kv)


def _mixture(key: str) -> str:
    """Return the publisher's own mixture that words end in, as its files are named; empty where they end in none."""
    own = _MIXTURE.search(key)
    return "" if own is None else f"{'UD-' if own['dynamic'] else ''}{_spelled(own['recipe'] or own['large']).upper()}"


def _without_ending(key: str) -> tuple[str, str]:
    """Return a key without its last ending, and the format that it names."""
    for pattern, meaning in _endings():
        match = pattern.search(key)
        if match is not None:
            return key[: match.start()], meaning(match)
    return _TUNED.sub("", key), ""
