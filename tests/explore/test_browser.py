"""The page in a real browser: each view, what a person does there, and nothing that leaves the machine.

Needs Chromium and playwright. Without them these tests are skipped, but fail where KVCALC_BROWSER_TESTS is set.
"""

import base64
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from time import monotonic

import pytest
from contracts.test_commands_documented import CONFIG
from explore.holding import HOLD_STREAM

from kvcalc.cli.main import main
from kvcalc.explore.here import answered

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync"]  # fmt: skip
WAIT_MS = 120_000
VIEWS = ("size", "speed", "network", "speculate", "serve", "learn")
EVERY_VIEW = (*VIEWS, "local", "plan")
WINDOW, WIDE, PHONE = ({"width": width, "height": height} for width, height in ((1280, 720), (1440, 900), (390, 844)))
OPEN_ALL = "for (const each of document.querySelectorAll('details')) each.open = true"
# What every view answers soon, the plan too, which a server answers the second time from memory.
WALK = "requests=10&model=llama3.1-8b&gpu=h100-sxm&cards=h100-sxm&prompt=512&output-tokens=50&rate=2"
RUN = "model=llama3.1-70b&gpu=h200&gpus=2&batch=16&context=4096"


def _missing():
    try:
        import playwright.sync_api
        import starlette
        import uvicorn
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'kvcalc[explore,browser-test]'"
    del playwright, starlette, uvicorn
    return "" if CHROMIUM else "chromium is not installed"


@contextmanager
def served(*options):
    command = [
        sys.executable,
        "-m",
        "kvcalc",
        "explore",
        "--port",
        "0",
        "--no-browser",
        "--seconds-per-question",
        "60",
        *options,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        yield server.stdout.readline().strip()
        server.send_signal(signal.SIGINT)
        _, said = server.communicate(timeout=20)
        assert (server.returncode, said) == (130, "note: Ctrl+C ends it\n")


@pytest.fixture(scope="module")
def address():
    missing = _missing()
    if missing and os.environ.get("KVCALC_BROWSER_TESTS"):
        pytest.fail(missing)
    if missing:
        pytest.skip(missing)
    with served() as address:
        yield address


@pytest.fixture(scope="module")
def browser(address):
    from playwright.sync_api import sync_playwright

    assert address.startswith("http://127.0.0.1:")
    with sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield found
        found.close()


class Page:
    """A page that remembers what went wrong and what it asked for."""

    def __init__(self, browser, address, **given):
        self.address, self.console, self.asked = address, [], []
        self.context = browser.new_context(**given)
        self.page = self.context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.page.on(
            "console", lambda told: self.console.append(told.text) if told.type in {"error", "warning"} else None
        )
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, query=""):
        self.page.goto(f"{self.address}?{query}")
        self.ready()

    def until(self, expression):
        """Wait for an expression to hold; playwright's own way to wait evaluates strings, which the page forbids."""
        end = monotonic() + WAIT_MS / 1000
        while not self.page.evaluate(expression):
            assert monotonic() < end, f"in vain: {expression}"
            self.page.wait_for_timeout(30)

    def fresh(self):
        """Leave what was shown, and forget what it said: the next test begins as in a new tab."""
        self.page.goto("about:blank")
        self.page.set_viewport_size(WINDOW)
        self.page.mouse.move(0, 0)
        self.console.clear()
        self.asked.clear()

    def show(self, view):
        """Go to another view of the page that is open, and wait until what it shows is answered and drawn."""
        self.change(lambda: self.page.click(f"nav [data-view={view}]"))
        self.page.wait_for_selector("[data-chart][data-drawn] svg, .place, .layout .replica")

    def resize(self, width, height=900):
        """Give the window another size, and wait until the charts are drawn for it."""
        self.page.set_viewport_size({"width": width, "height": height})
        self.until(
            "[...document.querySelectorAll('[data-drawn] .plot')].every((each) =>"
            " !each.clientWidth || Math.abs(each.clientWidth - each.dataset.width) <= 8)"
        )

    def ready(self):
        self.until("document.querySelector('main').getAttribute('aria-busy') === 'false'")
        self.until("!document.querySelector('main > .empty')")

    def change(self, act):
        """Do something and wait until what it changes is answered."""
        self.page.evaluate("document.querySelector('main').setAttribute('aria-busy', 'true')")
        act()
        self.ready()

    def write(self, field, text):
        def act():
            self.page.fill(f"#{field}", text)
            self.page.press(f"#{field}", "Enter")
            self.page.press(f"#{field}", "Tab")

        self.change(act)

    def value(self, quantity):
        return float(self.page.locator(f"[data-quantity='{quantity}']").first.get_attribute("data-value"))

    def drawn(self, *charts):
        for name in charts:
            self.page.wait_for_selector(f"[data-chart='{name}'][data-drawn] svg")

    def commands(self):
        return self.page.locator(".commands code").all_text_contents()


def _nothing_wrong(shown):
    lost = shown.page.locator("[data-value='undefined'], [data-value='NaN']")
    assert not lost.all_text_contents()
    assert not re.search(r"(^|\s)\?(\s|$)|undefined|NaN", shown.page.inner_text("main"))
    assert not shown.console
    assert all(asked.startswith((shown.address, "data:", "about:blank")) for asked in shown.asked)


@pytest.fixture(scope="module")
def tab(browser, address):
    """One tab for all tests that need none of their own: what it has compiled it need not compile again."""
    shared = Page(browser, address)
    yield shared
    shared.context.close()


