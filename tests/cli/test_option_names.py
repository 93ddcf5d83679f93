"""Names of options: those of engines and benchmarks are taken as ours, and each option stands under a heading of help."""

import json
import shlex

import pytest

from kvcalc.cli.app import load_command
from kvcalc.cli.help import default_text, headings_of
from kvcalc.cli.main import COMMANDS, PANELS, main
from kvcalc.questions import QUESTIONS, question
from kvcalc.questions.vocabulary import HEADINGS, VOCABULARY

SIZE = "size --model llama3.1-8b"
DECODE = "decode --model llama3.1-8b --gpu h100-sxm"
SIMULATE = "simulate --model llama3.1-8b --gpu h100-sxm --seed 1"
LOAD = "--prompt 64 --output-tokens 4"
SAME = [
    (f"{SIZE} --kv-cache-dtype fp8", f"{SIZE} --kv-dtype fp8"),
    (f"{SIZE} --kv-cache-dtype auto --quantization auto", SIZE),
    (f"{SIZE} -c 8192", f"{SIZE} --context 8192"),
    ("size --model qwen3-8b-fp8 -q auto", "size --model qwen3-8b-fp8"),
    ("speculate --model llama2-70b --draft llama2-7b --gpu h200 --gpus 2 --acceptance 0.7 --kv-dtype auto", "speculate --model llama2-70b --draft llama2-7b --gpu h200 --gpus 2 --acceptance 0.7"),
    (f"{SIZE} --quantization fp8", f"{SIZE} --weights fp8"),
    (f"{SIZE} --tensor-parallel-size 2", f"{SIZE} --tp 2"),
    (f"{SIZE} --pipeline-parallel-size 2 --concurrency 3", f"{SIZE} --pp 2 --batch 3"),
    (f"{SIZE} --engine llama.cpp -c 4096 -np 2 -ctk q8_0", f"{SIZE} --engine llama.cpp --ctx-size 4096 --parallel 2 --cache-type-k q8_0"),
    (f"{DECODE} --gpu-memory-utilization 0.8", f"{DECODE} --utilization 0.8"),
    ("prefill --model llama3.1-8b --gpu h200 --input-len 500", "prefill --model llama3.1-8b --gpu h200 --prompt 500"),
    ("traffic --model llama2-7b --isl 100 --osl 30", "traffic --model llama2-7b --prompt 100 --output-tokens 30"),
    (f"{SIMULATE} --input-len 64 --output-len 4 --request-rate 2 --num-prompts 3", f"{SIMULATE} {LOAD} --rate 2 --requests 3"),
    (f"{SIMULATE} {LOAD} --arrival closed --concurrency 2 --requests 3", f"{SIMULATE} {LOAD} --arrival closed --users 2 --requests 3"),
]  # fmt: skip


def _printed(command, capsys):
    with pytest.raises(SystemExit) as done:
        main([*shlex.split(command), "--json"])
    printed = capsys.readouterr()
    assert done.value.code == 0, printed.err
    return json.loads(printed.out)


@pytest.mark.parametrize(("theirs", "ours"), SAME)
def test_an_engines_own_name_is_taken(theirs, ours, capsys):
    assert _printed(theirs, capsys) == _printed(ours, capsys)


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_other_name_of_an_option_is_taken_wherever_the_option_is(name):
    flags = {flag for each in question(name).params.values() for flag in each.flags}
    for each in question(name).params.values():
        if each.flags[0] in VOCABULARY:
            assert set(VOCABULARY[each.flags[0]].also) <= flags


def test_no_word_means_two_options_of_one_command():
    for name in QUESTIONS:
        meant = [word for each in question(name).params.values() for word in dict.fromkeys(each.meant)]
        assert len(meant) == len(set(meant))


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_option_stands_once_under_a_heading(name):
    asked = load_command(name.partition(" ")[0])
    asked = getattr(asked, "commands", {}).get(name.partition(" ")[2], asked)
    shown = [each for _, found in headings_of(asked.params) for each in found]
    visible = [each for each in asked.params if not each.hidden]
    assert sorted(each.name for each in shown) == sorted(each.name for each in visible)
    assert headings_of(asked.params)[-1][0] == HEADINGS[-1] == "Output"


def test_help_of_a_command_has_options_of_engines_that_it_serves_alone():
    assert {"SGLang", "llama.cpp"} <= {heading for heading, _ in headings_of(load_command("fit").params)}
    served = [heading for heading, _ in headings_of(load_command("simulate").params)]
    assert "vLLM" in served
    assert not {"SGLang", "llama.cpp"} & set(served)


def test_defaults_are_shown():
    shown = {each.name: default_text(each) for each in load_command("decode").params}
    assert shown["model"] == "required"
    assert shown["batch"] == "default: 1"
    assert shown["kv_dtype"] == "default: as the engine keeps it"
    assert shown["explain"] == ""


def test_every_command_stands_in_one_panel():
    assert [name for panel in PANELS.values() for name in panel] == list(COMMANDS)
    assert {name.partition(" ")[0] for name in QUESTIONS} <= set(COMMANDS)
