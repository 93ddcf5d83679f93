"""``kvcalc compare``: deployments side by side."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError, UnknownNameError, about, did_you_mean
from kvcalc.core.hardware import HardwareProfile
from kvcalc.core.ranges import check_combinations
from kvcalc.core.readers import counts, names, texts
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.explaining import used_calibration
from kvcalc.questions.groups import (
    BATCH,
    CALIBRATION,
    CONTEXT,
    ENGINE,
    ESTIMATE,
    GPU_OR_NONE,
    MODEL,
    Costs,
    Engine,
    Run,
)
from kvcalc.sources import load_hardware, load_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvcalc.core.reports.compare import CompareReport
    from kvcalc.plan.compare import Side
    from kvcalc.plan.deployment import Deployment

__all__ = ["SIDE_OPTIONS", "Compare", "OneSide", "compare", "side", "side_labels"]

_SPECS = "Sides: MODEL, GPU, MODEL@GPU or MODEL@4xGPU, then options: llama3.1-8b@2xh100-sxm,kv-dtype=fp8."
_SHORT = {"tp": "tensor_parallel", "pp": "pipeline_parallel", "ep": "expert_parallel", "dp": "data_parallel"}
_RENAMED = {"memory": "memory_bytes", "price": "price_per_hour_usd"}
_MAX_SIDES = 100
_COUNTS = ("gpus", *_SHORT.values())
# What the specification of a side can say besides the model and the accelerator.
SIDE_OPTIONS = ("weights", "kv_dtype", "activations", "batch", "context", "price", "memory", *_COUNTS)


class Compare(Engine):
    """Models, accelerators, formats or whole deployments side by side.

    All combinations of the lists and the arguments are compared. Ratios are to the first column; the best value of each
    row is marked.

    Example: kvcalc compare llama3.1-8b qwen3-8b --gpu h100-sxm --context 8192 --batch 8
    """

    specs: tuple[str, ...] = param("specs", help=_SPECS, read=texts, repeats=True, metavar="A B ...", is_argument=True)
    model: str | None = param("--model", "-m", help="Models, as a list.")
    gpu: str | None = param("--gpu", help="Accelerators, as a list.")
    gpus: str | None = param("--gpus", help="Numbers of GPUs, as a list.")
    weights: str | None = param("--weights", help="Weight formats, as a list: bf16,fp8.")
    kv_dtype: str | None = param("--kv-dtype", help="Cache formats, as a list: bf16,fp8.")
    activations: str | None = param("--activations", help="Formats of the matrix multiplications, as a list.")
    tensor_parallel: str | None = param("--tensor-parallel", "--tp", help="Tensor-parallel sizes, as a list.")
    pipeline_parallel: str | None = param("--pipeline-parallel", "--pp", help="Pipeline-parallel sizes, as a list.")
    expert_parallel: str | None = param("--expert-parallel", "--ep", help="Expert-parallel sizes, as a list.")
    data_parallel: str | None = param("--data-parallel", "--dp", help="Data-parallel (attention) replicas, as a list.")
    batch: str | None = param("--batch", help="Batch sizes, as a list or range.")
    context: str | None = param("--context", help="Context lengths (and prompt lengths), as a list or range.")
    price: str | None = param("--price", help="USD per GPU-hour: a list, or by card: h100-sxm=2.5,h200=3.2.")
    memory: str | None = param("--memory", help=Run.params["memory_bytes"].help)
    engine: str | None = ENGINE
    estimate: bool = ESTIMATE
    calibration: str | None = CALIBRATION
    towers: bool | None = Run.params["towers"]  # type: ignore[assignment]
    settings: tuple[str, ...] = Run.params["settings"]  # type: ignore[assignment]

    def answer(self) -> Answer:
        """Return the sides' figures."""
        listed = [name for name in self.params if name in ("model", "gpu", *SIDE_OPTIONS)]
        given = {name: value for name in listed if (value := getattr(self, name)) is not None}
        by_card = given.pop("price") if "=" in given.get("price", "") else ""
        lists = {name: _listed(name, text) for name, text in given.items()}
        named = [_parsed(spec) for spec in self.specs] or [{}]
        sides = [side for first in named for side in _combined(first, lists)]
        check_combinations("sides", sides, max_rows=_MAX_SIDES, hint="kvcalc sweep computes grids")
        labels = side_labels(sides)
        priced = _priced(sides, by_card) if by_card else sides
        return Answer(compare([self._side(label, each) for label, each in zip(labels, priced, strict=True)]))

    def _side(self, label: str, given: dict[str, str]) -> Side:
        """Return one side: a model as it is run, or an accelerator alone."""
        shared = self.given(Engine)
        given = {_RENAMED.get(name, name): value for name, value in given.items()}
        if "model" in given:
            made = OneSide(engine=self.engine, towers=self.towers, settings=self.settings, **shared, **given)
            return made.side(label, calibration=self.calibration, estimate=self.estimate)
        if "gpu" not in given:
            raise InputError("nothing to compare", hint="name models or accelerators: kvcalc compare h100-sxm h200")
        if shared:
            option = next(iter(shared)).replace("_", "-")
            raise InputError(f"--{option} needs an engine that runs a model", hint="name models: MODEL@GPU")
        memory_bytes = Run.params["memory_bytes"].value(given.get("memory_bytes"))
        card = load_hardware(given["gpu"], settings=self.settings, memory_bytes=memory_bytes)
        price = OneSide.params["price_per_hour_usd"].value(given.get("price_per_hour_usd"))
        return side(label, card if price is None else replace(card, price_per_hour_usd=price))


