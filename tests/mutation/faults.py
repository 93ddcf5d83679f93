"""Faults to seed into the formulas, each with the tests that must notice it.

Most of them have been made by a calculator of this kind. ``original`` must stand exactly once in its file.
"""

from __future__ import annotations

from dataclasses import dataclass

PAIRS = "tests/property/test_pairs.py"
PASSES = "tests/property/test_passes.py"
CACHE = "tests/property/test_cache_growth.py"
BOUNDS = "tests/property/test_speed_bounds.py"
SPREAD = "tests/property/test_spreading.py"
EXPERTS = "tests/property/test_expert_routing.py"
SPECULATION = "tests/property/test_speculation.py"
ESTIMATES = "tests/property/test_estimates.py"
GRID = "tests/property/test_decode_grid.py::test_every_row_of_a_grid_is_the_row_of_its_batch_and_context"
FIGURES = "tests/unit/test_figures.py"


@dataclass(frozen=True, slots=True)
class Fault:
    """One change to one formula.

    Args:
        name: what is wrong then, in words.
        file: the file, from kvcalc/cost on.
        original: the text that is replaced.
        mutated: what it is replaced with.
        test: the test file or test that must fail; ``doctest`` stands for the examples of the file itself.
    """

    name: str
    file: str
    original: str
    mutated: str
    test: str = "doctest"


