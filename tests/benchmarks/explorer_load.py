"""Twenty people dragging sliders: how long the explorer's answers take, and whether any fails.

Each client drags one slider at a time and asks as the page does: a question at most every 120 ms, the one before given
up where it is not answered yet, never two at once. Prints the latencies and exits with 1 where a bar is missed.

    python tests/benchmarks/explorer_load.py --seconds 60 --clients 20
"""

import argparse
import asyncio
import random
import resource
import statistics
import subprocess
import sys
import time

import httpx

MODELS = ("llama3.1-8b", "llama3.1-70b", "qwen3-30b-a3b", "deepseek-v3", "gpt-oss-120b", "gemma-3-27b")
GPUS = ("h100-sxm", "h200", "b200", "mi300x")
BATCHES = [value for power in range(11) for value in (2**power, 3 * 2**power)]
CONTEXTS = [128 * value for power in range(11) for value in (2**power, 3 * 2**power)]
MAX_P95_S = 0.25
WAIT_S = 0.12
PAUSE_S = 1.0


def questions(state):
    """Return what the page asks for a view: the addresses and fields of one answer on the screen."""
    run = {"model": state["model"], "gpus": state["gpus"]}
    point = {**run, "gpu": state["gpu"], "batch": state["batch"], "context": state["context"]}
    if state["view"] == "size":
        return [("size", {**run, "batch": state["batch"], "context": state["context"]}), ("fit", {**point, "engine": "vllm"}),
                ("engines", point)]  # fmt: skip
    if state["view"] == "speed":
        batches = ",".join(map(str, sorted({1, 4, 16, 64, 256, 1024, state["batch"]})))
        return [("decode", {**point, "estimate": "true"}), ("decode", {**point, "batch": batches, "estimate": "true"}),
                ("roofline", {**point, "batch": batches})]  # fmt: skip
    return [("speculate", {**point, "method": "ngram", "acceptance": state["acceptance"]})]


async def drag(client, seed, end, found, views):
    chance = random.Random(seed)  # noqa: S311  not for secrets
    state = {"model": chance.choice(MODELS), "gpu": chance.choice(GPUS), "gpus": 8, "batch": 8, "context": 8192,
             "acceptance": 0.8, "view": chance.choice(views)}  # fmt: skip
    while time.monotonic() < end:
        slider = chance.choice(("batch", "context"))
        values = BATCHES if slider == "batch" else CONTEXTS
        at = chance.randrange(len(values))
        for _ in range(chance.randint(2, 8)):  # one drag
            at = max(0, min(len(values) - 1, at + chance.choice((-1, 1, 1))))
            state[slider] = values[at]
            for report, fields in questions(state):
                start = time.monotonic()
                answer = await client.get(f"/api/{report}", params=fields)
                found.append((time.monotonic() - start, report, answer.status_code))
            await asyncio.sleep(WAIT_S)
        await asyncio.sleep(chance.uniform(0, 2 * PAUSE_S))  # looking at it
        if chance.random() < 0.1:
            state["view"] = chance.choice(views)


async def load(address, clients, seconds, views):
    found = []
    async with httpx.AsyncClient(base_url=address, timeout=30, limits=httpx.Limits(max_connections=clients)) as client:
        (await client.get("/static/vega.js")).raise_for_status()  # as every page does first
        end = time.monotonic() + seconds
        await asyncio.gather(*(drag(client, seed, end, found, views) for seed in range(clients)))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--views", default="size,speed,speculate")
    asked = parser.parse_args()
    command = [sys.executable, "-m", "kvcalc", "explore", "--port", "0", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            found = asyncio.run(
                load(server.stdout.readline().strip(), asked.clients, asked.seconds, asked.views.split(","))
            )
        finally:
            server.terminate()
            server.wait()
    times = sorted(seconds for seconds, _, _ in found)
    failed = [status for _, _, status in found if status != 200]
    p95 = times[int(0.95 * len(times))]
    print(f"{asked.clients} clients, {asked.seconds:g} s: {len(found)} answers, {len(failed)} failed")
    print(f"median {statistics.median(times) * 1e3:.0f} ms, p95 {p95 * 1e3:.0f} ms, longest {times[-1] * 1e3:.0f} ms")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    own_s = used.ru_utime + used.ru_stime
    print(
        f"server: {own_s:.1f} s of CPU time in all, {own_s / len(found) * 1e3:.1f} ms for each answer, start included"
    )
    for report in sorted({name for _, name, _ in found}):
        own = sorted(seconds for seconds, name, _ in found if name == report)
        print(f"  {report}: median {statistics.median(own) * 1e3:.0f} ms, p95 {own[int(0.95 * len(own))] * 1e3:.0f} ms")
    sys.exit(1 if failed or p95 > MAX_P95_S else 0)


if __name__ == "__main__":
    main()
