"""Options that are written plainly are read without the command line library, and as it reads them."""

import subprocess
import sys

import pytest

from kvcalc.cli.app import load_command
from kvcalc.cli.asking import ask_plainly, plain_texts
from kvcalc.questions import QUESTIONS, question

NAMES = [name for name in QUESTIONS if " " not in name]
# Written so that the library has to say what they mean, or that they mean nothing.
NOT_PLAIN = [
    "",
    "--model",
    "--model llama2-70b extra",
    "--model llama2-70b --model llama2-7b",
    "--model --json",
    "--model llama2-70b --batch -1",
    "--model llama2-70b --json=yes",
    "--model llama2-70b --bat 8",
    "--model llama2-70b --unknown 8",
    "--model llama2-70b -- 8",
    "-mllama2-70b",
    "--batch 8",
]


def _library(name, words):
    """The values that the library reads, those left out among them."""
    return load_command(name).make_context(name, list(words)).params


def _needed(asked):
    """Words that give what a question cannot do without; none where these are arguments, which are not plain."""
    required = [each for each in asked.params.values() if each.is_required]
    if any(each.is_argument for each in required):
        return None
    return [word for each in required for word in (each.flags[0], "x")]


@pytest.mark.parametrize("name", NAMES)
def test_every_option_is_read_as_the_library_reads_it(name):
    asked = question(name)
    needed = _needed(asked)
    if needed is None:
        assert plain_texts(asked, []) is None
        return
    left_out = _library(name, needed)
    for each in asked.params.values():
        for flag in () if each.is_argument or each.is_required else each.flags:
            on, _, off = flag.partition("/")
            switches = [[switch] for switch in (on, off) if switch.strip()]
            values = [[f"{on}=7=8"] if on.startswith("--") else [on, ""]]
            for words in switches if each.kind == "flag" else values:
                plain = plain_texts(asked, [*needed, *words])
                assert plain is not None, words
                assert {**left_out, **plain} == _library(name, [*needed, *words]), words


def test_an_option_that_may_be_repeated_is_collected():
    words = ["--model", "llama2-70b", "--set", "a=1", "--set=b=2", "--explain", "-o", "json"]
    plain = plain_texts(question("size"), words)
    assert {**_library("size", words[:2]), **plain} == _library("size", words)
    assert plain["settings"] == ("a=1", "b=2")


@pytest.mark.parametrize("words", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_library(words):
    assert plain_texts(question("size"), words.split()) is None


@pytest.mark.parametrize(
    "words", ["size --help", "models list", "simulate --model llama2-70b", "--version", "why x.log"]
)
def test_other_commands_are_left_to_the_library(words):
    assert ask_plainly(words.split()) is None


@pytest.mark.parametrize(
    "words",
    [
        "size --model llama2-70b",
        "size -m llama3.1-8b --json",
        "decode -m llama3.1-8b --gpu h100-sxm --batch 1,8 -o csv",
    ],
)
def test_everyday_commands_load_neither_the_library_nor_yaml(words):
    script = (
        "import sys\nfrom kvcalc.cli.main import main\ntry:\n    main(sys.argv[1:])\nexcept SystemExit as done:\n"
        "    assert not done.code\nassert not {'typer', 'click', 'rich', 'numpy', 'shutil'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script, *words.split()], capture_output=True, text=True, check=True)
