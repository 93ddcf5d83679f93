"""Parameters that several questions share, so that they are spelled, explained and read the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from kvcalc.core.errors import InputError, about
from kvcalc.core.readers import count, count_from_zero, counts, flag, memory, number, texts, whole
from kvcalc.questions.declared import Question, param

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
ENGINE_NAMES = "vllm, llama.cpp, sglang, mlx, transformers or ideal"

_MODEL = "Catalogue name, Hugging Face id, profile, config.json (or its folder), .gguf or .safetensors."
_GPU = "Accelerator: catalogue name, alias or profile file."

MODEL: Any = param("--model", "-m", help=_MODEL, is_required=True)
GPU: Any = param("--gpu", help=_GPU, is_required=True)
GPU_OR_NONE: Any = param("--gpu", help=_GPU)
BATCHES: Any = param("--batch", help="Sequences: one, a list (1,8,32) or a range (1-256*2).", read=counts, default="1")
CONTEXTS: Any = param("--context", help="Tokens attended: one, a list or a range (1024-33792+1024).", read=counts)
BATCH: Any = param("--batch", help="Sequences.", read=count, default="1")
CONTEXT: Any = param("--context", help="Tokens of each sequence.", read=count)
ENGINE: Any = param("--engine", help=f"{ENGINE_NAMES}; where left out, llama.cpp for GGUF and Apple, else vllm.")
ESTIMATE: Any = param(
    "--estimate", help="Estimate the time too, with the calibration that applies.", read=flag, default=False
)
CALIBRATION: Any = param("--calibration", help="Estimate with this calibration: catalogue name or file.", on_page=False)
WITH: Any = param("--with", help="Ways to shrink the cache, in order: gqa,fp8,window=4096.", default="")
KV_MEMORY: Any = param("--kv-memory", help="Memory for the cache on each GPU; skips the budget.", read=memory)


class Engine(Question):
    """Options of engines; the names are the fields of `kvcalc.engines.options.EngineOptions`."""

    version: str | None = param(
        "--engine-version",
        help="vLLM, SGLang, transformers: the version whose rules are used.",
        engines=("vllm", "sglang", "transformers"),
    )
    max_model_len: int | None = param(
        "--max-model-len", "--context-length", help="Longest sequence the engine is started for.", read=count
    )
    block_size: int | None = param(
        "--block-size",
        "--page-size",
        help="vLLM: tokens of a block. SGLang: of a page.",
        read=whole,
        engines=("vllm", "sglang"),
    )
    max_num_batched_tokens: int | None = param(
        "--max-num-batched-tokens",
        "--chunked-prefill-size",
        help="vLLM: tokens of a pass. SGLang: of a prefill.",
        read=count,
        engines=("vllm", "sglang"),
    )
    max_in_flight_batches: int | None = param(
        "--max-in-flight-batches", help="vLLM: passes under way at once.", read=whole, engines=("vllm",)
    )
    max_num_seqs: int | None = param(
        "--max-num-seqs",
        "--max-running-requests",
        help="vLLM: sequences of a pass. SGLang: requests at once.",
        read=whole,
        engines=("vllm", "sglang"),
    )
    prefix_caching: bool | None = param(
        "--prefix-caching/--no-prefix-caching",
        " /--disable-radix-cache",
        help="vLLM, SGLang: keep blocks for later prompts.",
        read=flag,
        engines=("vllm", "sglang"),
    )
    decode_context_parallel: int | None = param(
        "--decode-context-parallel",
        "--decode-context-parallel-size",
        "--dcp",
        help="vLLM, size and fit alone: tensor ranks that share a request's tokens.",
        read=whole,
        engines=("vllm",),
    )
    gdn_prefill_backend: str | None = param(
        "--gdn-prefill-backend",
        help="vLLM: kernel of gated delta nets: auto, flashinfer or triton.",
        engines=("vllm",),
    )
    utilization: float | None = param(
        "--utilization", "--mem-fraction-static", help="Share of a GPU's memory it may use.", read=number
    )
    platform: str | None = param("--platform", help="vLLM: gpu or cpu.", engines=("vllm",))
    swa_full_tokens_ratio: float | None = param(
        "--swa-full-tokens-ratio",
        help="SGLang: tokens of the windowed layers' pool for each of the others'.",
        read=number,
        engines=("sglang",),
    )
    mamba_full_memory_ratio: float | None = param(
        "--mamba-full-memory-ratio",
        help="SGLang: memory of states for that of tokens.",
        read=number,
        engines=("sglang",),
    )
    max_total_tokens: int | None = param(
        "--max-total-tokens", help="SGLang: tokens that its pool is capped at.", read=count, engines=("sglang",)
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
        help="SGLang: schedule a step while one runs.",
        read=flag,
        engines=("sglang",),
    )
    hybrid_swa_memory: bool | None = param(
        "--hybrid-swa-memory/--disable-hybrid-swa-memory",
        help="SGLang: a pool for windowed layers alone.",
        read=flag,
        engines=("sglang",),
    )
    parallel: int | None = param("--parallel", help="llama.cpp: sequences.", read=whole, engines=("llama.cpp",))
    kv_unified: bool | None = param(
        "--kv-unified/--no-kv-unified",
        help="llama.cpp: one buffer for all sequences.",
        read=flag,
        engines=("llama.cpp",),
    )
    cache_type_k: str | None = param("--cache-type-k", help="llama.cpp: type of cached keys.", engines=("llama.cpp",))
    cache_type_v: str | None = param("--cache-type-v", help="llama.cpp: type of cached values.", engines=("llama.cpp",))
    swa_full: bool | None = param(
        "--swa-full/--no-swa-full",
        help="llama.cpp: whole context for windowed layers.",
        read=flag,
        engines=("llama.cpp",),
    )
    ctx_size: int | None = param(
        "--ctx-size",
        help="llama.cpp: context of all sequences; 0 for what the model was trained with.",
        read=count_from_zero,
        engines=("llama.cpp",),
    )
    batch_size: int | None = param(
        "--batch-size", help="llama.cpp: tokens of a batch at most (2048).", read=whole, engines=("llama.cpp",)
    )
    ubatch: int | None = param(
        "--ubatch",
        "--ubatch-size",
        help="llama.cpp: tokens computed at once, no more than a batch.",
        read=whole,
        engines=("llama.cpp",),
    )
    n_rs_seq: int | None = param(
        "--n-rs-seq",
        help="llama.cpp: past tokens for which states are kept too; drafts ask for them.",
        read=whole,
        engines=("llama.cpp",),
    )
    flash_attn: str | None = param("--flash-attn", help="llama.cpp: auto, on or off.", engines=("llama.cpp",))
    mmproj: bool | None = param(
        "--mmproj", help="llama.cpp: load the file of towers for images too.", read=flag, engines=("llama.cpp",)
    )
    imatrix: bool | None = param(
        "--imatrix",
        help="llama.cpp: the file of --weights is made with an importance matrix.",
        read=flag,
        engines=("llama.cpp",),
    )


class Costs(Question):
    """Costs of running; the names are arguments of `kvcalc.deployment`."""

    price_per_hour_usd: float | None = param("--price", help="Dollars for an hour of one GPU.", read=number)
    power_share: float | None = param("--power-share", help="Share of its rated power that a GPU draws.", read=number)


class Run(Question):
    """A model as it is run; the names are arguments of `kvcalc.deployment`."""

    weights: str | None = param(
        "--weights",
        help="Format, with exceptions (bf16,experts=mxfp4); int4, awq … as checkpoints; q4_k_m … as llama.cpp.",
    )
    kv_dtype: str | None = param("--kv-dtype", help="Cache format: bf16, fp8, q8_0, int4-g64 …")
    activations: str | None = param("--activations", help="Format the matrices are multiplied in.")
    memory_bytes: int | None = param(
        "--memory", help="Memory of each GPU, where it is another than the profile's: 36GiB.", read=memory
    )
    gpus: int | None = param("--gpus", help="How many; alone it means tensor parallel.", read=whole)
    tensor_parallel: int | None = param("--tensor-parallel", "--tp", help="Ranks that split each layer.", read=whole)
    pipeline_parallel: int | None = param(
        "--pipeline-parallel", "--pp", help="Stages that split the layers.", read=whole
    )
    expert_parallel: int | None = param(
        "--expert-parallel", "--ep", help="Ranks that share out the experts.", read=whole
    )
    data_parallel: int | None = param(
        "--data-parallel", "--dp", help="Copies of the attention part; --ep shares the experts.", read=whole
    )
    towers: bool | None = param(
        "--towers/--no-towers", help="Whether towers for images and sound are loaded.", read=flag
    )
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
        "--acceptance", help="Drafted tokens accepted: a rate (0.8) or counts (1000:814,602)."
    )
    acceptance_by_position: str | None = param(
        "--acceptance-by-position", help="As vLLM prints it, each of all drafts: 0.543,0.357,0.264."
    )
    acceptance_conditional: str | None = param(
        "--acceptance-conditional", help="By position, each if those before it were accepted: 0.54,0.66,0.74."
    )
    accepted_length: float | None = param(
        "--accepted-length", help="Tokens of a pass, the target's own (bonus) token included: 2.16.", read=number
    )
    draft_rate: float | None = param(
        "--draft-rate", help="Accepted over drafted tokens: vLLM's draft acceptance rate.", read=number
    )


class Drafting(Question):
    """The draft in an engine's memory."""

    draft: str | None = param("--draft", "--model-draft", help="Draft model, or a head's own profile: as --model.")
    method: str | None = param(
        "--method", help="draft-model, ngram, medusa, eagle, mtp or layer-skip, if not --draft alone."
    )
    gamma: int | None = param("--gamma", "--spec-draft-n-max", help="Drafted tokens of a verification.", read=whole)
    draft_layers: int | None = param(
        "--draft-layers", help="eagle: layers of the head; layer-skip: layers that draft.", read=whole
    )
    draft_weights: str | None = param("--draft-weights", help="Weight format of the draft model; the checkpoint's own.")
    draft_tp: int | None = param("--draft-tp", help="Ranks that split the draft's layers; the target's.", read=whole)

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
            raise InputError(f"--{option} is of a draft", hint="give --draft MODEL or --method, as mtp")
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
        raise InputError("--draft-weights and --draft-tp are of a draft model", hint="give --draft, or leave them out")
