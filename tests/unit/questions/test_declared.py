"""Questions declared once: parameters read by one rule, wherever they are written."""

from __future__ import annotations

from typing import Any

import pytest

import kvcalc
from kvcalc.core import readers
from kvcalc.core.errors import InputError, KvcalcError, UnknownNameError
from kvcalc.questions import QUESTIONS, question
from kvcalc.questions.declared import Answer, Question, param

DECODE = {"model": "llama3.1-8b", "gpu": "h100-sxm"}


class Sum(Question):
    """Add numbers."""

    numbers: tuple[int, ...] = param("--numbers", help="Numbers.", read=readers.counts, default="1,2")
    twice: bool = param("--twice/--once", help="Whether each counts twice.", read=readers.flag, default=False)

    def answer(self) -> Answer:
        return Answer(sum(self.numbers) * (1 + self.twice))


@pytest.mark.parametrize("given", ["1-8*2", [1, 2, 4, 8], (1, 2, 4, 8), range(1, 9)])
def test_texts_and_python_values_are_read_by_one_rule(given: Any) -> None:
    assert set(Sum(numbers=given).numbers) >= {1, 2, 4, 8}


def test_what_is_not_given_is_the_default_as_a_user_would_write_it() -> None:
    assert (Sum().numbers, Sum().answer().report, Sum(twice="true").answer().report) == ((1, 2), 3, 6)


@pytest.mark.parametrize(
    ("given", "words"),
    [({"numbers": "1,,2"}, "not"), ({"twice": "yes"}, "true or false"), ({"number": 1}, "no parameter")],
)
def test_a_wrong_value_names_its_parameter(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        Sum(**given)
    assert caught.value.parameter in {next(iter(given)), ""}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_explains_its_parameters_and_itself(name: str) -> None:
    kind = question(name)
    assert kind.params
    assert all(each.help.strip() for each in kind.params.values())
    assert (kind.__doc__ or "").strip()
    flags = [flag for each in kind.params.values() for flag in each.flags]
    assert len(flags) == len(set(flags))


@pytest.mark.parametrize("name", QUESTIONS)
def test_defaults_are_values_that_a_parameter_takes(name: str) -> None:
    for each in question(name).params.values():
        each.value(None)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("sweep", {"model": "a,,b"}),
        ("compare", {"model": "a,,b"}),
        ("roofline", {"gpu": "h100-sxm", "model": "a,,b"}),
        ("crosscheck", {"model": "a,,b"}),
        ("bench", {"weights": "a,,b"}),
        ("levers", {"model": "llama2-7b", "with": "a,,b"}),
        ("traffic", {"model": "llama2-7b", "with": "a,,b"}),
    ],
)
def test_an_empty_name_in_a_list_is_one_error_everywhere(name: str, given: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="has an empty name") as caught:
        kvcalc.ask(name, given)
    assert caught.value.parameter in given


def test_python_asks_with_the_options_of_the_command_line() -> None:
    deployment = kvcalc.deployment(DECODE["model"], gpu=DECODE["gpu"], kv_dtype="fp8")
    asked = kvcalc.ask("decode", {**DECODE, "kv-dtype": "fp8", "batch": [1, 8], "context": "4k"})
    assert asked.rows == kvcalc.decode(deployment, batches=[1, 8], contexts=[4000]).rows


def test_an_unknown_question_is_named() -> None:
    with pytest.raises(UnknownNameError, match="no question 'decoding'"):
        kvcalc.ask("decoding", {})


@pytest.mark.parametrize(
    ("given", "parameter"),
    [
        ({"batch": "0"}, "batch"),
        ({"model": "no-such-model"}, "model"),
        ({"gpu": "no-such-gpu"}, "gpu"),
        ({"weights": "bf17"}, "weights"),
        ({"kv_dtype": "bf17"}, "kv-dtype"),
        ({"tensor_parallel": 3}, "tensor-parallel"),
        ({"expert_parallel": 3}, "expert-parallel"),
        ({"gpus": 0}, "gpus"),
        ({"max_model_len": "x"}, "max-model-len"),
        ({"engine": "no-such-engine"}, "engine"),
        ({"ctx_size": 5, "engine": "vllm"}, "ctx-size"),
    ],
)
def test_errors_carry_the_parameter_that_they_are_about(given: dict[str, Any], parameter: str) -> None:
    with pytest.raises(KvcalcError) as caught:
        kvcalc.ask("decode", DECODE | given)
    assert caught.value.parameter == parameter
