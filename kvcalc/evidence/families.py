"""The calibrations that are shipped: of which engine and accelerators, what is fitted, and which records judge it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from kvcalc.core.calibration import Calibration, Interval, Measured, Reach
from kvcalc.evidence.books import judges
from kvcalc.evidence.fit import beginning_at

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FAMILIES", "Family"]

_FITTED = "2026-11-29"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One calibration to be fitted.

    Args:
        name: its name.
        engine: the engine whose records it is fitted to.
        applies_to: accelerators or generations.
        free: the parameters that are fitted.
        held_out: patterns of the campaigns that judge it and that the fit does not see.
        reach: what the search starts from; what is not free stays.
        shares_of: the calibration whose shares stand where this one says nothing, without its time of a call.
        near: the calibration of a neighbour, whose parameters the search starts from: what the records say little of
            stays near it.
        kernels_of: of an engine that serves many requests, the accelerator whose kernels it starts from; parameters and
            split are then those of `kvcalc.evidence.serving`.
        also_16_bit: give multiplications in 16 bits the FLOP/s that those in 8-bit integers reach: of a quantised file
            a user need not know in which of them the engine multiplies.
        also_fp4: the same for experts that newer builds multiply in 4 bits.
    """

    name: str
    engine: str
    applies_to: tuple[str, ...]
    free: tuple[str, ...] = ()
    held_out: tuple[str, ...] = ()
    reach: Mapping[str, Reach] = field(default_factory=dict)
    shares_of: str = ""
    near: str = ""
    kernels_of: str = ""
    also_16_bit: bool = False
    also_fp4: bool = False

    def start(self, fitted: Mapping[str, Calibration]) -> Calibration:
        """Return the calibration that the search starts from, with the shares of one that is fitted already."""
        given = fitted[self.shares_of].reach if self.shares_of else {}
        taken = {kind: share for kind, share in given.items() if kind.partition(":")[0] not in self.reach}
        reach = {
            "matrix": _MATRIX,
            **{kind: replace(share, call_s=0.0) for kind, share in taken.items()},
            **self.reach,
        }
        even = Interval(low=1, high=1)
        calibration = Calibration(
            name=self.name,
            engine=self.engine,
            applies_to=self.applies_to,
            reach=reach,
            memory_interval=even,
            compute_interval=even,
            step_s=1e-3 if "step_s" in self.free else 0,
            layer_s=2e-5 if "layer_s" in self.free else 0,
            collective_s=1e-5 if "collective_s" in self.free else 0,
            link_share=0.5 if "link_share" in self.free else 1,
            measured=Measured(device="", date=_FITTED),
        )
        return beginning_at(calibration, fitted[self.near], self.free) if self.near else calibration

    def judges(self, name: str) -> bool:
        """Whether a campaign is held out; of engines that serve many requests, a group."""
        if self.kernels_of:
            return judges(name)
        return any(fnmatchcase(name, pattern) for pattern in self.held_out)


_MATRIX = Reach(bandwidth_share=0.8, flop_share=0.6)
_EXPERTS = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=2e-5)
_CUDA = {"matrix:int8": _MATRIX, "matrix:fp16": _MATRIX, "experts:int8": _EXPERTS}
# Metal's attention by the time that a longer context adds: its records are of short ones but for these, and a fit to
# all takes any fixed time of a layer for a slow cache. Source: ggml-org/llama.cpp/issues/27525, Qwen3.8-27B on an M1
# Max in IQ4_NL, Q4_1 and Q3_K_M, short and at 12,700 tokens: 0.41, 0.31 and 0.42 of the bandwidth.
_METAL_ATTENTION = Reach(bandwidth_share=0.41, flop_share=0.6)
_KERNEL = Reach(bandwidth_share=0.8, flop_share=0.6, call_s=5e-6)
_RTX = ("rtx-5090", "rtx-pro-6000-max-q", "rtx-pro-6000-server", "rtx-pro-6000-workstation")
_BLACKWELL = ("blackwell", "blackwell-ultra")
_SHARES_OF_ATTENTION = ("attention.bandwidth_share", "attention.flop_share")
_LLAMA_CPP = ("step_s", "layer_s", "matrix.bandwidth_share", "matrix.flop_share", "experts.bandwidth_share",
              "experts.flop_share", "experts.call_s", *_SHARES_OF_ATTENTION)  # fmt: skip
# Where it multiplies its quantised files in 8-bit integers, and those of 16 bits as they are.
_IN_INT8 = ("step_s", "layer_s", "matrix:int8.bandwidth_share", "matrix:int8.flop_share",
            "experts:int8.bandwidth_share", "experts:int8.flop_share", "experts:int8.call_s")  # fmt: skip
_MATRIX_IN_INT8 = ("step_s", "layer_s", "matrix:int8.bandwidth_share", "matrix:int8.flop_share")
_IN_BOTH = (*_IN_INT8, "matrix:fp16.bandwidth_share", "matrix:fp16.flop_share")


def _shares(*kinds: str) -> tuple[str, ...]:
    return tuple(f"{kind}.{field}" for kind in kinds for field in ("bandwidth_share", "flop_share", "call_s"))