@pytest.fixture
def page(tab):
    tab.fresh()
    yield tab
    _nothing_wrong(tab)


@pytest.fixture
def own(browser, address):
    """A tab for a test that changes what a page's scripts find in their browser."""
    found = Page(browser, address)
    yield found
    _nothing_wrong(found)
    found.context.close()


@pytest.fixture
def printed(capsys):
    def run(command):
        with pytest.raises(SystemExit) as done:
            main([*shlex.split(command)[1:], "--json"])
        assert done.value.code == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_size_shows_the_numbers_of_the_command_line(page, printed):
    page.open(RUN)
    page.drawn("memory")
    assert "Fits" in page.page.inner_text(".verdict")
    size, fit = (printed(line) for line in page.commands()[:2])
    assert page.value("kv.total_bytes") == size["kv"]["total_bytes"]
    assert page.value("weights.total_bytes") == size["weights"]["total_bytes"]
    assert f"at most {fit['max_batch']:,} such sequence" in page.page.inner_text(".verdict")
    assert page.page.locator("table tbody tr").count() >= 5


def test_an_address_with_a_token_opens_the_page_and_loses_it(browser):
    with served("--token", "mine-and-long") as address:
        page = Page(browser, address.partition("?")[0])
        page.page.goto(f"{address}&batch=3")
        page.ready()
        page.drawn("memory")
        assert "mine-and-long" not in page.page.url
        assert page.page.input_value("#batch") == "3"
        page.context.close()
        assert not page.console


def test_speed_shows_the_numbers_of_the_command_line(page, printed):
    page.open(f"view=speed&{RUN}")
    page.drawn("roofline", "intensity", "decode-batch", "decode-context")
    row = printed(page.commands()[0])["rows"][0]
    for quantity in (
        "tokens_per_s",
        "ideal_s",
        "estimate_s",
        "intensity_flop_per_byte",
        "kv_read_bytes",
        "weight_bytes",
    ):
        assert page.value(quantity) == row[quantity]
    assert f"limited by {row['limiter']}" in page.page.inner_text(".verdict")


@pytest.mark.parametrize("phase", ["decode", "prefill"])
def test_network_draws_every_layer_and_shows_the_numbers_of_the_command_line(page, printed, phase):
    page.open(f"view=network&phase={phase}&{RUN.replace('llama3.1-70b', 'qwen3-next-80b-a3b')}")
    page.drawn("layers")
    report = printed(page.commands()[0])
    assert page.page.locator(".strip .block").count() == 48
    titles = page.page.locator(".strip .block").evaluate_all("all => all.map(each => each.title.split(': ')[1])")
    assert titles == [run["kind"] for run in report["order"] for _ in range(run["layers"])]
    for row in report["rows"]:
        card = page.page.locator(f"[data-kind='{row['kind']}']")
        assert row["what"] in card.inner_text()
        assert card.locator("tr[data-part]").evaluate_all("all => all.map(each => each.dataset.part)") == [
            part["part"] for part in row["parts"]
        ]
    assert page.page.locator("[data-chart=layers] svg .mark-symbol path").count() >= 6


def test_speculate_shows_the_numbers_of_the_command_line(page, printed):
    page.open(f"view=speculate&method=&draft=llama3.1-8b&gamma=5&{RUN}")
    page.drawn("speculate")
    report = printed(page.commands()[0])
    for quantity in ("speedup", "expected_tokens_per_pass", "verify_ratio"):
        assert page.value(quantity) == report.get(quantity, report["rows"][0].get(quantity))
    page.change(lambda: page.page.select_option("#method", "ngram"))
    assert page.page.input_value("#draft") == ""
    assert "ngram" in page.commands()[0]


def test_serve_runs_a_simulation_and_plays_it(page, printed):
    page.open(f"view=serve&requests=20&output-tokens=20&{RUN}")
    page.drawn("simulate")
    summary = printed(page.commands()[0])["summary"]
    assert page.value("ttft_s.p95") == summary["ttft_s"]["p95"]
    page.page.click("#play")
    before = page.page.input_value("#time")
    page.until(f"document.getElementById('time').value !== '{before}'")
    page.page.fill("#rate", "2")
    page.page.press("#rate", "Tab")
    page.page.wait_for_selector("text=run the simulation again")
    page.change(lambda: page.page.click("#run"))
    assert "--rate 2" in page.commands()[0]


# A run long enough to tell what it has come to, on the fastest machine too.
LONG_RUN = f"view=serve&requests=5000&rate=30&prompt=uniform:64-512&output-tokens=uniform:50-400&{RUN}"
SO_FAR = "/^[\\d,]+ of 5,000 requests are answered so far/.test(document.querySelector('.verdict').textContent)"


def test_serve_plays_while_it_is_computed(own, printed):
    own.page.add_init_script(HOLD_STREAM)
    own.page.goto(f"{own.address}?{LONG_RUN}")
    own.until(SO_FAR)
    assert own.page.inner_text("#play") == "Pause"
    assert own.page.inner_text("#run") == "Stop"
    assert "waiting" not in own.page.inner_text(".bars")
    longest = int(own.page.get_attribute("#time", "max"))
    own.page.evaluate("release()")
    own.ready()
    assert own.page.inner_text("#run") == "Run the simulation"
    assert "5,000 requests answered" in own.page.inner_text(".verdict")
    assert int(own.page.get_attribute("#time", "max")) > 0 < longest
    assert own.value("ttft_s.p95") == printed(own.commands()[0])["summary"]["ttft_s"]["p95"]


