"""A model as an engine loads it: which parts, how much larger than the checkpoint's, and the format of its states.

A lower bound on time never reads what is added here: padding is no traffic that the model needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.formats import parse_format
from kvcalc.core.model import Mixture, State, counted
from kvcalc.core.units import ceil_div
from kvcalc.cost.parameters import expert_parameters
from kvcalc.cost.sharding import experts_per_rank, stage_blocks

if TYPE_CHECKING:
    from kvcalc.core.formats import Format
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.options import EngineOptions

__all__ = ["loaded_model", "padding_bytes", "recurrent_states"]

# Between MXFP4 (17 bits for 32 elements, biases beside them) and NVFP4 (18).
_MAX_MXFP4 = 0.55


def loaded_model(engine: str | None, model: ModelProfile, options: EngineOptions | None = None) -> ModelProfile:
    """Return the part of a model that an engine loads: llama.cpp keeps towers in a file of their own (``--mmproj``).

    mlx-lm drops them (``sanitize`` of its models). vLLM keeps tables of n-grams in host memory.

    Source: llama.cpp, ``tools/mtmd`` (a projector is loaded from its own GGUF file); vLLM 0.33, ``config/engram.py``.
    """
    if engine == "vllm" and (options is None or options.engram_cpu_offload):
        return model.without_lookups("in host memory (vLLM's --engram-config, cpu_offload)")
    if engine == "llama.cpp" and not (options is not None and options.mmproj):
        return model.text_only("llama.cpp loads these from a file of their own (--mmproj)")
    if engine == "mlx":
        return model.text_only("mlx-lm loads the text model alone (mlx-vlm has the towers)")
    return model


def recurrent_states(
    engine: str | None, model: ModelProfile, formats: Formats, options: EngineOptions
) -> Format | None:
    """Return the format of all recurrent states in an engine; none where it leaves each layer its own.

    Source: `kvcalc.engines.vllm.states`; SGLang's is the one it is told.
    """
    if engine == "sglang":
        return options.state_format
    states = [mixer for mixer in model.mixers if isinstance(mixer, State)]
    if engine != "vllm" or not states:
        return None
    from kvcalc.engines.vllm.states import recurrent_format

    names = {recurrent_format(mixer, model.architecture, platform=options.platform) for mixer in states}
    name = names.pop()
    return None if names else formats.state if name is None else parse_format(name)


def padding_bytes(
    engine: str | None,
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    *,
    architecture: str | None = None,
    version: str | None = None,
) -> int:
    """Return the bytes by which an engine's weights on the fullest rank exceed the checkpoint's.

    vLLM rounds the sides of experts in MXFP4 up to what its kernels take; other engines and formats add nothing here.

    Args:
        engine: the engine; none where none is asked about.
        model: the model.
        formats: its formats.
        parallel: how it is spread.
        architecture: the generation of the accelerator, which decides the kernels; Hopper's where left out.
        version: the engine's version.

    Source: `kvcalc.engines.vllm.padding`.

    Raises:
        InputError: not a version.
    """
    form = formats.of("experts")
    if engine != "vllm" or form.unit != "fp4" or form.bytes_per_element > _MAX_MXFP4:
        return 0
    from kvcalc.engines.vllm.padding import expert_kernel, padded_expert_bytes  # with vLLM's layouts, which few need

    kernel = expert_kernel(architecture, version)
    stages = []
    for blocks in stage_blocks(model, parallel.pipeline):
        added = 0
        for block, count in counted(blocks).items():
            if isinstance(block.mlp, Mixture):
                experts, slices = experts_per_rank(block.mlp, parallel)
                plain = form.bytes(ceil_div(expert_parameters(block.mlp, model.hidden_size), slices))
                padded = padded_expert_bytes(block.mlp, model.hidden_size, kernel, slices=slices)
                added += count * experts * max(0, padded - int(plain))
        stages.append(added)
    return max(stages)
