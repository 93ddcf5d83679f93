"""Option names that several questions share: heading in help, other spellings, default in words.

A name is looked up by its first long flag as its parameter is declared, so that it reads the same in every question. A
parameter that is declared in one question alone may say all of this itself (`kvcalc.questions.declared.Param`).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["HEADINGS", "VOCABULARY", "Spelling"]

# Headings of a command's help in their order; others follow where the question's own parameters stand, after "Load".
HEADINGS = ("Arguments", "Model", "Load", "Options", "Deployment", "Estimate", "Speculation", "Engine", "vLLM",
            "SGLang", "llama.cpp", "Output")  # fmt: skip


class Spelling(NamedTuple):
    """One option name.

    Args:
        heading: heading of help that it stands under; that of its question where empty.
        also: names that engines and benchmarks have for it, taken as they are.
        meant: words that people try for it, which an error answers with its name.
        otherwise: what applies where it is left out, where that is no value that a user could write.
    """

    heading: str = ""
    also: tuple[str, ...] = ()
    meant: tuple[str, ...] = ()
    otherwise: str = ""


def _parallel(kind: str, *meant: str, otherwise: str = "1") -> Spelling:
    short = f"{kind[0]}p"
    also = (f"--{short}", f"--{kind}-parallel-size", f"--{short}-size", f"-{short}")
    return Spelling("Deployment", also, (f"{kind}-parallelism", *meant), otherwise)


VOCABULARY = {
    "--model": Spelling("Model", meant=("checkpoint", "model-path", "hf-repo", "hf", "name", "gguf")),
    "--weights": Spelling(
        "Model",
        ("--quantization", "-q"),
        ("quant", "weight-dtype", "dtype", "format", "bits", "load-format"),
        "the checkpoint's, as the engine loads it",
    ),
    "--kv-dtype": Spelling(
        "Model", ("--kv-cache-dtype",), ("kv-type", "kv-format", "kv-bits", "cache-dtype"), "as the engine keeps it"
    ),
    "--activations": Spelling("Model", meant=("activation-dtype", "compute-dtype"), otherwise="the model's dtype"),
    "--towers": Spelling("Model", meant=("language-model-only", "vision", "text-only"), otherwise="loaded"),
    "--set": Spelling("Model", meant=("override", "hf-overrides", "json-model-override-args")),
    "--context": Spelling(
        "Load",
        meant=(
            "ctx",
            "seq-len",
            "sequence-length",
            "context-len",
            "length",
            "tokens",
            "n-ctx",
            "seqlen",
            "input-len",
            "prompt",
            "isl",
            "random-input-len",
        ),
        otherwise="4,096, or the model's limit",
    ),
    "--batch": Spelling(
        "Load", ("--concurrency", "--max-concurrency"), ("users", "sequences", "bs", "requests", "num-seqs"), "1"
    ),
    "--prompt": Spelling(
        "Load",
        ("--input-len", "--isl", "--random-input-len"),
        ("input", "input-tokens", "prompt-tokens", "prompt-len", "n-prompt"),
        "4,096, or the model's limit",
    ),
    "--output-tokens": Spelling(
        "Load",
        ("--output-len", "--osl", "--random-output-len"),
        ("max-tokens", "output-length", "n-predict", "gen-len", "max-new-tokens", "generate"),
    ),
    "--rate": Spelling("Load", ("--request-rate",), ("rps", "qps", "rpm")),
    "--requests": Spelling("Load", ("--num-prompts",), ("num-requests", "n-requests")),
    "--users": Spelling("Load", ("--concurrency", "--max-concurrency"), ("clients", "sessions")),
    "--gpu": Spelling("Deployment", meant=("hardware", "accelerator", "card", "machine", "chip", "gpu-type")),
    "--gpus": Spelling("Deployment", meant=("num-gpus", "gpu-count", "ngpu", "n-gpus", "world-size"), otherwise="1"),
    "--tensor-parallel": _parallel("tensor", otherwise="--gpus, where the heads divide evenly"),
    "--pipeline-parallel": _parallel("pipeline", "pipeline-stages"),
    "--expert-parallel": _parallel("expert", "enable-expert-parallel"),
    "--data-parallel": _parallel("data", "enable-dp-attention"),
    "--memory": Spelling("Deployment", meant=("vram", "gpu-memory", "ram", "memory-size"), otherwise="the profile's"),
    "--price": Spelling("Deployment", meant=("cost", "usd-per-hour", "dollars"), otherwise="the profile's"),
    "--power-share": Spelling("Deployment", meant=("power", "power-limit", "watts", "tdp"), otherwise="1"),
    "--estimate": Spelling("Estimate", meant=("realistic", "efficiency")),
    "--calibration": Spelling("Estimate", otherwise="with --estimate: the one that applies"),
    "--engine": Spelling(
        "Engine", meant=("backend", "framework", "runtime"), otherwise="llama.cpp for GGUF and Apple GPUs, else vllm"
    ),
    "--engine-version": Spelling("Engine", meant=("version", "vllm-version"), otherwise="the newest that is described"),
    "--max-model-len": Spelling(
        "Engine",
        meant=("max-context", "max-seq-len", "model-max-length", "max-length"),
        otherwise="--context, else the model's limit",
    ),
    "--utilization": Spelling(
        "Engine",
        ("--gpu-memory-utilization",),
        ("gpu-memory-fraction", "mem-fraction", "memory-utilization"),
        "the engine's",
    ),
    "--kv-memory": Spelling(
        "Engine",
        ("--kv-cache-memory-bytes",),
        ("kv-cache-memory", "cache-memory", "kv-cache-size"),
        "as the budget leaves",
    ),
    "--block-size": Spelling(meant=("kv-block-size",)),
    "--max-num-seqs": Spelling(meant=("max-batch-size", "max-seqs")),
    "--max-num-batched-tokens": Spelling(meant=("max-batched-tokens", "chunk-size", "prefill-chunk")),
    "--parallel": Spelling("llama.cpp", ("-np",), ("n-parallel", "slots")),
    "--cache-type-k": Spelling("llama.cpp", ("-ctk",)),
    "--cache-type-v": Spelling("llama.cpp", ("-ctv",)),
    "--ctx-size": Spelling("llama.cpp", ("-c",)),
    "--batch-size": Spelling("llama.cpp", ("-b",)),
    "--ubatch": Spelling("llama.cpp", ("-ub",)),
    "--flash-attn": Spelling("llama.cpp", ("-fa",)),
    "--draft": Spelling("Speculation", meant=("draft-model", "speculative-model", "spec-model")),
    "--method": Spelling("Speculation", meant=("speculative-method", "spec-method"), otherwise="draft-model"),
    "--gamma": Spelling(
        "Speculation", meant=("num-speculative-tokens", "draft-tokens", "speculative-num-steps", "draft-max", "k")
    ),
    "--draft-layers": Spelling("Speculation"),
    "--draft-weights": Spelling("Speculation", otherwise="the draft checkpoint's"),
    "--draft-tp": Spelling("Speculation", meant=("draft-tensor-parallel",), otherwise="the target's"),
    "--acceptance": Spelling("Speculation", meant=("alpha", "acceptance-rate", "accept-rate")),
    "--accepted-length": Spelling("Speculation", meant=("acceptance-length", "tau", "mean-acceptance-length")),
    "--json": Spelling("Output", meant=("format-json", "as-json")),
    "--output": Spelling("Output", meant=("format", "out", "csv", "markdown", "table")),
    "--save": Spelling("Output", meant=("write", "output-file")),
}
