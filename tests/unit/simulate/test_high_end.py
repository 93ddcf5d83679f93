"""Steps at the high end of an interval: each kind by its own."""

from kvcalc.simulate.planner.runs import Slowed


class Fixed:
    caps = periods = ()

    def line(self, *_):
        return 1000, 10, 3, "memory"


def test_steps_that_only_decode_are_not_slowed_by_the_ratio_of_prompts():
    slowed = Slowed(Fixed(), decode=1.1, prefill=1.7)
    assert slowed.line(4, 4, (), (), ()) == (1100, 11, 3, "memory")
    assert slowed.line(99, 4, (), (), ((95, 0),)) == (1700, 17, 3, "memory")
