"""Ways to shrink the cache: each one's bytes by hand, together, and where there is nothing to act on."""

import pytest

import kvcalc
from kvcalc.core.units import GIB
from kvcalc.plan.levers.catalogue import LEVERS, apply_levers, parse_levers
from kvcalc.plan.levers.report import memory_factor
from kvcalc.render.output import render

ENTRY = 32 * 32 * (128 + 128) * 2  # llama2-7b in 16 bits
TOKENS = 4096


def _report(model="llama2-7b", levers="", **asked):
    return kvcalc.levers(kvcalc.deployment(model), with_levers=levers, **asked)


def _last(levers, **asked):
    return _report(levers=levers, **asked).rows[-1]


@pytest.mark.parametrize(
    ("levers", "held", "read"),
    [
        ("mqa", ENTRY * TOKENS / 32, ENTRY * TOKENS / 32),
        ("gqa", ENTRY * TOKENS / 4, ENTRY * TOKENS / 4),
        ("gqa=4", ENTRY * TOKENS / 8, ENTRY * TOKENS / 8),
        ("mla", 32 * (512 + 64) * 2 * TOKENS, 32 * (512 + 64) * 2 * TOKENS),
        ("mla=256", 32 * (256 + 64) * 2 * TOKENS, 32 * (256 + 64) * 2 * TOKENS),
        ("fp8", ENTRY * TOKENS / 2, ENTRY * TOKENS / 2),
        ("int8", 32 * 32 * 2 * (128 + 4) * TOKENS, 32 * 32 * 2 * (128 + 4) * TOKENS),
        ("int4", 32 * 32 * 2 * (64 + 4) * TOKENS, 32 * 32 * 2 * (64 + 4) * TOKENS),
        ("nvfp4", ENTRY * TOKENS * 9 / 32, ENTRY * TOKENS * 9 / 32),
        ("kv=q8_0", ENTRY * TOKENS * 34 / 64, ENTRY * TOKENS * 34 / 64),
        ("window=1000", ENTRY * 1000, ENTRY * 1000),
        ("evict=1000", ENTRY * 1000, ENTRY * 1000),
        ("streaming=1000", ENTRY * 1000, ENTRY * 1000),
        ("topk=512", (ENTRY + 32 * 256) * TOKENS, 32 * 256 * TOKENS + ENTRY * 512),
        ("paging", ENTRY * TOKENS, ENTRY * TOKENS),
        ("cross-layer", ENTRY * TOKENS / 2, ENTRY * TOKENS / 2),
        ("cross-layer=3", ENTRY * TOKENS * 11 / 32, ENTRY * TOKENS * 11 / 32),
        ("hierarchy=16", ENTRY * (256 + 32), ENTRY * (256 / 16 + 16 + 17 / 2)),
        ("hierarchy=4x4", ENTRY * (1024 + 256 + 8 + 8), ENTRY * (1024 / 4 + 256 / 16 + 6.5 + 6.5 / 4)),
        ("recursive=4x4", ENTRY * (256 + 8 + 8), ENTRY * (256 / 16 + 6.5 + 6.5 / 4)),
        ("state", 32 * 32 * 128 * 128 * 4, 32 * 32 * 128 * 128 * 4),
        ("gqa,fp8", ENTRY * TOKENS / 8, ENTRY * TOKENS / 8),
        ("gqa,fp8,window=512", ENTRY * 512 / 8, ENTRY * 512 / 8),
        ("window=512,gqa,fp8", ENTRY * 512 / 8, ENTRY * 512 / 8),
        ("hierarchy=16,window=100", ENTRY * (100 + 32), ENTRY * (100 / 16 + 16 + 17 / 2)),
        ("hierarchy=16,window=20", ENTRY * (20 + 20), ENTRY * (20 / 16 + (17 + 18 + 19 + 13 * 20) / 16)),
    ],
)
def test_bytes_held_and_read(levers, held, read):
    row = _last(levers, context=TOKENS)
    assert row.kv_total_bytes == held
    assert row.read_total_bytes == pytest.approx(read, rel=1e-15)
    assert row.kv_factor == pytest.approx(ENTRY * TOKENS / held)
    assert row.read_factor == pytest.approx(ENTRY * TOKENS / read)


