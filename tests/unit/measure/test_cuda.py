"""Every branch that is a GPU's, on one that is the CPU: graphs, clock, allocator, small and old cards, fallbacks."""

import gc
import operator
import weakref
from dataclasses import replace

import pytest
import torch

from kvcalc.core.errors import InputError
from kvcalc.measure import clock, kernels, machine, speculation
from kvcalc.measure.bench import bench_report
from kvcalc.measure.clock import back_to_back_s, in_turn, recorded
from kvcalc.measure.correctness import check_loop
from kvcalc.measure.crosscheck import Questions, crosscheck_report
from kvcalc.measure.decoder import Decoder, decode_n_tokens, prefill
from kvcalc.measure.library import find_device
from kvcalc.measure.loop import Loop, on_device
from kvcalc.measure.probes import Plan
from kvcalc.measure.workspaces import taken_workspaces, workspace_bytes
from kvcalc.plan.deployment import deploy

from .fake_cuda import GIB, WORKSPACE, FakeCuda
from .models import MODELS, model_of
from .test_crosscheck import FAST, HALF, failed

pytestmark = pytest.mark.usefixtures("small_working_sets")

FAST_BF16 = replace(FAST, peak_flop_per_s={"bf16": 1e18, "fp16": 1e18, "fp32": 1e18})


@pytest.fixture
def gpu_of(monkeypatch):
    """Install a GPU with these properties and give it back with its device."""
    installed = []

    def install(**properties):
        clock.side_stream.cache_clear()  # a stream of another GPU
        gpu = FakeCuda(**properties)
        entered = gpu.installed(monkeypatch)
        entered.__enter__()
        installed.append(entered)
        return gpu, find_device("cuda")

    yield install
    for entered in reversed(installed):
        entered.__exit__(None, None, None)
    clock.side_stream.cache_clear()


def asked(*models, weights="bf16", batches=(2,), contexts=(8,), **more):
    return Questions(
        deployments=tuple(deploy(model, weights=weights, kv=weights, activations=weights) for model in models),
        batches=batches, contexts=contexts, rounds=2, hardware=FAST_BF16, calibration=HALF, **more,
    )  # fmt: skip


def crosschecked(device, *models, **more):
    return crosscheck_report(device, asked(*models, **more), progress=lambda _: None)


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_kind_of_layer_is_replayed_as_it_is(model, gpu_of):
    """Replays equal the step, advancing tokens those started one by one, bytes what the allocator was asked for."""
    gpu, device = gpu_of()
    report = crosschecked(device, model, kernels=("plain", "sdpa"), loops=(4,))
    assert failed(report) == []
    assert {check.name.partition(":")[0] for check in report.checks} >= {"graphs", "cache", "weights", "memory"}
    assert all(row.in_graph and row.replay_error == 0 and row.back_to_back_s > 0 for row in report.rows)
    assert [loop.kernels for loop in report.loops] == ["plain", "sdpa"]
    assert len(gpu.streams) == 1


def test_experts_that_wait_for_the_host_are_not_captured_and_that_fails(gpu_of):
    gpu, device = gpu_of()
    report = crosschecked(device, MODELS["experts"], weights="fp16", check=False)
    assert failed(report) == ["graphs: every step was replayed from one"]
    assert gpu.graphs == []
    assert not report.rows[0].in_graph


@pytest.mark.parametrize(
    ("capability", "grouped"), [((8, 9), False), ((9, 0), True), ((10, 0), True), ((12, 0), False), ((12, 1), False)]
)
def test_experts_are_grouped_where_there_is_a_kernel(capability, grouped, gpu_of):
    """No consumer card has one: neither sm_120 (RTX 50) nor sm_121 (DGX Spark)."""
    _, device = gpu_of(capability=capability)
    report = crosschecked(device, MODELS["experts"], check=False)
    assert failed(report) == ([] if grouped else ["graphs: every step was replayed from one"])


def test_workspaces_are_those_of_torchs_rule_and_taken_once(gpu_of):
    _, device = gpu_of()
    assert taken_workspaces(device) == 2 * WORKSPACE == 2 * workspace_bytes("sm_90", {})
    assert taken_workspaces(device) == 0
    assert taken_workspaces(find_device("cpu")) is None


