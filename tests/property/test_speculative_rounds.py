"""Laws of the cost of a round, over random models on random accelerators."""

from hypothesis import given
from hypothesis import strategies as st

from kvcalc.core.speculation import chain
from kvcalc.core.workload import Formats, Parallel
from kvcalc.plan.deployment import Deployment
from kvcalc.plan.speculative import Acceptance
from kvcalc.plan.speculative.methods import drafter
from kvcalc.plan.speculative.passes import Passes, Speculation

from .strategies import MIXER_KINDS, accelerators, models

# A chunk or a compressed entry may begin within a verification, and a window of one token is not read by it at all.
PLAIN = tuple(kind for kind in MIXER_KINDS if kind not in ("chunked", "compressed", "sliding"))
ROUNDING = 1 + 1e-9
# With no past a state is written but not read by a pass of several tokens, so contexts begin at 2.
small = st.integers(2, 300)


def asked(model, hardware, acceptance, gammas):
    target = Deployment(model=model, formats=Formats(), parallel=Parallel(), hardware=hardware)
    return Speculation(
        passes=Passes(target, drafter("ngram", target, None)),
        acceptance=Acceptance(rates=(acceptance,), constant=True),
        shape=lambda by_depth: chain(len(by_depth)),
        gammas=gammas,
    )


@given(models(*PLAIN), accelerators(), small, small, st.integers(1, 8))
def test_a_verification_takes_a_plain_step_at_least_and_a_longer_one_no_less(model, hardware, batch, context, gamma):
    passes = asked(model, hardware, 0.5, (1,)).passes
    for kind in ("latency_s", "serial_s"):
        short, long = (passes.ratios(batch, context, chain(tokens), kind).verify_s for tokens in (gamma, gamma + 1))
        plain = passes.ratios(batch, context, chain(1), kind).plain_s
        assert plain <= short * ROUNDING
        assert short <= long * ROUNDING


@given(models(*PLAIN), accelerators(), small, small, st.floats(0, 1), st.floats(0, 1))
def test_more_acceptance_is_never_slower_and_nothing_beats_its_tokens(model, hardware, batch, context, one, other):
    low, high = sorted((one, other))
    worse, better = (asked(model, hardware, rate, (1, 2, 3)).best(batch, context) for rate in (low, high))
    assert worse.speedup <= better.speedup * ROUNDING
    assert better.speedup <= better.expected_tokens * ROUNDING
