"""Confirmed candidates as the options of a report: prices, margins, commands, and which of them none beats."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import UnsupportedError
from kvcalc.core.reports.plan import Interval, PlanOption, Role, TokenPrices
from kvcalc.core.units import usd_text
from kvcalc.engines.commands import checkpoint_name, command_text, needed_checkpoint, start_command
from kvcalc.plan.estimates import few_measurements
from kvcalc.plan.formats import format_names
from kvcalc.plan.planner.prices import HOURS_PER_MONTH, break_even_rate, usd_per_million

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvcalc.simulate.planner.candidates import Candidate, Demand
    from kvcalc.simulate.planner.confirmed import Confirmed

__all__ = ["option_of", "ranked_options", "words_of"]

_OPTIONS = (
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "prefix_caching",
    "utilization",
    "parallel",
    "ctx_size",
    "cache_type_k",
    "cache_type_v",
)
# Times the plan's replicas that a break-even with an API is looked for.
_MAX_TIMES = 64
_STATISTICS = ("p50", "p95", "p99", "mean")


def words_of(candidate: Candidate, *, role: str = "") -> tuple[str, ...]:
    """Return the command that starts a replica of a candidate; none of an engine whose command is not described."""
    deployment, drafting = candidate.deployment, candidate.variant.drafting
    config: dict[str, object] | None = None
    if drafting is not None:
        model = drafting.model
        config = {"method": "ngram"} if model is None else {"model": checkpoint_name(model.model)}
        config |= {"num_speculative_tokens": drafting.gamma}
    try:
        return start_command(
            deployment.served_by,
            deployment.model,
            deployment.formats,
            deployment.parallel,
            deployment.options,
            weights=deployment.asked.weights,
            drafting=config,
            role=role,
        )
    except UnsupportedError:
        return ()


def option_of(confirmed: Confirmed, demand: Demand, *, api_usd_per_million_tokens: float | None = None) -> PlanOption:
    """Return a confirmed candidate as an option; rank and Pareto follow when all are known.

    Args:
        confirmed: it.
        demand: what a plan must do.
        api_usd_per_million_tokens: price of an API that it is compared with.
    """
    candidate, traffic, summary = confirmed.candidate, demand.traffic, confirmed.summary
    deployment = candidate.deployment
    names, parallel = format_names(deployment.formats), deployment.parallel
    cost, gpus = confirmed.cost()
    usd = None if candidate.variant.price is None else cost
    working = confirmed.replicas - demand.spare
    calibration = candidate.variant.calibration
    drafting = candidate.variant.drafting
    power_w = _power_w(confirmed)
    prefiller = confirmed.prefill or candidate
    prompts = prefiller.variant.calibration
    break_even, dear = _break_even(confirmed, demand, api_usd_per_million_tokens)
    return PlanOption(
        rank=0,
        gpu=deployment.hardware.name if deployment.hardware is not None else "",
        gpus=gpus,
        replicas=confirmed.replicas,
        tensor_parallel=parallel.tensor,
        pipeline_parallel=parallel.pipeline,
        expert_parallel=parallel.expert,
        data_parallel=parallel.data,
        weights=names.weights,
        activations=names.activations,
        kv_dtype=names.kv,
        engine=deployment.served_by,
        options=_given(candidate),
        gamma=0 if drafting is None else drafting.gamma,
        draft="" if drafting is None or drafting.model is None else drafting.model.model.name,
        prefill=_prefill(confirmed),
        usd_per_hour=usd,
        usd_per_month=None if usd is None else usd * HOURS_PER_MONTH,
        usd_per_million_output_tokens=None if usd is None else _per_output(usd, demand),
        usd_per_million_tokens=None if usd is None else _shared_out(usd, confirmed, demand, working),
        joules_per_output_token=None if power_w is None else power_w / (traffic.rate_per_s * traffic.output_tokens),
        cheaper_than_api_from_requests_per_s=break_even,
        ttft_s=_chosen(summary.ttft_s),
        tpot_s=_chosen(summary.tpot_s),
        e2e_s=_chosen(summary.e2e_s),
        ttft_p95_s=summary.ttft_s["p95"],
        tpot_p95_s=summary.tpot_s["p95"],
        ttft_p95_interval=None
        if prompts is None
        else _interval(summary.ttft_s["p95"], prompts.of_phase("prefill", is_mixture=deployment.model.is_mixture)),
        tpot_p95_interval=None
        if calibration is None
        else _interval(summary.tpot_s["p95"], calibration.of_phase("decode", is_mixture=deployment.model.is_mixture)),
        holds_at_high_end=confirmed.high_end,
        load_requests_per_s=traffic.rate_per_s,
        capacity_requests_per_s=confirmed.capacity_per_s * working,
        goodput_requests_per_s=summary.goodput_requests_per_s,
        binds=confirmed.binds,
        margin=1 - traffic.rate_per_s / (confirmed.capacity_per_s * working),
        mean_running_requests=summary.mean_running_requests * candidate.copies,
        cache_used_share=summary.cache_used_share,
        limiter=max(summary.limiter_shares, key=lambda name: summary.limiter_shares[name], default=""),
        confirmed=confirmed.holds,
        pareto=True,
        calibration="" if calibration is None or prompts is None else calibration.name,
        command=command_text(words_of(candidate, role="decode" if confirmed.prefill_replicas else "")),
        notes=(*_notes(confirmed), *dear),
    )


def _break_even(confirmed: Confirmed, demand: Demand, api_usd: float | None) -> tuple[float | None, tuple[str, ...]]:
    """Return the load from which an option costs less than an API, and a note where there is none.

    More replicas than the plan's are counted where its own do not carry that load.
    """
    candidate, traffic = confirmed.candidate, demand.traffic
    if candidate.variant.price is None or api_usd is None:
        return None, ()
    tokens = traffic.prompt_tokens + traffic.output_tokens
    working, apart = confirmed.replicas - demand.spare, confirmed.prefill_replicas
    for times in range(1, _MAX_TIMES + 1):
        usd, _ = confirmed.cost(times * working + demand.spare, times * apart)
        rate = break_even_rate(usd_per_hour=usd, usd_per_million_tokens=api_usd, tokens=tokens)
        carried = times * working * confirmed.capacity_per_s * demand.load_share
        if rate <= carried:
            return rate, ()
    usd_at_capacity = usd_per_million(usd_per_hour=usd, tokens_per_s=carried * tokens)
    full = (
        f"at {demand.load_share:.0%} of their capacity the replicas cost {usd_text(usd_at_capacity)} per million tokens"
    )
    return None, (f"the API is cheaper at every load: {full}, the API {usd_text(api_usd)}",)


def _prefill(confirmed: Confirmed) -> Role | None:
    """Return the engines that only prefill, where there are some."""
    if confirmed.prefill is None:
        return None
    deployment = confirmed.prefill.deployment
    parallel = deployment.parallel
    return Role(
        replicas=confirmed.prefill_replicas,
        gpu=deployment.hardware.name if deployment.hardware is not None else "",
        gpus=confirmed.prefill.gpus(confirmed.prefill_replicas),
        tensor_parallel=parallel.tensor,
        pipeline_parallel=parallel.pipeline,
        expert_parallel=parallel.expert,
        data_parallel=parallel.data,
        options=_given(confirmed.prefill),
        command=command_text(words_of(confirmed.prefill, role="prefill")),
    )


def _power_w(confirmed: Confirmed) -> float | None:
    """Return the rated power of all accelerators; none where a card's is not known."""
    parts = [(confirmed.candidate, confirmed.replicas)]
    parts += [] if confirmed.prefill is None else [(confirmed.prefill, confirmed.prefill_replicas)]
    rated = [(one.deployment.power_w, one.gpus(replicas)) for one, replicas in parts]
    known = [power_w * gpus for power_w, gpus in rated if power_w is not None]
    return sum(known) if len(known) == len(rated) else None


