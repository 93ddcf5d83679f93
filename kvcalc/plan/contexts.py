"""Contexts and batches that questions are asked at: what is taken where none is given, and what is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "asked_context",
    "check_batch",
    "check_context",
    "default_context",
    "sequence_tokens",
    "trained_context",
    "usual_context",
    "usual_context_notes",
]

_DEFAULT_CONTEXT = 4096
# Lengths that are often written with a k and meant in 1024s.
_KILO, _KIBI, _FEWEST_THOUSANDS = 1000, 1024, 4


def default_context(model: ModelProfile, engine: str | None = None) -> int:
    """Return the context a question is asked at where none is given: 4,096, or the longest sequence if that is less.

    Args:
        model: the model.
        engine: the engine that was asked for; vLLM and SGLang set a limit to models without one.
    """
    limit = model.context_limit
    if limit is None and engine == "vllm":
        from kvcalc.engines.vllm.defaults import LENGTH_WITHOUT_LIMIT

        limit = LENGTH_WITHOUT_LIMIT
    if limit is None and engine == "sglang":
        from kvcalc.engines.sglang.options import model_length

        limit = model_length(model)
    return min(_DEFAULT_CONTEXT, limit or _DEFAULT_CONTEXT)


def usual_context(deployment: Deployment) -> int:
    """Return the context a deployment is asked about where none is given: that of the program that starts its engine.

    Raises:
        InputError: a version of that program that is not described.
    """
    if not deployment.options.front:
        return default_context(deployment.model, deployment.engine)
    from kvcalc.engines.llama_cpp.fronts import own_context  # which few questions need

    return own_context(deployment.options, deployment.model, _memory(deployment))


def usual_context_notes(deployment: Deployment) -> tuple[str, ...]:
    """Say why that program takes the context; nothing where none starts the engine, or a length was asked for."""
    options = deployment.options
    if not options.front or options.max_model_len is not None:
        return ()
    from kvcalc.engines.llama_cpp.fronts import context_note

    return (context_note(options, deployment.model, _memory(deployment)),)


def _memory(deployment: Deployment) -> int | None:
    return None if deployment.hardware is None else deployment.hardware.usable_memory_bytes


def asked_context(deployment: Deployment, context: int | None) -> int | None:
    """Return the context that is asked for: for llama.cpp 0 is what the model was trained with.

    Raises:
        InputError: 0 for a model without a limit.
    """
    if context == 0 and deployment.served_by == "llama.cpp":
        return trained_context(deployment.model)
    return context


def sequence_tokens(deployment: Deployment, context: int | None) -> int:
    """Return the tokens of each sequence that a question about memory is asked at.

    Those that are asked for; else llama.cpp's own length where it is given, or the smaller of 4,096 and the longest.

    Raises:
        InputError: more than the engine's longest sequence, or the trained context of a model without one.
    """
    own = deployment.options.max_model_len
    tokens = asked_context(deployment, context)
    if tokens is None:
        usual = usual_context(deployment)
        whole = own if deployment.options.ctx_size is not None else None
        return whole or min(usual, own or usual)
    if own is not None and tokens > own:
        raise InputError(f"context {tokens} is longer than max-model-len {own}", parameter="context")
    return tokens


def check_context(model: ModelProfile, tokens: int, *, what: str = "context") -> tuple[str, ...]:
    """Return a note where the tokens exceed what the model was made for, or where 32k may have meant 32Ki.

    Raises:
        InputError: less than one token.
    """
    if tokens < 1:
        raise InputError(f"{what} must be 1 or more, not {tokens}", parameter=what)
    limit = model.context_limit
    if limit is not None and tokens > limit:
        return (f"{what} {tokens:,} is beyond the {limit:,} tokens that {model.name} was made for",)
    thousands = 0 if tokens % _KILO else tokens // _KILO
    in_1024s = thousands * _KIBI
    if thousands >= _FEWEST_THOUSANDS and (_is_power_of_two(thousands) or in_1024s == limit):
        the_limit = "" if limit is None else f", and the limit {limit:,}"
        return (f"{what} {tokens:,} is {thousands}k; {thousands}Ki is {in_1024s:,}{the_limit}",)
    return ()


def _is_power_of_two(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0


def check_batch(batch: int) -> None:
    """Refuse a batch without sequences.

    Raises:
        InputError: less than one sequence.
    """
    if batch < 1:
        raise InputError(f"batch must be 1 or more, not {batch}", parameter="batch")


def trained_context(model: ModelProfile) -> int:
    """Return the context that a model was trained with: llama.cpp's where it is 0.

    Raises:
        InputError: the model has no limit.
    """
    if model.context_limit is None:
        raise InputError(
            "the model has no limit on its context", hint="say how many tokens, as --context 32768", parameter="context"
        )
    return model.context_limit
