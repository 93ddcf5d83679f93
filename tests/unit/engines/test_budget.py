"""What an engine's largest pass keeps in memory at once, term by term, and where its defaults change."""

from __future__ import annotations

import pytest

from kvcalc.core.model import Block, Dense, Full, Gated, Head, Mixture, Mlp, ModelProfile
from kvcalc.core.workload import Formats, Parallel
from kvcalc.engines.terms import NOTHING, activation_peak, pass_tensors
from kvcalc.engines.vllm.budget import FITTED, _captured, graph_memory

MIXER = Full(heads=8, kv_heads=8, head_dim=128)
TOKENS, WIDTH = 4096, 1_000_000


def _model(*mlps: Mlp | None, head: Head | None = None) -> ModelProfile:
    return ModelProfile(
        name="x",
        architecture="x",
        hidden_size=1024,
        context_limit=None,
        blocks=tuple(Block(mixers=(MIXER,), mlp=mlp) for mlp in mlps),
        embeddings=(),
        head=head,
    )


def _least(*mlps: Mlp | None, tensor: int = 1) -> int:
    """The least peak of a model without an output head: what stands between the two ends of an MLP."""
    return activation_peak(_model(*mlps), Formats(), tokens=TOKENS, sequences=1, tensor=tensor).least


@pytest.mark.parametrize(
    ("mlp", "elements"),
    [
        (Gated(width=WIDTH), 3 * WIDTH),  # gate and up side by side, and their product
        (Dense(width=WIDTH), 2 * WIDTH),  # before and after the activation function
        (Mixture(experts=64, experts_per_token=4, width=WIDTH), 3 * 4 * WIDTH),  # of each token's experts
        (Mixture(experts=64, experts_per_token=4, width=WIDTH, shared_width=7), 3 * (4 * WIDTH + 7)),
        (Mixture(experts=64, experts_per_token=4, width=WIDTH, gated=False), 2 * 4 * WIDTH),
    ],
)
def test_the_inside_of_the_widest_mlp_stands_in_memory_for_every_token(mlp: Mlp, elements: int) -> None:
    assert _least(mlp) == TOKENS * elements * 2
    assert _least(Gated(width=1), mlp, Gated(width=1), None) == TOKENS * elements * 2


@pytest.mark.parametrize("tensor", [2, 4, 7])
def test_each_tensor_rank_holds_its_own_columns_of_the_mlp(tensor: int) -> None:
    assert _least(Gated(width=WIDTH), tensor=tensor) == TOKENS * -(-3 * WIDTH // tensor) * 2


def test_logits_are_32_bits_of_each_sequence_that_is_sampled_on_every_rank() -> None:
    def least(**asked: int) -> int:
        model = _model(Gated(width=1), head=Head(rows=50_000))
        return activation_peak(model, Formats(), **asked).least - 2 * asked["tokens"] * 3

    assert least(tokens=4096, sequences=256) == 4 * 256 * 50_000
    assert least(tokens=128, sequences=256) == 4 * 128 * 50_000  # no more than there are tokens


def test_the_peak_lies_between_two_ends_and_hidden_states_count_towards_the_upper() -> None:
    peak = activation_peak(_model(Gated(width=8)), Formats(), tokens=TOKENS, sequences=1)
    assert peak.most - peak.least >= TOKENS * 1024 * 2


@pytest.mark.parametrize("tensor", [1, 4])
def test_routed_experts_stand_apart_from_the_mlp_and_their_outputs_are_whole_on_every_rank(tensor: int) -> None:
    mixture = Mixture(experts=64, experts_per_token=4, width=WIDTH, shared_width=8)
    model = _model(mixture, Gated(width=16), None)
    tensors = pass_tensors(model, Formats(), tokens=TOKENS, sequences=1, tensor=tensor)
    assert tensors.hidden == TOKENS * 1024 * 2
    assert tensors.mlp == TOKENS * 3 * 16 // tensor * 2  # wider than the shared expert
    assert tensors.experts == TOKENS * (3 * 4 * WIDTH // tensor + 4 * 1024) * 2
    assert tensors.inner == TOKENS * 3 * (4 * WIDTH + 8) // tensor * 2
    dense = pass_tensors(_model(Gated(width=16)), Formats(), tokens=TOKENS, sequences=1, tensor=tensor)
    assert dense.experts == 0


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [(1, 1), (2, 2), (4, 3), (7, 3), (8, 4), (16, 5), (256, 35), (257, 35), (272, 36), (288, 37), (512, 51)],
)
def test_graphs_are_captured_for_small_sizes_then_each_eighth_and_each_sixteenth(largest: int, sizes: int) -> None:
    """1, 2, 4, then 8 to 256 in steps of 8, then in steps of 16: vLLM's list of cudagraph_capture_sizes."""
    listed = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    assert sum(size <= largest for size in listed) == sizes
    assert _captured(largest) == sizes


def test_graphs_take_at_most_the_first_ones_memory_and_a_share_for_each_layer_of_a_stage() -> None:
    model = _model(*(Gated(width=8),) * 10)
    _, most_bytes, _ = FITTED.graph_layer_bytes
    # two lists of graphs: up to twice the sequences, and up to the sequences
    for pipeline, layers in ((1, 10), (4, 3)):
        found = graph_memory(model, sequences=8, parallel=Parallel(pipeline=pipeline))
        assert found.most == FITTED.first_graph_bytes + int(most_bytes * (5 + 4) * layers)


def test_graphs_come_off_the_memory_from_0_20_on() -> None:
    model = _model(Gated(width=8))
    before, since = (
        graph_memory(model, sequences=8, parallel=Parallel(), version=version) for version in ("0.19", "0.20")
    )
    assert before == NOTHING
    assert since.most > FITTED.first_graph_bytes
