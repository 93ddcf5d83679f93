"""From what a record prints to a deployment: model, accelerator, formats, parallel sizes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.model import Mixture
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import splits_evenly
from kvcalc.engines.checkpoint import as_multiplied
from kvcalc.engines.llama_cpp.recipes import RECIPES
from kvcalc.evidence.cases import Unusable
from kvcalc.evidence.gguf_types import gguf_weights
from kvcalc.evidence.names import engine_rules, find_hardware, find_model, weight_names
from kvcalc.plan.deployment import Deployment, deploy

if TYPE_CHECKING:
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.evidence.names import EngineRules
    from kvcalc.evidence.record import Record

__all__ = ["Setup", "near_setup", "setup_of"]

_OWN = "own"
# Setups that are kept: a table of thousands of rows has some hundreds.
_MAX_KEPT = 1024
# Formats that stand for others of as many bits.
_NEAR = ((5, "int4"), (8, "int8"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup that a record ran on.

    Args:
        deployment: model, formats and parallel sizes.
        variants: the accelerators that it may have been; the deployment has the first.
        assumed: what was not printed, and how it was taken.
        weights_known: whether the format of the weights was printed.
        limited: whether no more sequences decode at once than the memory holds.
        prefill: of disaggregated serving, the engines that read prompts.
    """

    deployment: Deployment
    variants: tuple[HardwareProfile, ...]
    assumed: tuple[str, ...]
    weights_known: bool
    limited: bool = True
    prefill: Deployment | None = None


def setup_of(record: Record) -> Setup | Unusable:
    """Return the setup of a record, or the reason that it is not known.

    Raises:
        KvcalcError: sizes or formats that do not go together.
    """
    return _setup(_printed(record))


def _printed(record: Record) -> _Printed:
    return _Printed(
        hardware=record.hardware,
        model=record.model,
        engine=record.engine,
        weights=record.weights,
        kv=record.kv,
        devices=record.devices,
        tensor=record.tensor,
        parallel=record.parallel,
        prefill=record.prefill_parallel,
    )


def near_setup(record: Record) -> Setup | None:
    """Return the setup with weights in the nearest format that is known, for a prediction alone; none without any."""
    bits = re.search(r"(?:q|int|fp|w|mq|avq|iq)_?(\d)|(\d)-?bit", (record.weights or "").lower())
    width = int(bits[1] or bits[2]) if bits else 16
    name = next((near for max_width, near in _NEAR if width <= max_width), "bf16")
    setup = _setup(_printed(replace(record, weights=name)))
    return None if isinstance(setup, Unusable) else replace(setup, weights_known=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Printed:
    """Fields of a record that its setup follows from: many records have the same."""

    hardware: str
    model: str
    engine: str
    weights: str | None
    kv: str | None
    devices: int
    tensor: int | None
    parallel: Parallel | None
    prefill: Parallel | None


@lru_cache(maxsize=_MAX_KEPT)
def _setup(record: _Printed) -> Setup | Unusable:
    variants, model = find_hardware(record.hardware), find_model(record.model)
    if not variants or model is None:
        missing = f"model {record.model!r}" if variants else f"accelerator {record.hardware!r}"
        return Unusable(status="no profile", reason=f"no profile of the {missing}")
    if "cpu" in record.engine.lower():
        return Unusable(status="no profile", reason="ran on a CPU without a profile")
    rules = engine_rules(record.engine)
    weights, activations = _weights(record, model, rules)
    if weights is None:
        printed = f"format {record.weights!r} is not known" if record.weights else "format was not printed"
        return Unusable(status="excluded", reason=f"the weights' {printed}")
    assumed = []
    if len(variants) > 1:
        names = ", ".join(hardware.name for hardware in variants)
        assumed.append(f"{record.hardware} may be {names}: compared with the lowest of their bounds")
    if not record.weights:
        assumed.append("the weights' format was not printed: taken as the checkpoint's own")
    cache = record.kv.split()[0].lower() if record.kv else rules.cache.get((record.weights or "").lower())
    if cache is not None and not record.kv:
        assumed.append(f"the cache's format was not printed: taken as {cache}")

    def deployed(parallel: Parallel) -> Deployment:
        deployment = deploy(
            model,
            hardware=variants[0],
            parallel=parallel,
            weights=None if weights == _OWN else weights,
            kv=cache,
            activations=activations,
        )
        # no cards: the builds of the records multiply mxfp4 in 8 bits
        return replace(deployment, formats=as_multiplied(rules.like, deployment.formats, ()))

    parallel, notes = _parallel(record, model, splits_layers=rules.splits_layers)
    return Setup(
        deployment=deployed(parallel),
        prefill=deployed(_possible(record.prefill, model)) if record.prefill is not None else None,
        variants=variants,
        assumed=(*assumed, *notes),
        weights_known=bool(record.weights),
    )


def _parallel(record: _Printed, model: ModelProfile, *, splits_layers: bool) -> tuple[Parallel, tuple[str, ...]]:
    """Return the parallel sizes of a record, and notes on those that had to be taken otherwise."""
    if record.parallel is None:
        tensor = record.tensor or (1 if splits_layers else record.devices)
        return Parallel(tensor=tensor, pipeline=max(1, record.devices // tensor)), ()
    parallel = _possible(record.parallel, model)
    if parallel is record.parallel:
        return parallel, ()
    ranks = record.parallel.tensor
    return parallel, (f"heads cannot be shared by {ranks} ranks: taken as {ranks} copies of attention",)


def _possible(parallel: Parallel, model: ModelProfile) -> Parallel:
    """Return a spread in which the heads can be shared: where they cannot, attention is data parallel."""
    if splits_evenly(model, parallel.tensor):
        return parallel
    ranks = parallel.tensor * parallel.data
    experts = max((block.mlp.experts for block in model.blocks if isinstance(block.mlp, Mixture)), default=1)
    spread = ranks if experts > 1 and ranks <= experts else 1
    return Parallel(pipeline=parallel.pipeline, data=ranks, expert=spread)


def _weights(record: _Printed, model: ModelProfile, rules: EngineRules) -> tuple[str | None, str | None]:
    """Return weights and activations as `deploy` takes them; no weights where they are not known."""
    if not record.weights:
        return (_OWN, None) if rules.checkpoints else (None, None)
    named = weight_names(record.weights, record.model, rules)
    weights = named["weights"] if named is not None else gguf_weights(model, record.weights)
    if weights is None:
        return None, None
    if named is not None and "activations" in named:
        return weights, named["activations"]
    first = weights.partition(",")[0]
    whole = parse_format(RECIPES.get(first, first)) if weights != _OWN else FORMATS["bf16"]
    return weights, whole.name if whole.name in ("fp16", "fp32") else None
