"""When speculation pays: the shapes that are known, against costs counted here, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest

import kvcalc
from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError
from kvcalc.core.speculation import DraftTree, chain
from kvcalc.core.workload import Parallel, decode_step
from kvcalc.plan.speculative import METHODS
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.placing import place_draft
from kvcalc.plan.steps import timed_step

DOUBLING = tuple(2**power for power in range(13))


@pytest.fixture(scope="module")
def big():
    return kvcalc.deployment("llama3.1-70b", gpu="h200", gpus=2)


@pytest.fixture(scope="module")
def small():
    return kvcalc.deployment("llama3.1-8b", gpu="h100-sxm")


def speedups(report):
    return [row.speedup for row in report.rows]


def test_the_speedup_is_made_of_the_times_of_the_passes(big):
    draft = kvcalc.deployment("llama3.1-8b", gpu="h200", gpus=2)
    report = kvcalc.speculate(big, draft, acceptance=0.8, gammas=[5], batches=[8], contexts=[4096])
    plain = timed_step(big, decode_step(batch=8, context=4096)).time
    verify = timed_step(big, decode_step(batch=8, context=4096, query_tokens=6)).time
    step = timed_step(draft, decode_step(batch=8, context=4096)).time
    expected = (1 - 0.8**6) / (1 - 0.8)
    assert report.expected_tokens_per_pass == pytest.approx(expected)
    ideal = expected * plain.ideal_s / (5 * step.ideal_s + verify.ideal_s)
    assert report.speedup == pytest.approx(ideal)
    serial = expected * plain.serial_s / (5 * step.serial_s + verify.serial_s)
    assert report.serial_speedup == pytest.approx(serial)
    assert report.rows[0].draft_ratio == pytest.approx(step.ideal_s / plain.ideal_s)
    assert report.rows[0].verify_ratio == pytest.approx(verify.ideal_s / plain.ideal_s)
    named = kvcalc.speculate(big, "llama3.1-8b", acceptance=0.8, gammas=[5], batches=[8], contexts=[4096])
    assert named == report


def test_at_the_break_even_acceptance_nothing_is_won(big):
    report = kvcalc.speculate(big, "llama3.1-8b", acceptance=0.8, gammas=[5], batches=[8], contexts=[4096])
    there = report.break_even_acceptance
    again = kvcalc.speculate(big, "llama3.1-8b", acceptance=there, gammas=[5], batches=[8], contexts=[4096])
    assert again.speedup == pytest.approx(1)


@pytest.mark.parametrize("serial", [False, True])
def test_the_break_even_batch_is_the_last_that_pays(small, serial):
    def gain(batch):
        report = kvcalc.speculate(small, acceptance=0.6, method="ngram", gammas=[4], batches=[batch], contexts=[512])
        return report.serial_speedup if serial else report.speedup

    limit = kvcalc.speculate(small, acceptance=0.6, method="ngram", gammas=[4], contexts=[512]).by_context[0]
    last = limit.serial_break_even_batch if serial else limit.break_even_batch
    assert gain(last) > 1 >= gain(last + 1)
    assert [found.first_batch for found in limit.paying] == [1]
    assert limit.pays == "up to a batch"


def test_a_dense_model_stops_paying_once_it_is_compute_bound(small):
    report = kvcalc.speculate(small, acceptance=0.6, method="ngram", gammas=[4], batches=DOUBLING, contexts=[512])
    gains = speedups(report)
    assert gains == sorted(gains, reverse=True)
    assert gains[0] == pytest.approx(report.expected_tokens_per_pass, rel=1e-3)
    for row in report.rows:
        plain = timed_step(small, decode_step(batch=row.batch, context=512)).time
        if plain.limiter == "compute":
            assert row.speedup < 1
            assert row.verify_limiter == "compute"
    assert gains[-1] < 1


@pytest.mark.parametrize("model", ["mixtral-8x7b", "gpt-oss-120b"])
def test_a_sparse_mixture_first_gains_then_loses_with_the_batch(model):
    target = kvcalc.deployment(model, gpu="h200", gpus=2)
    report = kvcalc.speculate(target, acceptance=0.6, method="ngram", gammas=[4], batches=DOUBLING, contexts=[512])
    gains = speedups(report)
    best = gains.index(max(gains))
    assert 0 < best < len(gains) - 1
    assert gains[best:] == sorted(gains[best:], reverse=True)
    assert gains[0] < 1 < gains[best]
    assert gains[-1] < 1
    limit = report.by_context[0]
    assert limit.pays == "between two batches"
    assert 1 < limit.paying[0].first_batch < report.rows[best].batch < limit.break_even_batch


def test_a_mixture_may_pay_alone_and_in_a_crowd_but_not_between():
    target = kvcalc.deployment("gpt-oss-120b", gpu="h200")
    asked = {"acceptance": 0.7, "method": "ngram", "gammas": [4], "contexts": [1024]}
    limit = kvcalc.speculate(target, **asked).by_context[0]
    assert limit.pays == "in several ranges"
    first, second = limit.paying
    assert second.first_batch > first.last_batch + 1
    edges = (first.last_batch, first.last_batch + 1, second.first_batch - 1, second.first_batch)
    gains = speedups(kvcalc.speculate(target, batches=edges, **asked))
    assert [gain > 1 for gain in gains] == [True, False, False, True]


def test_a_verification_touches_the_experts_of_all_its_tokens():
    target = kvcalc.deployment("mixtral-8x7b", gpu="h200")
    row = kvcalc.speculate(target, acceptance=1, method="ngram", gammas=[4], contexts=[1]).rows[0]
    # of 8 experts, 2 a token: one token reads 2, five tokens 8 (1 - 0.75^5) = 6.10
    experts = timed_step(target, decode_step(batch=1, context=1, query_tokens=5)).cost.total(
        "weight_bytes", part="experts"
    )
    one = timed_step(target, decode_step(batch=1, context=1)).cost.total("weight_bytes", part="experts")
    assert experts / one == pytest.approx(8 * (1 - 0.75**5) / 2)
    assert 2.5 < row.verify_ratio < experts / one


def test_longer_contexts_move_the_break_even_batch_up(small):
    report = kvcalc.speculate(
        small, acceptance=0.6, method="ngram", gammas=[4], contexts=[64, 128, 256, 512, 2048, 32768]
    )
    ideal = [limit.break_even_batch or 10**9 for limit in report.by_context]
    serial = [limit.serial_break_even_batch or 10**9 for limit in report.by_context]
    assert ideal == sorted(ideal)
    assert serial == sorted(serial)
    assert ideal[0] < ideal[2] < ideal[-1] == 10**9
    assert report.by_context[-1].pays == "at every batch"
    assert report.break_even_batch == ideal[0]


def test_the_best_length_is_the_fastest_and_none_where_plain_decoding_is(big, small):
    report = kvcalc.speculate(big, "llama3.1-8b", acceptance=0.8, batches=[8], contexts=[4096])
    fastest = max(report.by_gamma, key=lambda row: row.speedup)
    assert report.best_gamma == report.gamma == fastest.gamma
    assert [row.gamma for row in report.by_gamma] == list(range(1, 17))
    hopeless = kvcalc.speculate(small, acceptance=0.0, method="ngram", contexts=[512])
    assert (hopeless.best_gamma, hopeless.by_context[0].pays) == (0, "never")
    assert hopeless.speedup < 1
    assert hopeless.break_even_batch == 0
    endless = kvcalc.speculate(small, acceptance=0.6, method="ngram", gammas=[4], contexts=[1024])
    assert (endless.break_even_batch, endless.by_context[0].pays) == (None, "at every batch")


def test_acceptance_by_position_and_from_counts(small):
    listed = kvcalc.speculate(small, acceptance_conditional=[0.8, 0.75], method="ngram", contexts=[512])
    counted = kvcalc.speculate(small, acceptance="100:80,60", method="ngram", contexts=[512])
    assert replace(listed, rules=()) == replace(counted, rules=())
    assert listed.by_gamma[1].expected_tokens_per_pass == pytest.approx(1 + 0.8 + 0.6)
    assert [row.gamma for row in listed.by_gamma] == [1, 2]
    two = kvcalc.speculate(small, acceptance=listed.rows[0].acceptance_rate, method="ngram", gammas=[2], contexts=[512])
    assert two.expected_tokens_per_pass == pytest.approx(listed.expected_tokens_per_pass)
    with pytest.raises(InputError, match="given for 2 positions, and gamma is 3"):
        kvcalc.speculate(small, acceptance_conditional=[0.8, 0.75], method="ngram", gammas=[3])
    with pytest.raises(InputError, match="given for 1 positions"):
        kvcalc.speculate(small, acceptance="100:80", method="ngram", gammas=[2])


@pytest.mark.parametrize("method", [name for name in METHODS if name != "draft-model"])
@pytest.mark.parametrize(
    ("model", "gpus"), [("llama3.1-8b", 1), ("deepseek-v3", 16), ("gpt-oss-20b", 1), ("qwen3-next-80b-a3b", 4)]
)
def test_every_method_has_a_draft_cheaper_than_its_target(method, model, gpus):
    target = kvcalc.deployment(model, gpu="h200", gpus=gpus)
    report = kvcalc.speculate(target, acceptance=0.7, method=method, gammas=[2], contexts=[4096])
    row = report.rows[0]
    assert 0 <= row.draft_ratio < 1
    assert row.verify_ratio >= 1
    assert report.memory.total_bytes >= report.memory.lookahead_bytes > 0
    assert (report.memory.weight_bytes == 0) == (method in ("ngram", "layer-skip"))


def test_a_head_reads_the_targets_own_output_head(small):
    """An EAGLE head of Llama 3.1 8B: a decoder layer, a projection 8192 -> 4096, and 128,256 x 4,096 of the target's."""
    way = drafter("eagle", small, None)
    layer = 218_112_000 + 2 * 4096**2
    assert way.weight_bytes(3) == 2 * layer
    read = timed_step(way.runs(3), decode_step(batch=1, context=1)).cost.total("weight_bytes")
    assert read == 2 * (layer + 128_256 * 4096 + 4096)


