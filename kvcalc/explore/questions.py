"""The questions of a page: which fields each report takes, and how it is asked of the facade."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache, partial
from shlex import quote
from typing import TYPE_CHECKING, Any, Literal

from kvcalc import api
from kvcalc.core.errors import InputError, UnknownNameError
from kvcalc.core.same import Same
from kvcalc.explore.fields import FEW, LISTS, ONE, ONE_OR_NONE, Values, of_field

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.model import ModelProfile
    from kvcalc.core.reports.common import ExplainedStep

__all__ = ["QUESTIONS", "Answer", "Question", "deployment_of", "looked_up"]

_MOST_REQUESTS = 5_000
_MOST_SIMULATED_S = 9.0
_MOST_REPLICAS = 16
_MOST_MEMORY_TOKENS = 1_000_000
_MOST_DEPLOYMENTS = 64
_DEFAULT_CONFIG = "config.json"


@dataclass(frozen=True, slots=True)
class Answer:
    """A report, and what explains it.

    Args:
        report: the report.
        explained: returns the formulas behind it; none where there are none.
    """

    report: Any
    explained: Callable[[], Sequence[ExplainedStep]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One report that a page can ask for.

    Args:
        command: the words of the command that prints the same.
        fields: what it can be asked with.
        ask: returns the answer to values, with a pasted model in place of a named one where there is one.
        views: its charts.
        slow: whether it is a simulation, which waits its turn behind others.
        special: how fields are read that are not read as elsewhere.
    """

    command: str
    fields: tuple[str, ...]
    ask: Callable[[Values, ModelProfile | None], Answer]
    views: tuple[str, ...] = ("",)
    slow: bool = False
    special: Mapping[str, Callable[[str, str], Any]] = field(default_factory=dict)

    @property
    def takes_config(self) -> bool:
        """Whether a pasted config can stand for the model."""
        return "model" in self.fields

    def command_line(self, values: Values, *, pasted: bool) -> str:
        """Return the command that prints the same numbers."""
        words = ["kvcalc", *self.command.split()]
        if pasted:
            words += ["--model", _DEFAULT_CONFIG]
        for name, text in values.given:
            if text in ("true", "false"):
                words += [f"--{name}"] if text == "true" else []
            else:
                words += [f"--{name}", quote(text)]
        return " ".join(words)


_FORMATS = ("weights", "kv-dtype", "activations")
_SPREAD = ("gpus", "tensor-parallel", "pipeline-parallel", "expert-parallel", "data-parallel")
_RUN = ("model", *_FORMATS, *_SPREAD)
_ENGINE = ("engine", "max-model-len", "utilization", "block-size")
_LOAD = ("arrival", "rate", "requests", "prompt", "output-tokens", "users", "seed")


def looked_up(load: Callable[[str], Any], name: str) -> Any:
    """Return a profile by its name in the catalogue.

    Raises:
        UnknownNameError: there is none; a page cannot name a file instead.
    """
    try:
        return load(name)
    except UnknownNameError as error:
        raise UnknownNameError(error.what, hint=error.hint.replace("; a profile file works too", "")) from error


def _model(values: Values, pasted: ModelProfile | None) -> Any:
    with of_field("model"):
        if pasted is not None:
            return pasted
        if "model" not in values.read:
            raise InputError("choose a model")
        return looked_up(api.catalogue_model, values.get("model"))


def _gpu(values: Values, *, needed: bool) -> Any:
    with of_field("gpu"):
        if "gpu" in values.read:
            return looked_up(api.catalogue_hardware, values.get("gpu"))
        if needed:
            raise InputError("choose an accelerator")
        return None


def deployment_of(values: Values, pasted: ModelProfile | None = None, *, needs_gpu: bool = False, **more: Any) -> Any:
    """Return the model on accelerators that the fields describe, from the catalogue alone.

    Args:
        values: the fields.
        pasted: a model in place of a named one.
        needs_gpu: whether an accelerator must be given.
        more: arguments of `kvcalc.api.deployment` in place of the fields'.

    Raises:
        FieldError: a model or accelerator that is missing or not known.
        KvcalcError: formats or sizes that cannot be.
    """
    model, gpu = _model(values, pasted), _gpu(values, needed=needs_gpu)
    options = values.some(*_FORMATS, *_SPREAD, "engine") | {"price_per_hour_usd": values.get("price")} | more
    return _deployed(Same(model), Same(gpu), tuple(options.items()), tuple(values.some(*_ENGINE[1:]).items()))


@lru_cache(maxsize=_MOST_DEPLOYMENTS)
def _deployed(
    model: Same[Any], gpu: Same[Any], options: tuple[tuple[str, Any], ...], started: tuple[tuple[str, Any], ...]
) -> Any:
    """Return one object for questions that differ in batch and context alone: what follows from it is remembered."""
    placed = api.deployment(model.it, gpu=gpu.it, **dict(options))
    return api.served(placed, placed.engine, dict(started))


