"""Real engines: what is made for them, what is read from them, and the engines themselves where they are installed."""

import json
import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import pytest

from kvcalc import api
from kvcalc.cli.main import main
from kvcalc.core.cost_types import OpCost
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.hardware import HardwareProfile
from kvcalc.cost.parameters import weight_bytes
from kvcalc.importers.hugging_face import import_config
from kvcalc.measure.clock import Timing
from kvcalc.measure.crosscheck import Questions
from kvcalc.measure.engines import llama_cpp, run, vllm
from kvcalc.measure.engines import start as engine_start
from kvcalc.measure.engines.llama_cpp_child import tensors
from kvcalc.measure.engines.start import family_of, hugging_face_config
from kvcalc.measure.engines.vllm_child import decoded
from kvcalc.measure.library import find_device
from kvcalc.measure.probes import Probe
from kvcalc.plan.deployment import deploy

from .models import MODELS

DEVICE = find_device("cpu")
FAST = HardwareProfile(
    name="fast", title="x", vendor="x", memory_label_bytes=1e9, memory_bandwidth_bytes_per_s=1e15,
    peak_flop_per_s={"bf16": 1e18},
)  # fmt: skip
MADE = {
    "smollm2-135m": "llama",
    "llama3.2-1b": "llama",
    "tinyllama-1.1b": "llama",
    "qwen2.5-0.5b": "qwen2",
    "qwen3-0.6b": "qwen3",
    "qwen3-8b": "qwen3",
}


@pytest.mark.parametrize(("name", "family"), MADE.items())
def test_a_config_describes_the_model_it_was_made_from(name, family):
    model = api.load_model(name)
    config = json.loads(json.dumps(hugging_face_config(model, dtype="bf16", positions=8)))
    read, _ = import_config(config, name=name)
    assert config["model_type"] == family
    assert [replace(block, name="") for block in read.blocks] == [replace(block, name="") for block in model.blocks]
    for field in ("hidden_size", "context_limit", "embeddings", "head", "dtype", "vector_parameters"):
        assert getattr(read, field) == getattr(model, field), field


def test_a_config_is_good_for_the_tokens_asked():
    model = api.load_model("smollm2-135m")
    assert hugging_face_config(model, dtype="fp32", positions=9000)["max_position_embeddings"] == 9000
    assert hugging_face_config(model, dtype="fp32", positions=9)["torch_dtype"] == "float32"


REFUSED = {
    "gemma-3-1b": "layers of several kinds",
    "mixtral-8x7b": "a mixture MLP",
    "deepseek-v2-lite": "layers of several kinds",
    "gpt2": "tables beside the tokens'",
    "t5-small": "an encoder",
    "mistral-7b-v0.1": "sliding attention",
    "glm-4-32b": "norms or biases unlike",
}


@pytest.mark.parametrize(("name", "why"), REFUSED.items())
def test_what_no_family_has_is_refused_by_name(name, why):
    with pytest.raises(UnsupportedError, match=why) as error:
        family_of(api.load_model(name))
    assert name in str(error.value)


def test_parts_of_its_own_are_refused():
    for name in ("GQA with a gate", "GQA with wider values", "GQA with sinks"):
        with pytest.raises(UnsupportedError):
            family_of(MODELS[name])


def test_the_memory_is_half_a_block_more_than_whole_blocks():
    deployment = deploy(api.load_model("smollm2-135m"))
    found = vllm.predicted(deployment, batch=4, tokens=600, device="cpu")
    # 30 layers x 3 heads x 64 x keys and values x 2 B x 128 tokens; 600 tokens are 5 blocks
    block = 30 * 3 * 64 * 2 * 2 * 128
    assert found.layout.bytes_per_block == block
    assert found.kv_memory_bytes == 21 * block + block // 2
    assert (found.capacity.num_blocks, found.kv_bytes) == (21, 21 * block)
    assert vllm.predicted(deployment, batch=4, tokens=600, device="cuda").layout.block_size == 16


