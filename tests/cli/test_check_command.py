"""``kvcalc check``: assertions, matrices, exit codes, reports for machines, changes since an earlier run."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import jsonschema
import pytest
import yaml

import kvcalc
from kvcalc.cli.main import main
from kvcalc.questions.check import ASSERTED
from kvcalc.render.ci import _line

ROOT = Path(__file__).parents[2]
CHECKS = """\
defaults: {gpu: h100-sxm}
checks:
- name: chat
  model: llama2-70b
  gpus: 4
  batch: 8
  expect:
    fits: true
    kv_bytes_per_token: 327680
    decode.tokens_per_s_per_sequence: {min: 30}
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Run the command in an empty folder on a file with some text; returns code, output and messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)

    def go(text, *arguments, file="kvcalc.checks.yaml"):
        if text is not None:
            Path(file).write_text(text, encoding="utf-8")
        with pytest.raises(SystemExit) as done:
            main(["check", *arguments])
        printed = capsys.readouterr()
        return done.value.code, printed.out, printed.err

    return go


def _one(expect, setup="model: llama3.1-8b"):
    return f"checks:\n- {{{setup}, gpu: h100-sxm, expect: {{{expect}}}}}\n"


def test_what_holds_passes_and_says_so(run):
    code, out, _ = run(CHECKS, "--json")
    report = json.loads(out)
    assert code == 0
    assert report["passed"]
    assert [check["name"] for check in report["checks"]] == [
        "chat: fits",
        "chat: kv_bytes_per_token",
        "chat: decode.tokens_per_s_per_sequence",
    ]
    deployment = kvcalc.deployment("llama2-70b", gpu="h100-sxm", gpus=4)
    speed = kvcalc.decode(deployment, batches=[8]).rows[0].tokens_per_s_per_sequence
    assert [check["actual"] for check in report["checks"]] == [True, 327680, speed]


def test_what_does_not_hold_fails_with_its_line(run):
    code, out, _ = run(CHECKS.replace("327680", "327681"))
    assert code == 1
    assert "FAILED  chat: kv_bytes_per_token" in out
    assert "kvcalc.checks.yaml:9: size.kv.bytes_per_token is 327,680, expected 327,681" in out
    assert "2 of 3 checks hold." in out


