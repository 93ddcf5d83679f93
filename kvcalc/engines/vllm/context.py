"""Decode context parallelism: tensor-parallel ranks that hold the same KV heads share the tokens of a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.model import Full

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile

__all__ = ["check_decode_context"]


def check_decode_context(model: ModelProfile, *, tensor: int, ranks: int) -> None:
    """Check that vLLM starts with so many ranks that share the tokens of a request.

    They are among the tensor-parallel ranks, and no more than hold the same KV head; latent attention has one for all.

    Args:
        model: the model.
        tensor: tensor-parallel ranks.
        ranks: ranks that share the tokens.

    Raises:
        InputError: it does not.

    Source: vLLM 0.33, ``ModelConfig.verify_with_parallel_config``, ``ParallelConfig``.
    """
    if ranks == 1:
        return
    if ranks < 1 or tensor % ranks:
        raise InputError(
            f"decode context parallel size {ranks} does not divide the {tensor} tensor-parallel ranks",
            parameter="decode-context-parallel",
        )
    for mixer in (mixer for mixer in model.mixers if isinstance(mixer, Full)):
        copies, asking = tensor // mixer.kv_heads, mixer.heads // mixer.kv_heads
        if ranks > copies:
            raise InputError(
                f"decode context parallel size {ranks} is more than the {copies} ranks that hold the same KV head",
                hint=f"{model.name} has {mixer.kv_heads} KV heads on {tensor} tensor-parallel ranks",
                parameter="decode-context-parallel",
            )
        if asking % ranks:
            raise InputError(
                f"decode context parallel size {ranks} does not divide the {asking} query heads of a KV head",
                parameter="decode-context-parallel",
            )
