"""Replicas that put off what nobody sees come to the decisions of replicas that are stepped in step, in the same order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.simulate.cluster import ROUTINGS, Cluster, Pending, serve
from kvcalc.simulate.disaggregated import Disaggregated, Transfer
from kvcalc.simulate.fast.forward import FastForwardReplica
from kvcalc.simulate.observers import CompositeObserver, Observer
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.serving import Replica, ServingSetup
from kvcalc.simulate.workload import ClosedLoop, Conversations, Lengths, Talk

from .test_jumping import LAYOUTS, TIMERS, Kept, requests

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvcalc.core.requests import Request
    from kvcalc.simulate.workload import FollowUps

# Tokens of steps that are small beside the lengths, so that prompts take several of them.
_BUDGETS = [20, 64, 512, 2048]


def setup(layout: str, *, timer: str, prefix_caching: bool, **limits: Any) -> ServingSetup:
    num_blocks = limits.pop("num_blocks")
    groups = LAYOUTS[layout]
    made = Limits(max_model_len=900, prefix_caching=prefix_caching and len(groups) == 1, **limits)
    return ServingSetup(limits=made, num_blocks=num_blocks, groups=groups, timer=TIMERS[timer], swap_s_per_block=1e-4)


def clustered(
    kind: type[Replica], made: ServingSetup, source: Iterable[Request] | FollowUps, *, number: int, routing: Any
) -> tuple[Kept, list[list[str]]]:
    """What all of them told in order, and the requests that each answered."""
    kept, pending = Kept(), Pending(source)
    own = [Kept() for _ in range(number)]
    replicas = [kind(made, CompositeObserver([kept, each, pending])) for each in own]
    serve(Cluster(replicas, routing=routing), pending)
    return kept, [[served.request.name for served in each.served] for each in own]


def apart(
    kind: type[Replica], made: ServingSetup, source: Iterable[Request] | FollowUps, *, number: int, routing: Any
) -> tuple[Kept, list[list[str]]]:
    """The same of replicas that prefill and others that decode."""
    kept, pending = Kept(), Pending(source)
    own: list[Kept] = []

    def make(index: int, observer: Observer) -> Replica:
        assert index == len(own)
        own.append(Kept())
        return kind(made, CompositeObserver([observer, own[-1]]))

    server = Disaggregated(
        make,
        prefills=2,
        decodes=number,
        routing=routing,
        transfer=Transfer(bytes_for=lambda tokens: tokens, bytes_per_s=1e4, latency_s=0.003),
        observer=CompositeObserver([kept, pending]),
    )
    serve(server, pending)
    return kept, [[served.request.name for served in each.served] for each in own]


def source(kind: str, seed: int, *, rate: float, even: bool) -> list[Request] | FollowUps:
    """Requests at random times, or some that follow answers."""
    if kind == "talks":
        talk = Talk(
            turns=Lengths(kind="uniform", first=1, second=5),
            system_tokens=40,
            prompt=Lengths(kind="uniform", first=1, second=60),
            output=Lengths(kind="uniform", first=1, second=70),
            think_s=0.1,
        )
        return Conversations([number / rate for number in range(12)], talk=talk, requests=40, seed=seed)
    load = requests(seed, count=40, rate=rate, shared=kind == "shared", even=even)
    if kind != "closed":
        return load
    return ClosedLoop(load, users=7, think_s=0.05 if even else 0.0, seed=seed)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["own", "shared", "closed", "talks"]),
    way=st.sampled_from([clustered, clustered, apart]),
    number=st.integers(1, 4),
    routing=st.sampled_from(ROUTINGS),
    timer=st.sampled_from(sorted(TIMERS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    prefix_caching=st.booleans(),
    budget=st.sampled_from(_BUDGETS),
    num_blocks=st.integers(60, 300),
    max_num_seqs=st.sampled_from([3, 20]),
    policy=st.sampled_from(["fcfs", "priority"]),
    preemption=st.sampled_from(["recompute", "swap"]),
    threshold=st.sampled_from([0, 0, 30]),
    reserve=st.booleans(),
    rate=st.sampled_from([4.0, 40.0, 200.0]),
    even=st.booleans(),
)
def test_every_decision_of_several_replicas(
    *, seed: int, kind: str, way: Any, number: int, routing: Any, timer: str, layout: str, prefix_caching: bool,
    budget: int, num_blocks: int, max_num_seqs: int, policy: Any, preemption: Any, threshold: int, reserve: bool,
    rate: float, even: bool,
) -> None:  # fmt: skip
    made = setup(
        layout, timer=timer, prefix_caching=prefix_caching, num_blocks=num_blocks, max_num_batched_tokens=budget,
        max_num_seqs=min(max_num_seqs, budget), policy=policy, preemption=preemption,
        long_prefill_token_threshold=threshold, reserve_full_prompt=reserve,
    )  # fmt: skip
    stepped, jumped = (
        way(served, made, source(kind, seed, rate=rate, even=even), number=number, routing=routing)
        for served in (Replica, FastForwardReplica)
    )
    assert jumped[0].served == stepped[0].served
    assert jumped[0].events == stepped[0].events
    assert jumped[1] == stepped[1]
    assert sum(run.steps for run in jumped[0].steps) == len(stepped[0].steps)


def test_a_refused_request_is_no_load() -> None:
    """While a replica waits for room, whoever can never run is refused when it comes, and does not count as waiting."""
    made = setup(
        "full", timer="constant", prefix_caching=False, num_blocks=20, max_num_batched_tokens=64, max_num_seqs=2
    )
    fits = requests(1, count=1, rate=1.0, shared=False, even=False)[0]._replace(prompt_tokens=200, output_tokens=90)
    load = [
        fits._replace(name=f"r{index}", arrival_s=index * 0.01, prompt_tokens=899 if index % 3 == 2 else 200)
        for index in range(30)
    ]
    stepped, jumped = (
        clustered(kind, made, load, number=3, routing="least-loaded") for kind in (Replica, FastForwardReplica)
    )
    assert jumped[0].served == stepped[0].served
    assert jumped[0].events == stepped[0].events
    assert sum(event[0] == "refused" for event in jumped[0].events) == 10
    assert [len(names) for names in jumped[1]] == [7, 7, 6]
