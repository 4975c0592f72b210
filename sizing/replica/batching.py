"""In-flight batching in closed form: TTFT, ITL, E2E and throughput at any load, derived from the step time.

Symbols: b sequences decode, i and o are the input and output tokens of a request, c is the token budget of a step. X is the
throughput in requests/s and S the mean step in seconds. d is a decode step. m is a step that also carries a prefill chunk;
it lasts at least as long as its launches where no CUDA graph covers them.

Each sequence decodes o-1 tokens after its first, so b = X*(o-1)*S, and b/(o-1) prompts finish in a step. A prompt takes i/c
chunks. Where the budget holds several prompts, k of them share a step: those that arrived within one step, at least one and
at most what the budget holds. On average a = b/(o-1) Poisson arrivals come within a step, so k = a/(1-exp(-a)). Where
prefill goes first, or where several attention-data ranks prefill at once, k counts the arrivals within the previous step
instead. A prompt lengthens the steps of the other sequences by p = (i/c)(m-d)/k seconds for mixed steps; for prefill-only
steps m replaces m-d. So

    S = d(b) + b*p/(o-1),    X = b/((o-1)*S).

Both are explicit in b, which may be an array. S is a mean over all steps. A request's ITL is a mean over its own: the request
itself and those that came with it make these longer (`_seen_s`), and it meets the prompts of these steps alone (`met`).

Attention-data ranks step together, so the fullest rank sets the time. b and the prompts of a step count all ranks, and each
prompt is on one rank. So up to one prompt per rank, k prompts take as long as one, apart from the work of the experts.

Under Poisson arrivals a prompt waits (`waits`) for the rest of the current step and for the prompts that share its step.
Where the budget is short it also queues behind earlier prompts, as in M/D/1 (Pollaczek-Khinchine). Before that it may wait
for the thread of the front end, M/D/1 too, and for a free slot, as in M/D/c (Sakasegawa). Where nothing decodes, prompts
wait for the batches before them (`_prompts_alone`). In a closed loop, requests that start together and have equal lengths
stay grouped, so a prompt waits on average for half of the group's prefill. Percentiles of TTFT add those of its waits, with
Weibull queues; those of ITL follow from the number of prompts that a request meets. They are approximations; the simulator
is more exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sizing.replica import timing
from sizing.replica.curves import Array, Batching, Curves, decode_step_s, prefill_step_s
from sizing.replica.timing import PACKING_ROUNDS, TINY, Rates, prefill_rates, rates_of
from sizing.replica.waits import (
    HEAVIEST_LOAD,
    PromptDelay,
    Quantiles,
    Queue,
    for_slot,
    front_end,
    lengthening,
    met_of,
    waits,
)
from sizing.specs.frozen import Frozen
from sizing.specs.units import PERCENTILES

NUDGE, MOST_COMPANY = 1e-3, 900.0  # step of a derivative; cap on the company of a request at a nearly unstable load
DAMPING = 0.25  # of a fixed point


class Point(Frozen):
    """One operating point of a replica: seconds, requests/s, sequences that decode, and requests that hold a slot (`running`).

    `ttft_s`, `itl_s`, `e2e_s` map `mean` and percentiles to seconds; ITL is 0 where OSL is 1 and there is no second token.
    `stable` is False where prompts arrive faster than they can be prefilled.
    """

    requests_per_s: float
    decoding: float
    running: float
    ttft_s: dict[str, float]
    itl_s: dict[str, float]
    e2e_s: dict[str, float]
    prefill_share: float
    stable: bool

    @property
    def in_flight(self) -> float:
        """Requests in flight, those that wait for a slot included: Little's law."""
        return self.requests_per_s * self.e2e_s["mean"]


class Points(Frozen):
    """Operating points as columns, one entry per load, with the fields of `Point`; one row per layout if stacked."""

    requests_per_s: Array
    decoding: Array
    running: Array
    ttft_s: dict[str, Array]
    itl_s: dict[str, Array]
    e2e_s: dict[str, Array]
    prefill_share: Array
    stable: NDArray[np.bool_]

    @property
    def in_flight(self) -> Array:
        """Requests in flight, those that wait for a slot included: Little's law."""
        return self.requests_per_s * self.e2e_s["mean"]

    def row(self, index: int | slice) -> Points:
        """The operating points of one stacked layout, or a slice of one layout's points."""
        return Points(*self._fields(lambda values: values[index]))

    def at(self, index: int) -> Point:
        """One operating point of a layout."""
        return Point(*self._fields(lambda values: values[index].item()))

    @property
    def firsts(self) -> list[Point]:
        """The first operating point of each stacked layout."""
        columns = self._fields(lambda values: values[:, 0].tolist())
        each = (
            (
                [dict(zip(of, row, strict=True)) for row in zip(*of.values(), strict=True)]
                if isinstance(of, dict)
                else of
            )
            for of in columns
        )
        return [Point(*values) for values in zip(*each, strict=True)]

    def _fields(self, taken: Callable[[Any], Any]) -> Iterator[Any]:
        for field in fields(self):
            values = getattr(self, field.name)
            yield {k: taken(v) for k, v in values.items()} if isinstance(values, dict) else taken(values)


