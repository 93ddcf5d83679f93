"""Each report by its address: the numbers of the command line, its chart, its command; mistakes with their field."""

import json
import os
import shlex
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("starlette", reason="the explorer's libraries are an extra: kvcalc[explore]")

from contracts.test_commands_documented import CONFIG

from kvcalc.cli.main import main
from kvcalc.explore.answers import reply_to
from kvcalc.explore.questions import QUESTIONS
from kvcalc.explore.server import Place
from kvcalc.questions import serving

ROOT = Path(__file__).parents[2]
RUN = {"model": "llama3.1-8b", "gpu": "h100-sxm"}
ASKED = {
    "size": {"model": "deepseek-v3", "context": "8192", "batch": "8", "engine": "vllm"},
    "fit": {**RUN, "context": "8192", "batch": "8", "engine": "llama.cpp", "kv-dtype": "q8_0"},
    "decode": {**RUN, "batch": "1-64*4", "context": "1024,8192", "kv-dtype": "fp8", "estimate": "true"},
    "prefill": {**RUN, "prompt": "8k", "gpus": "2", "price": "2.5"},
    "roofline": {**RUN, "batch": "1,64", "context": "4096"},
    "speculate": {"model": "llama3.1-70b", "draft": "llama3.1-8b", "gpu": "h200", "gpus": "2", "batch": "8",
                  "gamma": "5", "acceptance": "0.8"},
    "layers": {**RUN, "batch": "8", "context": "8192", "phase": "prefill"},
    "levers": {"model": "llama2-7b", "context": "4096", "with": "gqa,fp8"},
    "traffic": {"model": "llama2-7b", "prompt": "0", "output-tokens": "4096"},
    "plan": {**RUN, "prompt": "512", "output-tokens": "50", "rate": "2", "slo": "ttft_p95=1s", "price": "h100-sxm=2.5",
             "confirm": "1", "requests": "50"},
    "simulate": {**RUN, "rate": "4", "requests": "20", "prompt": "uniform:128-512", "output-tokens": "20", "seed": "3"},
    "demo/kv-cache": {"prompt": "3", "output-tokens": "8", "heads": "4", "kv-heads": "1"},
    "demo/speculate": {"gamma": "3", "output-tokens": "8"},
    "demo/paging": {"block-size": "32"},
    "demo/batching": {"places": "3", "requests": "8"},
    "demo/drift": {"trainings": "1", "free-steps": "20"},
}  # fmt: skip
SHOWN_BESIDE = {"command", "charts"}


