"""Engines that a plan starts: their images and arguments, and what the files that start them have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.engines.commands import PORT

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MODELS", "ROUTER_IMAGE", "Started", "quoted", "router_config", "service_name", "string_list"]

# Images by their usual names; a tag is the user's choice. Sources: docs.vllm.ai, deployment/docker (CUDA and ROCm);
# rocm.docs.amd.com, inference/sglang (SGLang on ROCm); llama.cpp, docs/docker.md.
_IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda",
}
_ROCM_IMAGES = {
    "vllm": "vllm/vllm-openai-rocm:latest",
    "sglang": "rocm/sgl-dev:v0.5.13.post1-ubuntu24.04-py3.14-rocm7.14",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-rocm",
}
# The router in front of several replicas: `resolve` in an upstream is in nginx's open source from 1.27.3 on.
ROUTER_IMAGE = "nginx:1.29"
# Words at the head of a command that the image's own entry point stands for.
_ENTRY = {"vllm": 2, "sglang": 0, "llama.cpp": 1}
MODELS = "/models"
# Letters of a model's name: with what follows it, such as -prefill-replicas, a label has at most 63.
_MAX_NAME = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Engines of one kind that a plan starts.

    Args:
        name: of the deployment: letters, digits and hyphens.
        engine: the engine.
        words: the command of one of them.
        replicas: how many.
        gpus: accelerators of each.
        vendor: of the accelerators.
        gpu: the accelerator.
        local: the word of the command that names a file or folder of one's own; empty where there is none.
        note: which one that must be.
    """

    name: str
    engine: str
    words: tuple[str, ...]
    replicas: int
    gpus: int
    vendor: str
    gpu: str
    local: str = ""
    note: str = ""

    @property
    def image(self) -> str:
        """The engine's image for the accelerator."""
        images = _ROCM_IMAGES if self.vendor == "amd" else _IMAGES
        return images.get(self.engine, self.engine)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Words after the image's entry point; a file of one's own lies in the mounted folder of models."""
        mounted = f"{MODELS}/{self.local.removeprefix('./')}"
        words = self.words[_ENTRY.get(self.engine, 0) :]
        return tuple(mounted if self.local and word == self.local else word for word in words)

    @property
    def comments(self) -> list[str]:
        """Comments for a reader of the files."""
        lines = [f"# {self.name}: {self.replicas} x {self.engine}, {self.gpus} x {self.gpu} each"]
        return lines + [f"# {self.note}"] * bool(self.note)


def service_name(model: str) -> str:
    """Return a model's name as a Service may have it: lower-case letters, digits and hyphens, a letter first.

    Source: Kubernetes, Object Names and IDs (RFC 1035 label names).

    >>> service_name("llama3.1-8b"), service_name("7b_chat")
    ('llama3-1-8b', 'model-7b-chat')
    """
    letters = "".join(each if each.isascii() and each.isalnum() else "-" for each in model.lower()).strip("-")
    letters = letters if letters[:1].isalpha() else f"model-{letters}"
    return letters[:_MAX_NAME].strip("-")


def quoted(word: str) -> str:
    """Return a word as a YAML string that is never read as a number or a mapping.

    >>> quoted("it's 8"), quoted("8000")
    ("'it''s 8'", "'8000'")
    """
    return "'" + word.replace("'", "''") + "'"


def string_list(words: Sequence[str], indent: str) -> list[str]:
    """Return a YAML list of strings, a line each."""
    return [f"{indent}- {quoted(word)}" for word in words]


def router_config(servers: Sequence[str], *, head: str = "", more: str = "") -> str:
    """Return nginx's configuration: the fewest open requests first, answers passed on as they are made."""
    listed = "\n".join(f"    server {server};" for server in servers)
    return f"""{head}upstream replicas {{
{more}    least_conn;
{listed}
}}
server {{
    listen {PORT};
    location / {{
        proxy_pass http://replicas;
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_buffering off;
        proxy_read_timeout 1h;
    }}
}}
"""