FAULTS = (
    Fault(
        "a multiply-add is one FLOP",
        "linear.py",
        "flop=layers * 2 * tokens * elements",
        "flop=layers * tokens * elements",
    ),
    Fault(
        "weights are read for each token", "linear.py", "read = layers * formats", "read = tokens * layers * formats"
    ),
    Fault(
        "a batch reads only the experts of one token",
        "linear.py",
        "experts * chance_of_any(share, tokens)",
        "experts * share",
        EXPERTS,
    ),
    Fault(
        "a batch reads all experts",
        "linear.py",
        "return experts * chance_of_any(share, tokens) if share < 1 else experts",
        "return experts",
        EXPERTS,
    ),
    Fault(
        "experts nobody chooses cost FLOP",
        "linear.py",
        "flop = 2 * tokens * active * expert_matrix",
        "flop = 2 * tokens * experts * expert_matrix",
    ),
    Fault(
        "keys are cached for every query head",
        "../core/layers.py",
        "Entry(kv_heads=self.kv_heads, key_dim=self.head_dim",
        "Entry(kv_heads=self.heads, key_dim=self.head_dim",
        FIGURES,
    ),
    Fault(
        "latent vectors lack their rotary part",
        "../core/layers.py",
        "key_dim=self.kv_lora_rank + self.rope_dim",
        "key_dim=self.kv_lora_rank",
        FIGURES,
    ),
    Fault(
        "a window never fills",
        "../core/traits.py",
        "tokens if self.span is None else smaller(tokens, self.span)",
        "tokens",
        FIGURES,
    ),
    Fault("a rank has no KV head", "cache.py", "max(1, ceil_div(kv_heads, tensor))", "kv_heads // tensor"),
    Fault(
        "a rank drops the KV heads left over",
        "cache.py",
        "max(1, ceil_div(kv_heads, tensor))",
        "max(1, kv_heads // tensor)",
        f"{CACHE}::test_every_kv_head_has_a_rank_and_every_rank_a_head",
    ),
    Fault(
        "values are cached in the format of keys",
        "cache.py",
        "values = formats.value.bytes",
        "values = 2 * formats.key.bytes",
    ),
    Fault(
        "a knee is forgotten", "cache.py", "(mixer.cache_knees for mixer, _ in mixers)", "(() for mixer, _ in mixers)"
    ),
    Fault("every query sees every token", "attention.py", "query * (query + 1) // 2", "query * query", PAIRS),
    Fault(
        "a full chunk is not left",
        "attention.py",
        "chunks, rest = divmod(tokens, chunk)",
        "chunks, rest = 0, tokens",
        PAIRS,
    ),
    Fault("a token does not see itself", "attention.py", "return past + 1 if query == 1 else past", "return past"),
    Fault(
        "chunked attention reads past chunks",
        "attention.py",
        "past_read(query, past % mixer.chunk)",
        "past_read(query, past)",
        f"{PASSES}::test_a_chunked_step_reads_its_own_chunk_only",
    ),
    Fault(
        "states are not written back",
        "attention.py",
        "        write_bytes=group.sequences * kept_bytes,\n",
        "        write_bytes=0,\n",
        f"{PASSES}::test_a_state_is_read_and_written_whole_whatever_the_context",
    ),
    Fault(
        "an encoder is masked",
        "attention.py",
        "2 * sequences * tokens * tokens * heads",
        "sequences * tokens * tokens * heads",
    ),
    Fault(
        "absorbed decode works on one latent vector",
        "attention.py",
        "(2 * mixer.kv_lora_rank + mixer.rope_dim)",
        "(mixer.kv_lora_rank + mixer.rope_dim)",
        FIGURES,
    ),
    Fault(
        "every rank attends with all query heads",
        "attention.py",
        "pairs * heads * (mixer.head_dim + mixer.value_dim)\n    read_bytes",
        "pairs * mixer.heads * (mixer.head_dim + mixer.value_dim)\n    read_bytes",
        f"{SPREAD}::test_attention_is_cut_by_query_heads",
    ),
    Fault(
        "prefill runs the head for every token",
        "forward.py",
        "wanted = sum(group.sequences * min(group.logit_tokens, group.query_tokens)",
        "wanted = sum(group.tokens",
        f"{PASSES}::test_prefill_runs_the_head_once_a_sequence",
    ),
    Fault("layers of a kind are counted once", "forward.py", "flop=count * added(", "flop=added(", FIGURES),
    Fault(
        "a rank runs all sequences",
        "forward.py",
        "group.sequences // data + (start",
        "group.sequences + (start",
        f"{SPREAD}::test_data_parallel_ranks_deal_out_the_sequences",
    ),
    Fault(
        "a tied table is counted twice",
        "parameters.py",
        "[1 if tied else 0 :]",
        "[0:]",
        f"{SPREAD}::test_a_tied_table_is_counted_once",
    ),
    Fault(
        "a gated MLP has two matrices",
        "parameters.py",
        '("mlp.gate", "mlp.up") if gated',
        '("mlp.up",) if gated',
        FIGURES,
    ),
    Fault(
        "an expert has two matrices",
        "parameters.py",
        "(mixture.branches + 1) * (mixture",
        "mixture.branches * (mixture",
    ),
    Fault(
        "the bound adds what can overlap",
        "roofline.py",
        "ideal = max(compute, memory, wire)",
        "ideal = compute + memory + wire",
        f"{BOUNDS}::test_the_limiter_is_the_largest_share",
    ),
    Fault(
        "memory is twice as fast",
        "roofline.py",
        "added(op.compulsory_bytes for op in ops) / hardware",
        "added(op.compulsory_bytes for op in ops) / 2 / hardware",
        FIGURES,
    ),
    Fault(
        "an operator takes its shorter time",
        "roofline.py",
        "alone: float = larger(",
        "alone: float = min(",
        f"{BOUNDS}::test_operators_one_by_one_are_never_faster_than_all_at_once",
    ),
    Fault(
        "the first stage stands for all",
        "roofline.py",
        "max(range(len(times)), key=lambda index: max(times[index]))",
        "0",
        f"{BOUNDS}::test_a_pipeline_is_as_slow_as_its_slowest_stage",
    ),
    Fault("an all-reduce passes the ring once", "collectives.py", "bytes=2 * (ranks - 1)", "bytes=(ranks - 1)"),
    Fault(
        "a rank's slice is rounded down",
        "sharding.py",
        "pieces = ceil_div(matrix.pieces, tensor)",
        "pieces = matrix.pieces // tensor",
    ),
    Fault(
        "a verification lacks the target's own token",
        "speculation.py",
        "return -math.expm1((gamma + 1) * math.log(rate))",
        "return -math.expm1(gamma * math.log(rate))",
    ),
    Fault(
        "a position is accepted whatever became of those before it",
        "speculation.py",
        "reached *= share",
        "reached = share",
    ),
    Fault("a node is accepted without its parent", "speculation.py", "products[parent] * share", "share"),
    Fault("a second child is as good as the first", "speculation.py", "rate * (1 - rate) ** rank", "rate"),
    Fault(
        "a verification costs a plain step",
        "speculation.py",
        "return expected / (gamma * draft_ratio + verify_ratio)",
        "return expected / (gamma * draft_ratio + 1)",
    ),
    Fault("a draft is free", "speculation.py", "rate_for(gamma * draft_ratio + verify_ratio", "rate_for(verify_ratio"),
    Fault("a draft is one step", "speculation.py", "(expected - verify_ratio) / gamma", "expected - verify_ratio"),
    Fault(
        "a tree grows where it is least use",
        "speculation.py",
        "(-before * acceptance",
        "(before * acceptance",
        SPECULATION,
    ),
    Fault(
        "a later position is measured against all drafts",
        "speculation.py",
        "right / left if left",
        "right / drafts if left",
    ),
    Fault(
        "an operator at reached rates takes its shorter time",
        "estimate.py",
        "most(compute, memory, reach",
        "most(min(compute, memory), 0 * reach",
    ),
    Fault(
        "shares of bandwidth and FLOP/s change places",
        "estimate.py",
        "op.row_s) / reach.flop_share\n    activations = op.activation_s / (reach.activation_share or reach.bandwidth_share)",
        "op.row_s) / reach.bandwidth_share\n    activations = op.activation_s / (reach.activation_share or reach.flop_share)",
    ),
    Fault("compute and memory always overlap", "estimate.py", "reach.sum_share * (compute + memory)", "0.5 * compute"),
    Fault("an operator starts once, not in each layer", "estimate.py", "calls * reach.call_s +", "reach.call_s +"),
    Fault("the first layer's overhead stands for all", "estimate.py", "terms.layers * calibration", "calibration"),
    Fault("collectives cost nothing but bytes", "estimate.py", "terms.collectives * calibration.collective_s +", "0 +"),
    Fault("links run at their peak", "estimate.py", "terms.link_s / calibration.link_share", "terms.link_s"),
    Fault(
        "sums over ranks are made in two steps",
        "estimate.py",
        "lesser(terms.direct_s / calibration.direct_share, staged)",
        "staged",
    ),
    Fault("a sum in two steps costs bytes alone", "estimate.py", "calibration.staged_s + terms.ring_s", "terms.ring_s"),
    Fault(
        "a rank sends its vector to one other",
        "collectives.py",
        "direct_bytes=(ranks - 1) * size_bytes",
        "direct_bytes=size_bytes",
    ),
    Fault(
        "an estimate beats the bound",
        "estimate.py",
        "max(bound.latency_s, seconds * factor)",
        "seconds * factor",
        f"{ESTIMATES}::test_an_interval_stops_at_the_bound",
    ),
    Fault(
        "activations cross no memory",
        "estimate.py",
        "            op.moved_bytes / bandwidth,",
        "            op.compulsory_bytes / bandwidth,",
        f"{ESTIMATES}::test_at_the_peak_rates_operators_take_what_the_serial_bound_says",
    ),
    Fault(
        "a mixer is called once for all layers",
        "forward.py",
        "        calls=count,\n    )\n\n\ndef _block_collectives",
        "        calls=0,\n    )\n\n\ndef _block_collectives",
        f"{ESTIMATES}::test_a_pass_counts_its_layers_and_their_operators",
    ),
    Fault(
        "one GPU is paid for however many run",
        "../plan/economics.py",
        "return gpus * price_per_hour_usd / SECONDS_PER_HOUR",
        "return price_per_hour_usd / SECONDS_PER_HOUR",
    ),
    Fault(
        "one GPU draws power however many run",
        "../plan/economics.py",
        "return gpus * power_w / tokens_per_s",
        "return power_w / tokens_per_s",
    ),
    Fault(
        "an index that has all it chooses is not noticed",
        "../core/layers.py",
        "(*knees, group * indexer.top_k, *scored)",
        "(*knees, 2 * group * indexer.top_k, *scored)",
        "tests/property/test_new_mixer_kind.py",
    ),
    Fault(
        "a grid's line goes on over the end of a chunk",
        "../simulate/decode_grid.py",
        "return mixer.bends.stretch(context), tuple",
        "return 0, tuple",
        "tests/property/test_decode_grid.py::test_a_grid_begins_anew_where_a_chunk_does",
    ),
    Fault(
        "a grid's busiest rank gets the average batch",
        "../simulate/decode_grid.py",
        "sequences=-(-sizes // ranks)",
        "sequences=sizes // ranks",
        GRID,
    ),
)