def test_a_run_is_stopped_while_it_is_computed(own):
    own.page.add_init_script(HOLD_STREAM)
    own.page.goto(f"{own.address}?{LONG_RUN}&seed=1")
    own.until(SO_FAR)
    own.page.click("#run")
    own.page.evaluate("release()")
    own.page.wait_for_selector("text=Stopped: run the simulation again")
    assert own.page.inner_text("#play") == "Play"
    own.page.wait_for_timeout(500)
    assert "Stopped" in own.page.inner_text(".verdict")
    own.page.fill("#requests", "20")
    own.page.press("#requests", "Tab")
    own.change(lambda: own.page.click("#run"))
    assert "20 requests answered" in own.page.inner_text(".verdict")


@pytest.mark.parametrize("demo", ["kv-cache", "speculate", "paging", "batching"])
def test_learn_goes_through_its_steps(page, printed, demo):
    page.open(f"view=learn&demo={demo}")
    page.drawn("demo")
    first = page.page.inner_text(".stage")
    page.page.click("#next")
    second = page.page.inner_text(".stage")
    assert first != second
    page.page.click("#back")
    assert page.page.inner_text(".stage") == first
    assert printed(page.commands()[0])["schema"] == f"kvcalc.demo_{demo.replace('-', '_')}/1"


@pytest.mark.parametrize(
    ("view", "field", "written", "chosen", "about"),
    [
        ("size", "model", "llama3.1 70", "llama3.1-70b", "70.6 G parameters"),
        ("size", "gpu", "H100 SXM", "h100-sxm", "80 GB, 3.35 TB/s"),
        ("speculate", "draft", "qwen3-0.6", "qwen3-0.6b", "M parameters"),
        ("local", "device", "rtx-4090,3060", "rtx-3060", "360 GB/s"),
        ("plan", "cards", "MI300X", "mi300x", "192 GB"),
    ],
)
def test_a_list_opens_is_searched_and_chosen_from(page, view, field, written, chosen, about):
    page.open(f"view={view}&model=qwen3-8b")
    offers = page.page.locator(f"#{field}-offers")
    page.page.click(f"#{field}")
    offers.wait_for()
    assert offers.locator("[role=option]").count() > 60
    assert page.page.get_attribute(f"#{field}", "aria-expanded") == "true"
    page.page.locator(f"#{field}").press_sequentially(written)
    found = offers.locator(f"[data-name='{chosen}']")
    assert about in found.inner_text()
    place = offers.locator("[role=option]").evaluate_all(
        f"all => all.findIndex(each => each.dataset.name === '{chosen}')"
    )
    for _ in range(place + 1):
        page.page.press(f"#{field}", "ArrowDown")
    page.page.press(f"#{field}", "Enter")
    page.ready()
    assert page.page.input_value(f"#{field}") == (f"rtx-4090,{chosen}" if "," in written else chosen)
    assert offers.is_hidden()


def test_why_decode_waits_for_memory_goes_up_to_the_ridge(page, printed):
    page.open("view=learn&model=llama3.1-8b&gpu=h100-sxm&demo-context=128")
    page.drawn("demo")
    row = printed(page.commands()[0])["rows"][0]
    assert page.value("flop") == row["flop"]
    assert page.value("weight_bytes + kv_read_bytes") == row["weight_bytes"] + row["kv_read_bytes"]
    assert "wait for memory" in page.page.inner_text(".stage")
    ridge = int(page.value("compute_bound_batch"))
    seen = []
    while not page.page.is_disabled("#next"):
        page.page.click("#next")
        seen.append(page.page.inner_text(".stage"))
    assert any(text.startswith(f"{ridge} sequences") for text in seen)
    assert "waits for the multipliers" in seen[-1]


@pytest.mark.parametrize("demo", ["memory", "kv-cache", "paging", "batching", "speculate"])
def test_every_lesson_is_one_screen_in_english_and_japanese(page, demo):
    page.page.set_viewport_size(WIDE)
    page.open(f"view=learn&demo={demo}&language=ja")
    texts = {}
    for language in ("ja", "en"):
        page.change(lambda chosen=language: page.page.select_option("#language", chosen))
        texts[language] = page.page.inner_text(".told")
        numbers = page.page.locator(".figure").evaluate_all("all => all.map(each => each.dataset.value)")
        texts[f"{language} numbers"] = numbers
        box = page.page.locator(".stage").bounding_box()
        assert box["y"] + box["height"] <= 900
        assert page.page.get_attribute("#view > div:last-child", "lang") == language
        labels = page.page.locator("#controls .field:not([hidden]) label").all_inner_texts()
        commands = page.page.inner_text(".commands")
        assert all(bool(re.search("[ぁ-んァ-ヶ一-龠]", text)) == (language == "ja") for text in [*labels, commands])
    assert texts["en"].isascii()
    assert re.search("[ぁ-ん]", texts["ja"])
    assert texts["en numbers"] == texts["ja numbers"]
    page.page.click("#next")


def test_models_stand_by_family_and_size_and_aliases_are_taken(page):
    page.open()
    page.page.click("#model")
    page.page.locator("#model-offers").wait_for()
    names = page.page.locator("#model-offers [role=option] b").all_inner_texts()
    assert names.index("llama3.1-8b") < names.index("llama3.1-70b")
    assert "llama" in page.page.locator("#model-offers .family").all_inner_texts()
    page.page.press("#model", "Escape")
    page.write("model", "meta-llama/Llama-3.1-70B")
    page.write("gpu", "b200")
    assert page.page.input_value("#model") == "meta-llama/Llama-3.1-70B"
    assert "llama3.1-70b" in page.page.inner_text(".verdict")
    assert "b200" in page.page.inner_text(".verdict")


