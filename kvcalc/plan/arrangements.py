"""Ways to spread a model over accelerators: the one that a number of GPUs means, and those that a search tries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.core.errors import InputError
from kvcalc.core.model import Latent
from kvcalc.core.workload import Parallel
from kvcalc.cost.sharding import splits_evenly
from kvcalc.plan.deployment import parallel_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvcalc.core.model import ModelProfile
    from kvcalc.plan.deployment import Deployment

__all__ = ["MAX_GPUS", "arrangements", "candidates", "flags_of", "is_practical", "layouts_of", "spread"]

# GPUs that share a fast link: tensor parallelism stays inside them.
_NODE = 8
MAX_GPUS = 64
_PRACTICAL_TENSOR = (1, 2, 4, 8)


def spread(
    model: ModelProfile,
    *,
    gpus: int | None = None,
    tensor: int | None = None,
    pipeline: int | None = None,
    expert: int | None = None,
    data: int | None = None,
    engine: str | None = None,
) -> tuple[Parallel, tuple[str, ...]]:
    """Return the parallel sizes that the options mean for a model, and a note where they were chosen.

    A number of GPUs alone means tensor parallelism over all of them, the fastest layout, so that a bound is one; where
    they do not share the heads evenly, over as many as do, times pipeline stages. SGLang counts the copies of the
    attention inside its tensor ranks.

    Raises:
        InputError: sizes that contradict each other, or a number of GPUs that no layout of the model uses.
    """
    if engine == "sglang" and data is not None and gpus is not None and tensor == gpus and gpus % max(data, 1) == 0:
        sizes = Parallel(tensor=gpus // data, data=data, expert=gpus if expert is None else expert)
        return sizes, (f"SGLang's --tp {gpus} --dp {data} on {gpus} GPUs: {data} copies of the attention",)
    if gpus is None or gpus < 1 or (tensor, pipeline, data) != (None, None, None):
        return parallel_sizes(gpus=gpus, tensor=tensor, pipeline=pipeline, expert=expert, data=data), ()
    chosen = next(layouts_of(model, gpus), None)
    if chosen is None:
        raise InputError(
            f"no layout of {model.name} uses {gpus} GPUs",
            hint=f"{gpus} tensor ranks do not share its heads evenly, and it has {model.layers} layers for stages",
            parameter="gpus",
        )
    sizes = parallel_sizes(tensor=chosen.tensor, pipeline=chosen.pipeline, expert=expert)
    if sizes.pipeline == 1:
        return sizes, ()
    return sizes, (f"{gpus} GPUs are taken as {flags_of(sizes)}: {gpus} ranks do not share the heads evenly",)


def layouts_of(model: ModelProfile, gpus: int) -> Iterator[Parallel]:
    """Yield the ways to use a number of GPUs by tensor ranks and pipeline stages, the most ranks first."""
    for stages in range(1, min(gpus, model.layers) + 1):
        if gpus % stages == 0 and splits_evenly(model, gpus // stages):
            yield Parallel(tensor=gpus // stages, pipeline=stages)


def flags_of(parallel: Parallel) -> str:
    """Return the options that ask for a layout."""
    sizes = {"--tp": parallel.tensor, "--pp": parallel.pipeline, "--dp": parallel.data, "--ep": parallel.expert}
    return " ".join(f"{flag} {size}" for flag, size in sizes.items() if size > 1)


def arrangements(model: ModelProfile) -> Iterator[Parallel]:
    """Yield ways to spread a model, fewest GPUs first: tensor parallel inside a node, and pipeline stages.

    A model with latent attention may also replicate its attention and share out its experts (attention data parallel).
    """
    latent = model.has(Latent)
    sizes = [size for size in range(_NODE, 0, -1) if splits_evenly(model, size)]
    for gpus in range(1, MAX_GPUS + 1):
        for tensor in sizes:
            if gpus % tensor == 0 and gpus // tensor <= model.layers:
                yield Parallel(tensor=tensor, pipeline=gpus // tensor)
        if gpus > 1 and latent:
            yield Parallel(data=gpus, expert=gpus)


def candidates(deployment: Deployment) -> Iterator[Parallel]:
    """Yield the arrangements of a deployment's model whose ranks can share the tokens of a request as it asks."""
    from kvcalc.engines.vllm.context import check_decode_context  # vLLM's layouts, which sizes do not need

    ranks = deployment.options.decode_context_parallel
    for parallel in arrangements(deployment.model):
        try:
            check_decode_context(deployment.model, tensor=parallel.tensor, ranks=ranks)
        except InputError:
            continue
        yield parallel


def is_practical(parallel: Parallel) -> bool:
    """Whether people rent and start it so: 1, 2, 4 or 8 tensor ranks in one node, or whole nodes of 8."""
    if parallel.gpus in _PRACTICAL_TENSOR:
        return parallel.pipeline == 1
    inside = parallel.tensor == _NODE or parallel.data == parallel.gpus
    return inside and parallel.gpus % _NODE == 0
