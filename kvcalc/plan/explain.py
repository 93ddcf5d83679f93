"""Each number with its formula, the numbers put in, and their sources.

The expressions are arithmetic that evaluates to the value they explain; the tests evaluate them, so an explanation
cannot drift away from the calculation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.model import Attention, Compressed, Cross, Latent, Shared, State
from kvcalc.core.provenance import source_of
from kvcalc.core.reports.common import ExplainedStep
from kvcalc.core.workload import decode_step, prefill_pass
from kvcalc.cost.cache import block_cache_bytes, entry_bytes, held_tokens, state_bytes
from kvcalc.cost.parameters import parameters
from kvcalc.plan.steps import required_hardware, timed_step

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.formats import Format
    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import Block, Mixer, ModelProfile
    from kvcalc.core.workload import Formats, TokenGroup
    from kvcalc.plan.deployment import Deployment

__all__ = ["explain_decode", "explain_prefill", "explain_roofline", "explain_size"]


def explain_size(deployment: Deployment, *, context: int, batch: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a size report."""
    model, formats = deployment.model, deployment.formats
    steps = [step for block in model.block_counts for step in _entry_steps(model, block, formats)]
    steps.append(_sequence_step(model, formats, context))
    per_sequence = steps[-1].value
    steps.append(
        ExplainedStep(
            quantity="kv.total_bytes",
            formula="batch x bytes per sequence",
            expression=f"{batch} * {per_sequence}",
            value=batch * per_sequence,
            unit="B",
            sources=("asked for",),
        )
    )
    steps.append(_weights_step(deployment))
    return tuple(steps)


def _model_source(model: ModelProfile, path: str) -> tuple[str, ...]:
    source = source_of(path, model.sources, model.provenance)
    return (str(source),) if source else ()


def _per_element(fmt: Format) -> str:
    return str(fmt.block_bytes) if fmt.block_elements == 1 else f"{fmt.block_bytes} / {fmt.block_elements}"


def _scaled(elements: str, fmt: Format, heads: str = "1") -> str:
    text = f"({elements}) * {_per_element(fmt)}"
    return f"({text} + {heads} * {fmt.per_head})" if fmt.per_head else text


def _entry_steps(model: ModelProfile, block: Block, formats: Formats) -> Iterator[ExplainedStep]:
    for mixer in block.mixers:
        name = f"{block.name or 'layer'}: {mixer.kind}"
        found = _entry_expression(mixer, formats)
        if found is None:
            continue
        formula, expression = found
        value = state_bytes(mixer, formats) if isinstance(mixer, State) else entry_bytes(mixer, formats)
        yield ExplainedStep(
            quantity=f"{name}, bytes {'of state' if isinstance(mixer, State) else 'per token'}",
            formula=formula,
            expression=expression,
            value=value,
            unit="B",
            sources=_model_source(model, f"blocks.{block.name}"),
        )


def _entry_expression(mixer: Mixer, formats: Formats) -> tuple[str, str] | None:
    if isinstance(mixer, State):
        return _state_expression(mixer, formats)
    if isinstance(mixer, Latent):
        formula = "(kv_lora_rank + rope_dim) x b"
        expression = _scaled(f"{mixer.kv_lora_rank} + {mixer.rope_dim}", formats.key)
    elif isinstance(mixer, Compressed):
        formula, expression = "head_dim x b", _scaled(str(mixer.head_dim), formats.key)
    elif isinstance(mixer, Shared | Cross):
        return None
    elif formats.key == formats.value and not formats.key.per_head:
        formula = "kv_heads x (head_dim + value_head_dim) x b"
        expression = f"{mixer.kv_heads} * {_scaled(f'{mixer.head_dim} + {mixer.value_dim}', formats.key)}"
    else:
        formula = "kv_heads x head_dim x b_key + kv_heads x value_head_dim x b_value (+ scales)"
        keys = _scaled(f"{mixer.kv_heads} * {mixer.head_dim}", formats.key, str(mixer.kv_heads))
        values = _scaled(f"{mixer.kv_heads} * {mixer.value_dim}", formats.value, str(mixer.kv_heads))
        expression = f"{keys} + {values}"
    indexer = None if isinstance(mixer, Compressed) else getattr(mixer, "indexer", None)
    if indexer is not None and indexer.stored:
        formula += " + index_head_dim x b"
        expression += f" + {_scaled(str(indexer.kept_dim), formats.key)}"
    return formula, expression


