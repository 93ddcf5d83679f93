"""Does speculation pay: ``kvcalc speculate``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import about
from kvcalc.core.model import ModelProfile
from kvcalc.core.readers import counts, counts_each, whole
from kvcalc.questions.declared import Answer, param
from kvcalc.questions.explaining import used_calibration
from kvcalc.questions.groups import (
    BATCHES,
    CALIBRATION,
    CONTEXTS,
    ENGINE,
    ESTIMATE,
    GPU,
    MODEL,
    Acceptance,
    Engine,
    Run,
    refuse_idle_draft_options,
)
from kvcalc.sources import load_model

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Unpack

    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.core.reports.speculative import SpeculativeReport
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.speculative import SpeculationOptions
    from kvcalc.plan.speculative.acceptance import AcceptanceForms
    from kvcalc.questions.arguments import Counts

__all__ = ["Speculate", "draft_deployment", "explain_speculation", "placed_draft", "speculate", "with_draft"]

# The keys of `kvcalc.plan.speculative.METHODS`, which is loaded only when it is needed; a test compares them.
METHOD_NAMES = "draft-model, ngram, medusa, eagle, mtp, dflash, dspark or layer-skip"
_ASSUMED = "0.8"


class Speculate(Engine, Run, Acceptance):
    """Does speculative decoding pay: speed-up, break-even acceptance, best draft length and batch.

    Example: kvcalc speculate --model llama3.1-70b --draft llama3.1-8b --gpu h200 --gpus 2 --batch 8 --acceptance 0.8
    """

    model: str = MODEL
    gpu: str = GPU
    draft: str | None = param("--draft", help="Draft model or draft head, as --model.")
    method: str | None = param("--method", help=f"{METHOD_NAMES}.")
    gamma: tuple[int, ...] | None = param(
        "--gamma", help="Draft tokens per verification: one, a list or a range.", read=counts, otherwise="the best"
    )
    batch: tuple[int, ...] = BATCHES
    context: tuple[int, ...] | None = CONTEXTS
    tree: tuple[int, ...] | None = param(
        "--tree",
        heading="Speculation",
        help="Children per node at each level of a draft tree: 4,2,2.",
        read=counts_each,
    )
    tree_nodes: int | None = param(
        "--tree-nodes", heading="Speculation", help="Tokens of a draft tree of the best shape.", read=whole
    )
    draft_layers: int | None = param(
        "--draft-layers",
        help="Layers that draft: of the model (layer-skip), or of the head.",
        read=whole,
        otherwise="half of the model's; 1 of eagle and mtp, 5 of dflash and dspark",
    )
    draft_weights: str | None = param("--draft-weights", help="Weight format of the draft model.")
    draft_tp: int | None = param("--draft-tp", help="Tensor-parallel size of the draft model.", read=whole)
    engine: str | None = ENGINE
    estimate: bool = ESTIMATE
    calibration: str | None = CALIBRATION
    has_chart = explains = True
    page_counts = 8  # each setting of speculation takes a search

    def answer(self) -> Answer:
        """Return whether it pays in each setting; the first row is the one that is explained."""
        target, acceptance = self.deployment(), self.given(Acceptance)
        asked: dict[str, Any] = {
            **(acceptance or {"acceptance": _ASSUMED}),
            "method": self.method,
            "tree": self.tree,
            "tree_nodes": self.tree_nodes,
            "draft_layers": self.draft_layers,
        }
        draft = self._draft(target)
        asked |= {"estimate": self.estimate, "calibration": self.calibration}
        report = speculate(target, draft, gammas=self.gamma, batch=self.batch, context=self.context, **asked)
        first, gamma = report.rows[0], self.gamma[0] if self.gamma else None
        return Answer(
            report,
            lambda: explain_speculation(target, draft, gamma=gamma, batch=first.batch, context=first.context, **asked),
            remarks=() if acceptance else (f"assumed acceptance {_ASSUMED}; measure your own",),
        )

    def _draft(self, target: Deployment) -> Deployment | None:
        if self.draft is None:
            refuse_idle_draft_options(self.draft_weights, self.draft_tp)
            return None
        with about("draft"):
            return draft_deployment(
                target,
                self.draft,
                weights=self.draft_weights,
                kv_dtype=self.kv_dtype,
                activations=self.activations,
                tensor_parallel=self.draft_tp,
            )


def draft_deployment(
    target: Deployment,
    draft: str | Path | ModelProfile,
    *,
    weights: str | None = None,
    kv_dtype: str | None = None,
    activations: str | None = None,
    tensor_parallel: int | None = None,
) -> Deployment:
    """Return a draft model on its target's accelerators, over as many tensor-parallel ranks unless said otherwise.

    Raises:
        KvcalcError: a model or format that cannot be found, or more ranks than the target or the draft's heads have.
    """
    from kvcalc.plan.speculative.placing import place_draft

    return place_draft(
        target, load_model(draft), weights=weights, kv=kv_dtype, activations=activations, tensor=tensor_parallel
    )


def with_draft(
    deployment: Deployment,
    draft: Deployment | str | Path | ModelProfile | None = None,
    *,
    gamma: int,
    method: str | None = None,
    draft_layers: int | None = None,
) -> Deployment:
    """Return a deployment with what drafts for it in its memory, for `kvcalc.fit` and every other question of memory.

    Args:
        deployment: the target.
        draft: the draft model, or a head's own profile.
        gamma: drafted tokens of a verification.
        method: ``draft-model``, ``ngram``, ``medusa``, ``eagle``, ``mtp``, ``dflash``, ``dspark`` or ``layer-skip``; a
            draft model where left out.
        draft_layers: layers that draft, of the model for ``layer-skip``, else of the head.

    Raises:
        KvcalcError: an unknown method, or a draft that is missing, not taken or of another vocabulary.
    """
    from kvcalc.plan.speculative import with_drafter

    return with_drafter(deployment, _placed(deployment, draft), gamma=gamma, method=method, layers=draft_layers)


def speculate(
    deployment: Deployment,
    draft: Deployment | str | Path | ModelProfile | None = None,
    *,
    method: str | None = None,
    gammas: Sequence[int] | None = None,
    tree: Sequence[int] | None = None,
    tree_nodes: int | None = None,
    draft_layers: int | None = None,
    batch: Counts = 1,
    context: Counts | None = None,
    batches: Counts | None = None,
    contexts: Counts | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
    **acceptance: Unpack[AcceptanceForms],
) -> SpeculativeReport:
    """Return whether speculation pays for each batch, context and length of the draft, and where it stops.

    Args:
        deployment: the target on its accelerators.
        draft: the draft model, in its own formats on the target's accelerators, or deployed by `draft_deployment`.
        method: ``draft-model``, ``ngram``, ``medusa``, ``eagle``, ``mtp``, ``dflash``, ``dspark`` or ``layer-skip``; a
            draft model where left out.
        gammas: lengths of the draft; the best for each row where left out.
        tree: children of a node at each level.
        tree_nodes: tokens of a tree whose best shape is used.
        draft_layers: layers that draft, of the model for ``layer-skip``, else of the head.
        batch: sequences decoded together: a number, a list, or a text such as ``"1-256*2"``.
        context: tokens attended by the first new token, itself included, likewise.
        batches: another name of ``batch``.
        contexts: another name of ``context``.
        estimate: estimate the speed-up in an engine as well, with the calibration that applies.
        calibration: estimate with this one: a name, a file or a calibration.
        acceptance: one of ``acceptance`` (a rate, or counts: ``"1000:814,602"``), ``acceptance_by_position`` (shares of
            all drafts, as vLLM prints them), ``acceptance_conditional`` (each given that all before were accepted),
            ``accepted_length`` (tokens of a pass, the target's own included) and ``draft_rate`` (accepted over drafted
            tokens).

    Raises:
        KvcalcError: no accelerator, numbers that cannot be, an unknown method, or a draft of another vocabulary.
    """
    from kvcalc.plan.speculative import speculation_report
    from kvcalc.questions.arguments import deployed, several, several_or_none

    deployment = deployed(deployment)
    options = _options(acceptance, method, gammas, tree, tree_nodes, draft_layers)
    applied, notes = used_calibration(deployment, calibration, wanted=estimate, phase="decode")
    report = speculation_report(
        deployment,
        _placed(deployment, draft),
        options,
        batches=several(batch, "batch", batches),
        contexts=several_or_none(context, "context", contexts),
        calibration=applied,
    )
    return replace(report, notes=(*report.notes, *notes))


def explain_speculation(
    deployment: Deployment,
    draft: Deployment | str | Path | ModelProfile | None = None,
    *,
    method: str | None = None,
    gamma: int | None = None,
    tree: Sequence[int] | None = None,
    tree_nodes: int | None = None,
    draft_layers: int | None = None,
    batch: int = 1,
    context: int | None = None,
    estimate: bool = False,
    calibration: str | Path | Calibration | None = None,
    **acceptance: Unpack[AcceptanceForms],
) -> tuple[ExplainedStep, ...]:
    """Return the formulas behind a row of `speculate`, with the numbers put in; arguments as there."""
    from kvcalc.plan.explain import explain_speculation as explained

    gammas = None if gamma is None else (gamma,)
    options = _options(acceptance, method, gammas, tree, tree_nodes, draft_layers)
    applied, _ = used_calibration(deployment, calibration, wanted=estimate)
    return explained(deployment, _placed(deployment, draft), options, batch=batch, context=context, calibration=applied)


def _placed(target: Deployment, draft: Deployment | str | Path | ModelProfile | None) -> Deployment | None:
    return placed_draft(target, draft) if isinstance(draft, str | Path | ModelProfile) else draft


def placed_draft(target: Deployment, draft: str | Path | ModelProfile) -> Deployment:
    """Return a draft on its target's accelerators, its cache in the format that the engine was asked to keep."""
    return draft_deployment(target, draft, kv_dtype=target.asked.kv)


def _options(
    acceptance: AcceptanceForms,
    method: str | None,
    gammas: Sequence[int] | None,
    tree: Sequence[int] | None,
    tree_nodes: int | None,
    draft_layers: int | None,
) -> SpeculationOptions:
    from kvcalc.plan.speculative import SpeculationOptions, read_acceptance
    from kvcalc.plan.speculative.acceptance import draft_tree

    return SpeculationOptions(
        acceptance=read_acceptance(draft_tree(gammas, tree, tree_nodes), **acceptance),
        method=method,
        gammas=None if gammas is None else tuple(gammas),
        widths=None if tree is None else tuple(tree),
        nodes=tree_nodes,
        draft_layers=draft_layers,
    )
