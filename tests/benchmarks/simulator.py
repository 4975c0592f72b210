"""Measure the simulator: seconds, requests a second and peak memory of long runs.

    python tests/benchmarks/simulator.py [--requests 1000000] [--trace azure_conversation.csv] [--profile]

Runs a Poisson load on Llama-3.1-8B on one H100 at about half of what it can serve, the same with ten times the output
length (the cost of a request must not depend on it), and, if given, a trace of columns TIMESTAMP or arrival seconds, prompt
and output tokens. Every run has its own process, so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import cProfile
import csv
import pstats
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from engine_builders import LONGEST_TOKENS, replica_of, served

from sizing.engine import run
from sizing.engine.requests import Lengths, Requests, arrival_times

MODEL, ISL = "llama-3.1-8b", 500
ENGINES = ("vllm:0.19.0", "sglang:0.5.9", "tensorrt-llm:1.2.0")
# Output length -> requests/s at which some fifty sequences decode.
LOADS = {200: 20.0, 2000: 2.0}


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: its cost, and enough of its result to see that it was the run that was meant."""

    name: str
    requests: int
    seconds: float
    peak_mb: float
    batch_mean: float
    preempted: int


def poisson_requests(count: int, osl: int, rate: float, seed: int = 1) -> Requests:
    """Draw a Poisson load with lognormal output lengths (half the mean as standard deviation)."""
    rng = np.random.default_rng(seed)
    requests = Requests()
    arrivals = arrival_times(count, rate, "poisson", rng)
    outputs = Lengths(osl, osl / 2, "lognormal").draw(count, rng)
    for arrival, output in zip(arrivals.tolist(), outputs.tolist(), strict=True):
        requests.add(arrival, ISL, min(output, LONGEST_TOKENS - ISL))
    return requests


def trace_requests(path: Path, speed: float) -> Requests:
    """Read a trace; arrivals are seconds or timestamps, `speed` times as fast as recorded."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))[1:]
    times = [_seconds(row[0]) for row in rows]
    requests = Requests()
    for at, row in sorted(zip(times, rows, strict=True), key=lambda pair: pair[0]):
        isl, osl = max(1, int(float(row[1]))), max(1, int(float(row[2])))
        requests.add((at - min(times[0], at)) / speed, min(isl, LONGEST_TOKENS - 2048), min(osl, 2048))
    return requests


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return datetime.fromisoformat(text[:26].rstrip("Z").rstrip("+")).timestamp()


def measure(name: str, engine: str, load: Callable[..., Requests], args: tuple[object, ...], profile: bool) -> Measured:
    """Run a load on one replica and measure it; the requests' columns are in the peak, the clock's tables too."""
    requests = load(*args)
    replica = replica_of(served(MODEL, engine), requests)
    started = time.perf_counter()
    if profile:
        profiler = cProfile.Profile()
        profiler.runcall(run.open_loop, requests, [replica])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(20)
    else:
        run.open_loop(requests, [replica])
    return Measured(
        name,
        len(requests),
        time.perf_counter() - started,
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000,
        replica.watch.batch / replica.now,
        replica.preempted,
    )


def main() -> None:
    """Run all and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--engine", default=ENGINES[0], help=f"such as {', '.join(ENGINES)}")
    parser.add_argument("--trace", type=Path, help="CSV: arrival, prompt tokens, output tokens; one header line")
    parser.add_argument("--speed", type=float, default=1.0, help="how many times as fast the trace arrives")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    runs: list[tuple[str, Callable[..., Requests], tuple[object, ...]]] = [
        (f"Poisson {rate:g}/s, {ISL}/{osl}", poisson_requests, (options.requests, osl, rate))
        for osl, rate in LOADS.items()
    ]
    if options.trace:
        runs.append((options.trace.name, trace_requests, (options.trace, options.speed)))
    table = Table(*("run", "requests", "s", "us a request", "requests/s", "peak MB", "mean batch", "preempted"))
    for name, load, args in runs:
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            one = pool.submit(measure, name, options.engine, load, args, options.profile).result()
        table.add_row(
            one.name,
            f"{one.requests:,}",
            f"{one.seconds:.1f}",
            f"{1e6 * one.seconds / one.requests:.1f}",
            f"{one.requests / one.seconds:,.0f}",
            f"{one.peak_mb:,.0f}",
            f"{one.batch_mean:.1f}",
            f"{one.preempted:,}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