@pytest.mark.parametrize("taken", [True, False])
def test_workspaces_are_in_no_steps_peak(taken, gpu_of, monkeypatch):
    """The first product of a stream takes one: had steps come first, the peak of the smallest would be theirs."""
    _, device = gpu_of()
    if not taken:
        monkeypatch.setattr("kvcalc.measure.crosscheck.taken_workspaces", lambda _: None)
    report = crosschecked(device, MODELS["GQA"], check=False)
    note = "cuBLAS holds 66.00 MiB as its workspaces, 66.00 MiB by torch's rule: in no step's peak"
    assert (note in report.notes) == taken
    assert (report.rows[0].peak_bytes < WORKSPACE) == taken


def test_an_allocator_that_does_not_tell_is_not_asked(gpu_of, monkeypatch):
    _, device = gpu_of()
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda *_: {})
    report = crosschecked(device, MODELS["GQA"], check=False)
    assert failed(report) == []
    assert report.rows[0].peak_bytes is None


def test_a_variant_that_computes_something_else_fails(gpu_of, monkeypatch):
    _, device = gpu_of()
    assert failed(crosschecked(device, MODELS["GQA"], kernels=("plain", "sdpa"), check=False)) == []
    right = kernels._flash  # noqa: SLF001
    monkeypatch.setattr(kernels, "_flash", lambda *given, causal: 2 * right(*given, causal=causal))
    report = crosschecked(device, MODELS["GQA"], kernels=("plain", "sdpa"), check=False)
    assert failed(report) == ["kernels: every variant gives the plain step"]


def test_grouped_experts_are_checked_against_experts_one_by_one(gpu_of, monkeypatch):
    _, device = gpu_of()
    assert [check.passed for check in check_loop(MODELS["experts"], device)] == [True] * 4
    right = torch._grouped_mm  # noqa: SLF001  no public name yet
    monkeypatch.setattr(torch, "_grouped_mm", lambda rows, stack, offs: right(rows, stack.flip(0), offs=offs))
    assert [check.passed for check in check_loop(MODELS["experts"], device)] == [True] * 3 + [False]


def test_a_replay_that_is_not_the_step_fails(gpu_of, monkeypatch):
    _, device = gpu_of()
    monkeypatch.setattr("kvcalc.measure.clock._replay", lambda *recording: recording[-1])
    report = crosschecked(device, MODELS["GQA"], check=False, loops=(4,))
    assert "graphs: a replay is the step itself" in failed(report)


def test_a_capture_that_fails_is_an_error(gpu_of):
    _, device = gpu_of()
    number = torch.ones(1)
    calls = []

    def call():
        calls.append(1)
        if len(calls) > 4:  # after the warm-up
            raise RuntimeError("capture failed")
        return number + 1

    with pytest.raises(RuntimeError, match="capture failed"):
        recorded(call, device)


def test_an_error_of_the_warm_up_is_no_wait_for_the_host(gpu_of):
    _, device = gpu_of()
    for error in (RuntimeError("shapes differ"), torch.OutOfMemoryError("CUDA out of memory")):
        calls = []

        def call(error=error, calls=calls):
            calls.append(1)
            if len(calls) == 4:  # the one that must not wait
                raise error

        with pytest.raises(type(error), match=str(error)):
            recorded(call, device)


def test_memory_that_runs_out_is_told(gpu_of):
    _, device = gpu_of(free=2**20)
    with pytest.raises(InputError, match="are free"):
        crosschecked(device, MODELS["GQA"])


def test_a_call_is_queued_behind_a_wait_and_timed_alone(gpu_of):
    gpu, device = gpu_of()
    in_turn([lambda: gpu.events.append("call")], rounds=2, device=device, warm_up=0)
    assert gpu.events == ["wait", "event", "call", "event"] * 2


def test_calls_in_a_row_fill_some_milliseconds(gpu_of, monkeypatch):
    gpu, device = gpu_of()
    monkeypatch.setattr(torch.cuda, "Event", lambda **_: Clock())

    class Clock:
        def record(self):
            self.at = calls.count("call")

        def elapsed_time(self, end):
            return 1.0 * (end.at - self.at)  # a millisecond a call

    calls = gpu.events
    assert back_to_back_s(lambda: gpu.events.append("call"), device) == pytest.approx(1e-3)
    assert gpu.events.count("call") == 1 + 5


