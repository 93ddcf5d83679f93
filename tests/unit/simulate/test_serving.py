"""One replica: what it refuses, what it counts, and what speculation and swapping do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvcalc import api
from kvcalc.core.errors import InputError, UnsupportedError
from kvcalc.core.requests import Request
from kvcalc.engines.options import EngineOptions
from kvcalc.plan.speculative import read_acceptance
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.drafting import Drafting
from kvcalc.simulate.fast.forward import FastForwardReplica, replica
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.serving import Replica, ServingSetup
from kvcalc.simulate.setup import serving_setup
from kvcalc.simulate.timer import ConstantTimer, RooflineTimer

LIMITS = Limits(max_num_batched_tokens=64, max_num_seqs=8, max_model_len=200)
SETUP = ServingSetup(limits=LIMITS, num_blocks=11, groups=(BlockGroup(block_size=16),), timer=ConstantTimer(step_s=0.5))


class Kept(Observer):
    def __init__(self):
        self.served, self.refusals, self.tokens = [], [], 0

    def runs(self, runs):
        self.tokens += sum(run.steps * run.output_tokens for run in runs)

    def finished(self, served):
        self.served.append(served)

    def refused(self, request, at_s, reason):
        del at_s
        self.refusals.append((request.name, reason))


def asked(name="a", arrival_s=0.0, prompt=10, output=3):
    return Request(name=name, arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)


def served(setup, *requests, **how):
    kept = Kept()
    replica(setup, kept, **how).serve(requests)
    return kept


def test_a_request_alone_takes_a_step_for_each_chunk_and_token():
    (answer,) = served(SETUP, asked(arrival_s=1.0, prompt=100, output=3)).served
    assert (answer.admitted_s, answer.first_token_s, answer.finish_s) == (1.0, 2.0, 3.0)


def test_the_longest_length_cuts_an_answer():
    (answer,) = served(SETUP, asked(prompt=100, output=55)).served
    assert answer.output_tokens == 55
    (answer,) = served(replace(SETUP, limits=replace(LIMITS, max_model_len=120)), asked(prompt=100, output=55)).served
    assert answer.output_tokens == 20


@pytest.mark.parametrize(
    ("prompt", "output", "reason"), [(200, 1, "leaves no room"), (150, 12, "the cache does not hold its 161 tokens")]
)
@pytest.mark.parametrize("exact_steps", [True, False])
def test_what_can_never_run_is_refused_and_the_rest_is_served(prompt, output, reason, exact_steps):
    kept = served(SETUP, asked(), asked("b", prompt=prompt, output=output), asked("c"), exact_steps=exact_steps)
    assert [name for name, _ in kept.refusals] == ["b"]
    assert reason in kept.refusals[0][1]
    assert [answer.request.name for answer in kept.served] == ["a", "c"]


def test_a_request_that_just_fits_is_served():
    assert len(served(SETUP, asked(prompt=150, output=11)).served) == 1


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([asked(prompt=0)], "a prompt of 0"),
        ([asked(output=-1)], "an output of -1 tokens"),
        ([asked(arrival_s=2.0), asked("b", arrival_s=1.0)], "before the one ahead of it"),
        ([asked(arrival_s=-1.0)], "before the one ahead of it"),
        ([asked(arrival_s=float("nan"))], "before the one ahead of it"),
    ],
)
def test_requests_that_make_no_sense(requests, message):
    with pytest.raises(InputError, match=message):
        served(SETUP, *requests)


@pytest.mark.parametrize("exact_steps", [False, True])
def test_more_requests_waiting_than_memory_is_for_are_refused(exact_steps):
    """A burst is bounded by those that wait, whatever the number of requests in all."""
    setup = replace(SETUP, limits=replace(LIMITS, max_waiting=9))
    several = [asked(str(number), arrival_s=number // 9 * 100.0) for number in range(90)]
    assert len(served(setup, *several, exact_steps=exact_steps).served) == 90
    with pytest.raises(InputError, match="more than 9 requests wait at once"):
        served(setup, *several, asked("late", arrival_s=900.0), exact_steps=exact_steps)


def test_drafts_that_are_all_accepted_save_steps_and_change_no_count():
    limits = replace(LIMITS, speculative_tokens=3)
    times = []
    for acceptance in (0.0, 1.0):
        setup = replace(SETUP, limits=limits, drafting=Drafting(acceptance=read_acceptance(acceptance=acceptance)))
        kept = served(setup, asked(output=9))
        assert kept.tokens == kept.served[0].output_tokens == 9
        times.append(kept.served[0].finish_s)
    # the prompt, then 8 tokens one by one or four at a time
    assert times == [4.5, 1.5]


def test_the_drafter_takes_its_time():
    drafting = Drafting(acceptance=read_acceptance(acceptance=1.0), timer=ConstantTimer(step_s=0.25))
    setup = replace(SETUP, limits=replace(LIMITS, speculative_tokens=3), drafting=drafting)
    (answer,) = served(setup, asked(output=9)).served
    assert answer.finish_s == 0.5 + 2 * (0.5 + 3 * 0.25)


def test_swapped_blocks_cost_their_transfer_and_no_recomputation():
    load = [asked(f"r{index}", prompt=40, output=60) for index in range(3)]
    ends = {}
    for name, changed in (
        ("recompute", SETUP),
        ("swap", replace(SETUP, limits=replace(LIMITS, preemption="swap"))),
        ("slow swap", replace(SETUP, limits=replace(LIMITS, preemption="swap"), swap_s_per_block=1.0)),
    ):
        kept = served(changed, *load)
        assert sum(answer.preemptions for answer in kept.served) >= 1
        ends[name] = max(answer.finish_s for answer in kept.served)
    assert ends["swap"] <= ends["recompute"] < ends["slow swap"]


def test_what_a_setup_cannot_be():
    with pytest.raises(InputError, match="need an acceptance"):
        replace(SETUP, limits=replace(LIMITS, speculative_tokens=2))
    with pytest.raises(InputError, match="one group"):
        replace(SETUP, limits=replace(LIMITS, prefix_caching=True), groups=SETUP.groups * 2)
    with pytest.raises(InputError, match="policy 'lifo'"):
        replace(LIMITS, policy="lifo")
    with pytest.raises(InputError, match="a step must take some time"):
        ConstantTimer(step_s=0.0)


def test_a_deployment_becomes_the_replica_that_the_engine_would_be():
    deployment = api.deployment("llama3.1-8b", gpu="a100-80gb")
    made = serving_setup(deployment, timer=RooflineTimer(deployment), options=EngineOptions())
    told = api.fit(deployment, engine="vllm")
    assert (made.num_blocks, made.groups[0].block_size) == (told.num_blocks, told.block_size)
    assert made.limits.prefix_caching
    assert isinstance(replica(made, Kept()), FastForwardReplica)
    assert type(replica(made, Kept(), exact_steps=True)) is Replica


def test_models_with_several_groups_share_no_prefixes():
    deployment = api.deployment("gpt-oss-20b", gpu="a100-80gb")
    made = serving_setup(deployment, timer=RooflineTimer(deployment))
    assert [group.window for group in made.groups] == [128, None] or [group.window for group in made.groups] == [
        None,
        128,
    ]
    assert not made.limits.prefix_caching


def test_what_is_not_modelled():
    with pytest.raises(UnsupportedError, match="encoder"):
        RooflineTimer(api.deployment("whisper-base", gpu="a100-80gb"))
    with pytest.raises(InputError, match="one data-parallel copy"):
        RooflineTimer(api.deployment("llama3.1-8b", gpu="a100-80gb", data_parallel=2))
    deployment = api.deployment("llama3.1-8b", gpu="a100-80gb")
    with pytest.raises(InputError, match="link to the host"):
        serving_setup(deployment, timer=RooflineTimer(deployment), preemption="swap")
