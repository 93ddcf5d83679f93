"""SGLang's pools: bytes of a token where keys and values differ, whole pages, and one page more in the buffers."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Block, Full, Mixer, ModelProfile, Shared
from kvcalc.core.workload import Formats
from kvcalc.engines.sglang import Buffers, TokenBytes, buffers, max_total_tokens, token_bytes


def _model(*mixers: Mixer) -> ModelProfile:
    return ModelProfile(
        name="x",
        architecture="x",
        hidden_size=64,
        context_limit=None,
        blocks=tuple(Block(mixers=(mixer,)) for mixer in mixers),
        embeddings=(),
        head=None,
    )


def test_values_have_a_width_of_their_own() -> None:
    # MiMo-V2's full layers: keys of 192, values of 128
    mixer = Full(heads=64, kv_heads=4, head_dim=192, value_head_dim=128)
    assert token_bytes(_model(mixer, mixer), Formats()) == TokenBytes(
        keys=2 * 4 * 192 * 2, values=2 * 4 * 128 * 2, index=0
    )


def test_keys_and_values_may_have_formats_of_their_own() -> None:
    formats = Formats(key=parse_format("bf16"), value=parse_format("fp8"))
    mixer = Full(heads=8, kv_heads=8, head_dim=64)
    assert token_bytes(_model(mixer), formats, tensor=2) == TokenBytes(keys=4 * 64 * 2, values=4 * 64, index=0)


def test_a_layer_that_reads_anothers_cache_adds_nothing() -> None:
    mixer = Full(heads=8, kv_heads=8, head_dim=64)
    shared = Shared(heads=8, kv_heads=8, head_dim=64)
    assert token_bytes(_model(mixer, shared), Formats()) == token_bytes(_model(mixer), Formats())


@pytest.mark.parametrize(("memory", "tokens"), [(99, 0), (100, 0), (6399, 0), (6400, 64), (12_799, 64), (12_800, 128)])
def test_a_pool_has_whole_pages_of_whole_tokens(memory: int, tokens: int) -> None:
    assert max_total_tokens(TokenBytes(keys=50, values=30, index=20), memory_bytes=memory, page_size=64) == tokens


@pytest.mark.parametrize(("token", "page"), [((1, 0, 0), 0), ((0, 0, 0), 1)])
def test_a_pool_of_nothing_is_refused(token: tuple[int, int, int], page: int) -> None:
    keys, values, index = token
    with pytest.raises(InputError, match="cannot be sized"):
        max_total_tokens(TokenBytes(keys=keys, values=values, index=index), memory_bytes=100, page_size=page)


def test_the_buffers_have_one_page_more_for_padding() -> None:
    token = TokenBytes(keys=3, values=5, index=7)
    assert buffers(token, tokens=128, page_size=64) == Buffers(
        key_bytes=192 * 3, value_bytes=192 * 5, index_bytes=192 * 7
    )
    assert max_total_tokens(TokenBytes(keys=0, values=0, index=1), memory_bytes=1, page_size=1) == 1
