"""The answers of a server whose simulations have no time limit: they end only when somebody ends them."""

from kvcalc.explore import answers, questions

questions._MAX_SIMULATED_S = float("inf")  # noqa: SLF001


def reply_to(asked, tell=None):
    """Reply as kvcalc does; processes that start with this function have the module's change."""
    return answers.reply_to(asked, tell)
