"""Overrides of tensors' places find in each layer what a search in the whole name finds."""

from __future__ import annotations

import re
from itertools import product

import pytest

from kvcalc.core.errors import InputError
from kvcalc.engines.llama_cpp.overrides import EXPERTS, Override, Overrides, check_patterns

SUFFIXES = (
    "attn_q.weight", "attn_q.bias", "ffn_up.weight", "ffn_down.weight", "ffn_up_exps.weight", "ffn_gate_up_exps.weight",
    "ffn_down_exps.weight", "ffn_up_shexp.weight", "ffn_down_chexps.weight", "ssm_a",
)  # fmt: skip
NAMES = [f"blk.{layer}.{name}" for layer, name in product((0, 1, 2, 11, 12, 21), SUFFIXES)]
NAMES += ["token_embd.weight", "output.weight", "output_norm.weight"]
PATTERNS = (
    EXPERTS, rf"blk\.(1|12){EXPERTS}", rf"blk\.2{EXPERTS}", r"blk\.\d+\.ffn_down.*", r"blk\.1\.ffn_(gate|up|down).*",
    r"\.ffn_up", r"\.weight$", r"\.f?fn", r"\.w*1", r"exps", "ffn|attn", r"blk\.1\.ffn|attn", r"blk\.01\.ffn_up",
    r"blk\.1\.", r"blk\.(1|2)\.ffn_(up|down)_\1", r"(?<=1\.)ffn", r"blk.1.ffn", r"blk\.[12]\.ffn", r"blk\.(1[0-9])\.attn",
    r"blk\.1\.f(?=fn_up)", r"blk\.(1|2)\.ffn_up(_(sh|)exp|x)", r"^blk\.1", r"\.ssm_a", r"blk\.\d+\.attn_q\.(weight|bias)",
)  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_moves_what_it_is_found_in(pattern: str) -> None:
    moved = Overrides((Override(pattern=pattern),))
    found = {name for name in NAMES if moved.place(name, 0) is None}
    assert found == {name for name in NAMES if re.search(pattern, name)}


@pytest.mark.parametrize("pair", list(product(PATTERNS[:10], PATTERNS[:10])))
def test_the_first_pattern_that_is_found_counts(pair: tuple[str, str]) -> None:
    moved = Overrides(tuple(Override(pattern=pattern, device=device) for device, pattern in enumerate(pair, 1)))

    def place(name: str) -> int:
        return next((device for device, pattern in enumerate(pair, 1) if re.search(pattern, name)), 0)

    for layer in (0, 1, 12):
        assert moved.of_layer(layer, SUFFIXES, 0) == tuple(place(f"blk.{layer}.{name}") for name in SUFFIXES)
    for name in (*NAMES, "mtp.blk.1.attn_q.weight"):
        assert moved.place(name, 0) == place(name)


def test_a_pattern_that_is_no_expression_is_refused() -> None:
    for pattern in (r"blk\.1\.ffn_(up", r"blk\.1\.ffn[up", "*"):
        with pytest.raises(InputError, match="is no regular expression"):
            check_patterns([Override(pattern=pattern)])
