"""``kvcalc simulate``: a load on an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError
from kvcalc.core.readers import count, duration, flag, memory, number, rate, whole
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.questions.groups import GPU_OR_NONE, Acceptance, Engine, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvcalc.core.reports.simulate import RunSoFar
    from kvcalc.plan.deployment import Deployment
    from kvcalc.simulate.run import Serving

__all__ = ["LoadOptions", "ServingOptions", "Simulate"]


class LoadOptions(Question):
    """The load on a server; the names are the fields of `kvcalc.Load`."""

    heading = "Load"

    trace: str | None = param(
        "--trace", help="File of requests: Azure's CSV, Mooncake's JSON lines, or any with --columns.", on_page=False
    )
    columns: str | None = param(
        "--columns", help="Columns of the trace: time=ts:ms,prompt=in,output=out.", on_page=False
    )
    arrival: str | None = param(
        "--arrival",
        otherwise="trace with --trace, else poisson",
        help="trace, poisson, gamma, constant, ramp or closed.",
    )
    rate: float | None = param("--rate", help="Requests per second; of a ramp, the first.", read=number)
    last_rate: float | None = param("--last-rate", help="ramp: requests per second at the end.", read=number)
    variation: float | None = param(
        "--variation", help="gamma: coefficient of variation of the gaps.", read=number, otherwise="2"
    )
    requests: int | None = param(
        "--requests", help="Number of requests.", otherwise="all of a trace, else 1,000", read=count, page_max=5_000
    )
    prompt: str | None = param(
        "--prompt", otherwise="", help="Prompt length (ISL): 512, uniform:128-2048, lognormal:1020,0.9 …"
    )
    output_tokens: str | None = param("--output-tokens", help="Output length (OSL), likewise.")
    users: int | None = param("--users", help="closed: concurrent users.", read=whole)
    start: str | None = param(
        "--load",
        help="closed: users begin together (burst) or apart (staggered).",
        otherwise="burst, with staggered beside it",
    )
    think_s: float | None = param(
        "--think", help="closed, conversations: mean think time: 5s.", read=duration, otherwise="0s"
    )
    turns: str | None = param("--turns", help="Turns per conversation: 4, uniform:1-8 …")
    system_tokens: int | None = param(
        "--system-tokens", help="Length of a system prompt shared by all conversations.", read=count, otherwise="0"
    )
    seed: int | None = param("--seed", help="Seed of all random numbers.", read=whole, otherwise="0")


class ServingOptions(Acceptance):
    """The service of a load; the names are the fields of `kvcalc.Serving`."""

    heading = "Serving"

    kv_memory_bytes: int | None = param("--kv-memory", help="KV-cache memory per GPU; skips the budget.", read=memory)
    policy: str | None = param(
        "--policy", otherwise="fcfs", help="Scheduling policy: fcfs, priority, or a Python file of your own."
    )
    preemption: str | None = param("--preemption", otherwise="recompute", help="recompute, or swap to host memory.")
    host_bytes_per_s: float | None = param(
        "--host-rate", help="swap: bandwidth to host memory per GPU: 50GB/s.", read=rate
    )
    gamma: int | None = param(
        "--gamma", help="Speculative decoding: draft tokens per verification.", read=whole, otherwise="0"
    )
    draft: str | None = param("--draft", help="Draft model; without it drafting is free (n-gram).")
    step_times: str | None = param(
        "--step-times",
        heading="Estimate",
        otherwise="ideal",
        help="Step time: ideal, serial, estimate, or a duration such as 20ms.",
    )
    calibration: str | None = param(
        "--calibration",
        otherwise="the one that applies",
        help="--step-times estimate: calibration, by name or file.",
        on_page=False,
    )
    replicas: int | None = param(
        "--replicas", help="Engine replicas, each on --gpus.", read=whole, otherwise="1", page_max=16
    )
    routing: str | None = param(
        "--routing", otherwise="round-robin", help="Load balancing: round-robin, least-loaded or prefix-aware."
    )
    prefill_replicas: int | None = param(
        "--prefill-replicas", help="Replicas that only prefill (disaggregated serving).", read=whole, otherwise="0"
    )
    transfer_bytes_per_s: float | None = param(
        "--transfer-rate",
        help="Bandwidth from prefill to decode per GPU: 50GB/s.",
        read=rate,
        otherwise="the GPU's network",
    )
    exact_steps: bool | None = param("--exact-steps", help="Simulate every step: same results, slower.", read=flag)
    slo: str | None = param("--slo", help="Service-level objectives: ttft_p95=1s,tpot_p95=50ms.")


class Simulate(Engine, Run, ServingOptions, LoadOptions):
    """Simulate a server under load: TTFT, TPOT, throughput, cache use, and the highest load.

    Example: kvcalc simulate --model llama3.1-8b --gpu h200 --prompt lognormal:1020,0.9 --output-tokens 200 --rate 4
    """

    model: Any = param(
        "--model",
        "-m",
        help="Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors.",
    )
    gpu: str | None = GPU_OR_NONE
    engine: str = param("--engine", help="vllm: the scheduler that is simulated.", default="vllm", on_page=False)
    steps: str | None = param(
        "--steps", heading="Load", help="Replay a recorded scenario, step by step.", metavar="FILE", on_page=False
    )
    find_capacity: bool = param(
        "--find-capacity",
        help="Find the highest rate that meets --slo.",
        read=flag,
        default=False,
        on_page=False,
    )
    price: float | None = param("--price", help="Dollars per GPU-hour.", read=number)
    tolerance: float = param(
        "--tolerance",
        help="--find-capacity: precision, as a share of the rate.",
        read=number,
        default=0.01,
        on_page=False,
    )
    save_requests: str | None = param(
        "--save-requests",
        heading="Output",
        help="Write one row per request: .csv or .parquet.",
        metavar="FILE",
        on_page=False,
    )
    save_trace: str | None = param(
        "--save-trace", heading="Output", help="Write the timeline for Perfetto: .json.", metavar="FILE", on_page=False
    )
    has_chart = True
    heading = "Serving"
    engines = ("vllm",)

    # a file of Python that decides; the command line alone names one, since it is run
    policy_file: str | None = None
    # how long the simulation itself may take, what is told of the run meanwhile, and of each rate that is tried
    within_s: float | None = None
    so_far: Callable[[RunSoFar], None] | None = None
    tried: Callable[[float, bool], None] | None = None

    def answer(self) -> Answer:
        """Serve the load, or replay a recorded scenario."""
        if self.steps is not None:
            return self._replayed(self.steps)
        for name, example in (("model", "llama3.1-8b"), ("gpu", "h200")):
            if getattr(self, name) is None:
                raise InputError(f"--{name} is missing", hint=f"for example --{name} {example}", parameter=name)
        from kvcalc.questions.serving import Load, find_capacity, simulate_serving

        asked = self.given(LoadOptions)
        if self.find_capacity and not {"trace", "users", "rate"} & set(asked):
            asked["rate"] = 1.0  # the search begins there and goes where the limits break
        load = Load(**asked)
        serving = self._serving()
        deployment = self.deployment()
        capacity = None
        if self.find_capacity:
            capacity = find_capacity(deployment, load, serving=serving, tolerance=self.tolerance, progress=self.tried)
        report = simulate_serving(
            deployment,
            load,
            serving=serving,
            capacity=capacity,
            save_requests=self.save_requests,
            save_trace=self.save_trace,
            progress=self.progress,
            within_s=self.within_s,
            so_far=self.so_far,
        )
        return Answer(report)

    def deployment(self) -> Deployment:
        """Return the model on its accelerators; the engine starts it as the run is set up."""
        from kvcalc.questions.deployments import placed

        return placed(self.model, {}, gpu=self.gpu, price_per_hour_usd=self.price, **self.given(Run))

    def _serving(self) -> Serving:
        from kvcalc.questions.deployments import engine_options
        from kvcalc.questions.serving import Serving

        if self.engine != "vllm":
            what = f"the scheduler of engine {self.engine!r} is not modelled"
            raise InputError(what, hint="leave out --engine: it is vllm", parameter="engine")
        given = self.given(ServingOptions)
        if self.policy_file is not None:
            from kvcalc.questions.policies import load_policy

            given["policy"] = load_policy(self.policy_file)
        return Serving(options=engine_options(self.engine, self.given(Engine)), **given)

    def _replayed(self, path: str) -> Answer:
        from kvcalc.questions.replay import replay_steps

        if set(self.named) - {"steps"}:
            raise InputError("a replay takes all it needs from its file", hint="beside --steps give --json or --output")
        return Answer(replay_steps(path))
