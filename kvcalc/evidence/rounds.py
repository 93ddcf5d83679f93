"""Published speeds of speculation in serving engines, held against estimated rounds, and the terms fitted to some.

What is fitted does not depend on a calibration: rounds of one build with and without overlap scheduling, and rounds of
one request by the length of the draft. The other groups judge; the intervals are theirs.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import accumulate
from pathlib import Path
from statistics import linear_regression, mean
from typing import TYPE_CHECKING, Any, NamedTuple

from kvcalc.core.calibration import Interval
from kvcalc.core.reports.validate import Outcome
from kvcalc.core.speculation import DraftTree, chain
from kvcalc.core.units import MILLISECOND
from kvcalc.engines.rounds import round_terms
from kvcalc.evidence.names import find_hardware, find_model
from kvcalc.evidence.record import short_source
from kvcalc.plan.deployment import deploy, parallel_sizes
from kvcalc.plan.room import largest_batch
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.passes import Passes
from kvcalc.profiles.reader import read_yaml_file
from kvcalc.sources import find_calibration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvcalc.plan.deployment import Deployment

__all__ = ["Round", "fitted_sglang", "fitted_vllm", "interval", "outcomes", "rounds"]

_FACTS = Path(__file__).parent / "facts" / "rounds.yaml"
# Tokens of a conversation when half of it is generated; the publications print no lengths.
_CONTEXT = 512
_MAX_RUNNING = 4096
# A quantity in ten lies below the interval, one above.
_BELOW, _ABOVE = 0.1, 0.9


class Round(NamedTuple):
    """A published speed-up, and its prediction.

    Args:
        group: publication and setting; what is fitted and what judges is split by it.
        fitted: whether the terms were fitted to it.
        setting: what was printed of it.
        measured: speed with speculation over speed without.
        estimate: the prediction with the engine's rounds.
        ideal: the prediction of passes alone, in ideal times.
        calibration: what the passes are estimated with.
    """

    group: str
    fitted: bool
    setting: Mapping[str, Any]
    measured: float
    estimate: float
    ideal: float
    calibration: str

    @property
    def batch(self) -> int:
        """Sequences."""
        return int(self.setting["batch"])


@cache
def rounds() -> tuple[Round, ...]:
    """Return the published speed-ups with their predictions."""
    return tuple(_round(group, row) for group in _facts()["groups"] for row in group["rows"])


def outcomes() -> Iterator[Outcome]:
    """Yield each of them, held against the prediction and its interval."""
    for number, each in enumerate(rounds()):
        setting = each.setting
        spread = round_terms(setting["engine"], setting["method"], version=str(setting["version"])).spread(each.batch)
        yield Outcome(
            id=f"{each.group}-{number:02d}",
            suite="speculative",
            source=short_source(str(setting["source"])),
            first_hand="second-hand" not in setting["source"],
            quantity="speed-up in an engine",
            unit="times",
            status="holds",
            model=setting["model"],
            hardware=setting["gpu"],
            engine=setting["engine"],
            gpus=setting.get("gpus", 1),
            batch=each.batch,
            measured=each.measured,
            estimate=each.estimate,
            estimate_least=each.estimate * spread.low,
            estimate_most=each.estimate * spread.high,
            calibration=each.calibration,
            fitted=each.fitted,
            book="fitted" if each.fitted else "shipped",
        )


def fitted_sglang() -> tuple[float, float]:
    """Return the seconds that a round without overlap scheduling takes in SGLang, and those that each sequence adds."""
    batches, lost = [], []
    for row in _facts()["overlap"]:
        tokens = row["batch"] * row["accepted_length"]
        batches.append(row["batch"])
        lost.append(tokens / row["without_tok_s"] - tokens / row["with_tok_s"])
    slope, intercept = linear_regression(batches, lost)
    return intercept, slope


def fitted_vllm() -> float:
    """Return the seconds of a round of no drafted token in vLLM 0.9 beyond a plain step: the mean of both heads."""
    (group,) = (group for group in _facts()["groups"] if group.get("fitted"))
    at_none = []
    for head in dict.fromkeys(row["head"] for row in group["rows"]):
        rows = [row for row in group["rows"] if row["head"] == head]
        taken = [row["accepted_length"] * row["spec"] for row in rows]
        at_none.append(linear_regression([row["gamma"] for row in rows], taken).intercept)
    return float(mean(at_none) - group["tpot"]) * MILLISECOND


def interval(measured: Iterable[Round]) -> Interval:
    """Return measured over estimated speed-up of four of five, the same share beyond either end; groups weigh alike."""
    rounds_run = list(measured)
    sizes = Counter(each.group for each in rounds_run)
    shares = sorted((each.measured / each.estimate, 1 / sizes[each.group] / len(sizes)) for each in rounds_run)
    return Interval(low=_quantile(shares, _BELOW), high=_quantile(shares, _ABOVE), records=len(shares))


def _quantile(shares: Sequence[tuple[float, float]], wanted: float) -> float:
    """Return the first of weighted values at which so much of the weight is reached."""
    reached = accumulate(weight for _, weight in shares)
    return next(value for (value, _), weight in zip(shares, reached, strict=True) if weight >= wanted)


@cache
def _facts() -> Any:
    return read_yaml_file(_FACTS).data


def _round(group: Mapping[str, Any], row: Mapping[str, Any]) -> Round:
    setting = {**{key: group[key] for key in ("source", "tpot") if key in group}, **group["setting"], **row}
    target = _target(setting, engine=setting["engine"])
    calibration = find_calibration(target) or find_calibration(_target(setting, engine=None))
    passes = Passes(target, drafter(setting["method"], target, None), calibration)
    estimated = passes.estimated
    if estimated is None:
        raise ValueError(f"no calibration applies to {setting['gpu']}")
    estimated.terms = round_terms(setting["engine"], setting["method"], version=str(setting["version"]))
    gamma = setting["gamma"]
    tree = DraftTree(parents=chain(gamma).parents + (-1,) * (setting.get("nodes", gamma) - gamma))
    batch, length = setting["batch"], setting["accepted_length"]
    running, plain = (batch, batch) if "speedup" in setting else _running(passes, tree, batch)
    drafted = passes.ratios(running, _CONTEXT, tree, "estimate_s")
    alone = passes.ratios(plain, _CONTEXT, tree, "estimate_s")
    return Round(
        group=group["group"],
        fitted=bool(group.get("fitted")),
        setting=setting,
        measured=_measured(setting),
        estimate=running * length / drafted.round_s / (plain / alone.plain_s),
        ideal=passes.ratios(batch, _CONTEXT, tree).speedup(length),
        calibration=estimated.calibration.name,
    )


def _measured(setting: Mapping[str, Any]) -> float:
    if "speedup" in setting:
        return float(setting["speedup"])
    return float(setting["tpot"] / setting["spec"] if "tpot" in setting else setting["spec"] / setting["plain"])


def _target(setting: Mapping[str, Any], *, engine: str | None) -> Deployment:
    model, (hardware, *_) = find_model(setting["model"]), find_hardware(setting["gpu"])
    if model is None:
        raise ValueError(f"no profile of {setting['model']}")
    return deploy(model, hardware=hardware, parallel=parallel_sizes(gpus=setting.get("gpus", 1)), engine=engine)


def _running(passes: Passes, tree: DraftTree, users: int) -> tuple[int, int]:
    """Return the users that run at once with speculation, and without: the engine's slots limit both."""
    pair = (passes.with_draft(tree), passes.target)
    largest = [largest_batch(each, context=_CONTEXT, limit=_MAX_RUNNING) or users for each in pair]
    return min(users, largest[0]), min(users, largest[1])