def open_loop(curves: Curves, flow: Batching, decoding: Array, quantiles: Quantiles = PERCENTILES) -> Points:
    """Operating points under Poisson arrivals that keep `decoding` sequences decoding.

    With OSL 1, `decoding` is a share of the prefill capacity.
    """
    if not flow.decodes:
        return _prompts_alone(curves, flow, decoding, quantiles)
    rates = rates_of(curves, flow, decoding)
    thread, keeps_up = front_end(curves, rates)
    stable = (rates.busy < 1) & (rates.in_prefill <= 1) & keeps_up
    others = _others(flow, rates)
    wait = waits(curves, flow, rates, stable).times(others)
    own_s = curves.front_end_s + rates.prompt_s
    after_first = flow.osl - 1
    per_step = flow.tokens_per_step
    by_prompt = lengthening(flow, rates)
    seen_s, spread_s = _seen_s(curves, flow, rates, by_prompt)
    met = met_of(curves, flow, rates, wait, by_prompt, seen_s)
    met_s, by_prompts_s = met.overall_s, met.quantiles_s(quantiles)
    mean_itl_s = (seen_s + met_s) / per_step
    itl_s = {"mean": mean_itl_s}
    started_s = own_s + thread.overall_s + wait.shared_s + wait.queue.overall_s  # from the time at which a slot is free
    holding_s = started_s + after_first * mean_itl_s
    slot = for_slot(flow, rates, holding_s)
    mean_ttft_s = started_s + slot.overall_s
    ttft_s = {"mean": mean_ttft_s}
    for name, q in quantiles.items():
        ttft_s[name] = own_s + wait.quantile_s(q) + thread.quantile_s(q) + wait.queue.quantile_s(q) + slot.quantile_s(q)
        off_s = np.hypot(by_prompts_s[name] - met_s, NormalDist().inv_cdf(q) * spread_s)
        longer_s = np.where(by_prompts_s[name] > met_s, met_s + off_s, by_prompts_s[name])
        itl_s[name] = (seen_s + longer_s) / per_step
    e2e_s = _e2e_s(ttft_s, {name: after_first * seconds for name, seconds in itl_s.items()})
    return Points(
        requests_per_s=rates.requests_per_s,
        decoding=decoding,
        running=rates.requests_per_s * holding_s,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=e2e_s,
        prefill_share=rates.in_prefill,
        stable=stable,
    )


def _others(flow: Batching, rates: Rates) -> Array:
    """The share of arrivals that may run beside a request: it holds a slot, so that others have one fewer than there are."""
    running = rates.decoding + rates.requests_per_s * rates.prompt_s
    return np.minimum((np.asarray(flow.slots) - 1) / np.maximum(running, TINY), 1.0)


def _e2e_s(ttft_s: dict[str, Array], decode_s: dict[str, Array]) -> dict[str, Array]:
    """The sum of two independent times: its percentiles are as far from its mean as both together."""
    mean_s = ttft_s["mean"] + decode_s["mean"]
    e2e_s = {"mean": mean_s}
    for name in [name for name in ttft_s if name != "mean"]:
        first_s, then_s = ttft_s[name] - ttft_s["mean"], decode_s[name] - decode_s["mean"]
        both_s = np.hypot(np.maximum(first_s, 0.0), np.maximum(then_s, 0.0))
        e2e_s[name] = mean_s + both_s + np.minimum(first_s, 0.0) + np.minimum(then_s, 0.0)
    return e2e_s


