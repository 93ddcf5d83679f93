"""Files that start a plan: images and devices of each vendor, several replicas behind a router, files of one's own."""

import re
from pathlib import Path

import pytest
import yaml

from kvcalc.render.manifests import manifest_files
from kvcalc.render.started import Started, service_name


def files(*, name="m", replicas=1, vendor="nvidia", engine="vllm", gpus=2, local="", role=""):
    words = ("vllm", "serve", local or "a/b", "--port", "8000")
    words = words if engine == "vllm" else ("llama-server", "--model", local or "b.gguf", "--port", "8000")
    started = [
        Started(name=f"{name}{each}", engine=engine, words=words, replicas=replicas, gpus=gpus, vendor=vendor, gpu="card",
                local=local, note="the file" if local else "")
        for each in ([""] if not role else ["-prefill", "-decode"])
    ]  # fmt: skip
    return manifest_files(started, node_gpus=8)


def services(**asked):
    return yaml.safe_load(files(**asked)["compose.yaml"])["services"]


def objects(**asked):
    return list(yaml.safe_load_all(files(**asked)["kubernetes.yaml"]))


def test_each_replica_has_gpus_of_its_own():
    made = services(replicas=3)
    engines = [made[f"m-{place}"] for place in (1, 2, 3)]
    taken = [each["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for each in engines]
    assert taken == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert all("ports" not in each for each in engines)
    assert made["m-router"]["ports"] == ["8000:8000"]


@pytest.mark.parametrize("replicas", [1, 4])
def test_several_replicas_alone_stand_behind_a_router(replicas):
    made = files(replicas=replicas)
    assert ("nginx.conf" in made) is (replicas > 1)
    if replicas > 1:
        assert "least_conn;" in made["nginx.conf"]
        assert made["nginx.conf"].count("    server m-") == replicas
    kinds = [each["kind"] for each in objects(replicas=replicas)]
    assert kinds.count("Deployment") == (1 if replicas == 1 else 2)


def test_amd_cards_get_their_images_devices_and_resource():
    (service,) = services(vendor="amd").values()
    assert service["image"] == "vllm/vllm-openai-rocm:latest"
    assert service["devices"] == ["/dev/kfd", "/dev/dri"]
    assert service["environment"] == {"ROCR_VISIBLE_DEVICES": "0,1"}
    assert "deploy" not in service
    container = objects(vendor="amd")[0]["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"amd.com/gpu": "2"}
    assert "rocm" in services(vendor="amd", engine="llama.cpp")["m"]["image"]
    assert "cuda" in services(engine="llama.cpp")["m"]["image"]


def test_a_file_of_ones_own_is_mounted_and_named():
    (service,) = services(local="./x-nvfp4").values()
    assert "/models/x-nvfp4" in service["command"]
    assert "./models:/models:ro" in service["volumes"]
    pod = objects(local="./x-nvfp4")[0]["spec"]["template"]["spec"]
    assert {"name": "models", "persistentVolumeClaim": {"claimName": "models"}} in pod["volumes"]
    assert "# the file" in files(local="./x-nvfp4")["start.sh"]


def test_prefill_and_decode_say_that_a_proxy_is_missing():
    made = files(role="both")
    assert all("proxy" in made[name] for name in ("start.sh", "compose.yaml", "kubernetes.yaml"))
    ports = [each["ports"] for each in services(role="both").values()]
    assert ports == [["8000:8000"], ["8001:8000"]]


def test_the_router_asks_the_namespace_it_runs_in():
    settings = next(each for each in objects(replicas=2) if each["kind"] == "ConfigMap")
    text = settings["data"]["default.conf.template"]
    assert "server m-replicas.${POD_NAMESPACE}.svc.cluster.local:8000 resolve;" in text
    selectors = {each["metadata"]["name"]: each["spec"].get("selector") for each in objects(replicas=2) if each["kind"] == "Service"}  # fmt: skip
    assert selectors == {"m-replicas": {"app": "m"}, "m": {"app": "m-router"}}


FIELDS = yaml.safe_load((Path(__file__).parent / "kubernetes_fields.yaml").read_text())
TYPES = {"integer": int, "string": str, "boolean": bool, "integer or string": int | str}


def wrong(value, kind, where):
    """Yield what the published schema of a kind does not allow."""
    if kind == "any":
        return
    if kind == {}:
        yield from (f"{where}.{key}" for key, text in value.items() if not isinstance(text, str))
    elif isinstance(kind, list):
        for place, each in enumerate(value):
            yield from wrong(each, kind[0], f"{where}[{place}]")
    elif kind in TYPES:
        if not isinstance(value, TYPES[kind]) or (kind == "integer" and isinstance(value, bool)):
            yield f"{where}: {value!r} is no {kind}"
    else:
        allowed = FIELDS[kind]
        yield from (f"{where}.{name} is missing" for name in allowed["required"] if name not in value)
        yield from (f"{where}.{name} is no field" for name in value if name not in allowed["fields"])
        for name in value:
            yield from wrong(value[name], allowed["fields"].get(name, "any"), f"{where}.{name}")


# RFC 1035, which Kubernetes asks of a Service's name, and what it allows in the name of a port (IANA's service names).
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
PORT_NAME = re.compile(r"(?=.*[a-z])(?!.*--)[a-z0-9]([-a-z0-9]{0,13}[a-z0-9])?")
VERSIONS = {"Deployment": "apps/v1", "Service": "v1", "ConfigMap": "v1"}


def wrong_in(documents):
    """Yield what Kubernetes would refuse: fields and types, and then names that must be names or lead somewhere."""
    for each in documents:
        kind = each["kind"]
        yield from wrong(each, kind, kind)
        if each["apiVersion"] != VERSIONS[kind]:
            yield f"{kind}: {each['apiVersion']} has none"
        if not LABEL.fullmatch(each["metadata"]["name"]):
            yield f"{kind}: {each['metadata']['name']!r} is no label"
        if kind == "Deployment":
            yield from wrong_in_pod(each["spec"])
        elif kind == "Service" and each["spec"].get("clusterIP") == "None":
            # such a service has no port of its own: targetPort is left out, or the same
            yield from (f"Service: targetPort {port}" for port in each["spec"]["ports"] if "targetPort" in port)
    yield from wrong_links(documents)


def wrong_in_pod(spec):
    template, labels = spec["template"], spec["template"]["metadata"]["labels"]
    if not spec["selector"]["matchLabels"].items() <= labels.items():
        yield "the selector does not match the template's labels"
    yield from (f"the label {label!r} is too long" for label in labels.values() if len(label) > 63)
    volumes = [volume["name"] for volume in template["spec"]["volumes"]]
    yield from (f"the volume {name!r} has no one source" for name, volume in
                zip(volumes, template["spec"]["volumes"], strict=True) if len(volume) != 2)  # fmt: skip
    for container in template["spec"]["containers"]:
        ports = [port["name"] for port in container["ports"]]
        yield from (f"the port {name!r} is no service name" for name in ports if not PORT_NAME.fullmatch(name))
        mounted = [mount["name"] for mount in container["volumeMounts"]]
        yield from (f"no volume is named {name!r}" for name in mounted if name not in volumes)
        probed = [container[name]["httpGet"]["port"] for name in container if name.endswith("Probe")]
        yield from (f"no port is named {port!r}" for port in probed if port not in ports)
        resources = container.get("resources", {})
        # of a device the two must be the same whole number
        if resources.get("limits") != resources.get("requests"):
            yield f"{resources['limits']} are not {resources['requests']}"


def wrong_links(documents):
    """Yield names that lead to no other object of the files: pods of a Service, its port, a ConfigMap."""
    pods = [each["spec"]["template"] for each in documents if each["kind"] == "Deployment"]
    settings = {each["metadata"]["name"] for each in documents if each["kind"] == "ConfigMap"}
    names = [(each["kind"], each["metadata"]["name"]) for each in documents]
    if len(set(names)) < len(names):
        yield f"a name stands twice: {names}"
    for each in documents:
        if each["kind"] != "Service":
            continue
        asked = each["spec"]["selector"].items()
        chosen = [pod for pod in pods if asked <= pod["metadata"]["labels"].items()]
        if len(chosen) != 1:
            yield f"{each['metadata']['name']} chooses {len(chosen)} kinds of pods"
        named = {port["name"] for pod in chosen for one in pod["spec"]["containers"] for port in one["ports"]}
        yield from (f"no port {port['targetPort']}" for port in each["spec"]["ports"]
                    if port.get("targetPort", "http") not in named)  # fmt: skip
    for pod in pods:
        used = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
        yield from (f"no ConfigMap {name}" for name in used if name not in settings)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"replicas": 3},
        {"vendor": "amd", "local": "./x"},
        {"vendor": "amd", "replicas": 2},
        {"engine": "llama.cpp", "local": "./x.gguf"},
        {"role": "both"},
        {"role": "both", "replicas": 2},
        {"name": service_name("01-Ümlaut/" + "Very.Long_Name-" * 9), "replicas": 2},
        {"name": service_name("01-Ümlaut/" + "Very.Long_Name-" * 9), "role": "both", "replicas": 2},
    ],
)
def test_kubernetes_takes_every_object_that_is_written(asked):
    assert list(wrong_in(objects(**asked))) == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("llama3.1-8b", "llama3-1-8b"),
        ("Qwen3_8B", "qwen3-8b"),
        ("7b-chat", "model-7b-chat"),
        ("--", "model"),
        ("模型", "model"),
        ("a" * 80, "a" * 40),
        ("a" * 39 + ".b", "a" * 39),
    ],
)
def test_a_model_has_a_name_that_kubernetes_takes(model, name):
    assert service_name(model) == name


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("spec.replica", 2),
        ("spec.replicas", "2"),
        ("apiVersion", "v1"),
        ("metadata.name", "3-m"),
        ("metadata.label", {}),
        ("spec.selector.matchLabels.app", "other"),
        ("spec.template.metadata.labels.app", "x" * 64),
        ("spec.template.spec.container", []),
        ("spec.template.spec.volumes", []),
        ("spec.template.spec.containers.0.ports.0.containerPort", "8000"),
        ("spec.template.spec.containers.0.ports.0.name", "longer-than-fifteen"),
        ("spec.template.spec.containers.0.livenessProbe.httpGet.port", "htpp"),
        ("spec.template.spec.containers.0.resources.limits", {"nvidia.com/gpu": 2}),
        ("spec.template.spec.containers.0.resources.limit", {}),
        ("spec.template.spec.containers.0.volumeMounts.0.path", "/x"),
        ("spec.template.spec.volumes.0.emptyDir.medium", 1),
    ],
)
def test_what_kubernetes_does_not_take_is_noticed(path, value):
    documents = objects()
    *within, last = path.split(".")
    place = documents[0]
    for step in within:
        place = place[int(step) if step.isdigit() else step]
    place[last] = value
    assert list(wrong_in(documents))


def test_a_field_that_must_be_there_is_missed():
    (deployment, service) = objects()
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"].pop("port")
    assert any("port is missing" in each for each in wrong(deployment, "Deployment", "Deployment"))
    service["spec"]["selector"] = {"app": "other"}
    assert any("chooses 0 kinds" in each for each in wrong_links([deployment, service]))


def test_two_cards_are_said_to_need_nodes_of_their_own():
    started = [
        Started(name=role, engine="vllm", words=("vllm", "serve", "a/b"), replicas=1, gpus=1, vendor="nvidia", gpu=gpu)
        for role, gpu in (("m-prefill", "l40s"), ("m-decode", "h200"))
    ]
    assert "nodeSelector" in manifest_files(started, node_gpus=8)["kubernetes.yaml"]
    assert "nodeSelector" not in files(role="both")["kubernetes.yaml"]
