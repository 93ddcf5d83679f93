"""What a round of speculation takes in an engine besides its passes, by version and by way to draft."""

import pytest

from kvcalc.engines.rounds import SEQUENCE_S, SGLANG_ROUND_S, VLLM_ROUND_S, round_terms


@pytest.mark.parametrize(
    ("engine", "version", "method", "round_s"),
    [
        ("sglang", "0.4.4", "eagle", SGLANG_ROUND_S),
        ("sglang", "0.5.10.post1", "dflash", SGLANG_ROUND_S),
        ("sglang", "0.5.11", "eagle", 0.0),
        ("sglang", None, "mtp", 0.0),
        ("sglang", None, "ngram", SGLANG_ROUND_S),
        ("vllm", "0.13.0", "eagle", VLLM_ROUND_S),
        ("vllm", "0.14.0", "eagle", 0.0),
        ("vllm", None, "dspark", 0.0),
        ("vllm", None, "medusa", VLLM_ROUND_S),
    ],
)
def test_the_hosts_work_is_hidden_where_rounds_are_scheduled_ahead(engine, version, method, round_s):
    terms = round_terms(engine, method, version=version)
    assert (terms.round_s, terms.sequence_s) == (round_s, SEQUENCE_S if round_s else 0.0)
    assert terms.is_measured


def test_an_engine_without_measured_rounds_says_so():
    terms = round_terms("llama.cpp", "mtp")
    assert (terms.is_measured, terms.round_s) == (False, 0.0)


def test_the_interval_of_several_sequences_is_their_own():
    terms = round_terms("vllm", "eagle")
    assert terms.spread(1) == terms.alone != terms.batched == terms.spread(2)
