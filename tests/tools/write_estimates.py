"""Write docs/estimates.md: ``KVCALC_TRUTH=FOLDER python tests/tools/write_estimates.py``.

What calibrations say is read from their files; the errors are those of the records in the folder.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from kvcalc import api
from kvcalc.core.model import Mixture
from kvcalc.sources import shipped_calibrations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.validate import Outcome

PAGE = Path(__file__).parents[2] / "docs" / "estimates.md"

INTRODUCTION = """# Estimates

A bound says what no measurement can beat. An estimate says what an engine is likely to take: the bound corrected by rates that were
measured, printed with an interval and the name of the calibration.

```
kvcalc decode --model llama3.1-8b --gpu h100-sxm --estimate
kvcalc prefill --model llama3.1-8b --gpu m4-max-40 --weights q4_0 --calibration llama.cpp-apple
```

`--estimate` takes the calibration that applies to the accelerator: by its name, else by its generation. Weights in a format of GGUF
files are taken to run in llama.cpp, others in the first there is of vLLM, TensorRT-LLM, SGLang, gpt-fast and llama.cpp. `--calibration`
takes another by its name below, or a file of one's own in the same form (files in a folder `calibration_profiles`, found as profiles are,
have names too). Where none applies there is no estimate, and a note says so.
In JSON: `rows[].estimate_s`, `estimate_low_s`, `estimate_high_s`, for decoding `estimate_tokens_per_s`, and `calibration`.

## The form

One formula for every pass, in `kvcalc.cost.estimate`:

    step_s + logits x sample_s + layers x layer_s
      + sum over operators of (calls x call_s + max(c, m, sum_share x (c + m)))
      + collectives x collective_s + bytes / (link_share x rate)

with c = (FLOP + padding_rows x FLOP of one row more) / (flop_share x peak) and m = bytes / (bandwidth_share x bandwidth), activations in
and out at activation_share where that is told, and never less than the bound. Operators, their FLOP, bytes and calls are those of the
bound (`docs/formulas.md`); activations in and out count, as in the serial time. A pass through pipeline stages takes the sum of its
stages.

| parameter | meaning |
| --- | --- |
| `reach.KIND.bandwidth_share` | share of the memory's peak bandwidth that an operator reaches when memory limits it |
| `reach.KIND.flop_share` | share of the dense peak FLOP/s of its arithmetic format when that limits it |
| `reach.KIND.sum_share` | share of the sum of both times that an operator takes at least: 0.5 (where it is left out) if they overlap wholly, 1 if one waits for the other |
| `reach.KIND.padding_rows` | rows that each matrix is multiplied by beside those of its tokens: kernels work in tiles, and each expert that is touched has its own |
| `reach.KIND.activation_share` | share of the bandwidth at which activations pass in and out: gathered, quantised and scattered, they are moved several times |
| `reach.KIND.call_s` | time of one call that moves and computes next to nothing |
| `layer_s` | time of a layer besides its operators' bytes and FLOP: launches, norms, positions |
| `sample_s` | time of each token that is sampled, besides the head |
| `step_s` | time of a pass besides its layers: scheduling, sampling, the host |
| `collective_s`, `link_share` | time of a collective besides its bytes, and the share of the link's rate that these reach |
| `joins_inputs` | matrices with the same input (query, key and value; gate and up) run as one call |
| `memory_interval`, `compute_interval`, `intervals` | measured / estimated time of four of five records, for passes limited by memory or links, by FLOP/s; or by what was timed and whether the layers are mixtures, with the number of measurements |

KIND is `matrix` (all linear layers and the head), `attention` (what reads and writes the cache; `latent` and `state` where these differ),
`experts` (routed ones), or one of them in one arithmetic format: `matrix:fp8`. A kind that is not named reaches what `attention`, else
`matrix` does.

A token of a server that is kept full by C users, each with a prompt and O tokens to come, takes its step and waits for others' prompts,
of which C - 1 are read while its own tokens are made:

    TPOT = step + prompt_share x (C - 1) / O x prompt
    TTFT = request_s + request_steps x step + prompt x (1 + queue_share x (C - 1))

In data parallel, C is of one copy. Where prompts are read by other engines (disaggregated serving) TPOT is the step alone. `prompt_share`,
`request_s`, `request_steps` and `queue_share` are of a closed loop of users; when many start at once, first tokens come later.
"""

SPLIT = """
## How they are fitted and judged

Records are split by whole campaigns: a source, or of one that gathers the runs of many accelerators, engines and models, a group of model,
accelerator and engine, models with the same layers as one. Parameters are fitted to those under *fitted to*; the others judge them and the
fit does not see them. Which groups of served runs judge was written down before anything was fitted (`kvcalc/evidence/splits.yaml`): one
whole model, one whole accelerator, and a quarter of the rest. A measurement is its numbers and its setting, not its source's name: the
same run under another name is the same record (`kvcalc/evidence/fitted.txt` holds digests of those a fit used). `kvcalc validate` shows
what a fit used, what is shipped and what is new apart.

