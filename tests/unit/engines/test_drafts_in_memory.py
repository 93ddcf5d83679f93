"""Layers that draft take memory and blocks, as engines printed them or their own code computes them."""

import json

import pytest

import kvcalc
from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.core.errors import InputError
from kvcalc.core.model import Block, Full, ModelProfile
from kvcalc.core.workload import Formats
from kvcalc.engines.drafts import Draft
from kvcalc.engines.options import EngineOptions
from kvcalc.engines.vllm import VllmOptions, layout, longest_context, stage_layouts

GIB = 2**30
HYBRID = "qwen3.6-27b"
# DFlash's draft model for it: five layers of its own shape.
FIVE_LAYERS = ModelProfile(
    name="five layers",
    architecture="qwen3",
    hidden_size=5120,
    context_limit=None,
    blocks=(Block(mixers=(Full(heads=32, kv_heads=8, head_dim=128),)),) * 5,
    embeddings=(),
    head=None,
)


def drafted(name, *, gamma, **asked):
    engine = asked.pop("engine", None)
    return kvcalc.with_draft(kvcalc.deployment(name, engine=engine, gpu="h100-sxm"), gamma=gamma, **asked)


def fit(capsys, line):
    with pytest.raises(SystemExit) as done:
        main(["fit", *line.split(), "--json"])
    out, err = capsys.readouterr()
    assert done.value.code == 0, err
    return json.loads(out)


# vLLM.


def test_a_prediction_layer_and_its_states_are_those_of_a_log():
    # Qwen3.8-27B (the shape of 3.6) with MTP 4 on a 32 GB card, whose kernels want blocks in steps of 64 tokens:
    # "9.5 GiB needed" for 131,072 tokens, and 109,824 as the longest that 8.12 GiB hold. A 17th layer of attention, and
    # 2 + 4 states in each of 3 groups.
    target = drafted(HYBRID, method="mtp", gamma=4)
    options = VllmOptions(max_model_len=131072, block_size=64, speculative_tokens=4, draft=target.draft)
    placed = layout(target.model, target.formats, options)
    assert [(group.kind, group.layers, group.needed_blocks) for group in placed.groups] == [
        *[("state", 16, 6)] * 3,
        ("full", 17, 158),
    ]
    assert round(placed.needed_bytes / GIB, 2) == 9.5
    held = longest_context(
        target.model, target.formats, options, kv_memory_bytes=int(8.125 * GIB) - 1, null_block=False
    )
    assert held == 109824


def test_the_command_adds_the_prediction_layer(capsys):
    asked = f"--model {HYBRID} --gpu h200 --context 131072 --max-model-len 131072"
    plain, with_mtp = fit(capsys, asked), fit(capsys, f"{asked} --method mtp --gamma 4")
    # blocks of 832 tokens, 3 states in each of 3 groups; with MTP 2 + 4 + 1: (158 + 3 * 7) x 17 x 832 x 4,096 B
    assert plain["reserved_kv_bytes"] == (158 + 3 * 3) * 16 * 832 * 4096
    assert with_mtp["reserved_kv_bytes"] == (158 + 3 * 7) * 17 * 832 * 4096
    assert (with_mtp["method"], with_mtp["gamma"]) == ("mtp", 4)
    assert any("not counted" in note for note in plain["notes"])
    assert not any("not counted" in note for note in with_mtp["notes"])
    more = with_mtp["budget"]["draft_weight_bytes"]
    # attention (24 heads of 256 with a gate, 4 of keys and values), an MLP of 17,408 and the projection, in 16 bits; norms beside
    layer = 5120 * 256 * (24 * 3 + 4 * 2) + 3 * 5120 * 17408 + 2 * 5120**2
    assert 0 < more - 2 * layer < 2**18
    assert (
        with_mtp["budget"]["weight_bytes"] == plain["budget"]["weight_bytes"] + more > plain["budget"]["weight_bytes"]
    )
    # the logical bytes are those of 17 layers of 16
    assert with_mtp["logical_kv_bytes"] - plain["logical_kv_bytes"] == 131072 * 4096


def test_the_pool_of_a_log_with_three_draft_tokens(capsys):
    # Two RTX 3090, fp8 cache, MTP 3: 11.05 GiB printed beside 623,873 tokens, 2.38 requests of 262,144.
    asked = f"--model {HYBRID} --tp 2 --kv-dtype fp8 --max-model-len 262144 --method mtp --gamma 3 --engine vllm"
    least, most = (fit(capsys, f"{asked} --kv-memory {size}GiB") for size in ("11.045", "11.055"))
    assert least["kv_capacity_tokens"] <= 623873 <= most["kv_capacity_tokens"]
    assert round(least["max_concurrency"], 2) <= 2.38 <= round(most["max_concurrency"], 2)


