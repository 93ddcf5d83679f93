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
    from kvcalc.evidence.calibrate import Unseen

# Records that a share is told of.
ENOUGH = 20
PAGE = Path(__file__).parents[2] / "docs" / "estimates.md"

INTRODUCTION = """# Estimates

A bound says what no measurement can beat. An estimate says what an engine is likely to take: the bound corrected by rates that were
measured, printed with an interval and the name of the calibration.

```
kvcalc decode --model llama3.1-8b --gpu h100-sxm --estimate
kvcalc prefill --model llama3.1-8b --gpu m4-max-40 --weights q4_0 --calibration llama.cpp-apple
```

`--estimate` looks for a calibration of the accelerator by name, then by generation. GGUF formats use llama.cpp's; other formats use the first
available of vLLM, TensorRT-LLM, SGLang, gpt-fast and llama.cpp. `--calibration` takes one of those below by name, or your own file in the
same form (files in a folder `calibration_profiles` have names too). If no calibration applies there is no estimate, and a note says so.
In JSON: `rows[].estimate_s`, `estimate_low_s`, `estimate_high_s`, for decoding `estimate_tokens_per_s`, and `calibration`.

## The form

One formula for every pass, in `kvcalc.cost.estimate`:

    step_s + logits x sample_s + layers x layer_s
      + sum over operators of (calls x call_s + max(c, m, sum_share x (c + m)))
      + collectives x collective_s + bytes / (link_share x rate)
      + sum over sums over ranks of min(direct bytes / (direct_share x rate), staged_s + bytes / (link_share x rate))

with compute time c = (FLOP + padding_rows x FLOP of one row) / (flop_share x peak) and memory time m = bytes / (bandwidth_share x bandwidth).
Activations in and out count, as in the serial time, at activation_share if it is given. The estimate is never below the bound. Operators,
FLOP, bytes and calls are those of the bound (`docs/formulas.md`). Pipeline stages add up.

| parameter | meaning |
| --- | --- |
| `reach.KIND.bandwidth_share` | share of the memory's peak bandwidth that an operator reaches when memory limits it |
| `reach.KIND.flop_share` | share of the dense peak FLOP/s of its arithmetic format when that limits it |
| `reach.KIND.sum_share` | least time of an operator, as a share of c + m: 0.5 (the default) means full overlap of compute and memory, 1 none |
| `reach.KIND.padding_rows` | extra rows per matrix product, since kernels work in tiles; each expert that is used has its own |
| `reach.KIND.activation_share` | share of the bandwidth for activations in and out, which are moved several times (gather, quantise, scatter) |
| `reach.KIND.call_s` | fixed time of a kernel call |
| `layer_s` | fixed time of a layer: launches, norms, positions |
| `sample_s` | time per sampled token, in addition to the head |
| `step_s` | fixed time of a pass: scheduling, sampling, the host |
| `collective_s`, `link_share` | fixed time of a collective, and the share of the link's rate that its bytes reach |
| `direct_share`, `staged_s` | a sum over ranks (all-reduce) is made in the faster of two ways: each rank sends its whole vector to all others at this share of the rate, or the ranks sum a part each and pass these round, which moves fewer bytes but takes `staged_s` more |
| `joins_inputs` | whether matrices with the same input (query, key and value; gate and up) are one call |
| `memory_interval`, `compute_interval`, `intervals` | 80% intervals of measured / estimated time: for passes limited by memory or links, for those limited by FLOP/s, and by phase and kind of layers with the number of measurements |

KIND is `matrix` (linear layers and the head), `attention` (operators that read and write the cache; `latent` and `state` if they differ),
`experts` (routed experts), or one of these in one arithmetic format: `matrix:fp8`. A kind that is not listed uses the values of `attention`,
else of `matrix`.

On a server kept full by C users (a closed loop), a request of O output tokens also waits for the prefill of the C - 1 other requests that
start while it decodes:

    TPOT = step + prompt_share x (C - 1) / O x prompt
    TTFT = request_s + request_steps x step + prompt x (1 + queue_share x (C - 1))

With data parallelism, C counts the users of one copy. In disaggregated serving TPOT is the step alone, since other engines compute the
prompts. `prompt_share`, `request_s`, `request_steps` and `queue_share` hold for a closed loop; if many users start at once, TTFT is longer.
"""

