"""The KV cache at work: the same tokens made without and with it, and the work of each pass."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.common import Report
from kvcalc.core.units import bytes_text, number_text
from kvcalc.demo.decoder import DecoderShape, generate, random_decoder
from kvcalc.render.charts import Axis, chart, line_layer
from kvcalc.render.layout import Text
from kvcalc.render.tables import facts, heading
from kvcalc.render.terminal import line_chart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.demo.decoder import ForwardPass, Tokens
    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["KvCacheReport", "KvCacheStep", "demo_kv_cache"]

_MAX_TOKENS = 512
_MAX_BATCH = 64
# Scores of all passes without a cache, and tokens for which the runs are compared row by row.
_MAX_SCORES = 3 * 10**7
_ROW_TOKENS = 8
# Outputs of 64 bits that differ by less differ by the order of the additions alone.
_MAX_ROUNDING = 1e-12
_WHY = (
    "A token's query is used only at its own step; later steps need only its key and value, so only those are cached.",
    "They can be kept because a token sees nothing that comes after it: its hidden states never change.",
    "An encoder that looks both ways cannot: from the second layer on, old keys and values depend on new tokens.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCacheStep:
    """The pass that makes one token, without and with the cache.

    Args:
        place: of the token made, counted from 1.
        phase: ``prefill`` or ``decode``, as the cached run does it.
        past_tokens: tokens of a sequence in the cache before it.
        tokens: the token made, for each sequence of the batch.
        projections_without: tokens whose keys and values a layer computes, without a cache.
        projections_with: the same with a cache.
        shapes: shape of each tensor of a layer in the cached pass.
        shapes_without: shape of the same tensors where everything is computed again.
        difference: largest difference between the last token's attention outputs of the two runs, over all layers.
    """

    place: int
    phase: str
    past_tokens: int
    tokens: tuple[int, ...]
    projections_without: int
    projections_with: int
    shapes: Mapping[str, tuple[int, ...]]
    shapes_without: Mapping[str, tuple[int, ...]]
    difference: float


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class KvCacheReport(Report):
    """Generation without and with a cache of keys and values.

    A projection is one token's key and value in one layer, all its heads; the sums below are those of one layer and one
    sequence. The last token made is never projected: nothing follows that would attend to it.

    Args:
        shape: the decoder.
        batch: sequences.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens made after it.
        seed: of weights and prompts.
        projections_without: without a cache, sum over i < n of (prompt + i).
        projections_with: with a cache, prompt + n - 1.
        same_tokens: whether both runs made the same tokens.
        difference: largest difference of attention outputs.
        by_row_difference: the same where both runs multiply row by row, in the same order; over the first tokens of the
            first sequence.
        both_ways_difference: the same for a decoder of at least two layers without the causal mask, whose old keys and
            values would have to change with every new token.
        both_ways_first_wrong: place of the first token that the unmasked decoder gets wrong with a cache, if any.
        cache_bytes: bytes of keys and values that the cached run holds at the end, as float64.
        steps: each pass.
    """

    listed: ClassVar[str] = "steps"
    schema: str = "kvcalc.demo_kv_cache/1"
    shape: DecoderShape
    batch: int
    prompt_tokens: int
    output_tokens: int
    seed: int
    projections_without: int
    projections_with: int
    same_tokens: bool
    difference: float
    by_row_difference: float
    both_ways_difference: float
    both_ways_first_wrong: int | None
    cache_bytes: int
    steps: tuple[KvCacheStep, ...] = ()

    def parts(self) -> list[Part]:
        """Return the comparison of the two runs."""
        shape = self.shape
        without, kept = self.projections_without, self.projections_with
        made = f"{self.prompt_tokens} prompt tokens, {self.output_tokens} new, batch {self.batch}"
        size = f"{shape.layers} layers, {shape.heads} query heads, {shape.kv_heads} key-value heads of {shape.head_dim}"
        wrong = self.both_ways_first_wrong
        order = "matrix by matrix: additions in another order"
        rows = [
            ("projections without a cache", number_text(without), "a token's key and value, in each layer"),
            (
                "projections with a cache",
                number_text(kept),
                f"1/{without / kept:.1f} of that" if kept < without else "",
            ),
            ("tokens", "identical" if self.same_tokens else "DIFFERENT"),
            ("attention outputs differ by", _difference_text(self.difference), order),
            ("", f"{self.by_row_difference:g}", "row by row: the same order"),
            ("cache at the end", bytes_text(self.cache_bytes), "keys and values as 64-bit numbers"),
            (
                "the same without a causal mask",
                f"off by {self.both_ways_difference:.2g}",
                "first wrong token: " + ("none so far" if wrong is None else number_text(wrong)),
            ),
        ]
        lines = [Text(line) for line in _WHY]
        return [heading(f"The KV cache: {made}"), Text(size), Text(), facts(rows), Text(), *lines]

    def step_lines(self) -> list[list[str]]:
        """Return the lines of each pass: its tokens, its work and its shapes."""
        return [
            [
                f"step {step.place}, {step.phase}: token {', '.join(map(str, step.tokens))}",
                f"  projected in each layer: {step.projections_without} without, {step.projections_with} with a cache",
                f"  with     {_shapes_text(step.shapes)}",
                f"  without  {_shapes_text(step.shapes_without)}",
                f"  attention outputs differ by {_difference_text(step.difference)}",
            ]
            for step in self.steps
        ]

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return projections so far over tokens made."""
        projections = {
            "without a cache": (step.projections_without for step in self.steps),
            "with a cache": (step.projections_with for step in self.steps),
        }
        lines = {name: list(enumerate(accumulate(counts), 1)) for name, counts in projections.items()}
        return line_chart(lines, x="tokens made", y="projections", width=width, plain=plain)

    def spec(self) -> Spec:
        """Return projections of a layer for each token made."""
        rows = [
            {"tokens": step.place, "projections": count, "run": run}
            for step in self.steps
            for run, count in (("without", step.projections_without), ("with a cache", step.projections_with))
        ]
        lines = line_layer(
            rows,
            x=Axis(field="tokens", title="tokens made", whole=True),
            y=Axis(field="projections", title="tokens projected to keys and values, in each layer", whole=True),
            series="run",
            title="run",
        )
        subtitle = [
            f"prompt {self.prompt_tokens}; {self.projections_without:,} without, {self.projections_with:,} with",
            "source: kvcalc, a small decoder with random weights",
        ]
        return chart([lines], title="Keys and values computed again for each token, or kept", subtitle=subtitle)


