"""The suite of speculative decoding: published speed-ups, and those that their authors expected, held against ours.

A speed-up is a ratio of two measured times, so no bound holds for it; it is scored as an estimate. Those of serving
engines, with batches, are those of `kvcalc.evidence.rounds`. What a publication
expects from its own acceptance and costs is exact, up to the rounding of what it prints. A speed has a bound.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.reports.validate import Outcome
from kvcalc.core.speculation import DraftTree, chain
from kvcalc.cost.speculation import expected_tokens_at_rate, speedup
from kvcalc.evidence import rounds
from kvcalc.evidence.names import engine_rules, find_hardware, find_model, weight_names
from kvcalc.evidence.record import short_source
from kvcalc.importers.hugging_face import import_config
from kvcalc.plan.deployment import Deployment, deploy, parallel_sizes
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.passes import Passes
from kvcalc.plan.speculative.placing import place_draft
from kvcalc.profiles.reader import read_yaml_file

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvcalc.evidence.record import Record

__all__ = ["held", "outcomes", "published"]

_FACTS = Path(__file__).parent / "facts" / "speculative.yaml"
# Acceptance and c are printed to two decimals, factors to one.
_HALF_PRINTED = 0.005
_FACTOR_DIGITS = 1
# Tokens of a conversation when half of it is generated; the publications print no lengths.
_CONTEXT = 512
# Errors beyond this are told with a reason.
_LARGE = 0.25
_MAX_DRAFT = 16


def outcomes(suite: str, records: Sequence[Record] | None) -> Iterator[Outcome]:
    """Yield the outcome of each published result; records of speeds hold none."""
    del suite
    if records is None:
        for row in published():
            yield from held(row)
        yield from rounds.outcomes()


def published() -> tuple[Mapping[str, Any], ...]:
    """Return the published results that kvcalc ships, with the keys of their publications."""
    return tuple(_facts()["records"])


@cache
def _facts() -> Any:
    return read_yaml_file(_FACTS).data


def held(row: Mapping[str, Any]) -> Iterator[Outcome]:
    """Yield the numbers of a published result, each held against the prediction.

    Args:
        row: ``method``, ``target`` and what was printed of ``draft``, ``hardware``, ``batch``, ``gamma_or_tree``,
            ``alpha``, ``c``, ``expected_speedup``, ``mean_accepted_length``, ``speedup``, ``spec_tok_s``,
            ``baseline_tok_s``, ``weight_format``, ``source_url``.
    """
    outcome = _told(row)
    if "weight_format" in row:
        yield _speed(outcome, row)
        return
    if "expected_speedup" in row:
        yield _expected(outcome, row)
    measured = row.get("speedup") or _rate_ratio(row)
    if measured is not None:
        yield _measured(replace(outcome, measured=measured), row)


def _told(row: Mapping[str, Any]) -> Outcome:
    source = str(row["source_url"])
    name = "/".join(str(row[key]) for key in ("method", "target", "task", "batch", "temperature") if key in row)
    return Outcome(
        id=row.get("id", name),
        suite="speculative",
        source=f"{short_source(source)}, {row['method']}",
        first_hand="second-hand" not in source,
        quantity="speed-up",
        unit="times",
        status="holds",
        model=row["target"],
        hardware=row.get("hardware", ""),
        gpus=_gpus(row),
        batch=row.get("batch"),
    )


def _gpus(row: Mapping[str, Any]) -> int:
    match = re.match(r"(\d+)x ", row.get("hardware", ""))
    return int(match[1]) if match else 1


def _rate_ratio(row: Mapping[str, Any]) -> float | None:
    spec, plain = row.get("spec_tok_s"), row.get("baseline_tok_s")
    return None if spec is None or plain is None else spec / plain


def _factor(row: Mapping[str, Any], *, alpha: float = 0.0, c: float = 0.0) -> float:
    """Return the factor that the publication's formula gives, with acceptance and c moved by their rounding."""
    gamma = row["gamma_or_tree"]
    expected = expected_tokens_at_rate(row["alpha"] + alpha, gamma)
    return speedup(expected=expected, gamma=gamma, draft_ratio=row["c"] + c, verify_ratio=1)


