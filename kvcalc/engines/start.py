"""One engine's start: what it loads, in which formats, spread how, and the options that it takes where none are given.

Every question about memory or speed asks the same start, so that no command has a rule of its own. The rules of single
engines stand with them (`kvcalc.engines.vllm.defaults` and others); here they are put together.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from kvcalc.core.records import dataclass

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Formats, Parallel
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.options import EngineOptions
    from kvcalc.engines.pools import Pool

__all__ = ["Assumption", "EngineStart", "engine_start"]

# Tokens of a pass where an engine has no default of its own.
_PASS_TOKENS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumption:
    """A default that was taken, and the options with another value, to compute how much it moves.

    Args:
        text: what was taken, for a reader.
        instead: the options with the other value.
    """

    text: str
    instead: EngineOptions


@dataclass(frozen=True, kw_only=True)
class EngineStart:
    """An engine as it is started.

    Args:
        engine: a key of `kvcalc.engines.pools.ENGINES`.
        model: the model.
        formats: formats that it runs in.
        parallel: how it is spread.
        hardware: the accelerator; none where only the cache is asked about.
        options: the engine's options, its defaults filled in.
        pass_sequences: sequences of the largest pass.
        draft: layers that draft for the model.
        assumed: defaults that may move an answer.
    """

    engine: str
    model: ModelProfile
    formats: Formats
    parallel: Parallel
    hardware: HardwareProfile | None
    options: EngineOptions
    pass_sequences: int
    draft: Draft | None = None
    assumed: tuple[Assumption, ...] = ()

    @property
    def pass_tokens(self) -> int:
        """Tokens of the largest pass."""
        if self.engine == "llama.cpp":
            return min(self.options.ubatch or self.options.batch_size, self.options.batch_size)
        if self.engine == "mlx":
            from kvcalc.engines.mlx import PREFILL_TOKENS  # with the engines' layouts, which few questions need

            return PREFILL_TOKENS
        return self.options.max_num_batched_tokens or _PASS_TOKENS

    @property
    def context_limit(self) -> int | None:
        """Tokens of the longest request that the engine reads from the model's config; none without a limit."""
        if self.engine != "sglang":
            return self.model.context_limit
        from kvcalc.engines.sglang.options import model_length  # with SGLang's rules, which few questions need

        return model_length(self.model)

    @property
    def takes_limit(self) -> bool:
        """Whether the engine is started for the model's limit where no length is asked for."""
        return self.engine == "sglang" or self.pool.starts_whole

    @cached_property
    def pool(self) -> Pool:
        """Its cache.

        Raises:
            InputError: options that it refuses.
            UnsupportedError: a model or arrangement that its memory model does not describe.
        """
        from kvcalc.engines.pools import pool  # the engines' layouts, which few questions need

        return pool(self.engine, self.model, self.formats, self.parallel, self.options, self.draft)


def engine_start(
    engine: str,
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    hardware: HardwareProfile | None,
    options: EngineOptions,
    *,
    max_model_len: int | None = None,
    draft: Draft | None = None,
) -> EngineStart:
    """Return an engine's start, with its defaults for that card and version filled in.

    Args:
        engine: a key of `kvcalc.engines.pools.ENGINES`.
        model: the model.
        formats: formats that it runs in, as `run_dtype` and the user have them.
        parallel: how it is spread.
        hardware: the accelerator, where there is one.
        options: what the user says of the engine.
        max_model_len: longest sequence that vLLM and SGLang are started for where the options name none; the other
            engines take their length, where they have one, from the options alone.
        draft: layers that draft for the model.

    Raises:
        InputError: not a version of the engine.
    """
    if engine == "vllm":
        asked = replace(options, max_model_len=options.max_model_len or max_model_len)
        return _vllm_start(model, formats, parallel, hardware, asked, draft)
    tokens, generation = _PASS_TOKENS, ""
    if engine == "sglang":
        from kvcalc.engines.sglang.defaults import chunk_tokens
        from kvcalc.engines.sglang.options import started_length
        from kvcalc.engines.vllm.defaults import generation_of

        options = replace(options, max_model_len=options.max_model_len or started_length(model, max_model_len))
        tokens, generation = chunk_tokens(hardware), options.generation or generation_of(hardware)
    if options.front:
        from kvcalc.engines.llama_cpp.fronts import started_by  # which few questions need

        memory = None if hardware is None else hardware.usable_memory_bytes
        options = started_by(options, model, formats, memory, max_model_len=max_model_len)
    return EngineStart(
        engine=engine,
        model=model,
        formats=formats,
        parallel=parallel,
        hardware=hardware,
        options=replace(
            options, max_num_batched_tokens=options.max_num_batched_tokens or tokens, generation=generation
        ),
        pass_sequences=options.max_num_seqs or options.parallel,
        draft=draft,
    )


def _vllm_start(
    model: ModelProfile,
    formats: Formats,
    parallel: Parallel,
    hardware: HardwareProfile | None,
    options: EngineOptions,
    draft: Draft | None,
) -> EngineStart:
    from kvcalc.engines.vllm.defaults import batch_defaults, has_delta_nets, passes_because, with_defaults
    from kvcalc.engines.vllm.releases import VERSION

    version = options.version or VERSION
    defaults = batch_defaults(
        hardware,
        version=version,
        platform=options.platform,
        ranks=parallel.tensor * parallel.pipeline,
        max_model_len=options.max_model_len,
    )
    filled = with_defaults(options, model, parallel, hardware, draft)
    assumed = []
    if options.max_in_flight_batches is None:
        passes = filled.max_in_flight_batches or 1
        because = passes_because(version, options.platform, None if draft is None else draft.method)
        in_flight = f"{passes} pass{'es' * (passes > 1)} in flight ({because})"
        assumed.append(
            Assumption(text=in_flight, instead=replace(filled, max_in_flight_batches=1 if passes > 1 else 2))
        )
    if options.max_num_batched_tokens is None:
        tokens = defaults.max_num_batched_tokens
        other = 2048 if tokens > 2048 else 8192  # noqa: PLR2004 - the two common defaults
        in_flight = f"{tokens:,} tokens per pass ({defaults.because})"
        assumed.append(Assumption(text=in_flight, instead=replace(filled, max_num_batched_tokens=other)))
    if hardware is None and has_delta_nets(model):
        in_flight = "gated delta nets as on cards before Hopper"
        assumed.append(Assumption(text=in_flight, instead=replace(filled, generation="hopper")))
    return EngineStart(
        engine="vllm",
        model=model,
        formats=formats,
        parallel=parallel,
        hardware=hardware,
        options=filled,
        pass_sequences=options.max_num_seqs or defaults.max_num_seqs,
        draft=draft,
        assumed=tuple(assumed),
    )
