"""Notes on how an engine runs a checkpoint: in another format, in narrower numbers, at a version not described."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.checkpoint import as_multiplied, default_engine, has_mxfp4_experts, run_dtype

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

__all__ = ["dtype_notes", "engine_notes", "version_notes"]


def dtype_notes(deployment: Deployment) -> tuple[str, ...]:
    """Name the other format that a checkpoint is run in, and the reason."""
    own, engine, hardware = deployment.model.dtype, deployment.engine, deployment.hardware
    dtype = run_dtype(deployment.model, engine, hardware)
    if dtype == own or deployment.asked.weights is not None:
        return ()
    if hardware is not None and own == "bf16":
        return (f"{hardware.name} has no bfloat16: {engine} runs the checkpoint in {dtype} there",)
    who = engine or "vLLM and most engines"
    kept = f"--weights {own} --kv-dtype {own} --activations {own}"
    return (f"the {own} checkpoint is run in {dtype}, as {who} would; {kept} keeps its own format",)


def engine_notes(deployment: Deployment) -> tuple[str, ...]:
    """Say that no engine that is described runs such weights, or that one multiplies in narrower numbers."""
    if default_engine(deployment.model, deployment.formats, deployment.hardware) == "ideal":
        return ("no engine described here runs ExLlama weights; --engine ideal counts weights and KV cache",)
    card, own, asked = deployment.hardware, deployment.formats, deployment.asked
    if deployment.engine not in (None, "ideal") or card is None or asked.weights or asked.activations:
        return ()
    narrow = as_multiplied("llama.cpp", own, (card,)).activations
    if not has_mxfp4_experts(deployment.model) or card.peak(narrow.unit) <= card.peak(own.activations.unit):
        return ()
    usual = f"experts in mxfp4 are multiplied in {own.activations.name}, as the checkpoint says"
    return (f"{usual}; llama.cpp multiplies them in {narrow.name}: --engine llama.cpp bounds that",)


def version_notes(deployment: Deployment) -> tuple[str, ...]:
    """Say that a version is newer than the one whose cache is described."""
    version = deployment.options.version
    if deployment.engine != "vllm" or version is None:
        return ()
    from kvcalc.engines.vllm.releases import VERSION, known_release

    if known_release(version) <= known_release(VERSION):
        return ()
    return (f"vLLM {version} is newer than {VERSION}, the newest version described",)
