"""The words of the lessons' charts in Japanese: every fixed one has its own."""

import json
import re
from pathlib import Path

import pytest

from kvcalc.explore.here import answered

VIEWS = Path(__file__).parents[2] / "kvcalc" / "explore" / "static" / "views"
LESSONS = ("kv-cache?prompt=3&output-tokens=8", "speculate?prompt=3&output-tokens=8&gamma=4", "paging?", "batching?places=4&requests=8",
           "drift?trainings=1&free-steps=20")  # fmt: skip
HAS_KANA = re.compile("[ぁ-んァ-ヶ一-龠]")


def words_of(block):
    text = (VIEWS / "japanese.js").read_text(encoding="utf-8")
    inside = re.search(rf"export const {block} = {{(.*?)\n}};", text, re.DOTALL)[1]
    pairs = re.findall(r'(?:"([^"]+)"|(\w+)): "([^"]+)"', inside)
    return {quoted or plain: word for quoted, plain, word in pairs}


def fixed_words(spec):
    """Yield titles of a chart and its axes, and the names of its lines; sentences with numbers are the report's."""
    if isinstance(spec, list):
        for part in spec:
            yield from fixed_words(part)
    if not isinstance(spec, dict):
        return
    for name, value in spec.items():
        if name in {"title", "text"} and isinstance(value, str):
            yield value
        elif name == "domain" and isinstance(value, list):
            yield from (each for each in value if isinstance(each, str))
        else:
            yield from fixed_words(value)


@pytest.mark.parametrize("lesson", LESSONS)
def test_every_fixed_word_of_a_chart_has_a_japanese_one(lesson):
    name, _, query = lesson.partition("?")
    status, text = answered(f"demo/{name}", query)
    assert status == 200
    found = set(fixed_words(json.loads(text)["charts"]["main"]))
    assert len(found) >= 4
    assert found - set(words_of("CHARTS")) == set()


def test_words_are_japanese_and_controls_have_theirs():
    fields = re.search(r"export const fields = (\[.*?\]);", (VIEWS / "learn.js").read_text(), re.DOTALL)[1]
    labels = words_of("CONTROLS")
    assert set(json.loads(fields)) <= set(labels)
    assert all(HAS_KANA.search(word) for word in (words_of("CHARTS") | labels | words_of("COMMANDS")).values())
