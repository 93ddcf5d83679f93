"""What llama.cpp's --fit chooses where memory just suffices and where a byte lacks: devices that take bytes by hand."""

import pytest

from kvcalc.core.units import GIB
from kvcalc.engines.llama_cpp.fitting import MARGIN_BYTES, FitQuestion, Use, fitted

LAYERS = 10
LAYER_BYTES = 1000 * 4096
TOKEN_BYTES = 4000


def layer_bytes(context):
    return LAYER_BYTES + context * TOKEN_BYTES


def measure(trial, fixed_bytes=0, devices=1):
    """Every layer, and the output as one more, takes as much as any other; without a split, devices take equal shares."""
    count = LAYERS + 1 if trial.gpu_layers is None else trial.gpu_layers
    split = trial.options.tensor_split or [
        count * (place + 1) // devices - count * place // devices for place in range(devices)
    ]
    return [Use(int(held) * LAYER_BYTES, int(held) * layer_bytes(trial.context) + fixed_bytes) for held in split]


def asked(*room_bytes, trained=8192, **more):
    free = tuple(room + MARGIN_BYTES for room in room_bytes)
    return FitQuestion(layers=LAYERS, has_experts=False, trained_context=trained, free_bytes=free, **more)


@pytest.mark.parametrize("count", range(LAYERS + 2))
@pytest.mark.parametrize("lacking_bytes", [0, 1])
def test_layers_that_fill_a_device_to_the_byte_are_on_it_and_with_a_byte_less_there_is_one_fewer(count, lacking_bytes):
    room = count * layer_bytes(8192) - lacking_bytes
    placed = fitted(asked(room, context=8192), measure)
    held = max(0, count - lacking_bytes)
    assert placed.gpu_layers == (None if held == LAYERS + 1 else held)
    assert placed.context == 8192


@pytest.mark.parametrize("buffer_bytes", [100, 100 * LAYER_BYTES, 10_000 * LAYER_BYTES])
def test_a_device_without_room_even_for_its_buffers_gets_no_layer(buffer_bytes):
    """The search steps below none then, which wraps around to more layers than are left: it tries one fewer than those."""
    tried = []

    def measured(trial):
        tried.append(trial.gpu_layers)
        assert len(tried) < 50, tried
        return measure(trial, fixed_bytes=buffer_bytes)

    assert fitted(asked(99, context=8192), measured).gpu_layers == 0


@pytest.mark.parametrize(
    ("held_tokens", "lacking_bytes", "streams", "context"),
    [
        (8192, 0, 1, 8192),  # all fits
        (8191, 0, 1, 7936),
        (5120, 0, 1, 5120),  # to the byte, a multiple of 256
        (5120, 1, 1, 4864),
        (4097, 0, 1, 4096),
        (16383, 0, 2, 15872),  # a multiple of 256 for each of two sequences
        (8704, 0, 2, 8704),
        (8703, 0, 2, 8192),
    ],
)
def test_a_context_that_may_be_chosen_is_shortened_until_all_layers_fit(held_tokens, lacking_bytes, streams, context):
    room = (LAYERS + 1) * layer_bytes(held_tokens) - lacking_bytes
    placed = fitted(asked(room, streams=streams), measure)
    assert (placed.context, placed.gpu_layers) == (context, None)


@pytest.mark.parametrize(("lacking_bytes", "layers"), [(0, LAYERS + 1), (1, LAYERS)])
def test_at_the_shortest_context_layers_leave_the_device(lacking_bytes, layers):
    room = (LAYERS + 1) * layer_bytes(4096) - lacking_bytes
    placed = fitted(asked(room), measure)
    assert (placed.context, placed.gpu_layers) == (4096, layers)


@pytest.mark.parametrize("trained", [2048, 4096])
def test_a_context_no_longer_than_the_shortest_is_kept(trained):
    placed = fitted(asked((LAYERS + 1) * layer_bytes(trained) - 1, trained=trained), measure)
    assert (placed.context, placed.gpu_layers) == (trained, LAYERS)


def test_a_context_of_0_is_the_trained_one_and_is_not_shortened():
    placed = fitted(asked((LAYERS + 1) * layer_bytes(8192) - 1, context=0), measure)
    assert (placed.context, placed.gpu_layers) == (8192, LAYERS)


@pytest.mark.parametrize(
    ("rooms", "split"), [((4, 5), (4, 5)), ((0, 7), (0, 7)), ((10, 4), (7, 4)), ((11, 0), (11, 0))]
)
def test_devices_are_filled_from_the_last_one_on(rooms, split):
    room_bytes = [room * layer_bytes(8192) for room in rooms]
    placed = fitted(asked(*room_bytes, context=8192), lambda trial: measure(trial, devices=2))
    assert placed.options.tensor_split == split
    assert placed.gpu_layers == sum(split)


def test_devices_that_hold_it_together_shorten_no_context():
    """Only the shares are wrong then: what one lacks the other has."""
    rooms = (3 * layer_bytes(8192), 8 * layer_bytes(8192))
    placed = fitted(asked(*rooms), lambda trial: measure(trial, devices=2))
    assert (placed.context, placed.options.tensor_split) == (8192, (3, 8))
    short = fitted(asked(rooms[0] - 1, rooms[1]), lambda trial: measure(trial, devices=2))
    assert short.context < 8192


@pytest.mark.parametrize(("has_experts", "wasted_layers"), [(False, 3 / 2), (True, 3 / 6)])
def test_several_devices_are_expected_to_waste_half_a_layer_each_and_one_more(has_experts, wasted_layers):
    """With routed experts a third of that, since parts of layers can fill what is left."""
    model_bytes = (LAYERS + 1) * LAYER_BYTES
    wasted = 3 * (model_bytes // LAYERS) // (6 if has_experts else 2)
    assert wasted / (model_bytes / LAYERS) == pytest.approx(wasted_layers, rel=1e-6)
    held = (LAYERS + 1) * layer_bytes(5120) + wasted
    for lacking, context in ((0, 5120), (1, 4864)):
        question = FitQuestion(
            layers=LAYERS, has_experts=has_experts, trained_context=8192,
            free_bytes=(held // 2 + GIB, held - held // 2 - lacking + GIB),
        )  # fmt: skip
        assert fitted(question, lambda trial: measure(trial, devices=2)).context == context
