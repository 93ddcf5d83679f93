"""The same requests served twice: with the longest length set aside for each, and with paged blocks.

A step makes one token for every running request; prompts are computed at once when a request is let in. Requests come
all at the beginning and are served in order, so that the memory is the limit and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Protocol

from kvcalc.core.errors import InputError
from kvcalc.core.ranges import check_between
from kvcalc.core.reports.common import Report
from kvcalc.core.units import ceil_div, number_text
from kvcalc.demo.sharing import SharingEvent, sharing_events
from kvcalc.render.charts import Axis, chart, line_layer
from kvcalc.render.layout import Text
from kvcalc.render.tables import grid, heading
from kvcalc.render.terminal import line_chart
from kvcalc.simulate.blocks import BlockPool, BlockTable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvcalc.render.charts import Spec
    from kvcalc.render.layout import Part

__all__ = ["CONVERSATIONS", "PagingReport", "PagingScheme", "PagingStep", "demo_paging"]

_MAX_MEMORY = 10**7
_MAX_REQUESTS = 2000
_MAX_SHOWN = 100
# Prompt and generated tokens of every 242nd conversation of a trace.
# Source: Azure Public Dataset, AzureLLMInferenceTrace_conv of November 2023 (Patel et al. 2024, Splitwise, arXiv
# 2311.18677), github.com/Azure/AzurePublicDataset, CC-BY 4.0.
CONVERSATIONS = (
    (374, 44), (982, 429), (1314, 159), (4073, 29), (380, 112), (4075, 136), (1054, 419), (1155, 75), (1059, 622),
    (404, 118), (1040, 396), (650, 54), (1052, 409), (1001, 421), (431, 101), (1113, 422), (1093, 389), (2888, 127),
    (1029, 406), (1152, 482), (181, 133), (181, 122), (417, 90), (428, 74), (1340, 519), (181, 97), (1101, 638),
    (1203, 415), (4081, 48), (39, 132), (1109, 435), (389, 89), (120, 12), (2396, 81), (378, 68), (4082, 167),
    (25, 132), (4108, 152), (4087, 52), (4085, 43), (385, 32), (404, 103), (1036, 565), (989, 396), (1086, 85),
    (1389, 82), (398, 104), (399, 86), (4085, 54), (1220, 66), (1096, 414), (1012, 414), (404, 100), (211, 53),
    (1024, 474), (1122, 373), (396, 104), (1070, 397), (1137, 428), (1059, 487), (1313, 177), (819, 72), (1029, 373),
    (1315, 112), (1238, 443), (1137, 396), (909, 403), (200, 217), (3747, 76), (1065, 409), (1031, 388), (1011, 414),
    (1118, 418), (399, 93), (7, 146), (1013, 436), (1092, 443), (1171, 388), (1061, 363), (1045, 415),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingScheme:
    """The same requests served by one way to hand out memory.

    Shares are of the cache's memory, means over the steps at which a request was waiting, so that the memory was the
    limit.

    Args:
        name: ``reserved`` or ``paged``.
        decode_steps: steps until all requests were done.
        mean_running_requests: requests at once.
        most_running_requests: the most at once.
        useful_share: memory that holds tokens.
        inside_share: memory set aside for a request that holds no token of it yet, or never will.
        between_share: memory that no request has while one waits.
        useful_share_of_reserved: tokens held over memory set aside.
        mean_wasted_tokens: memory set aside and not used, for a request that holds some.
        preempted_requests: requests thrown out to be computed again, because no block was left.
    """

    name: str
    decode_steps: int
    mean_running_requests: float
    most_running_requests: int
    useful_share: float
    inside_share: float
    between_share: float
    useful_share_of_reserved: float
    mean_wasted_tokens: float
    preempted_requests: int

    def cells(self) -> list[str]:
        """Return the row of a table."""
        return [
            "the longest length" if self.name == "reserved" else "in blocks",
            f"{self.mean_running_requests:.1f}",
            number_text(self.most_running_requests),
            f"{self.useful_share:.1%}",
            f"{self.inside_share:.1%}",
            f"{self.between_share:.1%}",
            number_text(round(self.mean_wasted_tokens, 1)),
            number_text(self.decode_steps),
            number_text(self.preempted_requests),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PagingStep:
    """The memory at one step of serving.

    Args:
        scheme: ``reserved`` or ``paged``.
        place: decode steps done.
        running_requests: requests that hold memory.
        waiting_requests: requests that do not yet.
        used_tokens: tokens held.
        reserved_tokens: memory set aside, in tokens.
    """

    scheme: str
    place: int
    running_requests: int
    waiting_requests: int
    used_tokens: int
    reserved_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PagingReport(Report):
    """The same requests with their longest length set aside for each, and with paged blocks.

    Args:
        memory_tokens: tokens that the memory holds.
        block_tokens: tokens of a block.
        longest_tokens: length set aside for a request where nothing is paged.
        requests: requests served.
        refused_requests: requests longer than that, which neither way serves.
        reserved: served with the longest length set aside.
        paged: served in blocks.
        more_requests: requests at once with blocks over those without.
        sharing: a prefix that two requests share, and copies of a block that samples of one prompt write to.
        steps: the memory over time.
    """

    listed: ClassVar[str] = "steps"
    schema: str = "kvcalc.demo_paging/1"
    memory_tokens: int
    block_tokens: int
    longest_tokens: int
    requests: int
    refused_requests: int
    reserved: PagingScheme
    paged: PagingScheme
    more_requests: float
    sharing: tuple[SharingEvent, ...]
    steps: tuple[PagingStep, ...] = ()

    def parts(self) -> list[Part]:
        """Return both ways side by side, and what happens to shared blocks."""
        title = (
            f"Paging: {self.requests} requests of real lengths, memory for {number_text(self.memory_tokens)} tokens,"
            f" blocks of {self.block_tokens}, longest length {number_text(self.longest_tokens)}"
        )
        columns = ["memory handed out", "requests at once", "most", "useful", "wasted inside", "between", "each",
                   "steps", "thrown out"]  # fmt: skip
        lines = [
            f"{self.more_requests:.1f} times as many requests at once. Shares are of the memory, while requests wait.",
            f"each: tokens set aside and not used for each request; with blocks less than one of {self.block_tokens}.",
        ]
        if self.refused_requests:
            longest = number_text(self.longest_tokens)
            lines.append(f"{self.refused_requests} requests are longer than {longest} tokens: refused.")
        return [
            heading(title),
            grid(columns, [scheme.cells() for scheme in (self.reserved, self.paged)]),
            *(Text(line) for line in lines),
            Text(),
            heading("Sharing, and copy on write"),
            grid(["what happens", "blocks", "block tables"], [event.cells() for event in self.sharing], left=3),
        ]

    def step_lines(self) -> list[list[str]]:
        """Return the memory at each step shown, as a bar: used, set aside, free."""
        width = 50
        lines = []
        for step in self.steps:
            used = round(width * step.used_tokens / self.memory_tokens)
            aside = round(width * step.reserved_tokens / self.memory_tokens) - used
            bar = "#" * used + "-" * aside + "." * (width - used - aside)
            numbers = f"{step.running_requests} running, {step.waiting_requests} waiting"
            kept = f"{number_text(step.used_tokens)} of {number_text(step.reserved_tokens)} tokens set aside are used"
            lines.append([f"{step.scheme}, step {step.place}: {numbers}; {kept}", f"  [{bar}]"])
        return lines

    def picture(self, width: int, plain: bool) -> str:  # noqa: FBT001  as `Drawing` calls it
        """Return requests at once over steps."""
        names = {"the longest length set aside": "reserved", "in blocks": "paged"}
        lines = {
            name: [(step.place, step.running_requests) for step in self.steps if step.scheme == scheme]
            for name, scheme in names.items()
        }
        return line_chart(lines, x="steps", y="requests", width=width, plain=plain)

    def spec(self) -> Spec:
        """Return memory set aside and memory used at each step, for both ways."""
        rows = [
            {"step": step.place, "tokens": tokens, "memory": f"{step.scheme}: {use}", "running": step.running_requests}
            for step in self.steps
            for use, tokens in (("set aside", step.reserved_tokens), ("used", step.used_tokens))
        ]
        lines = line_layer(
            rows,
            x=Axis(field="step", title="decode steps", format=",~r", whole=True),
            y=Axis(field="tokens", title="tokens of memory", format=",~r"),
            series="memory",
            title="memory",
            points=False,
        )
        title = "The same requests with their longest length set aside, and in blocks"
        subtitle = [
            f"{self.requests} requests, memory for {self.memory_tokens:,} tokens, longest {self.longest_tokens:,}",
            f"blocks of {self.block_tokens}: {self.more_requests:.1f} times as many requests at once",
            "source: kvcalc, lengths from the Azure LLM inference trace of 2023 (CC-BY)",
        ]
        return chart([lines], title=title, subtitle=subtitle)


@dataclass(slots=True, eq=False)
class _Running:
    """A request: tokens it has, and tokens it will have."""

    tokens: int
    final_tokens: int
    table: BlockTable


class _Memory(Protocol):
    """A way to hand out memory."""

    def admit(self, request: _Running) -> bool: ...
    def grow(self, request: _Running) -> bool: ...
    def release(self, request: _Running) -> None: ...
    def reserved(self, running: Sequence[_Running]) -> int: ...


class _Contiguous:
    """Each request gets the longest length in one piece."""

    def __init__(self, memory_tokens: int, longest: int) -> None:
        self.regions, self.longest, self.taken = memory_tokens // longest, longest, 0

    def admit(self, _: _Running) -> bool:
        if self.taken == self.regions:
            return False
        self.taken += 1
        return True

    def grow(self, _: _Running) -> bool:
        return True

    def release(self, _: _Running) -> None:
        self.taken -= 1

    def reserved(self, running: Sequence[_Running]) -> int:
        return len(running) * self.longest


class _Paged:
    """Each request gets a block when its last one is full."""

    def __init__(self, memory_tokens: int, block_tokens: int) -> None:
        self.pool = BlockPool(num_blocks=memory_tokens // block_tokens + 1, block_size=block_tokens)

    def admit(self, request: _Running) -> bool:
        if not self.pool.can_allocate((), tokens=request.tokens + 1):
            return False
        request.table = self.pool.allocate((), tokens=request.tokens)
        return True

    def grow(self, request: _Running) -> bool:
        if not self.pool.can_append(request.table, tokens=request.tokens):
            return False
        self.pool.append(request.table, tokens=request.tokens)
        return True

    def release(self, request: _Running) -> None:
        self.pool.deallocate(request.table)

    def reserved(self, _: Sequence[_Running]) -> int:
        return (self.pool.usable - self.pool.free) * self.pool.block_size


def _serve(name: str, memory: _Memory, requests: Sequence[tuple[int, int]]) -> tuple[list[PagingStep], int]:
    """Return the memory after each step, and how many requests were thrown out on the way."""
    waiting = [_Running(prompt, prompt + output, BlockTable()) for prompt, output in requests]
    running: list[_Running] = []
    steps: list[PagingStep] = []
    preempted = 0
    while waiting or running:
        while waiting and memory.admit(waiting[0]):
            running.append(waiting.pop(0))
        steps.append(
            PagingStep(
                scheme=name,
                place=len(steps),
                running_requests=len(running),
                waiting_requests=len(waiting),
                used_tokens=sum(request.tokens for request in running),
                reserved_tokens=memory.reserved(running),
            )
        )
        for request in list(running):
            if request not in running:
                continue
            request.tokens += 1
            while not memory.grow(request):
                # the latest to come gives its blocks back and is computed again, with what it has made so far
                last = running.pop()
                last.tokens -= last is request
                memory.release(last)
                waiting.insert(0, last)
                preempted += 1
                if last is request:
                    break
            if request in running and request.tokens >= request.final_tokens:
                memory.release(request)
                running.remove(request)
    return steps, preempted


def _scheme(name: str, steps: Sequence[PagingStep], preempted: int, memory_tokens: int) -> PagingScheme:
    pressed = [step for step in steps if step.waiting_requests] or list(steps)
    running = sum(step.running_requests for step in pressed)
    used = sum(step.used_tokens for step in pressed)
    reserved = sum(step.reserved_tokens for step in pressed)
    whole = memory_tokens * len(pressed)
    return PagingScheme(
        name=name,
        decode_steps=len(steps),
        mean_running_requests=running / len(pressed),
        most_running_requests=max(step.running_requests for step in steps),
        useful_share=used / whole,
        inside_share=(reserved - used) / whole,
        between_share=1 - reserved / whole,
        useful_share_of_reserved=used / reserved,
        mean_wasted_tokens=(reserved - used) / running,
        preempted_requests=preempted,
    )


def demo_paging(
    *,
    lengths: Sequence[tuple[int, int]] | None = None,
    memory_tokens: int = 32_768,
    block_tokens: int = 16,
    longest_tokens: int = 4096,
) -> PagingReport:
    """Serve requests with their longest length set aside for each, and in blocks; share blocks and copy on write.

    Args:
        lengths: prompt and output tokens of each request; 80 conversations of a public trace where left out.
        memory_tokens: tokens that the memory holds.
        block_tokens: tokens of a block.
        longest_tokens: the longest length served, which the first way sets aside for each request.

    Raises:
        InputError: no requests, a memory that holds not even one, or a block longer than the longest length.
    """
    lengths = CONVERSATIONS if lengths is None else lengths
    check_between("memory-tokens", memory_tokens, 1, _MAX_MEMORY)
    check_between("max-model-len", longest_tokens, 1, memory_tokens)
    check_between("block-size", block_tokens, 1, longest_tokens)
    if ceil_div(longest_tokens, block_tokens) > memory_tokens // block_tokens:
        raise InputError(
            f"blocks of {block_tokens:,} tokens, requests of up to {longest_tokens:,}, memory for {memory_tokens:,}",
            hint="the memory must hold one request in whole blocks",
        )
    if any(prompt < 1 or output < 1 for prompt, output in lengths):
        raise InputError("a request has at least one prompt token and makes at least one")
    served = [(prompt, output) for prompt, output in lengths if prompt + output <= longest_tokens]
    if len(served) > _MAX_REQUESTS:
        raise InputError(f"{len(served):,} requests are more than {_MAX_REQUESTS:,}")
    if not served:
        shortest = f"the shortest has {min(map(sum, lengths)):,}" if lengths else "there is none"
        raise InputError(f"no request has {longest_tokens:,} tokens or fewer: {shortest}")
    schemes: list[PagingScheme] = []
    shown: list[PagingStep] = []
    for name, memory in (("reserved", _Contiguous(memory_tokens, longest_tokens)),
                         ("paged", _Paged(memory_tokens, block_tokens))):  # fmt: skip
        steps, preempted = _serve(name, memory, served)
        schemes.append(_scheme(name, steps, preempted, memory_tokens))
        shown += steps[:: ceil_div(len(steps), _MAX_SHOWN)]
    reserved, paged = schemes
    return PagingReport(
        memory_tokens=memory_tokens,
        block_tokens=block_tokens,
        longest_tokens=longest_tokens,
        requests=len(served),
        refused_requests=len(lengths) - len(served),
        reserved=reserved,
        paged=paged,
        more_requests=paged.mean_running_requests / reserved.mean_running_requests,
        sharing=sharing_events(block_tokens=block_tokens),
        steps=tuple(shown),
    )
