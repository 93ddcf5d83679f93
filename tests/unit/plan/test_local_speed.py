"""The bound of a model that is spread over a machine."""

from __future__ import annotations

from dataclasses import replace

import pytest

import kvcalc
from kvcalc.core.hardware import Link
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.engines.llama_cpp.options import LlamaCppOptions
from kvcalc.engines.llama_cpp.placement import PlacementOptions, place
from kvcalc.engines.llama_cpp.weights import all_layers, model_weights
from kvcalc.plan.local.machine import Machine, host_profile, pass_stages, pass_time
from kvcalc.plan.local.placing import LayerBytes, Local, Tried, choose
from kvcalc.plan.local.sections import layer_formats, placed_model
from kvcalc.plan.local.setup import LocalDevice, LocalSetup
from kvcalc.plan.local.words import placement_words

RAM = 80e9
STEP = (decode_step(batch=1, context=4096),)


@pytest.fixture(scope="module", params=["qwen3-30b-a3b", "llama3.1-8b"])
def deployment(request):
    return kvcalc.deployment(request.param, gpu="rtx-4090", weights="q4_k_m", engine="llama.cpp")


def _placed(deployment, *, devices=1, **options):
    model = deployment.model
    weights = model_weights(model, "q4_k_m")
    spots = place(PlacementOptions(**options), layers=all_layers(model), free_bytes=(24 * 2**30,) * devices)
    return placed_model(model, layer_formats(model, weights, deployment.formats), spots, outer=deployment.formats)


def _machine(deployment, *cards, link=31.5e9):
    cards = cards or (deployment.hardware,)
    links = {index: Link(name="slot", bytes_per_s=link) for index in range(len(cards))}
    return Machine(devices=cards, host=host_profile(RAM), links=links)


def test_layers_have_the_bytes_of_their_own_tensors(deployment):
    weights = model_weights(deployment.model, "q4_k_m")
    formats = layer_formats(deployment.model, weights, deployment.formats)
    stored = {}
    for weight in weights:
        if weight.tensor.layer >= 0 and len(weight.tensor.shape) > 1:
            stored[weight.tensor.layer] = stored.get(weight.tensor.layer, 0) + weight.size
    assert len(set(stored.values())) > 1  # the recipe gives some layers more bits
    for layer, block in enumerate(deployment.model.blocks):
        one = replace(deployment.model, blocks=(block,), embeddings=(), head=None)
        found = kvcalc.cost.parameters.parameters(one)
        size = sum(formats[layer].of(part).bytes(count) for part, count in found.items() if part != "vector")
        assert size == pytest.approx(stored[layer], rel=1e-7)


def test_a_model_on_one_card_takes_the_bound_of_decode(deployment):
    row = kvcalc.decode(deployment, contexts=[4096]).rows[0]
    seconds = pass_time(_placed(deployment), STEP, _machine(deployment)).latency_s
    assert seconds == pytest.approx(row.ideal_s, rel=1e-3)
    assert seconds >= row.ideal_s * (1 - 1e-4)


def test_a_model_in_memory_alone_reads_it_at_the_hosts_rate(deployment):
    time = pass_time(_placed(deployment, gpu_layers=0), STEP, _machine(deployment))
    row = kvcalc.decode(deployment, contexts=[4096]).rows[0]
    moved = row.weight_bytes + row.kv_read_bytes + row.kv_write_bytes
    assert time.latency_s == pytest.approx(moved / RAM, rel=1e-3)


def test_more_layers_in_memory_are_slower_and_a_slower_second_card_too(deployment):
    card = deployment.hardware
    slow = replace(card, memory_bandwidth_bytes_per_s=card.memory_bandwidth_bytes_per_s / 4)
    alone = [
        pass_time(_placed(deployment, gpu_layers=count), STEP, _machine(deployment)).latency_s for count in (99, 20, 5)
    ]
    assert alone == sorted(alone)
    shared = [
        pass_time(_placed(deployment, devices=2, tensor_split=split), STEP, _machine(deployment, card, slow)).latency_s
        for split in ((3.0, 1.0), (1.0, 1.0), (1.0, 3.0))
    ]
    assert alone[0] < shared[0] < shared[1] < shared[2]


