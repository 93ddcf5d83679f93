"""A CUDA that is the CPU: enough of ``torch.cuda`` for every branch of the loop that is a GPU's.

Graphs are recorded as the operations that ran, and replayed into the same tensors. As on a GPU,

- what waits for the host, or copies from its pageable memory, is refused in a capture and under the debug mode "error";
- a capture computes nothing: what it moved on is put back, its results are no numbers before the first replay;
- the allocator knows what it was asked for, the most it handed out, and when it is full;
- a stream's first product takes a workspace that is kept, which no capture may be the first to do.

It shows control flow, stale inputs, host waits, bytes and the number of kernels. It cannot show kernels, streams or speed.
"""

import contextlib
import itertools
import time
import types
import weakref
from functools import cache

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

GIB = 2**30
# Of tensors and of torch: each reads a result on the host, or copies to or from its memory.
WAITS = {
    "item", "tolist", "cpu", "numpy", "nonzero", "unique", "__bool__", "__int__", "__float__", "__index__", "equal",
    "masked_select", "tensor", "as_tensor",
}  # fmt: skip
# A stream's workspaces, of cuBLAS and cuBLASLt, on sm_90.
WORKSPACE = 33 * 2**20
PRODUCTS = ("linear", "matmul", "einsum", "mm", "bmm", "addmm", "baddbmm", "addmv", "mv", "_grouped_mm", "_scaled_mm")
WAITING_OPS = ("_local_scalar_dense", "nonzero", "_unique2", "masked_select", "is_nonzero", "equal")


def tensors_in(thing):
    if isinstance(thing, torch.Tensor):
        return [thing]
    if isinstance(thing, (list, tuple)):
        return [tensor for part in thing for tensor in tensors_in(part)]
    return []


@cache
def traits(function):
    """The name of an operation, whether it waits for the host, and whether it multiplies."""
    name = str(function).removeprefix("aten.")
    return name, name.startswith(WAITING_OPS), name.partition(".")[0] in PRODUCTS


def storage(tensor):
    return tensor.untyped_storage().data_ptr()


class Allocator:
    """Bytes of the storages that are alive."""

    def __init__(self):
        self.requested = self.peak = 0
        self.known = set()

    def take(self, tensor):
        memory = tensor.untyped_storage()
        if memory.data_ptr() in self.known or not memory.nbytes():
            return
        self.known.add(memory.data_ptr())
        self.requested += memory.nbytes()
        self.peak = max(self.peak, self.requested)
        weakref.finalize(memory, self.give_back, memory.data_ptr(), memory.nbytes())

    def give_back(self, pointer, size):
        self.known.discard(pointer)
        self.requested -= size


