"""The process that runs vLLM: reads what is asked from a folder, decodes, and writes the times there.

Started as ``python -m kvcalc.measure.engines.vllm_child FOLDER``, so that the engine's log is that of a process of its
own and its memory is given back.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["decoded", "main"]

# In one process, a call of step() is a pass of the model and nothing else.
_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
}


def main(folder: Path) -> None:
    """Run the engine on what ``asked.json`` says and write ``found.json``."""
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    for name, value in _ENVIRONMENT.items():
        os.environ[name] = value
    import vllm

    loaded = _counting_weights()
    model = vllm.LLM(
        model=str(folder),
        skip_tokenizer_init=True,
        load_format="dummy",
        dtype=asked["dtype"],
        max_model_len=asked["max_model_len"],
        max_num_seqs=asked["max_num_seqs"],
        max_num_batched_tokens=asked["max_num_batched_tokens"],
        kv_cache_memory_bytes=asked["kv_memory_bytes"],
        enable_prefix_caching=True,
        async_scheduling=False,
        seed=0,
    )
    engine = model.llm_engine
    sampling = vllm.SamplingParams(temperature=0, max_tokens=asked["rounds"] + 1, ignore_eos=True, detokenize=False)
    runner = _runner(engine)
    results: dict[str, Any] = {
        "version": vllm.__version__,
        "num_blocks": engine.vllm_config.cache_config.num_gpu_blocks,
        "block_size": engine.vllm_config.cache_config.block_size,
        "kv_bytes": _storage_bytes(runner.kv_caches),
        "weight_bytes": loaded[0],
        "steps": [],
    }
    for batch, context in asked["cells"]:
        sys.stderr.write(f"kvcalc: {batch} x {context}\n")
        samples = decoded(engine, sampling, batch=batch, prompt=context - 1, vocabulary=asked["vocabulary"])
        results["steps"].append({"batch": batch, "context": context, "samples_s": samples})
        (folder / "found.part").write_text(json.dumps(results), encoding="utf-8")
        (folder / "found.part").replace(folder / "found.json")


def decoded(engine: Any, sampling: Any, *, batch: int, prompt: int, vocabulary: int) -> list[float]:
    """Return the seconds of each pass in which every sequence has its prompt behind it and gets one token."""
    generator = random.Random(batch * prompt)  # noqa: S311
    length: dict[str, int] = {}
    for sequence in range(batch):
        name = f"{batch}-{prompt}-{sequence}"
        tokens = [generator.randrange(vocabulary) for _ in range(prompt)]
        engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        length[name] = 0
    samples = []
    while engine.has_unfinished_requests():
        before = dict(length)
        start = time.perf_counter()
        outputs = engine.step()
        seconds = time.perf_counter() - start
        for output in outputs:
            length[output.request_id.split("_")[0]] = len(output.outputs[0].token_ids)
        if all(before.values()) and all(length[name] == before[name] + 1 for name in length):
            samples.append(seconds)
    return samples


def _counting_weights() -> list[int]:
    """Return a list that gets the bytes of the weights once they are loaded, before a CPU packs them its own way."""
    from vllm.model_executor.model_loader import base_loader

    sizes: list[int] = []
    process = base_loader.process_weights_after_loading

    def counted(model: Any, *rest: Any, **named: Any) -> Any:
        sizes.append(_storage_bytes(model.parameters()))
        return process(model, *rest, **named)

    base_loader.process_weights_after_loading = counted
    return sizes


def _runner(engine: Any) -> Any:
    """Return the runner that holds the model and the cache of the one worker."""
    worker = engine.engine_core.engine_core.model_executor.driver_worker
    return getattr(worker, "worker", worker).model_runner


def _storage_bytes(tensors: Any) -> int:
    """Return the bytes of tensors, each storage once."""
    sizes = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
