"""Print what rounds of speculation take in each engine, and how far published speed-ups are off: ``python tests/tools/fit_rounds.py``.

The terms go to `kvcalc.engines.rounds` by hand, where `tests/unit/evidence/test_published_rounds.py` holds them to this.
"""

from __future__ import annotations

import sys
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parents[2]))

from kvcalc.evidence.rounds import Round, fitted_sglang, fitted_vllm, interval, rounds


def sign(speedup: float) -> bool:
    """Whether it pays."""
    return speedup > 1


def main() -> None:
    """Print terms, errors by group, intervals, and how many a group left out has inside the interval of the others."""
    print("SGLang: round_s, sequence_s =", fitted_sglang(), " vLLM: round_s =", fitted_vllm())
    judged = [each for each in rounds() if not each.fitted]
    for each in rounds():
        setting = each.setting
        told = f"{each.group:18s} {setting['method']:7s} batch {each.batch:3d} gamma {setting['gamma']:2d}"
        off = f"{each.estimate / each.measured - 1:+7.1%} (ideal {each.ideal / each.measured - 1:+7.1%})"
        print(f"{told}  measured {each.measured:5.2f}  estimate {each.estimate:5.2f} {off}  {each.calibration}")
    for name, some in (("alone", [r for r in judged if r.batch == 1]), ("batched", [r for r in judged if r.batch > 1])):
        found = interval(some)
        errors = [abs(each.estimate / each.measured - 1) for each in some]
        ideal = [abs(each.ideal / each.measured - 1) for each in some]
        right = sum(sign(each.estimate) == sign(each.measured) for each in some)
        before = sum(sign(each.ideal) == sign(each.measured) for each in some)
        print(f"{name}: {found}; inside with a group left out {left_out(some):.0%}")
        print(
            f"  median |error| {median(errors):.1%} (ideal {median(ideal):.1%}), signs {right} (ideal {before}) of {len(some)}"
        )


def left_out(some: list[Round]) -> float:
    """Return the share inside the interval of the other groups."""
    inside = 0
    for each in some:
        others = interval([other for other in some if other.group != each.group])
        inside += others.low <= each.measured / each.estimate <= others.high
    return inside / len(some)


if __name__ == "__main__":
    main()
