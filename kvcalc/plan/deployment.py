"""A model on accelerators as a user asks for it: formats, parallel sizes and engine."""

from __future__ import annotations

from dataclasses import asdict, field, replace
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.formats import parse_format
from kvcalc.core.model import Mixture
from kvcalc.core.records import dataclass
from kvcalc.core.workload import Formats, Parallel
from kvcalc.engines.checkpoint import (
    FRONTS,
    check_engine,
    check_formats,
    check_split,
    default_engine,
    run_dtype,
)
from kvcalc.engines.loaded import loaded_model, recurrent_states
from kvcalc.engines.options import EngineOptions
from kvcalc.plan.contexts import trained_context
from kvcalc.plan.formats import AS_THE_ENGINE, AskedFormats, run_formats
from kvcalc.plan.running_notes import dtype_notes, engine_notes, version_notes
from kvcalc.plan.weight_words import (
    asked_recipe,
    loading_notes,
    recipe_notes,
    word_notes,
)

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.drafts import Draft
    from kvcalc.engines.start import EngineStart

__all__ = [
    "Deployment",
    "deploy",
    "parallel_sizes",
    "share_experts",
    "started",
]

# Type of cached keys and values that llama.cpp takes where none is asked for.
_LLAMA_CPP_CACHE = "f16"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Deployment:
    """A model on accelerators: the formats it runs in, how it is spread, and the engine where one is asked for.

    Args:
        model: the model.
        formats: number formats.
        parallel: how it is spread.
        hardware: the accelerator, where the question needs one.
        own_weights: whether the weights are kept in the checkpoint's own formats.
        power_share: share of its rated power that each accelerator draws on average.
        engine: the engine that was asked for, a key of `kvcalc.engines.pools.ENGINES`; none where any may run it.
        options: what the user says of the engine.
        draft: layers that draft for the model.
        asked: the formats that were asked for.
        layout_notes: what was taken for granted of the parallel sizes.
    """

    model: ModelProfile
    formats: Formats
    parallel: Parallel
    hardware: HardwareProfile | None = None
    own_weights: bool = True
    power_share: float = 1.0
    engine: str | None = None
    options: EngineOptions = field(default_factory=EngineOptions)
    draft: Draft | None = None
    asked: AskedFormats = AS_THE_ENGINE
    layout_notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        gpus = f"{self.parallel.gpus} x " if self.parallel.gpus > 1 else ""
        where = "" if self.hardware is None else f" on {gpus}{self.hardware.name}"
        asked = "" if self.engine is None else f", {self.engine}"
        return f"<Deployment: {self.model.name}{where}{asked}; weights {self.formats.weights.name}>"

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions on parallel sizes and formats."""
        words = word_notes(self.model, self.asked.weights, run_dtype(self.model, self.engine, self.hardware))
        recipe = recipe_notes(self.model, self.asked.weights, engine=self.engine, imatrix=self.options.imatrix)
        words += loading_notes(self.engine, self.asked.weights)
        return (*self.layout_notes, *dtype_notes(self), *version_notes(self), *engine_notes(self), *words, *recipe)

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes of deployment and model."""
        return (*self.notes, *self.model.notes)

    @property
    def served_by(self) -> str:
        """The engine whose memory decides what fits: the one asked for, or the usual one for such weights and cards."""
        return self.engine or default_engine(self.model, self.formats, self.hardware)

    def start(self, *, max_model_len: int | None = None) -> EngineStart:
        """Return the start of its engine, for sequences of so many tokens where the options say nothing.

        Raises:
            InputError: not a version of the engine.
        """
        from kvcalc.engines.start import engine_start

        return engine_start(
            self.served_by,
            self.model,
            self.formats,
            self.parallel,
            self.hardware,
            self.options,
            max_model_len=max_model_len,
            draft=self.draft,
        )

    @property
    def power_w(self) -> float | None:
        """Power that one accelerator draws on average; none where its rated power is not known."""
        if self.hardware is None or self.hardware.board_power_w is None:
            return None
        return self.power_share * self.hardware.board_power_w

    @property
    def memory_bytes(self) -> int:
        """Memory of one accelerator."""
        return self.hardware.usable_memory_bytes if self.hardware is not None else 0


def parallel_sizes(
    *, gpus: int | None = None, tensor: int | None = None, pipeline: int | None = None, expert: int | None = None,
    data: int | None = None
) -> Parallel:  # fmt: skip
    """Return the parallel sizes that the options describe; ``gpus`` alone means tensor parallel.

    Raises:
        InputError: sizes that contradict each other.
    """
    pp, dp = 1 if pipeline is None else pipeline, 1 if data is None else data
    if gpus is not None and gpus < 1:
        raise InputError(f"gpus must be 1 or more, not {gpus}", parameter="gpus")
    if gpus is not None and tensor is None:
        if pp < 1 or dp < 1 or gpus % (pp * dp):
            what = f"{gpus} GPUs cannot be shared by pipeline {pp} x data {dp}"
            raise InputError(what, hint="give --tp as well", parameter="gpus")
        tensor = gpus // (pp * dp)
    sizes = Parallel(
        tensor=1 if tensor is None else tensor, pipeline=pp, expert=1 if expert is None else expert, data=dp
    )
    if gpus is not None and sizes.gpus != gpus:
        what = f"{gpus} GPUs are not tensor {sizes.tensor} x pipeline {pp} x data {dp} = {sizes.gpus}"
        raise InputError(what, hint="leave out --gpus, or one of the sizes", parameter="gpus")
    return sizes


