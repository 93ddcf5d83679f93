"""The report of ``kvcalc speculate``."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.identity import ById
from kvcalc.core.model import Mixture
from kvcalc.core.ranges import check_combinations
from kvcalc.core.reports.speculative import GammaRow, MapCell, SpeculativeReport, SpeculativeRow
from kvcalc.cost.parameters import parameters
from kvcalc.plan.contexts import check_batch, check_context, default_context
from kvcalc.plan.estimates import estimated_with
from kvcalc.plan.formats import format_names
from kvcalc.plan.speculative.acceptance import Acceptance
from kvcalc.plan.speculative.limits import batch_limit, largest_draft
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.options import check_gamma
from kvcalc.plan.speculative.passes import Passes, Speculation, draft_memory
from kvcalc.plan.speculative.placing import drafted
from kvcalc.plan.speculative.rules import quoted_rules
from kvcalc.plan.steps import hardware_notes, required_hardware

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.speculative import Verdict
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative.options import SpeculationOptions
    from kvcalc.plan.speculative.passes import Outcome

__all__ = ["ask", "speculation_report", "with_drafter"]

_MAP_BATCHES = tuple(2**power for power in range(11))
_MAP_RATES = tuple(step / 10 for step in range(1, 11))
_MAX_PAIRS = 8
_FEWEST_MAP_BATCHES, _MAX_MAP_BATCHES = 3, 24
# Rows that a vocabulary may be padded by: what llama.cpp lets a draft's differ (SPEC_VOCAB_MAX_SIZE_DIFFERENCE).
_MAX_PADDING = 128


def speculation_report(
    target: Deployment,
    draft: Deployment | None,
    options: SpeculationOptions,
    *,
    batches: Sequence[int] = (1,),
    contexts: Sequence[int] | None = None,
    calibration: Calibration | None = None,
) -> SpeculativeReport:
    """Return whether speculation pays for each batch, context and length of the draft, and where it stops.

    Args:
        target: the model that verifies, on its accelerators.
        draft: the draft model on the same accelerators, or a head's own profile.
        options: how is drafted.
        batches: sequences decoded together.
        contexts: tokens attended by the first new token, itself included.
        calibration: what rounds are estimated with beside their bounds.

    Raises:
        InputError: no accelerator, numbers that cannot be, too many rows, or a draft whose vocabulary is another.
        UnknownNameError: no such method.
    """
    lengths = (default_context(target.model, target.engine),) if contexts is None else tuple(contexts)
    hint = "the batches at which it pays are searched for each context without a list of them"
    check_combinations("rows of batch, context and gamma", batches, lengths, options.gammas or (None,), hint=hint)
    for batch in batches:
        check_batch(batch)
    hardware = required_hardware(target)
    for length in lengths:
        check_context(target.model, length)
    asked = ask(target, draft, options, calibration)
    way = asked.passes.drafter
    warnings = _draft_notes(target, draft, lengths)
    gammas: tuple[int | None, ...] = options.gammas or (None,)
    outcomes = [
        (batch, context, asked.asked_for(batch, context, gamma))
        for context in lengths
        for batch in batches
        for gamma in gammas
    ]
    batch, context, first = outcomes[0]
    best = asked.best(batch, context)
    limits = tuple(batch_limit(asked, length, gammas[0]) for length in lengths)
    rows = tuple(_row(asked, *outcome) for outcome in outcomes)
    return SpeculativeReport(
        model=target.model.name,
        gpu=hardware.name,
        gpus=target.parallel.gpus,
        memory_bytes=target.memory_bytes,
        formats=format_names(target.formats),
        notes=(
            *warnings,
            *_shape_notes(first, options),
            *way.notes,
            *_round_notes(asked),
            *_target_notes(target, lengths),
        ),
        draft=None if draft is None else draft.model.name,
        method=way.method,
        draft_formats=None if draft is None else format_names(draft.formats),
        acceptance=options.acceptance.by_depth(first.gamma),
        batch=batch,
        context=context,
        gamma=first.gamma,
        expected_tokens_per_pass=rows[0].expected_tokens_per_pass,
        speedup=rows[0].speedup,
        serial_speedup=rows[0].serial_speedup,
        break_even_acceptance=rows[0].break_even_acceptance,
        best_gamma=best.gamma if best.speedup > 1 else 0,
        break_even_batch=limits[0].break_even_batch,
        rows=rows,
        by_gamma=tuple(_gamma_row(asked, batch, context, gamma) for gamma in asked.gammas),
        by_context=limits,
        largest_draft=largest_draft(asked, batch, context),
        memory=draft_memory(target, way, first.tree, batch=batch, context=context),
        rules=quoted_rules(
            asked.passes, first, asked.at(batch, context, best.gamma), rate=rows[0].acceptance_rate, batch=batch
        ),
        map=_map(asked, batches, context, gammas[0]),
        estimate_speedup=rows[0].estimate_speedup,
        estimate_low_speedup=rows[0].estimate_low_speedup,
        estimate_high_speedup=rows[0].estimate_high_speedup,
        verdict=rows[0].verdict,
        calibration=estimated_with(calibration),
    )


def with_drafter(
    target: Deployment, draft: Deployment | None, *, gamma: int, method: str | None = None, layers: int | None = None
) -> Deployment:
    """Return a target with what drafts for it in its memory.

    Args:
        target: the model that verifies.
        draft: the draft model, or a head's own profile.
        gamma: drafted tokens of a verification.
        method: the way to draft; a draft model where left out.
        layers: layers that draft, where the method takes them.

    Raises:
        InputError: a draft that is missing, not taken or of another vocabulary, or a length that cannot be.
        UnknownNameError: no such method.
    """
    check_gamma(gamma)
    _draft_notes(target, draft, ())
    return drafted(target, drafter(method, target, draft, layers=layers), gamma=gamma)


def ask(
    target: Deployment, draft: Deployment | None, options: SpeculationOptions, calibration: Calibration | None = None
) -> Speculation:
    """Return target, draft, acceptance and the shapes of drafts, put together, and what rounds are estimated with.

    Raises:
        InputError: a draft that is missing or not taken, or acceptance that is not known for a length asked for.
        UnknownNameError: no such method.
    """
    return Speculation(
        passes=_passes(ById(target), ById(draft), options.method, options.draft_layers, ById(calibration)),
        acceptance=options.acceptance,
        shape=options.shape(),
        gammas=options.lengths(),
    )


@lru_cache(maxsize=_MAX_PAIRS)
def _passes(
    target: ById[Deployment],
    draft: ById[Deployment | None],
    method: str | None,
    layers: int | None,
    calibration: ById[Calibration | None],
) -> Passes:
    """Return the passes of a target and its draft, with the times that earlier questions had computed."""
    return Passes(target.value, drafter(method, target.value, draft.value, layers=layers), calibration.value)


def _row(asked: Speculation, batch: int, context: int, outcome: Outcome) -> SpeculativeRow:
    times = outcome.times
    serial = asked.passes.ratios(batch, context, outcome.tree, "serial_s")
    needed = asked.passes.memory_bytes(batch, context, outcome.tree)
    return SpeculativeRow(
        batch=batch,
        context=context,
        gamma=outcome.gamma,
        draft_tokens=outcome.tree.nodes,
        acceptance_rate=asked.acceptance.constant_rate(outcome.tree),
        expected_tokens_per_pass=outcome.expected_tokens,
        speedup=outcome.speedup,
        serial_speedup=serial.speedup(outcome.expected_tokens),
        break_even_acceptance=times.break_even(outcome.tree),
        plain_s=times.plain_s,
        draft_s=times.draft_s,
        verify_s=times.verify_s,
        draft_ratio=times.draft_ratio,
        verify_ratio=times.verify_ratio,
        verify_limiter=asked.passes.target_time(batch, context, outcome.tree.nodes + 1).limiter,
        plain_tokens_per_s=batch / times.plain_s,
        tokens_per_s=batch * outcome.expected_tokens / (times.draft_s + times.verify_s),
        fits=asked.passes.fits(batch, context, outcome.tree),
        memory_needed_bytes=needed,
        **_estimate_fields(asked, batch, context, outcome),
    )


def _estimate_fields(asked: Speculation, batch: int, context: int, outcome: Outcome) -> dict[str, Any]:
    """Return the fields of a row that hold the estimate; none of them is set without a calibration."""
    estimated = asked.passes.estimated
    if estimated is None:
        return {}
    times = asked.passes.ratios(batch, context, outcome.tree, "estimate_s")
    speedup, spread = times.speedup(outcome.expected_tokens), estimated.terms.spread(batch)
    low, high = speedup * spread.low, speedup * spread.high
    verdict: Verdict = "pays" if low > 1 else "does not pay" if high < 1 else "may pay"
    return {
        "estimate_speedup": speedup,
        "estimate_low_speedup": low,
        "estimate_high_speedup": high,
        "estimate_plain_s": times.plain_s,
        "estimate_draft_s": times.draft_s,
        "estimate_verify_s": times.verify_s,
        "estimate_host_s": times.host_s,
        "verdict": verdict,
    }


def _round_notes(asked: Speculation) -> tuple[str, ...]:
    """Note whose rounds an estimate stands on."""
    estimated = asked.passes.estimated
    if estimated is None:
        return ()
    terms = estimated.terms
    if not terms.is_measured:
        return (f"no rounds of {terms.engine} were measured: none of its host's work is in the estimate",)
    return (f"rounds as in {terms.engine}",) if terms.round_s else ()


def _gamma_row(asked: Speculation, batch: int, context: int, gamma: int) -> GammaRow:
    outcome = asked.at(batch, context, gamma)
    return GammaRow(
        gamma=gamma,
        draft_tokens=outcome.tree.nodes,
        expected_tokens_per_pass=outcome.expected_tokens,
        speedup=outcome.speedup,
        serial_speedup=asked.at(batch, context, gamma, kind="serial_s").speedup,
        break_even_acceptance=outcome.times.break_even(outcome.tree),
        estimate_speedup=_estimated_speedup(asked, batch, context, outcome),
    )


def _estimated_speedup(asked: Speculation, batch: int, context: int, outcome: Outcome) -> float | None:
    if asked.passes.estimated is None:
        return None
    return asked.passes.ratios(batch, context, outcome.tree, "estimate_s").speedup(outcome.expected_tokens)


def _map(asked: Speculation, batches: Sequence[int], context: int, gamma: int | None) -> tuple[MapCell, ...]:
    """Return speed-ups over batch and acceptance; over doubling batches where too few or too many were asked for."""
    shown = tuple(batches) if _FEWEST_MAP_BATCHES <= len(batches) <= _MAX_MAP_BATCHES else _MAP_BATCHES
    cells = []
    for batch in shown:
        for rate in _MAP_RATES:
            constant = Acceptance(rates=(rate,), constant=True)
            outcome = asked.asked_for(batch, context, gamma, acceptance=constant)
            fits = asked.passes.fits(batch, context, outcome.tree)
            cell = MapCell(
                batch=batch,
                acceptance=rate,
                gamma=outcome.gamma,
                speedup=outcome.speedup,
                fits=fits,
                estimate_speedup=_estimated_speedup(asked, batch, context, outcome),
            )
            cells.append(cell)
    return tuple(cells)


def _target_notes(target: Deployment, lengths: Sequence[int]) -> tuple[str, ...]:
    beyond = dict.fromkeys(note for tokens in lengths for note in check_context(target.model, tokens))
    stages = target.parallel.pipeline
    passed = (f"{stages} pipeline stages: times are those of one batch through all stages",) if stages > 1 else ()
    mixed = any(isinstance(block.mlp, Mixture) for block in target.model.block_counts)
    routed = (
        ("experts per verification assume independent tokens; draft tokens may share more of them",) if mixed else ()
    )
    return (*beyond, *passed, *routed, *hardware_notes(target), *target.model.notes)


def _draft_notes(target: Deployment, draft: Deployment | None, lengths: Sequence[int]) -> tuple[str, ...]:
    """Note choices of draft that are legal but foolish.

    Raises:
        InputError: its vocabulary is another.
    """
    if draft is None:
        return ()
    if required_hardware(draft) != required_hardware(target) or draft.parallel.gpus > target.parallel.gpus:
        raise InputError("a draft runs on the accelerators of its target", hint="deploy it with draft_deployment")
    notes = []
    small, large = (sum(parameters(side.model).values()) for side in (draft, target))
    if small >= large:
        notes.append(
            f"the draft {draft.model.name} is not smaller than the target {target.model.name}: "
            "only a narrower format or sparser experts make its steps cheaper"
        )
    heads = [side.model.head for side in (draft, target)]
    rows = [head.rows for head in heads if head is not None]
    if len(rows) == len(heads) and rows[0] != rows[1]:
        counted = f"{draft.model.name} has {rows[0]:,} tokens and {target.model.name} {rows[1]:,}"
        if abs(rows[0] - rows[1]) > _MAX_PADDING:
            raise InputError(
                f"vocabularies differ: {counted}", hint="a draft must be of the target's family, with its tokenizer"
            )
        notes.append(f"{counted}: taken for padding of the same vocabulary")
    limit = draft.model.context_limit
    notes += [
        f"context {tokens:,} is beyond the {limit:,} tokens that the draft {draft.model.name} was made for"
        for tokens in lengths
        if limit is not None and tokens > limit
    ]
    return tuple(notes)


def _shape_notes(first: Outcome, options: SpeculationOptions) -> tuple[str, ...]:
    notes = []
    if options.acceptance.constant:
        notes.append("acceptance is taken to be the same at all positions; --acceptance-by-position says otherwise")
    if not first.tree.is_chain:
        notes.append(
            "tree: each further child is assumed as likely to be accepted as the first, once those before it failed"
        )
    return tuple(notes)