def test_a_suggestion_is_a_button_that_applies_it(page):
    page.open("model=llama3.1-70b")
    assert "does not fit" in page.page.inner_text(".verdict")
    page.change(lambda: page.page.click("text=It would on 4 with tensor 4"))
    assert "Fits" in page.page.inner_text(".verdict")
    assert page.page.input_value("#gpus") == "4"
    assert "tensor-parallel=4" in page.page.url
    page.write("model", "llama3.1-70bb")
    page.change(lambda: page.page.click("text=Use llama3.1-70b"))
    assert page.page.input_value("#model") == "llama3.1-70b"
    _without_refusals(page)


def test_the_memory_bar_is_as_long_as_the_memory_and_hatched_where_it_is_free(page, printed):
    page.open("model=llama3.1-8b&gpu=h100-sxm&batch=8&context=8192")
    parts = page.page.locator("[data-chart=fit] .memory .part")
    sizes = {each.get_attribute("class").split()[1]: float(each.get_attribute("data-bytes")) for each in parts.all()}
    widths = {each.get_attribute("class").split()[1]: each.bounding_box()["width"] for each in parts.all()}
    budget = printed(page.commands()[1])["budget"]
    assert sum(sizes.values()) == pytest.approx(budget["memory_bytes"], rel=1e-9)
    whole = page.page.locator("[data-chart=fit] .memory").bounding_box()["width"]
    assert widths["weights"] / whole == pytest.approx(budget["weight_bytes"] / budget["memory_bytes"], abs=0.02)
    assert "repeating-linear-gradient" in parts.locator("xpath=self::*[contains(@class, 'free')]").evaluate(
        "each => getComputedStyle(each).backgroundImage"
    )
    assert "weights 15.0 GiB" in page.page.inner_text("[data-chart=fit] .memory")
    assert "cache 8 GiB" in page.page.inner_text("[data-chart=fit] .legend")


def test_speculate_opens_with_a_draft_and_hatches_what_does_not_fit(page):
    page.open("view=speculate")
    page.drawn("speculate")
    assert (page.page.input_value("#draft"), page.page.input_value("#acceptance")) == ("llama3.2-1b", "0.7")
    assert page.page.locator("[data-chart=speculate] svg [fill='url(#hatched)']").count() >= 10
    assert "pays at every batch" not in page.page.inner_text("main")
    assert "the largest batch that fits" in page.page.inner_text(".verdict")
    page.write("model", "qwen3-32b")
    assert page.page.input_value("#draft") == "qwen3-0.6b"
    page.write("model", "mixtral-8x7b")
    assert page.page.input_value("#method") == "ngram"


def test_numbers_have_three_digits_and_a_token_of_cache_its_formula(page):
    page.open("view=speed")
    for text in page.page.locator(".figure .number").all_inner_texts():
        assert len(re.sub(r"^0\.0*", "", text.split()[0]).replace(".", "")) <= 3 or "," in text
    page.open()
    page.page.click("[data-quantity='kv.bytes_per_token']")
    page.page.wait_for_selector("#explained .formula")
    assert "2 (key and value) x layers x kv_heads x head_dim x b" in page.page.inner_text("#explained")
    assert "2 * 32 * 8 * 128 * 2" in page.page.inner_text("#explained .expression >> nth=0")
    page.page.wait_for_selector("#weights option[value=gptq]", state="attached")  # the catalogue comes after the answer
    formats = page.page.locator("#weights option").all_text_contents()
    assert {"q4_k_m", "awq", "gptq", "fp8"} <= set(formats)


def test_speed_has_two_columns_and_points_with_their_batch(page):
    page.page.set_viewport_size(WIDE)
    page.open("view=speed")
    page.drawn("roofline", "intensity", "decode-batch", "decode-context")
    boxes = {
        name: page.page.locator(f"[data-chart='{name}']").bounding_box()
        for name in ("roofline", "intensity", "decode-batch", "decode-context")
    }
    assert boxes["roofline"]["y"] == boxes["intensity"]["y"]
    assert boxes["decode-batch"]["y"] == boxes["decode-context"]["y"]
    labels = page.page.locator("[data-chart=roofline] svg .mark-text.role-mark text")
    assert {"1", "4", "16"} <= set(labels.all_text_contents())
    boxes = [label.bounding_box() for label in labels.all()]
    overlapping = [
        (one, other) for one, other in combinations(boxes, 2)
        if abs(one["x"] - other["x"]) < (one if one["x"] < other["x"] else other)["width"]
        and abs(one["y"] - other["y"]) < one["height"]
    ]  # fmt: skip
    assert overlapping == []