def _state_expression(mixer: State, formats: Formats) -> tuple[str, str]:
    from kvcalc.core.formats import parse_format

    recurrent = parse_format(mixer.recurrent_format) if mixer.recurrent_format else formats.state
    formula = "heads x key_dim x value_dim x b_state + conv_channels x conv_window x b"
    expression = (
        f"{mixer.heads} * {mixer.key_dim} * {mixer.value_dim} * {_per_element(recurrent)}"
        f" + {mixer.conv_channels} * {mixer.conv_window} * {_per_element(formats.state)}"
    )
    if mixer.extra_state_bytes:
        formula, expression = f"{formula} + extra", f"{expression} + {mixer.extra_state_bytes}"
    return formula, expression


def _sequence_step(model: ModelProfile, formats: Formats, context: int) -> ExplainedStep:
    terms: list[str] = []
    total = 0
    for block, count in model.block_counts.items():
        for mixer in block.mixers:
            if isinstance(mixer, State):
                terms.append(f"{count} * {state_bytes(mixer, formats)}")
            elif held_tokens(mixer, context):
                terms.append(f"{count} * {held_tokens(mixer, context)} * {entry_bytes(mixer, formats)}")
            if isinstance(mixer, Compressed):
                alone = block_cache_bytes(block, context, formats).growing
                rest = alone - held_tokens(mixer, context) * entry_bytes(mixer, formats)
                terms.append(f"{count} * {rest}")
        held = block_cache_bytes(block, context, formats)
        total += count * (held.growing + held.state)
    return ExplainedStep(
        quantity="kv.bytes_per_sequence",
        formula="sum over layers of layers x tokens held x bytes per token, and layers x state",
        expression=" + ".join(terms) or "0",
        value=total,
        unit="B",
        sources=_model_source(model, "layers"),
    )


def _weights_step(deployment: Deployment) -> ExplainedStep:
    model, formats = deployment.model, deployment.formats
    if model.held_weight_bytes is not None and deployment.own_weights:
        held = model.held_weight_bytes
        formula, expression, value = "the bytes of the weight file's own tensors", str(held), held
    else:
        terms, value = [], 0
        for part, size in parameters(model).items():
            fmt = formats.of(part)
            value += int(fmt.bytes(size))
            # a last block that is not full takes a whole block's bytes
            exact = size * fmt.block_bytes % fmt.block_elements == 0
            terms.append(f"{size} * {_per_element(fmt)}" if exact else f"{int(fmt.bytes(size))}")
        formula = f"parameters x b, by part: {', '.join(parameters(model))}"
        expression = " + ".join(terms)
    return ExplainedStep(
        quantity="weights.total_bytes",
        formula=formula,
        expression=expression,
        value=value,
        unit="B",
        sources=_model_source(model, "blocks"),
    )