def deploy(
    model: ModelProfile,
    *,
    hardware: HardwareProfile | None = None,
    parallel: Parallel | None = None,
    weights: str | None = None,
    kv: str | None = None,
    key: str | None = None,
    value: str | None = None,
    activations: str | None = None,
    engine: str | None = None,
    options: EngineOptions | None = None,
) -> Deployment:
    """Return a model on accelerators, as the engine asked for runs it.

    The arguments are those of `run_formats` and `parallel_sizes`, and what the user says of the engine.

    Raises:
        InputError: more pipeline stages than layers, or tensor ranks that do not share the heads evenly.
        UnknownNameError: no such format.
        UnsupportedError: weights that the engine does not run.
    """
    if engine is not None:
        check_engine(engine)
    spread = parallel or Parallel()
    if spread.pipeline > model.layers:
        what = f"{spread.pipeline} pipeline stages for {model.layers} layers"
        raise InputError(what, parameter="pipeline-parallel")
    check_split(model, spread.tensor)
    options = options or EngineOptions()
    if engine in FRONTS:
        options, engine = _of_front(engine, options), FRONTS[engine]
    if engine == "llama.cpp":
        keys, pair, values = (kv or _LLAMA_CPP_CACHE).partition("/")
        key, value = options.cache_type_k or keys, options.cache_type_v or (values if pair else keys)
        options = replace(_with_length(options, model), cache_type_k=key, cache_type_v=value)
    recipe = asked_recipe(model, weights, engine=engine)
    model = loaded_model("llama.cpp" if recipe is not None and engine is None else engine, model, options)
    asked = AskedFormats(weights=weights, kv=kv, key=key, value=value, activations=activations)
    formats = run_formats(model, **asdict(asked), engine=engine, hardware=hardware, imatrix=options.imatrix)
    if engine is not None:
        check_formats(engine, formats)
    formats = replace(formats, recurrent=recurrent_states(engine, model, formats, options))
    return Deployment(
        model=model,
        formats=formats,
        parallel=spread,
        hardware=hardware,
        own_weights=weights is None and _keeps_bytes(model, engine, hardware),
        engine=engine,
        options=options,
        asked=asked,
    )


def _of_front(front: str, options: EngineOptions) -> EngineOptions:
    """Return options as a program that starts an engine takes them; its own stay as they are."""
    if options.front == front:
        return options
    from kvcalc.engines.llama_cpp.fronts import check_front, front_defaults  # which few questions need

    given = {name: getattr(options, name) for name, plain in asdict(EngineOptions()).items()
             if getattr(options, name) != plain}  # fmt: skip
    check_front(front, given)
    return replace(options, **{"front": front, **front_defaults(front), **given})


def _without_front(options: EngineOptions) -> EngineOptions:
    """Return options without what a program that starts the engine set by itself."""
    from kvcalc.engines.llama_cpp.fronts import front_defaults

    plain = EngineOptions()
    own = {name: value for name, value in front_defaults(options.front).items() if getattr(options, name) == value}
    return replace(options, front="", **{name: getattr(plain, name) for name in own})


def _with_length(options: EngineOptions, model: ModelProfile) -> EngineOptions:
    """Return llama.cpp's options with the length of a sequence that a context of all of them leaves it.

    Raises:
        InputError: two lengths, or the trained one of a model that has no limit.
    """
    if options.ctx_size is None:
        return options
    each = max(1, (options.ctx_size or trained_context(model)) // options.parallel)
    if options.max_model_len not in (None, each):
        raise InputError("ctx-size and max-model-len are two lengths of a sequence", hint="give one of them")
    return replace(options, max_model_len=each)


def started(deployment: Deployment, engine: str | None, options: EngineOptions | None = None) -> Deployment:
    """Return a deployment as another engine runs it; the same where neither engine nor options are given.

    Raises:
        UnknownNameError: no such engine.
    """
    if engine is None and options is None:
        return deployment
    named, asked = engine or deployment.engine, options or deployment.options
    if asked.front and named not in (asked.front, deployment.engine):
        asked = _without_front(asked)
    if named == deployment.engine and asked == deployment.options:
        return deployment
    made = deploy(
        deployment.model,
        hardware=deployment.hardware,
        parallel=deployment.parallel,
        **asdict(deployment.asked),
        engine=named,
        options=asked,
    )
    return replace(
        made, power_share=deployment.power_share, layout_notes=deployment.layout_notes, draft=deployment.draft
    )


def _keeps_bytes(model: ModelProfile, engine: str | None, hardware: HardwareProfile | None) -> bool:
    """Whether the format that a checkpoint is run in is as wide as its own."""
    run, own = (parse_format(name) for name in (run_dtype(model, engine, hardware), model.dtype))
    return run.bytes_per_element == own.bytes_per_element


def share_experts(model: ModelProfile, parallel: Parallel) -> Parallel:
    """Return the sizes with a mixture's experts shared by all data-parallel copies, as engines do without ``--ep`` too.

    Source: vLLM 0.32, FusedMoEParallelConfig.make (tensor parallelism of experts spans data-parallel ranks).
    """
    mixtures = any(isinstance(block.mlp, Mixture) for block in model.block_counts)
    if parallel.data == 1 or not mixtures:
        return parallel
    return replace(parallel, expert=parallel.tensor * parallel.data)