def test_medusa_drafts_all_positions_in_one_step(small):
    way = drafter("medusa", small, None)
    assert way.weight_bytes(3) == 2 * 3 * (4096**2 + 4096 + 128_256 * 4096)
    assert way.steps(chain(3)) == way.steps(DraftTree.branching((4, 2))) == (1,)
    assert drafter("mtp", small, None).steps(DraftTree.branching((4, 2, 1))) == (1, 4, 8)
    assert drafter("mtp", small, None).steps(DraftTree(parents=(-1, -1, -1, 1))) == (1, 1)


def test_skipping_layers_costs_the_share_that_is_kept(small):
    half = kvcalc.speculate(small, acceptance=0.7, method="layer-skip", gammas=[2], contexts=[8192]).rows[0]
    few = kvcalc.speculate(
        small, acceptance=0.7, method="layer-skip", draft_layers=4, gammas=[2], contexts=[8192]
    ).rows[0]
    assert few.draft_ratio < half.draft_ratio
    assert half.draft_ratio == pytest.approx(0.53, abs=0.01)


def test_a_tree_of_the_best_shape_beats_a_chain_of_as_many_tokens(small):
    tree = kvcalc.speculate(small, acceptance=0.5, method="eagle", tree_nodes=12, contexts=[512])
    line = kvcalc.speculate(small, acceptance=0.5, method="eagle", gammas=[12], contexts=[512])
    assert tree.rows[0].draft_tokens == line.rows[0].draft_tokens == 12
    assert tree.expected_tokens_per_pass > line.expected_tokens_per_pass
    wide = kvcalc.speculate(small, acceptance=0.5, method="eagle", tree=[2, 2], contexts=[512])
    # two children: 0.5 + 0.25 of each level
    assert wide.expected_tokens_per_pass == pytest.approx(1 + 0.75 + 0.75**2)
    assert wide.rows[0].draft_tokens == 6


