"""Files that start a plan: a script, a compose file, and Kubernetes Deployments with a Service, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.engines.commands import PORT, command_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Started", "manifest_files"]

# Images by their usual names; a tag is the user's choice.
_IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:latest",
    "llama.cpp": "ghcr.io/ggml-org/llama.cpp:server-cuda",
}
# Words at the head of a command that the image's own entry point stands for.
_ENTRY = {"vllm": 2, "sglang": 0, "llama.cpp": 1}
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


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
    """

    name: str
    engine: str
    words: tuple[str, ...]
    replicas: int
    gpus: int
    vendor: str
    gpu: str


def manifest_files(started: Sequence[Started], *, node_gpus: int) -> dict[str, str]:
    """Return the files that start engines, by name.

    Args:
        started: the engines.
        node_gpus: accelerators of a node: an engine on more is no single pod, and has no Kubernetes file.
    """
    files = {"start.sh": _script(started), "compose.yaml": _compose(started)}
    if all(each.gpus <= node_gpus for each in started):
        files["kubernetes.yaml"] = "---\n".join(_kubernetes(each) for each in started)
    return files


def _script(started: Sequence[Started]) -> str:
    lines = ["#!/bin/sh", "# One line starts one replica."]
    for each in started:
        lines += [f"# {each.name}: {each.replicas} replica(s), {each.gpus} x {each.gpu} each", command_text(each.words)]
    return "\n".join(lines) + "\n"


def _arguments(each: Started, indent: str) -> str:
    """Return the words after the entry point as a YAML list."""
    words = each.words[_ENTRY.get(each.engine, 0) :]
    return "\n".join(f"{indent}- {_quoted(word)}" for word in words)


def _quoted(word: str) -> str:
    """Return a word as a YAML string that is never read as a number or a mapping.

    >>> _quoted("it's 8"), _quoted("8000")
    ("'it''s 8'", "'8000'")
    """
    return "'" + word.replace("'", "''") + "'"


def _compose(started: Sequence[Started]) -> str:
    """Return a compose file; each service is one replica on its GPUs."""
    lines = [
        "# docker compose up; each service is one replica: scale them over hosts with an orchestrator.",
        "services:",
    ]
    first = 0
    for each in started:
        devices = ", ".join(_quoted(str(first + place)) for place in range(each.gpus))
        lines += [
            f"  {each.name}:",
            f"    image: {_IMAGES.get(each.engine, each.engine)}",
            "    command:",
            _arguments(each, "      "),
            "    ports:",
            f"      - {_quoted(f'{PORT}:{PORT}')}",
            "    ipc: host",
            "    volumes:",
            "      - models:/root/.cache/huggingface",
            "    deploy:",
            "      resources:",
            "        reservations:",
            "          devices:",
            f"            - driver: {each.vendor}",
            f"              device_ids: [{devices}]",
            "              capabilities: [gpu]",
            "    healthcheck:",
            f"      test: ['CMD-SHELL', 'curl -fs http://localhost:{PORT}/health']",
            "      interval: 10s",
            "      start_period: 15m",
        ]
        first += each.gpus
    return "\n".join([*lines, "volumes:", "  models: {}"]) + "\n"


def _kubernetes(each: Started) -> str:
    """Return a Deployment with resources and probes, and the Service before it."""
    resource = _RESOURCES.get(each.vendor, f"{each.vendor}.com/gpu")
    return f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {each.name}
  labels:
    app: {each.name}
spec:
  replicas: {each.replicas}
  selector:
    matchLabels:
      app: {each.name}
  template:
    metadata:
      labels:
        app: {each.name}
    spec:
      containers:
        - name: engine
          image: {_IMAGES.get(each.engine, each.engine)}
          args:
{_arguments(each, "            ")}
          ports:
            - name: http
              containerPort: {PORT}
          resources:
            limits:
              {resource}: {_quoted(str(each.gpus))}
            requests:
              {resource}: {_quoted(str(each.gpus))}
          startupProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 10
            failureThreshold: 180
          readinessProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 5
          livenessProbe:
            httpGet:
              path: /health
              port: http
            periodSeconds: 10
            failureThreshold: 6
          volumeMounts:
            - name: shared-memory
              mountPath: /dev/shm
      volumes:
        - name: shared-memory
          emptyDir:
            medium: Memory
---
apiVersion: v1
kind: Service
metadata:
  name: {each.name}
spec:
  selector:
    app: {each.name}
  ports:
    - name: http
      port: {PORT}
      targetPort: http
"""