Engines that serve many requests (vLLM, TensorRT-LLM, SGLang) start from their kernels on their own, on B200 and H200: matrix products,
routed experts and sums over ranks of `tests/evidence/serving_kernels.csv`. Served steps then say what a step, a sampled token, a layer
and a collective take besides, and how much longer each kind's calls and work take in the engine. A parameter stays near its start unless
the mean error falls by 0.0015 for a factor of e, and more where groups are few; errors beyond a factor of e count no more. Runs across
nodes are not fitted to.

The others are fitted so: the mean over records of abs(log(estimate / measured)) is made least; all records of a campaign together weigh as
much as the square root of their number. The fit multiplies one parameter at a time by a factor, then by smaller ones, and a parameter that
the records say little of stays near where it began: at a common value, or at a neighbour's, as `llama.cpp-ampere` at `llama.cpp-rtx`,
`llama.cpp-hbm` and `llama.cpp-cuda` at `llama.cpp-ampere`. `vllm-ampere` and `vllm-ada` are `vllm-hopper` with other accelerators; they
have five records and one. No share that is fitted so may exceed 0.95, a little above what kernels that stream large operands reach of
their bandwidth (0.938, matrix-vector products on an L40S). The same records give the same bytes (`tests/tools/write_calibrations.py`).

The 80 % intervals are kept by what is timed and by the layers (decode or prefill, dense or mixture of experts; of served requests, first
tokens with and without a queue). Each holds four of five records, every one against a fit that has not seen it: of served engines a fit
without its group, of the others one without its campaign, or, of a campaign with more than half of a family's records, without an eighth of
its groups. Held-out records are judged by the shipped fit. A calibration with 5 to 19 such records of a kind takes the interval of its
engine's calibrations with as few, or of all of its engine. With fewer than 5, or where these too have fewer than 20, the answer says "too
few measurements" and prints the interval of all passes with the same limiter, which is as wide as the neighbour's at least where the
calibration has fewer than 20 records. `decode`, `prefill`, `fit`, `plan` and `simulate` take intervals and this note by the same rule; of
a model on several devices each stage has its own calibration's, weighed by its time. The coverage is 80 % by construction; on records of other sources it is a prediction.

A request whose prompts and steps cannot have been computed in the time it took (their bound is longer) was served from a prefix cache and
is not scored.
"""

LIMITS = """
## Limits

- A calibration is of the versions its records were measured with. Versions of an engine differ by 10 to 30 % on the same setting (SGLang
  0.5.9 runs DeepSeek-R1 in fp8 on eight B200 at 6.7 and at 8.8 ms a token in two dumps). On a new card builds differ much: the first
  published runs of DGX Spark (llama.cpp discussion 16578) are slower, in both phases, than those that its calibration is fitted to.
- Whether multi-token prediction was on is not printed in served runs. DeepSeek-R1 in TensorRT-LLM on H200 has runs that are 1.3 to 2 times
  faster than others of the same setting.
- Of most disaggregated runs the number of decoding engines is not printed: they are taken as one, and not scored.
- The time to a first token depends on how users start. The parameters are of a closed loop of users.
- Prefill in llama.cpp is estimated worst: builds and backends differ most there, and few sources print prompts of more than 2,048 tokens.
  On NVIDIA cards attention's shares are taken from DGX Spark with flash attention; without it, long prompts take up to twice as long.
- What builds of llama.cpp before June 2024 reach with quantised prompts on NVIDIA cards is not estimated: they did not use the 8-bit tensor
  cores. Vulkan on NVIDIA cards has two campaigns, which differ by a factor of three.
- Mixtures of experts in gpt-fast are judged by a calibration that has seen dense models alone, and take longer than it says.
- vLLM on Ampere has five records, of one to eight sequences; what it does with many, with several cards and with 8-bit weights there is
  borrowed from Hopper. Radeon, Pascal and Turing have few records each, and wide intervals.
- NVIDIA cards multiply GGUF's quantised files in 8-bit integers, as the bound takes it. Newer builds multiply mxfp4 in 4 bits on Blackwell:
  the estimate takes the FLOP/s that older ones reached in 8.
- Kernels on their own (`kernels-*`) estimate matrix products and decode attention of one call, not models. Operands that stay in the
  last-level cache are faster; kernels that are launched from Python one by one are slower by their launch.