@pytest.mark.parametrize(
    ("expect", "holds"),
    [
        ("kv_headroom: {min: 10%}", True),
        ("kv_headroom: {min: 0.999}", False),
        ("size.weights.total_bytes: {max: 15GiB}", True),
        ("size.weights.total_bytes: {max: 15GB}", False),
        ("prefill.ideal_s: {max: 70ms}", True),
        ("prefill.ideal_s: {max: 60ms}", False),
        ("decode.tokens_per_s: {equals: 220, within: 5%}", True),
        ("decode.tokens_per_s: {equals: 220, within: 1%}", False),
        ("decode.limiter: memory", True),
        ("decode.limiter: {not: memory}", False),
        ("decode.limiter: {in: [compute, memory]}", True),
        ("decode.rows.0.shares.memory: 1", True),
        ("roofline.ridge_flop_per_byte.bf16: {min: 295, max: 296}", True),
        ("max_concurrency: {min: 3}", True),
        ("fit.min_gpus: {max: 1}", True),
        ("decode.usd_per_million_tokens: null", True),
        ("decode.usd_per_million_tokens: {min: 0}", False),
        ("solve.rows.0.answer: {min: 8k}", True),
    ],
)  # fmt: skip
def test_any_field_of_any_report_can_be_asserted(run, expect, holds):
    setup = "model: llama3.1-8b, context: '?', batch: 8" if "solve" in expect else "model: llama3.1-8b"
    code, out, err = run(_one(expect, setup))
    assert code == (0 if holds else 1), out + err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (_one("fitz: true"), "'fitz' is no field"),
        (_one("decode.token_per_s: 1"), "did you mean tokens_per_s"),
        (_one("kv_bytes_per_token: {mim: 1}"), "did you mean min"),
        (_one("kv_bytes_per_token: {min: 5 apples}"), "unknown unit"),
        (_one("fits: 3"), "true or false"),
        (_one("size.kv: 1"), "not one figure"),
        (_one("fits: true", "model: lama2-70b"), "did you mean"),
        (_one("fits: true", "model: llama2-70b, kv-dtyp: fp8"), "did you mean kv_dtype"),
        (_one("fits: true", "model: llama2-70b, gpus: many"), "takes a whole number"),
        (_one("fits: true", "model: llama2-70b, gpus: 2.5"), "takes a whole number"),
        (_one("fits: true", "model: llama2-70b, name: [a]"), "is text"),
        (_one("fits: true", "model: llama2-70b, gpus: [1, 2]"), "matrix"),
        (_one("decode.flop: {min: 1}", "model: llama2-70b, matrix: {gpu: h100}"), "list of values"),
        (_one("decode.flop: {min: 1}", "model: llama2-70b, batch: '1,2'"), "each of 2 rows"),
        (_one("decode.flop: {min: 1}", "model: llama2-70b, matrix: {batch: many}"), "not a count"),
        (
            _one("decode.flop: {min: 1}", "model: llama2-70b, matrix: {batch: [1, 2, 1]}"),
            "batch in a matrix has 1 twice",
        ),
        (_one("decode.flop: {min: 1}", "model: llama2-70b, matrix: {gpu: [h100, h100]}"), "'h100' twice"),
        (_one("decode.limiter: {not: memroy}"), "did you mean memory"),
        (_one("", "model: llama2-70b"), "expects nothing"),
        ("checks: []", "there are no checks"),
        ("check: []", "did you mean checks"),
        ("checks:\n- {model: llama2-70b, expects: {fits: true}}\n", "expects nothing"),
        ("checks: [1]", "mapping"),
        ("checks:\n- {model: x, model: y}\n", "kvcalc.checks.yaml:2"),
        ("", "no mapping"),
    ],
)
def test_mistakes_are_told_with_file_and_line(run, text, told):
    code, out, err = run(text)
    assert code == 2
    assert told in err
    assert "kvcalc.checks.yaml" in err
    assert not out


def test_a_matrix_is_every_combination(run):
    text = """\
checks:
- name: m
  matrix: {model: [llama3.1-8b, qwen3-8b], batch: 1-4*2}
  expect: {size.kv.total_bytes: {min: 1}}
"""
    code, out, _ = run(text, "--json")
    checks = json.loads(out)["checks"]
    assert code == 0
    assert len(checks) == 6
    assert checks[-1]["name"] == "m [model=qwen3-8b, batch=4]: size.kv.total_bytes"
    assert checks[2]["actual"] == 4 * checks[0]["actual"]


def test_a_prompt_is_the_context_unless_it_is_said(run):
    code, out, _ = run(_one("prefill.prompt: 1000, decode.context: 1000", "model: llama3.1-8b, context: 1000"))
    assert code == 0, out
    code, out, _ = run(
        _one("prefill.prompt: 10, decode.context: 1000", "model: llama3.1-8b, context: 1000, prompt: 10")
    )
    assert code == 0, out


def test_an_option_that_is_null_is_left_out(run):
    text = "defaults: {engine: null, prompt: 7}\n" + _one(
        "fits: true, prefill.prompt: 4096", "model: llama3.1-8b, prompt: null"
    )
    code, out, err = run(text)
    assert code == 0, out + err


def test_defaults_count_only_where_a_report_has_them(run):
    text = "defaults: {gpu: h100-sxm, max-model-len: 8192, prompt: 10}\n" + _one(
        "kv_bytes_per_token: 131072, prefill.prompt: 10"
    )
    assert run(text)[0] == 0


def test_a_name_in_the_summary_is_neither_a_tag_nor_a_column():
    assert _line("a & b", "<b>", "1 | 2") == "| a &amp; b | &lt;b> | 1 \\| 2 |"


def test_junit_xml_has_a_case_for_each_assertion(run):
    code, _, _ = run(CHECKS.replace("327680", "1"), "--junit", "checks.xml")
    suite = ET.parse("checks.xml").getroot().find("testsuite")  # noqa: S314  our own file
    assert code == 1
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    failed = [case for case in suite if case.find("failure") is not None]
    assert [(case.get("file"), case.get("line")) for case in failed] == [("kvcalc.checks.yaml", "9")]


