"""What is imported when: the calculators load no library, and a size neither validates nor draws.

The layers themselves are import-linter's contracts (pyproject.toml), which CI runs.
"""

import subprocess
import sys

import pytest

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
    main(["size", "--model", "llama2-70b", "--json"])
except SystemExit as done:
    assert done.code == 0
"""


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
        pytest.param(COMMAND_LINE, ("pydantic", "rich", "numpy", "plotille", "torch"), id="kvcalc size --json"),
    ],
)
def test_nothing_is_imported_before_it_is_needed(code, unwanted):
    assert not _imported_after(code) & set(unwanted)


def test_a_missing_library_would_be_noticed():
    assert {"yaml", "pydantic"} <= _imported_after("import yaml, pydantic")
