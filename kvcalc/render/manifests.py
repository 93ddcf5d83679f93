"""Files that start a plan: a script, a compose file, and Kubernetes Deployments with a Service, as text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvcalc.engines.commands import PORT, command_text

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Started", "manifest_files", "service_name"]

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
_ROUTER_IMAGE = "nginx:1.29"
# Words at the head of a command that the image's own entry point stands for.
_ENTRY = {"vllm": 2, "sglang": 0, "llama.cpp": 1}
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
_MODELS = "/models"
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
        mounted = f"{_MODELS}/{self.local.removeprefix('./')}"
        words = self.words[_ENTRY.get(self.engine, 0) :]
        return tuple(mounted if self.local and word == self.local else word for word in words)

    @property
    def comments(self) -> list[str]:
        """Comments for a reader of the files."""
        lines = [f"# {self.name}: {self.replicas} x {self.engine}, {self.gpus} x {self.gpu} each"]
        return lines + [f"# {self.note}"] * bool(self.note)


def manifest_files(started: Sequence[Started], *, node_gpus: int) -> dict[str, str]:
    """Return the files that start engines, by name.

    Args:
        started: the engines; one kind, or those that prefill and those that decode.
        node_gpus: accelerators of a node: an engine on more is no single pod, and has no Kubernetes file.
    """
    files = {"start.sh": _script(started), "compose.yaml": _compose(started, node_gpus)}
    if _is_routed(started):
        files["nginx.conf"] = _router_config([f"{started[0].name}-{index}:{PORT}" for index in _places(started[0])])
    if all(each.gpus <= node_gpus for each in started):
        head = "".join(f"{line}\n" for each in started for line in each.comments) + _apart_comment(started)
        files["kubernetes.yaml"] = head + "---\n".join(part for each in started for part in _kubernetes(each))
    return files


def service_name(model: str) -> str:
    """Return a model's name as a Service may have it: lower-case letters, digits and hyphens, a letter first.

    Source: Kubernetes, Object Names and IDs (RFC 1035 label names).

    >>> service_name("llama3.1-8b"), service_name("7b_chat")
    ('llama3-1-8b', 'model-7b-chat')
    """
    letters = "".join(each if each.isascii() and each.isalnum() else "-" for each in model.lower()).strip("-")
    letters = letters if letters[:1].isalpha() else f"model-{letters}"
    return letters[:_MAX_NAME].strip("-")


def _is_routed(started: Sequence[Started]) -> bool:
    return len(started) == 1 and started[0].replicas > 1


def _places(each: Started) -> range:
    return range(1, each.replicas + 1)


def _apart_comment(started: Sequence[Started]) -> str:
    """Name the missing proxy between engines that prefill and engines that decode."""
    if len(started) == 1:
        return ""
    return (
        "# A proxy sends each request to an engine that prefills, and then to one that decodes: llm-d, Dynamo or the\n"
        "# engine's own router. It is not in this file.\n"
    ) + _nodes_comment(started)


def _nodes_comment(started: Sequence[Started]) -> str:
    """Say that engines on different cards need nodes of their own."""
    if len({each.gpu for each in started}) == 1:
        return ""
    return (
        "# The cards are of two kinds: start each engine on a host of its card; in Kubernetes give each Deployment a\n"
        "# nodeSelector, such as nvidia.com/gpu.product.\n"
    )


def _script(started: Sequence[Started]) -> str:
    lines = ["#!/bin/sh", "# One line starts one replica; each needs GPUs and a port of its own."]
    for each in started:
        lines += [*each.comments, command_text(each.words)]
    if _is_routed(started):
        lines.append(
            "# A router deals requests to the replica with the fewest open ones: see nginx.conf, or compose.yaml."
        )
    return "\n".join(lines) + "\n" + _apart_comment(started)


def _quoted(word: str) -> str:
    """Return a word as a YAML string that is never read as a number or a mapping.

    >>> _quoted("it's 8"), _quoted("8000")
    ("'it''s 8'", "'8000'")
    """
    return "'" + word.replace("'", "''") + "'"


def _list(words: Sequence[str], indent: str) -> list[str]:
    return [f"{indent}- {_quoted(word)}" for word in words]


def _router_config(servers: Sequence[str], *, head: str = "", more: str = "") -> str:
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


def _compose(started: Sequence[Started], node_gpus: int) -> str:
    """Return a compose file; each service is one replica on its GPUs."""
    total = sum(each.replicas * each.gpus for each in started)
    lines = [f"# docker compose up, on a host with {total} GPUs; each service is one replica."]
    if total > node_gpus:
        lines.append(
            f"# {total} GPUs are more than a node has: spread the services over hosts, or take kubernetes.yaml."
        )
    lines += [*(line for each in started for line in each.comments), *_apart_comment(started).splitlines(), "services:"]
    first, routed, port = 0, _is_routed(started), PORT
    for each in started:
        for index in _places(each):
            name = each.name if each.replicas == 1 else f"{each.name}-{index}"
            lines += [f"  {name}:", *_service(each, first, None if routed else port)]
            first, port = first + each.gpus, port + 1
    if routed:
        names = [f"{started[0].name}-{index}" for index in _places(started[0])]
        lines += [
            f"  {started[0].name}-router:",
            f"    image: {_ROUTER_IMAGE}",
            "    ports:",
            f"      - {_quoted(f'{PORT}:{PORT}')}",
            "    volumes:",
            "      - ./nginx.conf:/etc/nginx/conf.d/default.conf:ro",
            "    depends_on:",
            *(line for name in names for line in (f"      {name}:", "        condition: service_healthy")),
        ]
    return "\n".join([*lines, "volumes:", "  models: {}"]) + "\n"


def _service(each: Started, first: int, port: int | None) -> list[str]:
    """Return a service's lines: an engine on so many accelerators from a first one on."""
    published = [] if port is None else ["    ports:", f"      - {_quoted(f'{port}:{PORT}')}"]
    mounted = [f"      - .{_MODELS}:{_MODELS}:ro"] if each.local else []
    return [
        f"    image: {each.image}",
        "    command:",
        *_list(each.arguments, "      "),
        *published,
        "    ipc: host",
        "    volumes:",
        "      - models:/root/.cache/huggingface",
        *mounted,
        *_devices(each, [str(first + index) for index in range(each.gpus)]),
        "    healthcheck:",
        f"      test: ['CMD-SHELL', 'curl -fs http://localhost:{PORT}/health']",
        "      interval: 10s",
        "      start_period: 15m",
    ]


