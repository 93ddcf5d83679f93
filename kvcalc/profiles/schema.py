"""The schema of profile files: validation with pydantic, and the JSON Schema that editors complete from.

The fields come from the classes of `core`; what is added here is the spelling of layers and the limits of numbers. This
module is the only one that imports pydantic, and shipped profiles, which the tests validate, are read without it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, TypeAdapter, ValidationError

from kvcalc.core.calibration import Interval, Measured, Reach
from kvcalc.core.errors import InputError, ProfileError, did_you_mean
from kvcalc.core.hardware import Link, MemoryShare
from kvcalc.core.model import Head, Lookup, Mixer, Mlp, Part, Table, Tower
from kvcalc.core.provenance import Source

if TYPE_CHECKING:
    from kvcalc.profiles.reader import Document

__all__ = ["DOCUMENTS", "CalibrationDocument", "HardwareDocument", "ModelDocument", "json_schema", "validate"]

_CONFIG = ConfigDict(extra="forbid", strict=True)

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
Size = Annotated[int, Field(gt=0, le=10**12)]
Count = Annotated[int, Field(ge=0, le=10**13)]
Rate = Annotated[float, Field(ge=1, le=1e21, allow_inf_nan=False)]
Format = Annotated[str, StringConstraints(min_length=2, max_length=60)]
Peak = Literal["fp64", "fp32", "tf32", "bf16", "bf16_acc16", "fp16", "fp16_acc16", "fp8", "fp8_acc16", "fp6", "fp4",
               "int8", "int4"]  # fmt: skip


class BlockDocument(BaseModel):
    """One kind of layer."""

    model_config = _CONFIG
    mixers: list[Annotated[Mixer, Discriminator("kind")]] = Field(default_factory=list)
    mlp: Annotated[Mlp, Discriminator("kind")] | None = None
    lookup: Lookup | None = None
    parallel: bool = False
    matrix_parameters: Count = 0
    vector_parameters: Count = 0


class RunDocument(BaseModel):
    """A pattern of layers and how often it is repeated."""

    model_config = _CONFIG
    repeat: Annotated[int, Field(gt=0, le=10_000)] = 1
    pattern: Annotated[list[str], Field(min_length=1)]


Layers = Annotated[list[str | RunDocument], Field(min_length=1)]
Blocks = Annotated[dict[str, BlockDocument], Field(min_length=1)]


class EncoderDocument(BaseModel):
    """An encoder that runs before decoding."""

    model_config = _CONFIG
    hidden_size: Size
    tokens: Size
    blocks: Blocks
    layers: Layers
    embeddings: list[Table] = Field(default_factory=list)
    matrix_parameters: Count = 0
    vector_parameters: Count = 0


class AliasDocument(BaseModel):
    """Differences of an alias's checkpoint from its profile."""

    model_config = _CONFIG
    context_limit: Size | None = None
    dtype: Format | None = None
    kv_dtype: Format | None = None
    text_only: bool = False
    weights: str | None = None


class ModelDocument(BaseModel):
    """A model profile."""

    model_config = _CONFIG
    name: Name
    architecture: str
    aliases: list[str] = Field(default_factory=list)
    alias_fields: dict[str, AliasDocument] = Field(default_factory=dict)
    hidden_size: Size
    context_limit: Size | None
    dtype: Format = "bf16"
    kv_dtype: Format | None = None
    activation_dtype: Format | None = None
    weight_formats: dict[Part, Format] = Field(default_factory=dict)
    embeddings: list[Table]
    head: Head | None = None
    blocks: Blocks
    layers: Layers
    rotary_positions: Size | None = None
    encoder: EncoderDocument | None = None
    towers: list[Tower] = Field(default_factory=list)
    matrix_parameters: Count = 0
    vector_parameters: Count = 0
    rotary_factors: Count = 0
    prediction_layers: Count = 0
    held_weight_bytes: Count | None = None
    notes: list[str] = Field(default_factory=list)
    sources: dict[str, Source] = Field(default_factory=dict)
    provenance: dict[str, str] = Field(default_factory=dict)


