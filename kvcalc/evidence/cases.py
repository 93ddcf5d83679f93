"""From a record to what can be computed: accelerators, and the passes that the measured time was spent on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from kvcalc.core.errors import KvcalcError
from kvcalc.core.formats import FORMATS, parse_format
from kvcalc.core.workload import Parallel, TokenGroup, decode_step, prefill_pass
from kvcalc.cost.forward import forward_cost
from kvcalc.evidence.gguf_types import gguf_weights
from kvcalc.evidence.names import engine_rules, exclusion, find_hardware, find_model, weight_names
from kvcalc.plan.deployment import Deployment, deploy, memory_needed

if TYPE_CHECKING:
    from kvcalc.core.cost_types import StepCost
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.core.workload import Routing
    from kvcalc.evidence.names import EngineRules
    from kvcalc.evidence.record import Record

__all__ = ["Case", "Pass", "Unusable", "case_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """Forward passes (or kernels) that are alike.

    Args:
        cost: of one of them.
        groups: the tokens of one of them; none for a kernel.
        times: how many.
    """

    cost: StepCost
    groups: tuple[TokenGroup, ...] = ()
    times: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A record as passes on an accelerator.

    Args:
        record: the record.
        hardware: the accelerator; of several that a name may mean, the fastest.
        passes: what the measured time was spent on.
        measured_s: the measured time of all passes.
        deployment: model, formats and parallel sizes; none for a kernel.
        one_by_one: whether pipeline stages follow each other, as for a single sequence.
        narrow: the same passes multiplied in the narrower format of their operands, where an engine may do so.
        assumed: what was not printed, and how it was taken: so that the bound holds for whatever it was.
    """

    record: Record
    hardware: HardwareProfile
    passes: tuple[Pass, ...]
    measured_s: float
    deployment: Deployment | None = None
    one_by_one: bool = False
    narrow: tuple[Pass, ...] = ()
    assumed: tuple[str, ...] = ()

    def with_routing(self, routing: Routing) -> Case:
        """Return the case with other experts touched."""
        if self.deployment is None:
            return self
        return replace(self, passes=tuple(_pass(self.deployment, step.groups, step.times, routing)
                                          for step in self.passes))  # fmt: skip

    def with_cache(self, name: str) -> Case:
        """Return the case with its cache in another format."""
        if self.deployment is None:
            return self
        cache = parse_format(name)
        deployment = replace(self.deployment, formats=replace(self.deployment.formats, key=cache, value=cache))
        passes = tuple(_pass(deployment, step.groups, step.times) for step in self.passes)
        return replace(self, deployment=deployment, passes=passes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unusable:
    """A record that cannot be held against a prediction.

    Args:
        status: whether a profile is missing, or the record leaves open what was measured.
        reason: what is missing.
    """

    status: Literal["no profile", "excluded"]
    reason: str


def case_of(record: Record) -> Case | Unusable:
    """Return a record of a model's speed as passes on an accelerator, or why it cannot be used."""
    reason = exclusion(record)
    if reason is not None:
        return Unusable(status="excluded", reason=reason)
    found, model = find_hardware(record.hardware), find_model(record.model)
    if found is None or model is None:
        missing = f"accelerator {record.hardware!r}" if found is None else f"model {record.model!r}"
        return Unusable(status="no profile", reason=f"no profile of the {missing}")
    hardware, variants = found
    rules = engine_rules(record.engine)
    if "cpu" in record.engine.lower():
        return Unusable(status="no profile", reason="ran on the CPU, of which there is no profile")
    assumed = [f"{record.hardware} may be {', '.join(variants)}: taken as {hardware.name}"] if len(variants) > 1 else []
    try:
        deployment = _deployment(record, model, hardware, rules, assumed)
        if isinstance(deployment, Unusable):
            return deployment
        return _case(record, deployment, hardware, assumed)
    except KvcalcError as error:
        return Unusable(status="excluded", reason=error.what)


def _deployment(
    record: Record, model: ModelProfile, hardware: HardwareProfile, rules: EngineRules, assumed: list[str]
) -> Deployment | Unusable:
    weights, activations = _weights(record, model, rules)
    if weights is None:
        printed = record.weights
        told = f"the weight format {printed!r} is not known" if printed else "the weight format was not printed"
        return Unusable(status="excluded", reason=told)
    cache = _cache(record, rules, assumed)
    tensor = record.tensor or (1 if rules.name == "llama.cpp" else record.devices)
    deployment = deploy(
        model,
        hardware=hardware,
        parallel=Parallel(tensor=tensor, pipeline=max(1, record.devices // tensor)),
        weights=None if weights == "own" else weights,
        kv=cache,
        activations=activations,
    )
    if rules.attention is None:
        return deployment
    return replace(deployment, formats=replace(deployment.formats, hidden=FORMATS[rules.attention]))


def _weights(record: Record, model: ModelProfile, rules: EngineRules) -> tuple[str | None, str | None]:
    """Return the formats of weights and activations as `deploy` takes them; no weights where they are not known."""
    named = weight_names(record)
    of_file = gguf_weights(model, record.weights or "") if rules.name == "llama.cpp" else None
    if named is not None and "activations" in named and of_file is None:
        return named["weights"], named["activations"]
    weights = named["weights"] if named is not None and (of_file is None or "activations" not in named) else of_file
    if weights is None:
        return None, None
    stored = parse_format(weights.partition(",")[0]) if weights != "own" else FORMATS["bf16"]
    if rules.quantized is not None and stored.block_elements > 1:
        return weights, rules.quantized
    return weights, stored.name if stored.name in ("fp16", "fp32") else None


def _cache(record: Record, rules: EngineRules, assumed: list[str]) -> str | None:
    if record.kv:
        return record.kv.split()[0].lower()
    narrow = rules.cache.get((record.weights or "").lower())
    if narrow is not None:
        assumed.append(f"the cache's format was not printed: taken as {narrow}")
    return narrow


def _case(record: Record, deployment: Deployment, hardware: HardwareProfile, assumed: list[str]) -> Case | Unusable:
    if record.batch is None:
        return Unusable(status="excluded", reason="the number of sequences at once was not printed")
    steps = {"decode": _decode, "tpot": _decode, "prefill": _prefill, "ttft": _first_token, "end_to_end": _whole}
    passes, measured_s = steps[record.phase](record, deployment, record.batch, assumed)
    return Case(
        record=record,
        hardware=hardware,
        passes=passes,
        measured_s=measured_s,
        deployment=deployment,
        one_by_one=record.batch == 1 and record.phase in ("decode", "tpot"),
        assumed=tuple(assumed),
    )


def _pass(
    deployment: Deployment, groups: tuple[TokenGroup, ...], times: float = 1.0, routing: Routing = "expected"
) -> Pass:
    cost = forward_cost(deployment.model, groups, deployment.formats, parallel=deployment.parallel, routing=routing)
    return Pass(cost=cost, groups=groups, times=times)


def _mean_context(record: Record) -> int:
    """Return the mean context of the decode steps: after the prompt, half of what was generated."""
    return record.depth_tokens + (record.prompt_tokens or 0) + 1 + (record.output_tokens or 0) // 2


def _decode(record: Record, deployment: Deployment, batch: int, assumed: list[str]) -> tuple[tuple[Pass, ...], float]:
    is_time = record.unit.split()[0] in ("ms", "s")
    measured_s = record.seconds_per_token * (1 if is_time else batch)
    running = _running(record, deployment, batch, measured_s, assumed)
    return (_pass(deployment, (decode_step(batch=running, context=_mean_context(record)),)),), measured_s


def _running(record: Record, deployment: Deployment, batch: int, step_s: float, assumed: list[str]) -> int:
    """Return how many sequences a step held on average, of those that a client kept under way.

    A sequence decodes for output * step seconds and waits for its first token before: by Little's law that share of
    them decodes at a time. And no more decode at once than the memory holds.
    """
    context = _mean_context(record)
    running = float(batch)
    if record.ttft_s is not None and record.output_tokens:
        decoding_s = record.output_tokens * step_s
        running = max(1.0, batch * decoding_s / (decoding_s + record.ttft_s))
    held = _most_held(deployment, context, batch)
    if held < running:
        assumed.append(f"no more than {held} sequences of {context:,} tokens fit the memory")
    return max(1, min(int(running), held))


def _most_held(deployment: Deployment, tokens: int, batch: int) -> int:
    empty, one = (memory_needed(deployment, tokens=tokens, batch=size) for size in (0, 1))
    if deployment.fits(memory_needed(deployment, tokens=tokens, batch=batch)):
        return batch
    return max(1, int((deployment.memory_bytes - empty) // max(1, one - empty)))


def _prefill(record: Record, deployment: Deployment, batch: int, assumed: list[str]) -> tuple[tuple[Pass, ...], float]:
    del assumed
    prompt = max(1, record.prompt_tokens or 1)
    is_time = record.unit.split()[0] in ("ms", "s")
    measured_s = record.seconds_per_token * (1 if is_time else prompt * batch)
    group = TokenGroup(
        sequences=batch, query_tokens=prompt, past_tokens=record.depth_tokens, encoder_pass=not record.depth_tokens
    )
    return (_pass(deployment, (group,)),), measured_s


def _first_token(
    record: Record, deployment: Deployment, batch: int, assumed: list[str]
) -> tuple[tuple[Pass, ...], float]:
    """A request's first token comes no sooner than its own prompt is read, whatever the others do."""
    del batch, assumed
    group = prefill_pass(batch=1, prompt=max(1, record.prompt_tokens or 1))
    return (_pass(deployment, (group,)),), record.seconds_per_token


def _whole(record: Record, deployment: Deployment, batch: int, assumed: list[str]) -> tuple[tuple[Pass, ...], float]:
    """A batch of requests: their prompts, then a step for each further token."""
    prompt, output = max(1, record.prompt_tokens or 1), max(1, record.output_tokens or 1)
    held = _most_held(deployment, prompt + output, batch)
    if held < batch:
        assumed.append(f"no more than {held} sequences of {prompt + output:,} tokens fit the memory")
        batch = held
    passes = [_pass(deployment, (prefill_pass(batch=batch, prompt=prompt),))]
    if output > 1:
        passes.append(_pass(deployment, (decode_step(batch=batch, context=_mean_context(record)),), output - 1))
    return tuple(passes), record.seconds_per_token * batch * output
