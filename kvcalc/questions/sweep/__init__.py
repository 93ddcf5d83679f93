"""A report at every point of a grid: ``kvcalc sweep``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.readers import counts, flag, names, number, numbers, whole, whole_numbers
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.engine_names import engine_names
from kvcalc.questions.groups import ENGINE_NAMES, Run
from kvcalc.questions.simulate import LoadOptions, ServingOptions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.questions.sweep.inputs import Sweep

__all__ = ["Swept"]

_SPREAD = ("gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel")
# Axes: what runs where, which pass, which run, and how it drafts.
_PLACES = ("model", "gpu", "kv_dtype", "engine", *_SPREAD)
_CELLS = ("context", "batch")
_RUNS = ("rate", "seed", "replicas", "routing", "max_num_batched_tokens", "max_num_seqs")
_DRAFTING = ("draft", "method", "gamma", "acceptance", "accepted_length", "draft_rate")
# Lists that are one acceptance, not one to vary.
_BY_POSITION = ("acceptance_by_position", "acceptance_conditional")


class Swept(ServingOptions, LoadOptions):
    """One question at every point of a grid: models, accelerators, parallelism, batch, context, load.

    Example: kvcalc sweep --model llama3.1-8b --gpu h100-sxm,h200,b200 --batch 1-64*2 --context 8192
    """

    model: tuple[str, ...] = param("--model", "-m", help="Models, separated by commas.", read=names, is_required=True)
    gpu: tuple[str, ...] | None = param("--gpu", help="Accelerators, separated by commas.", read=names)
    report: str = param(
        "--report",
        heading="Grid",
        help="Question asked at each point: decode, prefill, size, fit, speculate, simulate.",
        default="decode",
    )
    batch: tuple[int, ...] | None = param(
        "--batch", help="Batch sizes: a list (1,8,32) or a range (1-256*2).", read=counts
    )
    context: tuple[int, ...] | None = param(
        "--context", help="Context lengths: a list or a range (1024-33792+1024).", read=counts
    )
    prompt: str | None = param("--prompt", help="Prompt length (ISL): a list or a range; of simulate, a distribution.")
    gpus: tuple[int, ...] | None = param("--gpus", help="Numbers of GPUs: a list or a range.", read=counts)
    tensor_parallel: tuple[int, ...] | None = param(
        "--tensor-parallel", "--tp", help="Tensor-parallel sizes: a list.", read=counts
    )
    pipeline_parallel: tuple[int, ...] | None = param(
        "--pipeline-parallel", "--pp", help="Pipeline-parallel sizes: a list.", read=counts
    )
    expert_parallel: tuple[int, ...] | None = param(
        "--expert-parallel", "--ep", help="Expert-parallel sizes: a list.", read=counts
    )
    data_parallel: tuple[int, ...] | None = param(
        "--data-parallel", "--dp", help="Data-parallel (attention) replicas: a list.", read=counts
    )
    kv_dtype: tuple[str, ...] | None = param("--kv-dtype", help="Cache formats, separated by commas.", read=names)
    weights: str | None = param("--weights", help="Weight format, with exceptions: bf16,experts=mxfp4.")
    activations: str | None = param("--activations", help="Format of the matrix multiplications.")
    engine: tuple[str, ...] | None = param(
        "--engine", help=f"Engines, separated by commas: {ENGINE_NAMES}.", read=engine_names
    )
    memory_bytes: Any = Run.params["memory_bytes"]
    towers: Any = Run.params["towers"]
    settings: Any = Run.params["settings"]
    rate: Any = param("--rate", help="simulate: requests per second, separated by commas: 1,2.5,4.", read=numbers)
    seed: Any = param("--seed", help="simulate: seeds, separated by commas.", read=whole_numbers)
    replicas: Any = param("--replicas", help="simulate: engine replicas: a list or a range.", read=counts)
    routing: Any = param("--routing", help="simulate: routings, separated by commas.", read=names)
    max_num_batched_tokens: tuple[int, ...] | None = param(
        "--max-num-batched-tokens", help="simulate: tokens per pass: a list.", read=counts
    )
    max_num_seqs: tuple[int, ...] | None = param(
        "--max-num-seqs", help="simulate: sequences per pass: a list.", read=counts
    )
    draft: Any = param("--draft", help="speculate, simulate: draft models, separated by commas.", read=names)
    method: tuple[str, ...] | None = param(
        "--method", help="speculate: drafting methods, separated by commas.", read=names
    )
    gamma: Any = param("--gamma", help="speculate, simulate: draft tokens: a list or a range.", read=counts)
    acceptance: Any = param("--acceptance", help="speculate, simulate: rates, separated by commas.", read=numbers)
    accepted_length: Any = param(
        "--accepted-length", help="Likewise: tokens per pass, separated by commas.", read=numbers
    )
    draft_rate: Any = param(
        "--draft-rate", help="Likewise: accepted / drafted tokens, separated by commas.", read=numbers
    )
    save: str | None = param("--save", help="Write the rows to a .csv, .jsonl or .parquet file.", metavar="FILE")
    resume: bool = param(
        "--resume", heading="Output", help="Continue a stopped sweep to --save FILE.", read=flag, default=False
    )
    pareto: bool = param(
        "--pareto",
        help="Keep the Pareto front of tokens/s per sequence and per GPU.",
        read=flag,
        default=False,
    )
    slo: str | None = param(
        "--slo", help="Service-level objectives; the best point that meets them is named: tpot_p95=50ms,ttft_p95=1s."
    )
    price: str | None = param(
        "--price",
        help="Dollars per GPU-hour: 2.5, or by card: h100-sxm=2.5,h200=3.2; --slo then names the cheapest tokens.",
    )
    workers: int | None = param(
        "--workers", help="Worker processes.", read=whole, otherwise="1; for simulations, the number of cores"
    )
    scheduler: str | None = param("--scheduler", help="Dask scheduler to run on: tcp://HOST:PORT.")

    heading = "Grid"

    def answer(self) -> Answer:
        """Return the rows of all points."""
        from kvcalc.questions.sweep.running import sweep

        return Answer(
            sweep(
                self.asked(),
                save=self.save,
                resume=self.resume,
                pareto=self.pareto,
                slo=self.slo,
                workers=self.workers,
                scheduler=self.scheduler,
                progress=self.progress,
            )
        )

    def asked(self) -> Sweep:
        """Return the sweep: its axes, and what does not vary.

        Raises:
            InputError: options of another report.
        """
        from kvcalc.questions.sweep.inputs import Sweep

        options, axes = self._options(), self._axes(*_PLACES)
        if self.report == "simulate":
            self._refuse("speculate", "method")
            axes |= self._axes(*_RUNS, *_DRAFTING)
            options |= self._axes("prompt", "slo")
        elif self.report == "speculate":
            self._refuse("simulate", *_RUNS, "prompt", *(name for name in options if name not in _BY_POSITION))
            axes |= self._axes(*_DRAFTING, *_CELLS)
        else:
            self._refuse("speculate", *_DRAFTING, *_BY_POSITION)
            self._refuse("simulate", *_RUNS, *options)
            is_prefill = self.report == "prefill"
            if (self.context if is_prefill else self.prompt) is not None:
                idle, taken = ("context", "prompt") if is_prefill else ("prompt", "context")
                raise InputError(f"{self.report} has no --{idle}", hint=f"give --{taken}", parameter=idle)
            prompts = None if self.prompt is None else counts(self.prompt, "prompt")
            axes |= self._axes(*_CELLS) | ({} if prompts is None else {"prompt": prompts})
        fixed = {name: getattr(self, name) for name in ("weights", "activations", "memory_bytes", "towers")}
        deployment = {name: value for name, value in fixed.items() if value is not None}
        if self.price is not None:
            deployment["prices"] = _prices(self.price, axes.get("gpu", ()))
        return Sweep(
            report=self.report, axes=axes, deployment={**deployment, "settings": self.settings}, options=options
        )

    def _axes(self, *names: str) -> dict[str, Any]:
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def _options(self) -> dict[str, Any]:
        """Return the options of simulations that do not vary."""
        own = [name for name in self.params if name not in vars(type(self))]
        return self._axes(*own)

    def _refuse(self, owner: str, *names: str) -> None:
        """Refuse options of another report."""
        name = next((name for name in names if getattr(self, name) is not None), None)
        if name is not None:
            option = self.params[name].name
            raise InputError(f"--{option} is an option of {owner}, not of {self.report}",
                             hint=f"add --report {owner}", parameter=option)  # fmt: skip


def _prices(text: str, cards: Sequence[Any]) -> tuple[tuple[str, float], ...]:
    """Return dollars a GPU-hour by card, or under no name for all of them.

    Raises:
        InputError: prices that cannot be read, a card without one, or a price of none of them.
    """
    from kvcalc.plan.planner.prices import Price, parse_prices, prices_of_cards

    if "=" not in text:
        return (("", Price(usd_per_hour=number(text, "price")).usd_per_hour),)
    named = [str(card).lower() for card in cards]
    rented = prices_of_cards(parse_prices(text), [(card,) for card in named])
    prices = {card: price.usd_per_hour for card, price in zip(named, rented, strict=True)}
    return tuple(sorted(prices.items()))
