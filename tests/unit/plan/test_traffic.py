"""Bytes read to generate tokens, in figures that can be checked by hand."""

import pytest

import kvcalc


def test_llama2_7b_reads_its_weights_each_time_and_a_triangle_of_cache():
    report = kvcalc.traffic(kvcalc.deployment("llama2-7b"), prompt_tokens=0, output_tokens=4096)
    entry = 32 * 32 * (128 + 128) * 2
    assert report.kv_read_bytes == entry * 4096 * 4097 // 2
    assert report.kv_bytes == entry * 4096
    # all but the input embedding, of which a row is read
    per_step = 2 * (6_738_415_616 - 32_000 * 4096 + 4096)
    assert report.weight_bytes == 4096 * per_step
    assert report.growth_exponent == pytest.approx(2 - 1 / 4097)


def test_a_step_is_the_one_that_decode_reports():
    deployment = kvcalc.deployment("gemma-3-27b", gpu="h100-sxm")
    rows = kvcalc.decode(deployment, batches=[3], contexts=[1025, 1026]).rows
    report = kvcalc.traffic(deployment, prompt_tokens=1024, output_tokens=2, batch=3)
    assert report.kv_read_bytes == sum(row.kv_read_bytes for row in rows)
    assert report.weight_bytes == sum(row.weight_bytes for row in rows)


def test_a_batch_shares_the_weights_and_not_the_cache():
    one, eight = (kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=100, batch=batch) for batch in (1, 8))
    assert eight.kv_read_bytes == 8 * one.kv_read_bytes
    rows = 100 * 7 * 4096 * 2
    assert eight.weight_bytes == one.weight_bytes + rows


def test_a_window_makes_reads_grow_in_proportion():
    deployment = kvcalc.deployment("llama2-7b")
    whole = kvcalc.traffic(deployment, output_tokens=4096)
    report = kvcalc.traffic(deployment, output_tokens=4096, with_levers="window=256")
    entry = whole.kv_bytes // 4096
    assert report.kv_read_bytes == entry * (256 * 257 // 2 + (4096 - 256) * 256)
    assert report.kv_bytes == 256 * entry
    assert report.growth_exponent == pytest.approx(4096 * 256 / (256 * 257 / 2 + 3840 * 256))
    again = kvcalc.traffic(deployment, output_tokens=4096, with_levers="evict=256")
    assert again.kv_read_bytes == report.kv_read_bytes


def test_a_format_of_half_the_bytes_reads_half_the_bytes():
    bf16, fp8 = (
        kvcalc.traffic(kvcalc.deployment("llama2-7b", kv_dtype=kv), output_tokens=64) for kv in ("bf16", "fp8")
    )
    assert bf16.kv_read_bytes == 2 * fp8.kv_read_bytes
    lever = kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=64, with_levers="fp8")
    assert lever.kv_read_bytes == fp8.kv_read_bytes


def test_latent_attention_reads_its_latent_vectors():
    report = kvcalc.traffic(kvcalc.deployment("deepseek-v3"), prompt_tokens=10, output_tokens=3)
    assert report.kv_read_bytes == 61 * (512 + 64) * 2 * (11 + 12 + 13)


def test_a_state_is_read_whole_each_step():
    report = kvcalc.traffic(kvcalc.deployment("mamba-2.8b"), output_tokens=50)
    assert report.kv_read_bytes == 50 * kvcalc.size(kvcalc.deployment("mamba-2.8b")).kv.state_bytes_per_sequence
    assert report.growth_exponent == 1


def test_cross_attention_is_read_each_step_beside_the_cache():
    deployment = kvcalc.deployment("whisper-large-v3")
    size = kvcalc.size(deployment, context=1).kv
    report = kvcalc.traffic(deployment, output_tokens=2)
    assert report.kv_read_bytes == 2 * size.cross_bytes_per_sequence + 3 * size.bytes_per_token


def test_rows_double_and_end_with_the_whole_output():
    report = kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=100)
    assert [row.output_tokens for row in report.rows] == [1, 2, 4, 8, 16, 32, 64, 100]
    assert report.rows[-1].kv_read_bytes == report.kv_read_bytes
    assert [row.output_tokens for row in kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=1).rows] == [1]


def test_a_prompt_is_not_read_while_it_is_made_but_at_every_later_step():
    report = kvcalc.traffic(kvcalc.deployment("llama2-7b"), prompt_tokens=1000, output_tokens=1)
    assert report.kv_read_bytes == 1001 * 524_288


def test_what_goes_beyond_the_model_is_noted():
    report = kvcalc.traffic(kvcalc.deployment("llama2-7b"), prompt_tokens=4000, output_tokens=1000)
    assert any("5,000 is beyond the 4,096 tokens" in note for note in report.notes)


def test_a_chunk_that_does_not_divide_leaves_tokens_without_a_state():
    report = kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=100, with_levers="hierarchy=16")
    assert any("16 does not divide 100 tokens; the last 4 have no state yet" in note for note in report.notes)
    divides = kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=96, with_levers="hierarchy=16")
    assert not any("divide" in note for note in divides.notes)
    # 6 states, read when each is made; the local decoder spans its chunk so far and, but for the first, the one before
    local = sum(range(1, 17)) + 5 * sum(range(17, 33)) + sum(range(17, 21))
    assert report.kv_read_bytes == 524_288 * (1 + 2 + 3 + 4 + 5 + 6 + local)


def test_a_window_longer_than_the_context_cuts_nothing_and_says_so():
    plain, wide = (
        kvcalc.traffic(kvcalc.deployment("llama2-7b"), output_tokens=100, with_levers=levers)
        for levers in ("", "window=4096")
    )
    assert wide.kv_read_bytes == plain.kv_read_bytes
    assert any("cuts nothing yet" in note for note in wide.notes)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"output_tokens": 0}, "output-tokens must be from 1"),
        ({"output_tokens": 10, "prompt_tokens": -1}, "prompt must be from 0"),
        ({"output_tokens": 10, "batch": 0}, "batch must be 1"),
        ({"output_tokens": 10**10}, "output-tokens must be from 1"),
        ({"output_tokens": 10, "with_levers": "windw=4"}, "unknown lever 'windw'"),
        ({"output_tokens": 10, "with_levers": "window=0"}, "window: '0' is not from 1"),
        ({"output_tokens": 10, "with_levers": "hierarchy=1"}, "chunks of 2 or more"),
        ({"output_tokens": 10, "with_levers": "mqa=3"}, "takes no value"),
        ({"output_tokens": 10, "with_levers": "prefix=20"}, "longer than the context"),
    ],
)
def test_what_makes_no_sense_is_refused(asked, says):
    with pytest.raises(kvcalc.KvcalcError, match=says):
        kvcalc.traffic(kvcalc.deployment("llama2-7b"), **asked)