def test_junit_xml_has_a_failed_case_for_each_figure_that_got_worse(run):
    text = _one("decode.tokens_per_s: {min: 1}, fits: true")
    old = json.loads(run(text, "--json")[1])
    old["checks"][0]["actual"] *= 2
    Path("old.json").write_text(json.dumps(old), encoding="utf-8")
    assert run(text, "--against", "old.json", "--junit", "checks.xml")[0] == 1
    suite = ET.parse("checks.xml").getroot().find("testsuite")  # noqa: S314  our own file
    assert (suite.get("tests"), suite.get("failures")) == ("3", "1")
    (failed,) = [case for case in suite if case.find("failure") is not None]
    assert failed.get("name").endswith("decode.tokens_per_s: since before")


def test_github_gets_annotations_and_a_summary(run, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    code, out, err = run(CHECKS.replace("327680", "1").replace("chat", "'a,b: 100%'"), "--github", "--json")
    assert code == 1
    assert "::error file=kvcalc.checks.yaml,line=9,title=a%2Cb%3A 100%25%3A kv_bytes_per_token::" in err
    assert json.loads(out)["failures"] == 1
    assert "2 of 3 hold" in Path("summary.md").read_text(encoding="utf-8")


def test_a_summary_has_what_failed_before_what_holds(run, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    run(CHECKS.replace("327680", "1"), "--github")
    rows = [line.split(" | ")[:2] for line in Path("summary.md").read_text(encoding="utf-8").splitlines()[4:7]]
    assert rows == [
        ["| FAILED", "chat: kv_bytes_per_token"],
        ["| ok", "chat: fits"],
        ["| ok", "chat: decode.tokens_per_s_per_sequence"],
    ]


@pytest.mark.parametrize("output", ["jsonl", "csv", "md"])
def test_every_output_has_a_line_for_each_assertion(run, output):
    code, out, _ = run(CHECKS, "--output", output)
    assert code == 0
    assert sum("chat: " in line for line in out.splitlines()) == 3


def test_what_got_worse_fails(run):
    _, out, _ = run(CHECKS, "--json")
    Path("old.json").write_text(out, encoding="utf-8")
    assert run(CHECKS, "--against", "old.json")[0] == 0
    wider = CHECKS.replace("gpus: 4", "gpus: 4\n  set: kv_heads=64").replace(
        "kv_bytes_per_token: 327680", "kv_bytes_per_token: {min: 1}"
    )
    grown = wider.replace("{min: 1}", "{max: 10MB}")
    code, out, _ = run(grown, "--against", "old.json")
    assert code == 1
    assert "size.kv.bytes_per_token grew 8x: 327,680 -> 2,621,440" in out
    report = json.loads(run(grown, "--against", "old.json", "--json")[1])
    assert report["regressions"] == 2
    assert [change["worse"] for change in report["changes"]] == [True, True]


def test_a_little_worse_is_tolerated_and_better_is_no_regression(run):
    text = _one("decode.tokens_per_s: {min: 1}")
    _, out, _ = run(text, "--json")
    old = json.loads(out)
    for factor, tolerance, code in ((1.005, "1%", 0), (1.005, "0.001", 1), (0.5, "0", 0)):
        old["checks"][0]["actual"] = json.loads(out)["checks"][0]["actual"] * factor
        Path("old.json").write_text(json.dumps(old), encoding="utf-8")
        assert run(text, "--against", "old.json", "--tolerance", tolerance)[0] == code


@pytest.mark.parametrize(
    ("figure", "factor", "code"),
    [
        ("decode.ideal_s: {}", 0.9, 1),  # it took nine tenths of the time: a slower step is a regression
        ("decode.ideal_s: {}", 1.1, 0),
        ("kv_total_bytes: {}", 0.9, 1),
        ("kv_total_bytes: {}", 1.1, 0),
        ("decode.tokens_per_s: {}", 1.1, 1),
        ("decode.tokens_per_s: {}", 0.9, 0),
        ("decode.ideal_s: {min: 0}", 0.9, 0),  # who asks for a least value wants more of it
        ("decode.tokens_per_s: {max: 1e9}", 0.9, 1),
        ("decode.flop: {}", 0.9, 0),  # of which neither more nor less is better
        ("decode.flop: {}", 1.1, 0),
    ],
)
def test_a_figure_gets_worse_towards_its_bad_end(run, figure, factor, code):
    name, _, limits = figure.partition(": ")
    expect = f"record: [{name}]" if limits == "{}" else f"expect: {{{figure}}}"
    text = f"checks:\n- {{model: llama3.1-8b, gpu: h100-sxm, {expect}}}\n"
    _, out, _ = run(text, "--json")
    old = json.loads(out)
    old["checks"][0]["actual"] *= factor
    Path("old.json").write_text(json.dumps(old), encoding="utf-8")
    assert run(text, "--against", "old.json")[0] == code


def test_checks_that_came_or_went_are_told(run):
    _, out, _ = run(CHECKS, "--json")
    Path("old.json").write_text(out, encoding="utf-8")
    code, out, _ = run(
        CHECKS.replace("fits: true", "fit.min_gpus: 3").replace("gpus: 4", "gpus: 4\n  max_model_len: 4096"),
        "--against",
        "old.json",
    )
    assert code == 0, out
    assert "chat: fits: not checked any more" in out
    assert "chat: fit.min_gpus: new" in out


@pytest.mark.parametrize("old", ["[]", "{", '{"schema": "kvcalc.size/1"}', '{"schema": "kvcalc.check/1", "checks": 3}'])
def test_an_earlier_run_that_is_none_is_refused(run, old):
    Path("old.json").write_text(old, encoding="utf-8")
    code, _, err = run(CHECKS, "--against", "old.json")
    assert code == 2
    assert "old.json" in err


def test_figures_can_be_recorded_without_being_asserted(run):
    text = "checks:\n- {model: llama3.1-8b, record: [size.kv.bytes_per_token]}\n"
    code, out, _ = run(text, "--json")
    assert code == 0
    assert json.loads(out)["checks"][0]["actual"] == 131072


def test_init_writes_one_file_that_passes_and_is_not_overwritten(run, tmp_path):
    assert run(None, "--init")[0] == 0
    assert [path.name for path in tmp_path.iterdir()] == ["kvcalc.checks.yaml"]
    code, out, _ = run(None)
    assert code == 0, out
    assert run(None, "--init")[0] == 2
    shown = (ROOT / "docs" / "examples" / "kvcalc.checks.yaml").read_text(encoding="utf-8")
    assert Path("kvcalc.checks.yaml").read_text(encoding="utf-8") == shown


def test_without_a_file_the_hint_says_what_to_do(run):
    code, _, err = run(None)
    assert code == 2
    assert "--init" in err


def test_the_schema_takes_the_example_and_refuses_mistakes(run):
    _, out, _ = run(None, "--schema")
    schema = json.loads(out)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    for file in (ROOT / "docs" / "examples" / "kvcalc.checks.yaml", ROOT / "tests" / "kvcalc.checks.yaml"):
        assert not list(validator.iter_errors(yaml.safe_load(file.read_text(encoding="utf-8")))), file
    for wrong in (
        "checks: []",
        "checks: [{model: x}]",
        "checks: [{modle: x, expect: {fits: true}}]",
        "checks: [{expect: {fits: {mim: 1}}}]",
        "checks: [{expect: {}}]",
        "checks: [{expect: {fits: {}}}]",
        "checks: [{expect: {fits: [1]}}]",
        "checks: [{expect: {fits: {min: [1]}}}]",
        "checks: [{expect: {fits: true}, matrix: {modle: [x]}}]",
        "checks: [{record: fits}]",
        "{defaults: {modle: x}, checks: [{expect: {fits: true}}]}",
        "{checks: [{expect: {fits: true}}], more: 1}",
        "{}",
    ):
        assert list(validator.iter_errors(yaml.safe_load(wrong))), wrong


def test_every_report_with_figures_can_be_asserted():
    assert {"size", "decode", "prefill", "roofline", "fit", "solve"} <= set(ASSERTED)


def test_a_hundred_checks_take_less_than_a_second_of_cpu(tmp_path, usual_s):
    file = tmp_path / "many.yaml"
    text = "defaults: {gpu: h100-sxm}\nchecks:\n- model: llama3.1-8b\n  matrix: {batch: 1-50, context: [4096, 8192]}\n"
    file.write_text(text + "  expect: {fits: true, decode.tokens_per_s: {min: 1}}\n", encoding="utf-8")
    script = "import sys, time\nfrom kvcalc.cli.main import main\ntry:\n main(sys.argv[1:])\nexcept SystemExit as done:\n print(done.code, time.process_time(), file=sys.stderr)"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    least = float("inf")
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", script, "check", str(file)],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        code, seconds = done.stderr.split()
        assert code == "0"
        least = min(least, float(seconds))
    assert least < usual_s(2), "one second on an idle machine"


def test_the_projects_own_checks_hold(run):
    code, out, err = run(None, str(ROOT / "tests" / "kvcalc.checks.yaml"))
    assert code == 0, out + err


def test_the_summary_says_what_is_expected_as_the_file_does(run, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    limiter = "    decode.limiter: {in: [memory, compute]}\n"
    run(CHECKS.replace("name: chat", "name: a <b> chat") + limiter, "--github")
    told = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "| ok | a &lt;b> chat: fits | true | true |" in told
    assert "| memory | in memory or compute |" in told
    assert "| min 30 |" in told
    assert "{" not in told


@pytest.mark.parametrize(
    "field", ["kv_bytes_per_token", "decode.tokens_per_s", "ttft_s", "max_batch", "max_concurrency", "parameters"]
)
def test_a_percentage_of_nothing_is_refused(run, field):
    text = CHECKS.partition("  expect:")[0] + f"  expect: {{{field}: {{min: 10%}}}}\n"
    code, _, told = run(text)
    assert (code, "'10%' is a share" in told) == (2, True)


def test_what_fell_is_told_as_what_it_fell_to(run, tmp_path):
    _, shown, _ = run(CHECKS, "--json")
    before = json.loads(shown)
    before["checks"][2]["actual"] *= 4
    (tmp_path / "old.json").write_text(json.dumps(before), encoding="utf-8")
    assert "tokens_per_s_per_sequence fell to 0.25x: " in "".join(map(str, run(CHECKS, "--against", "old.json")))


_SHADOWED = """\
checks:
- {name: one, model: llama2-7b, gpu: h100, expect: {fits: true}}
- {name: two, model: llama2-7b, gpu: h100-sxm, expect: {fits: true}}
"""


@pytest.fixture
def shadow(tmp_path, monkeypatch):
    """A card of the user's that has the name of one of the catalogue."""
    from kvcalc.profiles.catalog import shipped_folder

    own = (shipped_folder("hardware") / "h100-sxm.yaml").read_text()
    path = tmp_path / "profiles" / "h100-sxm.yaml"
    path.parent.mkdir()
    path.write_text(own.replace("name: h100-sxm", "name: h100-sxm\nnotes: [faster than any]"))
    monkeypatch.setenv("KVCALC_PROFILES", str(path.parent))
    return path


def test_a_profile_that_shadows_the_catalogue_is_refused(run, shadow):
    code, out, err = run(_SHADOWED)
    assert (code, out) == (2, "")
    first, hint = err.splitlines()
    assert "kvcalc.checks.yaml:3: two" in first
    assert f"h100-sxm was read from {shadow}" in first
    assert "allow_shadowing: [h100-sxm]" in hint
    code, _, err = run(f"allow_shadowing: [h200]\n{_SHADOWED}")
    assert (code, "h100-sxm was read" in err) == (2, True)


def test_a_profile_may_shadow_where_the_file_allows_it_and_is_named(run, shadow):
    code, out, _ = run(f"allow_shadowing: [H100-SXM]\n{_SHADOWED}", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["source"]["hardware"] == {"h100": "catalogue", "h100-sxm": str(shadow)}
    assert report["source"]["shadowed"] == ["h100-sxm"]
    assert any(str(shadow) in note for note in report["notes"])


@pytest.mark.usefixtures("shadow")
def test_a_name_may_shadow_however_a_check_spells_it(run):
    spelled = _SHADOWED.replace("h100-sxm", "H100-SXM")
    assert run(f"allow_shadowing: [h200]\n{spelled}")[0] == 2
    assert run(f"allow_shadowing: [h100-sxm]\n{spelled}")[0] == 0


@pytest.mark.parametrize("value", ["h100-sxm", "true", "[1]"])
def test_names_that_may_be_shadowed_are_a_list(run, value):
    code, _, err = run(f"allow_shadowing: {value}\n{_SHADOWED}")
    assert (code, "kvcalc.checks.yaml:1: allow_shadowing is a list of names" in err) == (2, True)


@pytest.mark.parametrize("command", ["size", "fit", "decode", "prefill", "roofline", "traffic", "levers", "solve"])
def test_every_answer_names_a_profile_that_shadows(capsys, shadow, command):
    extra = {"solve": ["--gpus", "?", "--batch", "1"], "size": []}.get(command, [])
    gpu = [] if command in ("size", "traffic", "levers") else ["--gpu", "h100-sxm"]
    if not gpu:
        own = (ROOT / "model_profiles" / "llama2-7b.yaml").read_text()
        (shadow.parent / "llama2-7b.yaml").write_text(own + "# mine\n")
    for form in ("table", "json", "csv"):
        with pytest.raises(SystemExit) as done:
            main([command, "--model", "llama2-7b", *gpu, *extra, "--output", form])
        printed = capsys.readouterr()
        assert done.value.code == 0, printed.err
        said = " ".join((printed.err if form == "csv" else printed.out).split())
        assert "not from kvcalc's own profile of that name" in said, form


@pytest.mark.parametrize(
    "expect",
    [
        "batch: {min: inf}", "batch: {min: nan}", "batch: {max: 1e400}", "batch: {equals: 1, within: inf}",
        "batch: {equals: 1, within: '1e400%'}", "fits: .inf", "batch: -1e400",
    ],
)  # fmt: skip
def test_a_number_that_is_not_finite_is_refused(run, expect):
    """It would hold of any figure, or of none, and an exit code of 1 says that a figure was wrong."""
    code, out, err = run(_one(f"decode.{expect}" if expect.startswith("batch") else expect))
    assert (code, out) == (2, "")
    assert "kvcalc.checks.yaml:2" in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999", "-1e999"])
def test_an_earlier_run_with_no_number_is_refused(run, tmp_path, number):
    _, out, _ = run(CHECKS, "--json")
    old = tmp_path / "old.json"
    old.write_text(out.replace("327680", number))
    code, out, err = run(CHECKS, "--against", str(old))
    assert (code, out) == (2, "")
    assert "is not a finite number" in err


@pytest.mark.parametrize("actual", ["[]", "{}", "[1]"])
def test_an_earlier_run_whose_figures_are_none_is_refused(run, tmp_path, actual):
    _, out, _ = run(CHECKS, "--json")
    old = tmp_path / "old.json"
    old.write_text(out.replace('"actual": 327680', f'"actual": {actual}'))
    code, out, err = run(CHECKS, "--against", str(old))
    assert (code, out, "its checks cannot be read" in err) == (2, "", True)


@pytest.mark.parametrize("actual", ['"x"', "true", '"327680"'])
def test_an_earlier_figure_of_another_kind_is_refused(run, actual):
    _, out, _ = run(CHECKS, "--json")
    Path("old.json").write_text(out.replace('"actual": 327680', f'"actual": {actual}'))
    code, out, err = run(CHECKS, "--against", "old.json")
    assert (code, out, "is not a figure to hold 327,680 against" in err) == (2, "", True)


def test_an_earlier_result_without_its_figure_is_refused(run):
    _, out, _ = run(CHECKS, "--json")
    Path("old.json").write_text(out.replace('"actual": 327680', '"was": 327680'))
    code, out, err = run(CHECKS, "--against", "old.json")
    assert (code, out, "its checks cannot be read" in err) == (2, "", True)


@pytest.mark.parametrize("setting", ["price: nan", "power_share: inf", "price: '1e400'"])
def test_an_option_of_a_check_is_a_finite_number(run, setting):
    code, _, err = run(_one("decode.batch: 1", f"model: llama3.1-8b, {setting}"))
    assert (code, "must be a number, not" in err) == (2, True)