def test_a_phone_keeps_the_answer_in_view_and_has_room_for_fingers(page):
    page.page.set_viewport_size(PHONE)
    page.open()
    assert not page.page.locator("#controls").is_visible()
    page.page.click("#fold")
    page.page.locator("#batch-slider").scroll_into_view_if_needed()
    page.change(lambda: page.page.press("#batch-slider", "ArrowRight"))
    line = page.page.locator("#line")
    assert line.inner_text() == "Fits 53 · cache 12 GiB"
    assert 0 <= line.bounding_box()["y"] < 160
    page.page.evaluate("window.scrollTo(0, 900)")
    assert 0 <= line.bounding_box()["y"] < 60
    page.open(WALK)
    page.page.click("#fold")
    for view in EVERY_VIEW:
        page.show(view)
        page.page.evaluate(OPEN_ALL)
        small = page.page.evaluate(
            "[...document.querySelectorAll('button, select, summary, nav a, input, .units label')].filter((each) => each.checkVisibility()"
            " && each.type !== 'radio' && (each.getBoundingClientRect().height < 43.5 || each.getBoundingClientRect().width < 25)).map((each) => each.outerHTML.slice(0, 90))"
        )
        assert small == [], view
        assert page.page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("view", ["size", "speed", "speculate"])
def test_the_last_good_verdict_names_what_it_is_of_and_dims_beside_a_mistake(page, view):
    page.open(f"view={view}&{RUN}")
    ground = "getComputedStyle(document.querySelector('.verdict')).backgroundColor"
    plain = "getComputedStyle(document.querySelector('#controls')).backgroundColor"
    opacity = "getComputedStyle(document.querySelector('.verdict')).opacity"
    assert page.page.evaluate(opacity) == "1"
    page.write("model", "llama3.1-70bb")
    assert "did you mean" in page.page.inner_text("#model-error")
    assert float(page.page.evaluate(opacity)) < 0.6
    assert page.page.evaluate(ground) == page.page.evaluate(plain)
    verdict = page.page.inner_text(".verdict")
    assert "llama3.1-70b " in verdict
    assert "2 × h200" in verdict  # noqa: RUF001
    page.write("model", "llama3.1-8b")
    assert page.page.evaluate(opacity) == "1"
    _without_refusals(page)


def test_a_slider_moved_by_keys_changes_the_numbers_and_the_address(page):
    page.open(RUN)
    before = page.value("kv.total_bytes")
    page.page.focus("#batch-slider")
    page.change(lambda: page.page.keyboard.press("ArrowRight"))
    assert page.page.input_value("#batch") == "24"
    assert page.page.get_attribute("#batch-slider", "aria-valuetext") == "24"
    assert page.value("kv.total_bytes") == before * 1.5
    assert "batch=24" in page.page.url


def test_a_shared_address_is_restored(page):
    page.open(f"view=speed&units=GB&kv-dtype=fp8&{RUN}")
    page.write("context", "32768")
    shared = page.page.url
    values = {name: page.value(name) for name in ("tokens_per_s", "kv_read_bytes")}
    page.page.goto("about:blank")
    page.page.goto(shared)
    page.ready()
    assert page.page.input_value("#context") == "32768"
    assert page.page.input_value("#kv-dtype") == "fp8"
    assert page.page.is_checked("[name=units][value=GB]")
    assert page.page.get_attribute("[data-view=speed]", "aria-current") == "page"
    assert {name: page.value(name) for name in values} == values


def test_units_are_switched_everywhere(page):
    page.open(RUN)
    figure = page.page.locator("[data-quantity='weights.total_bytes'] .number")
    assert "GiB" in figure.inner_text()
    page.change(lambda: page.page.check("[name=units][value=GB]"))
    assert re.fullmatch(r"[\d.]+ GB", figure.inner_text())
    page.until("document.querySelector(\"[data-chart=memory] svg\")?.textContent.includes('GPU, GB')")


def test_a_wrong_value_is_told_beside_its_field_and_mended(page):
    page.open(RUN)
    page.write("model", "llama3.1-70bb")
    assert "did you mean" in page.page.inner_text("#model-error")
    assert page.page.get_attribute("#model", "aria-invalid") == "true"
    assert "model-error" in page.page.get_attribute("#model", "aria-describedby")
    page.write("model", "llama3.1-8b")
    assert page.page.inner_text("#model-error") == ""
    assert page.page.get_attribute("#model", "aria-invalid") is None
    page.write("batch", "-3")
    assert "batch" in page.page.inner_text("#batch-error")
    page.write("batch", "3")
    page.page.evaluate(OPEN_ALL)
    page.change(lambda: page.page.select_option("#engine", "vllm"))
    page.change(lambda: page.page.select_option("#kv-dtype", "q4_0"))
    assert "vLLM keeps no cache in q4_0" in " ".join(page.page.locator(".error").all_text_contents())
    assert page.value("kv.total_bytes") > 0
    assert not page.page.locator(".stale").count()
    # a refusal is an answer that the browser notes
    assert all("422" in told for told in page.console)
    page.console.clear()


def test_a_figure_tells_its_formula_and_source(page):
    page.open(RUN)
    figure = page.page.locator("button[data-quantity='kv.total_bytes']")
    figure.hover()
    page.page.wait_for_selector("#explained .formula")
    assert "batch x bytes per sequence" in page.page.inner_text("#explained")
    figure.click()
    page.page.wait_for_selector("#explained .close:focus")
    page.page.keyboard.press("Escape")
    assert page.page.locator("#explained").is_hidden()
    assert figure.evaluate("element => element === document.activeElement")