def test_long_prompts_send_the_hosts_weights_over_the_slot_and_short_ones_do_not(deployment):
    placed = _placed(deployment, gpu_layers=10)
    fast, slow = _machine(deployment), _machine(deployment, link=3e9)
    long, short = (prefill_pass(batch=1, prompt=prompt) for prompt in (32, 31))
    assert pass_time(placed, (long,), slow).latency_s > 5 * pass_time(placed, (long,), fast).latency_s
    sent = [
        sum(op.link_bytes for stage in pass_stages(placed, (group,), fast) for op in stage.ops)
        for group in (long, short)
    ]
    assert sent[1] < sent[0] / 100
    kept = _placed(deployment, gpu_layers=10, op_offload=False)
    host = next(stage for stage in pass_stages(kept, (long,), fast) if stage.place is None)
    assert sum(op.weight_bytes for op in host.ops) > 1e8


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "all 48 layers on a"),
        ({"gpu_layers": 0}, "all 48 layers in RAM"),
        ({"gpu_layers": 31}, "30 of 48 layers on a, 18 in RAM"),
        ({"n_cpu_moe": 17}, "31 of 48 layers and all attention on a, experts of 17 layers in RAM"),
        ({"cpu_moe": True}, "all attention on a, all experts in RAM"),
        ({"devices": 2, "tensor_split": (3.0, 1.0)}, "37 of 48 layers on a, 11 on b"),
    ],
)
def test_placements_are_told_in_a_line(options, words):
    made = kvcalc.deployment("qwen3-30b-a3b", gpu="rtx-4090", weights="q4_k_m", engine="llama.cpp")
    devices = tuple(LocalDevice(name=name, memory_bytes=24 * 2**30) for name in ("a", "b"))
    setup = LocalSetup(
        model=made.model, weights=(), format="Q4_K_M", file="", context=LlamaCppOptions(context=4096), devices=devices
    )
    assert placement_words(setup, _placed(made, **options).placement) == words


def test_layers_are_the_models_own_and_what_llama_cpp_counts_beside_them_is_named():
    asked = {"model": "glm-4.5-air", "weights": "q4_k_m", "engine": "llama.cpp", "context": 4096}
    report = kvcalc.ask("fit", asked | {"device": ["48GiB", "48GiB"]})
    own = [each.layers - each.output_layers - each.mtp_layers for each in report.devices]
    assert sum(own) == 46  # num_hidden_layers of its config, which has one layer more for prediction
    assert [each.output_layers for each in (*report.devices, report.host)] == [0, 1, 0]
    assert [each.mtp_layers for each in (*report.devices, report.host)] == [0, 1, 0]
    assert report.command.endswith("-ngl 48")
    assert "-ngl 48 is 46 layers + MTP + output: llama.cpp counts the output as a layer" in report.notes
    few = kvcalc.ask("fit", asked | {"device": ["48GiB"], "gpu_layers": "10"})
    assert few.placement.words == "8 of 46 layers on 48GiB, 38 in RAM"
    assert "-ngl 10 is 8 layers + MTP + output: llama.cpp counts the output as a layer" in few.notes
    assert not any("-ngl" in note for note in kvcalc.ask("fit", asked | {"device": ["cpu"]}).notes)


def test_layers_that_share_one_memory_with_the_gpu_are_on_the_cpu():
    asked = {"model": "qwen3-32b", "weights": "q4_k_m", "engine": "llama.cpp", "context": 4096}
    assert (
        "30 of 64 layers on m1-max-32, 34 on the CPU"
        in kvcalc.ask("fit", asked | {"device": ["m1-max-32"], "gpu_layers": "31"}).headline
    )


@pytest.mark.parametrize(("gpu", "model"), [("rtx-4090", "qwen3-14b"), ("rtx-3090", "qwen3-30b-a3b")])
def test_a_placement_on_one_card_has_the_intervals_of_decode_and_prefill(gpu, model):
    # but for what the host does of a pass: rows of the embedding
    asked = {"model": model, "weights": "q4_k_m", "engine": "llama.cpp"}
    speed = kvcalc.ask("fit", asked | {"device": [gpu], "context": 4096}).speed
    step = kvcalc.ask("decode", asked | {"gpu": gpu, "context": [4096], "estimate": True}).rows[0]
    prompt = kvcalc.ask("prefill", asked | {"gpu": gpu, "prompt": [512], "estimate": True}).rows[0]
    for name in ("estimate_low_s", "estimate_high_s"):
        assert getattr(speed, name) / speed.estimate_s == pytest.approx(getattr(step, name) / step.estimate_s, rel=1e-4)
    low, high = speed.prefill_estimate_low_tokens_per_s, speed.prefill_estimate_high_tokens_per_s
    assert high / low == pytest.approx(prompt.estimate_high_s / prompt.estimate_low_s, rel=0.01)


