"""What the rows of a measuring run say together, in a page, and the criteria written down before it."""

from __future__ import annotations

from typing import Any

CRITERIA = (
    "bytes: cache and weights take the predicted bytes, of their tensors and by the allocator's word",
    "bound: no step is faster than the bound, on the data sheet's bandwidth and on the bandwidth read here",
    "speed: at batch 1 the bound on the bandwidth read here is at least 0.85 of the measured time, in the best variant",
)
GOAL = 0.85
LINES = 80

Row = dict[str, Any]


def summary(rows: list[Row]) -> list[str]:
    """The page: checks that failed, then steps, tokens in a row and the other figures, then the criteria."""
    steps = [row for row in rows if row["kind"] == "step" and row["part"] != "smoke"]
    checks = [row for row in rows if row["kind"] == "check"]
    lines = [f"FAILED {row['part']}: {row['name']}: {row['detail']}" for row in checks if not row["passed"]]
    lines += [_step(row) for row in steps]
    lines += [
        f"{row['part']}: {row['tokens']} tokens, batch {row['batch']}, {row['kernels']}: {row['tokens_per_s']:,.1f} tokens/s, "
        f"{row['ratio']:.2f} x bound" + ("" if row["identical"] else ", NOT the tokens of the step")
        for row in rows if row["kind"] == "loop" and row["part"] != "smoke"
    ]  # fmt: skip
    for kind, say in OTHERS.items():
        lines += [f"{row['part']}: {say(row)}" for row in rows if row["kind"] == kind and row["part"] != "smoke"]
    verdicts = _criteria(steps, checks)
    room = LINES - len(verdicts) - 1
    if len(lines) > room:
        lines = [*lines[:room], f"... {len(lines) - room} more in results.jsonl"]
    return [*lines, *verdicts]


OTHERS = {
    "crossing": lambda row: (
        f"compute limits from batch {row['bound_batch']} on by the bound, measured {row['measured_batch']}"
    ),
    "speculation": lambda row: (
        f"speed-up {row['measured_speedup']:.2f}, predicted {row['predicted_speedup']:.2f}, "
        f"acceptance {row['acceptance']:.2f}, gamma {row['gamma_tokens']}"
    ),
    "prefill": lambda row: (
        f"{row['prompt']} tokens: {row['measured_s']:.4f} s, {row['ratio']:.2f} x bound ({row['limiter']})"
    ),
    "capacity": lambda row: (
        f"batch {row['predicted_batch']} predicted, {'runs' if row['fits'] else 'DOES NOT RUN'}; "
        f"{row['beyond_batch']} {'fails' if row['beyond_fails'] else 'DOES NOT FAIL'} as it must"
    ),
    "compiled": lambda row: f"torch.compile: {row['measured_s']:.6f} s",
    "ceilings": lambda row: (
        f"{row['memory_bandwidth_bytes_per_s']:.4g} B/s, "
        + ", ".join(f"{name} {rate:.4g} FLOP/s" for name, rate in row["peak_flop_per_s"].items())
    ),
}


def _read_bound_s(row: Row) -> float:
    """A step's bound on the bandwidth that was read here; on that of the data sheet where none was read."""
    bound: float = row.get("read_bound_s", row["bound_s"])
    return bound


def _step(row: Row) -> str:
    off = "" if row["estimate_error"] is None else f", estimate {row['estimate_error']:+.0%}"
    return (
        f"{row['part']}: {row['model']} {row['format']} {row['kernels']} {row['batch']} x {row['context']}: "
        f"{row['measured_s']:.6f} s, {row['ratio']:.2f} x bound, {row['measured_s'] / _read_bound_s(row):.2f} on what was read{off} {row['cause']}"
    ).rstrip()


def _criteria(steps: list[Row], checks: list[Row]) -> list[str]:
    """Each criterion with what was measured: met, not met, or not measured."""
    exact = [row["passed"] for row in checks if row["name"].startswith(("cache", "weights"))]
    held = [row["passed"] for row in checks if row["name"].startswith("bound")]
    beaten = [row for row in steps if row["least_s"] < _read_bound_s(row) and not row["cause"]]
    whole = [row for row in steps if row["part"] in ("llama-8b", "variants-bf16") and row["batch"] == 1]
    best = max((_read_bound_s(row) / row["measured_s"] for row in whole), default=None)
    outcomes = (
        (bool(exact), all(exact), f"{sum(exact)} of {len(exact)} checks"),
        (bool(held), all(held) and not beaten, f"{len(beaten)} of {len(steps)} steps below the bandwidth read here"),
        (best is not None, (best or 0) >= GOAL, "" if best is None else f"{best:.2f}"),
    )
    return [
        f"{'not measured' if not measured else 'met' if met else 'NOT MET'}: {words} ({detail})"
        for words, (measured, met, detail) in zip(CRITERIA, outcomes, strict=True)
    ]