def _difference_text(value: float) -> str:
    """Print a difference; one of rounding alone has other digits on each processor, and they say nothing."""
    if 0 < value < _MAX_ROUNDING:
        return f"less than {_MAX_ROUNDING:g}"
    return f"{value:.1e}" if value else "0"


def _shapes_text(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return "  ".join(f"{name} {list(shape)}" for name, shape in shapes.items())


def demo_kv_cache(
    *,
    shape: DecoderShape | None = None,
    prompt_tokens: int = 3,
    output_tokens: int = 20,
    batch: int = 1,
    seed: int = 0,
) -> KvCacheReport:
    """Generate with a small random decoder, without and with a cache, and compare tokens, outputs and work.

    Args:
        shape: layers, heads and widths of the decoder.
        prompt_tokens: tokens of each prompt.
        output_tokens: tokens to make.
        batch: sequences.
        seed: of weights and prompts.

    Raises:
        InputError: no tokens, sizes above what a demonstration holds, or heads that do not divide.
    """
    shape = shape or DecoderShape()
    check_between("prompt", prompt_tokens, 1, _MAX_TOKENS)
    check_between("output-tokens", output_tokens, 1, _MAX_TOKENS)
    check_between("batch", batch, 1, _MAX_BATCH)
    decoder = random_decoder(shape, seed=seed)
    squares = sum(length**2 for length in range(prompt_tokens, prompt_tokens + output_tokens))
    scores = batch * shape.layers * shape.heads * squares
    if scores > _MAX_SCORES:
        raise InputError(
            f"{scores:,} attention scores without a cache are more than the {_MAX_SCORES:,} of a demonstration",
            hint="fewer tokens, sequences, layers or heads",
        )
    prompt = np.random.default_rng(seed).integers(shape.vocabulary, size=(batch, prompt_tokens))
    plain, without, _ = generate(decoder, prompt, output_tokens, cached=False)
    cached, with_cache, cache = generate(decoder, prompt, output_tokens, cached=True)
    few = min(output_tokens, _ROW_TOKENS)
    rows = [generate(decoder, prompt[:1], few, cached=kept, by_row=True)[1] for kept in (False, True)]
    both_ways, wrong = _both_ways(shape, prompt, output_tokens, seed)
    return KvCacheReport(
        shape=shape,
        batch=batch,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        seed=seed,
        projections_without=sum(run.projections for run in without),
        projections_with=sum(run.projections for run in with_cache),
        same_tokens=bool((plain == cached).all()),
        difference=max(map(_difference, without, with_cache)),
        by_row_difference=max(map(_difference, *rows)),
        both_ways_difference=both_ways,
        both_ways_first_wrong=wrong,
        cache_bytes=cache.bytes,
        steps=_steps(without, with_cache, cached[:, prompt_tokens:]),
    )


def _both_ways(shape: DecoderShape, prompt: Tokens, output_tokens: int, seed: int) -> tuple[float, int | None]:
    """Run a decoder without the causal mask; return its largest error with a cache, and the first token it gets wrong.

    One layer would not show it: its keys and values depend on the tokens alone. From the second on they depend on all
    that the first attended to, and that changes with every token.
    """
    decoder = random_decoder(replace(shape, layers=max(2, shape.layers)), seed=seed, causal=False)
    plain, without, _ = generate(decoder, prompt, max(2, output_tokens), cached=False)
    cached, with_cache, _ = generate(decoder, prompt, max(2, output_tokens), cached=True)
    new = slice(prompt.shape[1], None)
    differs = np.flatnonzero((plain[:, new] != cached[:, new]).any(axis=0))
    # the second pass is the first that uses the cache; after a wrong token the two runs are of other text
    return _difference(without[1], with_cache[1]), int(differs[0]) + 1 if differs.size else None


def _difference(one: ForwardPass, other: ForwardPass) -> float:
    return float(np.abs(one.attention - other.attention).max())


def _steps(without: list[ForwardPass], with_cache: list[ForwardPass], made: Tokens) -> tuple[KvCacheStep, ...]:
    return tuple(
        KvCacheStep(
            place=index + 1,
            phase="decode" if index else "prefill",
            past_tokens=cached.shapes["key"][2] - cached.projections,
            tokens=tuple(int(token) for token in made[:, index]),
            projections_without=plain.projections,
            projections_with=cached.projections,
            shapes=cached.shapes,
            shapes_without=plain.shapes,
            difference=_difference(plain, cached),
        )
        for index, (plain, cached) in enumerate(zip(without, with_cache, strict=True))
    )