def test_what_a_draft_adds_to_the_memory(small):
    report = kvcalc.speculate(small, "llama3.2-1b", acceptance=0.7, gammas=[4], batches=[8], contexts=[1000])
    draft = kvcalc.size(kvcalc.deployment("llama3.2-1b"), context=1004, batch=8)
    target = kvcalc.size(kvcalc.deployment("llama3.1-8b"), context=4, batch=8)
    memory = report.memory
    assert memory.weight_bytes == draft.weights.total_bytes
    assert memory.kv_bytes == draft.kv.total_bytes
    assert memory.lookahead_bytes == target.kv.total_bytes
    assert memory.total_bytes == memory.weight_bytes + memory.kv_bytes + memory.lookahead_bytes


def test_a_recurrent_state_needs_a_copy_for_each_drafted_token():
    target = kvcalc.deployment("falcon-mamba-7b", gpu="h100-sxm")
    report = kvcalc.speculate(target, acceptance=0.7, method="ngram", gammas=[3], batches=[2], contexts=[100])
    state = kvcalc.size(target, context=100).kv.state_bytes_per_sequence
    assert report.memory.lookahead_bytes == 3 * 2 * state


def test_the_largest_batch_that_fits_leaves_room_for_the_draft(small):
    report = kvcalc.speculate(small, "llama3.2-1b", acceptance=0.7, gammas=[4], contexts=[8192])
    most = report.by_context[0].largest_fitting_batch
    rows = kvcalc.speculate(
        small, "llama3.2-1b", acceptance=0.7, gammas=[4], contexts=[8192], batches=[most, most + 1]
    ).rows
    assert [row.fits for row in rows] == [True, False]
    assert rows[0].memory_needed_bytes < rows[1].memory_needed_bytes <= small.memory_bytes  # the engine needs the rest