SPLIT = """
## How they are fitted and judged

Records are split by campaign, never within one. A campaign is one source; a source with many accelerators, engines and models is split into
groups of model, accelerator and engine, where models with the same layers count as one. Parameters are fitted to the campaigns under *fitted
to* and tested on those under *judged by*, which the fit never sees. For served runs the test groups were fixed before any fit
(`kvcalc/evidence/splits.yaml`): one whole model, one whole accelerator, and a quarter of the rest. Records are identified by their numbers and
settings, so the same run from another source is not new (`kvcalc/evidence/fitted.txt` holds digests of fitted records). `kvcalc validate`
lists fitted, shipped and new records separately.

The serving engines (vLLM, TensorRT-LLM, SGLang) start from measurements of their kernels alone on B200 and H200, vLLM also on A100, L40S and
RTX PRO 6000: matrix products, routed experts and all-reduces of `tests/evidence/serving_kernels.csv`. Served steps then fit the fixed times of a step, a sampled token, a layer and
a collective, and how much slower each kind's calls and work are inside the engine. A penalty keeps a parameter at its start: to move it by
a factor of e the mean error must fall by 0.016, or by more with few groups (chosen among 0.0015 to 0.05 by leaving out, one after another, the
groups that are not test groups). Errors beyond a factor of e are capped. Multi-node runs are not fitted to. What TTFT takes besides the
request's passes is work of the engine on the host: it is fitted to all accelerators of an engine together, without disaggregated runs, whose
TTFT includes the transfer between engines. What grows with no model (HTTP, tokenising) is 14 ms in all engines: fitted alone, TensorRT-LLM
has 12 ms and vLLM 16 ms, and SGLang was measured with large models alone, where it cannot be told from the steps that pass before a prompt.

The other fits minimise the mean of abs(log(estimate / measured)); a campaign weighs the square root of its number of records. Parameters are
changed one at a time, by ever smaller factors. If the records say little about a parameter, it stays near its start: a common value, or that
of a neighbour (`llama.cpp-ampere` starts at `llama.cpp-rtx`; `llama.cpp-hbm` and `llama.cpp-cuda` start at `llama.cpp-ampere`). `vllm-ampere`
has five served records, `vllm-ada` one, `vllm-blackwell-rtx` none: these are kernels alone with the usual fixed times, hardly moved. Shares fitted this way are at most 0.95, a little
above the highest share of the bandwidth measured for a streaming kernel (0.938, matrix-vector products on an L40S). The fit is reproducible:
the same records give the same files, byte for byte (`tests/tools/write_calibrations.py`).

There is an 80% interval for each phase and kind of layers (decode or prefill, dense or mixture of experts; for served requests also TTFT with
and without a queue). It is made of records that are each compared with a fit that has not seen it: for the serving engines a fit without the
record's group, for the others a fit without its campaign (or, if a campaign has more than half of a family's records, without an eighth of
its groups). Test records are compared with the shipped fit. `decode`, `prefill`, `fit`, `plan` and `simulate` share the intervals and their
notes; for a model on several devices each stage uses its own calibration's interval, weighted by its time.

For the serving engines it holds four of five records of all engines and accelerators together, where a group weighs the square root of its
number of records; without TTFTs of disaggregated runs, which hold a transfer. Kinds of fewer than ten groups take dense models and mixtures
together. A calibration with fewer than 5 records of a kind says "too few measurements" and prints the interval of all steps, or of all first tokens.

For the others it holds four of five of the calibration's own records, so 80% by construction. A calibration with 5 to 19 records borrows the
interval that its engine's calibrations with as few records have together, or that of its whole engine. With fewer than 5, or if those too have
fewer than 20, the answer says "too few measurements" and prints the interval of all passes with the same limiter; a calibration with fewer
than 20 records in all has one at least as wide as its neighbour's.

A request that was faster than the bound of its prompt and steps must have hit a prefix cache; it is not scored.
"""

COVERAGE = """
## What intervals hold

Records of served engines, each against a fit without its group and the interval of the other groups alone, as a group to come would be: the
share of records inside, and the mean of the groups' shares, by engine and kind of time with 20 records or more.
"""

AFTER_COVERAGE = """
On the groups that both rules have an interval for, one of a calibration's own records, each counting alike, as before, holds 73% of steps and
71% of first tokens so, 60% and 64% in the mean of groups; one of all engines' 79% and 78%, 73% and 75%, and it is as wide. How far an estimate
is off is mostly the group's, so that a group with many records makes an interval narrow that says little of the next. Counting the engine's own
groups twice or four times brings nothing. Without disaggregated runs, first tokens have an interval a third narrower that holds as many of the rest.
"""

