"""From what a record prints to a deployment: model, accelerator, formats, parallel sizes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.workload import Parallel
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

__all__ = ["Setup", "setup_of"]

_OWN = "own"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The setup that a record ran on.

    Args:
        deployment: model, formats and parallel sizes.
        variants: the accelerators that it may have been; the deployment has the first.
        assumed: what was not printed, and how it was taken.
        weights_known: whether the format of the weights was printed.
        limited: whether no more sequences decode at once than the memory holds.
    """

    deployment: Deployment
    variants: tuple[HardwareProfile, ...]
    assumed: tuple[str, ...]
    weights_known: bool
    limited: bool = True


def setup_of(record: Record) -> Setup | Unusable:
    """Return the setup of a record, or the reason that it is not known.

    Raises:
        KvcalcError: sizes or formats that do not go together.
    """
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
    tensor = record.tensor or (1 if rules.splits_layers else record.devices)
    deployment = deploy(
        model,
        hardware=variants[0],
        parallel=Parallel(tensor=tensor, pipeline=max(1, record.devices // tensor)),
        weights=None if weights == _OWN else weights,
        kv=cache,
        activations=activations,
    )
    if rules.attention is not None:
        deployment = replace(deployment, formats=replace(deployment.formats, hidden=FORMATS[rules.attention]))
    return Setup(deployment=deployment, variants=variants, assumed=tuple(assumed), weights_known=bool(record.weights))


def _weights(record: Record, model: ModelProfile, rules: EngineRules) -> tuple[str | None, str | None]:
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
    if rules.quantized is not None and whole.block_elements > 1:
        return weights, rules.quantized
    return weights, whole.name if whole.name in ("fp16", "fp32") else None