@pytest.mark.parametrize(
    "query",
    [
        "model=gemma-3-27b&gpus=4&tensor-parallel=2&pipeline-parallel=2&context=8k",
        "view=size&model=jamba-1.5-mini",
        "view=speed&model=mixtral-8x7b&gpus=4&tensor-parallel=2&pipeline-parallel=2&context=8k&batch=7",
        "view=speculate",
        "view=speculate&method=&draft=llama3.2-1b&batch=512&gamma=3&context=128&acceptance=0.3",
        "view=serve&requests=10",
        *(f"view=learn&demo={demo}" for demo in ("memory", "kv-cache", "speculate", "paging", "batching", "drift")),
    ],
)
def test_every_figure_tells_how_it_comes_about(page, query):
    page.open(query)
    figures = page.page.locator(".figure")
    assert figures.count() >= 2
    for figure in figures.all():
        figure.click()
        page.page.wait_for_selector("#explained .close")
        assert page.page.inner_text("#explained > .step h3") == figure.get_attribute("data-quantity")
        assert page.page.inner_text("#explained > .step .formula")
        result = page.page.locator("#explained > .step .result")
        if result.count():
            shown = float(result.first.inner_text().split()[1].replace(",", ""))
            assert shown == pytest.approx(float(figure.get_attribute("data-value")), rel=1e-12)
        page.page.keyboard.press("Escape")


def test_a_number_is_read_as_the_command_line_reads_it(page):
    page.open("context=8k&batch=4")
    assert "8,000 tokens" in page.page.inner_text(".verdict")
    page.open("view=speed&context=8k&batch=1k")
    assert "TTFT, 8,000-token prompt" in page.page.inner_text(".figures")
    assert any("--batch 1,4,16,64,256,1000,1024" in line for line in page.commands())


def test_a_draft_needs_no_method_in_a_shared_address(page):
    page.open("view=speculate&draft=llama3.2-1b")
    assert page.page.input_value("#draft") == "llama3.2-1b"
    assert page.value("speedup") > 1


def test_a_page_that_begins_with_a_mistake_says_why_it_is_empty(page):
    page.page.goto(f"{page.address}?context=0")
    page.page.wait_for_selector("text=No results yet")
    assert "context must be 1 or more" in page.page.inner_text("#context-error")
    page.write("context", "4096")
    assert page.page.locator("text=No results yet").is_hidden()
    page.console.clear()


OUTSIDE = (
    "[...document.querySelectorAll('[data-drawn] .plot svg')].filter((svg) => {"
    " const frame = svg.getBoundingClientRect(), plots = svg.querySelectorAll('.role-legend, .mark-line, .mark-text');"
    " const panels = svg.closest('[data-chart]').dataset.chart === 'simulate' ? 4 : 1;"
    " return frame.height > 620 * panels || [...plots].some((each) => {"
    " const box = each.getBoundingClientRect(); return box.width && (box.right > frame.right + 2 || box.left < frame.left - 2); });"
    " }).map((svg) => svg.getAttribute('aria-label'))"
)


def test_no_view_is_wider_than_its_screen_and_charts_stay_in_their_frames(page):
    page.open(WALK)
    for view in EVERY_VIEW:
        page.show(view)
        for width in (1600, 800, 390, 360):
            page.resize(width)
            assert page.page.evaluate("document.documentElement.scrollWidth") <= width, view
            assert page.page.evaluate(OUTSIDE) == [], (view, width)


def test_configurations_are_put_side_by_side(page, printed):
    page.open(RUN)
    page.change(lambda: page.page.click("#add-side"))
    page.page.evaluate(OPEN_ALL)
    page.change(lambda: page.page.select_option("#kv-dtype", "fp8"))
    page.page.wait_for_selector("#comparison table")
    assert page.page.locator("#comparison thead th").count() == 3
    rows = {row["quantity"]: row for row in printed(page.page.inner_text("#comparison code"))["rows"]}
    assert rows["size.kv.bytes_per_token"]["ratios"] == [1, 2]
    page.page.reload()
    page.ready()
    page.page.wait_for_selector("#comparison table")
    page.change(lambda: page.page.click(".chips button"))
    page.page.wait_for_selector("#comparison table", state="detached")


def _without_refusals(page):
    """Forget what the browser says of an answer that was a mistake; it says so when it pleases."""
    for _ in range(100):
        if page.console:
            break
        page.page.wait_for_timeout(20)
    assert all("422" in told for told in page.console)
    page.console.clear()


def test_a_pasted_config_is_computed_with(page):
    page.open(RUN)
    page.page.click("#paste-group summary")
    page.page.fill("#paste", json.dumps(CONFIG))
    page.change(lambda: page.page.click("#read-paste"))
    page.until("document.querySelector(\"[data-quantity='kv.bytes_per_token']\").dataset.value === '256'")
    assert page.page.is_disabled("#model")
    page.change(lambda: page.page.click("#drop-config"))
    page.until("document.querySelector(\"[data-quantity='kv.bytes_per_token']\").dataset.value !== '256'")
    page.page.fill("#paste", '{"model_type": "nonesuch"}')
    page.change(lambda: page.page.click("#read-paste"))
    page.until("document.getElementById('paste-error').textContent.includes('nonesuch')")
    _without_refusals(page)


def test_a_pasted_log_that_names_no_model_is_held_against_one_only_when_asked(page):
    page.open()
    page.page.click("#paste-group summary")
    page.page.fill("#paste", "Available KV cache memory: 58.11 GiB\nGPU KV cache size: 476,016 tokens\n")
    page.page.click("#read-paste")
    page.page.wait_for_selector("#hold-against")
    assert "the log names no model" in page.page.inner_text("#paste-error")
    assert not page.page.locator("#reconciled table").count()
    page.page.click("#hold-against")
    page.page.wait_for_selector("#reconciled table")
    assert "the log names no model" in page.page.inner_text("#reconciled .verdict.bad")
    _without_refusals(page)


