"""Files that start a plan: a script, a compose file, and Kubernetes Deployments with a Service, as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.commands import PORT, command_text
from kvcalc.render.kubernetes import kubernetes_objects
from kvcalc.render.started import MODELS, ROUTER_IMAGE, quoted, router_config, string_list

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.render.started import Started

__all__ = ["manifest_files"]


def manifest_files(started: Sequence[Started], *, node_gpus: int) -> dict[str, str]:
    """Return the files that start engines, by name.

    Args:
        started: the engines; one kind, or those that prefill and those that decode.
        node_gpus: accelerators of a node: an engine on more is no single pod, and has no Kubernetes file.
    """
    files = {"start.sh": _script(started), "compose.yaml": _compose(started, node_gpus)}
    if _is_routed(started):
        files["nginx.conf"] = router_config([f"{started[0].name}-{index}:{PORT}" for index in _places(started[0])])
    if all(each.gpus <= node_gpus for each in started):
        head = "".join(f"{line}\n" for each in started for line in each.comments) + _apart_comment(started)
        files["kubernetes.yaml"] = head + "---\n".join(part for each in started for part in kubernetes_objects(each))
    return files


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
            f"    image: {ROUTER_IMAGE}",
            "    ports:",
            f"      - {quoted(f'{PORT}:{PORT}')}",
            "    volumes:",
            "      - ./nginx.conf:/etc/nginx/conf.d/default.conf:ro",
            "    depends_on:",
            *(line for name in names for line in (f"      {name}:", "        condition: service_healthy")),
        ]
    return "\n".join([*lines, "volumes:", "  models: {}"]) + "\n"


def _service(each: Started, first: int, port: int | None) -> list[str]:
    """Return a service's lines: an engine on so many accelerators from a first one on."""
    published = [] if port is None else ["    ports:", f"      - {quoted(f'{port}:{PORT}')}"]
    mounted = [f"      - .{MODELS}:{MODELS}:ro"] if each.local else []
    return [
        f"    image: {each.image}",
        "    command:",
        *string_list(each.arguments, "      "),
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
            f"      ROCR_VISIBLE_DEVICES: {quoted(','.join(numbers))}",
        ]
    listed = ", ".join(map(quoted, numbers))
    return [
        "    deploy:",
        "      resources:",
        "        reservations:",
        "          devices:",
        f"            - driver: {each.vendor}",
        f"              device_ids: [{listed}]",
        "              capabilities: [gpu]",
    ]