WHERE = """
## Where the error of serving engines lies

The 1,362 TPOTs of `silicon.csv` that have an estimate, each compared with a fit without its group: median error 11.7%, p90 38% (test groups:
16.2% and 51%; with sums over ranks as a ring alone 11.3% and 38%, 15.1% and 50%). A correction factor for each of the following, chosen in hindsight, would leave:

| factor for each | factors | median | p90 |
| --- | ---: | ---: | ---: |
| engine | 3 | 11.2% | 36% |
| engine and accelerator | 10 | 11.1% | 34% |
| model | 6 | 11.0% | 37% |
| engine version | 31 | 8.4% | 31% |
| group: model, accelerator and engine | 23 | 9.0% | 31% |
| group and engine version | 50 | 7.3% | 27% |
| group and parallel sizes | 92 | 6.8% | 22% |

So little of the error belongs to an engine, an accelerator or a model. Two runs of one setting with different versions of the engine differ by
15% in the median (p90 36%, 68 pairs); with the same version by 1.6% (p90 22%, 111 pairs: multi-token prediction is not printed). The largest
single causes are Qwen3-235B in fp8 on vLLM 0.12 (51 points, -50%), DeepSeek-R1 in TensorRT-LLM 1.1.0rc2 on B200 (14 points, -32%) and across
H100 nodes (8 points, -36%), and six runs of it with 4,000-token prompts that took four times as long as others. The step of Qwen3-235B takes
51 to 59 ms on two ranks and 34 to 46 ms on four, with 4 users as with 48, and whether attention is split or copied: what 17 ms and the
weights of all 128 experts in each step would take, though 4 users choose at most 32. SGLang takes 15 to 18 ms on two. Why is not known.

**Versions.** A correction of each version by the same version of other groups, by the nearest one or by those as old, whole or by half,
makes groups that were left out worse (mean of abs(log(estimate / measured)), at most 1: 0.146 without, 0.148 to 0.159 with; test groups
0.234 and 0.240 to 0.348). Printed versions of one setting meet in five groups, with ten pairs or more in two of them, and these go apart:
vLLM 0.17 to 0.19 is 15% faster, SGLang 0.5.9 to 0.5.10 21% slower.

**Ranks.** With a ring's bytes alone the estimate gains too much from twice the ranks, the more the larger the batch. Kernels alone say why:
with 8 ranks, vectors of 0.5 to 4 MB take 1.7 to 3.7 times as long as a fixed time and a ring's bytes. Pairs of one group, version and number
of users, median over groups of ln(estimated ratio) - ln(measured ratio) of TPOT, each against a fit without its group:

| change | groups | pairs | a ring alone | two ways |
| --- | ---: | ---: | ---: | ---: |
| 2 to 4 ranks, dense | 3 | 30 | -0.020 | -0.005 |
| 4 to 8 ranks, dense | 3 | 33 | -0.057 | -0.026 |
| 2 to 4 ranks, experts split by tensor | 5 | 193 | -0.048 | -0.040 |
| 4 to 8 ranks, experts split by tensor | 10 | 114 | -0.033 | -0.023 |
| 4 to 8 ranks, experts in parallel | 4 | 94 | -0.078 | -0.050 |

Where layouts can be chosen, the one that the estimate chooses loses so much of the best one's tokens/s per GPU at equal TPOT (aggregated runs,
quartiles of measured TPOT): on test groups (67 questions) 8.3% in the mean and 25% at p90 (11.1% and 31% with a ring alone), on other groups
left out (140 questions) 17.8% and 64% (20.2% and 65%). What is left is mostly TensorRT-LLM on Hopper: with eight users or more, gpt-oss-120b and
Qwen3-235B gain 9 to 23% less there than estimated, by tensor and in expert parallel alike. Experts in parallel instead of split, in one version
and with 2 or 4 ranks, take 0 to 5% longer than estimated in four groups, and 33 and 46% in Qwen3.5 on SGLang 0.5.9; with 8 ranks there are only
pairs of different versions, which lie from 22% below to 40% above the estimate.

Fits that were tried, judged on the same records:

| fit | median | p90 |
| --- | ---: | ---: |
| kernels alone with the usual fixed times, nothing fitted | 12.3% | 37% |
| penalty 0.0015, as before | 11.9% | 45% |
| penalty 0.012 | 11.2% | 39% |
| penalty 0.016 | 11.3% | 38% |
| penalty 0.02 | 11.8% | 36% |
| penalty 0.03 | 12.2% | 36% |
| 0.012, and a factor for the age of the version, for each engine and generation | 12.8% | 41% |
| 0.012, and one such factor for all | 11.6% | 40% |
| 0.005, factors of kernels shared by an engine's accelerators | 12.1% | 37% |
| 0.005, factors of kernels shared by all engines | 12.6% | 37% |
| 0.012, TensorRT-LLM's MXFP4 experts on Hopper taken from vLLM's kernels | 11.2% | 39% |
| **0.016, sums over ranks in two ways** | 11.7% | 38% |
| the same, penalty 0.01 | 11.7% | 41% |
| the same, penalty 0.022 | 12.3% | 36% |
| the same, 8 µs a layer at the start | 11.7% | 37% |
| the same, activations at a quarter of the bandwidth or more | 11.7% | 38% |

A loose fit follows the versions and settings of its own groups and loses on others. For TTFT of few users, fitting the times of a request for
all accelerators of an engine together brings 39% down to 31%; a time for each layer of a prompt (launches without graphs) brings no more.
One time of a request for all engines instead of one each: mean of abs(log), at most four users, 0.317 to 0.305, test groups 0.356 to 0.320.

**Accelerators with few served runs.** vLLM on A100, Ada and RTX cards was estimated with Hopper's shares. Their own kernels say otherwise.
Median error on kernels of the same tables that were not drawn for the fit (sums over ranks: those of the fit):

| kernels of vLLM | A100: Hopper's | own | L40S: Hopper's | own | RTX PRO 6000: Hopper's | own |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |
| matrices, bf16 | 24% | 8% | 22% | 14% | 10% | 7% |
| matrices, fp8 | | | 33% | 13% | 50% | 14% |
| matrices, fp4 | | | | | 42% | 18% |
| experts, bf16 | 18% | 8% | 9% | 8% | 16% | 13% |
| experts, fp8 | | | 10% | 6% | 32% | 9% |
| experts, fp4 | | | 32% | 9% | 33% | 13% |
| sums over ranks | 12% | 6% | 76% | 77% | 49% | 30% |

Two runs of 300 requests that no fit has seen, simulated with their arrivals (casys-kaist/LLMServingSim, vLLM 0.19): Qwen3-32B on two RTX PRO 6000
took 80.3 ms a token, estimated 60.5 (51.6 with Hopper's shares); Llama-3.1-8B on an RTX 4090 32.4, estimated 32.6 (29.5). Without prompts beside
it, a step of the first takes 25.2 ms at 1 sequence and 58.8 at 128, estimated 23.8 and 48.5 (23.3 and 42.1): in the table vLLM 0.19 sums over two of
these cards in two to four times the time of 0.24, 70 µs more for each of 128 sums of such a step.
"""

