"""A scheduler's three decisions as a class of one's own: who is next, whether it may run, and who loses its blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.simulate.scheduler import Scheduler
from kvcalc.simulate.sequences import S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvcalc.simulate.cache import Cache
    from kvcalc.simulate.scheduler import Limits
    from kvcalc.simulate.sequences import Queue, ServedSequence

__all__ = ["PolicyScheduler", "SchedulingPolicy"]


class SchedulingPolicy:
    """Decisions of a scheduler; each method may be overridden, and decides as vLLM's first come, first served does.

    All else stays the engine's: chunked prefill, limits of a step, blocks, and that nobody overtakes a request that
    waits for blocks. One object decides for each replica. Requests are read, never changed: ``prompt_tokens``,
    ``output_tokens`` (which a real engine does not know), ``known`` (prompt and what was generated), ``computed`` (in
    the cache), ``priority``, ``preemptions`` and ``order`` (place in the order of arrival).
    """

    def order(self, request: ServedSequence) -> Any:
        """Return the key of a request that waits, asked anew for each admission; the lowest is next."""
        return not request.preemptions, request.order

    def admit(self, request: ServedSequence, running: Sequence[ServedSequence]) -> bool:
        """Whether the next request may run beside those that do; where nothing runs it always may."""
        del request, running
        return True

    def evict(self, running: Sequence[ServedSequence]) -> ServedSequence:
        """Return the request that loses its blocks where they do not suffice."""
        return running[-1]


class _PolicyQueue(list[S]):
    """Requests that wait, the next by a policy's order."""

    def __init__(self, key: Callable[[ServedSequence], Any]) -> None:
        super().__init__()
        self._key = key

    @property
    def head(self) -> S:
        """The next in line."""
        return min(self, key=lambda sequence: _asked(self._key, sequence))

    def add(self, sequence: S) -> None:
        """Put in a new request."""
        self.append(sequence)

    put_back = add

    def remove_head(self) -> S:
        """Take out who is next."""
        head = self.head
        self.remove(head)
        return head

    def __iter__(self) -> Iterator[S]:
        return super().__iter__()


class PolicyScheduler(Scheduler[S]):
    """The scheduler with a policy's decisions in place of its own.

    Args:
        limits: of the engine.
        cache: its cache.
        policy: the decisions.
    """

    def __init__(self, limits: Limits, cache: Cache, policy: SchedulingPolicy) -> None:
        super().__init__(limits, cache)
        self._policy = policy
        self.waiting: Queue[S] = _PolicyQueue(policy.order)

    def fits(self, sequence: S, hit: Any, tokens: int, *, beside: int = 0) -> bool:
        """Whether the head of the queue may run, by the policy and the blocks."""
        allowed = not self.running or bool(_asked(self._policy.admit, sequence, tuple(self.running)))
        return allowed and super().fits(sequence, hit, tokens, beside=beside)

    def _victim(self) -> S:
        chosen = _asked(self._policy.evict, tuple(self.running))
        if not any(chosen is sequence for sequence in self.running):
            raise InputError(f"{_named(self._policy.evict)} returned a request that does not run: {chosen!r}",
                             hint="return one of the running requests", parameter="policy")  # fmt: skip
        victim: S = chosen
        return victim


def _asked(method: Callable[..., Any], *arguments: Any) -> Any:
    """Ask a policy.

    Raises:
        InputError: it fails.
    """
    try:
        return method(*arguments)
    except KvcalcError:
        raise
    except Exception as error:
        what = f"{_named(method)} failed: {type(error).__name__}: {error}"
        raise InputError(what, parameter="policy") from error


def _named(method: Callable[..., Any]) -> str:
    return getattr(method, "__qualname__", repr(method))
