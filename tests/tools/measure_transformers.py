"""Count parameters and cache bytes of every generating class that the installed transformers registers.

    PYTHONPATH=. python tests/tools/measure_transformers.py TRUTH --condense tests/conformance/transformers_types.json

Run where torch and transformers are installed, from the root of the repository: a new release takes this one command, and then rules
for what the tests find. ``TRUTH`` gets ``configs/`` (the defaults of each config class, shrunk) and ``truth.json``: parameters by module,
and the bytes of the cache object after prompts of some lengths. ``--condense`` then writes what the tests ship, with ``--with`` from
other folders of truth too. ``--types`` measures these alone, ``--configs`` the configs of a folder in place of shrunk defaults. A class that
cannot run without images keeps its parameters alone; ``why`` says what stopped it.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import signal
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

# Tasks whose classes generate; the whole model comes before its decoder alone.
TASKS = (
    "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "MULTIMODAL_LM", "CAUSAL_LM", "TEXT_TO_WAVEFORM",
    "TEXT_TO_SPECTROGRAM",
)  # fmt: skip
# A class that takes longer on a CPU is measured at another size, or not at all.
MAX_SECONDS = 60
PROMPTS = (1, 36, 38, 90, 150)
ENCODER_TOKENS = 50
SMALL_LAYERS = 5
# Sizes of a small model, by the names that configs give them; whatever is not named keeps the default of its class.
TEXT_SIZES: tuple[tuple[str, int], ...] = (
    (r"(?:num_hidden_layers|num_layers|n_layers?|num_decoder_layers|decoder_layers|decoder_num_hidden_layers)", SMALL_LAYERS),
    (r"(?:encoder_layers|num_encoder_layers|encoder_num_hidden_layers)", 3),
    (r"(?:hidden_size|d_model|n_embd|dim|word_embed_proj_dim)", 160),
    (r"(?:num_attention_heads|n_heads?|num_heads|(?:encoder|decoder)_attention_heads|(?:encoder|decoder)_num_attention_heads)", 8),
    (r"(?:num_key_value_heads|n_head_kv|num_kv_heads|(?:encoder|decoder)_num_key_value_heads)", 2),
    (r"(?:head_dim|d_kv|kv_channels)", 32),
    (r"(?:intermediate_size|ffn_dim|d_ff|n_inner|ffn_hidden_size|(?:encoder|decoder)_ffn_dim)", 328),
    (r"(?:moe_intermediate_size)", 104),
    (r"(?:num_local_experts|n_routed_experts|num_experts|moe_num_experts)", 16),
    (r"(?:num_experts_per_tok|moe_topk|top_k_experts|experts_per_token)", 3),
    (r"(?:vocab_size)", 1003),
    (r"(?:sliding_window|sliding_window_size|attention_window_size)", 37),
)  # fmt: skip
_WIDTHS = {160, 32, 8, 2, 328}
_SECTIONS = re.compile(r"\w*_ids?|\w*sizes?|conv_\w+|mrope_section")
TOWER_LAYERS = re.compile(r"(?:num_hidden_layers|num_layers|depth|encoder_layers|num_global_layers)")
# What some classes need besides.
SETTINGS: dict[str, dict[str, Any]] = {
    "apertus1p5": {"text_config.vocab_size": 266752},
    "bailing_hybrid": {"pad_token_id": None, "layer_group_size": 3, "vocab_size": 1003},
    "bamba": {"attn_layer_indices": [2], "mamba_n_heads": 8, "mamba_d_head": 40, "mamba_n_groups": 1},
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_ocr2": {
        "text_config.mlp_layer_types": ["dense", "sparse", "sparse", "sparse", "sparse"],
        "text_config.num_experts_per_tok": 3,
    },
    "zamba": {"num_hidden_layers": 12, "attn_layer_period": 4, "attn_layer_offset": 2},
    "emu3": {"text_config.pad_token_id": 0},
    "dots3_note": {"text_config.num_key_value_heads": 8},
    "dots1": {
        "n_shared_experts": 1,
        "n_routed_experts": 16,
        "num_experts_per_tok": 3,
        "n_group": 1,
        "topk_group": 1,
        "first_k_dense_replace": 2,
    },
    "gemma4_assistant": {"text_config.hidden_size_per_layer_input": 0},
    "hunyuan_v1_moe": {"head_dim": 32},
    "ministral": {"head_dim": 32},
    "nemotron": {"head_dim": 32, "num_key_value_heads": 2},
    "granite4_vision": {"deepstack_layer_map": [[-1, 0]]},
    "higgs_audio_v2": {"pad_token_id": None},
    "perception_lm": {"vision_config.model_args": {"embed_dim": 64}},
    "moonshine_streaming": {"num_key_value_heads": 2},
    "molmo2": {"adapter_config.vision_feature_layer": [-1, -2]},
}
TOWER = re.compile(
    r"(?:vision|audio|image|speech|encoder|codec|vq|talker|code2wav|token2wav|qformer|perceiver|projector)\w*_config|code2wav"
)


def registered() -> dict[str, dict[str, str]]:
    """Return the generating classes by model type and task."""
    classes: dict[str, dict[str, str]] = {}
    for task in TASKS:
        for name, made in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES", {}).items():
            classes.setdefault(name, {})[task] = made if isinstance(made, str) else made[0]
    return dict(sorted(classes.items()))


def shrunk(values: dict[str, Any], *, tower: bool = False, level: int = 1) -> dict[str, Any]:
    """Return the values of a config with small sizes; at level 2 only the layers are fewer."""
    sizes = {1: TEXT_SIZES, 2: tuple(size for size in TEXT_SIZES if not _WIDTHS & {size[1]})}.get(level, TEXT_SIZES[:2])
    layers = next((value for key, value in values.items() if re.fullmatch(sizes[0][0], str(key))), None)
    made = {}
    for key, value in values.items():
        if key == "per_layer_config":
            continue  # made anew by the class
        if not isinstance(key, str):  # labels of a classifier
            made[key] = value
        elif isinstance(value, dict):
            made[key] = shrunk(value, tower=tower or TOWER.fullmatch(key) is not None, level=level)
        elif isinstance(value, list) and len(value) == layers and not _SECTIONS.fullmatch(key):
            continue  # one entry a layer: the class makes it anew
        elif key == "mrope_section" and level == 1:
            made[key] = [4, 6, 6]  # half of a head of 32
        elif type(value) is int and tower:
            made[key] = min(value, 2) if TOWER_LAYERS.fullmatch(key) else value
        elif type(value) is int:
            made[key] = next((size for name, size in sizes if re.fullmatch(name, key)), value)
        else:
            made[key] = value
    return made


def small_config(name: str, level: int) -> Any:
    """Return a small config of a type, made from the defaults of its class."""
    kind = CONFIG_MAPPING[name]
    values = shrunk(kind().to_dict(), level=level)
    for key in ("architectures", "transformers_version", "model_type"):
        values.pop(key, None)
    for key, value in SETTINGS.get(name, {}).items():
        *parts, last = key.split(".")
        inner = values
        for part in parts:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return kind(**values)


def cache_tensors(value: Any, path: str = "", seen: set[int] | None = None) -> list[tuple[str, torch.Tensor]]:
    """Return every tensor inside a cache object, each once, with the attributes that lead to it."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return []
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, dict):
        inner = [(str(key), entry) for key, entry in value.items()]
    elif isinstance(value, list | tuple):
        inner = [("", entry) for entry in value]
    elif type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        inner = [(f".{key}", entry) for key, entry in vars(value).items()]
        path = f"{path}/{type(value).__name__}"
    else:
        return []
    return [tensor for key, entry in inner for tensor in cache_tensors(entry, path + key, seen)]


