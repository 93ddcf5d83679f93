"""Kubernetes objects that start a plan's engines: Deployments with their Services, and a router before replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvcalc.engines.commands import PORT
from kvcalc.render.started import MODELS, ROUTER_IMAGE, quoted, router_config, string_list

if TYPE_CHECKING:
    from kvcalc.render.started import Started

__all__ = ["kubernetes_objects"]

_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}


def kubernetes_objects(each: Started) -> list[str]:
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
    config = router_config(
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
          image: {ROUTER_IMAGE}
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
    arguments = "\n".join(string_list(each.arguments, "            "))
    security = ""
    if each.vendor == "amd":
        security = "          securityContext:\n            seccompProfile:\n              type: Unconfined\n"
    mount = f"            - name: models\n              mountPath: {MODELS}\n              readOnly: true\n"
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
              {resource}: {quoted(str(each.gpus))}
            requests:
              {resource}: {quoted(str(each.gpus))}
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