def _devices(each: Started, numbers: Sequence[str]) -> list[str]:
    """Return the lines that give a service its accelerators.

    Source: for AMD, the ``docker run`` lines of rocm.docs.amd.com (kfd, dri, group video, seccomp), and
    ``ROCR_VISIBLE_DEVICES`` of its GPU isolation page; for the others, the compose specification's devices.
    """
    if each.vendor == "amd":
        return [
            "    devices:",
            "      - /dev/kfd",
            "      - /dev/dri",
            "    group_add:",
            "      - video",
            "    security_opt:",
            "      - seccomp=unconfined",
            "    environment:",
            f"      ROCR_VISIBLE_DEVICES: {_quoted(','.join(numbers))}",
        ]
    listed = ", ".join(map(_quoted, numbers))
    return [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - driver: {each.vendor}",
        f"              device_ids: [{listed}]",
        "              capabilities: [gpu]",
    ]


def _kubernetes(each: Started) -> list[str]:
    """Return a Deployment with resources and probes and its Service; a router before several replicas."""
    if each.replicas == 1:
        return [_deployment(each), _entrance(each.name, each.name)]
    inside = f"{each.name}-replicas"
    headless = f"""apiVersion: v1
kind: Service
metadata:
  name: {inside}
spec:
  clusterIP: None
  selector:
    app: {each.name}
  ports:
    - name: http
      port: {PORT}
"""
    return [
        _deployment(each),
        headless,
        *_router(f"{each.name}-router", inside),
        _entrance(each.name, f"{each.name}-router"),
    ]


def _entrance(name: str, app: str) -> str:
    """Return the Service that clients ask."""
    return f"""apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector:
    app: {app}
  ports:
    - name: http
      port: {PORT}
      targetPort: http
"""


def _router(name: str, inside: str) -> list[str]:
    """Return nginx before the replicas of a headless Service: its template is filled with the pod's namespace."""
    config = _router_config(
        [f"{inside}.${{POD_NAMESPACE}}.svc.cluster.local:{PORT} resolve"],
        head="resolver kube-dns.kube-system.svc.cluster.local valid=5s;\n",
        more="    zone replicas 64k;\n",
    )
    indented = "".join(f"    {line}\n" for line in config.splitlines())
    settings = f"""apiVersion: v1
kind: ConfigMap
metadata:
  name: {name}
data:
  default.conf.template: |
{indented}"""
    deployment = f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  labels:
    app: {name}
spec:
  replicas: 1
  selector:
    matchLabels:
      app: {name}
  template:
    metadata:
      labels:
        app: {name}
    spec:
      containers:
        - name: router
          image: {_ROUTER_IMAGE}
          env:
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
          ports:
            - name: http
              containerPort: {PORT}
          volumeMounts:
            - name: settings
              mountPath: /etc/nginx/templates
      volumes:
        - name: settings
          configMap:
            name: {name}
"""
    return [settings, deployment]


def _deployment(each: Started) -> str:
    """Return a Deployment with resources and probes."""
    resource = _RESOURCES.get(each.vendor, f"{each.vendor}.com/gpu")
    arguments = "\n".join(_list(each.arguments, "            "))
    security = ""
    if each.vendor == "amd":
        security = "          securityContext:\n            seccompProfile:\n              type: Unconfined\n"
    mount = f"            - name: models\n              mountPath: {_MODELS}\n              readOnly: true\n"
    volume = "        - name: models\n          persistentVolumeClaim:\n            claimName: models\n"
    mount, volume = (mount, volume) if each.local else ("", "")
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
          image: {each.image}
          args:
{arguments}
{security}          ports:
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
{mount}      volumes:
        - name: shared-memory
          emptyDir:
            medium: Memory
{volume}"""