class OneSide(Costs, Engine, Run):
    """One side of a comparison: a model as it is run, at one context and batch."""

    model: str = MODEL
    gpu: str | None = GPU_OR_NONE
    context: int | None = CONTEXT
    batch: int = BATCH
    engine: str | None = ENGINE

    def side(self, label: str, *, calibration: str | None = None, estimate: bool = False) -> Side:
        """Return the side, by what tells it from the others, with the calibration that it is estimated with."""
        deployment = self.deployment()
        made = side(label, deployment, context=self.context, batch=self.batch)
        wanted = estimate and deployment.hardware is not None
        chosen, notes = used_calibration(deployment, calibration, wanted=wanted)
        return replace(made, calibration=chosen, notes=notes)


def _priced(sides: Sequence[dict[str, str]], by_card: str) -> list[dict[str, str]]:
    """Return sides with the prices of their accelerators; one with a price of its own keeps it.

    Raises:
        InputError: prices that cannot be read, an accelerator without one, or a price of none of them.
    """
    from kvcalc.plan.planner.prices import parse_prices, prices_of_cards

    asked = [side for side in sides if "gpu" in side and "price" not in side]
    hardware = [load_hardware(side["gpu"]) for side in asked]
    names = [(side["gpu"], card.name, *card.aliases) for side, card in zip(asked, hardware, strict=True)]
    rented = prices_of_cards(parse_prices(by_card), names)
    prices = {side["gpu"]: f"{price.usd_per_hour!r}" for side, price in zip(asked, rented, strict=True)}
    return [{"price": prices[side["gpu"]], **side} if side.get("gpu") in prices else side for side in sides]


def _listed(name: str, text: str) -> list[str]:
    """Return the values of a list option; an exception to a weight format belongs to the format before it."""
    what = name.replace("_", "-")
    with about(what):
        if name in ("batch", "context", *_COUNTS):
            return [str(value) for value in counts(text, what)]
        parts = names(text, what, each_once=False)
    values: list[str] = []
    for part in parts:
        if "=" in part and values:
            values[-1] += f",{part}"
        else:
            values.append(part)
    return values


