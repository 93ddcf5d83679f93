"""Prompts, and the largest batch: predicted and tried."""

import pytest
import torch

from kvcalc.cost.cache import cache_bytes
from kvcalc.cost.parameters import weight_bytes
from kvcalc.measure.capacity import measured_capacity
from kvcalc.measure.decoder import Decoder
from kvcalc.measure.library import find_device
from kvcalc.measure.prompts import measured_prefill
from kvcalc.measure.scale import run_bytes
from kvcalc.measure.workspaces import taken_workspaces
from kvcalc.plan.deployment import deploy

from .models import MODELS
from .test_crosscheck import FAST
from .test_cuda import gpu_of  # noqa: F401  a fixture

DEVICE = find_device("cpu")


def deployed(model, weights="fp32"):
    return deploy(model, weights=weights, kv=weights, activations=weights)


@pytest.mark.parametrize("kernels", ["plain", "sdpa"])
def test_a_prefill_beside_its_bound(kernels):
    decoder = Decoder(MODELS["GQA"], weights="fp32", device=DEVICE, kernels=kernels)
    found = measured_prefill(deployed(MODELS["GQA"]), decoder, FAST, batch=2, prompt=40, rounds=2)
    assert (found.kernels, found.layers, len(found.samples_s)) == (kernels, 2, 2)
    assert found.ratio == pytest.approx(found.measured_s / found.bound_s)
    assert found.ratio > 1
    assert not found.in_graph


def test_a_prompt_is_replayed_on_a_gpu(gpu_of):  # noqa: F811
    gpu, device = gpu_of()
    decoder = Decoder(MODELS["GQA"], weights="bf16", device=device, kernels="sdpa")
    found = measured_prefill(deployed(MODELS["GQA"], "bf16"), decoder, FAST, batch=2, prompt=40, rounds=2)
    assert found.in_graph
    assert len(gpu.graphs) == 1


@pytest.mark.parametrize("model", [MODELS["GQA"], MODELS["MLA"]], ids=["GQA", "MLA"])
def test_flash_attention_takes_a_prompt_as_the_mask_does(model):
    tokens = torch.randint(0, 211, (2, 40), generator=torch.Generator().manual_seed(4))
    logits = []
    for kernels in ("plain", "sdpa"):
        decoder = Decoder(model, weights="fp32", device=DEVICE, kernels=kernels)
        logits.append(decoder.forward(tokens, decoder.new_cache(batch=2, capacity=50), logits=40))
    torch.testing.assert_close(logits[0], logits[1], atol=2e-4, rtol=2e-4)


def test_the_largest_batch_is_predicted_and_tried(gpu_of):  # noqa: F811
    _, device = gpu_of(free=160 * 2**20)
    taken_workspaces(device)
    free = device.free_bytes()
    deployment = deployed(MODELS["GQA"], "bf16")
    decoder = Decoder(MODELS["GQA"], weights="bf16", device=device)
    found = measured_capacity(deployment, decoder, context=64, free_bytes=free)
    assert found.fits
    assert found.beyond_fails
    model, formats = deployment.model, deployment.formats
    needs = [run_bytes(model, formats, batch=found.predicted_batch + more, context=64) for more in (0, 1)]
    assert needs[0] <= free < needs[1]
    held = cache_bytes(model, 64, formats)
    assert weight_bytes(model, formats) + found.beyond_batch * held.growing > free
    assert found.used_bytes >= found.reserved_bytes >= 66 * 2**20  # of which two streams' workspaces
    assert found.peak_bytes > found.predicted_batch * held.growing


def test_a_card_that_holds_more_than_it_should_is_told(gpu_of):  # noqa: F811
    _, device = gpu_of(free=2**30)
    decoder = Decoder(MODELS["GQA"], weights="bf16", device=device)
    found = measured_capacity(deployed(MODELS["GQA"], "bf16"), decoder, context=64, free_bytes=2**26 + 2**24)
    assert not found.beyond_fails
