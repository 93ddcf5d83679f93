"""Limits in which theory knows the answer: M/D/1, M/M/1, Little's law.

A replica that runs one sequence at a time, with steps of a constant time, is a single server: a request of one prompt
token and n output tokens is served for n steps. Waits are means over runs of many requests from fixed seeds; the error of
a mean follows from the means of 25 batches in a row, and theory must lie within four such errors, which a true theory
fails once in 16,000 seeds.
"""

import math
import statistics
from itertools import islice

import pytest

from kvcalc.core.requests import Request
from kvcalc.simulate.cache import BlockGroup
from kvcalc.simulate.fast.forward import FastForwardReplica
from kvcalc.simulate.metrics import Metrics
from kvcalc.simulate.observers import Observer
from kvcalc.simulate.scheduler import Limits
from kvcalc.simulate.serving import ServingSetup
from kvcalc.simulate.timer import ConstantTimer
from kvcalc.simulate.workload import Arrivals, arrival_times, parse_lengths, retimed, synthetic

pytestmark = pytest.mark.slow

MANY = 25_000
BATCHES = 25
STEP_S = 0.01
ONE = parse_lengths("1", what="prompt")


class Waits(Observer):
    """Keeps how long each request waited, and how long it was served."""

    def __init__(self):
        self.waits, self.services, self.stays = [], [], []

    def finished(self, served):
        arrival_s = served.request.arrival_s
        self.waits.append(served.admitted_s - arrival_s)
        self.services.append(served.finish_s - served.admitted_s)
        self.stays.append(served.finish_s - arrival_s)


def _setup(sequences=1):
    limits = Limits(max_num_batched_tokens=10_000, max_num_seqs=sequences, max_model_len=1_000_000)
    groups = (BlockGroup(block_size=16),)
    return ServingSetup(limits=limits, num_blocks=100_000, groups=groups, timer=ConstantTimer(step_s=STEP_S))


def _served(output, load, requests=MANY, sequences=1):
    """Serve requests whose mean service time is ``output``'s mean in steps, at a share of what one server can do."""
    mean_s = output.first * STEP_S
    times = arrival_times(Arrivals(process="poisson", rate_per_s=load / mean_s), seed=1)
    bodies = islice(synthetic(prompt=ONE, output=output, seed=1), requests)
    waits = Waits()
    FastForwardReplica(_setup(sequences), waits).serve(retimed(bodies, times))
    return waits


def _error(values):
    size = len(values) // BATCHES
    means = [statistics.fmean(values[start : start + size]) for start in range(0, size * BATCHES, size)]
    return statistics.stdev(means) / math.sqrt(BATCHES)


@pytest.mark.parametrize("load", [0.3, 0.8])
def test_waits_of_equal_services_are_those_of_m_d_1(load):
    found = _served(parse_lengths("5", what="output"), load)
    service_s = 5 * STEP_S
    # Pollaczek and Khinchine: W = rho S / 2 (1 - rho)
    theory_s = load * service_s / (2 * (1 - load))
    # a request that comes in an idle moment begins at once: the server is work-conserving and nothing is rounded
    assert {round(seconds / STEP_S, 6) for seconds in found.services} == {5.0}
    assert abs(statistics.fmean(found.waits) - theory_s) < 4 * _error(found.waits)
    assert statistics.fmean(map(bool, (round(wait, 9) for wait in found.waits))) == pytest.approx(load, abs=0.02)


@pytest.mark.parametrize("load", [0.6])
def test_waits_of_exponential_services_are_those_of_m_m_1(load):
    found = _served(parse_lengths("exponential:400", what="output"), load)
    service_s = 400 * STEP_S
    # W = rho S / (1 - rho); rounding to whole steps of 1/400 of the mean changes it by less than 0.1 percent
    theory_s = load * service_s / (1 - load)
    assert abs(statistics.fmean(found.waits) - theory_s) < 4 * _error(found.waits)
    # and stays are exponential with mean S / (1 - rho): their median is ln 2 of it
    median = statistics.median(found.stays)
    assert median == pytest.approx(math.log(2) * service_s / (1 - load), rel=0.06)


def test_the_sum_of_stays_is_the_area_under_those_that_run():
    bodies = islice(
        synthetic(
            prompt=parse_lengths("uniform:1-500", what="p"), output=parse_lengths("uniform:1-90", what="o"), seed=3
        ),
        500,
    )
    times = arrival_times(Arrivals(process="gamma", rate_per_s=8.0, variation=3.0), seed=3)
    waits, metrics = Waits(), Metrics(usable_blocks=99_999, block_size=16)
    both = _Both(waits, metrics)
    FastForwardReplica(_setup(sequences=16), both).serve(retimed(bodies, times))
    found = metrics.summary(gpus=1, memory_bytes=1)
    # Little's law over a run that begins and ends empty holds for every single run: L T = sum of times in service
    assert found.mean_running_requests * found.makespan_s == pytest.approx(math.fsum(waits.services), rel=1e-9)
    assert found.requests_per_s * statistics.fmean(waits.services) == pytest.approx(found.mean_running_requests)
    assert found.preemptions == found.recomputed_tokens == 0
    assert metrics.generated_tokens == metrics.output_tokens


class _Both(Observer):
    def __init__(self, *observers):
        self._observers = observers

    def runs(self, runs):
        for each in self._observers:
            each.runs(runs)

    def finished(self, served):
        for each in self._observers:
            each.finished(served)


def test_a_request_alone_takes_the_steps_it_needs():
    waits = Waits()
    request = Request(name="a", arrival_s=2.5, prompt_tokens=25_000, output_tokens=7)
    FastForwardReplica(_setup(), waits).serve([request])
    # three steps of at most 10,000 prompt tokens, the last of which gives the first token, and six more
    assert waits.stays == [pytest.approx(9 * STEP_S)]