def test_a_shared_prefix_is_kept_once_and_read_by_all():
    row = _last("prefix=3000", context=TOKENS, batch=8)
    assert row.kv_total_bytes == ENTRY * (3000 + 8 * 1096)
    assert row.read_total_bytes == 8 * ENTRY * TOKENS
    assert _last("prefix=4096", context=TOKENS, batch=8).kv_total_bytes == ENTRY * TOKENS
    assert _last("prefix", context=TOKENS, batch=1).kv_factor == 1


def test_a_prefix_out_of_the_window_saves_nothing_there():
    base, row = kvcalc.levers(kvcalc.deployment("gemma-3-27b"), context=TOKENS, batch=2, with_levers="prefix=1024").rows
    full_layers = 10 * 16 * (128 + 128) * 2
    assert base.kv_total_bytes - row.kv_total_bytes == full_layers * 1024


def test_paging_sets_blocks_aside_instead_of_the_longest_length():
    base, paged = _report("llama3.1-8b", "paging=16", context=1000, batch=4).rows
    entry = 131_072
    assert base.reserved_bytes == 4 * entry * 131_072
    assert paged.reserved_bytes == 4 * entry * 1008
    assert base.kv_total_bytes == paged.kv_total_bytes == 4 * entry * 1000
    assert _report("llama3.1-8b", context=1000, max_model_len=2000).rows[0].reserved_bytes == entry * 2000


