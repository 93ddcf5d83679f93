"""``kvcalc speculate``."""

from __future__ import annotations

from typing import Annotated, Any

from typer import Option

from kvcalc.cli.options import (
    Batches,
    Contexts,
    Engine,
    Explain,
    Gpu,
    Json,
    Model,
    Output,
    takes_acceptance,
    takes_charts,
    takes_deployment,
    takes_engine,
)
from kvcalc.core.errors import InputError

# The keys of `kvcalc.plan.speculative.METHODS`, which is loaded only when it is needed; a test compares them.
METHOD_NAMES = "draft-model, ngram, medusa, eagle, mtp or layer-skip"

Draft = Annotated[str | None, Option("--draft", help="Draft model, or a head's own profile: as --model.")]
Method = Annotated[str | None, Option("--method", help=f"{METHOD_NAMES}; draft-model where left out.")]
Gamma = Annotated[
    str | None, Option("--gamma", help="Drafted tokens in a row: one, a list or a range; the best where left out.")
]
Tree = Annotated[str | None, Option("--tree", help="Children of a node at each level of a tree: 4,2,2.")]
Nodes = Annotated[int | None, Option("--tree-nodes", help="Tokens of a tree of the best shape.")]
Layers = Annotated[int | None, Option("--draft-layers", help="layer-skip: layers that draft; half where left out.")]
Weights = Annotated[str | None, Option("--draft-weights", help="Weight format of the draft; the checkpoint's own.")]
Ranks = Annotated[int | None, Option("--draft-tp", help="Ranks that split the draft's layers; the target's.")]

_ASSUMED = "0.8"


@takes_acceptance
@takes_deployment
@takes_engine
@takes_charts
def command(
    model: Model,
    gpu: Gpu,
    draft: Draft = None,
    method: Method = None,
    gamma: Gamma = None,
    batch: Batches = "1",
    context: Contexts = None,
    tree: Tree = None,
    tree_nodes: Nodes = None,
    draft_layers: Layers = None,
    draft_weights: Weights = None,
    draft_tp: Ranks = None,
    engine: Engine = None,
    explain: Explain = False,
    json: Json = False,
    output: Output = "table",
    *,
    acceptance_options: dict[str, Any],
    chart_files: dict[str, str | None],
    engine_options: dict[str, Any],
    deployment_options: dict[str, Any],
) -> None:
    """Does speculation pay: tokens of a pass, speed-up, break-even acceptance, draft length and batch.

    Example: kvcalc speculate --model llama3.1-70b --draft llama3.1-8b --gpu h200 --gpus 2 --batch 8 --acceptance 0.8
    """
    from kvcalc import api
    from kvcalc.cli.shared import command_output, counts, draw, emit, served, tell, tell_gpu

    shown = command_output(output, json=json)
    batches, contexts = counts(batch, "batch") or (1,), counts(context, "context")
    gammas = counts(gamma, "gamma")
    acceptance = {form: value for form, value in acceptance_options.items() if value is not None}
    asked: dict[str, Any] = {
        **(acceptance or {"acceptance": _ASSUMED}),
        "method": method,
        "tree": _widths(tree),
        "tree_nodes": tree_nodes,
        "draft_layers": draft_layers,
    }
    target = served(api.deployment(model, gpu=gpu, engine=engine, **deployment_options), engine, engine_options)
    tell_gpu(gpu, target.hardware)
    if not acceptance:
        tell(f"acceptance {_ASSUMED} is assumed: measure your own")
    drafting = None
    if draft is None and (draft_weights is not None or draft_tp is not None):
        raise InputError("--draft-weights and --draft-tp are of a draft model", hint="give --draft, or leave them out")
    if draft is not None:
        drafting = api.draft_deployment(
            target,
            draft,
            weights=draft_weights,
            kv_dtype=deployment_options["kv_dtype"],
            activations=deployment_options["activations"],
            tensor_parallel=draft_tp,
        )
    report = api.speculate(target, drafting, gammas=gammas, batches=batches, contexts=contexts, **asked)
    draw(report, chart_files)
    row = report.rows[0]
    emit(
        report,
        shown,
        (lambda: api.explain_speculation(
            target, drafting, gamma=gammas[0] if gammas else None, batch=row.batch, context=row.context, **asked
        )) if explain else None,
    )  # fmt: skip


def _widths(text: str | None) -> list[int] | None:
    """Return the widths of a tree's levels, equal ones too, which a list of counts would hold once."""
    from kvcalc.cli.shared import one_count

    return None if text is None else [one_count(part, "tree") or 1 for part in text.split(",")]
