"""Words for how a whole model is quantised, and what such checkpoints store: matrices, and the rest in 16 bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.cost.parameters import parameters

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats

__all__ = ["WORDS", "WeightWord", "is_word", "kept_parts", "weight_word", "word_notes"]

# What such checkpoints quantise; embedding, head, router, norms and towers stay as they are.
_QUANTISED = ("attention", "mlp", "experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightWord:
    """What a word means.

    Args:
        form: format of the quantised matrices.
        activations: format they are multiplied in, where the kind quantises activations too.
    """

    form: str
    activations: str | None = None


# The usual group is 128 with a 16-bit scale; AWQ and GPTQ pack a 4-bit zero point beside it.
# Sources: llm-compressor's schemes W4A16, W8A8, FP8 and FP8_DYNAMIC; the defaults of AutoAWQ, GPTQModel and ModelOpt.
WORDS = {
    "awq": WeightWord(form="int4-g128-zp4"),
    "fp8": WeightWord(form="fp8"),
    "fp8-dynamic": WeightWord(form="fp8", activations="fp8"),
    "gptq": WeightWord(form="int4-g128-zp4"),
    "int4": WeightWord(form="int4-g128"),
    "nvfp4": WeightWord(form="nvfp4"),
    "w4a16": WeightWord(form="int4-g128"),
    "w8a8": WeightWord(form="int8", activations="int8"),
}


def weight_word(text: str | None) -> WeightWord | None:
    """Return what the first word of asked weights means; none where it is a format for every parameter.

    >>> weight_word("int4,head=fp8"), weight_word("q4_0")
    (WeightWord(form='int4-g128', activations=None), None)
    """
    return None if text is None else WORDS.get(text.partition(",")[0].strip().lower().replace("_", "-"))


def kept_parts(model: ModelProfile, dtype: str) -> dict[str, Format]:
    """Return the parts of a model that such a checkpoint leaves alone, and their format.

    Args:
        model: the model.
        dtype: the unquantised format that it is run in.
    """
    return {part: parse_format(dtype) for part in parameters(model) if part not in _QUANTISED}


def is_word(formats: Formats) -> bool:
    """Whether weights are quantised as a word says: matrices in its form, and everything else plain."""
    kept = {part for part, form in formats.parts.items() if form.block_elements == 1 and form.block_bytes > 1}
    whole = kept == formats.parts.keys() and kept.isdisjoint(_QUANTISED) and {"head", "vector"} <= kept
    return whole and formats.weights.name in {word.form for word in WORDS.values()}


def word_notes(model: ModelProfile, text: str | None, dtype: str) -> tuple[str, ...]:
    """Say what a word was taken for; nothing where a format was asked for."""
    word = weight_word(text)
    if word is None or text is None:
        return ()
    parts = parameters(model)
    stored = ", ".join(part for part in _QUANTISED if part in parts)
    kept = ", ".join(part for part in kept_parts(model, dtype) if f"{part}=" not in text)
    multiplied = f", multiplied in {word.activations}," if word.activations else ""
    told = f"--weights {text.partition(',')[0].strip()} is what checkpoints do: {stored} in {word.form}{multiplied}"
    return (f"{told} and {kept} in {dtype} (head={word.form} after a comma quantises the head too)",)