def full_slots(curves: Curves, flow: Batching, decoding: Array, slots: int, requests_per_s: Array) -> Points:
    """Operating points with all `slots` taken, where arrivals delay decoding so often that slots fill up (`highest_per_s`).

    E2E follows from Little's law, slots/X; ITL is E2E without TTFT, per token. The time that decode steps leave is
    prefill's. The wait for a slot depends on how evenly requests end, so TTFT is that of a request that finds a free slot.
    A simulation is more exact.
    """
    at_full = open_loop(curves, replace(flow, slots=np.inf), decoding)
    e2e_s, after_first = slots / requests_per_s, flow.osl - 1
    ttft_s = {name: np.minimum(seconds, e2e_s) for name, seconds in at_full.ttft_s.items()}
    longer = (e2e_s - ttft_s["mean"]) / after_first / at_full.itl_s["mean"]
    itl_s = {name: seconds * longer for name, seconds in at_full.itl_s.items()}
    decode_s = np.asarray(decode_step_s(curves, flow, decoding))
    return replace(
        at_full,
        requests_per_s=requests_per_s,
        running=np.full_like(e2e_s, slots),
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s={name: ttft_s[name] + after_first * itl_s[name] for name in ttft_s},
        prefill_share=np.clip(1 - requests_per_s * flow.decode_steps / decoding * decode_s, 0.0, 1.0),
        stable=requests_per_s <= timing.highest_per_s(curves, flow, decoding) * (1 + TINY),
    )


def _prompts_alone(curves: Curves, flow: Batching, utilisation: Array, quantiles: Quantiles) -> Points:
    """Operating points where nothing decodes (OSL 1, prefill pools), at a share of the capacity with full budgets.

    Notation: l prompts/s arrive. A step of k prompts lasts S = f + k*D. r = l*D and a = l*f are loads.

    - Prompts that arrive during a step are prefilled together in the next step. An idle engine starts a step with one prompt.
      The number of prompts in a step then follows a branching process with the moments E[k](1-r) = a + P(none came) and
      E[k^2](1-r^2) = E[k](1 + 2ar) + a^2.
    - An arrival first waits for the rest of the current step. Its mean is E[S^2]/2E[S].
    - The arrival then ends with its own batch. That batch has E[k^2]/E[k] prompts on average, and at most `most_together` of
      them run at once.
    - With f = 0 and one prompt a step, this is M/D/1, DistServe's model of a prefill instance.
    - The spread of waits is that of M/D/1. The share l*E[S]/E[k] of arrivals waits at all. The waits of these have a squared
      coefficient of variation of (1 + 2r)/3, and are taken as a Weibull distribution.
    """
    rates, nothing = prefill_rates(curves, flow, utilisation), np.zeros_like(utilisation)
    one_s = np.asarray(prefill_step_s(curves, flow, nothing, 1.0))
    full_s = np.asarray(prefill_step_s(curves, flow, nothing, flow.most_together))
    more = np.asarray(flow.most_together - 1)
    another_s = flow.chunks * np.where(more > 0, (full_s - one_s) / np.maximum(more, TINY), one_s)
    first_s = np.maximum(flow.chunks * one_s - another_s, 0.0)
    per_s = rates.requests_per_s / flow.stages
    load, floor = np.minimum(per_s * another_s, HEAVIEST_LOAD), per_s * first_s
    together = np.ones_like(load)
    for _ in range(PACKING_ROUNDS):
        together = (1 - DAMPING) * together + DAMPING * (floor + np.exp(-floor - load * together)) / (1 - load)
    company = np.maximum((1 + 2 * load * floor + floor**2 / together) / (1 - load**2), 1.0)
    longer_s2 = first_s**2 + another_s * together * (2 * first_s + another_s * company)
    waits = np.minimum(load + floor / together, 1.0)
    rest_s = waits * longer_s2 / (2 * (first_s + another_s * together))
    own = np.minimum(company, flow.most_together)  # a batch beyond the budget ends in parts
    # The first stage of a pipeline is free again after 1/pp of a step, but all of a step's prompts pass all stages.
    wait_s = (rest_s + another_s * (company - own) / 2) / flow.stages + another_s * (own - 1)
    thread, keeps_up = front_end(curves, rates)
    own_s = curves.front_end_s + flow.passes * one_s
    ttft_s = {"mean": own_s + thread.overall_s + wait_s}
    queue = Queue(waits, wait_s / np.maximum(waits, TINY), (1 + 2 * load) / 3)
    for name, q in quantiles.items():
        ttft_s[name] = own_s + thread.quantile_s(q) + queue.quantile_s(q)
    zero_s = dict.fromkeys(ttft_s, nothing)
    return Points(
        requests_per_s=rates.requests_per_s,
        decoding=nothing,
        running=rates.requests_per_s * ttft_s["mean"],
        ttft_s=ttft_s,
        itl_s=zero_s,
        e2e_s=ttft_s,
        prefill_share=waits,
        stable=(rates.busy < 1) & keeps_up,
    )


