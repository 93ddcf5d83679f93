"""``kvcalc plan``: what to rent for a traffic, and how to start it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from kvcalc.core.errors import InputError
from kvcalc.core.readers import count, duration, flag, names, names_each, number, rate, share, whole
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.questions.engine_names import engine_names
from kvcalc.questions.groups import MODEL, Acceptance

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvcalc.core.reports.plan import DaySavings, PlanOption, PlanReport
    from kvcalc.plan.planner.day import DayLoad
    from kvcalc.questions.serving import Load
    from kvcalc.simulate.planner.candidates import Demand, Drafting, Variant
    from kvcalc.simulate.planner.planned import Planned

__all__ = ["Plan", "Traffic", "plan_serving"]

_MAX_CARDS = 64
_MAX_GROWTH = 1000
# Requests of a busiest hour that are simulated: four times those that a run counts, so that its bursts are among them.
_MAX_OF_HOUR = 20_000


class Traffic(Question):
    """The traffic of a plan; the names are fields of `kvcalc.Load`."""

    heading = "Load"

    rate: float | None = param(
        "--rate",
        help="Requests per second at the peak.",
        read=number,
        otherwise="that of --trace, or the peak of --day",
    )
    prompt: str | None = param(
        "--prompt", otherwise="", help="Prompt length: 512, uniform:128-2048, lognormal:1020,0.9 …"
    )
    output_tokens: str | None = param("--output-tokens", help="Output length, likewise.")
    trace: str | None = param("--trace", help="File of requests: Azure's CSV, Mooncake's JSON lines …", on_page=False)
    columns: str | None = param("--columns", help="Columns of a trace: time=ts:ms,prompt=in,output=out.", on_page=False)
    arrival: str | None = param(
        "--arrival", help="trace, poisson, gamma or constant.", otherwise="trace with --trace, else poisson"
    )
    variation: float | None = param(
        "--variation", help="gamma: coefficient of variation of the gaps.", read=number, otherwise="2"
    )
    requests: int | None = param(
        "--requests", help="Requests of a simulation.", read=count, page_max=5_000, otherwise="as the run needs"
    )
    seed: int | None = param("--seed", help="Seed of all random numbers.", read=whole, otherwise="0")


class Plan(Traffic, Acceptance):
    """From traffic, limits and prices to the deployment to rent, and the command that starts it.

    Bounds rule out impossible options, estimates rank the rest, and the simulator checks the best ones under load. You
    give the prices; without them options are ranked by the number of GPUs.

    Example: kvcalc plan -m llama3.1-8b --gpu h100-sxm --prompt 1k --output-tokens 300 --rate 9 --slo tpot_p95=40ms
    """

    instead: ClassVar[Mapping[str, str]] = {
        **Traffic.instead,
        **dict.fromkeys(
            ("users", "concurrency", "max-concurrency", "batch", "clients"),
            "plan takes requests per second: --rate is the users divided by the seconds between a user's requests",
        ),
        "gpus": "plan chooses how many: --gpus-at-most 8 is the most of them",
        **dict.fromkeys(("budget", "max-price"), "--price h100-sxm=2.5,h200=3.2 ranks the options by dollars"),
    }

    model: str = MODEL
    gpu: tuple[str, ...] = param(
        "--gpu", help="Accelerators, as a list: h100-sxm,h200.", read=names_each, is_required=True
    )
    slo: str = param("--slo", help="Limits: ttft_p95=1s,tpot_p95=40ms.", is_required=True)
    price: str | None = param(
        "--price", help="Dollars per GPU-hour: h100-sxm=2.5,h200=3.2, or a file of prices.", on_page=True
    )
    api_price: float | None = param(
        "--api-price", help="Dollars per million tokens of an API to compare with.", read=number
    )
    engine: tuple[str, ...] | None = param(
        "--engine", help="Engines, as a list: vllm,sglang,llama.cpp.", read=engine_names
    )
    weights: str | None = param("--weights", help="Weight formats, as a list: bf16,fp8.", otherwise="the checkpoint's")
    kv_dtype: str | None = param("--kv-dtype", help="Cache formats, as a list: bf16,fp8.", otherwise="the engine's")
    prefix_share: float = param(
        "--prefix-share", help="Share of each prompt that all prompts begin with: 0.5 or 50%.", read=share, default="0"
    )
    growth: float = param("--growth", help="Times that the rate may grow to.", read=number, default="1")
    gpus_at_most: int = param("--gpus-at-most", help="GPUs of a plan at most.", read=count, default="64")
    nodes_of: int | None = param(
        "--nodes-of",
        help="GPUs of a node, which share the fast link.",
        read=count,
        otherwise="as the card's link joins",
    )
    scale_out: float | None = param(
        "--scale-out",
        help="Rate of each card's link to other nodes: 50GB/s.",
        read=rate,
        otherwise="the card's profile",
    )
    availability: str = param("--availability", help="Replicas to spare: n, n+1 or n+2.", default="n")
    margin: float = param(
        "--margin", help="Share of its capacity that a plan may be loaded to.", read=share, default="80%"
    )
    disaggregate: bool = param(
        "--disaggregate", help="Also try prefill and decode on replicas of their own.", read=flag, default=False
    )
    draft: str | None = param(
        "--draft", heading="Speculation", help="Also try speculative decoding, with this draft model or ngram."
    )
    gamma: int = param(
        "--gamma", heading="Speculation", help="Drafted tokens per verification.", read=whole, default="3"
    )
    max_num_seqs: int | None = param("--max-num-seqs", help="Sequences per pass.", read=count, otherwise="tried")
    max_num_batched_tokens: int | None = param(
        "--max-num-batched-tokens", help="Tokens per pass.", read=count, otherwise="tried"
    )
    max_model_len: int | None = param(
        "--max-model-len",
        help="Longest sequence the engine is started for.",
        read=count,
        otherwise="the longest request",
    )
    utilization: float | None = param("--utilization", help="Share of GPU memory the engine may use.", read=number)
    calibration: str | None = param("--calibration", help="Estimate with this calibration.", on_page=False)
    confirm: int = param(
        "--confirm", help="Deployments of each card that are simulated.", read=count, default="3", page_max=3
    )
    workers: int | None = param(
        "--workers", help="Processes that simulate.", read=count, otherwise="the number of cores", on_page=False
    )
    why: str | None = param("--why", help="Say why the deployments of this card are not the first.")
    day: str | None = param(
        "--day", help="A day's traffic: CSV of start,rate, or a trace of its requests.", on_page=False
    )
    cold_start: float = param(
        "--cold-start", help="--day: time that a replica takes to start.", read=duration, default="5min"
    )
    write: str | None = param(
        "--write", heading="Output", help="Write the files that start it here.", metavar="DIR", on_page=False
    )
    explains = True

    def answer(self) -> Answer:
        """Return the deployments that meet the limits."""
        from kvcalc.questions.planning import simulating
        from kvcalc.simulate.planner.planned import planned

        day = self._day()
        load, demand, variants, refused = self._asked(day)
        from kvcalc.simulate.planner.runs import Bodies

        outcome = planned(
            variants,
            demand,
            Bodies(load, prefix_share=self.prefix_share),
            slo=self.slo,
            each=self.confirm,
            apart=self.disaggregate,
            api_usd_per_million_tokens=self.api_price,
            progress=self.progress,
            confirming=simulating(self.workers),
        )
        report = self._report(load, demand, outcome, variants, refused, day)
        if report.options and self.write is not None:
            from kvcalc.questions.written import write_plan

            report = replace(report, files=write_plan(self.write, outcome.confirmed[0]))

        def explained() -> Any:
            from kvcalc.simulate.planner.explained import explain_plan

            return explain_plan(outcome.confirmed[0], demand) if outcome.confirmed else ()

        return Answer(report, explained=explained, passed=bool(report.options))

    def _day(self) -> DayLoad | None:
        if self.day is None:
            return None
        from kvcalc.questions.day import read_day

        return read_day(self.day, columns=self.columns)

    def _load(self, day: DayLoad | None) -> Load:
        """Return the load that is planned for: as described, or else the busiest hour of the day's trace."""
        from kvcalc.questions.serving import Load

        given = self.given(Traffic)
        if day is not None and "trace" not in given:
            given = {"rate": day.peak_per_s, **given}
            if day.busiest_s is not None and not given.keys() & {"prompt", "output_tokens"}:
                given = {"requests": _MAX_OF_HOUR, **given, "trace": self.day, "window_s": day.busiest_s}
            elif day.busiest_s is not None:
                given.pop("columns", None)
        return Load(**given)

    def _asked(self, day: DayLoad | None) -> tuple[Load, Demand, list[Variant], list[str]]:
        """Return the load, the demand and the variants that the parameters describe."""
        from kvcalc.plan.planner.traffic import traffic_of
        from kvcalc.questions.planning import ENGINES, named_prices, own_rate, priced_cards, variants_of
        from kvcalc.simulate.metrics import parse_slo
        from kvcalc.simulate.planner.candidates import Demand
        from kvcalc.sources import load_model

        limits = parse_slo(self.slo)
        self._check()
        model = load_model(self.model)
        if isinstance(self.model, str) and "/" in self.model and self.model in model.aliases:
            model = replace(model, aliases=(self.model, *model.aliases))  # the checkpoint that the command fetches
        load = self._load(day)
        if load.process in ("closed", "ramp"):
            raise InputError(
                f"a plan is made for open arrivals, not {load.process}", hint="--arrival poisson", parameter="arrival"
            )
        peak = own_rate(load) * self.growth
        cards = priced_cards(self.gpu, named_prices(self.price), nodes_of=self.nodes_of, scale_out=self.scale_out)
        unknown = next((name for name in self.engine or () if name not in ENGINES), None)
        if unknown is not None:
            raise InputError(
                f"no plan is made for engine {unknown!r}", hint=f"engines: {', '.join(ENGINES)}", parameter="engine"
            )
        options = {name: value for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "utilization")
                   if (value := getattr(self, name)) is not None}  # fmt: skip
        variants, refused = variants_of(
            model,
            cards,
            engines=self.engine or (None,),
            weights=_formats(self.weights),
            kv_dtypes=_formats(self.kv_dtype),
            options=options,
            calibration=self.calibration,
            drafting=self._drafting(),
        )
        demand = Demand(
            traffic=traffic_of(load.kept_bodies(), rate_per_s=peak, prefix_share=self.prefix_share),
            limits=limits,
            load_share=self.margin,
            spare=_spare(self.availability),
            max_gpus=self.gpus_at_most,
        )
        _check_length(demand, variants[0])
        return load, demand, variants, refused

    def _check(self) -> None:
        for name, wrong, what in (
            ("margin", not 0 < self.margin <= 1, "a plan is loaded to more than 0 and at most 100% of its capacity"),
            ("growth", not 0 < self.growth <= _MAX_GROWTH, "the rate grows to more than 0 and at most 1,000 times"),
            ("gpu", len(self.gpu) > _MAX_CARDS, f"at most {_MAX_CARDS} accelerators are compared"),
            ("api-price", self.api_price is not None and self.api_price <= 0, "api-price must be above 0"),
        ):
            if wrong:
                raise InputError(what, parameter=name)
        _spare(self.availability)

    def _drafting(self) -> Drafting | None:
        if self.draft is None:
            return None
        from kvcalc.core.speculation import chain
        from kvcalc.plan.speculative import read_acceptance
        from kvcalc.questions.deployments import deployment
        from kvcalc.simulate.planner.candidates import Drafting

        given = self.given(Acceptance)
        if not given:
            raise InputError(
                "speculative decoding needs an acceptance", hint="give --acceptance 0.7", parameter="acceptance"
            )
        rates = read_acceptance(chain(self.gamma), **given).by_depth(self.gamma)
        expected, product = 1.0, 1.0
        for accepted in rates:
            product *= accepted
            expected += product
        model = None if self.draft == "ngram" else deployment(self.draft, gpu=self.gpu[0], engine="vllm")
        return Drafting(gamma=self.gamma, tokens_per_pass=expected, model=model)

    def _report(
        self,
        load: Load,
        demand: Demand,
        outcome: Planned,
        variants: list[Variant],
        refused: list[str],
        day: DayLoad | None,
    ) -> PlanReport:
        from kvcalc.core.reports.plan import PlanReport
        from kvcalc.questions.day import day_notes
        from kvcalc.questions.planning import unused_price_notes
        from kvcalc.simulate.planner.told import answer_text, plan_notes, why_lines

        first = outcome.options[0] if outcome.options else None
        of_hour = None if load.window_s is None else load.requests
        return PlanReport(
            model=variants[0].deployment.model.name,
            workload=replace(load, rate=demand.traffic.rate_per_s).text,
            slo=self.slo,
            answer=answer_text(outcome, demand),
            counts=outcome.counts,
            options=outcome.options,
            reasons=tuple(f"{card}: {reason}" for card, reason in outcome.reasons.items()),
            why=() if self.why is None else why_lines(self.why, outcome),
            day=None if day is None or first is None else self._savings(first, demand, day),
            notes=(
                *plan_notes(variants, demand, outcome),
                *(
                    day_notes(day, planned_per_s=demand.traffic.rate_per_s, simulated=of_hour)
                    if outcome.options
                    else ()
                ),
                *unused_price_notes(self.price, self.gpu),
                *refused,
                *variants[0].deployment.notes,
            ),
        )

    def _savings(self, option: PlanOption, demand: Demand, day: DayLoad) -> DaySavings:
        from kvcalc.plan.planner.day import day_savings

        working = option.replicas - demand.spare
        return day_savings(
            day,
            capacity_per_s=option.capacity_requests_per_s / working * demand.load_share,
            gpus=-(-option.gpus // option.replicas),  # of one that decodes, with its share of those that prefill
            spare=demand.spare,
            cold_start_s=self.cold_start,
        )


def _formats(text: str | None) -> tuple[str | None, ...]:
    return (None,) if text is None else names(text, "formats")


def _spare(text: str) -> int:
    """Return the replicas to spare that an availability asks for.

    Raises:
        InputError: not ``n``, ``n+1`` or ``n+2``.
    """
    spares = {"n": 0, "n+1": 1, "n+2": 2}
    if text.strip().lower() not in spares:
        raise InputError(f"availability is n, n+1 or n+2, not {text!r}", parameter="availability")
    return spares[text.strip().lower()]


def _check_length(demand: Demand, variant: Variant) -> None:
    """Refuse requests that no engine takes.

    Raises:
        InputError: a request longer than the model's limit, or than max-model-len.
    """
    limit, longest = variant.deployment.model.context_limit, demand.traffic.longest
    asked = variant.deployment.options.max_model_len
    if limit is not None and longest > limit:
        name = variant.deployment.model.name
        what = f"the longest request has {longest:,} tokens, and {name} was made for {limit:,}"
        raise InputError(what, hint="ask for shorter prompts or outputs", parameter="prompt")
    if asked is not None and longest > asked:
        raise InputError(
            f"the longest request has {longest:,} tokens, more than max-model-len {asked:,}", parameter="max-model-len"
        )


def plan_serving(model: Any, *, gpu: Any, slo: str, **given: Any) -> PlanReport:
    """Return the deployments of a model that serve a traffic within limits, the one to rent first.

    Args:
        model: the model.
        gpu: accelerators, by name.
        slo: limits: ``ttft_p95=1s,tpot_p95=40ms``.
        given: the other parameters of ``kvcalc plan`` by name: ``rate``, ``prompt``, ``output_tokens``, ``price``.

    Raises:
        KvcalcError: what cannot be read or does not go together. Limits that nothing meets raise nothing: the report
            has no option, and says why.
    """
    report: PlanReport = Plan(model=model, gpu=gpu, slo=slo, **given).answer().report
    return report