class Operations(TorchDispatchMode):
    """Every operation: counted by the allocator, refused where it waits, noted down in a capture."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, function, _, args=(), kwargs=None):
        kwargs = kwargs or {}
        name, waits, multiplies = traits(function)
        if waits:
            self.gpu.wait(name)
        if multiplies:
            self.gpu.multiply()
        given = [] if self.gpu.capturing is None else tensors_in(args) + tensors_in(tuple(kwargs.values()))
        self.gpu.keep(given)
        result = function(*args, **kwargs)
        made = tensors_in(result)
        for tensor in made:
            self.gpu.allocator.take(tensor)
        if self.gpu.capturing is None:
            return result
        views = {storage(tensor) for tensor in made} <= {storage(tensor) for tensor in given}
        no_kernel = name.startswith(("empty", "new_empty")) or (views and not function._schema.is_mutable)  # noqa: SLF001
        self.gpu.note(name, lambda: function(*args, **kwargs), result, kernel=not no_kernel)
        return result


class Calls(TorchFunctionMode):
    """Calls of torch: a device of the name cuda becomes the CPU."""

    def __init__(self, gpu):
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, function, _, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        on_gpu = str(kwargs.get("device", "")).startswith("cuda")
        if on_gpu:
            kwargs["device"] = "cpu"
            self.gpu.check_room(args, name)
        moved = name == "to" and len(args) > 1 and str(args[1]).startswith("cuda")
        if moved:
            args = (args[0], "cpu", *args[2:])
        if moved or (name in WAITS and (on_gpu or name not in {"tensor", "as_tensor"})):
            self.gpu.wait(name)
        return function(*args, **kwargs)


class Graph:
    """What a capture noted down."""

    def __init__(self, gpu):
        self.gpu, self.tape = gpu, []

    @property
    def kernels(self):
        return [name for name, _, _, kernel in self.tape if kernel]

    def replay(self):
        assert self.tape, "replayed before it was captured"
        self.gpu.replays += 1
        with torch.inference_mode():
            for _, run, result, _ in self.tape:
                for old, new in zip(tensors_in(result), tensors_in(run()), strict=True):
                    if old.data_ptr() != new.data_ptr():
                        old.copy_(new)


class Event:
    def __init__(self, gpu):
        self.gpu, self.at = gpu, None

    def record(self):
        assert self.gpu.capturing is None
        self.gpu.events.append("event")
        self.at = time.perf_counter()

    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)


class Stream:
    def wait_stream(self, other):
        pass


class FakeCuda:
    """One GPU: its properties, and what was done on it."""

    def __init__(self, *, memory=150_754_820_096, free=18 * GIB, l2=2**10, capability=(9, 0), name="NVIDIA H200"):
        major, minor = capability
        self.properties = types.SimpleNamespace(
            name=name, major=major, minor=minor, total_memory=memory, L2_cache_size=l2, multi_processor_count=132
        )
        self.free, self.capability = free, capability
        self.allocator = Allocator()
        self.capturing, self.debug = None, 0
        self.graphs, self.events, self.streams = [], [], []
        self.replays = self.reads = 0
        self.stream = Stream()
        self.workspaces = set()

    def wait(self, name):
        self.reads += name in {"tolist", "item", "cpu", "__int__", "__bool__"}
        if self.capturing is not None:
            raise RuntimeError(f"CUDA error: operation not permitted when stream is capturing ({name})")
        if self.debug == "error":
            raise RuntimeError(f"called a synchronizing CUDA operation ({name})")

    def multiply(self):
        if self.stream in self.workspaces:
            return
        assert self.capturing is None, "a graph's memory would hold the workspace"
        self.workspaces.add(self.stream)
        self.allocator.requested += WORKSPACE
        self.allocator.peak = max(self.allocator.peak, self.allocator.requested)

    @contextlib.contextmanager
    def on(self, stream):
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def check_room(self, args, name):
        if name not in {"empty", "zeros", "ones"}:
            return
        shape = args[0] if isinstance(args[0], (tuple, list)) else args
        if self.allocator.requested + 2 * torch.Size(shape).numel() > self.free:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def keep(self, tensors):
        """Remember what a capture finds, to put it back: a capture runs nothing."""
        if self.capturing is None:
            return
        for tensor in tensors:
            if storage(tensor) not in self.before and storage(tensor) not in self.made:
                with _disable_current_modes():
                    self.before[storage(tensor)] = (tensor, tensor.detach().clone())

    def note(self, name, run, result, *, kernel):
        if self.capturing is None:
            return
        for tensor in tensors_in(result):
            if storage(tensor) not in self.before:
                self.made[storage(tensor)] = tensor
        self.capturing.tape.append((name, run, result, kernel))

    @contextlib.contextmanager
    def capture(self, graph, stream):
        assert self.capturing is None
        self.before, self.made = {}, {}
        self.capturing = graph
        try:
            with self.on(stream):
                yield
        finally:
            self.capturing = None
        self.graphs.append(graph)
        with torch.inference_mode():
            for tensor, copy in self.before.values():
                whole = torch.as_strided(tensor, copy.shape, copy.stride(), tensor.storage_offset())
                whole.copy_(copy)
            for tensor in self.made.values():
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))

    def launch(self, start):
        """Wrap the one function that starts kernels of Triton, which are no operations of torch."""

        def launched(kernel, grid, *args, **constants):
            def run():
                with torch._C.DisableTorchFunction(), _disable_current_modes():  # noqa: SLF001
                    start(kernel, grid, *args, **constants)
                return ()

            self.keep(tensors_in(args))
            run()
            if self.capturing is not None:
                self.capturing.tape.append((f"triton.{kernel.__name__}", run, (), True))

        return launched

    @contextlib.contextmanager
    def installed(self, monkeypatch):
        """Stand for ``torch.cuda`` until left."""
        ignored = itertools.count()
        replacements = {
            "is_available": lambda: True,
            "get_device_properties": lambda *_: self.properties,
            "get_device_capability": lambda *_: self.capability,
            "synchronize": lambda *_: self.wait("synchronize"),
            "empty_cache": lambda: None,
            "mem_get_info": lambda *_: (max(0, self.free - self.allocator.requested), self.properties.total_memory),
            "memory_reserved": lambda *_: self.allocator.requested,
            "memory_stats": lambda *_: {"requested_bytes.all.current": self.allocator.requested},
            "max_memory_allocated": lambda *_: self.allocator.peak,
            "reset_peak_memory_stats": lambda *_: setattr(self.allocator, "peak", self.allocator.requested),
            "get_sync_debug_mode": lambda: self.debug,
            "set_sync_debug_mode": lambda mode: setattr(self, "debug", mode),
            "Stream": lambda *_: self.streams.append(Stream()) or self.streams[-1],
            "Event": lambda **_: Event(self),
            "CUDAGraph": lambda: Graph(self),
            "graph": self.capture,
            "current_stream": lambda *_: self.stream,
            "stream": self.on,
            "_sleep": lambda _: self.events.append("wait") or next(ignored),
        }
        for name, replacement in replacements.items():
            monkeypatch.setattr(torch.cuda, name, replacement)
        with Operations(self), Calls(self):
            yield self