def _parsed(spec: str) -> dict[str, str]:
    """Return the options that an argument such as ``llama3.1-8b@2xh100-sxm,kv-dtype=fp8`` spells."""
    name, *rest = spec.split(",")
    subject, _, gpu = name.partition("@")
    side = {}
    if gpu:
        multiple, _, kind = gpu.partition("x")
        side["gpu"] = kind if multiple.isdigit() and kind else gpu
        if multiple.isdigit() and kind:
            side["gpus"] = multiple
    if subject:
        side["gpu" if not gpu and _is_gpu(subject) else "model"] = subject
    for part in rest:
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        key = _SHORT.get(key, key)
        if equals and key not in SIDE_OPTIONS and "weights" in side and list(side)[-1] == "weights":
            side["weights"] += f",{part.strip()}"  # an exception to the format
            continue
        if not equals or key not in SIDE_OPTIONS:
            hint = did_you_mean(key, SIDE_OPTIONS) or f"options here: {', '.join(SIDE_OPTIONS)}"
            raise InputError(f"{spec!r}: {part!r} is not an option=value", hint=hint.replace("_", "-"))
        side[key] = value.strip()
    return side


def _is_gpu(name: str) -> bool:
    def known(load: Callable[[str], object]) -> bool:
        try:
            load(name)
        except UnknownNameError:
            return False
        return True

    return "/" not in name and not known(load_model) and known(load_hardware)


def _combined(given: dict[str, str], lists: dict[str, list[str]]) -> list[dict[str, str]]:
    free = {name: values for name, values in lists.items() if name not in given}
    check_combinations("sides", *free.values(), max_rows=_MAX_SIDES, hint="kvcalc sweep computes grids")
    return [given | dict(zip(free, values, strict=True)) for values in product(*free.values())]


def side(
    label: str, subject: Deployment | HardwareProfile | str | Path, *, context: int | None = None, batch: int = 1
) -> Side:
    """Return one side of a comparison.

    Args:
        label: what tells it from the others.
        subject: a model as it is run, or an accelerator (a profile, name or file) alone.
        context: tokens attended, and tokens of the prompt; 4,096 or the model's limit where left out.
        batch: sequences.
    """
    from kvcalc.plan.compare import Side

    compared = load_hardware(subject) if isinstance(subject, str | Path | HardwareProfile) else subject
    return Side(label=label, subject=compared, context=context, batch=batch)


def side_labels(sides: Sequence[Mapping[str, str]]) -> list[str]:
    """Return for each side what tells it from the others.

    Args:
        sides: the text of each option by its name as an argument: ``model``, ``gpu``, ``kv_dtype``.

    Raises:
        InputError: two of them are the same.
    """
    names = list(dict.fromkeys(name for side in sides for name in side))
    varied = [name for name in names if len({side.get(name) for side in sides}) > 1]
    shown = [name for name in varied if name not in ("gpu", "gpus")]
    labels = []
    for side in sides:
        differing = [name for name in shown if name in side]
        parts = [side[name] if name == "model" else f"{name.replace('_', '-')}={side[name]}" for name in differing]
        if {"gpu", "gpus"} & set(varied):
            count = f"{side['gpus']}x" if "gpus" in side else ""
            parts.insert("model" in varied and "model" in side, f"{count}{side.get('gpu', '')}")
        labels.append(" ".join(parts) or side.get("model") or side.get("gpu", ""))
    if len(set(labels)) < len(labels) and len(labels) > 1:
        raise InputError("two of the sides are the same", hint="name each once")
    return labels


def compare(sides: Sequence[Side], *, engine: str | None = None) -> CompareReport:
    """Return the quantities of several sides, with differences and ratios to the first, and the best of each.

    Args:
        sides: what is compared, as `side` makes them; the first is the measure of the others.
        engine: whose memory model says what fits; each side's own where left out.

    Raises:
        InputError: fewer than two sides, or accelerators alone among models.
    """
    from kvcalc.plan.compare import compare_report

    return compare_report(sides, engine=engine)