def test_nothing_is_in_a_row_on_a_cpu():
    assert back_to_back_s(lambda: None, find_device("cpu")) is None


@pytest.fixture
def full(full_working_sets, small_working_sets, monkeypatch):  # noqa: ARG001  that which it undoes
    """Give benchmarks back these of the sizes that they have for users, or all of them."""

    def give(*names):
        for name in names or full_working_sets:
            monkeypatch.setattr(machine, name, full_working_sets[name])

    return give


def test_a_bench_runs_on_a_gpu_and_takes_what_a_small_card_has(gpu_of, full):
    full("_STREAM_BYTES", "_SQUARE")
    gpu, device = gpu_of(free=256 * 2**20, memory=8 * GIB)
    report = bench_report(device, Plan(formats=("bf16",), stream_rounds=2, rounds=1), progress=lambda _: None)
    assert {row.kind for row in report.rows} >= {"read", "matrix", "attention", "layer"}
    assert max(row.working_set_bytes for row in report.rows) <= 2 * gpu.free / 8
    assert len(gpu.streams) == 1


@pytest.mark.parametrize(("free", "stream"), [(139 * GIB, 4 * GIB), (8 * GIB, GIB), (GIB // 2, 240 * 2**20)])
def test_working_sets_fit_the_card_and_not_its_cache(free, stream, gpu_of, full):
    full()
    _, device = gpu_of(free=free, l2=60 * 2**20)
    assert machine._large(machine._STREAM_BYTES, device) == stream  # noqa: SLF001  its own test


def test_caches_of_a_bench_fit_a_small_card_together(gpu_of, full):
    """On 8 GiB those of 2 GiB come one after another, on an H200 all at once; what a card cannot hold is left out."""
    full()
    groups = []
    for free in (139 * GIB, 7 * GIB, 3 * GIB):
        _, device = gpu_of(free=free, l2=32 * 2**20)
        found = list(machine._cache_groups(device, "bf16", (32, 8, 128)))  # noqa: SLF001  its own test
        sizes = [
            sum(max(machine._large(machine._ROTATED_BYTES, device), batch * context * 4096) for batch, context in group)  # noqa: SLF001
            for group in found
        ]
        assert all(size <= free / 2 for size in sizes)
        groups.append([len(group) for group in found])
    assert groups == [[5], [3, 2], [3, 1]]


def test_no_bench_refuses_a_card_of_8_gib(gpu_of, full, monkeypatch):
    full()
    _, device = gpu_of(free=7 * GIB, memory=8 * GIB, l2=32 * 2**20)
    monkeypatch.setattr(machine, "_streams", lambda *_: pytest.skip("begun"))
    with pytest.raises(pytest.skip.Exception, match="begun"):
        bench_report(device, Plan(formats=("bf16",)), progress=lambda _: None)


def test_streams_and_squares_are_of_random_numbers(gpu_of):
    _, device = gpu_of()
    read = machine.reading(replace(device, kind="cpu"))
    assert read.call()[0].abs() != machine._STREAM_BYTES["cpu"] / 4  # noqa: SLF001  not a sum of ones


def test_bf16_is_refused_where_it_is_not_multiplied(gpu_of):
    _, device = gpu_of(capability=(7, 5), name="Tesla T4")
    with pytest.raises(InputError, match=r"Tesla T4 \(sm_75\) does not multiply bf16") as error:
        bench_report(device, Plan(formats=("bf16",)), progress=lambda _: None)
    assert "fp16" in error.value.hint
    with pytest.raises(InputError, match="does not multiply bf16"):
        crosschecked(device, MODELS["GQA"])


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_a_loop_with_its_position_on_the_device_gives_the_tokens_of_the_hosts(model):
    """Windows and chunks are passed over, and a second run from the beginning is the first."""
    decoder = Decoder(model, weights="fp32", device=find_device("cpu"))
    prompt = torch.randint(0, 211, (2, 9), generator=torch.Generator().manual_seed(5))
    caches = [decoder.new_cache(batch=2, capacity=30) for _ in range(2)]
    first, _ = (prefill(decoder, prompt, cache)[:, -1].argmax(-1) for cache in caches)
    on_device(caches[1], "cpu")
    loop = Loop(decoder, caches[1], first)
    wanted = decode_n_tokens(decoder, first, caches[0], count=20)
    assert len(wanted.unique()) > 2
    assert loop.run(20).equal(wanted)
    assert loop.run(20).equal(wanted)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_loops_and_cycles_go_with_their_last_user(on_gpu, gpu_of):
    """Nothing refers in a circle: the next model's weights find the room of the last one's."""
    gpu, device = gpu_of() if on_gpu else (None, find_device("cpu"))
    model = model_of(MODELS["GQA"].blocks[0])
    gc.disable()
    try:
        decoders = [Decoder(model, weights="bf16", device=device) for _ in range(2)]
        gone = [weakref.ref(decoder) for decoder in decoders]
        plain = speculation.plain_decode(decoders[0], range(9), count=12)
        assert speculation.speculative_decode(*decoders, range(9), count=12, gamma=2).tokens[0] == plain.tokens[0]
        del decoders
        if on_gpu:
            gpu.graphs.clear()
        assert [decoder() for decoder in gone] == [None, None]
    finally:
        gc.enable()


def test_what_a_step_was_recorded_with_is_given_back(gpu_of):
    """Two crosschecks in a row need the memory of one."""
    gpu, device = gpu_of()
    crosschecked(device, MODELS["GQA"], check=False)
    gpu.graphs.clear()
    gc.collect()
    before = gpu.allocator.requested
    crosschecked(device, MODELS["GQA"], check=False)
    gpu.graphs.clear()
    gc.collect()
    assert gpu.allocator.requested <= before


@pytest.mark.parametrize("kind", ["GQA", "MLA", "experts"])
def test_speculation_is_replayed_and_asks_the_host_once_a_cycle(kind, gpu_of, monkeypatch):
    gpu, device = gpu_of()
    target, draft = (
        deploy(model, weights="bf16", kv="bf16", activations="bf16")
        for model in (MODELS[kind], model_of(MODELS["GQA"].blocks[0]))
    )
    reads = []
    right = speculation._run  # noqa: SLF001  counted here
    monkeypatch.setattr(speculation, "_run", lambda *calls: reads.append(gpu.reads) or right(*calls))
    measured = speculation.measured_speculation(target, draft, device, gamma=3, acceptance=0.7, count=24)
    assert measured.identical
    assert measured.in_graph
    assert measured.tokens_per_pass > 1.5
    assert set(map(operator.sub, reads[1:], reads)) >= {1}
    assert min(map(operator.sub, reads[1:], reads)) == 1


def kernels_of_a_layer(device, gpu, name):
    counts = []
    for layers in (1, 2):
        gpu.graphs.clear()
        crosschecked(device, model_of(*[MODELS["GQA"].blocks[0]] * layers), kernels=(name,), check=False)
        counts.append(len(gpu.graphs[-1].kernels))
    return counts[1] - counts[0]


@pytest.mark.parametrize(("name", "kernels"), [("plain", 32), ("sdpa", 27), ("fused", 10)])
def test_kernels_of_a_dense_layer(name, kernels, gpu_of, monkeypatch):
    """Ten: four matrices, two norms with what they add, rotation with the cache's entries, two of attention, the gate.

    Torch's attention counts as one here; on a GPU it is two.
    """
    gpu, device = gpu_of()
    if name == "fused":
        fused = pytest.importorskip("kvcalc.measure.fused")
        monkeypatch.setattr(fused, "launch", gpu.launch(fused.launch))
    assert kernels_of_a_layer(device, gpu, name) == kernels


@pytest.mark.parametrize("kind", ["GQA", "MLA"])
def test_fused_kernels_are_replayed_at_every_position(kind, gpu_of, monkeypatch):
    """In one layer: two take the interpreter half a minute, and test_fused decodes with two."""
    gpu, device = gpu_of()
    fused = pytest.importorskip("kvcalc.measure.fused")
    monkeypatch.setattr(fused, "launch", gpu.launch(fused.launch))
    layer = model_of(MODELS[kind].blocks[0])
    report = crosschecked(device, layer, weights="fp16", kernels=("fused",), loops=(4,))
    assert failed(report) == []
    assert [row.kernels for row in report.rows] == ["fused"]