LOG = (
    "Initializing a V1 LLM engine (v0.32.0) with config: model='/x', dtype=torch.bfloat16, max_seq_len=600\n"
    "INFO [kv_cache_utils.py:2327] CPU KV cache size: {} tokens, "
    "Maximum concurrency for 600 tokens per request: {}x\n"
)
FOUND = {"version": "0.32.0", "num_blocks": 21, "block_size": 128, "kv_bytes": 0, "weight_bytes": 0, "steps": []}


def checks(tokens="2,520", requests="4.20", **found):
    prediction = vllm.predicted(deploy(api.load_model("smollm2-135m")), batch=4, tokens=600, device="cpu")
    log = LOG.format(tokens, requests)
    return [check.passed for check in vllm.printed_checks("x", prediction, FOUND | found, log)]


def test_printed_numbers_are_held_against_the_exact_ones():
    assert checks() == [True] * 4
    assert checks(tokens="2,521") == [True, True, False, True]
    assert checks(requests="4.21") == [True, True, True, False]
    assert checks(num_blocks=22) == [True, False, True, True]
    assert checks(block_size=16) == [False, True, True, True]


def test_a_log_that_says_nothing_fails():
    prediction = vllm.predicted(deploy(api.load_model("smollm2-135m")), batch=4, tokens=600, device="cpu")
    found = vllm.printed_checks("x", prediction, FOUND, "nothing")
    assert [check.detail.endswith("none found") for check in found] == [False, False, True, True]
    assert not found[-1].passed


class FakeEngine:
    """Prompts take two steps each, one after another; then every sequence gets one token a step."""

    def __init__(self):
        self.left, self.tokens = {}, {}

    def add_request(self, name, prompt, sampling):
        self.left[name], self.tokens[name] = len(prompt["prompt_token_ids"]), 0
        self.most = sampling.max_tokens

    def has_unfinished_requests(self):
        return any(count < self.most for count in self.tokens.values())

    def step(self):
        waiting = [name for name, left in self.left.items() if left]
        if waiting:
            self.left[waiting[0]] -= min(5, self.left[waiting[0]])
        moved = [name for name in self.tokens if not self.left[name] and self.tokens[name] < self.most]
        for name in moved:
            self.tokens[name] += 1
        return [
            SimpleNamespace(request_id=f"{name}_7", outputs=[SimpleNamespace(token_ids=[0] * self.tokens[name])])
            for name in moved
        ]


@pytest.mark.parametrize(("batch", "steps"), [(1, 5), (3, 1)])
def test_only_passes_in_which_every_sequence_decodes_are_times(batch, steps):
    samples = decoded(FakeEngine(), SimpleNamespace(max_tokens=6), batch=batch, prompt=9, vocabulary=11)
    assert len(samples) == steps
    assert all(seconds >= 0 for seconds in samples)


def questions():
    return Questions(
        deployments=(deploy(api.load_model("smollm2-135m")),), batches=(1, 4), contexts=(16,), rounds=3, hardware=FAST
    )


def child(code, *, words="", steps=(), interrupted=False):
    """Return what stands in for the engine's process: it writes what the engine would."""

    def write(module, folder):
        assert module == "vllm_child"
        asked = json.loads((folder / "asked.json").read_text())
        block = 30 * 3 * 64 * 2 * 2 * 128
        assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 30
        assert asked["cells"] == [[1, 16], [4, 16]]
        assert asked["max_model_len"] == 19
        (folder / "log.txt").write_text(words or LOG.replace("600", "19").format("95", "5.00"))
        found = FOUND | {"num_blocks": 5, "kv_bytes": 5 * block, "weight_bytes": 269030016, "steps": list(steps)}
        if steps:
            (folder / "found.json").write_text(json.dumps(found))
        return code, interrupted

    return write


STEPS = [{"batch": 1, "context": 16, "samples_s": [0.3, 0.2]}, {"batch": 4, "context": 16, "samples_s": [0.5]}]


