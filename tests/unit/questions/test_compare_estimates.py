"""Deployments side by side: estimates of each side."""

from kvcalc.questions import ask


def test_sides_are_estimated_with_the_calibration_of_each():
    asked = {"specs": "llama3.1-8b", "gpu": "h100-sxm,l4", "context": "4096", "batch": "4", "engine": "vllm"}
    plain = ask("compare", asked)
    assert not any("estimate" in row.quantity for row in plain.rows)
    found = {row.quantity: row.values for row in ask("compare", {**asked, "estimate": "true"}).rows}
    for gpu, place in (("h100-sxm", 0), ("l4", 1)):
        one = {
            "model": "llama3.1-8b",
            "gpu": gpu,
            "context": "4096",
            "batch": "4",
            "engine": "vllm",
            "estimate": "true",
        }
        row = ask("decode", one).rows[0]
        assert found["decode.estimate_s"][place] == row.estimate_s > row.ideal_s
        assert found["decode.estimate_tokens_per_s"][place] == row.estimate_tokens_per_s


def test_a_side_without_an_accelerator_has_no_estimate():
    found = ask("compare", {"model": "llama3.1-8b,qwen3-8b", "estimate": "true"})
    assert not any("estimate" in row.quantity for row in found.rows)