def test_a_draft_of_five_layers_is_that_of_a_log():
    # Qwen3.6-27B with DFlash on two RTX 4090: 9.74 GiB hold 1,251 blocks, printed as 67,728 tokens (1,251 // 15 x 816)
    # beside 1.06 requests of 180,000.
    model = api.load_model(HYBRID)
    draft = Draft(method="draft-model", tokens=5, cached=FIVE_LAYERS, formats=Formats())
    placed = layout(model, Formats(), VllmOptions(max_model_len=180000, speculative_tokens=5, draft=draft), tensor=2)
    assert (len(placed.groups), placed.configured_block_size) == (15, 816)
    blocks = int(9.74 * GIB) // placed.bytes_per_block
    assert (blocks, blocks // 15 * 816, round(blocks / placed.needed_blocks, 2)) == (1251, 67728, 1.06)


@pytest.mark.parametrize(
    ("caching", "tokens", "generation", "block", "states"),
    [
        (True, 1, "ada", 544, 3),
        (True, 3, "ada", 560, 5),
        (False, 1, "ada", None, 2),
        (False, 3, "ada", None, 4),
        (True, 1, "hopper", 576, 4),
        (True, 3, "hopper", 576, 6),
        (False, 3, "hopper", None, 4),
    ],
)
def test_each_drafted_token_keeps_a_state(caching, tokens, generation, block, states):
    # Qwen3-Next, its own layers alone, as vLLM 0.33 computes it with and without FlashInfer's kernel.
    model = api.load_model("qwen3-next-80b-a3b")
    options = VllmOptions(
        max_model_len=4096,
        prefix_caching=caching,
        speculative_tokens=tokens,
        draft=Draft(method="ngram", tokens=tokens),
        generation=generation,
    )
    placed = layout(model, Formats(), options)
    assert {group.needed_blocks for group in placed.groups if group.kind == "state"} == {states}
    assert block in (None, placed.configured_block_size)


def test_drafts_stand_on_the_last_stage_alone():
    target = drafted("llama3.1-8b", method="eagle", gamma=3, draft_layers=2)
    options = VllmOptions(max_model_len=8192, speculative_tokens=3, draft=target.draft)
    first, last = stage_layouts(target.model, target.formats, options, pipeline=2)
    assert ([group.layers for group in first.groups], [group.layers for group in last.groups]) == ([16], [18])


def test_prediction_layers_of_gemma_4_read_the_models_own_cache():
    for name, added in (("gemma-4-31b", 0), ("glm-4.5-air", 1)):
        plain = kvcalc.deployment(name, gpu="b200", engine="vllm")
        fitted = [kvcalc.fit(each, context=8192) for each in (plain, kvcalc.with_draft(plain, method="mtp", gamma=2))]
        assert (fitted[0].reserved_kv_bytes < fitted[1].reserved_kv_bytes) is bool(added)


# Other engines.


@pytest.mark.parametrize(("method", "tokens"), [("eagle", 170039), ("ngram", 174762)])
def test_sglang_prices_a_draft_layer_as_one_of_the_models(capsys, method, tokens):
    # Qwen3-8B with 24 GiB for its pools, as SGLang 0.5.23 computes it (EAGLE3 with one layer, and n-grams).
    asked = f"--model qwen3-8b --engine sglang --kv-memory 24GiB --method {method} --gamma 4"
    assert fit(capsys, asked)["kv_capacity_tokens"] == tokens


def test_llama_cpp_keeps_a_state_for_each_token_of_a_head_and_none_for_those_of_a_model(capsys):
    asked = "--model qwen3.5-9b --engine llama.cpp --gpu h100-sxm --context 8192 --flash-attn on"
    plain = fit(capsys, asked)["reserved_kv_bytes"]
    model = api.load_model("qwen3.5-9b")
    states = kvcalc.size(kvcalc.deployment(model, engine="llama.cpp"), context=8192).reserved.state_bytes
    layer = 8192 * 4 * 256 * 2 * 2
    assert fit(capsys, f"{asked} --method mtp --spec-draft-n-max 3")["reserved_kv_bytes"] == plain + 3 * states + layer
    assert fit(capsys, f"{asked} --method ngram --gamma 3")["reserved_kv_bytes"] == plain
    assert fit(capsys, f"{asked} --n-rs-seq 3")["reserved_kv_bytes"] == plain + 3 * states


def test_llama_cpp_gives_a_draft_model_a_context_of_its_own(capsys):
    asked = "--model llama3.1-8b --weights q4_k --gpu rtx-4090 --context 8192 --cache-type-k q8_0 --cache-type-v q8_0"
    plain, drafting = fit(capsys, asked), fit(capsys, f"{asked} --model-draft llama3.2-1b --gamma 4")
    # 16 layers x 8 heads x 64 x 2 in 16 bits, whatever the target's types
    assert drafting["reserved_kv_bytes"] - plain["reserved_kv_bytes"] == 8192 * 16 * 8 * 64 * 2 * 2
    small = kvcalc.size(kvcalc.deployment("llama3.2-1b", engine="llama.cpp")).weights.total_bytes
    assert drafting["budget"]["draft_weight_bytes"] == small


def test_without_an_engine_a_draft_takes_what_its_tokens_need():
    plain = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", engine="ideal")
    fitted = [
        kvcalc.fit(each, context=8192, batch=2) for each in (plain, kvcalc.with_draft(plain, "llama3.2-1b", gamma=4))
    ]
    asked = kvcalc.speculate(plain, "llama3.2-1b", acceptance=0.8, gammas=[4], batches=[2], contexts=[8192])
    added = fitted[1].reserved_kv_bytes - fitted[0].reserved_kv_bytes
    # speculate counts the slots that are looked ahead as well
    assert added == asked.memory.kv_bytes - 2 * 4 * 16 * 8 * 64 * 2 * 2
    assert fitted[1].budget.draft_weight_bytes == asked.memory.weight_bytes


@pytest.mark.parametrize(
    ("engine", "asked", "told"),
    [
        ("vllm", {"method": "layer-skip"}, "vllm does not draft by layer-skip"),
        ("llama.cpp", {"method": "medusa"}, "llama.cpp does not draft by medusa"),
        ("vllm", {"method": "medusa", "draft_layers": 2}, "medusa takes no draft layers"),
        ("vllm", {"method": "eagle", "draft_layers": 0}, "an EAGLE head of 0 layers"),
        ("vllm", {"draft": "llama2-7b"}, "vocabularies differ"),
        ("vllm", {}, "something that drafts"),
    ],
)
def test_drafts_that_an_engine_does_not_have_are_refused(engine, asked, told):
    with pytest.raises(InputError, match=told):
        kvcalc.fit(drafted("llama3.1-8b", gamma=2, engine=engine, **asked))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--gamma 3", "--gamma belongs to a draft"),
        ("--method mtp", "how many tokens are drafted is missing"),
        ("--method mtp --gamma 0", "gamma must be from 1"),
        ("--method mtp --gamma 2 --draft-tp 2", "need a draft model"),
    ],
)
def test_options_of_a_draft_that_say_too_little(capsys, options, told):
    with pytest.raises(SystemExit) as done:
        main(["fit", "--model", "llama3.1-8b", "--gpu", "h200", *options.split()])
    assert done.value.code == 2
    assert told in capsys.readouterr().err


