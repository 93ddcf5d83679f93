"""The page as static files, in a real browser and under node: no server answers, and nothing leaves the machine.

Needs npm, Chromium and playwright. Without KVCALC_STATIC_TESTS these tests are skipped; with it, what is missing fails.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from math import isclose
from pathlib import Path

import pytest
from explore.holding import HOLD_WORKER

from kvcalc import api
from kvcalc.explore.export import export
from kvcalc.explore.here import answered

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WAIT_MS = 120_000
RUN = "gpu=h200&gpus=8"
QUESTIONS = (
    ("size", "context=8192&batch=8"),
    ("size", "kv-dtype=fp8&context=32768"),
    ("size", "engine=llama.cpp"),
    ("size", "engine=sglang"),
    ("size", "explain=true"),
    ("fit", RUN),
    ("fit", f"{RUN}&context=16384&batch=4"),
    ("fit", "gpu=rtx-4090&weights=q4_k_m&engine=llama.cpp"),
    ("engines", RUN),
    ("decode", f"{RUN}&batch=1,8,64"),
    ("decode", f"{RUN}&estimate=true"),
    ("decode", f"{RUN}&explain=true"),
    ("prefill", f"{RUN}&prompt=1024,8192"),
    ("prefill", f"{RUN}&estimate=true"),
    ("roofline", f"{RUN}&batch=1,64"),
    ("traffic", "prompt=128&output-tokens=512"),
    ("levers", ""),
    ("speculate", f"{RUN}&method=ngram&gamma=4&acceptance=0.7"),
    ("speculate", f"{RUN}&method=ngram&acceptance=0.6&batch=16"),
    ("simulate", f"{RUN}&rate=2&requests=20&prompt=256&output-tokens=32"),
)
WHOLE = ("llama3.1-8b", "gemma-3-27b", "gpt-oss-120b", "deepseek-v3", "qwen3-next-80b-a3b")


pytestmark = pytest.mark.skipif(not os.environ.get("KVCALC_STATIC_TESTS"), reason="KVCALC_STATIC_TESTS is not set")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    export(folder)
    return folder


@pytest.fixture(scope="module")
def address(site):
    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def page(browser):
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(WAIT_MS)
    page.asked, page.wrong = [], []
    page.on("request", lambda request: page.asked.append(request.url))
    page.on("pageerror", lambda error: page.wrong.append(str(error)))
    page.on("console", lambda told: page.wrong.append(told.text) if told.type == "error" else None)
    yield page
    context.close()


def alike(here, there):
    """Whether two answers are equal, but for the last digits of a power, which each C library rounds in its own way."""
    if here == there:
        return True
    data, other = ({**json.loads(text), "charts": {}} for _, text in (here, there))
    return here[0] == there[0] and _close(data, other)


def _close(value, other):
    match value, other:
        case dict(), dict():
            return list(value) == list(other) and all(_close(value[name], other[name]) for name in value)
        case list(), list():
            return len(value) == len(other) and all(map(_close, value, other))
        case float(), float():
            return isclose(value, other, rel_tol=1e-12)
    return value == other


def test_every_model_is_answered_as_on_the_command_line(site):
    models = api.profile_names("model")
    asked = [(name, f"model={model}&{query}") for model in WHOLE for name, query in QUESTIONS]
    for place, model in enumerate(models):
        name, query = QUESTIONS[place % len(QUESTIONS)]
        asked.append((name, f"model={model}&{query}"))
    command = ["node", str(ROOT / "tests" / "tools" / "page_answers.mjs"), str(site)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    pairs = list(zip(json.loads(done.stdout), (list(answered(*question)) for question in asked), strict=True))
    assert sum(here == there for here, there in pairs) > 0.97 * len(pairs)
    assert [question for question, (here, there) in zip(asked, pairs, strict=True) if not alike(here, there)] == []


def test_python_resumes_from_a_snapshot_and_answers_what_was_never_asked_before_it(site):
    assert int(re.search(r"snapshot=(\d+)", (site / "index.html").read_text())[1]) == len(
        gzip.decompress((site / "static" / "snapshot.bin").read_bytes())
    )
    asked = [("fit", "model=qwen3-8b&gpu=h200"), ("size", "model=gemma-3-27b&context=8192"), ("size", "model=nonesuch")]
    command = ["node", str(ROOT / "tests" / "tools" / "page_answers.mjs"), str(site), "resumed"]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [list(answered(*question)) for question in asked]


def test_each_view_computes_in_the_browser_and_asks_its_own_host_alone(page, address):
    for view in ("size", "speed", "speculate", "serve"):
        page.goto(f"{address}?view={view}&model=llama3.1-8b&gpu=h100-sxm&requests=20")
        page.locator(".figure").first.wait_for()
    _, text = answered("fit", "model=llama3.1-8b&gpu=h100-sxm&context=8192&batch=8")
    page.goto(address)
    page.locator(".verdict.good").wait_for()
    assert f"at most {json.loads(text)['max_batch']}" in page.locator(".verdict").first.inner_text()
    assert {url.split("/")[2] for url in page.asked if not url.startswith("data:")} == {address.split("/")[2]}
    assert not page.wrong


@pytest.mark.parametrize(
    "query",
    ["demo=kv-cache&demo-output=64", "demo=speculate&demo-gamma=8", "demo=drift", "demo=batching", "demo=memory"],
)
def test_every_lesson_is_there_without_numpy(page, address, query):
    page.goto(f"{address}?view=learn&{query}")
    page.locator("main[aria-busy=false] .figure").first.wait_for()
    assert page.locator(".figure").count() >= 3
    assert page.locator(".wrong[role=alert]").is_hidden()
    assert not page.wrong


def test_a_mistake_is_told_beside_its_field(page, address):
    page.goto(f"{address}?model=lama2-70b")
    page.locator("#model-error:not(:empty)").wait_for()
    assert "llama2-70b" in page.locator("#model-error").inner_text()


def test_the_second_visit_needs_no_network(page, address):
    page.goto(address)
    page.locator(".verdict.good").wait_for()
    page.locator("html[data-kept]").wait_for(state="attached")
    page.context.set_offline(True)
    page.goto(f"{address}?model=llama2-70b")
    page.locator(".verdict.good, .verdict.bad").wait_for()
    assert "llama2-70b" in page.locator(".verdict").first.inner_text()


def test_a_second_visit_resumes_from_what_was_kept_inflated(page, address, site):
    page.goto(address)
    page.locator("html[data-kept]").wait_for(state="attached")
    kept = "async (name) => { const found = await caches.match(name); return [found.headers.get('X-Inflated'), (await found.blob()).size]; }"
    for name in ("snapshot.bin", "kvcalc.bin"):
        inflated = gzip.decompress((site / "static" / name).read_bytes())
        assert page.evaluate(kept, f"{address}static/{name}") == ["true", len(inflated)]
    page.context.set_offline(True)
    page.asked.clear()
    page.goto(f"{address}?model=gemma-3-27b&gpu=h200")
    page.locator(".verdict.good, .verdict.bad").wait_for()
    loaded = {url.rpartition("/")[2] for url in page.asked}
    assert "pyodide.asm.wasm" in loaded  # the worker's requests are seen,
    assert not loaded & {
        "kvcalc.zip",
        "snapshot.bin",
        "kvcalc.bin",
    }  # and it neither began from nothing nor inflated anything
    assert not page.wrong


# The browser keeps an answer after it is shown.
KEPT_ANSWERS = """async () => {
  const name = (await caches.keys()).find((each) => each.startsWith("kvcalc-answers-"));
  return name ? (await (await caches.open(name)).keys()).map(({ url }) => new URL(url).pathname) : [];
}"""


def test_an_answer_of_a_former_visit_is_shown_without_computing_it_again(page, address):
    def shown():
        page.goto(address)
        page.locator("main[aria-busy=false] .verdict.good").wait_for()
        page.locator("[data-chart=memory][data-drawn] svg").wait_for()
        return page.locator("main").inner_text()

    first = shown()
    while not {"/api/size", "/api/fit", "/api/engines", "/api/decode"} <= set(page.evaluate(KEPT_ANSWERS)):
        page.wait_for_timeout(30)
    page.add_init_script("globalThis.Worker = class { addEventListener() {} postMessage() {} }")  # which never answers
    assert shown() == first


def test_serve_plays_while_it_computes_and_stops(page, address):
    page.add_init_script(HOLD_WORKER)
    page.goto(f"{address}?view=serve&model=llama3.1-8b&gpu=h100-sxm&requests=2000&rate=30&output-tokens=uniform:50-400")
    page.get_by_text("of 2,000 requests are answered so far").wait_for()
    assert page.locator("#play").inner_text() == "Pause"
    page.click("#run")
    page.get_by_text("Stopped: run the simulation again").wait_for()
    page.evaluate("release()")
    assert "Stopped" in page.locator(".verdict").first.inner_text()
    page.fill("#requests", "20")
    page.press("#requests", "Tab")
    page.click("#run")
    page.get_by_text("20 requests answered").wait_for()
    _, text = answered(
        "simulate",
        page.locator("code")
        .first.inner_text()
        .split("simulate ")[1]
        .replace("--", "&")
        .replace(" ", "=")
        .replace("=&", "&")[1:],
    )
    assert page.locator("[data-quantity='ttft_s.p95']").get_attribute("data-value") == str(
        json.loads(text)["summary"]["ttft_s"]["p95"]
    )
    assert not page.wrong


def test_without_webassembly_the_page_says_so(page, address):
    page.add_init_script("delete globalThis.WebAssembly")
    page.goto(address)
    page.get_by_text("this browser has no WebAssembly").first.wait_for()