FAMILIES = (
    Family(
        name="kernels-ampere",
        engine="kernels",
        applies_to=("ampere",),
        free=_shares("matrix", "matrix:int8", "attention"),
        held_out=("*/vllm/* gemm",),
        reach={"matrix": _KERNEL, "matrix:int8": _KERNEL, "attention": _KERNEL},
    ),
    Family(
        name="kernels-ada",
        engine="kernels",
        applies_to=("ada",),
        free=_shares("matrix", "matrix:int8", "matrix:fp8", "attention"),
        held_out=("*/vllm/* gemm",),
        reach={"matrix": _KERNEL, "matrix:int8": _KERNEL, "matrix:fp8": _KERNEL, "attention": _KERNEL},
    ),
    Family(
        name="kernels-hopper",
        engine="kernels",
        applies_to=("hopper",),
        free=_shares("matrix", "matrix:fp8", "attention"),
        held_out=("*/vllm/*",),
        reach={"matrix": _KERNEL, "matrix:fp8": _KERNEL, "attention": _KERNEL},
    ),
    Family(name="vllm-hopper", engine="vllm", applies_to=("hopper",), kernels_of="h200"),
    Family(name="vllm-ampere", engine="vllm", applies_to=("ampere",), kernels_of="a100-80gb"),
    Family(name="vllm-ada", engine="vllm", applies_to=("ada",), kernels_of="l40s"),
    Family(name="vllm-blackwell-rtx", engine="vllm", applies_to=_RTX, kernels_of="rtx-pro-6000-server"),
    Family(name="tensorrt-llm-hopper", engine="tensorrt-llm", applies_to=("hopper",), kernels_of="h200"),
    Family(name="sglang-hopper", engine="sglang", applies_to=("hopper",), kernels_of="h200"),
    Family(name="vllm-blackwell", engine="vllm", applies_to=_BLACKWELL, kernels_of="b200"),
    Family(name="tensorrt-llm-blackwell", engine="tensorrt-llm", applies_to=_BLACKWELL, kernels_of="b200"),
    Family(name="sglang-blackwell", engine="sglang", applies_to=_BLACKWELL, kernels_of="b200"),
    Family(
        name="gpt-fast-ampere",
        engine="gpt-fast",
        applies_to=("ampere",),
        free=("step_s", "layer_s", "collective_s", "link_share", "matrix.bandwidth_share"),
        held_out=("*mixtral*",),
        reach={"matrix": _MATRIX},
        shares_of="kernels-ampere",
    ),
    Family(
        name="llama.cpp-apple",
        engine="llama.cpp",
        applies_to=("apple-g13", "apple-g14", "apple-g15", "apple-g16", "apple-g17"),
        free=tuple(name for name in _LLAMA_CPP if name != "attention.bandwidth_share"),
        held_out=("geerlingguy/*", "public*", "*10435", "*3084"),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _METAL_ATTENTION},
    ),
    Family(
        name="llama.cpp-dgx-spark",
        engine="llama.cpp",
        applies_to=("dgx-spark",),
        free=(*_IN_INT8, *_SHARES_OF_ATTENTION),
        held_out=("ggml-org/llama.cpp/*",),
        reach={"matrix:int8": _MATRIX, "experts:int8": _EXPERTS, "attention": _MATRIX},
        also_16_bit=True,
        also_fp4=True,
    ),
    Family(
        name="llama.cpp-rtx",
        engine="llama.cpp",
        applies_to=("ada", "blackwell-rtx"),
        free=_IN_BOTH,
        held_out=("geerlingguy/*", "*14863", "*7676", "*16834"),
        reach=_CUDA,
        shares_of="llama.cpp-dgx-spark",
        also_16_bit=True,
        also_fp4=True,
    ),
    Family(
        name="llama.cpp-ampere",
        engine="llama.cpp",
        applies_to=("ampere",),
        free=_IN_BOTH,
        held_out=("geerlingguy/*", "*20586"),
        reach=_CUDA,
        shares_of="llama.cpp-dgx-spark",
        near="llama.cpp-rtx",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-hbm",
        engine="llama.cpp",
        applies_to=("a100-40gb", "a100-40gb-pcie", "a100-80gb", "a100-80gb-pcie", "a30", "hopper", "volta"),
        free=_IN_BOTH,
        reach=_CUDA,
        shares_of="llama.cpp-dgx-spark",
        near="llama.cpp-ampere",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-cuda",
        engine="llama.cpp",
        applies_to=("pascal", "turing"),
        free=_MATRIX_IN_INT8,
        held_out=("geerlingguy/*",),
        reach=_CUDA,
        shares_of="llama.cpp-dgx-spark",
        near="llama.cpp-ampere",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-vulkan-nvidia",
        engine="llama.cpp-vulkan",
        applies_to=("ampere", "ada", "blackwell-rtx", "turing"),
        free=_MATRIX_IN_INT8,
        reach=_CUDA,
        shares_of="llama.cpp-dgx-spark",
        near="llama.cpp-rtx",
        also_16_bit=True,
    ),
    Family(
        name="llama.cpp-radeon",
        engine="llama.cpp",
        applies_to=("rdna2", "rdna3", "rdna3.5", "rdna4"),
        free=_LLAMA_CPP,
        held_out=("*5835",),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _MATRIX},
    ),
    Family(
        name="llama.cpp-vulkan-radeon",
        engine="llama.cpp-vulkan",
        applies_to=("rdna2", "rdna3", "rdna3.5", "rdna4"),
        free=_LLAMA_CPP,
        held_out=("*5835",),
        reach={"matrix": _MATRIX, "experts": _EXPERTS, "attention": _MATRIX},
    ),
)
