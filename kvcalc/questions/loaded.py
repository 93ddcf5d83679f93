"""A model as llama.cpp loads it: its weights, its file, and the length of its context."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, UnsupportedError

if TYPE_CHECKING:
    from kvcalc.core.model import ModelProfile
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions
    from kvcalc.plan.deployment import Deployment

__all__ = ["check_listed", "context_of", "file_of", "is_own_mxfp4", "weights_of"]


def check_listed(model: ModelProfile) -> None:
    """Refuse a model whose tensors are not known: without their names and sizes they cannot be placed.

    Raises:
        UnsupportedError: it is one, and was read from no GGUF file.
    """
    from kvcalc.engines.llama_cpp.tensors import unlisted

    why = None if model.file_tensors else unlisted(model.text_only())
    if why is not None:
        raise UnsupportedError(
            f"{why}, so that they cannot be placed on devices",
            hint="--gpu in place of --device counts the model as a whole; a .gguf file is read as it is",
        )


def is_own_mxfp4(deployment: Deployment) -> bool:
    """Whether a model without asked weights has experts in mxfp4, no file of its own, and tensors that are listed."""
    from kvcalc.engines.checkpoint import has_mxfp4_experts
    from kvcalc.engines.llama_cpp.tensors import unlisted

    model = deployment.model
    is_asked = deployment.asked.weights is not None or model.is_gguf or bool(model.file_tensors)
    return not is_asked and has_mxfp4_experts(model) and unlisted(model.text_only()) is None


def weights_of(deployment: Deployment) -> tuple[ModelProfile, str | None, str]:
    """Return a deployment's text model, the recipe of its weights where there is one, and what they are in words."""
    from kvcalc.plan.formats import format_names
    from kvcalc.plan.weight_words import asked_recipe

    recipe = asked_recipe(deployment.model, deployment.asked.weights, engine="llama.cpp")
    model = deployment.model.text_only()
    if recipe is not None:
        return model, recipe, recipe.upper()
    if model.file_tensors and deployment.asked.weights is None:
        sizes: Counter[str] = Counter()
        for tensor in model.file_tensors.values():
            sizes[tensor.dtype] += tensor.size
        return model, None, f"mostly {sizes.most_common(1)[0][0].upper()}"
    if model.file_tensors:
        model = replace(model, file_tensors={})
    return model, None, format_names(deployment.formats).weights


def context_of(deployment: Deployment, *, context: int | None, batch: int, together: bool) -> LlamaCppOptions:
    """Return the options of the context: its length is that of all sequences together, as llama.cpp takes it.

    Raises:
        InputError: two numbers of sequences or two lengths.
    """
    from kvcalc.engines.llama_cpp import asked_options
    from kvcalc.plan.contexts import sequence_tokens, trained_context

    options = deployment.options
    parallel = batch if options.parallel == 1 else options.parallel
    if batch not in (1, parallel):
        what = f"--batch {batch} and --parallel {parallel} are two numbers of sequences"
        raise InputError(what, hint="give one of them", parameter="batch")
    times = 1 if together else parallel
    length = options.ctx_size
    if length is not None:
        length = length or trained_context(deployment.model)
        if context is not None and context * times != length:
            raise InputError("ctx-size and context are two lengths", hint="give one of them", parameter="ctx-size")
    elif context is None and options.max_model_len is not None:
        length = options.max_model_len * parallel
    else:
        length = sequence_tokens(deployment, context) * times
    return replace(asked_options(deployment.formats, replace(options, parallel=parallel)), context=length)


def file_of(source: Any, model: ModelProfile, recipe: str | None) -> str:
    """Return a model's file as the command names it: the path that was given, or the usual name of such a file."""
    if isinstance(source, str | Path) and str(source).lower().endswith(".gguf"):
        return str(source)
    return f"{model.name}-{recipe.upper()}.gguf" if recipe else f"{model.name}.gguf"