def explain_decode(deployment: Deployment, *, batch: int, context: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a decode report."""
    steps = _pass_steps(deployment, decode_step(batch=batch, context=context))
    ideal = steps[-1].value
    rate = ExplainedStep(
        quantity="tokens_per_s",
        formula="batch / ideal_s",
        expression=f"{batch} / {ideal!r}",
        value=batch / ideal,
        unit="tokens/s",
        sources=("asked for",),
    )
    return (*_attention_flop_steps(deployment, context), *steps, rate)


def explain_prefill(deployment: Deployment, *, batch: int, prompt: int) -> tuple[ExplainedStep, ...]:
    """Return the steps behind a row of a prefill report."""
    return _pass_steps(deployment, prefill_pass(batch=batch, prompt=prompt))


def _attention_flop_steps(deployment: Deployment, context: int) -> Iterator[ExplainedStep]:
    from kvcalc.cost.attention import mixer_work

    if deployment.parallel.tensor > 1:
        return
    group = decode_step(batch=1, context=context)
    for block in deployment.model.block_counts:
        for mixer in block.mixers:
            if not isinstance(mixer, Attention) or isinstance(mixer, Cross) or getattr(mixer, "indexer", None):
                continue
            tokens = (context - 1) % mixer.chunk + 1 if mixer.kind == "chunked" else context
            tokens = min(tokens, getattr(mixer, "window", None) or tokens)
            yield ExplainedStep(
                quantity=f"{block.name or 'layer'}: {mixer.kind}, attention FLOP of one sequence",
                formula="2 x tokens attended x heads x (head_dim + value_head_dim)",
                expression=f"2 * {tokens} * {mixer.heads} * ({mixer.head_dim} + {mixer.value_dim})",
                value=mixer_work(mixer, group, deployment.formats).flop,
                unit="FLOP",
                sources=_model_source(deployment.model, f"blocks.{block.name}"),
            )


def _pass_steps(deployment: Deployment, group: TokenGroup) -> tuple[ExplainedStep, ...]:
    hardware = required_hardware(deployment)
    step = timed_step(deployment, group)
    cost, time = step.cost, step.time
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    slowest = max(cost.stages, key=lambda ops: sum(op.compulsory_bytes for op in ops))
    moved = {
        "weights": sum(op.weight_bytes for op in slowest),
        "cache read": sum(op.kv_read_bytes for op in slowest),
        "cache written": sum(op.kv_write_bytes for op in slowest),
        "logits": sum(op.io_bytes for op in slowest),
    }
    flop_by_unit: dict[str, float] = {}
    for op in slowest:
        flop_by_unit[op.unit] = flop_by_unit.get(op.unit, 0) + op.flop
    per_gpu = " of one GPU" if deployment.parallel.gpus > 1 else ""
    memory = sum(moved.values()) / bandwidth
    compute = sum(flop / hardware.peak(unit) for unit, flop in flop_by_unit.items())
    steps = [
        ExplainedStep(
            quantity=f"memory time{per_gpu}",
            formula=f"({' + '.join(moved)}) / bandwidth",
            expression=f"({' + '.join(repr(size) for size in moved.values())}) / {bandwidth!r}",
            value=memory,
            unit="s",
            sources=_hardware_source(hardware, "memory_bandwidth_bytes_per_s"),
        ),
        ExplainedStep(
            quantity=f"compute time{per_gpu}",
            formula=f"sum of FLOP / peak, by format: {', '.join(flop_by_unit)}",
            expression=" + ".join(f"{flop!r} / {hardware.peak(unit)!r}" for unit, flop in flop_by_unit.items()),
            value=compute,
            unit="s",
            sources=_hardware_source(hardware, "peak_flop_per_s"),
        ),
        ExplainedStep(
            quantity="intensity_flop_per_byte",
            formula="FLOP / bytes moved",
            expression=f"{cost.flop!r} / {cost.compulsory_bytes!r}",
            value=step.intensity_flop_per_byte,
            unit="FLOP/B",
        ),
        ExplainedStep(
            quantity="ideal_s",
            formula="max(memory time, compute time, link time)",
            expression=f"max({time.memory_s!r}, {time.compute_s!r}, {time.link_s!r})",
            value=time.ideal_s,
            unit="s",
        ),
    ]
    return tuple(steps)


def explain_roofline(hardware: HardwareProfile) -> tuple[ExplainedStep, ...]:
    """Return the steps behind an accelerator's ridge points."""
    bandwidth = hardware.memory_bandwidth_bytes_per_s
    return tuple(
        ExplainedStep(
            quantity=f"ridge point, {unit}",
            formula="peak / bandwidth",
            expression=f"{peak!r} / {bandwidth!r}",
            value=peak / bandwidth,
            unit="FLOP/B",
            sources=(
                *_hardware_source(hardware, f"peak_flop_per_s.{unit}"),
                *_hardware_source(hardware, "memory_bandwidth_bytes_per_s"),
            ),
        )
        for unit, peak in hardware.peak_flop_per_s.items()
    )


def _hardware_source(hardware: HardwareProfile, path: str) -> tuple[str, ...]:
    source = source_of(path, hardware.sources, hardware.provenance)
    return (str(source),) if source else ()