def test_the_largest_draft_breaks_even(big):
    report = kvcalc.speculate(big, "llama3.1-8b", acceptance=0.8, batches=[8], contexts=[4096])
    largest = report.largest_draft
    row = report.by_gamma[largest.gamma - 1]
    v = timed_step(big, decode_step(batch=8, context=4096, query_tokens=largest.gamma + 1)).time.ideal_s
    plain = report.rows[0].plain_s
    assert row.expected_tokens_per_pass * plain / (largest.gamma * largest.step_s + v) == pytest.approx(1)
    assert largest.parameters * 2 / 2 == pytest.approx(largest.step_s * 4.8e12, rel=1e-9)


def test_quoted_rules_agree_at_small_batches_and_mislead_at_large_ones(small):
    names = ["acceptance x gamma", "verification is free", "some gamma pays", "draft at most"]
    alone, crowded = (
        kvcalc.speculate(small, "llama3.2-1b", acceptance=0.7, gammas=[4], batches=[batch], contexts=[256]).rules
        for batch in (1, 2048)
    )
    assert [next(rule for rule in alone if rule.name.startswith(name)).pays for name in names] == [
        True,
        True,
        True,
        False,
    ]
    assert [rule.agrees for rule in alone] == [True, True, True, False]
    assert [rule.agrees for rule in crowded] == [False, False, False, True]
    assert "a verification takes v = 5 at batch 2,048" in crowded[1].why
    assert alone[0].speedup == pytest.approx((1 + 0.7 * 4) / (1 + 4 * 1_235_814_400 / 8_030_261_248))


def test_a_pipeline_is_passed_whole_by_each_round():
    whole = kvcalc.deployment("llama3.1-70b", gpu="h200", pipeline_parallel=4)
    report = kvcalc.speculate(whole, "llama3.1-8b", acceptance=0.8, gammas=[4], contexts=[1024])
    time = timed_step(whole, decode_step(batch=1, context=1024)).time
    assert report.rows[0].plain_s == time.latency_s > 3 * time.ideal_s
    assert kvcalc.draft_deployment(whole, "llama3.1-8b").parallel.pipeline == 1


def test_a_draft_with_few_heads_runs_on_fewer_ranks():
    target = kvcalc.deployment("qwen2.5-72b", gpu="h200", tensor_parallel=16)
    assert kvcalc.draft_deployment(target, "qwen2.5-0.5b").parallel.tensor == 14
    assert kvcalc.draft_deployment(target, "qwen2.5-0.5b", tensor_parallel=1).parallel.gpus == 1


def test_a_rule_that_counts_as_many_tokens_is_not_told_off_for_rejections(small):
    one, five = (kvcalc.speculate(small, acceptance=0.9, method="ngram", gammas=[gamma]) for gamma in (1, 5))
    assert "rejection" not in one.rules[0].why
    assert "4.69 tokens per pass, not 5.5" in five.rules[0].why


def test_too_many_rows_are_refused(small):
    with pytest.raises(InputError, match="10,001 rows of batch, context and gamma, more than 10,000"):
        kvcalc.speculate(small, acceptance=0.9, method="ngram", batches=range(1, 10_002))


