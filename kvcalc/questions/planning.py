"""Inputs of a plan: cards with prices, variants of formats and engines, and the load."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, UnsupportedError, about
from kvcalc.engines.checkpoint import loaded_activations
from kvcalc.plan.planner.prices import Price, parse_prices, price_of, prices_of_cards
from kvcalc.plan.planner.space import in_nodes_of, with_scale_out
from kvcalc.questions.deployments import deployment, engine_options
from kvcalc.sources import find_calibration, load_calibration, load_hardware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvcalc.core.hardware import HardwareProfile
    from kvcalc.core.model import ModelProfile
    from kvcalc.plan.deployment import Deployment
    from kvcalc.questions.serving import Load
    from kvcalc.simulate.planner.candidates import Drafting, Variant
    from kvcalc.simulate.planner.planned import Asked, Confirming, Outcome

__all__ = ["named_prices", "own_rate", "priced_cards", "simulating", "unused_price_notes", "variants_of"]

# Engines whose memory and command lines are described, and which a plan is made for.
ENGINES = ("vllm", "sglang", "llama.cpp")


def named_prices(text: str | None) -> dict[str, Price]:
    """Return the prices of an option: ``h100-sxm=2.5,h200=3.2``, or a file of prices.

    Raises:
        KvcalcError: prices that cannot be read.
    """
    if text is None:
        return {}
    if _lists_prices(text):
        return parse_prices(text)
    if not text.lower().endswith((".yaml", ".yml")):
        hint = "for example --price h100-sxm=2.5,h200=3.2, or --price prices.yaml"
        raise InputError(f"price: {text!r} names no card", hint=hint, parameter="price")
    from kvcalc.profiles.prices import read_prices

    return read_prices(Path(text))


def _lists_prices(text: str) -> bool:
    """Whether prices stand in the option itself; else it names a file of them, which may name any cards."""
    return "=" in text and not text.lower().endswith((".yaml", ".yml"))


def unused_price_notes(text: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """Note prices that were typed of cards that were not asked for: likely a name that was mistyped.

    Args:
        text: the option.
        names: the cards that were asked for.
    """
    if text is None or not _lists_prices(text):
        return ()
    cards = [(name, load_hardware(name)) for name in names]
    known = {each.lower() for name, card in cards for each in (name, card.name, *card.aliases)}
    unused = [name for name in parse_prices(text) if name.lower() not in known]
    verb = "is" if len(unused) == 1 else "are"
    return (f"{', '.join(unused)} {verb} priced and not among the cards of --gpu",) if unused else ()


def priced_cards(
    names: Sequence[str], prices: Mapping[str, Price], *, nodes_of: int | None, scale_out: float | None = None
) -> list[tuple[HardwareProfile, Price | None]]:
    """Return accelerators by name, each with its price.

    Raises:
        KvcalcError: no such accelerator, or one without a price where others have one.
    """
    cards: list[HardwareProfile] = []
    known: list[tuple[str, ...]] = []
    for name in names:
        with about("gpu"):
            hardware = load_hardware(name)
        hardware = hardware if nodes_of is None else in_nodes_of(hardware, nodes_of)
        hardware = hardware if scale_out is None else with_scale_out(hardware, scale_out)
        if all(hardware.name != other.name for other in cards):
            cards.append(hardware)
            known.append((hardware.name, name, *hardware.aliases))
    own = {
        card.name: Price(usd_per_hour=card.price_per_hour_usd)
        for card, each in zip(cards, known, strict=True)
        if card.price_per_hour_usd and price_of(prices, each) is None
    }
    if not prices:
        return [(card, own.get(card.name)) for card in cards]
    return list(zip(cards, prices_of_cards({**prices, **own}, known, may_name_others=True), strict=True))


def variants_of(
    model: ModelProfile,
    cards: Sequence[tuple[HardwareProfile, Price | None]],
    *,
    engines: Sequence[str | None],
    weights: Sequence[str | None],
    kv_dtypes: Sequence[str | None],
    options: Mapping[str, Any],
    calibration: str | None,
    drafting: Drafting | None,
) -> tuple[list[Variant], list[str]]:
    """Return a model on every card in every format and engine that it runs in, and why it does not in the others.

    An engine of none is the usual one of the card.

    Raises:
        KvcalcError: an engine that is not known, or nothing that runs.
    """
    from kvcalc.simulate.planner.candidates import Variant

    made, refused = [], []
    given = None if calibration is None else load_calibration(calibration)
    for hardware, price in cards:
        for named in engines:
            for weight in weights:
                for cache in kv_dtypes:
                    engine = named or ENGINES[0]
                    try:
                        engine = named or _usual_engine(model, hardware, weight, cache)
                        asked = {name: value for name, value in options.items() if _has(engine, name)}
                        placed = _as_started(deployment(
                            model, gpu=hardware, engine=engine, weights=weight, kv_dtype=cache,
                            options=engine_options(engine, asked),
                        ))  # fmt: skip
                        placed.start(max_model_len=1).pool.holds(1, context=1, batch=1)
                    except (InputError, UnsupportedError) as error:
                        refused.append(f"{engine} on {hardware.name}: {error.what}")
                        continue
                    used = find_calibration(placed) if given is None else given
                    made.append(Variant(deployment=placed, calibration=used, price=price, drafting=None))
                    if drafting is not None and engine == "vllm":
                        made.append(replace(made[-1], drafting=drafting))
    if not made:
        raise InputError(refused[0] if refused else "nothing to plan with")
    return made, list(dict.fromkeys(refused))


def _as_started(placed: Deployment) -> Deployment:
    """Return a deployment that multiplies in the format in which its engine's command does."""
    hardware = placed.hardware
    assert hardware is not None
    loaded = loaded_activations(placed.served_by, placed.formats, hardware)
    if loaded.name == placed.formats.activations.name:
        return placed
    asked = replace(placed.asked, activations=loaded.name)
    return replace(placed, asked=asked, formats=replace(placed.formats, activations=loaded))


def simulating(workers: int | None) -> Confirming:
    """Return the function that simulates candidates: on processes beside this one, where there are several of both.

    Args:
        workers: processes, as `process_pool` takes them.

    Raises:
        InputError: too many processes.
    """
    from kvcalc.simulate.planner.planned import in_order

    if sys.platform == "emscripten":  # a browser has no processes
        return in_order
    from kvcalc.workers import process_pool, run_tasks

    pool, number = process_pool(workers)

    def confirming(function: Callable[[Asked], Outcome], tasks: Sequence[Asked]) -> Iterable[tuple[Asked, Outcome]]:
        return run_tasks(function, tasks, pool=pool if len(tasks) > 1 else None, workers=number)

    return confirming


def _usual_engine(model: ModelProfile, hardware: HardwareProfile, weights: str | None, cache: str | None) -> str:
    """Return the engine that is meant on a card where none is named."""
    usual = deployment(model, gpu=hardware, weights=weights, kv_dtype=cache).served_by
    return usual if usual in ENGINES else ENGINES[0]


def _has(engine: str, option: str) -> bool:
    from kvcalc.questions.groups import Engine

    engines = Engine.params[option].engines
    return not engines or engine in engines


def own_rate(load: Load) -> float:
    """Return the requests a second of a load: of a trace with its own times, its mean.

    Raises:
        InputError: a trace whose requests come at once.
    """
    if load.rate is not None:
        return load.rate
    bodies = load.kept_bodies()
    last_s = bodies[-1].arrival_s
    if not last_s:
        raise InputError("all requests of the trace come at once: they have no rate", hint="give --rate")
    return len(bodies) / last_s