class HardwareDocument(BaseModel):
    """An accelerator profile."""

    model_config = _CONFIG
    name: Name
    title: str
    vendor: str
    architecture: str = ""
    aliases: list[str] = Field(default_factory=list)
    memory_bytes: Size | None = None
    runtime_memory_bytes: Size | None = None
    runtime_memory_shares: list[MemoryShare] = Field(default_factory=list)
    memory_label_bytes: Rate
    memory_bandwidth_bytes_per_s: Rate
    unified_memory: bool = False
    last_level_cache_bytes: Size | None = None
    peak_flop_per_s: Annotated[dict[Peak, Rate], Field(min_length=1)]
    links: dict[Literal["scale_up", "scale_out"], Link] = Field(default_factory=dict)
    board_power_w: Rate | None = None
    price_per_hour_usd: Annotated[float, Field(gt=0, le=1e6)] | None = None
    notes: list[str] = Field(default_factory=list)
    sources: dict[str, Source] = Field(default_factory=dict)
    provenance: dict[str, str] = Field(default_factory=dict)


class CalibrationDocument(BaseModel):
    """A calibration: what an engine reaches on a family of accelerators."""

    model_config = _CONFIG
    name: Name
    engine: str
    applies_to: Annotated[list[str], Field(min_length=1)]
    reach: Annotated[
        dict[
            Annotated[str, StringConstraints(pattern=r"^(matrix|attention|latent|state|experts)(:[a-z0-9]+)?$")], Reach
        ],
        Field(min_length=1),
    ]
    step_s: float = 0.0
    layer_s: float = 0.0
    collective_s: float = 0.0
    link_share: float = 1.0
    direct_share: float | None = None
    staged_s: float = 0.0
    sample_s: float = 0.0
    joins_inputs: bool = False
    prompt_share: float = 1.0
    request_s: float = 0.0
    request_steps: float = 0.0
    queue_share: float = 0.0
    memory_interval: Interval
    compute_interval: Interval
    intervals: dict[str, Interval] = Field(default_factory=dict)
    measured: Measured


DOCUMENTS: dict[str, type[BaseModel]] = {
    "model": ModelDocument,
    "hardware": HardwareDocument,
    "calibration": CalibrationDocument,
}


def json_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of profile."""
    return TypeAdapter(kind).json_schema()


def validate(document: Document, kind: type[BaseModel]) -> None:
    """Check a document against the schema, its numbers, and the sources its provenance names.

    Raises:
        ProfileError: what is wrong first, with file, line and field.
    """
    _check_kind(document, kind)
    try:
        kind.model_validate_json(json.dumps(document.data))  # strict for JSON: lists for tuples, mappings for classes
    except ValidationError as error:
        raise _profile_error(document, error) from None
    except InputError as error:
        raise ProfileError(error.what, where=document.where, hint=error.hint) from None
    _check_sizes(document, document.data, "")
    _check_heads(document)
    _check_aliases(document)
    _check_sources(document)


# A misspelt key shows up as an unknown and a missing one: the unknown one is the news.
_UNKNOWN = ("extra_forbidden", "unexpected_keyword_argument")


# What each kind is called, the option that takes it, and keys that tell it.
_KINDS: dict[type[BaseModel], tuple[str, str, set[str]]] = {
    ModelDocument: ("a model", "--model", {"blocks", "layers"}),
    HardwareDocument: ("an accelerator", "--gpu", {"peak_flop_per_s", "memory_bandwidth_bytes_per_s"}),
    CalibrationDocument: ("a calibration", "--calibration", {"reach", "applies_to"}),
}


def _check_kind(document: Document, kind: type[BaseModel]) -> None:
    """Refuse a profile of another kind by saying so."""
    kinds = [other for other, (_, _, keys) in _KINDS.items() if keys & document.data.keys()]
    if len(kinds) == 1 and kinds[0] is not kind:
        this, option, _ = _KINDS[kinds[0]]
        raise ProfileError(f"this is the profile of {this}", where=document.where, hint=f"give it to {option}")


def _profile_error(document: Document, error: ValidationError) -> ProfileError:
    first = min(error.errors(include_url=False), key=lambda each: (each["type"] not in _UNKNOWN, -len(each["loc"])))
    path = _document_path(document.data, first["loc"])
    field = path.rpartition(".")[2]
    hint = ""
    if first["type"] in _UNKNOWN:
        what = f"the key {field!r} is not known here"
        hint = did_you_mean(field, _known_fields())
    elif first["type"] in ("missing", "missing_argument"):
        what = f"the key {field!r} is missing"
    else:
        what = f"{path or 'the file'}: {first['msg'][0].lower()}{first['msg'][1:]}"
        value = first.get("input")
        if isinstance(value, str | int | float):
            what += f", not {value!r}"[:80]
    return ProfileError(
        what,
        where=document.place(path),
        hint=hint or "docs/profiles.md describes the fields; `kvcalc models schema` prints the schema",
    )


def _document_path(data: Any, location: tuple[int | str, ...]) -> str:
    """Return the dotted path in the file, without the tags of unions that pydantic puts between."""
    parts: list[str] = []
    for index, step in enumerate(location):
        if isinstance(data, dict):
            if step not in data and index < len(location) - 1:
                continue
            data = data.get(step)
        elif isinstance(data, list):
            if not isinstance(step, int):
                continue
            data = data[step] if step < len(data) else None
        else:
            continue
        parts.append(str(step))
    return ".".join(parts)


def _known_fields() -> set[str]:
    schemas = [json_schema(kind) for kind in DOCUMENTS.values()]
    fields: set[str] = set()
    for schema in schemas:
        for part in (schema, *schema.get("$defs", {}).values()):
            fields |= set(part.get("properties", {}))
    return fields


# Fields of `core` classes for which zero makes no sense.
_POSITIVE = {"heads", "kv_heads", "head_dim", "value_head_dim", "window", "chunk", "width", "rows", "experts",
             "experts_per_token", "kv_lora_rank", "q_lora_rank", "ratio", "top_k", "encoder_tokens", "pool",
             "output_groups", "output_rank",
             "bytes_per_s"}  # fmt: skip
_LARGEST, _LARGEST_WIDTH = 1e21, 10**9


def _check_sizes(document: Document, value: Any, path: str) -> None:
    """Refuse negative and absurd numbers wherever they stand."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in items:
        inner = f"{path}.{key}" if path else str(key)
        if isinstance(entry, dict | list):
            _check_sizes(document, entry, inner)
        elif isinstance(entry, int | float) and not isinstance(entry, bool):
            in_state = isinstance(value, dict) and value.get("kind") == "state"
            minimum = 1 if key in _POSITIVE and not in_state else 0
            is_width = key in _POSITIVE and key != "bytes_per_s"
            if not minimum <= entry <= (_LARGEST_WIDTH if is_width else _LARGEST):
                raise ProfileError(f"{inner} is {entry!r}, out of range", where=document.place(inner))


