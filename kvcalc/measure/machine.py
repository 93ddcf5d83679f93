"""Micro-benchmarks: memory, matrices, attention over a cache, calls and layers, each costed by the same formulas."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from kvcalc.core.cost_types import OpCost
from kvcalc.core.errors import InputError
from kvcalc.core.formats import FORMATS
from kvcalc.core.model import Block, Full, Gated, Head, ModelProfile, Table
from kvcalc.core.units import GIB, MIB, bytes_text, ceil_div
from kvcalc.core.workload import decode_step
from kvcalc.cost.attention import mixer_work
from kvcalc.cost.linear import matrix_cost
from kvcalc.cost.parameters import Matrix
from kvcalc.measure.clock import Timing, in_turn, recorded
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.kernels import attend
from kvcalc.measure.library import WIDEST, check_format, torch_dtype
from kvcalc.measure.probes import Case, Plan, Probe
from kvcalc.measure.products import fastest_products
from kvcalc.measure.scale import all_in, in_groups
from kvcalc.measure.weights import WeightMaker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kvcalc.cost.attention import AttentionWork
    from kvcalc.measure.library import Device
    from kvcalc.measure.products import Products

__all__ = ["fp8_probes", "probe_all", "reading"]

_STREAM_BYTES = {"cpu": 512 * MIB, "cuda": 4 * GIB}
_ROTATED_BYTES = {"cpu": 128 * MIB, "cuda": 4 * GIB}
# No working set takes more than this share of what is free on a small card.
_WORKING_SHARE = 1 / 8
# Sets of caches that are read in turn take no more than this share together.
_CACHES_SHARE = 1 / 2
_SMALL_SETS = tuple(MIB * 4**power for power in range(5))
_SQUARE = {"cpu": 2048, "cuda": 16384}
_MIN_SQUARE, _LONG_S = 256, 2.0

# Shapes of the matrices and heads of models from 60 million parameters to some billions.
_MATRICES = {
    "cpu": ((512, 2048), (2048, 8192), (8192, 2048), (2048, 32768)),
    "cuda": ((4096, 6144), (4096, 28672), (14336, 4096), (8192, 57344)),
}
_BATCHES = {"cpu": (1, 2, 4, 8, 16, 32), "cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)}
_HEADS = {"cpu": ((8, 8, 64), (32, 8, 64), (32, 8, 128)), "cuda": ((32, 8, 128), (64, 8, 128))}
_CACHES = {
    "cpu": ((1, 256), (1, 2048), (4, 512), (16, 256), (16, 1024)),
    "cuda": ((1, 1024), (1, 16384), (8, 4096), (64, 2048), (64, 8192)),
}
_TINY_LAYERS = (4, 20)
_TINY_HEADS = Full(heads=4, kv_heads=2, head_dim=16)


def probe_all(device: Device, plan: Plan, *, progress: Callable[[str], None]) -> Iterator[Probe]:
    """Yield micro-benchmarks as they are done, those of a group timed in turn.

    Args:
        device: what is measured.
        plan: how thoroughly.
        progress: told what is measured next.

    Raises:
        InputError: too little free memory.
    """
    streamed = _large(_STREAM_BYTES, device)
    needed = 3 * streamed
    free = device.free_bytes()
    if free < needed:
        raise InputError(
            f"a bench needs {bytes_text(needed)} of memory on {device.kind}, where {bytes_text(free)} are free",
            hint="end other programs, or give --gpu and --calibration to crosscheck",
        )
    for name in plan.formats:
        check_format(name, device)
    with torch.inference_mode():
        progress("memory bandwidth")
        yield from _timed(_streams(device, streamed), device, plan.stream_rounds)
        if plan.small_sets:
            for size in _SMALL_SETS:
                yield from _timed(_streams(device, size), device, plan.rounds)
        if WIDEST not in plan.formats:
            progress(f"the peak of {WIDEST}")
            yield from _timed([_square(device, WIDEST)], device, plan.stream_rounds)
        for name in plan.formats:
            progress(f"matrices in {name}")
            yield from _timed([_square(device, name)], device, plan.stream_rounds)
            for inputs, outputs in _MATRICES[device.kind]:
                yield from _timed(_matrices(device, name, inputs, outputs), device, plan.rounds)
            progress(f"attention in {name}")
            for heads in _HEADS[device.kind]:
                for group in _cache_groups(device, name, heads):
                    yield from _timed(_attentions(device, name, heads, group), device, plan.rounds)
            progress(f"calls and layers in {name}")
            yield from _timed([_call(device, name), _attention_call(device, name)], device, plan.stream_rounds)
            yield from _layers(device, name, plan.stream_rounds)


def _large(sizes: Mapping[str, int], device: Device) -> int:
    """The size of a working set on a device: what a small card has room for, but more than its caches hold.

    >>> from kvcalc.measure.library import Device
    >>> names = {"kind": "cpu", "title": "x", "architecture": "x", "memory_bytes": 1, "threads": 1, "versions": {}}
    >>> [_large({"cpu": 512}, Device(last_level_cache_bytes=size, **names)) for size in (32, 256)]
    [512, 1024]
    """
    room = int(_WORKING_SHARE * device.free_bytes())
    return max(min(sizes[device.kind], room), device.resident_bytes)


def _products(name: str, device: Device) -> Products:
    """The products that models are given whose weights no cache holds."""
    return fastest_products(name, device, read_bytes=_large(_ROTATED_BYTES, device))


def _timed(cases: Sequence[Case], device: Device, rounds: int) -> Iterator[Probe]:
    calls = [recorded(partial(_run, case.call), device)[0] for case in cases]
    for case, timing in zip(cases, in_turn(calls, rounds=rounds, device=device), strict=True):
        yield case.probe(Timing(samples_s=tuple(sample / case.times for sample in timing.samples_s)))
    device.release()


def _run(call: Callable[[], object]) -> None:
    """Make a call and keep nothing of what it gives back."""
    call()


def reading(device: Device) -> Case:
    """Return one reading stream, to be timed in turn with something else: the ceiling while that ran."""
    return _streams(device, _large(_STREAM_BYTES, device))[0]


def _streams(device: Device, size: int) -> list[Case]:
    """Reading, writing and copying through a working set; small ones several times in a call."""
    make = WeightMaker(torch.float32, device)
    numbers = make.tensor(size // FORMATS["fp32"].block_bytes // 2048, 2048, scale=1.0)
    square, numbers = numbers, numbers.view(-1)
    other = torch.empty_like(numbers)
    vector = make.tensor(2048, scale=1.0)
    times = max(1, _SMALL_SETS[-1] // 4 // size)

    def case(kind: str, name: str, work: Callable[[], object], moved: int, working_set_bytes: int) -> Case:
        def made(timing: Timing) -> Probe:
            op = OpCost(name=name, part="other", unit="fp32", io_bytes=moved)
            return Probe(kind=kind, name=name, format="fp32", op=op, timing=timing, working_set_bytes=working_set_bytes)

        return Case(probe=made, call=lambda: [work() for _ in range(times)], times=times)

    return [
        case("read", "sum of a vector", numbers.sum, size, size),
        case("read", "matrix times a vector", lambda: torch.mv(square, vector), size, size),
        case("write", "fill", lambda: other.fill_(1.0), size, size),
        case("copy", "copy", lambda: other.copy_(numbers), 2 * size, 2 * size),
    ]


def _matrix_op(name: str, inputs: int, outputs: int, batch: int) -> OpCost:
    matrix = Matrix(name="matrix", part="mlp", inputs=inputs, outputs=outputs, elements=inputs * outputs)
    return matrix_cost(matrix, name="matrix", tokens=batch, layers=1, formats=all_in(name), tensor=1)


def _square(device: Device, name: str) -> Case:
    side = _side(device, torch_dtype(name))
    make = WeightMaker(torch_dtype(name), device)
    one, other = (make.tensor(side, side, scale=1.0) for _ in range(2))
    op = _matrix_op(name, side, side, side)

    def made(timing: Timing) -> Probe:
        words = f"{side} x {side}"
        return Probe(kind="matrix", name=words, format=name, op=op, timing=timing, batch=side,
                     working_set_bytes=one.nbytes)  # fmt: skip

    return Case(probe=made, call=lambda: torch.mm(one, other))


def _side(device: Device, dtype: Any) -> int:
    """Return the side of a square to multiply: smaller on a small card, or where a CPU multiplies one by one."""
    side = _SQUARE[device.kind]
    while side**2 * FORMATS[WIDEST].block_bytes > _WORKING_SHARE * device.free_bytes() and side > _MIN_SQUARE:
        side //= 2
    while device.kind == "cpu" and side > _MIN_SQUARE:
        piece = torch.ones(side // 4, side // 4, dtype=dtype)
        timing = in_turn([lambda piece=piece: torch.mm(piece, piece)], rounds=2, device=device)[0]  # type: ignore[misc]
        if timing.least_s * 4**3 < _LONG_S:
            break
        side //= 2
    return side


def _matrices(device: Device, name: str, inputs: int, outputs: int) -> list[Case]:
    """Matrices of one shape, as many as it takes for none to stay in a cache, with several batches."""
    one = int(_matrix_op(name, inputs, outputs, 1).weight_bytes)
    count = ceil_div(_large(_ROTATED_BYTES, device), one)
    make = WeightMaker(torch_dtype(name), device, products=_products(name, device))
    weights = [make.linear(inputs, outputs) for _ in range(count)]

    def case(batch: int) -> Case:
        vectors = make.tensor(batch, inputs, scale=1.0)
        op = _matrix_op(name, inputs, outputs, batch)

        def made(timing: Timing) -> Probe:
            words = f"{inputs} x {outputs}"
            return Probe(kind="matrix", name=words, format=name, op=op, timing=timing, batch=batch,
                         working_set_bytes=count * one)  # fmt: skip

        return Case(probe=made, call=lambda: [weight(vectors) for weight in weights], times=count)

    return [case(batch) for batch in _BATCHES[device.kind]]


def fp8_probes(device: Device, rounds: int, *, square: int | None = None) -> Iterator[Probe]:
    """Yield multiplications of fp8 (e4m3) with a scale for each row, results in bf16: a square, and the models' shapes.

    Args:
        device: what is measured; on a GPU it takes sm_89 or newer.
        rounds: repetitions.
        square: the side of the square, and nothing else is measured; a CPU multiplies fp8 slowly.
    """
    name, dtype = "fp8", torch.float8_e4m3fn
    make = WeightMaker(dtype, device)
    side = square or _side(device, torch.bfloat16)
    shapes = () if square else tuple((*shape, _BATCHES[device.kind]) for shape in _MATRICES[device.kind])
    for inputs, outputs, batches in ((side, side, (side,)), *shapes):
        one = int(_matrix_op(name, inputs, outputs, 1).weight_bytes)
        count = ceil_div(_large(_ROTATED_BYTES, device), one) if inputs != outputs else 1
        weights = [make.tensor(outputs, inputs, scale=1.0).t() for _ in range(count)]
        rows = torch.ones(1, outputs, device=device.kind)

        def case(batch: int, weights: Sequence[Any] = weights, one: int = one, rows: Any = rows) -> Case:
            inputs, outputs = weights[0].shape
            vectors = make.tensor(batch, inputs, scale=1.0)
            scales = torch.ones(batch, 1, device=device.kind)

            def made(timing: Timing) -> Probe:
                op = _matrix_op(name, inputs, outputs, batch)
                return Probe(kind="matrix", name=f"{inputs} x {outputs}", format=name, op=op, timing=timing,
                             batch=batch, working_set_bytes=len(weights) * one)  # fmt: skip

            def multiply() -> list[Any]:
                return [
                    torch._scaled_mm(vectors, weight, scale_a=scales, scale_b=rows, out_dtype=torch.bfloat16)  # noqa: SLF001
                    for weight in weights
                ]

            return Case(probe=made, call=multiply, times=len(weights))

        yield from _timed([case(batch) for batch in batches], device, rounds)


def _attention_work(name: str, shape: tuple[int, int, int], batch: int, context: int) -> AttentionWork:
    heads, kv_heads, width = shape
    mixer = Full(heads=heads, kv_heads=kv_heads, head_dim=width)
    return mixer_work(mixer, decode_step(batch=batch, context=context), all_in(name))


def _cache_groups(device: Device, name: str, shape: tuple[int, int, int]) -> Iterator[list[tuple[int, int]]]:
    """Yield caches to read, in groups whose sets find room together; without what a small card cannot hold."""
    large, room = _large(_ROTATED_BYTES, device), int(_CACHES_SHARE * device.free_bytes())

    def held(cell: tuple[int, int]) -> int:
        one = int(_attention_work(name, shape, *cell).read_bytes)
        return one * ceil_div(large, one)

    yield from in_groups([cell for cell in _CACHES[device.kind] if held(cell) <= room], held, room)


def _attentions(device: Device, name: str, shape: tuple[int, int, int], cells: Sequence[tuple[int, int]]) -> list[Case]:
    heads, kv_heads, width = shape
    make = WeightMaker(torch_dtype(name), device)
    large = _large(_ROTATED_BYTES, device)

    def case(batch: int, context: int) -> Case:
        work = _attention_work(name, shape, batch, context)
        op = OpCost(name="attention", part="cache", unit=name, flop=work.flop, kv_read_bytes=work.read_bytes)
        count = ceil_div(large, int(work.read_bytes))
        caches = make.tensor(2, count, batch, kv_heads, context, width, scale=1.0)
        queries = make.tensor(batch, heads, 1, width, scale=1.0)
        pairs = list(zip(*caches, strict=True))

        def made(timing: Timing) -> Probe:
            words = f"{heads} heads on {kv_heads} of {width}"
            return Probe(kind="attention", name=words, format=name, op=op, timing=timing, batch=batch, context=context,
                         working_set_bytes=caches.nbytes, allocated_kv_bytes=caches.nbytes // count)  # fmt: skip

        scale = 1 / math.sqrt(width)
        return Case(
            probe=made, call=lambda: [attend(queries, *pair, scale=scale) for pair in pairs], times=count, keep=[caches]
        )

    return [case(batch, context) for batch, context in cells]


def _call(device: Device, name: str) -> Case:
    """A multiplication too small to take time of its own."""
    make = WeightMaker(torch_dtype(name), device, products=_products(name, device))
    weight, vector, times = make.linear(16, 16), make.tensor(1, 16, scale=1.0), 100

    def made(timing: Timing) -> Probe:
        return Probe(kind="call", name="16 x 16", format=name, op=_matrix_op(name, 16, 16, 1), timing=timing, batch=1)

    return Case(probe=made, call=lambda: [weight(vector) for _ in range(times)], times=times)


def _attention_call(device: Device, name: str) -> Case:
    """Attention over a cache too small to take time of its own, as in the tiny layers."""
    make = WeightMaker(torch_dtype(name), device)
    mixer, length, times = _TINY_HEADS, 16, 50
    keys, values = make.tensor(2, 1, mixer.kv_heads, length, mixer.head_dim, scale=1.0)
    queries = make.tensor(1, mixer.heads, 1, mixer.head_dim, scale=1.0)

    def made(timing: Timing) -> Probe:
        work = mixer_work(mixer, decode_step(batch=1, context=length), all_in(name))
        op = OpCost(name="attention", part="cache", unit=name, flop=work.flop, kv_read_bytes=work.read_bytes)
        return Probe(kind="call", name="attention", format=name, op=op, timing=timing, batch=1, context=length)

    return Case(probe=made, call=lambda: [attend(queries, keys, values, scale=1.0) for _ in range(times)], times=times)


def _layers(device: Device, name: str, rounds: int) -> Iterator[Probe]:
    """Measure the time of a layer and a step that has next to nothing to move: from two models of tiny layers."""
    calls = []
    for layers in _TINY_LAYERS:
        decoder = Decoder(_tiny(layers), weights=name, device=device, products=_products(name, device))
        cache = decoder.new_cache(batch=1, capacity=16)
        cache.fill(decoder.make)
        tokens = torch.zeros(1, 1, dtype=torch.long, device=device.kind)
        calls.append(recorded(partial(decoder.forward, tokens, cache), device)[0])
    few, many = in_turn(calls, rounds=rounds, device=device, warm_up=3)
    fewer, more = _TINY_LAYERS
    layer = [
        max(0.0, b - a) / (more - fewer) for a, b in zip(sorted(few.samples_s), sorted(many.samples_s), strict=True)
    ]
    step = [max(0.0, a - fewer * each) for a, each in zip(sorted(few.samples_s), layer, strict=True)]
    for kind, samples in (("layer", layer), ("step", step)):
        op = OpCost(name=kind, part="other", unit=name)
        yield Probe(
            kind=kind, name="next to nothing", format=name, op=op, timing=Timing(samples_s=tuple(samples)), batch=1
        )


def _tiny(layers: int) -> ModelProfile:
    hidden = 64
    layer = Block(mixers=(_TINY_HEADS,), mlp=Gated(width=64), vector_parameters=2 * hidden)
    return ModelProfile(
        name="tiny",
        architecture="tiny",
        hidden_size=hidden,
        context_limit=None,
        blocks=(layer,) * layers,
        embeddings=(Table(name="token", rows=64, width=hidden),),
        head=Head(rows=64),
        vector_parameters=hidden,
    )
