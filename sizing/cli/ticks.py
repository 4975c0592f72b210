"""`llmsize simulate --ticks`: runs of the teaching simulator, which has neither a model nor a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable

from sizing.cli.options import SimulateOptions
from sizing.cli.reader import Reader
from sizing.engine import ticks as tick_run
from sizing.engine.rules import POLICIES, SchedulerRules, with_policy
from sizing.engine.ticks import SHORTEST_STEP, TickClock, TickResult
from sizing.question.options import GivenOptions, broken
from sizing.report.ticks import TickInputs

# Defaults of the simulator in the sizing course.
PREFILL, ITL, OSL, CHUNKS, SLOTS, SEED, POLICY = 2.0, 1.0, 4.0, 1, 4, 42, "inflight"
WINDOW = 10.0  # the most ticks that a dynamic batch waits
# The simulator goes through every step, slot and request, and keeps all of them in memory. These bounds keep a run within
# seconds. They are far larger than a person can inspect: the longest run of the course has 10,000 ticks of 4 slots.
MOST_SLOTS = 1_000
MOST_TICKS = 200_000  # for every quantity in ticks or tokens
MOST_REQUESTS = 100_000  # sent, or in flight
MOST_CELLS = 4_000_000  # steps x slots x policies; a step costs as much as STEP_SLOTS additional slots
MOST_DRAWN_CELLS = 1_000_000  # cells of a picture, which takes longer to draw than to simulate
STEP_SLOTS = 16
TAIL_STDS = 3.0  # a batch's longest output is about this many standard deviations above the mean
ONE_BY_ONE = ("one-prefill", "chunked")  # policies that prefill one prompt after another

TAKEN = (
    "ticks", "policy", "slots", "batch_size", "batch_window", "requests", "concurrency", "rate", "prefill", "prefill_chunks", "itl",
    "osl", "osl_mean", "osl_std", "seed", "limit", "plot", "requests_out", "format", "json", "verbose",
)  # fmt: skip


def asked(workload: str | None, given: GivenOptions, own: SimulateOptions) -> TickInputs:
    """Read the options. Raises InputError for each option that is wrong or belongs to real time."""
    read = Reader()
    for option in given.fields:
        if option.name not in TAKEN and given.any_of([option.name]):
            read.fault("has no meaning in ticks", option.flags[0], remedy="use it without --ticks")
    if workload is not None:
        read.fault("a workload has no meaning in ticks", workload, remedy="use it without --ticks")
    if own.osl_mean is not None:
        read.faults.extend(broken(("a mean output",), given))
    slots = read.whole(own.slots, "--slots", most=MOST_SLOTS) or SLOTS
    policies = read.policies(own.policy, POLICIES, POLICY)
    if "dynamic" not in policies:
        read.faults.extend(broken(("no dynamic batches",), given))
    found = TickInputs(
        clock="ticks",
        policies=policies,
        slots=slots,
        prefill=read.number(own.prefill, "--prefill", most=MOST_TICKS) or PREFILL,
        prefill_chunks=read.whole(own.prefill_chunks, "--prefill-chunks", most=MOST_TICKS) or CHUNKS,
        itl=read.parsed(own.itl, "--itl", _itl) or ITL,
        osl_mean=read.number(own.osl_mean, "--osl-mean", least=1.0, most=MOST_TICKS)
        or read.whole(own.osl, "--osl", most=MOST_TICKS)
        or OSL,
        osl_std=read.number(own.osl_std, "--osl-std", least=0.0) or 0.0,
        requests=read.whole(own.requests, "--requests", most=MOST_REQUESTS),
        concurrency=read.whole(own.concurrency, "--concurrency", most=MOST_REQUESTS),
        rate=read.number(own.rate, "--rate", least=1 / MOST_TICKS, most=MOST_REQUESTS),
        seed=read.seed(own.seed, SEED),
        limit=read.parsed(own.limit, "--limit", _ticks("ticks, as 100")),
        batch_size=None,
        batch_window=None,
    )
    size = read.whole(own.batch_size, "--batch-size", most=slots) or slots
    window = read.parsed(own.batch_window, "--batch-window", _ticks("ticks, as 10")) or WINDOW
    if "dynamic" in policies:
        found = found._replace(batch_size=size, batch_window=window)
    _check_load(found, read)
    read.check()
    _check_values(found, read)
    _check_work(found, read, drawn=own.plot is not None)
    read.check()
    return found


def _ticks(meant: str) -> Callable[[str], float]:
    """A parser of ticks above zero, for an option that takes a duration in real time."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 < value <= MOST_TICKS:
            raise ValueError(f"{text!r} is no number of {meant} (above 0, at most {MOST_TICKS:,})")
        return value

    return parse