def test_an_engines_steps_and_bytes_become_a_report(monkeypatch):
    monkeypatch.setattr(run, "_child", child(0, steps=STEPS))
    report = run.engine_report("vllm", DEVICE, questions(), progress=lambda _: None)
    assert [check.name for check in report.checks if not check.passed] == []
    assert (report.engine, report.versions["vllm"], report.passed) == ("vllm", "0.32.0", True)
    assert [row.least_s for row in report.rows] == [0.2, 0.5]
    assert report.rows[0].predicted_kv_bytes == 5 * 30 * 3 * 64 * 2 * 2 * 128
    assert report.crossings[0].largest_batch == 4


def test_an_interrupted_engine_keeps_what_it_measured(monkeypatch):
    monkeypatch.setattr(run, "_child", child(-15, steps=STEPS[:1], interrupted=True))
    report = run.engine_report("vllm", DEVICE, questions(), progress=lambda _: None)
    assert (report.interrupted, len(report.rows)) == (True, 1)
    monkeypatch.setattr(run, "_child", child(-15, interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        run.engine_report("vllm", DEVICE, questions(), progress=lambda _: None)


def test_an_engine_that_stops_says_why(monkeypatch):
    monkeypatch.setattr(run, "_child", child(1, words="INFO x\nValueError: no room\nbye\n"))
    with pytest.raises(InputError, match="exit code 1: ValueError: no room"):
        run.engine_report("vllm", DEVICE, questions(), progress=lambda _: None)


def test_an_engine_that_is_not_there_is_told_with_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(engine_start, "find_spec", lambda _: None)
    with pytest.raises(InputError, match="not installed") as error:
        engine_start.require_engine("vLLM")
    assert error.value.hint.startswith("pip install vllm")
    for arguments, words in {
        ("--engine", "vllm"): "which is not installed",
        ("--engine", "sglang"): "crosscheck starts no engine 'sglang'",
    }.items():
        with pytest.raises(SystemExit) as done:
            main(["crosscheck", "--device", "cpu", "--model", "smollm2-135m", *arguments])
        assert done.value.code == 2
        assert words in capsys.readouterr().err


def test_a_draft_is_the_loops_alone(monkeypatch):
    monkeypatch.setattr(engine_start, "find_spec", lambda _: sys)
    with pytest.raises(InputError, match="--draft is measured with the loop"):
        api.crosscheck(["smollm2-135m"], engine="vllm", device="cpu", draft="smollm2-135m")


def llama_cpp_start(name="smollm2-135m", weights="bf16"):
    deployment = deploy(api.load_model(name), weights=weights, kv=weights, activations=weights)
    return llama_cpp.start(deployment, replace(questions(), deployments=(deployment,)), DEVICE, tokens=19)


@pytest.mark.parametrize("name", MADE)
def test_a_gguf_files_tensors_are_the_models_weights(name):
    model = api.load_model(name)
    shapes = dict(tensors(hugging_face_config(model, dtype="bf16", positions=8)))
    held = sum((2 if len(shape) > 1 else 4) * math.prod(shape) for shape in shapes.values())
    assert held == weight_bytes(model, llama_cpp_start(name).deployment.formats)


CACHE = (
    "llama_model_loader: loaded meta data with 21 key-value pairs from model.gguf\n"
    "llama_kv_cache: size =   {} MiB (   {} cells,  30 layers,  4/4 seqs), "
    "K (bf16):   {} MiB, V (bf16):   11.25 MiB\n"
)  # fmt: skip


def test_what_llama_cpp_prints_of_its_cache_is_held_against_the_exact():
    start = llama_cpp_start()
    # 4 streams of 256 cells, 30 layers x 3 heads x 64 x keys and values x 2 B
    assert start.kv_bytes == 4 * 256 * 30 * 3 * 64 * 2 * 2
    assert [check.passed for check in start.checks({}, CACHE.format("22.50", 256, "11.25"))] == [True] * 4
    assert [check.passed for check in start.checks({}, CACHE.format("22.51", 256, "11.26"))] == [
        True,
        True,
        False,
        True,
    ]
    assert [check.passed for check in start.checks({}, CACHE.format("22.50", 512, "11.25"))] == [
        False,
        True,
        True,
        True,
    ]
    assert [check.passed for check in start.checks({}, "nothing")] == [False] * 4


def test_llama_cpps_steps_become_a_report(monkeypatch):
    def child(module, folder):
        assert module == "llama_cpp_child"
        asked = json.loads((folder / "asked.json").read_text())
        assert (asked["n_ctx"], asked["sequences"], asked["format"]) == (4 * 19, 4, "bf16")
        (folder / "log.txt").write_text(CACHE.format("22.50", 256, "11.25"))
        held = weight_bytes(api.load_model("smollm2-135m"), llama_cpp_start().deployment.formats)
        found = {"version": "x", "weight_bytes": held, "steps": STEPS}
        (folder / "found.json").write_text(json.dumps(found))
        return 0, False

    monkeypatch.setattr(run, "_child", child)
    report = run.engine_report("llama.cpp", DEVICE, questions(), progress=lambda _: None)
    assert [check.name for check in report.checks if not check.passed] == []
    assert (report.engine, report.passed, report.rows[1].least_s) == ("llama.cpp", True, 0.5)


def test_models_that_were_done_are_kept_when_the_next_is_interrupted(monkeypatch):
    started = []

    def child(_, folder):
        started.append(folder)
        (folder / "log.txt").write_text(CACHE.format("22.50", 256, "11.25"))
        if len(started) == 2:
            return -15, True
        found = {"version": "x", "weight_bytes": 1, "steps": STEPS}
        (folder / "found.json").write_text(json.dumps(found))
        return 0, False

    monkeypatch.setattr(run, "_child", child)
    asked = replace(questions(), deployments=2 * questions().deployments)
    report = run.engine_report("llama.cpp", DEVICE, asked, progress=lambda _: None)
    assert report.interrupted
    assert len(report.rows) == len(STEPS)


def test_an_engine_runs_between_two_benches(monkeypatch):
    order = []

    def probes(*_, **__):
        order.append("bench")
        if len(order) == 3:
            raise KeyboardInterrupt  # before its first matrix
        return found, False

    def child(_, folder):
        order.append("engine")
        (folder / "log.txt").write_text(CACHE.format("22.50", 256, "11.25"))
        (folder / "found.json").write_text(json.dumps({"version": "x", "weight_bytes": 1, "steps": STEPS}))
        return 0, False

    moved = OpCost(name="x", part="other", unit="fp32", io_bytes=1e9, flop=1e9)
    timing = Timing(samples_s=(1.0, 1.0))
    found = [
        Probe(kind=kind, name="x", format="bf16", op=moved, timing=timing, working_set_bytes=2**40)
        for kind in ("read", "matrix", "attention")
    ]
    monkeypatch.setattr(run, "measured_probes", probes)
    monkeypatch.setattr(run, "_child", child)
    report = run.engine_report("llama.cpp", DEVICE, replace(questions(), hardware=None), progress=lambda _: None)
    assert order == ["bench", "engine", "bench"]
    assert report.interrupted
    assert report.ceilings.memory_bandwidth_bytes_per_s == 1e9
    assert len(report.rows) == len(STEPS)


@pytest.mark.skipif(
    find_spec("llama_cpp") is None, reason="llama.cpp is not installed; docs/measure.md says how it was run"
)
def test_llama_cpp_itself():
    report = api.crosscheck(["smollm2-135m"], engine="llama.cpp", layers=2, contexts=(64,), rounds=4, gpu=FAST)
    assert [check.name for check in report.checks if not check.passed] == []


@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed; docs/measure.md says how it was run")
def test_vllm_itself():
    report = api.crosscheck(["smollm2-135m"], engine="vllm", layers=2, contexts=(64,), rounds=4, gpu=FAST)
    assert [check.name for check in report.checks if not check.passed] == []
