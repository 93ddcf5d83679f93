"""Files that start a plan: images and devices of each vendor, several replicas behind a router, files of one's own."""

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
