"""What is imported when: the calculators load no library, and a size neither validates nor draws.

The layers themselves are import-linter's contracts (pyproject.toml), which CI runs.
"""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import kvcalc

HEAVY = ("pydantic", "rich", "typer", "click", "yaml", "numpy", "torch", "plotille", "gguf", "huggingface_hub")

OWN_MODEL = """
from kvcalc.core.model import Block, Full, ModelProfile
layer = Block(mixers=(Full(heads=1, kv_heads=1, head_dim=1),))
model = ModelProfile(name="x", architecture="x", hidden_size=1, context_limit=None, blocks=(layer,), embeddings=(), head=None)
assert kvcalc.size(kvcalc.deployment(model), context=5).kv.total_bytes == 20
"""
COMMAND_LINE = """
from kvcalc.cli.main import main
try:
    main([WORDS])
except SystemExit as done:
    assert done.code == 0
"""
SIZE, SIMULATE, SWEEP = (
    COMMAND_LINE.replace("WORDS", words)
    for words in ("'size', '--model', 'llama2-70b', '--json'", "'simulate', '--help'", "'sweep', '--help'")
)


def _imported_after(code):
    script = f"import sys, kvcalc\n{code}\nprint(*sys.modules, file=sys.stderr)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return set(run.stderr.split())


@pytest.mark.parametrize(
    ("code", "unwanted"),
    [
        pytest.param("", HEAVY, id="import kvcalc"),
        pytest.param("import kvcalc.api", HEAVY, id="import the facade"),
        pytest.param(OWN_MODEL, HEAVY, id="size of one's own model"),
        pytest.param(
            "kvcalc.size(kvcalc.deployment('llama2-70b'))",
            (*(name for name in HEAVY if name != "yaml"), "kvcalc.engines.pools", "kvcalc.engines.vllm"),
            id="size of a shipped model",
        ),
        pytest.param(SIZE, ("pydantic", "rich", "numpy", "plotille", "torch"), id="kvcalc size --json"),
        pytest.param(SIMULATE, ("numpy", "kvcalc.simulate.run", "kvcalc.engines.vllm"), id="kvcalc simulate --help"),
        pytest.param(SWEEP, ("numpy", "kvcalc.simulate.run", "kvcalc.engines.vllm"), id="kvcalc sweep --help"),
    ],
)
def test_nothing_is_imported_before_it_is_needed(code, unwanted):
    assert not _imported_after(code) & set(unwanted)


def test_a_missing_library_would_be_noticed():
    assert {"yaml", "pydantic"} <= _imported_after("import yaml, pydantic")


def _floors():
    """Each package's floor in the contract "Imports go down the layers", the lowest 0."""
    content = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    contract = next(each for each in content["tool"]["importlinter"]["contracts"] if each["type"] == "layers")
    layers = [[name.strip() for name in layer.split("|")] for layer in reversed(contract["layers"])]
    return {name: floor for floor, layer in enumerate(layers) for name in layer}


def _calls_upward(run):
    """The calls of functions on a higher floor while something runs, as names of modules and functions."""
    floors, calls = _floors(), set()

    def floor(frame):
        return floors.get(".".join(frame.f_globals.get("__name__", "").split(".")[:2]))

    def profile(frame, event, _):
        # a generator of a higher floor that a function below it reads is data, as a list would be
        if event == "call" and frame.f_back is not None and frame.f_code.co_name not in ("<module>", "<genexpr>"):
            above, below = floor(frame), floor(frame.f_back)
            if above is not None and below is not None and above > below:
                calls.add(
                    f"{frame.f_back.f_globals['__name__']} -> {frame.f_globals['__name__']}.{frame.f_code.co_name}"
                )

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return calls


def test_a_simulation_calls_nothing_above_it(tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n0,100,20\n1,2000000,20\n2,300,10\n", encoding="utf-8")
    served = kvcalc.deployment("llama3.1-8b", gpu="h200")
    options = {"gamma": 2, "acceptance": 0.8, "draft": "llama3.2-1b", "slo": "ttft_p95=10s", "step_times": "estimate"}
    serving = kvcalc.Serving(replicas=2, prefill_replicas=1, **options)
    load = kvcalc.Load(trace=trace, columns="time=TIMESTAMP,prompt=ContextTokens,output=GeneratedTokens", rate=1.0)
    saved = {"save_requests": tmp_path / "requests.csv", "save_trace": tmp_path / "steps.json"}

    def run():
        kvcalc.simulate_serving(served, load, serving=kvcalc.Serving(**options), within_s=60.0, **saved)
        capacity = kvcalc.find_capacity(served, load, serving=serving, tolerance=0.5)
        kvcalc.simulate_serving(served, load, serving=serving, capacity=capacity)

    assert not _calls_upward(run)


def test_a_call_upward_would_be_noticed():
    served = kvcalc.deployment("llama2-7b")
    below = {"__name__": "kvcalc.simulate.invented", "size": kvcalc.size, "served": served}
    exec("def ask(): size(served)", below)  # noqa: S102
    assert any(call.startswith("kvcalc.simulate.invented -> ") for call in _calls_upward(below["ask"]))