def test_a_placement_says_that_its_calibration_has_too_few_measurements_as_decode_does():
    asked = {"model": "qwen3-14b", "weights": "q4_k_m", "engine": "llama.cpp"}
    fits = kvcalc.ask("fit", asked | {"device": ["rx-7900-xtx"], "context": 4096})
    decode = kvcalc.ask("decode", asked | {"gpu": "rx-7900-xtx", "context": [4096], "estimate": True})
    (few,) = [note for note in decode.notes if note.startswith("too few measurements")]
    assert few in fits.notes


def test_a_shared_memory_holds_device_and_host_together(deployment):
    """Of placements that the device holds, one that the shared memory does not hold gives way to one that it does."""
    model = deployment.model
    layers = all_layers(model)
    formats = layer_formats(model, model_weights(model, "q4_k_m"), deployment.formats)

    def measure(options):
        spots = place(options, layers=layers, free_bytes=(24 * 2**30,))
        on_device = 0 if options.gpu_layers == 0 else layers + 1
        return Tried(options=options, placement=spots, device_bytes=(on_device,), shared_bytes=100 + on_device)

    def chosen(shared):
        return choose(
            Local(
                model=model, by_layer=formats, outer=deployment.formats, machine=_machine(deployment),
                capacity_bytes=(2 * layers,), layer_bytes=[LayerBytes(plain=1)] * (layers + 1), groups=STEP,
                measure=measure, shared_bytes=shared,
            )
        ).options.gpu_layers  # fmt: skip

    assert chosen(None) is None  # all of them
    assert chosen(101 + layers) is None
    assert chosen(100 + layers) == 0
    assert chosen(99) == chosen(None)  # nothing fits: what the device would hold


def test_the_devices_that_hold_something_are_told_from_those_that_are_there():
    free = (24 * 2**30, 12 * 2**30)
    alone = place(PlacementOptions(tensor_split=(1.0, 0.0)), layers=4, free_bytes=free)
    both = place(PlacementOptions(), layers=4, free_bytes=free)
    assert (alone.holding, both.holding) == ((0,), (0, 1))
    assert alone.pipeline_parallel
    assert both.pipeline_parallel
    assert place(PlacementOptions(gpu_layers=0), layers=4, free_bytes=free).holding == ()


@pytest.mark.parametrize(("moved", "estimated", "slower"), [
    ("exps=CPU", True, True), ("blk\\.(0|1)\\.ffn_(up|down|gate)_exps=CPU", True, True), ("ffn_up_exps=CPU", False, False),
    ("attn=CPU", False, False), ("^output\\.weight=CPU", False, False), ("nothing=CPU", True, False),
])  # fmt: skip
def test_tensors_that_the_speed_leaves_out_of_account_have_no_estimate(moved, estimated, slower):
    asked = {"model": "qwen3-30b-a3b", "weights": "q4_k_m", "engine": "llama.cpp", "context": 4096}
    asked |= {"device": ["rtx-4090"], "host": "ddr5-5600x2"}
    whole = kvcalc.ask("fit", asked).speed.tokens_per_s
    report = kvcalc.ask("fit", asked | {"override_tensor": [moved]})
    assert (report.speed.estimate_s is not None) == estimated
    assert any(note.startswith("no estimate") for note in report.notes) == (not estimated)
    assert report.speed.tokens_per_s == pytest.approx(whole) or slower


def test_experts_on_the_host_change_nothing_for_a_model_without_any():
    asked = {
        "model": "llama3.1-8b",
        "weights": "q4_k_m",
        "engine": "llama.cpp",
        "context": 4096,
        "device": ["m4-max-40"],
    }
    report = kvcalc.ask("fit", asked | {"cpu_moe": True})
    assert report.speed == kvcalc.ask("fit", asked).speed
    assert report.speed.estimate_s is not None