def _size(values: Values, pasted: ModelProfile | None) -> Answer:
    context, batch = values.get("context"), values.get("batch", 1)
    deployment = deployment_of(values, pasted)
    report = api.size(deployment, context=context, batch=batch)
    return Answer(report, lambda: api.explain("size", deployment, context=context, batch=batch))


def _fit(values: Values, pasted: ModelProfile | None) -> Answer:
    memory = values.get("kv-memory")
    deployment = deployment_of(values, pasted, needs_gpu=memory is None)
    return Answer(api.fit(deployment, context=values.get("context"),
                          batch=values.get("batch", 1), kv_memory_bytes=memory))  # fmt: skip


def _decode(values: Values, pasted: ModelProfile | None) -> Answer:
    return _timed("decode", partial(api.decode, contexts=values.get("context")), values, pasted)


def _prefill(values: Values, pasted: ModelProfile | None) -> Answer:
    return _timed("prefill", partial(api.prefill, prompts=values.get("prompt")), values, pasted)


def _timed(
    kind: Literal["decode", "prefill"], ask: Callable[..., Any], values: Values, pasted: ModelProfile | None
) -> Answer:
    """Return the times of passes; the first row is the one that is explained."""
    deployment = deployment_of(values, pasted, needs_gpu=True)
    report = ask(deployment, batches=values.get("batch", (1,)), estimate=values.get("estimate", False))
    first = report.rows[0]
    tokens = first.context if kind == "decode" else first.prompt
    used = None if report.calibration is None else report.calibration.name
    return Answer(report, lambda: api.explain(kind, deployment, context=tokens, batch=first.batch, calibration=used))


def _roofline(values: Values, pasted: ModelProfile | None) -> Answer:
    placed = [deployment_of(values, pasted, needs_gpu=True)] if pasted or "model" in values.read else []
    hardware = placed[0].hardware if placed else _gpu(values, needed=True)
    gpus = placed[0].parallel.gpus if placed else values.get("gpus", 1)
    batches, contexts = values.get("batch", (1,)), values.get("context")
    report = api.roofline(hardware, placed, gpus=gpus, batches=batches, contexts=contexts)
    return Answer(report, lambda: api.explain("roofline", hardware))


def _speculate(values: Values, pasted: ModelProfile | None) -> Answer:
    target = deployment_of(values, pasted, needs_gpu=True)
    draft = None
    with of_field("draft"):
        if "draft" in values.read:
            shared = values.some("kv-dtype", "activations")
            draft = api.draft_deployment(target, looked_up(api.catalogue_model, values.get("draft")), **shared)
    measured = values.some("acceptance-by-position", "accepted-length", "draft-rate")
    asked = {
        "method": values.get("method"),
        "acceptance": values.get("acceptance", None if measured else "0.8"),
        **measured,
    }
    gammas = values.get("gamma")
    report = api.speculate(target, draft, gammas=gammas, batches=values.get("batch", (1,)),
                           contexts=values.get("context"), **asked)  # fmt: skip
    first, gamma = report.rows[0], gammas[0] if gammas else None
    return Answer(report, lambda: api.explain_speculation(target, draft, gamma=gamma, batch=first.batch,
                                                          context=first.context, **asked))  # fmt: skip


def _levers(values: Values, pasted: ModelProfile | None) -> Answer:
    deployment = deployment_of(values, pasted)
    report = api.levers(
        deployment, context=values.get("context"), batch=values.get("batch", 1), with_levers=values.get("with", "")
    )
    return Answer(report)


def _traffic(values: Values, pasted: ModelProfile | None) -> Answer:
    deployment = deployment_of(values, pasted)
    with of_field("output-tokens"):
        if "output-tokens" not in values.read:
            raise InputError("say how many tokens are generated")
    return Answer(api.traffic(deployment, output_tokens=values.get("output-tokens"), batch=values.get("batch", 1),
                              prompt_tokens=values.get("prompt", 0)))  # fmt: skip


def _simulate(values: Values, pasted: ModelProfile | None) -> Answer:
    deployment = deployment_of(values, pasted, needs_gpu=True, engine="vllm")
    with of_field("requests"):
        if values.get("requests", 1) > _MOST_REQUESTS:
            raise InputError(f"requests must be at most {_MOST_REQUESTS:,} here", hint="kvcalc simulate takes more")
    with of_field("replicas"):
        if values.get("replicas", 1) > _MOST_REPLICAS:
            raise InputError(f"replicas must be at most {_MOST_REPLICAS} here", hint="kvcalc simulate takes more")
    with of_field("arrival"):
        if values.get("arrival") == "trace":
            raise InputError("traces are files, which a page cannot name", hint="kvcalc simulate reads them")
    load = api.Load(**values.some(*_LOAD))
    served = values.some("replicas", "slo", "step-times") | {"kv_memory_bytes": values.get("kv-memory")}
    options = api.engine_options("vllm", values.some(*_ENGINE[1:]))
    serving = api.Serving(options=options, **served)
    return Answer(api.simulate_serving(deployment, load, serving=serving, within_s=_MOST_SIMULATED_S))


