"""Flags with which a start that an engine refused would succeed, each checked by the engine's own rules."""

from kvcalc.plan.reconcile.remedies.attempt import Remedies
from kvcalc.plan.reconcile.remedies.llama_cpp import llama_cpp_offload, llama_cpp_remedies
from kvcalc.plan.reconcile.remedies.sglang import sglang_remedies
from kvcalc.plan.reconcile.remedies.vllm import vllm_remedies

__all__ = ["Remedies", "llama_cpp_offload", "llama_cpp_remedies", "sglang_remedies", "vllm_remedies"]
