"""The page as static files: what is written, what it needs, and that its code answers as a server does."""

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from base64 import b64encode
from contextlib import suppress

import pytest

from kvcalc.cli.main import main
from kvcalc.core.errors import InputError
from kvcalc.explore import export as exporting
from kvcalc.explore import here, runtime, snapshot
from kvcalc.explore.here import answered

QUESTIONS = [
    ("size", "model=llama2-70b&context=8192"),
    ("fit", "model=gemma-3-27b&gpu=h100-sxm"),
    ("decode", "model=mixtral-8x7b&gpu=h100-sxm&gpus=2&batch=1,8&estimate=true"),
    ("speculate", "model=llama3.1-70b&draft=llama3.1-8b&gpu=h200&gpus=2&acceptance=0.8"),
    ("simulate", "model=llama3.1-8b&gpu=h100-sxm&rate=8&requests=20&prompt=512&output-tokens=50"),
    ("demo/paging", "memory-tokens=256&block-size=16"),
    ("catalogue", ""),
    ("size", "model=lama2"),
]
CONFIG = json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
                     "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 100,
                     "intermediate_size": 128, "max_position_embeddings": 2048, "tie_word_embeddings": False,
                     "torch_dtype": "bfloat16"})  # fmt: skip
# Libraries that a page's Python does not have.
ABSENT = ("yaml", "pydantic", "numpy", "typer", "starlette", "uvicorn", "plotille", "vl_convert")
ANSWER = """
import json, sys
for name in {absent!r}:
    sys.modules[name] = None
sys.path.insert(0, {folder!r})
from kvcalc.explore.here import answered
print(json.dumps([answered(*question) for question in json.load(sys.stdin)]))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    made = tmp_path_factory.mktemp("made")
    package = made / "package"
    package.mkdir()
    for name in runtime.RUNTIME_FILES:
        (package / name).write_text(f"{name} of Pyodide")
    folder = made / "site"
    main_ended(["explore", "--export", str(folder), "--runtime", str(package)])
    return folder


def main_ended(arguments):
    with suppress(SystemExit):
        main(arguments)


def test_its_code_answers_as_the_server_does_with_nothing_installed(site, tmp_path):
    with zipfile.ZipFile(site / "static" / exporting.CODE) as archive:
        archive.extractall(tmp_path)  # noqa: S202  as we wrote it
    asked = [*QUESTIONS, ("size", "context=4096", CONFIG)]
    program = ANSWER.format(absent=ABSENT, folder=str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-S", "-c", program], input=json.dumps(asked), capture_output=True, text=True, check=True,
        cwd=tmp_path, env={"PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert [tuple(reply) for reply in json.loads(done.stdout)] == [answered(*question) for question in asked]


def test_a_demonstration_that_needs_numpy_says_so(monkeypatch):
    assert answered("demo/kv-cache", "prompt=3&output-tokens=4")[0] == 200
    monkeypatch.setattr(here, "find_spec", lambda *_: None)
    status, text = answered("demo/kv-cache", "prompt=3&output-tokens=4")
    assert status == 422
    assert json.loads(text)["error"] == {
        "what": "this page carries this demonstration with one control changed at a time",
        "hint": "kvcalc demo kv-cache on the command line takes any values",
        "field": "",
    }


def test_demonstrations_that_need_numpy_are_carried_along_each_control(site):
    carried = json.loads((site / "static" / "demos.json").read_text())
    for address in ("demo/kv-cache?prompt=3&output-tokens=16&seed=0", "demo/speculate?prompt=3&output-tokens=16&gamma=8&seed=0",
                    "demo/drift?seed=0"):  # fmt: skip
        assert json.dumps(carried[address]) == json.dumps(json.loads(answered(*address.split("?"))[1]))
    fields = (site / "static" / "fields.js").read_text()
    starts = {
        name: re.search(rf'"?{name}"?: "(\d+)"', fields)[1]
        for name in ("demo-prompt", "demo-output", "demo-gamma", "seed")
    }
    assert starts == {"demo-prompt": "3", "demo-output": "16", "demo-gamma": "4", "seed": "0"}
    assert len([address for address in carried if address.startswith("demo/speculate")]) == 1 + 9 + 10 + 7 + 1


def test_without_node_or_with_a_runtime_that_does_not_run_a_page_starts_from_nothing(site, monkeypatch):
    assert not (site / "static" / snapshot.SNAPSHOT).exists()
    assert "snapshot=0" in (site / "index.html").read_text()
    monkeypatch.setenv("PATH", "")
    assert snapshot.snapshot_files({}, {}) == {}


def test_answers_are_what_the_command_line_prints(capsys):
    main_ended(["size", "--model", "llama2-70b", "--context", "8192", "--json"])
    printed = json.loads(capsys.readouterr().out)
    status, text = answered("size", "model=llama2-70b&context=8192")
    told = json.loads(text)
    assert status == 200
    assert {name: told[name] for name in printed} == printed


@pytest.mark.parametrize(
    ("name", "query", "status"),
    [("nothing", "", 404), ("size", "model=%ff", 422), ("size", "&".join(["a=1"] * 65), 422), ("size", "modle=x", 422)],
)
def test_what_cannot_be_asked_is_refused_as_by_the_server(name, query, status):
    found, text = answered(name, query)
    assert found == status
    assert json.loads(text)["error"]["what"]


def test_all_files_are_kept_for_the_next_visit(site):
    visits = (site / "visits.js").read_text()
    listed = set(json.loads(re.search(r"^const FILES = (.*);$", visits, re.MULTILINE)[1]))
    written = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert listed == written - {"visits.js"} | {"./"}
    packed = json.loads(re.search(r"^const PACKED = (.*);$", visits, re.MULTILINE)[1])
    assert set(packed) == written & {"static/snapshot.bin", "static/kvcalc.bin"}


def test_every_address_of_the_page_is_one_of_its_files(site):
    index = (site / "index.html").read_text()
    for address in re.findall(r'(?:src|href|content)="(static/[^"]+)"', index):
        assert (site / address).is_file(), address
    for path in (site / "static").rglob("*.js"):
        if path.name == "vega.js":
            continue
        for address in re.findall(r'(?:from|import\()\s*"(\.[^"]+)"', path.read_text()):
            assert (path.parent / address).is_file(), (path.name, address)


def test_nothing_but_its_own_files_is_allowed(site):
    index = (site / "index.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]+)"', index)[1]
    sources = {word for part in policy.split(";") for word in part.split()[1:]}
    [inline] = re.findall(r"<script>(.*?)</script>", index)  # which begins the worker
    digest = b64encode(hashlib.sha256(inline.encode()).digest()).decode()
    assert sources == {"'none'", "'self'", "'wasm-unsafe-eval'", "data:", f"'sha256-{digest}'"}
    assert 'new Worker("static/worker.js"' in inline


def test_the_same_version_is_written_twice_alike(site, tmp_path):
    again = exporting.export(tmp_path / "again", site / "static" / "python")
    for path in again:
        assert path.read_bytes() == (site / path.relative_to(tmp_path / "again")).read_bytes(), path


def test_a_folder_with_other_things_is_left_alone(tmp_path):
    (tmp_path / "thesis.doc").write_text("years")
    with pytest.raises(InputError, match=r"holds other things than a page: thesis\.doc"):
        exporting.export(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a folder"):
        exporting.export(tmp_path / "file")


def test_a_runtime_that_lacks_a_file_says_which(tmp_path):
    with pytest.raises(InputError, match=r"has no pyodide\.mjs"):
        runtime.runtime_files(tmp_path)


def npm_that(monkeypatch, tmp_path, does):
    folder = tmp_path / "bin"
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{does}\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")


def packed():
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name in runtime.RUNTIME_FILES:
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(name)
            archive.addfile(entry, io.BytesIO(name.encode()))
    return held.getvalue()


def test_npm_is_asked_where_no_folder_is_given(monkeypatch, tmp_path):
    archive = tmp_path / "held.tgz"
    archive.write_bytes(packed())
    npm_that(monkeypatch, tmp_path, f'test "$3" = {runtime.PYODIDE} && cp {archive} pyodide.tgz')
    monkeypatch.setattr(runtime, "_DIGEST", f"sha512-{b64encode(hashlib.sha512(packed()).digest()).decode()}")
    assert runtime.runtime_files() == {name: name.encode() for name in runtime.RUNTIME_FILES}


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("echo 'no such host' >&2; exit 1", "could not fetch .*: no such host"),
        ("true", "could not fetch"),
        ("echo something > pyodide.tgz", "npm gave another"),
    ],
)
def test_an_npm_that_fails_is_told(monkeypatch, tmp_path, does, says):
    npm_that(monkeypatch, tmp_path, does)
    with pytest.raises(InputError, match=says):
        runtime.runtime_files()


def test_without_npm_the_hint_says_how_to_get_the_runtime(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InputError, match="npm is not here") as error:
        runtime.runtime_files()
    assert "--runtime" in error.value.hint


def test_a_runtime_needs_an_export(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["explore", "--runtime", "package"])
    assert ended.value.code == 2
    assert "--runtime goes with --export" in capsys.readouterr().err