def test_what_is_legal_but_foolish_is_said(small):
    larger = kvcalc.speculate(small, "llama3.1-70b", acceptance=0.9, gammas=[2])
    assert larger.speedup < 1
    assert any("is not smaller than the target" in note for note in larger.notes)
    narrower = kvcalc.draft_deployment(small, small.model.name, weights="int4")
    report = kvcalc.speculate(small, narrower, acceptance=0.95, gammas=[4])
    assert report.speedup > 1
    assert any("is not smaller" in note and "cannot pay" not in note for note in report.notes)
    padded = kvcalc.speculate(kvcalc.deployment("qwen2.5-72b", gpu="h200", gpus=4), "qwen2.5-0.5b", acceptance=0.7)
    assert any("padding of the same vocabulary" in note for note in padded.notes)
    beyond = kvcalc.speculate(small, "llama3.2-1b", acceptance=0.7, contexts=[200_000])
    assert sum("beyond the 131,072 tokens" in note for note in beyond.notes) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"acceptance": 1.5, "method": "ngram"}, "acceptance must be from 0 to 1, not 1.5"),
        ({"acceptance": -0.1, "method": "ngram"}, "from 0 to 1, not -0.1"),
        ({"acceptance": float("nan"), "method": "ngram"}, "from 0 to 1, not nan"),
        ({"acceptance_conditional": [], "method": "ngram"}, "acceptance of 0 positions"),
        ({"acceptance_conditional": "0.8,x", "method": "ngram"}, "'x' is not a number"),
        ({"acceptance": "", "method": "ngram"}, "'' is not a number"),
        ({"acceptance": [0.8, 0.7], "method": "ngram"}, "a list by position, which has two readings"),
        ({"method": "ngram"}, "acceptance is missing"),
        ({"acceptance": 0.8, "draft_rate": 0.5, "method": "ngram"}, "--acceptance and --draft-rate say the same"),
        ({"acceptance_by_position": "0.5,0.6", "method": "ngram"}, "acceptance by position 0.5, 0.6 cannot be"),
        ({"accepted_length": 2.0, "method": "ngram"}, "accepted-length 2 is that of drafts of one length"),
        ({"accepted_length": 4.1, "gammas": [3], "method": "ngram"}, "accepted-length 4.1 cannot be for 3 drafted"),
        ({"draft_rate": 1.1, "gammas": [3], "method": "ngram"}, "draft-rate 1.1 cannot be for 3 drafted"),
        ({"acceptance": "100:120", "method": "ngram"}, "accepted 120 of 100 drafts cannot be"),
        ({"acceptance": "100:50,60", "method": "ngram"}, "accepted 50, 60 of 100 drafts"),
        ({"acceptance": "0:0", "method": "ngram"}, "accepted 0 of 0 drafts"),
        ({"acceptance": "100:5.5", "method": "ngram"}, "'5.5' is not a count"),
        ({"acceptance": "100:-5", "method": "ngram"}, "'-5' is not a count"),
        ({"acceptance": 0.8, "method": "ngramm"}, "unknown speculative method 'ngramm'"),
        ({"acceptance": 0.8}, "speculation needs something that drafts"),
        ({"acceptance": 0.8, "method": "draft-model"}, "draft-model needs a draft"),
        ({"acceptance": 0.8, "method": "medusa", "draft": "llama3.2-1b"}, "medusa takes no draft model"),
        ({"acceptance": 0.8, "draft": "llama2-7b"}, "vocabularies differ: llama2-7b has 32,000 tokens and llama3.1-8b"),
        ({"acceptance": 0.8, "method": "ngram", "gammas": [0]}, "gamma must be from 1 to 256, not 0"),
        ({"acceptance": 0.8, "method": "ngram", "batches": [0]}, "batch must be 1 or more"),
        ({"acceptance": 0.8, "method": "ngram", "contexts": [0]}, "context must be 1 or more"),
        ({"acceptance": 0.8, "method": "eagle", "tree": [2, 2], "gammas": [3]}, "a tree of 2 levels has a gamma of 2"),
        ({"acceptance": 0.8, "method": "eagle", "tree_nodes": 0}, "tree-nodes must be from 1"),
        ({"acceptance": 0.8, "method": "layer-skip", "draft_layers": 32}, "32 draft layers of 32"),
        ({"acceptance": 0.8, "method": "mtp", "draft_layers": 99}, "a prediction head of 99 layers"),
        ({"acceptance": 0.8, "method": "medusa", "draft_layers": 3}, "medusa takes no draft layers"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(small, arguments, words):
    with pytest.raises(KvcalcError, match=words) as refused:
        kvcalc.speculate(small, **arguments)
    assert refused.value.hint or "must be" in words or "batch" in words


def test_an_unknown_method_has_a_hint(small):
    with pytest.raises(UnknownNameError) as refused:
        kvcalc.speculate(small, acceptance=0.8, method="eagel")
    assert refused.value.hint.startswith("did you mean eagle")


def test_a_model_without_accelerator_is_refused():
    with pytest.raises(InputError, match="needs an accelerator"):
        kvcalc.speculate(kvcalc.deployment("llama3.1-8b"), acceptance=0.8, method="ngram")


EXPLAINED = [
    {"method": "ngram", "gamma": 4},
    {"method": "medusa", "gamma": 3},
    {"method": "eagle", "tree": [3, 2, 1]},
    {"method": "mtp", "tree_nodes": 7},
    {"draft": "llama3.2-1b", "gamma": 5},
    {"draft": "llama3.2-1b"},
]


@pytest.mark.parametrize("asked", EXPLAINED, ids=str)
@pytest.mark.parametrize(
    "acceptance",
    [{"acceptance": 0.8}, {"acceptance": 1.0}, {"acceptance_conditional": [0.9, 0.8, 0.7, 0.6, 0.5]}],
    ids=str,
)
def test_an_explanation_is_arithmetic(small, asked, acceptance):
    steps = kvcalc.explain_speculation(small, batch=4, context=600, **acceptance, **asked)
    for step in steps:
        value = eval(step.expression, {"__builtins__": {"max": max, "min": min}})  # noqa: S307  our own output
        assert value == pytest.approx(step.value, rel=1e-9), step
    found = {step.quantity: step.value for step in steps}
    assert len(found) == len(steps)
    others = {name: value for name, value in asked.items() if name != "gamma"}
    gammas = [asked["gamma"]] if "gamma" in asked else None
    report = kvcalc.speculate(small, batches=[4], contexts=[600], gammas=gammas, **acceptance, **others)
    assert found["speedup"] == report.speedup
    assert found["expected_tokens_per_pass"] == report.expected_tokens_per_pass
    assert found["memory.total_bytes"] == report.memory.total_bytes
    assert found["verify.ideal_s"] == report.rows[0].verify_s
    assert found.get("draft_s", 0) == report.rows[0].draft_s
    assert found["draft_ratio"] == report.rows[0].draft_ratio
    assert found["tokens_per_s"] == report.rows[0].tokens_per_s
    assert found["best_gamma"] == report.best_gamma
    for name in ("break_even_acceptance", "break_even_batch"):
        assert found.get(name) == getattr(report, name), name


def test_what_does_not_pay_is_explained_too(small):
    steps = kvcalc.explain_speculation(small, draft="llama3.2-1b", acceptance=0.05, batch=512, context=128)
    found = {step.quantity: step for step in steps}
    assert found["best_gamma"].value == 0
    assert found["best_gamma"].expression.startswith("-max((1, 0), (0.")
    assert found["break_even_batch"].value == 0


def test_the_documented_shapes_are_the_calculations_own():
    page = (Path(__file__).parents[3] / "docs" / "speculation.md").read_text(encoding="utf-8")
    lines = page.partition("<!-- table: shapes -->\n")[2].partition("\n\n")[0].splitlines()
    header, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    batches = [int(row[0].replace(",", "")) for row in rows]
    for column, model in enumerate(header[1:], 1):
        target = kvcalc.deployment(model, gpu="h100-sxm")
        report = kvcalc.speculate(target, acceptance=0.6, method="ngram", gammas=[4], batches=batches, contexts=[512])
        assert [f"{gain:.2f}" for gain in speedups(report)] == [row[column] for row in rows]


def test_the_map_holds_the_rows_it_is_asked_for(small):
    report = kvcalc.speculate(small, acceptance=0.7, method="ngram", gammas=[3], batches=[1, 8, 64], contexts=[512])
    cells = {(cell.batch, cell.acceptance): cell.speedup for cell in report.map}
    assert [cells[row.batch, 0.7] for row in report.rows] == speedups(report)
    assert {batch for batch, _ in cells} == {1, 8, 64}


def test_the_hint_of_a_draft_rate_is_its_own() -> None:
    target = kvcalc.deployment("llama3.1-8b", gpu="h200")
    with pytest.raises(InputError, match=r"cannot be for 1 drafted token\n") as rate:
        kvcalc.speculate(target, method="ngram", gammas=[1], draft_rate=1.5)
    with pytest.raises(InputError) as length:
        kvcalc.speculate(target, method="ngram", gammas=[1], accepted_length=3.0)
    assert "accepted over drafted tokens" in str(rate.value.hint)
    assert "tokens per pass" in str(length.value.hint)


@pytest.mark.parametrize(("tensor", "experts"), [(None, 4), (4, 4), (2, 1), (1, 1)])
def test_a_draft_of_experts_shares_them_out_only_where_it_has_all_ranks_of_its_target(tensor, experts):
    target = kvcalc.deployment("qwen3-30b-a3b", gpu="h100-sxm")
    target = replace(target, parallel=Parallel(tensor=4, expert=4))
    placed = place_draft(target, target.model, tensor=tensor).parallel
    assert placed == Parallel(tensor=tensor or 4, expert=experts)