def part_of(path: str) -> str:
    """Return what a tensor of a cache is: keys and values (counters of windows included), cross-attention, or state."""
    if "cross_attention_cache" in path:
        return "cross"
    return "state" if re.search(r"conv_states|recurrent_states|rnn_state|ssm_states|linear_cache", path) else "kv"


def replace_experts(model: torch.nn.Module) -> None:
    """Let routed experts return zeros: their shapes do not touch the cache, and some kernels need a GPU."""
    for module in model.modules():
        if type(module).__name__.endswith("Experts"):
            module.forward = lambda hidden_states, *_, **__: torch.zeros_like(hidden_states)


def inputs_of(model: Any, tokens: int, device: str) -> dict[str, Any]:
    """Return the arguments of a forward pass over a prompt: of the decoder where there is an encoder."""
    ids = torch.full((1, tokens), 7, dtype=torch.long, device=device)
    if not model.config.is_encoder_decoder:
        return {"input_ids": ids}
    if model.main_input_name == "input_ids":
        encoder = torch.full((1, ENCODER_TOKENS), 7, dtype=torch.long, device=device)
        return {"input_ids": encoder, "decoder_input_ids": ids}
    frames = 2 * getattr(model.config, "max_source_positions", ENCODER_TOKENS)
    bins = getattr(model.config, "num_mel_bins", 80)
    shape = {"input_features": (1, bins, frames)}.get(model.main_input_name, (1, 16000))
    return {model.main_input_name: torch.zeros(shape, dtype=model.dtype, device=device), "decoder_input_ids": ids}