def _given(candidate: Candidate) -> dict[str, Any]:
    """Return the options that the engine is started with."""
    options = candidate.deployment.options
    given = {name: getattr(options, name) for name in _OPTIONS}
    if candidate.deployment.served_by != "llama.cpp":
        given = {name: value for name, value in given.items() if name not in ("parallel", "ctx_size")}
    return {name: value for name, value in given.items() if value is not None}


def _chosen(latency: Mapping[str, float]) -> dict[str, float]:
    return {name: latency[name] for name in _STATISTICS}


def _interval(seconds: float, spread: Any) -> Interval:
    return Interval(low_s=seconds * spread.low, high_s=seconds * spread.high)


def _per_output(usd: float, demand: Demand) -> float:
    traffic = demand.traffic
    return usd_per_million(usd_per_hour=usd, tokens_per_s=traffic.rate_per_s * traffic.output_tokens)


def _shared_out(usd: float, confirmed: Confirmed, demand: Demand, working: int) -> TokenPrices:
    """Share the price out by the time that prompts add to steps and the time that decoding takes, at the load.

    Found tokens cost what attending to them adds to the prompt's own steps. Engines that only prefill are the price of
    prompts, and those that only decode of the tokens that are generated.
    """
    traffic = demand.traffic
    rate = traffic.rate_per_s / (working * confirmed.candidate.copies)
    state = confirmed.candidate.state_at(rate)
    if confirmed.prefill is None:
        added, decoded = rate * state.added_s, rate * traffic.output_tokens * state.decode_s / max(state.running, 1)
        share = added / (added + decoded)
    else:
        state = confirmed.prefill.state
        share = confirmed.prefill.cost(confirmed.prefill_replicas)[0] / usd
    found_share = state.found_s / state.added_s if state.added_s else 0.0
    found_s, computed_s = traffic.rate_per_s * traffic.hit_tokens, traffic.rate_per_s * traffic.computed_tokens
    return TokenPrices(
        input_usd=usd_per_million(usd_per_hour=usd * share * (1 - found_share), tokens_per_s=computed_s),
        cached_usd=usd_per_million(usd_per_hour=usd * share * found_share, tokens_per_s=found_s) if found_s else None,
        output_usd=usd_per_million(
            usd_per_hour=usd * (1 - share), tokens_per_s=traffic.rate_per_s * traffic.output_tokens
        ),
    )