def test_a_pasted_refusal_says_why_and_with_which_flags(page):
    page.open()
    page.page.click("#paste-group summary")
    page.page.fill("#paste", (ROOT / "docs" / "examples" / "vllm-glm-4.7-pp8.log").read_text(encoding="utf-8"))
    page.page.click("#read-paste")
    page.page.wait_for_selector("#reconciled table")
    told = page.page.inner_text("#reconciled")
    assert "Did not start: one request of 202,752 tokens needs 71.16 GiB" in told
    assert "Start it with: --max-model-len 80896" in told


def test_a_pasted_log_is_reconciled(page):
    page.open(RUN)
    page.page.click("#paste-group summary")
    page.page.fill("#paste", (ROOT / "docs" / "examples" / "vllm-llama31-8b.log").read_text(encoding="utf-8"))
    page.page.click("#read-paste")
    page.page.wait_for_selector("#reconciled table")
    assert "numbers agree" in page.page.inner_text("#reconciled .verdict")
    told = page.page.inner_text("#reconciled")
    assert "14.96 to 15.17" in told
    assert "outside PyTorch" in told
    assert "kvcalc reconcile engine.log" in told


def test_a_command_is_copied(browser, address):
    page = Page(browser, address, permissions=["clipboard-read", "clipboard-write"])
    page.open(RUN)
    page.page.locator(".command button").first.click()
    page.page.wait_for_selector("text=Copied")
    assert page.page.evaluate("navigator.clipboard.readText()") == page.commands()[0]
    page.context.close()


def test_a_model_lies_on_named_devices(page):
    page.page.set_viewport_size(PHONE)
    page.open("view=local&model=qwen3-30b-a3b&device=rtx-4090,12GiB&gpu-layers=40&n-cpu-moe=10")
    page.page.locator(".place").nth(2).wait_for()
    assert page.page.locator(".place h3").all_inner_texts()[0].startswith("rtx-4090")
    assert page.page.locator(".block").count() >= 48
    page.page.click("#fold")
    assert "-ngl 40 -ncmoe 10" in page.page.get_by_text("llama-server -m").inner_text()
    assert page.page.evaluate("document.documentElement.scrollWidth") <= 390
    page.page.locator("#gpu-layers").fill("0")
    page.page.locator("#gpu-layers").press("Enter")
    page.page.get_by_text("-ngl 0").wait_for()


def test_a_plan_is_made_in_the_browser(page):
    page.open("view=plan&model=llama3.1-8b&cards=h100-sxm&price=h100-sxm%3D2.5&prompt=512&output-tokens=50&rate=2")
    page.page.locator(".verdict.good").wait_for()
    assert page.page.locator(".verdict").inner_text().startswith("Rent ")
    assert page.page.get_by_text("vllm serve").count() == 1
    page.drawn("plan")
    assert page.page.locator(".layout .replica").count() >= 1
    gpus = page.page.locator(".layout .gpu").count()
    assert f"{gpus} × h100-sxm" in page.page.inner_text("tbody")  # noqa: RUF001


def test_the_picture_of_a_plan_has_its_nodes_stages_groups_and_links(browser, address):
    page = Page(browser, address, viewport={"width": 1440, "height": 900})

    asked = "model=llama3.1-8b&gpu=h100-sxm&prompt=512&output-tokens=50&rate=2&slo=ttft_p95%3D1s&confirm=1"
    planned = json.loads(answered("plan", asked)[1])
    planned["options"][0] |= {"tensor_parallel": 4, "pipeline_parallel": 3, "expert_parallel": 4, "replicas": 2}
    listed = json.loads(answered("catalogue", "")[1])
    page.page.route("**/api/plan?*", lambda route: route.fulfill(json=planned))
    page.page.route("**/api/catalogue?*", lambda route: route.fulfill(json=listed))
    page.page.route("**/api/catalogue", lambda route: route.fulfill(json=listed))
    page.open("view=plan&model=llama3.1-8b&cards=h100-sxm&prompt=512&output-tokens=50&rate=2")
    page.drawn("plan")
    replica = page.page.locator(".layout .replica").first
    assert page.page.locator(".layout .replica").count() == 2
    assert [node.split("\n")[0] for node in replica.locator(".node").all_inner_texts()] == ["node 1", "node 2"]
    assert replica.locator(".node").first.locator(".stage-row").count() == 2
    assert replica.locator(".ranks").evaluate_all("all => all.map(each => each.innerText.match(/\\d+/g).join(' '))") == [
        "1 2 3 4", "5 6 7 8", "9 10 11 12"
    ]  # fmt: skip
    told = page.page.locator(".layout").get_attribute("aria-label")
    named = next(gpu["links"] for gpu in listed["gpus"] if gpu["name"] == "h100-sxm")
    assert (
        f"inside a node {named['scale_up']['name']}, {named['scale_up']['bytes_per_s'] / 1e9:.0f} GB/s each way" in told
    )
    assert f"between nodes {named['scale_out']['name']}, {named['scale_out']['bytes_per_s'] / 1e9:.0f} GB/s" in told
    assert "4 GPUs of a stage share out the experts" in told
    page.context.close()
    assert not page.console


def test_an_embedded_view_shows_the_answer_alone_and_leads_to_the_whole(page):
    page.open("embed=size&model=llama2-70b&gpu=h200")
    page.page.locator(".verdict.good, .verdict.bad").first.wait_for()
    assert not page.page.locator("#controls").is_visible()
    assert "model=llama2-70b" in page.page.locator("#whole").get_attribute("href")