def test_offloading_moves_bytes_and_saves_none():
    row = _last("offload=0.75", context=TOKENS)
    assert (row.kv_total_bytes, row.host_bytes) == (ENTRY * TOKENS // 4, ENTRY * TOKENS * 3 // 4)
    assert row.kv_factor == row.read_factor == 1
    assert row.reserved_bytes == row.kv_total_bytes
    assert _last("offload", context=TOKENS).kv_total_bytes == 0


def test_chosen_levers_are_added_one_after_another():
    rows = _report(levers="gqa, fp8 ,window=512").rows
    assert [row.lever for row in rows] == ["none", "gqa", "gqa + fp8", "gqa + fp8 + window=512"]
    assert rows[-1].cuts == "width + bytes + length"
    assert [row.retrofit for row in rows] == ["yes", "fine-tuning", "fine-tuning", "fine-tuning"]
    assert _report(levers="fp8,state").rows[-1].retrofit == "no"


def test_without_a_choice_every_lever_stands_alone():
    report = _report()
    assert [row.lever for row in report.rows] == ["none", *LEVERS]
    assert {row.cuts for row in report.rows} >= {"width", "bytes", "length", "fragmentation", "resolution"}
    assert all(row.applies for row in report.rows)
    assert all(row.quality for row in report.rows)


def test_every_quality_statement_that_claims_a_measurement_names_its_source():
    unsourced = {lever.name for lever in LEVERS.values() if "arXiv" not in lever.quality}
    assert unsourced == {"int8", "nvfp4", "topk"}


def test_throughput_per_memory_is_that_of_decode():
    deployment = kvcalc.deployment("llama2-7b", gpu="h100-sxm", gpus=2)
    base, gqa = kvcalc.levers(deployment, context=2048, batch=4, with_levers="gqa=8").rows
    plain = kvcalc.decode(deployment, batches=[4], contexts=[2048]).rows[0]
    assert base.tokens_per_s == pytest.approx(plain.tokens_per_s)
    assert base.tokens_per_s_per_gib == pytest.approx(plain.tokens_per_s_per_gib)
    twin = kvcalc.deployment("llama2-7b", gpu="h100-sxm", gpus=2, settings=["kv_heads=8"])
    changed = kvcalc.decode(twin, batches=[4], contexts=[2048]).rows[0]
    assert gqa.tokens_per_s == pytest.approx(changed.tokens_per_s)
    assert gqa.tokens_per_s_per_gib == pytest.approx(changed.tokens_per_s_per_gib)


def test_a_window_decodes_as_a_model_with_that_window():
    deployment = kvcalc.deployment("llama2-7b", gpu="h100-sxm")
    row = kvcalc.levers(deployment, context=4096, with_levers="window=1024").rows[-1]
    short = kvcalc.decode(deployment, contexts=[1024]).rows[0]
    assert row.tokens_per_s == pytest.approx(short.tokens_per_s)
    memory = 6_738_415_616 * 2 + 1024 * ENTRY
    assert row.tokens_per_s_per_gib == pytest.approx(short.tokens_per_s * GIB / memory)


def test_speeds_of_another_models_weights_are_not_claimed():
    deployment = kvcalc.deployment("llama2-7b", gpu="h100-sxm")
    for levers in ("hierarchy", "recursive", "offload"):
        row = kvcalc.levers(deployment, with_levers=levers).rows[-1]
        assert row.tokens_per_s is row.tokens_per_s_per_gib is None
    assert all(row.tokens_per_s is None for row in _report().rows)


@pytest.mark.parametrize(
    ("model", "idle"),
    [
        ("deepseek-v3", {"mqa", "gqa", "mla", "cross-layer"}),
        ("mistral-7b", {"gqa"}),
        ("mamba-2.8b", set(LEVERS) - {"offload"}),
        ("rwkv-4-169m", set(LEVERS) - {"offload"}),
        ("whisper-large-v3", {"hierarchy", "recursive"}),
        ("qwen3-next-80b-a3b", {"gqa", "hierarchy", "recursive"}),
    ],
)
def test_a_lever_with_nothing_to_act_on_says_so_and_saves_nothing(model, idle):
    report = _report(model)
    base = report.rows[0]
    rows = {row.lever: row for row in report.rows if not row.applies}
    assert set(rows) == idle
    for row in rows.values():
        assert row.remark
        assert row.kv_total_bytes == base.kv_total_bytes
        assert row.kv_factor == 1
    for name in idle:
        with pytest.raises(kvcalc.InputError):
            _report(model, name)


def test_a_longer_batch_multiplies_what_is_not_shared():
    one, four = (_report(levers="gqa,window=100", batch=batch, context=500).rows[-1] for batch in (1, 4))
    assert four.kv_total_bytes == 4 * one.kv_total_bytes
    assert four.read_total_bytes == 4 * one.read_total_bytes


def test_photons_memory_factor_follows_from_its_two_levels_of_four():
    tokens = 2176
    # a quarter of the layers each: T/4 and T/16 states, and two local decoders of 8
    hierarchical = tokens / ((tokens // 4 + tokens // 16 + 8 + 8) / 4)
    recursive = tokens / ((tokens // 16 + 8 + 8) / 4)
    assert memory_factor(tokens=tokens) == pytest.approx(hierarchical)
    assert memory_factor(tokens=tokens, recursive=True) == pytest.approx(recursive)


def test_the_headline_factors_are_taken_apart():
    rows = _report().headlines
    assert {(row.prompt_tokens, row.output_tokens) for row in rows} == {(2048, 128), (128, 2048)}
    assert {row.published_factor for row in rows} == {416, 475, 1000}
    for row in rows:
        assert row.memory_factor * row.throughput_factor == pytest.approx(row.published_factor)
        assert 1 < row.throughput_factor < row.published_factor / 10


@pytest.mark.parametrize(
    ("levers", "says"),
    [
        ("gqa=5", "5 key-value heads do not divide the 32 heads"),
        ("gqa=32", "no layer has more than 32 key-value heads"),
        ("fp16", "unknown lever 'fp16'"),
        ("kv=fp17", "unknown number format"),
        ("kv=fp16", "kept in fp16 already"),
        ("cross-layer=1", "2 layers or more"),
        ("window=x", "window: 'x' is not a count"),
        ("offload=2", "not a share"),
        ("offload=nan", "not a share"),
        ("hierarchy=4x", "is not a count"),
        ("hierarchy=2x2x2x2x2x2x2", "up to 6 levels"),
        ("prefix=5000", "longer than the context of 4,096"),
        ("hierarchy,recursive", "a hierarchy already"),
        ("mla,mla", "no layer is plain full attention"),
        ("state,window=8", "no layer keeps more than 8 tokens"),
        ("window=100,evict=200", "no layer keeps more than 200 tokens"),
    ],
)
def test_what_cannot_be_done_is_refused(levers, says):
    with pytest.raises(kvcalc.KvcalcError, match=says):
        _report(levers=levers)


def test_speeds_of_what_does_not_fit_are_marked():
    deployment = kvcalc.deployment("llama2-70b", gpu="h100-sxm", gpus=2, weights="int8")
    report = kvcalc.levers(deployment, context=4096, batch=64, with_levers="fp8,state")
    plain = kvcalc.decode(deployment, batches=[64], contexts=[4096]).rows[0]
    assert report.rows[0].memory_needed_bytes == plain.memory_needed_bytes
    assert [row.fits for row in report.rows] == [plain.fits, True, True]
    assert plain.fits is False
    assert report.memory_bytes == deployment.memory_bytes
    text = render(report)
    assert text.startswith("DOES NOT FIT: 1 of 3 rows")
    assert text.count(" *") == 3  # the two numbers of a row, and the sentence that says what is marked
    assert "DOES NOT FIT" not in render(kvcalc.levers(kvcalc.deployment("llama2-7b", gpu="h200")))


def test_a_cache_on_the_host_needs_no_memory_beside_the_weights():
    row = kvcalc.levers(kvcalc.deployment("llama2-7b", gpu="h100-sxm"), with_levers="offload").rows[-1]
    assert row.memory_needed_bytes == 6_738_415_616 * 2
    assert row.fits
    assert row.tokens_per_s is None


def test_a_bar_shows_what_is_held_and_what_is_read():
    lines = render(_report(levers="topk=512,offload=1", context=TOKENS)).splitlines()
    bars = {
        name: next(line for line in lines if line.startswith(name) and "█" in line) for name in ("none", "topk=512")
    }
    assert "▒" in bars["topk=512"].split()[-1]
    assert set(bars["none"].split()[-1]) == {"█"}


def test_a_context_beyond_the_longest_length_is_refused():
    with pytest.raises(kvcalc.InputError, match="context 4096 is longer than max-model-len 10"):
        _report(context=TOKENS, max_model_len=10)
    assert _report(max_model_len=10).context == 10


def test_a_size_that_makes_no_sense_is_refused():
    with pytest.raises(kvcalc.InputError, match="context must be 1"):
        _report(context=0)
    with pytest.raises(kvcalc.InputError, match="batch must be 1"):
        _report(batch=0)


def test_a_lever_is_a_change_of_the_model_that_the_same_formulas_count():
    deployment = kvcalc.deployment("llama2-7b")
    layout, _ = apply_levers(deployment, parse_levers("mqa"), context=64)
    twin = kvcalc.deployment("llama2-7b", settings=["kv_heads=1"])
    assert layout.held_bytes(context=64, batch=1) == kvcalc.size(twin, context=64).kv.total_bytes


def test_a_row_says_what_its_lever_cuts_and_whether_it_can_be_added_later():
    rows = {row.lever.partition("=")[0]: (row.cuts, row.retrofit) for row in _report().rows}
    assert rows["mqa"] == ("width", "fine-tuning")
    assert rows["fp8"] == ("bytes", "yes")
    assert rows["window"] == ("length", "fine-tuning")
    assert rows["paging"] == ("fragmentation", "yes")
    assert rows["prefix"] == ("sequences", "yes")
    assert rows["cross-layer"] == ("layers", "no")
    assert rows["offload"] == ("place", "yes")
    assert rows["hierarchy"] == ("resolution", "no")
