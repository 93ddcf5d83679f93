"""Several replicas, and prefill and decode apart: every request once, every token accounted, every block given back."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.core.requests import Request, Segment
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.cluster import ROUTINGS, Cluster, Pending, serve
from kvcalc.simulate.disaggregated import Disaggregated, Transfer
from kvcalc.simulate.fast.forward import FastForwardReplica
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.serving import Replica, ServingSetup
from kvcalc.simulate.timer import ConstantTimer
from kvcalc.simulate.workload import ClosedLoop


def _setup(num_blocks=40, *, caching=False, sequences=8, budget=64, max_waiting=10**6):
    limits = Limits(
        max_num_batched_tokens=budget,
        max_num_seqs=sequences,
        max_model_len=512,
        prefix_caching=caching,
        max_waiting=max_waiting,
    )
    return ServingSetup(
        limits=limits, num_blocks=num_blocks, groups=(BlockGroup(block_size=16),), timer=ConstantTimer(step_s=0.25)
    )


class Seen(Observer):
    """Keeps everything it is told."""

    def __init__(self):
        self.served, self.refusals, self.steps, self.gaps = [], [], [], []

    def runs(self, runs):
        self.steps += runs

    def finished(self, served):
        self.served.append(served)

    def refused(self, request, at_s, reason):
        del at_s, reason
        self.refusals.append(request.name)

    def gap(self, request, seconds):
        del request
        self.gaps.append(seconds)


def _requests(lengths):
    return [
        Request(name=str(number), arrival_s=arrival_s, prompt_tokens=prompt, output_tokens=output)
        for number, (arrival_s, prompt, output) in enumerate(lengths)
    ]


class Both(Observer):
    """Passes on what it is told."""

    def __init__(self, *observers):
        for name in ("runs", "gap", "finished", "refused"):
            setattr(self, name, lambda *told, name=name: [getattr(each, name)(*told) for each in observers])


def _cluster(requests, number=2, routing="round-robin", kind=FastForwardReplica, **options):
    seen, own = Seen(), [Seen() for _ in range(number)]
    cluster = Cluster([kind(_setup(**options), Both(seen, each)) for each in own], routing=routing)
    serve(cluster, Pending(requests))
    return cluster, seen, [len(each.served) for each in own]


def _apart(requests, prefills=1, decodes=2, transfer=None, kind=FastForwardReplica, **options):
    seen, replicas = Seen(), []

    def make(number, observer):
        assert number == len(replicas)
        replicas.append(kind(_setup(**options), observer))
        return replicas[-1]

    transfer = transfer or Transfer(bytes_for=lambda tokens: tokens, bytes_per_s=1e3, latency_s=0.5)
    server = Disaggregated(
        make, prefills=prefills, decodes=decodes, routing="least-loaded", transfer=transfer, observer=seen
    )
    serve(server, Pending(requests))
    return replicas, seen


LENGTHS = st.lists(
    st.tuples(st.integers(0, 40).map(lambda quarter: quarter / 8), st.integers(1, 700), st.integers(1, 60)), max_size=25
).map(sorted)


def _check(requests, seen, replicas):
    assert sorted([served.request.name for served in seen.served] + seen.refusals) == sorted(
        one.name for one in requests
    )
    for served in seen.served:
        request = served.request
        assert served.output_tokens == min(request.output_tokens, 512 - request.prompt_tokens)
        assert request.arrival_s <= served.admitted_s < served.first_token_s <= served.finish_s
    generated = sum(run.steps * run.output_tokens for run in seen.steps)
    assert generated == sum(served.output_tokens for served in seen.served)
    assert all(replica.cache.free == replica.cache.usable for replica in replicas)
    assert all(replica.outstanding == 0 for replica in replicas)


@given(lengths=LENGTHS, routing=st.sampled_from(ROUTINGS), number=st.integers(1, 3), caching=st.booleans())
def test_a_cluster_answers_or_refuses_each_request_once(lengths, routing, number, caching):
    requests = _requests(lengths)
    kind = Replica if caching else FastForwardReplica
    cluster, seen, _ = _cluster(requests, number, routing, kind, caching=caching)
    if requests:
        _check(requests, seen, cluster.replicas)


@given(lengths=LENGTHS, prefills=st.integers(1, 2), decodes=st.integers(1, 2))
def test_prefill_and_decode_apart_answer_each_request_once(lengths, prefills, decodes):
    requests = _requests(lengths)
    replicas, seen = _apart(requests, prefills, decodes)
    if requests:
        _check(requests, seen, replicas)


@given(lengths=LENGTHS, decodes=st.integers(1, 2), caching=st.booleans())
def test_prefill_and_decode_apart_jump_as_they_step(lengths, decodes, caching):
    requests = _requests(lengths)
    jumped, stepped = (
        _apart(requests, 1, decodes, kind=kind, caching=caching)[1] for kind in (FastForwardReplica, Replica)
    )
    assert jumped.served == stepped.served
    assert jumped.gaps == stepped.gaps


@given(lengths=LENGTHS)
def test_a_cluster_of_one_is_the_replica(lengths):
    requests = _requests(lengths)
    alone, cluster = Seen(), _cluster(requests, 1)[1]
    FastForwardReplica(_setup(), alone).serve(requests)
    assert cluster.served == alone.served


def test_a_crowd_at_one_replica_is_refused():
    requests = _requests([(5.0, 10, 3)] * 50)
    assert len(_cluster(requests, max_waiting=25)[1].served) == 50
    with pytest.raises(InputError, match="more than 24 requests wait at once"):
        _cluster(requests, max_waiting=24)


def test_a_crowd_at_the_link_is_refused():
    requests = _requests([(10.0 * number, 10, 3) for number in range(30)])
    server = Disaggregated(
        lambda _, observer: FastForwardReplica(_setup(max_waiting=20), observer),
        prefills=1,
        decodes=1,
        routing="round-robin",
        transfer=Transfer(bytes_for=lambda tokens: tokens, bytes_per_s=1e-3),
        observer=Seen(),
    )
    with pytest.raises(InputError, match="more than 20 requests wait at once"):
        serve(server, Pending(requests))


def test_round_robin_deals_in_turn():
    _, _, served = _cluster(_requests([(0.0, 10, 2)] * 6), 3)
    assert served == [2, 2, 2]


def test_least_loaded_avoids_the_busy_one():
    requests = _requests([(0.0, 10, 200), *[(1.0 + number, 10, 2) for number in range(5)]])
    _, _, served = _cluster(requests, 2, "least-loaded")
    assert served == [1, 5]


def _talk(number, turn, arrival_s):
    prompt = (Segment(number, 0, 64 + 32 * turn),)
    return Request(
        name=f"{number}.{turn}", arrival_s=arrival_s, prompt_tokens=64 + 32 * turn, output_tokens=4, prompt=prompt
    )


def test_prefix_aware_goes_where_the_conversation_was():
    turns = [_talk(number, turn, 10.0 * turn + number) for turn in range(3) for number in (1, 2, 3)]
    hits = {}
    for routing in ROUTINGS:
        _, seen, _ = _cluster(turns, 2, routing, Replica, caching=True)
        hits[routing] = sum(served.cached_tokens for served in seen.served)
    assert hits["prefix-aware"] == 3 * (64 + 96)
    assert hits["prefix-aware"] > hits["round-robin"]


def test_prefix_aware_does_not_fill_one_replica_alone():
    same = [
        Request(name=str(n), arrival_s=n / 100, prompt_tokens=65, output_tokens=100, prompt=(Segment(1, 0, 65),))
        for n in range(30)
    ]
    _, _, served = _cluster(same, 2, "prefix-aware", Replica, caching=True)
    assert min(served) >= 8


def test_a_transfer_delays_the_second_token_alone():
    (request,) = _requests([(0.0, 32, 3)])
    _, seen = _apart([request])
    (served,) = seen.served
    # a step of prefill, 32 bytes at 1,000 bytes/s and the latency, then two steps of decode
    assert served.first_token_s == 0.25
    assert served.finish_s == pytest.approx(0.25 + 0.032 + 0.5 + 2 * 0.25)
    assert seen.gaps == [pytest.approx(0.032 + 0.5 + 0.25)]


def test_a_link_sends_one_prompt_after_another():
    slow = Transfer(bytes_for=lambda tokens: tokens, bytes_per_s=16.0)
    _, seen = _apart(_requests([(0.0, 16, 2), (0.0, 16, 2)]), transfer=slow, budget=64)
    assert [served.finish_s for served in seen.served] == pytest.approx([0.25 + 1 + 0.25, 0.25 + 2 + 0.25])


def test_a_closed_loop_over_replicas_keeps_its_users_busy():
    bodies = _requests([(0.0, 10, 4)] * 40)
    seen = Seen()
    pending = Pending(ClosedLoop(bodies, users=4, think_s=0.0, seed=0))
    serve(Cluster([FastForwardReplica(_setup(), Both(seen, pending)) for _ in range(2)]), pending)
    assert len(seen.served) == 40
    # each user is answered every four steps of a quarter of a second, and asks at once
    assert max(served.finish_s for served in seen.served) == pytest.approx(10.0)
    assert all(run.running <= 4 for run in seen.steps)


def test_requests_out_of_order_are_refused():
    requests = _requests([(1.0, 10, 2), (0.5, 10, 2)])
    with pytest.raises(InputError, match=r"request 1 comes at 0\.5 s, before the one ahead of it"):
        _cluster(requests)
    with pytest.raises(InputError, match="before the one ahead"):
        _cluster(_requests([(math.nan, 10, 2)]))


def test_a_routing_that_is_not_known_is_hinted_at():
    with pytest.raises(InputError) as error:
        Cluster([], routing="least-loded")
    assert error.value.hint == "did you mean least-loaded?"


@pytest.mark.parametrize(("rate", "latency"), [(0.0, 0.0), (-1.0, 0.0), (1.0, -1.0), (float("nan"), 0.0)])
def test_a_transfer_at_no_rate_is_refused(rate, latency):
    with pytest.raises(InputError):
        Transfer(bytes_for=int, bytes_per_s=rate, latency_s=latency)


def test_two_requests_of_one_name_are_refused_where_they_are_told_apart_by_it():
    (request,) = _requests([(0.0, 10, 5)])
    with pytest.raises(InputError, match="two requests named 0"):
        _apart([request, request])


def test_prefill_and_decode_apart_end_where_the_longest_sequence_ends():
    _, seen = _apart(_requests([(0.0, 511, 9), (0.0, 510, 9)]))
    assert sorted(served.output_tokens for served in seen.served) == [1, 2]
    assert not seen.refusals


def test_what_only_the_decode_replica_cannot_hold_is_refused_once_and_whole():
    requests = _requests([(0.0, 100, 400), (0.0, 100, 4)])
    replicas, seen = _apart(requests, num_blocks=20)
    assert seen.refusals == ["0"]
    assert [served.request.name for served in seen.served] == ["1"]
    assert all(replica.cache.free == replica.cache.usable for replica in replicas)