def measured(model: Any, device: str) -> dict[str, Any]:
    """Return the bytes of the cache by part after each prompt, and its tensors after the longest."""
    after, layout, kind = {}, Counter(), "NoneType"
    for tokens in PROMPTS:
        with torch.no_grad():
            answer = model(**inputs_of(model, tokens, device), use_cache=True)
        cache = next(
            (
                answer[key]
                for key in ("past_key_values", "cache_params", "mems", "state")
                if answer.get(key) is not None
            ),
            None,
        )
        kind, parts = type(cache).__name__, Counter()
        tensors = cache_tensors(cache)
        for path, tensor in tensors:
            parts[part_of(path)] += tensor.nbytes
        after[str(tokens)] = {**parts, "total": sum(parts.values())}
        layout = Counter()
        for path, tensor in tensors:
            layout[f"{path} {list(tensor.shape)} {str(tensor.dtype)[6:]}"] += tensor.nbytes
    return {
        "bytes_after_prefill": after,
        "layout_at_150": [f"{line} = {size} B" for line, size in layout.items()],
        "cache_class": kind,
    }


def parameters_of(model: torch.nn.Module) -> dict[str, Any]:
    """Return the parameters, tied ones once, in all and by module of the first two levels."""
    modules: Counter[str] = Counter()
    for name, parameter in model.named_parameters():
        modules[".".join(name.split(".")[: 2 if name.startswith("model.") else 1])] += parameter.numel()
    return {"params_total": sum(modules.values()), "params_by_module": dict(modules)}


def measure(name: str, classes: dict[str, str], folder: Path, given: Path | None) -> dict[str, Any]:
    """Return what is counted of one type; its config goes to the folder."""
    entry: dict[str, Any] = {"classes": classes, "config": f"configs/{name}.json", "method": "none", "why": []}
    built = next(iter(classes.values()))
    for level, device in ((1, "cpu"), (2, "meta"), (3, "meta")):
        signal.alarm(MAX_SECONDS)
        try:
            if given is None:
                config = small_config(name, level)
            else:
                config = CONFIG_MAPPING[name].from_pretrained(given / f"{name}.json")
            config.dtype = "bfloat16"
            with torch.device(device):
                model = getattr(transformers, built)._from_config(config, dtype=torch.bfloat16)  # noqa: SLF001
            model.eval()
            if "params_total" not in entry:
                entry |= {"built": built, "size_level": level, **parameters_of(model)}
                config.architectures = [built]
                text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=str)
                (folder / "configs" / f"{name}.json").write_text(text + "\n")
            replace_experts(model)
            entry |= {
                **measured(model, device),
                **parameters_of(model),
                "method": "forward",
                "device": device,
                "size_level": level,
            }
            text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=str)
            (folder / "configs" / f"{name}.json").write_text(text + "\n")
            break
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1]
            entry["why"].append(
                f"L{level} {device}: {type(error).__name__}: {error} @ {Path(line.filename).name}:{line.lineno}"[:300]
            )
    return entry


def _stop(*_: object) -> None:
    raise TimeoutError(f"longer than {MAX_SECONDS} s")


def main() -> None:
    """Measure and write the truth."""
    signal.signal(signal.SIGALRM, _stop)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("truth", type=Path)
    parser.add_argument("--types", default="")
    parser.add_argument("--configs", type=Path)
    parser.add_argument("--condense", type=Path)
    parser.add_argument("--with", dest="others", type=Path, nargs="*", default=[])
    chosen = parser.parse_args()
    (chosen.truth / "configs").mkdir(parents=True, exist_ok=True)
    asked = set(chosen.types.split(",")) - {""}
    kept = chosen.truth / "truth.json"
    types = json.loads(kept.read_text())["types"] if kept.exists() else {}
    for name, classes in registered().items():
        if (asked and name not in asked) or (
            chosen.configs is not None and not (chosen.configs / f"{name}.json").exists()
        ):
            continue
        types[name] = measure(name, classes, chosen.truth, chosen.configs)
        gc.collect()
        print(name, types[name]["method"], types[name].get("params_total"), *types[name]["why"], flush=True)
        versions = {"transformers": transformers.__version__, "torch": torch.__version__, "dtype": "bfloat16"}
        kept.write_text(json.dumps({**versions, "types": dict(sorted(types.items()))}, indent=1) + "\n")
    if chosen.condense is not None:
        from transformers_types import condensed_file

        chosen.condense.write_text(condensed_file([*chosen.others, chosen.truth]))


if __name__ == "__main__":
    main()