LIMITS = """
## Limits

- A calibration holds for the engine versions of its records. Versions differ by 10 to 30 % on the same setting: SGLang 0.5.9 runs DeepSeek-R1
  in fp8 on eight B200 at 6.7 ms a token in one set of measurements and at 8.8 in another. On a new card builds differ most: the first
  published runs on DGX Spark (llama.cpp discussion 16578) are slower in both phases than the runs its calibration is fitted to.
- Served runs do not say whether multi-token prediction was on. Some runs of DeepSeek-R1 in TensorRT-LLM on H200 are 1.3 to 2 times faster
  than others of the same setting.
- Most disaggregated runs do not say how many engines decode: one is assumed, and the run is not scored.
- TTFT depends on how the users start. The parameters hold for a closed loop of users.
- Prefill in llama.cpp has the largest errors: builds and backends differ most there, and few sources have prompts longer than 2,048 tokens.
  On NVIDIA cards attention's shares come from DGX Spark with flash attention; without it, long prompts take up to twice as long.
- llama.cpp before June 2024 did not use the 8-bit tensor cores of NVIDIA cards: its prefill of quantised files is not estimated. The two
  campaigns of Vulkan on NVIDIA cards differ by a factor of three.
- gpt-fast's calibration was fitted to dense models alone; its mixtures of experts are slower than estimated.
- vLLM has five served records on Ampere, of one to eight sequences, one on Ada and none on RTX PRO 6000 and RTX 5090: prompts and large
  batches there are kernels alone with the usual fixed times. Sums over cards depend on the host (PCIe switches, which cards can reach each other):
  large sums of four and eight L40S took three to ten times as long as estimated.
  Radeon, Pascal and Turing have few records each, and wide intervals.
- NVIDIA cards multiply quantised GGUF files in 8-bit integers, as the bound assumes. Newer builds multiply mxfp4 in 4 bits on Blackwell;
  the estimate uses the FLOP/s that older builds reached in 8 bits.
- The `kernels-*` calibrations estimate single calls of matrix products and decode attention, not models. Operands that stay in the
  last-level cache are faster; kernels launched one by one from Python are slower by the launch.
"""


