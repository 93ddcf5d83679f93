"""Parameters that several questions share, so that they are spelled, explained and read the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvcalc.core.errors import InputError, about
from kvcalc.core.readers import count, count_from_zero, counts, flag, memory, number, text_unless_auto, texts, whole
from kvcalc.questions.declared import Question, param
from kvcalc.questions.engine_names import engine_name

if TYPE_CHECKING:
    from kvcalc.plan.deployment import Deployment

__all__ = [
    "BATCH",
    "BATCHES",
    "CALIBRATION",
    "CONTEXT",
    "CONTEXTS",
    "ENGINE",
    "ENGINE_NAMES",
    "ESTIMATE",
    "GPU",
    "GPU_OR_NONE",
    "KV_MEMORY",
    "MODEL",
    "WITH",
    "Acceptance",
    "Costs",
    "Drafting",
    "Engine",
    "Run",
    "refuse_idle_draft_options",
]

# The keys of `kvcalc.engines.pools.ENGINES`, which is loaded only when it is needed; a test compares them.
ENGINE_NAMES = "vllm, llama.cpp, ollama, lm-studio, sglang, mlx, transformers or ideal"

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
_GPU = "Accelerator: catalogue name, alias or profile file."

MODEL: Any = param("--model", "-m", help=_MODEL, is_required=True)
GPU: Any = param("--gpu", help=_GPU, is_required=True)
GPU_OR_NONE: Any = param("--gpu", help=_GPU)
BATCHES: Any = param(
    "--batch", help="Batch size (sequences): one, a list (1,8,32) or a range (1-256*2).", read=counts, default="1"
)
CONTEXTS: Any = param(
    "--context", help="Context length in tokens: one, a list or a range (1024-33792+1024).", read=counts
)
BATCH: Any = param("--batch", help="Batch size (sequences).", read=count, default="1")
CONTEXT: Any = param("--context", help="Context length in tokens, per sequence.", read=count)
ENGINE: Any = param("--engine", help=f"{ENGINE_NAMES}.", read=engine_name)
ESTIMATE: Any = param("--estimate", help="Also estimate the time, with a calibration.", read=flag, default=False)
CALIBRATION: Any = param("--calibration", help="Estimate with this calibration: catalogue name or file.", on_page=False)
WITH: Any = param("--with", help="Levers on the KV cache, in order: gqa,fp8,window=4096.", default="")
KV_MEMORY: Any = param("--kv-memory", help="KV-cache memory per GPU; skips the budget.", read=memory)


class Engine(Question):
    """Options of engines; the names are the fields of `kvcalc.engines.options.EngineOptions`."""

    version: str | None = param(
        "--engine-version",
        help="vLLM, SGLang, transformers, Ollama: version whose rules apply.",
        engines=("vllm", "sglang", "transformers", "ollama"),
    )
    max_model_len: int | None = param(
        "--max-model-len", "--context-length", help="Longest sequence that the engine accepts.", read=count
    )
    block_size: int | None = param(
        "--block-size",
        "--page-size",
        help="vLLM: tokens per block. SGLang: tokens per page.",
        read=whole,
        engines=("vllm", "sglang"),
    )
    max_num_batched_tokens: int | None = param(
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        help="vLLM: tokens per pass. SGLang: tokens per prefill chunk.",
        read=count,
        engines=("vllm", "sglang"),
    )
    max_in_flight_batches: int | None = param(
        "--max-in-flight-batches", help="vLLM: passes in flight at once.", read=whole, engines=("vllm",)
    )
    max_num_seqs: int | None = param(
        "--max-num-seqs",
        "--max-running-requests",
        help="vLLM: sequences per pass. SGLang: requests at once.",
        read=whole,
        engines=("vllm", "sglang"),
    )
    prefix_caching: bool | None = param(
        "--prefix-caching/--no-prefix-caching",
        " /--disable-radix-cache",
        help="vLLM, SGLang: reuse KV blocks of common prefixes.",
        read=flag,
        engines=("vllm", "sglang"),
    )
    decode_context_parallel: int | None = param(
        "--decode-context-parallel",
        "--decode-context-parallel-size",
        "--dcp",
        help="vLLM: tensor-parallel ranks that divide the tokens of a request (size and fit).",
        read=whole,
        engines=("vllm",),
    )
    gdn_prefill_backend: str | None = param(
        "--gdn-prefill-backend",
        help="vLLM: kernel of gated delta nets: auto, flashinfer or triton.",
        engines=("vllm",),
    )
    engram_cpu_offload: bool | None = param(
        "--engram-cpu-offload/--no-engram-cpu-offload",
        help="vLLM: keep n-gram tables (DeepSeek-V4.1, Qwen3.8) in host memory.",
        read=flag,
        engines=("vllm",),
    )
    utilization: float | None = param(
        "--utilization", "--mem-fraction-static", help="Share of GPU memory that the engine may use.", read=number
    )
    platform: str | None = param("--platform", help="vLLM: gpu or cpu.", engines=("vllm",))
    swa_full_tokens_ratio: float | None = param(
        "--swa-full-tokens-ratio",
        help="SGLang: tokens of the sliding-window pool per token of the full one.",
        read=number,
        engines=("sglang",),
    )
    mamba_full_memory_ratio: float | None = param(
        "--mamba-full-memory-ratio",
        help="SGLang: memory of recurrent states per memory of tokens.",
        read=number,
        engines=("sglang",),
    )
    max_total_tokens: int | None = param(
        "--max-total-tokens", help="SGLang: limit on tokens in the KV pool.", read=count, engines=("sglang",)
    )
    max_mamba_cache_size: int | None = param(
        "--max-mamba-cache-size", help="SGLang: slots of recurrent states.", read=whole, engines=("sglang",)
    )
    mamba_radix_cache_strategy: str | None = param(
        "--mamba-radix-cache-strategy",
        help="SGLang: auto, no_buffer, extra_buffer or extra_buffer_lazy.",
        engines=("sglang",),
    )
    mamba_ssm_dtype: str | None = param(
        "--mamba-ssm-dtype",
        help="SGLang: recurrent states in float32, bfloat16 or float16.",
        engines=("sglang",),
    )
    overlap_schedule: bool | None = param(
        "--overlap-schedule/--disable-overlap-schedule",
        help="SGLang: schedule the next step while one runs.",
        read=flag,
        engines=("sglang",),
    )
    hybrid_swa_memory: bool | None = param(
        "--hybrid-swa-memory/--disable-hybrid-swa-memory",
        help="SGLang: separate pool for sliding-window layers.",
        read=flag,
        engines=("sglang",),
    )
    parallel: int | None = param(
        "--parallel", help="llama.cpp: number of sequences (slots).", read=whole, engines=("llama.cpp",)
    )
    kv_unified: bool | None = param(
        "--kv-unified/--no-kv-unified",
        "-kvu/-no-kvu",
        help="llama.cpp: one buffer for all sequences.",
        read=flag,
        engines=("llama.cpp",),
    )
    cache_type_k: str | None = param("--cache-type-k", help="llama.cpp: type of cached keys.", engines=("llama.cpp",))
    cache_type_v: str | None = param("--cache-type-v", help="llama.cpp: type of cached values.", engines=("llama.cpp",))
    swa_full: bool | None = param(
        "--swa-full/--no-swa-full",
        help="llama.cpp: full-size cache for sliding-window layers.",
        read=flag,
        engines=("llama.cpp",),
    )
    ctx_size: int | None = param(
        "--ctx-size",
        help="llama.cpp: context of all sequences together; 0 for the model's own.",
        read=count_from_zero,
        engines=("llama.cpp",),
    )
    batch_size: int | None = param(
        "--batch-size", help="llama.cpp: largest logical batch, in tokens (2048).", read=whole, engines=("llama.cpp",)
    )
    ubatch: int | None = param(
        "--ubatch",
        "--ubatch-size",
        help="llama.cpp: largest physical batch, in tokens (512).",
        read=whole,
        engines=("llama.cpp",),
    )
    n_rs_seq: int | None = param(
        "--n-rs-seq",
        help="llama.cpp: past tokens for which recurrent states are kept, for drafting.",
        read=whole,
        engines=("llama.cpp",),
    )
    flash_attn: str | None = param("--flash-attn", help="llama.cpp: auto, on or off.", engines=("llama.cpp",))
    mmproj: bool | None = param(
        "--mmproj", help="llama.cpp: also load the image projector file.", read=flag, engines=("llama.cpp",)
    )
    imatrix: bool | None = param(
        "--imatrix",
        help="llama.cpp: the --weights file was quantised with an importance matrix.",
        read=flag,
        engines=("llama.cpp",),
    )


class Costs(Question):
    """Costs of running; the names are arguments of `kvcalc.deployment`."""

    price_per_hour_usd: float | None = param("--price", help="USD per GPU-hour.", read=number)
    power_share: float | None = param("--power-share", help="Share of the rated power that a GPU draws.", read=number)


class Run(Question):
    """A model as it is run; the names are arguments of `kvcalc.deployment`."""

    weights: str | None = param(
        "--weights",
        help="Format, with exceptions (bf16,experts=mxfp4); int4, awq … as checkpoints; q4_k_m … as llama.cpp.",
        read=text_unless_auto,
    )
    kv_dtype: str | None = param("--kv-dtype", help="Cache format: bf16, fp8, q8_0, int4-g64 …", read=text_unless_auto)
    activations: str | None = param(
        "--activations", help="Format of the matrix multiplications.", read=text_unless_auto
    )
    memory_bytes: int | None = param(
        "--memory", help="Memory per GPU, if it differs from the profile: 36GiB.", read=memory
    )
    gpus: int | None = param(
        "--gpus", help="Number of GPUs (tensor parallel unless --pp, --ep or --dp are given).", read=whole
    )
    tensor_parallel: int | None = param(
        "--tensor-parallel", "--tp", help="Tensor-parallel size: ranks that split each layer.", read=whole
    )
    pipeline_parallel: int | None = param(
        "--pipeline-parallel", "--pp", help="Pipeline-parallel size: stages of layers.", read=whole
    )
    expert_parallel: int | None = param("--expert-parallel", "--ep", help="Expert-parallel size.", read=whole)
    data_parallel: int | None = param(
        "--data-parallel", "--dp", help="Data-parallel (attention) replicas; --ep divides the experts.", read=whole
    )
    towers: bool | None = param("--towers/--no-towers", help="Load the encoders for images and sound.", read=flag)
    settings: tuple[str, ...] = param(
        "--set", help="Override a profile field: kv_heads=64. May be repeated.", read=texts, repeats=True, on_page=False
    )

    model: Any
    gpu: Any = None
    engine: str | None = None
    # whether the question is one of an engine that runs: the usual one where none is asked for
    is_started: ClassVar[bool] = False

    def deployment(self) -> Deployment:
        """Return the model on its accelerators, as the engine that was asked for starts it.

        Raises:
            KvcalcError: what cannot be found, read or combined.
        """
        from kvcalc.questions.deployments import placed

        costs = self.given(Costs) if isinstance(self, Costs) else {}
        started = self.given(Engine) if isinstance(self, Engine) else {}
        asked = {"gpu": self.gpu, "engine": self.engine} | self.given(Run) | costs
        return placed(self.model, started, is_started=self.is_started, **asked)


class Acceptance(Question):
    """Acceptance of drafted tokens, in one of these forms: `kvcalc.plan.speculative.acceptance.FORMS`."""

    acceptance: str | None = param(
        "--acceptance", help="Acceptance of draft tokens: a rate (0.8) or counts (1000:814,602)."
    )
    acceptance_by_position: str | None = param(
        "--acceptance-by-position",
        heading="Speculation",
        help="Acceptance by position, as vLLM prints it: 0.543,0.357,0.264.",
    )
    acceptance_conditional: str | None = param(
        "--acceptance-conditional",
        heading="Speculation",
        help="Acceptance by position, given that all earlier ones were accepted: 0.54,0.66,0.74.",
    )
    accepted_length: float | None = param(
        "--accepted-length", help="Tokens per pass, the bonus token included: 2.16.", read=number
    )
    draft_rate: float | None = param(
        "--draft-rate",
        heading="Speculation",
        help="Accepted / drafted tokens, vLLM's draft acceptance rate.",
        read=number,
    )


class Drafting(Question):
    """The draft in an engine's memory."""

    draft: str | None = param("--draft", "--model-draft", "-md", help="Draft model or draft head, as --model.")
    method: str | None = param("--method", help="draft-model, ngram, medusa, eagle, mtp, dflash, dspark or layer-skip.")
    gamma: int | None = param("--gamma", "--spec-draft-n-max", help="Draft tokens per verification.", read=whole)
    draft_layers: int | None = param(
        "--draft-layers", help="Layers that draft: of the model (layer-skip), or of the head.", read=whole
    )
    draft_weights: str | None = param("--draft-weights", help="Weight format of the draft model.")
    draft_tp: int | None = param("--draft-tp", help="Tensor-parallel size of the draft model.", read=whole)

    def drafted(self, deployment: Deployment, kv_dtype: str | None) -> Deployment:
        """Return a deployment with the draft in its memory; as it is where none is asked for.

        Raises:
            InputError: options of a draft without what drafts, or without its length.
        """
        from kvcalc.questions.speculate import draft_deployment, with_draft

        given = self.given(Drafting)
        if not given:
            return deployment
        if self.draft is None and self.method is None:
            option = next(iter(given)).replace("_", "-")
            raise InputError(f"--{option} belongs to a draft", hint="give --draft MODEL or --method, as mtp")
        if self.gamma is None:
            raise InputError("how many tokens are drafted is missing", hint="give --gamma 4", parameter="gamma")
        draft = None
        if self.draft is not None:
            with about("draft"):
                draft = draft_deployment(
                    deployment,
                    self.draft,
                    weights=self.draft_weights,
                    kv_dtype=kv_dtype,
                    tensor_parallel=self.draft_tp,
                )
        else:
            refuse_idle_draft_options(self.draft_weights, self.draft_tp)
        return with_draft(deployment, draft, gamma=self.gamma, method=self.method, draft_layers=self.draft_layers)


def refuse_idle_draft_options(weights: str | None, tensor_parallel: int | None) -> None:
    """Refuse the format and the ranks of a draft model where there is none.

    Raises:
        InputError: one of them is given.
    """
    if weights is not None or tensor_parallel is not None:
        raise InputError("--draft-weights and --draft-tp need a draft model", hint="give --draft, or leave them out")
