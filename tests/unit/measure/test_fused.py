"""The fused kernels are the plain operations: under Triton's interpreter; and they compile for a GPU without one."""

import os
import subprocess
import sys

import pytest
import torch

from kvcalc.core.errors import InputError
from kvcalc.measure.attention import HeadsCache, Pass, Reading
from kvcalc.measure.decoder import Decoder, decode_n_tokens, prefill
from kvcalc.measure.kernels import Plain, Sdpa, kernels_of
from kvcalc.measure.library import find_device
from kvcalc.measure.loop import on_device

from .models import MODELS

if os.environ.get("KVCALC_TORCH"):
    import triton
else:
    triton = pytest.importorskip("triton", reason="Triton is not installed: pip install triton")

DEVICE = find_device("cpu")
# Units in the last place of the largest number: fewer roundings on the way are other roundings.
CLOSE = {torch.float32: 1e-5, torch.float16: 2.0**-9, torch.bfloat16: 2.0**-6}


def random(*shape, dtype, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def close(one, other):
    apart = (one.float() - other.float()).abs().max() / other.float().abs().max()
    assert apart <= CLOSE[other.dtype]


every_dtype = pytest.mark.parametrize("dtype", CLOSE)


@every_dtype
@pytest.mark.parametrize("width", [64, 96])
def test_add_norm(dtype, width):
    hidden, update, weight = (
        random(*shape, dtype=dtype, seed=at) for at, shape in enumerate([(2, 3, width)] * 2 + [(width,)])
    )
    wanted = Plain().add_norm(hidden, update, weight, None)
    for one, other in zip(
        kernels_of("fused", DEVICE).add_norm(hidden.clone(), update, weight, None), wanted, strict=True
    ):
        close(one, other)


@every_dtype
@pytest.mark.parametrize("width", [48, 1100])
def test_gated(dtype, width):
    projected = random(2, 1, 2 * width, dtype=dtype)
    close(kernels_of("fused", DEVICE).gated(projected), Plain().gated(projected))


# the interpreter multiplies no matrices of bf16: it takes their bits for whole numbers
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "value_width"), [(8, 2, 16, 16), (4, 4, 48, 24), (9, 3, 64, 64)]
)
@pytest.mark.parametrize(
    ("position", "tokens", "places"), [(0, 1, 900), (600, 1, 900), (899, 1, 900), (70, 5, 128), (40, 1, 8)]
)
def test_store_and_read(dtype, heads, kv_heads, width, value_width, position, tokens, places):
    """At the beginning, in the middle and at the end of a cache, for several tokens, and in a window passed over."""
    queries, keys, values = (
        random(2, tokens, count * wide, dtype=dtype, seed=at)
        for at, (count, wide) in enumerate([(heads, width), (kv_heads, width), (kv_heads, value_width)])
    )
    reading = Reading(scale=0.2, window=places if position >= places else None, chunk=None, sinks=None, device=DEVICE)
    results = []
    for kernels in (Plain(), kernels_of("fused", DEVICE)):
        cache = HeadsCache(
            keys=random(2, kv_heads, places, width, dtype=dtype, seed=8),
            values=random(2, kv_heads, places, value_width, dtype=dtype, seed=9),
        )
        run = Pass(start=-1, tokens=tokens, position=torch.tensor([position]), device=DEVICE, kernels=kernels)
        turned = kernels.store(queries, keys, values, cache, run)
        results.append((turned, cache.keys, cache.values, kernels.read(turned, cache, run, reading)))
    for one, other in zip(results[1], results[0], strict=True):
        close(one, other)


KINDS = (
    "GQA",
    "GQA with head norms",
    "GQA with sinks",
    "sliding window",
    "chunks",
    "MLA",
    "experts",
    "learned positions",
)


@pytest.mark.parametrize("kind", KINDS)
def test_every_variant_decodes_the_same_tokens(kind):
    """Five tokens after nine pass a window of seven and begin a chunk of six; each takes the interpreter half a second."""
    decoder = Decoder(MODELS[kind], weights="fp32", device=DEVICE)
    prompt = torch.randint(0, 211, (2, 9), generator=torch.Generator().manual_seed(5))
    chosen = []
    for kernels in (Plain(), Sdpa(), kernels_of("fused", DEVICE)):
        decoder.kernels = kernels
        cache = decoder.new_cache(batch=2, capacity=18)
        first = prefill(decoder, prompt, cache)[:, -1].argmax(-1)
        if kernels.name == "fused":
            on_device(cache, "cpu")
        chosen.append(decode_n_tokens(decoder, first, cache, count=5))
        assert len(chosen[0].unique()) > 2
    assert chosen[0].equal(chosen[1])
    assert chosen[0].equal(chosen[2])


def test_a_variant_that_there_is_not_is_refused(monkeypatch):
    with pytest.raises(InputError, match="'fast' is no variant"):
        kernels_of("fast", DEVICE)
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(InputError, match="need a GPU"):
        kernels_of("fused", DEVICE)
    monkeypatch.setattr("kvcalc.measure.kernels.find_spec", lambda _: None)
    with pytest.raises(InputError, match="Triton, which is not installed"):
        kernels_of("fused", DEVICE)


COMPILE = """
import sys
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from kvcalc.measure import fused
number, text = {"ENTRIES": 64, "ROWS": 16, "WIDTH": 128, "VALUES": 128, "HALF": 64, "BLOCK": 4096, "PARTS": 64}, {"EXACT": "ieee"}
for dtype in ("bf16", "fp32"):
    for kernel in (fused._add_norm_kernel, fused._gated_kernel, fused._store_kernel, fused._attend_kernel, fused._join_kernel):
        constants = {name: (number | text | {"ROTATES": True})[name] for name in kernel.arg_names if name.isupper()}
        constants |= {name: 1 for name in kernel.arg_names if name in sys.argv[2:]}
        whole = {"width", "value_width", "tokens", "heads", "kv_heads", "group", "places", "parts", "query_row", "key_row", "value_row"}
        kinds = dict.fromkeys(("read", "tops", "sums"), "*fp32") | {"positions": "*i64", "scale": "fp32", "least_square": "fp32"}
        signature = {
            name: "constexpr" if name in constants else kinds.get(name, "i32" if name in whole else f"*{dtype}")
            for name in kernel.arg_names
        }
        target = GPUTarget("cuda", int(sys.argv[1]), 32)
        made = triton.compile(ASTSource(kernel, signature, constants), target=target)
        assert len(made.asm["cubin"]) > 1000
        print(kernel.__name__, dtype, made.metadata.shared, "mma" in made.asm["ptx"])
"""


@pytest.mark.parametrize("ones", [(), ("tokens", "parts", "group")], ids=["any", "one token"])
def test_the_kernels_compile_for_an_h200_without_one(ones, tmp_path):
    """For sm_90, with numbers that are one compiled in, as Triton does; what a program shares stays below the 227 KiB of a processor."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, "90", *ones], capture_output=True, text=True, check=False,
        env=environment | {"TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 10
    assert all(int(shared) < 227 * 1024 for _, _, shared, _ in lines)
    assert {dtype: tensor_cores for name, dtype, _, tensor_cores in lines if name == "_attend_kernel"} == {
        "bf16": "True", "fp32": "False",
    }  # fmt: skip