def _seen_s(curves: Curves, flow: Batching, rates: Rates, by_prompt: PromptDelay) -> tuple[Array, Array]:
    """The decode step that a request sees without prefill, and its standard deviation over requests.

    An arrival finds b others (Poisson arrivals see time averages) and adds itself and those that come with it. Between prefills
    requests start in batches: a prompt and those that came while it was prefilled, directly or through others. A request is
    in a batch of 1/(1-g)^2 on average, where a prompt brings g others. All sequences share the steps, so each of them then
    waits for each other, by 1/(1-e) where 1 % more sequences make the step e % longer. The number varies by the root of b times
    this factor. The step is not linear in it (experts), so it is the mean of a step with so many more and one with fewer.
    """
    decoding = rates.decoding
    more_s = np.asarray(decode_step_s(curves, flow, decoding * (1 + NUDGE)))
    growth = (more_s / rates.decode_s - 1) / NUDGE
    steps = np.asarray(flow.decode_steps)
    alone = 1 - by_prompt.brought * np.maximum(steps - 1, 0.0) / steps
    company = 1 / np.maximum((1 - growth) * alone**2, 1 / MOST_COMPANY)
    beside = np.minimum(decoding + company, flow.slots)
    fewer = np.maximum(beside - np.sqrt(decoding * company), 1.0)
    most_s, least_s = (np.asarray(decode_step_s(curves, flow, number)) for number in (2 * beside - fewer, fewer))
    # Over its own steps a request sees the mean number, which varies as that of independent sequences.
    slope_s = (most_s - least_s) / np.maximum(2 * (beside - fewer), TINY)
    return (most_s + least_s) / 2, rates.step_s / rates.decode_s * slope_s * np.sqrt(decoding)


def closed_loop(curves: Curves, flow: Batching, in_flight: Array, quantiles: Quantiles = PERCENTILES) -> Points:
    """Operating points with a fixed number of requests in flight that start together and have equal lengths.

    The group is prefilled with as many prompts per step as the budget takes, then decodes together. Early prompts wait for
    the prefill of late ones, which lengthens their ITL. Little's law gives the throughput: X = n/E2E.
    """
    together = flow.dp * np.floor(flow.on_rank)
    per_stage = np.maximum(in_flight / flow.stages, 1.0)
    rounds = np.ceil(per_stage / together)
    batch = np.minimum(per_stage, together)
    round_s = _prompts_step_s(curves, flow, batch)
    after_first = float(np.maximum(flow.osl - 1, 0))
    prefill_s = rounds * round_s
    e2e_mean = curves.front_end_s + prefill_s + flow.decode_steps * np.asarray(decode_step_s(curves, flow, in_flight))
    ttft_s = {"mean": curves.front_end_s + (rounds + 1) / 2 * round_s}
    for name, q in quantiles.items():
        ttft_s[name] = curves.front_end_s + np.ceil(q * rounds) * round_s
    itl_s = {"mean": _per_token(e2e_mean - ttft_s["mean"], after_first)}
    for name, q in quantiles.items():
        # The prompt that is prefilled first waits longest for its second token.
        first_token_s = curves.front_end_s + np.maximum(1, np.ceil((1 - q) * rounds)) * round_s
        itl_s[name] = _per_token(e2e_mean - first_token_s, after_first)
    return Points(
        requests_per_s=in_flight / e2e_mean,
        decoding=in_flight * (1 - (curves.front_end_s + prefill_s) / e2e_mean)
        if after_first
        else np.zeros_like(in_flight),
        running=in_flight,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=dict.fromkeys(("mean", *quantiles), e2e_mean),
        prefill_share=prefill_s / e2e_mean,
        stable=np.ones(in_flight.shape, dtype=bool),
    )


def _prompts_step_s(curves: Curves, flow: Batching, prompts: Array) -> Array:
    """Seconds to prefill `prompts` whole prompts together, in as many steps as the budget requires."""
    return np.asarray(flow.chunks * prefill_step_s(curves, flow, np.zeros_like(prompts), prompts))


def _per_token(seconds: Array, after_first: float) -> Array:
    return seconds / after_first if after_first else np.zeros_like(seconds)
