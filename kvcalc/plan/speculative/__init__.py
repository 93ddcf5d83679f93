"""Whether speculation pays: methods, passes, limits, memory, quoted rules and the report of all of them."""

from kvcalc.plan.speculative.acceptance import Acceptance, read_acceptance
from kvcalc.plan.speculative.methods import METHODS
from kvcalc.plan.speculative.options import SpeculationOptions
from kvcalc.plan.speculative.report import speculation_report, with_drafter

__all__ = ["METHODS", "Acceptance", "SpeculationOptions", "read_acceptance", "speculation_report", "with_drafter"]
