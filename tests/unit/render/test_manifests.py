"""Files that start a plan: images and devices of each vendor, several replicas behind a router, files of one's own."""

from pathlib import Path

import pytest
import yaml

from kvcalc.render.manifests import Started, manifest_files


def files(*, replicas=1, vendor="nvidia", engine="vllm", gpus=2, local="", role=""):
    words = ("vllm", "serve", local or "a/b", "--port", "8000")
    words = words if engine == "vllm" else ("llama-server", "--model", local or "b.gguf", "--port", "8000")
    started = [
        Started(name=f"m{each}", engine=engine, words=words, replicas=replicas, gpus=gpus, vendor=vendor, gpu="card",
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


def wrong_in(documents):
    for each in documents:
        spec = each.get("spec")
        if each["kind"] == "Service":
            yield from wrong(spec, "ServiceSpec", "Service")
        elif each["kind"] == "Deployment":
            yield from wrong(spec, "DeploymentSpec", "Deployment")
            pod = spec["template"]["spec"]
            for container in pod["containers"]:
                yield from wrong(container, "Container", "container")
            for volume in pod["volumes"]:
                yield from wrong(volume.get("emptyDir", {}), "EmptyDirVolumeSource", "emptyDir")
            # the selector must match the template's labels
            assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


@pytest.mark.parametrize("asked", [{}, {"replicas": 3}, {"vendor": "amd", "local": "./x"}, {"role": "both"}])
def test_kubernetes_files_have_the_fields_of_the_published_schemas(asked):
    documents = objects(**asked)
    assert list(wrong_in(documents)) == []
    for each in documents:
        if each["kind"] == "Service" and each["spec"].get("clusterIP") == "None":
            # such a service has no port of its own: targetPort is left out, or the same
            assert all("targetPort" not in port for port in each["spec"]["ports"])


def test_a_field_that_kubernetes_does_not_know_is_noticed():
    (deployment, _) = objects()
    deployment["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["httpGet"].pop("port")
    deployment["spec"]["replica"] = 2
    deployment["spec"]["replicas"] = "2"
    assert len(list(wrong_in([deployment]))) == 3