"""


def percent(value: float, *, signed: bool = False) -> str:
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    marks = ["---"] * left + ["---:"] * (len(columns) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, marks, *rows))


def parameter_rows(found: Calibration) -> Iterable[list[str]]:
    """Return what a calibration says, one kind of operator a line."""
    times = [f"{value * 1e6:.4g}" for value in (found.step_s, found.sample_s, found.layer_s, found.collective_s)]
    for place, (kind, reach) in enumerate(found.reach.items()):
        own = [found.name, ", ".join(found.applies_to)] if not place else ["", ""]
        rest = [*times, f"{found.link_share:.4g}"] if not place else [""] * 5
        shares = [f"{value:.4g}" for value in (reach.bandwidth_share, reach.flop_share, reach.sum_share)]
        shares += [f"{reach.padding_rows:.3g}", f"{reach.activation_share or reach.bandwidth_share:.4g}"]
        shares.append(f"{reach.call_s * 1e6:.4g}")
        yield [*own, kind, *shares, *rest]


def parameters() -> str:
    columns = ["calibration", "applies to", "kind", "bandwidth", "FLOP/s", "sum", "rows", "activations", "call, µs",
               "step, µs", "sample, µs", "layer, µs", "collective, µs", "link"]  # fmt: skip
    rows = [row for found in shipped_calibrations() for row in parameter_rows(found)]
    text = "\n## The calibrations\n\nShares are of peak rates.\n\n" + table(columns, rows, left=3)
    served = [found for found in shipped_calibrations() if found.request_s]
    cells = [
        (
            found.name,
            found.measured.versions.get("served", ""),
            ", ".join(found.measured.operators),
            f"{found.prompt_share:.3g}",
            f"{found.request_s * 1e3:.4g}",
            f"{found.request_steps:.3g}",
            f"{found.queue_share:.3g}",
        )
        for found in served
    ]
    columns = [
        "calibration",
        "versions",
        "operators seen",
        "prompt share",
        "request, ms",
        "request, steps",
        "queue share",
    ]
    return text + "\nOf served requests:\n\n" + table(columns, cells, left=3)


def split() -> str:
    rows = [
        (
            found.name,
            str(found.measured.records),
            "; ".join(found.measured.trained_on),
            "; ".join(found.measured.held_out),
        )
        for found in shipped_calibrations()
    ]
    return "\n" + table(("calibration", "records", "fitted to", "judged by"), rows, left=4)


def error_cells(found: Sequence[Outcome]) -> list[str]:
    found = [outcome for outcome in found if outcome.scored]
    held = [outcome for outcome in found if not outcome.fitted]
    errors = [outcome.error for outcome in held if outcome.error is not None]
    own = [abs(outcome.error) for outcome in found if outcome.fitted and outcome.error is not None]
    if not errors:
        return ["0", "", "", "", str(len(own)), percent(median(own)) if own else ""]
    inside = sum(bool(outcome.covered) for outcome in held) / len(held)
    judged = [str(len(held)), percent(median(errors), signed=True), percent(median(map(abs, errors))), percent(inside)]
    return [*judged, str(len(own)), percent(median(own)) if own else ""]


def grouped(outcomes: Iterable[Outcome], key: Callable[[Outcome], tuple[str, ...]]) -> list[list[str]]:
    groups: dict[tuple[str, ...], list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return [[*names, *error_cells(found)] for names, found in sorted(groups.items())]


@cache
def mixture(name: str) -> bool:
    return any(isinstance(block.mlp, Mixture) for block in api.load_model(name).block_counts)


def quantity(outcome: Outcome) -> str:
    if outcome.suite == "kernels":
        return outcome.quantity
    layers = "mixture of experts" if mixture(outcome.model) else "dense"
    return f"{outcome.quantity}, {'one sequence' if outcome.batch == 1 else 'several'}, {layers}"


def estimated(folder: Path) -> list[Outcome]:
    """Return the records that have an estimate, each run once."""
    from write_calibrations import files

    found: dict[tuple[object, ...], Outcome] = {}
    for path in files(folder):
        for outcome in api.validate(records=path).outcomes:
            if outcome.error is not None and outcome.calibration and outcome.scored:
                found.setdefault((outcome.calibration, outcome.batch, outcome.measured, outcome.bound), outcome)
    return list(found.values())


def errors(folder: Path) -> str:
    outcomes = estimated(folder)
    columns = ["", "judged", "error", "\\|error\\|", "inside", "fitted", "\\|error\\|"]
    text = "\n## Errors\n\nMedians over records: estimate / measured - 1, its size, and the share of records inside the interval; beside it\n"
    text += "the size of the error on the records that the parameters were fitted to. What judges is of groups that no fit has seen.\n"
    text += "Each campaign left out in turn: `tests/tools/cross_validate.py`.\n\n"
    text += table(columns, grouped(outcomes, lambda outcome: (quantity(outcome),)))
    text += "\nAll of a suite:\n\n" + table(columns, grouped(outcomes, lambda outcome: (outcome.suite,)))
    text += "\n" + table(["calibration", *columns], grouped(outcomes, lambda o: (o.calibration, quantity(o))), left=2)
    return text


def page(folder: Path) -> str:
    return INTRODUCTION + parameters() + SPLIT + split() + errors(folder) + LIMITS


if __name__ == "__main__":
    PAGE.write_text(page(Path(os.environ["KVCALC_TRUTH"])), encoding="utf-8")