def _notes(confirmed: Confirmed) -> tuple[str, ...]:
    candidate = confirmed.candidate
    notes = list(confirmed.notes)
    engine, prefill = candidate.deployment.served_by, confirmed.prefill
    for one in (candidate, *([] if prefill is None else [prefill])):
        hardware, calibration = one.deployment.hardware, one.variant.calibration
        if calibration is None and hardware is not None:
            caveat = "its times are bounds without overlap, and a real run needs more"
            notes.append(f"no calibration of {engine} on {hardware.name}: {caveat}")
        if calibration is not None:
            notes += few_measurements(calibration, one.deployment.model, "decode", "prefill")
    file = needed_checkpoint(engine, candidate.deployment.model, candidate.deployment.asked.weights)
    notes += [file.note] * bool(file.note)
    if candidate.deployment.parallel.pipeline > 1:
        notes.append("pipeline stages are simulated one batch at a time: a real run has several under way")
    return tuple(dict.fromkeys(notes))


@dataclass(frozen=True, slots=True)
class _Figures:
    cost: float
    ttft_s: float
    tpot_s: float

    def beats(self, other: _Figures) -> bool:
        """Whether it is no worse in anything, and better in something."""
        mine, theirs = (self.cost, self.ttft_s, self.tpot_s), (other.cost, other.ttft_s, other.tpot_s)
        return mine != theirs and all(one <= two for one, two in zip(mine, theirs, strict=True))


def ranked_options(options: Iterable[PlanOption]) -> tuple[PlanOption, ...]:
    """Return options in order: estimates before bounds, then by price, GPUs and TPOT; with what none beats marked."""

    def figures(option: PlanOption) -> _Figures:
        cost = option.usd_per_hour if option.usd_per_hour is not None else float(option.gpus)
        return _Figures(cost, option.ttft_p95_s, option.tpot_p95_s)

    def order(option: PlanOption) -> tuple[Any, ...]:
        return not option.calibration, figures(option).cost, option.gpus, option.tpot_p95_s

    kept = sorted(options, key=order)
    return tuple(
        replace(
            option,
            rank=rank,
            # a bound promises too much to beat an estimate; an estimate beats a bound, and what it promises less
            pareto=not any(
                figures(other).beats(figures(option)) for other in kept if other.calibration or not option.calibration
            ),
        )
        for rank, option in enumerate(kept, 1)
    )