def test_a_draft_keeps_its_cache_in_the_format_asked_of_the_engine():
    added = []
    for kv in (None, "fp8"):
        plain = kvcalc.deployment("llama3.1-8b", gpu="h100-sxm", kv_dtype=kv)
        fitted = [kvcalc.fit(each, context=8192) for each in (plain, kvcalc.with_draft(plain, "llama3.2-1b", gamma=4))]
        added.append(fitted[1].reserved_kv_bytes - fitted[0].reserved_kv_bytes)
    assert added[0] == 2 * added[1] == 8192 * 16 * 8 * 64 * 2 * 2


def test_speculate_fits_where_fit_does():
    for method in ("mtp", "ngram"):
        target = kvcalc.deployment(HYBRID, gpu="h100-sxm")
        (limit,) = kvcalc.speculate(target, method=method, acceptance=0.8, gammas=[4], contexts=[32768]).by_context
        fitted = kvcalc.fit(kvcalc.with_draft(target, method=method, gamma=4), context=32768)
        assert limit.largest_fitting_batch == fitted.max_batch > 0


def test_options_of_llama_cpp_reach_its_cache(capsys):
    # Gemma-3-27B at 32,768 tokens: the window's cells hold the micro-batch too.
    asked = "--model gemma-3-27b --weights q4_0 --gpu rtx-4090 --context 32768"
    cut = fit(capsys, f"{asked} --ubatch 4096")
    assert round(cut["reserved_kv_bytes"] / GIB, 2) == 3.72
    assert any(note.startswith("ubatch 4,096 is cut to 2,048") for note in cut["notes"])
    whole = fit(capsys, f"{asked} --ubatch-size 4096 --batch-size 4096")
    assert round(whole["reserved_kv_bytes"] / GIB, 2) == 4.53
    assert not any("is cut" in note for note in whole["notes"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("--ctx-size 32768", "--context 32768"),
        ("--ctx-size 0", "--context 131072"),
        ("--context 0", "--context 131072"),
        ("--ctx-size 32768 --parallel 4", "--context 8192 --parallel 4"),
    ],
)
def test_ways_to_say_the_context_of_llama_cpp(capsys, one, other):
    asked = "--model gemma-3-27b --weights q4_0 --gpu h100-sxm"
    found = [fit(capsys, f"{asked} {context}") for context in (one, other)]
    assert found[0]["reserved_kv_bytes"] == found[1]["reserved_kv_bytes"]
    assert found[0]["context"] == found[1]["context"]


def test_size_takes_the_context_of_all_sequences():
    deployment = kvcalc.deployment("gemma-3-27b", engine="llama.cpp", options=EngineOptions(ctx_size=32768, parallel=4))
    other = kvcalc.deployment("gemma-3-27b", engine="llama.cpp", options=EngineOptions(parallel=4))
    assert kvcalc.size(deployment).reserved == kvcalc.size(other, context=32768).reserved


def test_a_context_of_zero_is_llama_cpps_alone():
    with pytest.raises(InputError, match="context must be 1 or more"):
        kvcalc.fit(kvcalc.deployment("llama3.1-8b", gpu="h200"), context=0)