# The checks that accessibility auditors run, by the digest of the version these views are held to.
AXE = "axe-core@4.14.1"
AXE_DIGEST = "FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="


AUDIT = """axe.run(document, { resultTypes: ["violations"] }).then(({ passes, violations }) => [passes.length,
  violations.filter(({ impact }) => ["serious", "critical"].includes(impact)).map(({ id, nodes: [node] }) => [id, node.html, node.failureSummary])])"""


@pytest.fixture(scope="module")
def axe(tmp_path_factory):
    place = tmp_path_factory.mktemp("axe")
    npm = shutil.which("npm")
    if npm is None:
        pytest.fail("npm is not installed: it fetches axe-core")
    subprocess.run([npm, "pack", "--silent", AXE], cwd=place, check=True, capture_output=True, timeout=120)
    archive = next(place.glob("*.tgz"))
    assert base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode() == AXE_DIGEST
    with tarfile.open(archive) as entries:
        return entries.extractfile("package/axe.min.js").read().decode()


def test_lists_that_cannot_be_loaded_are_told_and_loaded_when_asked_again(browser, address):
    page = Page(browser, address)
    refusal = {"error": {"what": "this takes longer than 10 s", "hint": "", "field": "", "again": True}}
    page.page.route("**/api/catalogue*", lambda route: route.fulfill(status=422, json=refusal))
    page.open("view=speed")
    page.page.wait_for_selector("text=could not be loaded: this takes longer than 10 s")
    page.page.goto(f"{address}?view=speculate")
    page.page.wait_for_selector("main > .wrong >> text=this takes longer than 10 s")
    page.page.unroute("**/api/catalogue*")
    page.change(lambda: page.page.click("main > .wrong button"))
    assert page.value("speedup") > 1
    page.page.click("#unlisted button")
    page.page.wait_for_selector("#unlisted", state="hidden")
    page.page.click("#model")
    assert page.page.locator("#model-offers [role=option]").count() > 60
    _without_refusals(page)
    page.context.close()


def test_a_mistake_is_beside_the_field_that_asks_or_above_where_no_field_is_seen(page):
    page.page.goto(f"{page.address}?view=plan&cards=h1oo")
    page.page.wait_for_selector("#cards-error:not(:empty)")
    assert "unknown GPU 'h1oo'" in page.page.inner_text("#cards-error")
    page.page.goto(f"{page.address}?view=serve&prompt=abc")
    page.page.wait_for_selector("#prompt-error:not(:empty)")
    page.page.goto(f"{page.address}?embed=size&model=llama3.1-70bb")
    page.page.wait_for_selector("main > .wrong >> text=did you mean llama3.1-70b")
    assert not page.page.locator("main > .wrong button").count()
    page.page.set_viewport_size(PHONE)
    page.page.goto(f"{page.address}?context=0")
    page.page.wait_for_selector("main > .wrong >> text=context must be 1 or more")
    page.page.goto(f"{page.address}?view=learn")
    page.ready()
    _without_refusals(page)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
def test_auditors_find_nothing_serious_in_any_view_light_or_dark(browser, address, axe, size):
    page = Page(browser, address, viewport=size, bypass_csp=True)
    page.open(WALK)
    page.page.evaluate(axe)
    if size == PHONE:
        page.page.click("#fold")
    found = {}
    for view in EVERY_VIEW:
        page.show(view)
        page.page.evaluate(OPEN_ALL)
        for scheme in ("light", "dark"):
            page.page.emulate_media(color_scheme=scheme)
            passed, found[view, scheme] = page.page.evaluate(AUDIT)
            assert passed > 20, "the auditor saw no page"
    page.context.close()
    assert {seen: told for seen, told in found.items() if told} == {}


def test_every_control_has_a_name_and_every_chart_a_text(page):
    page.open(WALK)
    for view in EVERY_VIEW:
        page.show(view)
        nameless = page.page.evaluate(
            "[...document.querySelectorAll('input, select, textarea, button')].filter((each) =>"
            " !(each.labels?.length || each.getAttribute('aria-label') || each.textContent.trim())).map((each) => each.outerHTML)"
        )
        assert nameless == []
        charts = page.page.locator("[data-drawn] .plot svg[role=img]")
        assert all(charts.nth(place).get_attribute("aria-label") for place in range(charts.count()))


def test_a_chart_in_a_file_needs_nothing_else(browser, tmp_path):
    file = tmp_path / "chart.html"
    with pytest.raises(SystemExit) as done:
        main(["roofline", "--gpu", "h200", "--model", "llama3.1-8b", "--batch", "1,64", "--html", str(file)])
    assert done.value.code == 0
    page = Page(browser, file.as_uri())
    page.page.goto(file.as_uri())
    page.page.wait_for_selector("svg, canvas")
    assert page.asked == [file.as_uri()]
    assert not page.console
    page.context.close()


def test_the_server_gone_is_told(browser):
    command = [sys.executable, "-m", "kvcalc", "explore", "--port", "0", "--no-browser"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as server:
        page = Page(browser, server.stdout.readline().strip())
        page.open(RUN)
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=20)
        page.page.fill("#batch", "2")
        page.page.press("#batch", "Tab")
        page.page.wait_for_selector("text=the server does not answer")
        with suppress(Exception):
            page.context.close()