def _printed(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([*shlex.split(command)[1:], "--json"])
    assert done.value.code == 0
    return json.loads(capsys.readouterr().out)


LINES = {"Accept": "application/x-ndjson"}


def test_a_simulation_is_told_of_while_it_runs_and_answered_alike(client, monkeypatch):
    monkeypatch.setattr(serving, "_TOLD_EVERY_S", 0.0)
    asked = {**RUN, "rate": "30", "requests": "300", "prompt": "uniform:64-512", "output-tokens": "uniform:16-300"}
    found = client.get("/api/simulate", params=asked, headers=LINES)
    assert found.headers["content-type"].startswith("application/x-ndjson")
    *told, answer = map(json.loads, found.text.splitlines())
    assert len(told) >= 2
    assert {tuple(each) for each in told} == {("so_far",)}
    assert told[-1]["so_far"]["finished_requests"] <= answer["summary"]["requests"] == 300
    again = client.get("/api/simulate", params=asked)
    assert again.headers["content-type"] == "application/json"
    assert again.json() == answer
    assert client.get("/api/simulate", params=asked, headers=LINES).json() == answer


@pytest.mark.parametrize(
    ("params", "field"), [({**RUN, "rate": "x"}, "rate"), ({**RUN, "requests": "6000"}, "requests")]
)
def test_a_mistake_in_what_would_be_told_of_is_refused_as_ever(client, params, field):
    found = client.get("/api/simulate", params=params, headers=LINES)
    assert found.status_code == 422
    assert found.json()["error"]["field"] == field


def test_a_question_that_tells_nothing_before_is_answered_as_ever(client):
    found = client.get("/api/size", params={"model": "llama2-7b"}, headers=LINES)
    assert found.json() == client.get("/api/size", params={"model": "llama2-7b"}).json()


def test_every_report_is_tried():
    assert set(ASKED) == set(QUESTIONS)


@pytest.mark.parametrize("name", ASKED)
def test_a_report_is_what_its_command_prints(client, capsys, name):
    found = client.get(f"/api/{name}", params=ASKED[name])
    assert found.status_code == 200, found.text
    data = found.json()
    printed = _printed(data["command"], capsys)
    own = {"engine_command": printed.pop("command")} if "command" in printed else {}
    beside = SHOWN_BESIDE if "answer" in printed else SHOWN_BESIDE | {"answer"}
    assert {key: value for key, value in data.items() if key not in beside} == printed | own
    assert isinstance(data["answer"], str)
    assert all(
        chart["$schema"].startswith("https://vega.github.io/schema/vega-lite/") for chart in data["charts"].values()
    )
    assert set(data["charts"]) == {view or "main" for view in QUESTIONS[name].views}


LOCAL = {
    "model": "qwen3-30b-a3b",
    "weights": "q4_k_m",
    "engine": "llama.cpp",
    "context": "8192",
    "host-memory": "64GiB",
}


def test_devices_are_named_by_cards_and_memories(client, capsys):
    asked = {**LOCAL, "device": "rtx-4090,12GiB", "gpu-layers": "40", "host": "ddr5-5600x2"}
    data = client.get("/api/fit", params=asked).json()
    printed = _printed(data["command"], capsys)
    assert data["devices"] == printed["devices"]
    assert data["engine_command"] == printed["command"]
    assert [each["name"] for each in data["devices"]] == ["rtx-4090", "12GiB"]


@pytest.mark.parametrize(
    ("name", "asked", "field"),
    [
        ("fit", {**LOCAL, "device": "this"}, "device"),
        ("fit", {**LOCAL, "device": "/etc/passwd"}, "device"),
        ("fit", {**LOCAL, "device": "24GiB", "host": "/etc/passwd"}, "host"),
        ("plan", {**ASKED["plan"], "price": "/etc/passwd"}, "price"),
        ("plan", {**ASKED["plan"], "gpu": "h100-sxm,/etc/passwd"}, "gpu"),
    ],
)
def test_no_file_and_no_machine_is_opened_for_a_page(client, monkeypatch, name, asked, field):
    monkeypatch.setattr("kvcalc.questions.devices.this_machine", pytest.fail)
    found = client.get(f"/api/{name}", params=asked)
    assert (found.status_code, found.json()["error"]["field"]) == (422, field)


@pytest.mark.parametrize("name", ["size", "decode", "prefill", "roofline", "speculate"])
def test_formulas_are_those_of_explain(client, capsys, name):
    data = client.get(f"/api/{name}", params={**ASKED[name], "explain": "true"}).json()
    assert "--explain" in data["command"]
    assert data["explain"] == _printed(data["command"], capsys)["explain"]
    assert all(
        {"quantity", "formula", "expression", "value", "unit", "sources"} <= set(step) for step in data["explain"]
    )


def test_sides_are_compared_as_the_command_compares_them(client, capsys):
    sides = ["model=llama3.1-8b&gpu=h200&batch=8", "model=llama3.1-8b&gpu=h200&batch=8&kv-dtype=fp8&gpus=2"]
    data = client.get("/api/compare", params={"side": sides}).json()
    printed = _printed(data["command"], capsys)
    assert {key: value for key, value in data.items() if key != "command"} == printed
    assert [side["gpus"] for side in data["sides"]] == [1, 2]


@pytest.mark.parametrize("more", ["gpus=2", "weights=bf16,experts=mxfp4", "gpu=H200&gpus=2&tensor-parallel=2&batch=3"])
def test_a_side_is_spelled_so_that_the_command_reads_it(client, capsys, more):
    sides = [f"model=gpt-oss-20b&{more}", f"model=gpt-oss-20b&kv-dtype=fp8&{more}"]
    data = client.get("/api/compare", params={"side": sides}).json()
    printed = _printed(data["command"], capsys)
    assert {key: value for key, value in data.items() if key != "command"} == printed


def test_sides_that_are_the_same_are_refused_as_the_command_refuses_them(client):
    wrong = client.get("/api/compare", params={"side": ["model=llama3.1-8b&gpu=h200"] * 2})
    assert wrong.json()["error"]["what"] == "two of the sides are the same"


def test_an_answer_is_not_kept_beyond_the_profile_that_it_follows_from(client, monkeypatch, tmp_path):
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    folder = tmp_path / "model_profiles"
    folder.mkdir()
    text = (ROOT / "model_profiles" / "llama2-7b.yaml").read_text(encoding="utf-8")

    def asked(repeat):
        assert text.count("repeat: 32") == 1
        (folder / "mine.yaml").write_text(text.replace("repeat: 32", f"repeat: {repeat}"), encoding="utf-8")
        return client.get("/api/size", params={"model": "mine"}).json()["kv"]["bytes_per_token"]

    assert [asked(repeat) for repeat in (32, 4, 128)] == [524288, 65536, 2097152]
    assert "mine" in [model["name"] for model in client.get("/api/catalogue").json()["models"]]
    (folder / "mine.yaml").unlink()
    assert client.get("/api/size", params={"model": "mine"}).status_code == 422
    assert "mine" not in [model["name"] for model in client.get("/api/catalogue").json()["models"]]


def test_a_profile_changed_at_once_to_one_as_long_is_read_again(client, monkeypatch, tmp_path):
    monkeypatch.setenv("KVCALC_PROFILES", str(tmp_path))
    path = tmp_path / "model_profiles" / "mine.yaml"
    path.parent.mkdir()
    text = (ROOT / "model_profiles" / "llama2-7b.yaml").read_text(encoding="utf-8")
    sizes = []
    for repeat in (32, 64, 16):
        path.write_text(text.replace("repeat: 32", f"repeat: {repeat}"), encoding="utf-8")
        os.utime(path, ns=(10**18, 10**18))
        sizes.append(client.get("/api/size", params={"model": "mine"}).json()["kv"]["bytes_per_token"])
    assert sizes == [524288, 1048576, 262144]


@pytest.mark.parametrize("many", [0, 1, 5])
def test_two_to_four_sides_are_compared(client, many):
    found = client.get("/api/compare", params={"side": ["model=llama3.1-8b&gpu=h200"] * many})
    assert found.status_code == 422
    assert "from 2 to 4" in found.json()["error"]["what"]


def test_each_engine_is_asked_and_refusals_are_told(client):
    rows = client.get("/api/engines", params={**RUN, "gpus": "2", "context": "4096"}).json()["rows"]
    assert [row["engine"] for row in rows] == ["vllm", "sglang", "llama.cpp", "transformers", "ideal"]
    assert "several GPUs" in rows[2]["refused"]
    alone = client.get("/api/fit", params={**RUN, "gpus": "2", "context": "4096", "engine": "sglang"}).json()
    assert rows[1]["fit"] == alone


def test_a_pasted_config_stands_for_the_model(client):
    text = json.dumps(CONFIG)
    data = client.post("/api/size", params={"context": "100"}, content=text).json()
    assert data["kv"]["bytes_per_token"] == 2 * 2 * (16 + 16) * 2
    assert "--model config.json" in data["command"]
    both = client.post("/api/size", params={"model": "llama2-7b"}, content=text)
    assert both.json()["error"]["field"] == "config"


def test_a_config_as_large_as_the_largest_is_read(client):
    modules = [f"model.layers.{layer}.mlp.experts.{expert}.down_proj" for layer in range(60) for expert in range(900)]
    quantized = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": modules}
    text = json.dumps({**CONFIG, "quantization_config": quantized})
    assert len(text) > 2_400_000
    for _ in range(2):
        assert client.post("/api/size", params={"context": "100"}, content=text).status_code == 200


def test_a_config_may_begin_with_a_byte_order_mark(client):
    assert client.post("/api/size", content=b"\xef\xbb\xbf" + json.dumps(CONFIG).encode()).status_code == 200


def test_a_pasted_model_has_a_bounded_number_of_layers(client):
    text = json.dumps({**CONFIG, "num_hidden_layers": 1001})
    error = client.post("/api/size", content=text).json()["error"]
    assert error["field"] == "config"
    assert "at most 1,000 layers" in error["what"]
    assert client.post("/api/size", content=text.replace("1001", "1000")).status_code == 200


def test_an_unknown_architecture_is_told_in_short(client):
    error = client.post("/api/size", content=json.dumps({"model_type": "x" * 1_000_000})).json()["error"]
    assert len(error["what"]) < 200


def test_a_fault_of_kvcalcs_own_is_one_line_however_often_it_shows(client, monkeypatch, capsys):
    monkeypatch.setattr("kvcalc.explore.answers.read_fields", lambda *_: 1 // 0)
    for batch in ("70", "71"):
        found = client.get("/api/size", params={"model": "llama2-7b", "batch": batch})
    assert found.status_code == 500
    assert "fault of kvcalc's" in found.json()["error"]["what"]
    said = capsys.readouterr().err
    assert said.startswith("error: /api/size: ZeroDivisionError")
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_takes_too_much_memory_is_told(client, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr("kvcalc.explore.answers.read_fields", fail)
    found = client.get("/api/size", params={"model": "llama2-7b", "batch": "72"})
    assert found.status_code == 422
    assert "too much memory" in found.json()["error"]["what"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "no JSON object"),
        ('{"model_type": "nonesuch"}', "nonesuch"),
        ("[" * 100_000, "nested too deeply"),
        ('{"a": 1' + "0" * 5000 + "}", ""),
    ],
)
def test_a_config_that_cannot_be_read_is_refused(client, text, words):
    found = client.post("/api/decode", params={"gpu": "h200"}, content=text)
    assert found.status_code == 422
    assert found.json()["error"]["field"] == "config"
    assert words in found.json()["error"]["what"]


def test_a_pasted_log_is_reconciled(client):
    from pathlib import Path

    log = Path(__file__).parents[2] / "docs" / "examples" / "vllm-llama31-8b.log"
    data = client.post("/api/reconcile", content=log.read_bytes()).json()
    assert data["agrees"]
    assert len(data["rows"]) > 1
    assert client.post("/api/reconcile", content=b"no engine").json()["error"]["field"] == "log"


def test_a_pasted_refusal_has_its_flags(client):
    log = (
        "Initializing a V1 LLM engine (v0.19.0) with config: model='Qwen/Qwen3-8B', max_seq_len=40960\n"
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`\n"
    )
    data = client.post("/api/reconcile", params={"gpu": "rtx-3090"}, content=log).json()
    assert data["refusal"]["kind"] == "no_cache_memory"
    assert data["start_with"].startswith("--")
    assert client.post("/api/reconcile", params={"gpu": "nonesuch"}, content=log).json()["error"]["field"] == "gpu"


def test_a_log_that_names_no_model_is_not_held_against_another_silently(client):
    log = "Available KV cache memory: 4.51 GiB\nGPU KV cache size: 32,832 tokens\n"
    assert "names no model" in client.post("/api/reconcile", content=log).json()["error"]["what"]
    data = client.post("/api/reconcile", params={"model": "qwen3-8b"}, content=log).json()
    assert "names no model" in data["notes"][0]
    assert "qwen3-8b, which was given" in data["notes"][0]


@pytest.mark.parametrize(
    ("name", "wrong", "field"),
    [
        ("decode", {"model": "lama3"}, "model"),
        ("decode", {"gpu": "h1000"}, "gpu"),
        ("decode", {"gpu": ""}, "gpu"),
        ("decode", {"batch": "0"}, "batch"),
        ("decode", {"batch": "1-1000"}, "batch"),
        ("decode", {"context": "many"}, "context"),
        ("decode", {"batch": "1-60", "context": "1024,2048"}, "batch"),
        ("speculate", {"context": "1000-20000+1000"}, "context"),
        ("simulate", {"step-times": "1e300s"}, "step-times"),
        ("decode", {"kv-dtype": "fp9"}, "kv-dtype"),
        ("decode", {"weights": "x" * 300}, "weights"),
        ("decode", {"estimate": "yes"}, "estimate"),
        ("decode", {"price": "nan"}, "price"),
        ("decode", {"tensor-parallel": "3", "expert-parallel": "2"}, "expert-parallel"),
        ("decode", {"pipeline-parallel": "99"}, "pipeline-parallel"),
        ("decode", {"colour": "red"}, "colour"),
        ("fit", {"gpus": "1000000000"}, "gpus"),
        ("fit", {"gpus": "2"}, "gpus"),
        ("fit", {"engine": "tensorrt"}, "engine"),
        ("speculate", {"draft": "nonesuch"}, "draft"),
        ("speculate", {"acceptance": "1.5"}, "acceptance"),
        ("simulate", {"requests": "1000000", "rate": "1"}, "requests"),
        ("simulate", {"arrival": "trace"}, "arrival"),
        ("simulate", {"rate": "0"}, "rate"),
    ],
)
def test_a_mistake_is_told_with_its_field(client, name, wrong, field):
    found = client.get(f"/api/{name}", params={**ASKED[name], **wrong})
    assert found.status_code == 422
    assert found.json()["error"]["field"] == field
    assert found.json()["error"]["what"]


def test_a_field_given_twice_is_refused(client):
    found = client.get("/api/size?model=llama2-7b&model=llama2-70b")
    assert "twice" in found.json()["error"]["what"]


def test_the_catalogue_lists_models_and_accelerators_with_aliases(client):
    data = client.get("/api/catalogue").json()
    assert {"llama3.1-8b", "deepseek-v3"} <= {entry["name"] for entry in data["models"]}
    assert any("h100" in entry["aliases"] for entry in data["gpus"])
    listed = {entry["name"]: entry for entry in [*data["models"], *data["gpus"]]}
    assert (listed["llama3.1-8b"]["architecture"], listed["llama3.1-8b"]["parameters"]) == ("llama", 8_030_261_248)
    assert "H100 SXM" in listed["h100-sxm"]["title"]
    assert (listed["h100-sxm"]["memory_bytes"], listed["h100-sxm"]["memory_bandwidth_bytes_per_s"]) == (80e9, 3.35e12)
    assert (
        listed["h100-sxm"]["links"]["scale_up"]["bytes_per_s"],
        listed["h100-sxm"]["links"]["scale_up"]["gpus"],
    ) == (450e9, 8)


def test_an_answer_may_take_as_long_as_whoever_serves_the_page_says(client_of, monkeypatch):
    limits = []

    class Watched:
        def ask(self, question, tell=None):
            limits.append(question.limit_s)
            return reply_to(question, tell)

        def kill(self):
            pass

    monkeypatch.setattr("kvcalc.explore.answers._SIMULATED_SHARE", 1e-9)
    found = client_of(Place(limit_s=30.0), Watched).get(
        "/api/simulate", params=ASKED["simulate"] | {"seed": "78", "requests": "2000"}
    )
    assert limits[-1] == 30
    assert "takes longer than 3e-08 s" in found.json()["error"]["what"]


def test_the_catalogue_is_not_held_to_the_limit_of_a_clients_question(client_of, monkeypatch):
    monkeypatch.setattr("kvcalc.explore.server._MIN_LIMIT_S", 0.0)
    client = client_of(Place(limit_s=0.0))
    assert "this takes longer than 0 s" in client.get("/api/simulate", params=ASKED["simulate"]).json()["error"]["what"]
    assert client.get("/api/catalogue").status_code == 200


def test_a_simulation_that_takes_too_long_ends(client, monkeypatch):
    monkeypatch.setattr("kvcalc.explore.answers._SIMULATED_SHARE", 0.0)
    found = client.get("/api/simulate", params={**ASKED["simulate"], "seed": "77", "requests": "2000"})
    assert found.status_code == 422
    assert "takes longer" in found.json()["error"]["what"]


NAMES = sorted({name for question in QUESTIONS.values() for name in question.fields} | {"explain", "side", "nonsense"})
TEXTS = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["llama3.1-8b", "deepseek-v3", "mamba2-2.7b", "h100-sxm", "h200", "mi300x", "vllm", "llama.cpp", "fp8",
                     "q8_0", "1", "2", "8", "0", "-1", "1e9", "1e400", "1-64*2", "4096", "131072", "0.5", "true", "false",
                     "ngram", "eagle", "../../etc/passwd", "/etc/passwd", "config.json", ".", "uniform:1-9", "nan", "a=b",
                     "constant", "closed", "ttft_p95=1s", "ideal", "20ms", "\x00", "x" * 250]),
)  # fmt: skip
FAST = [name for name, question in QUESTIONS.items() if not question.slow]


@given(st.sampled_from(FAST), st.lists(st.tuples(st.sampled_from(NAMES), TEXTS), max_size=6))
@settings(max_examples=60)
def test_whatever_is_asked_is_answered_or_refused(client, name, fields):
    found = client.get(f"/api/{name}", params=[*ASKED[name].items(), *fields] if len(fields) % 2 else fields)
    assert found.status_code in {200, 422}, found.text
    json.loads(found.text)


@given(st.lists(st.tuples(st.sampled_from(QUESTIONS["simulate"].fields), TEXTS), max_size=4))
@settings(max_examples=15)
def test_whatever_is_simulated_is_answered_or_refused(client, fields):
    asked = {**ASKED["simulate"], **dict(fields)}
    if asked["requests"].isdigit():
        asked["requests"] = str(min(50, int(asked["requests"])))
    assert client.get("/api/simulate", params=asked).status_code in {200, 422}


@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode)))
@settings(max_examples=30)
def test_whatever_is_pasted_is_answered_or_refused(client, body):
    for name in ("size", "reconcile", "engines"):
        assert client.post(f"/api/{name}", content=body).status_code in {200, 422}


@given(
    st.sampled_from(sorted(CONFIG)),
    st.one_of(st.none(), st.integers(), st.text(max_size=9), st.lists(st.integers(), max_size=2)),
)
@settings(max_examples=40)
def test_a_config_with_a_wrong_value_is_answered_or_refused(client, key, value):
    text = json.dumps({**CONFIG, key: value})
    assert client.post("/api/decode", params={"gpu": "h200"}, content=text).status_code in {200, 422}


@pytest.mark.parametrize(("name", "most"), [("speculate", 8), ("decode", 64)])
def test_a_page_asks_for_no_longer_lists_than_a_question_allows(client, name, most):
    asked = {"model": "llama3.1-8b", "gpu": "h200"} | ({"draft": "llama3.2-1b"} if name == "speculate" else {})
    found = client.get(f"/api/{name}", params={**asked, "batch": f"1-{most + 1}"})
    assert f"at most {most} numbers here, not {most + 1}" in found.json()["error"]["what"]
