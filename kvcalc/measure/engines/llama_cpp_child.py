"""The process that runs llama.cpp: writes a GGUF file of random weights, decodes, and writes the times to a folder.

Started as ``python -m kvcalc.measure.engines.llama_cpp_child FOLDER``, so that the engine's log is that of a process of
its own and its memory is given back.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["main", "tensors", "written"]

# Random numbers are drawn once and dealt out again and again from a pool of prime length.
_POOL = 4_194_301
_SPREAD = 0.02
# GGML_LOG_LEVEL_DEBUG
_DEBUG = 1
_FILE_TYPES = {"bf16": "MOSTLY_BF16", "fp16": "MOSTLY_F16", "fp32": "ALL_F32"}
_GGML_TYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}


def main(folder: Path) -> None:
    """Run the engine on what ``asked.json`` says and write ``found.json``."""
    asked = json.loads((folder / "asked.json").read_text(encoding="utf-8"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    file = folder / "model.gguf"
    written(file, config, asked["format"])
    import llama_cpp

    engine = _Engine(llama_cpp, file, asked)
    file.unlink()
    results: dict[str, Any] = {
        "version": f"llama-cpp-python {llama_cpp.__version__}",
        "weight_bytes": engine.weight_bytes,
        "steps": [],
    }
    for batch, context in asked["cells"]:
        sys.stderr.write(f"kvcalc: {batch} x {context}\n")
        samples = engine.decoded(batch=batch, prompt=context - 1, rounds=asked["rounds"])
        results["steps"].append({"batch": batch, "context": context, "samples_s": samples})
        (folder / "found.part").write_text(json.dumps(results), encoding="utf-8")
        (folder / "found.part").replace(folder / "found.json")


def tensors(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield names and shapes (outputs x inputs) of the tensors of a config, as llama.cpp names them."""
    hidden, width = config["hidden_size"], config["intermediate_size"]
    size, rows = config["head_dim"], config["vocab_size"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    yield "token_embd.weight", (rows, hidden)
    yield "output_norm.weight", (hidden,)
    if not config["tie_word_embeddings"]:
        yield "output.weight", (rows, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (hidden,),
        "attn_q.weight": (queries, hidden),
        "attn_k.weight": (keys, hidden),
        "attn_v.weight": (keys, hidden),
        "attn_output.weight": (hidden, queries),
        "ffn_norm.weight": (hidden,),
        "ffn_gate.weight": (width, hidden),
        "ffn_up.weight": (width, hidden),
        "ffn_down.weight": (hidden, width),
    }
    if config["model_type"] == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if config["model_type"] == "qwen3":
        layer |= {"attn_q_norm.weight": (size,), "attn_k_norm.weight": (size,)}
    for number in range(config["num_hidden_layers"]):
        for name, shape in layer.items():
            yield f"blk.{number}.{name}", shape


def written(path: Path, config: Mapping[str, Any], name: str) -> None:
    """Write a GGUF file of random weights.

    Args:
        path: the file.
        config: a Hugging Face config of Llama, Qwen2 or Qwen3.
        name: format of the matrices: bf16, fp16 or fp32; vectors are in fp32, as llama.cpp wants them.
    """
    import gguf
    import numpy as np

    pool = np.random.default_rng(0).standard_normal(_POOL, dtype=np.float32) * _SPREAD
    matrices = {"fp32": pool, "fp16": pool.astype(np.float16), "bf16": (pool.view(np.uint32) >> 16).astype(np.uint16)}
    writer = gguf.GGUFWriter(path, config["model_type"])
    writer.add_name("random weights")
    writer.add_file_type(gguf.LlamaFileType[_FILE_TYPES[name]])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_tokenizer_model("none")
    shapes = dict(tensors(config))
    for tensor, shape in shapes.items():
        stored, values = ("fp32", pool) if len(shape) == 1 else (name, matrices[name])
        size = int(np.prod(shape)) * values.itemsize
        writer.add_tensor_info(tensor, shape, values.dtype, size, raw_dtype=_ggml_type(stored))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for shape in shapes.values():
        values = np.resize(pool if len(shape) == 1 else matrices[name], shape)
        writer.write_tensor_data(values + 1 if len(shape) == 1 else values)
    writer.close()


def _ggml_type(name: str) -> Any:
    import gguf

    return gguf.GGMLQuantizationType[_GGML_TYPES[name]]


def _say(level: int, text: bytes, _: object) -> None:
    if level != _DEBUG:
        sys.stderr.write(text.decode("utf-8", "replace"))


class _Engine:
    """A model and a context of llama.cpp.

    Args:
        library: the module ``llama_cpp``.
        file: the GGUF file.
        asked: sequences, tokens, format of the cache, threads.
    """

    def __init__(self, library: Any, file: Path, asked: Mapping[str, Any]) -> None:
        self._library = library
        self._said = library.llama_log_callback(_say)
        library.llama_log_set(self._said, ctypes.c_void_p(0))
        library.llama_backend_init()
        model = library.llama_model_default_params()
        model.n_gpu_layers = asked["gpu_layers"]
        model.use_mmap = False
        self._model = library.llama_model_load_from_file(str(file).encode(), model)
        if not self._model:
            raise RuntimeError("the model was not loaded")
        context = library.llama_context_default_params()
        context.n_ctx, context.n_seq_max = asked["n_ctx"], asked["sequences"]
        context.n_batch, context.n_ubatch = asked["n_batch"], asked["n_ubatch"]
        context.n_threads = context.n_threads_batch = asked["threads"]
        context.type_k = context.type_v = _ggml_type(asked["format"])
        context.kv_unified = False
        self._context = library.llama_init_from_model(self._model, context)
        if not self._context:
            raise RuntimeError("the context was not made")
        self._most, self._vocabulary = asked["n_batch"], asked["vocabulary"]
        self.weight_bytes: int = library.llama_model_size(self._model)

    def decoded(self, *, batch: int, prompt: int, rounds: int) -> list[float]:
        """Return the seconds of passes in which every sequence has its prompt behind it and gets one token."""
        library = self._library
        library.llama_memory_clear(library.llama_get_memory(self._context), True)
        cells = [(sequence, position) for sequence in range(batch) for position in range(prompt)]
        for start in range(0, len(cells), self._most):
            self._pass(cells[start : start + self._most], logits=False)
        samples = []
        for position in range(prompt, prompt + rounds):
            start_s = time.perf_counter()
            self._pass([(sequence, position) for sequence in range(batch)], logits=True)
            samples.append(time.perf_counter() - start_s)
        return samples

    def _pass(self, cells: list[tuple[int, int]], *, logits: bool) -> None:
        """Run tokens of sequences at places through the model."""
        library = self._library
        made = library.llama_batch_init(len(cells), 0, 1)
        made.n_tokens = len(cells)
        for index, (sequence, position) in enumerate(cells):
            made.token[index] = (7919 * position + 104_729 * sequence) % self._vocabulary
            made.pos[index] = position
            made.n_seq_id[index] = 1
            made.seq_id[index][0] = sequence
            made.logits[index] = logits
        code = library.llama_decode(self._context, made)
        library.llama_synchronize(self._context)
        library.llama_batch_free(made)
        if code:
            raise RuntimeError(f"llama_decode returned {code}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