def percent(value: float, *, signed: bool = False) -> str:
    return f"{value:+.1%}" if signed else f"{value:.1%}"


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    marks = ["---"] * left + ["---:"] * (len(columns) - left)
    return "".join(f"| {' | '.join(line)} |\n" for line in (columns, marks, *rows))


def parameter_rows(found: Calibration) -> Iterable[list[str]]:
    """Return what a calibration says, one kind of operator a line."""
    floors = (found.step_s, found.sample_s, found.layer_s, found.collective_s, found.staged_s)
    times = [f"{value * 1e6:.4g}" for value in floors]
    links = [f"{share:.4g}" if share else "" for share in (found.link_share, found.direct_share)]
    for place, (kind, reach) in enumerate(found.reach.items()):
        own = [found.name, ", ".join(found.applies_to)] if not place else ["", ""]
        rest = [*times, *links] if not place else [""] * 7
        shares = [f"{value:.4g}" for value in (reach.bandwidth_share, reach.flop_share, reach.sum_share)]
        shares += [f"{reach.padding_rows:.3g}", f"{reach.activation_share or reach.bandwidth_share:.4g}"]
        shares.append(f"{reach.call_s * 1e6:.4g}")
        yield [*own, kind, *shares, *rest]


def parameters() -> str:
    columns = ["calibration", "applies to", "kind", "bandwidth", "FLOP/s", "sum", "rows", "activations", "call, µs",
               "step, µs", "sample, µs", "layer, µs", "collective, µs", "staged, µs", "link", "direct"]  # fmt: skip
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
    text = "\n## Errors\n\n"
    text += "Median of estimate / measured - 1 (error), median of its absolute value (|error|) and the share of records inside the interval, on the\n"
    text += "groups that no fit has seen (judged); then |error| on the fitted records. `tests/tools/cross_validate.py` leaves out each campaign in turn.\n\n"
    text += table(columns, grouped(outcomes, lambda outcome: (quantity(outcome),)))
    text += "\nAll of a suite:\n\n" + table(columns, grouped(outcomes, lambda outcome: (outcome.suite,)))
    text += "\n" + table(["calibration", *columns], grouped(outcomes, lambda o: (o.calibration, quantity(o))), left=2)
    return text


def coverage(folder: Path) -> str:
    """Return how many served records the interval of other groups holds, by engine and kind of time, and of all."""
    from write_calibrations import fits

    cells: dict[tuple[str, str], list[Unseen]] = {}
    for one in fits(folder).unseen:
        if one.inside is not None:
            timed = "steps" if one.kind.startswith("served") else "first tokens"
            for cell in ((one.engine, one.kind), ("all", timed)):
                cells.setdefault(cell, []).append(one)
    rows = [
        (*cell, str(len(found)), percent(inside_share(found)), percent(mean_of_groups(found)))
        for cell, found in sorted(cells.items(), key=lambda item: (item[0][0] == "all", item[0]))
        if len(found) >= ENOUGH
    ]
    columns = ("engine", "kind of time", "records", "inside", "mean of groups")
    return COVERAGE + "\n" + table(columns, rows, left=2) + AFTER_COVERAGE


def inside_share(found: Sequence[Unseen]) -> float:
    return sum(bool(one.inside) for one in found) / len(found)


def mean_of_groups(found: Sequence[Unseen]) -> float:
    groups: dict[str, list[Unseen]] = {}
    for one in found:
        groups.setdefault(f"{one.kind} {one.group}", []).append(one)
    return sum(map(inside_share, groups.values())) / len(groups)


def page(folder: Path) -> str:
    return INTRODUCTION + parameters() + SPLIT + split() + errors(folder) + coverage(folder) + WHERE + LIMITS


if __name__ == "__main__":
    PAGE.write_text(page(Path(os.environ["KVCALC_TRUTH"])), encoding="utf-8")
