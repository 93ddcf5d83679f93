"""See it work: ``kvcalc demo``, a question for each demonstration."""

from __future__ import annotations

from kvcalc.core.readers import count, flag, number, whole
from kvcalc.questions.declared import Answer, Question, param

__all__ = ["BatchingDemo", "DriftDemo", "KvCacheDemo", "Lesson", "PagingDemo", "SpeculationDemo"]


class Lesson(Question):
    """The look of a demonstration."""

    steps: bool = param(
        "--steps", heading="Output", help="Print each step before the result.", read=flag, default=False, on_page=False
    )
    watch: bool = param(
        "--watch", heading="Output", help="Animate the steps, on a terminal.", read=flag, default=False, on_page=False
    )
    plain: bool = param(
        "--plain",
        heading="Output",
        help="Neither colour, animation nor characters beyond ASCII.",
        read=flag,
        default=False,
        on_page=False,
    )
    has_chart = True


class KvCacheDemo(Lesson):
    """Generate without and with a cache: the same tokens, a fraction of the projections.

    Example: kvcalc demo kv-cache --prompt 3 --output-tokens 20 --steps
    """

    prompt: int = param("--prompt", help="Tokens of the prompt.", read=whole, default=3, page_max=64)
    output_tokens: int = param("--output-tokens", help="Tokens to make.", read=whole, default=20, page_max=64)
    layers: int = param("--layers", help="Layers of the small decoder.", read=whole, default=2, page_max=8)
    heads: int = param("--heads", help="Its query heads.", read=whole, default=4, page_max=16)
    kv_heads: int = param(
        "--kv-heads",
        help="Its key-value heads: as many, fewer (GQA) or one (MQA).",
        read=whole,
        default=2,
        page_max=16,
    )
    batch: int = param("--batch", help="Sequences.", read=whole, default=1, page_max=8)
    seed: int = param("--seed", help="Seed of all that is random.", read=whole, default=0)
    has_chart = True

    def answer(self) -> Answer:
        """Return both ways, step by step."""
        from kvcalc.demo import require_numpy

        require_numpy()
        from kvcalc.demo.decoder import DecoderShape
        from kvcalc.demo.kv_cache import demo_kv_cache

        shape = DecoderShape(layers=self.layers, heads=self.heads, kv_heads=self.kv_heads)
        return Answer(
            demo_kv_cache(
                shape=shape,
                prompt_tokens=self.prompt,
                output_tokens=self.output_tokens,
                batch=self.batch,
                seed=self.seed,
            )
        )


class SpeculationDemo(Lesson):
    """Draft, verify, accept, correct: with a perfect, a half and a poor draft the passes change, the output never.

    Example: kvcalc demo speculate --gamma 4 --output-tokens 20
    """

    prompt: int = param("--prompt", help="Tokens of the prompt.", read=whole, default=3, page_max=64)
    output_tokens: int = param("--output-tokens", help="Tokens to make.", read=whole, default=20, page_max=64)
    gamma: int = param(
        "--gamma", help="Tokens drafted for each pass of the target.", read=whole, default=4, page_max=16
    )
    seed: int = param("--seed", help="Seed of all that is random.", read=whole, default=0)
    has_chart = True

    def answer(self) -> Answer:
        """Return the rounds of each draft."""
        from kvcalc.demo import require_numpy

        require_numpy()
        from kvcalc.demo.speculation import demo_speculate

        return Answer(
            demo_speculate(
                prompt_tokens=self.prompt, output_tokens=self.output_tokens, gamma=self.gamma, seed=self.seed
            )
        )


class PagingDemo(Lesson):
    """Serve requests of real lengths with memory set aside in one piece, then in blocks; share blocks, copy on write.

    Example: kvcalc demo paging --block-size 16 --max-model-len 4096
    """

    memory_tokens: int = param(
        "--memory-tokens",
        help="Tokens that the memory holds.",
        read=count,
        default="32768",
        page_max=1_000_000,
    )
    block_size: int = param("--block-size", help="Tokens of a block.", read=whole, default=16)
    max_model_len: int = param(
        "--max-model-len",
        help="The longest length served, set aside where not paged.",
        read=count,
        default="4096",
    )
    has_chart = True

    def answer(self) -> Answer:
        """Return both ways to keep the memory."""
        from kvcalc.demo.paging import demo_paging

        return Answer(
            demo_paging(
                memory_tokens=self.memory_tokens,
                block_tokens=self.block_size,
                longest_tokens=self.max_model_len,
            )
        )


class BatchingDemo(Lesson):
    """Decode answers of real lengths in fixed batches, then with each place given on as soon as it is free.

    Example: kvcalc demo batching --places 4 --requests 16
    """

    places: int = param("--places", help="Sequences decoded together.", read=whole, default=4, page_max=32)
    requests: int = param("--requests", help="Answers, of a public trace's lengths.", read=whole, default=16)
    has_chart = True

    def answer(self) -> Answer:
        """Return both ways to fill a batch."""
        from kvcalc.demo.batching import demo_batching

        return Answer(demo_batching(places=self.places, requests=self.requests))


class DriftDemo(Lesson):
    """Let a small generator feed on its own states: its error grows, and a consistency loss shrinks it.

    Example: kvcalc demo drift --free-steps 100 --trainings 1
    """

    free_steps: int = param(
        "--free-steps", help="Steps that the generator runs free.", read=whole, default=100, page_max=200
    )
    horizon: int = param(
        "--horizon",
        help="Steps that it runs on its own states in training.",
        read=whole,
        default=8,
        page_max=16,
    )
    consistency: float = param("--consistency", help="Weight of the consistency loss.", read=number, default=1.0)
    trainings: int = param(
        "--trainings", help="Trainings that errors are means over.", read=whole, default=3, page_max=3
    )
    seed: int = param("--seed", help="Seed of all that is random.", read=whole, default=0)
    has_chart = True

    def answer(self) -> Answer:
        """Return the errors, without and with the loss."""
        from kvcalc.demo import require_numpy

        require_numpy()
        from kvcalc.demo.drift import demo_drift

        return Answer(
            demo_drift(
                steps=self.free_steps,
                horizon_steps=self.horizon,
                consistency=self.consistency,
                trainings=self.trainings,
                seed=self.seed,
            )
        )
