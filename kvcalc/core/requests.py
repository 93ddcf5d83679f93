"""Requests to a server: when they come, how long they are, and which tokens they share."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Request", "Segment"]


class Segment(NamedTuple):
    """Consecutive tokens of a stream. Two tokens are the same if stream and place in it are.

    Args:
        stream: whose tokens: a document, a system prompt, what a conversation has said so far. A number of 0 or more.
        start: place of the first token in the stream.
        tokens: how many.
    """

    stream: int
    start: int
    tokens: int


class Request(NamedTuple):
    """One request to a server.

    Args:
        name: unique.
        arrival_s: when it comes.
        prompt_tokens: tokens of the prompt.
        output_tokens: tokens it generates before it ends.
        prompt: what the prompt is made of, for prefix caching; empty where nothing is shared. Its lengths add up to
            ``prompt_tokens``.
        output_stream: the stream that the generated tokens continue, for later prompts that hold them.
        output_start: place of the first generated token in that stream.
        priority: lower values go first, where the policy asks for it.
    """

    name: str
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    prompt: tuple[Segment, ...] = ()
    output_stream: int | None = None
    output_start: int = 0
    priority: int = 0