def _check_heads(document: Document) -> None:
    for name, block in document.data.get("blocks", {}).items():
        for index, mixer in enumerate(block.get("mixers", ())):
            path = f"blocks.{name}.mixers.{index}"
            query, kv = mixer.get("heads", 0), mixer.get("kv_heads", 1)
            if mixer["kind"] not in ("state", "latent", "compressed") and (kv > query or query % kv):
                raise ProfileError(
                    f"{path}: {query} query heads cannot share {kv} KV heads evenly",
                    where=document.place(f"{path}.kv_heads"),
                    hint="heads must be a multiple of kv_heads",
                )
        mlp = block.get("mlp") or {}
        if mlp.get("experts_per_token", 0) > mlp.get("experts", 0) + mlp.get("zero_experts", 0):
            raise ProfileError(
                f"blocks.{name}.mlp: {mlp['experts_per_token']} experts a token of {mlp['experts']}",
                where=document.place(f"blocks.{name}.mlp.experts_per_token"),
            )


def _check_aliases(document: Document) -> None:
    aliases = document.data.get("aliases", [])
    for name in document.data.get("alias_fields", {}):
        if name not in aliases:
            raise ProfileError(
                f"alias_fields names {name!r}, which is not among the aliases",
                where=document.place(f"alias_fields.{name}"),
                hint=did_you_mean(name, aliases) or "add it to aliases",
            )


def _check_sources(document: Document) -> None:
    sources = document.data.get("sources", {})
    for path, source in document.data.get("provenance", {}).items():
        if source not in sources:
            raise ProfileError(
                f"provenance of {path!r} names the source {source!r}, which is not listed",
                where=document.place(f"provenance.{path}"),
                hint=f"sources: {', '.join(sources) or 'none'}",
            )
    for name, source in sources.items():
        if (
            not source.get("url")
            and source.get("verified", True)
            and source["kind"] not in ("derived", "measured", "model_config")
        ):
            raise ProfileError(
                f"the source {name!r} has no url",
                where=document.place(f"sources.{name}"),
                hint="give a url, or say `verified: false`",
            )