def _bounded(values: Values, most: Mapping[str, int], spelled: Mapping[str, str]) -> dict[str, Any]:
    """Return what a demonstration is asked with, by the names that it gives them, none above what a page may ask."""
    for name, bound in most.items():
        with of_field(name):
            if values.get(name, 1) > bound:
                raise InputError(f"{name} must be at most {bound:,} here", hint="kvcalc demo takes more")
    return {to: values.get(name) for name, to in spelled.items() if name in values.read}


_TOKENS = {"prompt": "prompt_tokens", "output-tokens": "output_tokens", "seed": "seed"}
_MOST_TOKENS = {"prompt": 64, "output-tokens": 64}


def _demo_kv_cache(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    from kvcalc import DecoderShape

    shape = _bounded(values, {"layers": 8, "heads": 16, "kv-heads": 16}, {name: name.replace("-", "_") for name in
                                                                         ("layers", "heads", "kv-heads")})  # fmt: skip
    asked = _bounded(values, _MOST_TOKENS | {"batch": 8}, _TOKENS | {"batch": "batch"})
    return Answer(api.demo_kv_cache(shape=DecoderShape(**shape), **asked))


def _demo_speculate(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    return Answer(api.demo_speculate(**_bounded(values, _MOST_TOKENS | {"gamma": 16}, _TOKENS | {"gamma": "gamma"})))


def _demo_paging(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    spelled = {"memory-tokens": "memory_tokens", "block-size": "block_tokens", "max-model-len": "longest_tokens"}
    return Answer(api.demo_paging(**_bounded(values, {"memory-tokens": _MOST_MEMORY_TOKENS}, spelled)))


def _demo_drift(values: Values, pasted: ModelProfile | None) -> Answer:
    del pasted
    spelled = {"free-steps": "steps", "horizon": "horizon_steps", "consistency": "consistency",
               "trainings": "trainings", "seed": "seed"}  # fmt: skip
    return Answer(api.demo_drift(**_bounded(values, {"free-steps": 200, "horizon": 16, "trainings": 3}, spelled)))


_LISTED = {"batch": LISTS, "context": LISTS, "prompt": LISTS, "gamma": LISTS}
_SINGLE = {"batch": ONE, "context": ONE, "gamma": ONE}
_DEMO = _SINGLE | {"prompt": ONE, "output-tokens": ONE}

QUESTIONS: dict[str, Question] = {
    "size": Question(
        command="size", fields=(*_RUN, "context", "batch", *_ENGINE), ask=_size, views=(), special=_SINGLE
    ),
    "fit": Question(
        command="fit", fields=(*_RUN, "gpu", "context", "batch", *_ENGINE, "kv-memory"), ask=_fit, special=_SINGLE
    ),
    "decode": Question(
        command="decode", fields=(*_RUN, "gpu", "batch", "context", *_ENGINE, "estimate", "price"), ask=_decode,
        views=("", "memory"), special=_LISTED,
    ),
    "prefill": Question(
        command="prefill", fields=(*_RUN, "gpu", "batch", "prompt", *_ENGINE, "estimate", "price"), ask=_prefill,
        special=_LISTED,
    ),
    "roofline": Question(
        command="roofline", fields=(*_RUN, "gpu", "batch", "context", *_ENGINE), ask=_roofline, views=("", "intensity"),
        special=_LISTED,
    ),
    "speculate": Question(
        command="speculate", fields=(*_RUN, "gpu", "draft", "method", "gamma", "acceptance",
                                      "acceptance-by-position", "accepted-length", "draft-rate", "batch", "context",
                                      *_ENGINE),
        ask=_speculate, special=dict.fromkeys(("batch", "context", "gamma"), FEW),
    ),
    "levers": Question(
        command="levers", fields=(*_RUN, "gpu", "context", "batch", "with"), ask=_levers, special=_SINGLE
    ),
    "traffic": Question(
        command="traffic", fields=(*_RUN, "prompt", "output-tokens", "batch"), ask=_traffic,
        special=_SINGLE | {"prompt": ONE_OR_NONE, "output-tokens": ONE},
    ),
    "simulate": Question(
        command="simulate", fields=(*_RUN, "gpu", *_LOAD, "replicas", "slo", "step-times", *_ENGINE[1:], "kv-memory"),
        ask=_simulate, slow=True,
    ),
    "demo/kv-cache": Question(
        command="demo kv-cache", fields=("prompt", "output-tokens", "batch", "layers", "heads", "kv-heads", "seed"),
        ask=_demo_kv_cache, special=_DEMO,
    ),
    "demo/speculate": Question(
        command="demo speculate", fields=("prompt", "output-tokens", "gamma", "seed"), ask=_demo_speculate,
        special=_DEMO,
    ),
    "demo/paging": Question(
        command="demo paging", fields=("memory-tokens", "block-size", "max-model-len"), ask=_demo_paging, slow=True
    ),
    "demo/drift": Question(
        command="demo drift", fields=("free-steps", "horizon", "consistency", "trainings", "seed"), ask=_demo_drift,
        slow=True,
    ),
}  # fmt: skip
