"""`llmsize simulate --ticks`: from options to runs of the teaching simulator, which knows neither model nor GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from sizing.cli.options import Opt
from sizing.cli.reading import Reader
from sizing.engine import tick_run
from sizing.engine.rules import POLICIES, Rules, with_policy
from sizing.engine.tick_run import TickResult
from sizing.engine.ticks import TickClock

# What the sizing course's simulator takes where nothing is said.
PREFILL, ITL, OSL, CHUNKS, SLOTS, SEED, POLICY = 2.0, 1.0, 4.0, 1, 4, 42, "inflight"
WINDOW = 10.0  # ticks that a dynamic batch waits at most
MOST_SLOTS = 10_000
MOST_TICKS = 1_000_000  # of whatever is counted in ticks or tokens: each is walked through one by one

TAKEN = (
    "ticks", "policy", "slots", "batch_size", "batch_window", "requests", "concurrency", "rate", "prefill",
    "prefill_chunks", "itl", "osl", "osl_mean", "osl_std", "seed", "limit", "plot", "requests_out", "format", "json",
)  # fmt: skip


class Asked(NamedTuple):
    """What to run in ticks: the policies, the engine, and one load to a limit."""

    policies: tuple[str, ...]
    slots: int
    prefill: float
    prefill_chunks: int
    itl: float
    osl_mean: float
    osl_std: float
    requests: int | None
    concurrency: int | None
    rate: float | None
    seed: int
    limit: float | None
    batch_size: int
    batch_window: float

    def inputs(self) -> dict[str, Any]:
        """Return what a result repeats of it; batching rules only where a policy has them."""
        found = {"clock": "ticks", **self._asdict(), "policies": list(self.policies)}
        if "dynamic" not in self.policies:
            del found["batch_size"], found["batch_window"]
        return found


def asked(options: Iterable[Opt], workload: str | None, values: Mapping[str, Any]) -> Asked:
    """Read the options. Raises InputError with a fault for each that is wrong or belongs to real time."""
    read = Reader(values, [])
    for option in options:
        if option.name not in TAKEN and values[option.name] not in (None, False):
            read.fault("has no meaning in ticks", option.flags[0], "without --ticks")
    if workload is not None:
        read.fault("a workload has no meaning in ticks", workload, "without --ticks")
    if values["osl"] is not None and values["osl_mean"] is not None:
        read.fault("contradicts --osl-mean", "--osl")
    slots = read.whole("slots", "--slots", most=MOST_SLOTS) or SLOTS
    std = read.number("osl_std", "--osl-std", least=0.0, most=MOST_TICKS) or 0.0
    itl = "ticks of a decode step, as 1 (it is a latency limit, as 30ms, without --ticks)"
    found = Asked(
        policies=read.policies(POLICIES, POLICY),
        slots=slots,
        prefill=read.number("prefill", "--prefill", most=MOST_TICKS) or PREFILL,
        prefill_chunks=read.whole("prefill_chunks", "--prefill-chunks") or CHUNKS,
        itl=read.parsed("itl", "--itl", _ticks(itl)) or ITL,
        osl_mean=read.number("osl_mean", "--osl-mean", least=1.0, most=MOST_TICKS)
        or read.whole("osl", "--osl", most=MOST_TICKS)
        or OSL,
        osl_std=std,
        requests=read.whole("requests", "--requests"),
        concurrency=read.whole("concurrency", "--concurrency"),
        rate=read.number("rate", "--rate", least=1 / MOST_TICKS, most=MOST_TICKS),
        seed=read.seed(SEED),
        limit=read.parsed("limit", "--limit", _ticks("ticks, as 100")),
        batch_size=read.whole("batch_size", "--batch-size", most=slots) or slots,
        batch_window=read.parsed("batch_window", "--batch-window", _ticks("ticks, as 10")) or WINDOW,
    )
    _check_load(found, read)
    read.check()
    return found


def _ticks(meant: str) -> Callable[[str], float]:
    """Return what reads ticks above zero from an option that takes a duration in real time."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_TICKS:
            raise ValueError(f"{text!r} is no number of {meant} (above 0, at most {MOST_TICKS:,})")
        return value

    return parse


def _check_load(found: Asked, read: Reader) -> None:
    if found.concurrency is not None and found.rate is not None:
        read.fault("contradicts --concurrency", "--rate", "one of them")
    if read.faults:
        return  # a load that was given but is wrong is not absent
    if found.requests is None and found.concurrency is None and found.rate is None:
        read.fault("nothing says what to send", "--requests, --concurrency, --rate", "one of them")
    elif found.requests is None and found.limit is None:
        read.fault("the run would never end", "--limit, --requests", "one of them")


def run(question: Asked) -> dict[str, TickResult]:
    """Run every policy on the same load."""
    rules = Rules(slots=question.slots, units_per_request=1.0)
    clock = TickClock(question.prefill, question.itl, question.prefill_chunks)
    return {
        policy: tick_run.simulate(
            with_policy(rules, policy, ticks=True, batch_size=question.batch_size, batch_window=question.batch_window),
            clock,
            osl_mean=question.osl_mean,
            osl_std=question.osl_std,
            seed=question.seed,
            limit=math.inf if question.limit is None else question.limit,
            requests=question.requests,
            concurrency=question.concurrency,
            rate=question.rate,
        )
        for policy in question.policies
    }