def _expected(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    printed = row["expected_speedup"]
    low = round(_factor(row, alpha=-_HALF_PRINTED, c=_HALF_PRINTED), _FACTOR_DIGITS)
    high = round(_factor(row, alpha=_HALF_PRINTED, c=-_HALF_PRINTED), _FACTOR_DIGITS)
    fits = low <= printed <= high
    return replace(
        outcome,
        id=f"{outcome.id}/expected",
        quantity="expected speed-up",
        status="holds" if fits else "violates",
        reason="" if fits else f"the formula gives {low} to {high}, not {printed}",
        measured=printed,
        estimate=_factor(row),
        estimate_least=low,
        estimate_most=high,
    )


def _measured(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    if "alpha" in row:
        return _scored(outcome, _factor(row), row)
    if "mean_accepted_length" not in row:
        return replace(outcome, status="excluded", reason="the accepted length of this row is not printed")
    way = _facts()["methods"].get(row["method"])
    if way is None:
        return replace(outcome, status="excluded", reason="how it drafts is not printed, or no method here does so")
    target = _target(row)
    if isinstance(target, str):
        return replace(outcome, status="excluded" if not row.get("hardware") else "no profile", reason=target)
    return _scored(outcome, row["mean_accepted_length"] / _round(target, way, row.get("batch", 1)), row)


def _scored(unscored: Outcome, estimate: float, row: Mapping[str, Any]) -> Outcome:
    outcome = replace(unscored, estimate=estimate)
    far = outcome.error is not None and abs(outcome.error) > _LARGE
    group = "Leviathan" if "alpha" in row else row["method"]
    return replace(outcome, reason=_facts()["reasons"].get(group, "") if far else "")


def _target(row: Mapping[str, Any]) -> Deployment | str:
    """Return the target on its accelerator, or why it is not known."""
    printed = row.get("hardware")
    if not printed:
        return "the accelerator is not printed"
    model = find_model(row["target"])
    hardware = find_hardware(re.sub(r"^\d+x |[ ,(]*(TP\d|SGLang|FA3)[ ,)]*", "", printed))
    if model is None or not hardware:
        return f"no profile of {row['target'] if model is None else printed}"
    return deploy(model, hardware=hardware[0], parallel=parallel_sizes(gpus=_gpus(row)))


def _round(target: Deployment, way: Mapping[str, Any], batch: int) -> float:
    """Return the time of a round over that of a plain step."""
    tree = _tree(way["tokens"], way["depth"])
    times = Passes(target, drafter(way["method"], target, _draft(target, way))).ratios(batch, _CONTEXT, tree)
    return times.steps * times.draft_ratio + times.verify_ratio


def _tree(tokens: int, depth: int) -> DraftTree:
    """Return a tree of that many tokens and levels; its passes cost the same whatever its shape between them."""
    return DraftTree(parents=chain(depth).parents + (-1,) * (tokens - depth))


def _draft(target: Deployment, way: Mapping[str, Any]) -> Deployment | None:
    if "draft" not in way:
        return None
    model, _ = import_config(dict(_facts()["drafts"][way["draft"]]), name=way["draft"])
    return place_draft(target, model)


def _speed(outcome: Outcome, row: Mapping[str, Any]) -> Outcome:
    """Hold a speed against the bound: as if every drafted token were accepted, at the fastest length of the draft."""
    model, small = find_model(row["target"]), find_model(row["draft"])
    hardware = find_hardware(row["hardware"])
    named = weight_names(row["weight_format"], row["target"], engine_rules("gpt-fast"))
    if model is None or small is None or not hardware or named is None:
        return replace(
            outcome, status="no profile", reason=f"no profile of {row['target']}, {row['draft']} or its format"
        )
    weights, activations = named["weights"], named.get("activations")
    target = deploy(model, hardware=hardware[0], weights=weights, activations=activations)
    draft = place_draft(target, small, weights=weights, activations=activations)
    passes = Passes(target, drafter(None, target, draft))
    rounds = ((gamma, passes.ratios(row["batch"], 1, chain(gamma))) for gamma in range(1, _MAX_DRAFT + 1))
    bound = min((times.draft_s + times.verify_s) / (gamma + 1) for gamma, times in rounds)
    measured = 1 / row["spec_tok_s"]
    return replace(
        outcome,
        quantity="decode",
        unit="s",
        status="holds" if measured >= bound else "violates",
        reason="" if measured >= bound else "faster than if every drafted token were accepted",
        measured=measured,
        bound=bound,
    )