def _itl(text: str) -> float:
    """Parse the ticks of a decode step: at least one, because the clock of the course has no shorter step."""
    ticks = _ticks("ticks of a decode step, as 1 (it is a latency limit, as 30ms, without --ticks)")(text)
    if ticks < SHORTEST_STEP:
        raise ValueError(f"{text!r} would change nothing: no step is shorter than a tick (at least {SHORTEST_STEP:g})")
    return ticks


def _check_load(inputs: TickInputs, read: Reader) -> None:
    if inputs.concurrency is not None and inputs.rate is not None:
        read.fault("contradicts --concurrency", "--rate", remedy="state one of them")
    if read.faults:
        return  # a load was given but is wrong, so it is not missing
    if inputs.requests is None and inputs.concurrency is None and inputs.rate is None:
        read.fault("nothing says what to send", "--requests, --concurrency, --rate", remedy="state one of them")
    elif inputs.requests is None and inputs.limit is None:
        read.fault("the run would never end", "--limit, --requests", remedy="state one of them")


def _check_values(inputs: TickInputs, read: Reader) -> None:
    """Record faults for outputs with too much spread, a prefill without time, and a rate with too many arrivals."""
    together = inputs.prefill * inputs.slots
    if together < SHORTEST_STEP:
        message = f"{inputs.prefill:g} would change nothing: no step is shorter than a tick, and {inputs.slots} prefills add up to {together:g}"
        read.fault(message, "--prefill", f"at least {SHORTEST_STEP / inputs.slots:g} with so many --slots")
    read.spread("--osl-std", inputs.osl_std, inputs.osl_mean)
    if inputs.rate is not None and inputs.requests is None and inputs.limit is not None:
        arriving = inputs.rate * inputs.limit
        if arriving > MOST_REQUESTS:
            remedy = f"use --rate x --limit at most {MOST_REQUESTS:,}, or --requests"
            read.fault(f"{arriving:,.0f} requests would arrive until the limit", "--rate", remedy=remedy)


def _check_work(inputs: TickInputs, read: Reader, *, drawn: bool) -> None:
    """Record a fault for a run that would take too long to simulate or to draw."""
    most, what = (MOST_DRAWN_CELLS, "draw") if drawn else (MOST_CELLS, "walk through")
    steps = [_steps(inputs, policy) for policy in inputs.policies]
    if sum(steps) * (inputs.slots + STEP_SLOTS) > most:
        each = most // ((inputs.slots + STEP_SLOTS) * len(steps))
        allowed = f"about {each:,} a policy with {inputs.slots:,} slots: a --limit, fewer --requests, shorter outputs or fewer --prefill-chunks"
        read.fault(f"about {max(steps):,.0f} steps are too many to {what}", "--ticks", allowed)


def _steps(inputs: TickInputs, policy: str) -> float:
    """An upper estimate of the steps of a run, as no step is shorter than a tick."""
    limit = math.inf if inputs.limit is None else inputs.limit
    if inputs.requests is None:
        return limit
    together = min(inputs.slots, inputs.requests, inputs.concurrency or math.inf)
    rounds = math.ceil(inputs.requests / together)
    prompts = together if policy in ONE_BY_ONE else 1
    arriving = inputs.requests / inputs.rate if inputs.rate is not None else 0.0
    steps = arriving + rounds * (inputs.prefill_chunks * prompts + inputs.osl_mean + TAIL_STDS * inputs.osl_std)
    if inputs.batch_size is not None and policy == "dynamic":
        # With fewer requests in flight than a batch holds, every batch waits for its window.
        waits = rounds if inputs.concurrency is not None and inputs.concurrency < inputs.batch_size else 1
        steps += waits * (inputs.batch_window or 0.0)
    return min(limit, steps)


def run(question: TickInputs) -> dict[str, TickResult]:
    """Run every policy on the same load."""
    rules = SchedulerRules(slots=question.slots, units_per_request=1.0)
    clock = TickClock(question.prefill, question.itl, question.prefill_chunks)
    size, window = question.batch_size or question.slots, question.batch_window or WINDOW
    load = {
        name: getattr(question, name) for name in ("osl_mean", "osl_std", "seed", "requests", "concurrency", "rate")
    }
    load["limit"] = math.inf if question.limit is None else question.limit
    ruled = {
        name: with_policy(rules, name, ticks=True, batch_size=size, batch_window=window) for name in question.policies
    }
    return {policy: tick_run.simulate(own, clock, **load) for policy, own in ruled.items()}
