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

Both are explicit in b, which may be an array. A request's ITL is slightly longer than S, because the request itself and
those that came with it lengthen the steps it sees (`_seen_step_s`).

Attention-data ranks step together, so the fullest rank sets the time. b and the prompts of a step count all ranks, and each
prompt is on one rank. So up to one prompt per rank, k prompts take as long as one, apart from the work of the experts.

Under Poisson arrivals a prompt waits (`_waits`) for the rest of the current step and for the prompts that share its step.
Where the budget is short it also queues behind earlier prompts, as in M/D/1 (Pollaczek-Khinchine). Before that it may wait
for the thread of the front end, M/D/1 too, and for a free slot, as in M/D/c (Sakasegawa). Where nothing decodes, prompts
wait for the batches before them (`_prompts_alone`). In a closed loop, requests that start together and have equal lengths
stay grouped, so a prompt waits on average for half of the group's prefill. Percentiles assume a lognormal wait for steps,
Weibull queues and a normal ITL, and add up. They are approximations; the simulator is more exact.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sizing.replica import throughput
from sizing.replica.curves import Curves, decode_step_s, prefill_step_s
from sizing.replica.points import PERCENTILES, Array, Batching, Points, Quantiles
from sizing.replica.throughput import PACKING_ROUNDS, TINY, Rates, pace_of, prefill_rates, rates_of

WIDEST_SPREAD = 25.0  # cap on the squared coefficient of variation of a lognormal
NUDGE, MOST_FEEDBACK = 1e-3, 30.0  # step of a derivative; cap on the feedback of a nearly unstable load
HEAVIEST_LOAD, DAMPING = 0.999, 0.25  # cap on the load of a nearly unstable queue; damping of its fixed point
WEIBULL_SHAPE = (
    -0.543
)  # shape = cv^-1.086 to within 1 % for a coefficient of variation of 0.3 to 1 (Justus et al. 1978)


# Gamma(1 + x) for x from 0 to 1, to 5e-5 (Abramowitz and Stegun 6.1.35)
GAMMA = (1.0, -0.5748646, 0.9512363, -0.6998588, 0.4245549, -0.1010678)


def open_loop(curves: Curves, flow: Batching, decoding: Array, quantiles: Quantiles = PERCENTILES) -> Points:
    """Operating points under Poisson arrivals that keep `decoding` sequences decoding.

    With OSL 1, `decoding` is a share of the prefill capacity.
    """
    if not flow.decodes:
        return _prompts_alone(curves, flow, decoding, quantiles)
    rates = rates_of(curves, flow, decoding)
    thread, keeps_up = _front_end(curves, rates)
    stable = (rates.busy < 1) & (rates.in_prefill <= 1) & keeps_up
    wait = _waits(curves, flow, rates, decoding, stable)
    own_s = curves.front_end_s + rates.prompt_s
    after_first = flow.osl - 1
    reaction = _reaction(curves, flow, rates, decoding)
    per_step = flow.tokens_per_step
    mean_itl_s = _seen_step_s(curves, flow, rates, decoding, *reaction) / per_step
    itl_s = {"mean": mean_itl_s}
    started_s = own_s + thread.overall_s + wait.shared_s + wait.queue.overall_s  # from the time at which a slot is free
    holding_s = started_s + after_first * mean_itl_s
    for_slot = _waits_for_slot(flow, rates, holding_s)
    mean_ttft_s = started_s + for_slot.overall_s
    ttft_s = {"mean": mean_ttft_s}
    spread_s = _itl_spread_s(curves, flow, rates, decoding) / per_step
    for name, q in quantiles.items():
        ttft_s[name] = (
            own_s
            + _lognormal_s(wait.shared_s, wait.variance_s2, q)
            + thread.quantile_s(q)
            + wait.queue.quantile_s(q)
            + for_slot.quantile_s(q)
        )
        itl_s[name] = np.maximum(rates.decode_s / per_step, mean_itl_s + NormalDist().inv_cdf(q) * spread_s)
    e2e_s = {name: ttft_s[name] + after_first * itl_s[name] for name in ttft_s}
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


def full_slots(
    curves: Curves,
    flow: Batching,
    decoding: Array,
    slots: int,
    requests_per_s: Array,
    quantiles: Quantiles = PERCENTILES,
) -> Points:
    """Operating points with all `slots` taken, where arrivals delay decoding so often that slots fill up (`highest_per_s`).

    E2E follows from Little's law, slots/X; ITL is E2E without TTFT, per token. The time that decode steps leave is
    prefill's. The wait for a slot depends on how evenly requests end, so TTFT is that of a request that finds a free slot.
    A simulation is more exact.
    """
    at_full = open_loop(curves, replace(flow, slots=np.inf), decoding, quantiles)
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
        stable=requests_per_s <= throughput.highest_per_s(curves, flow, decoding) * (1 + TINY),
    )


def _front_end(curves: Curves, rates: Rates) -> tuple[_Queue, NDArray[np.bool_]]:
    """The wait for the front end's one thread, an M/D/1 queue, and whether the thread keeps up."""
    busy = rates.requests_per_s * curves.serial_s
    waits = np.minimum(busy, HEAVIEST_LOAD)
    return _Queue(waits, curves.serial_s / (2 * (1 - waits)), (1 + 2 * waits) / 3), busy < 1


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
    thread, keeps_up = _front_end(curves, rates)
    own_s = curves.front_end_s + flow.passes * one_s
    ttft_s = {"mean": own_s + thread.overall_s + wait_s}
    queue = _Queue(waits, wait_s / np.maximum(waits, TINY), (1 + 2 * load) / 3)
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


def _weibull_s(mean_s: Array, variation2: Array, q: Array) -> Array:
    """Quantile of a Weibull time with a given mean and squared coefficient of variation (at most 1); 0 where `q` <= 0."""
    shape = variation2**WEIBULL_SHAPE
    scale_s = mean_s / np.polyval(GAMMA[::-1], 1 / shape)
    seconds: Array = scale_s * (-np.log1p(-np.clip(q, 0.0, None))) ** (1 / shape)
    return seconds


@dataclass(frozen=True, slots=True)
class _Queue:
    """A wait that a `share` of requests has: of these the mean, and the squared coefficient of variation, at most 1."""

    share: Array
    mean_s: Array
    variation2: Array

    @property
    def overall_s(self) -> Array:
        """The mean over all requests, of which some do not wait."""
        return self.share * self.mean_s

    def quantile_s(self, q: float) -> Array:
        """Quantile over all requests, of which some do not wait."""
        return _weibull_s(self.mean_s, self.variation2, 1 - (1 - q) / np.maximum(self.share, TINY))


@dataclass(frozen=True, slots=True)
class _Waits:
    """What a prompt waits beyond its own prefill.

    `shared_s`, with a variance, is for the current step and for the prompts that share its own step. `queue` is for earlier
    prompts where the budget is short.
    """

    shared_s: Array
    variance_s2: Array
    queue: _Queue


def _waits(curves: Curves, flow: Batching, rates: Rates, decoding: Array, stable: NDArray[np.bool_]) -> _Waits:
    """Waits of an arrival at a random time.

    Notation: L is the length of a step, lambda the arrivals per second, h the time that one more prompt adds to a step.

    - Long steps are met more often than short ones. The step that an arrival meets has the mean length E[L^2]/E[L], and the
      arrival waits for half of it.
    - The arrival shares its own step with the prompts that came during the step before. Each of them adds h. Their number is
      Poisson with mean lambda times the length of that step, so Var(L) = h^2 lambda E[L]/(1-(lambda h)^2).
    - Where the budget holds at most one prompt, prompts queue one after another as in M/D/1: an arrival waits for all steps
      that are left of the prompt before it.
    - Where prefill has steps of its own, the step that is met is a decode step or a prefill step.
    - An engine that plans ahead has made up the next step too.
    - The first stage of a pipeline is free again after 1/pp of a step.
    """
    per_stage = rates.requests_per_s / flow.stages
    lengthening_s = rates.another_s
    load = np.minimum(per_stage * lengthening_s, 1 - rates.decode_s / np.maximum(rates.step_s, 1e-300))
    load = np.clip(load, 0.0, 0.999)
    variance_s2 = lengthening_s**2 * per_stage * rates.step_s / (1 - load**2)
    at_all = 1 - np.exp(-decoding)
    share = np.minimum(rates.in_prefill, 1.0)
    either_s = (1 - share) * at_all * rates.decode_s + share * rates.chunk_s
    mixed_s = rates.step_s + variance_s2 / np.maximum(rates.step_s, 1e-300)
    met_s = either_s if flow.flat else mixed_s
    shares = np.minimum(1.0, flow.most_together - 1)
    together_s = lengthening_s * per_stage * met_s
    single_s = (1 - share) * at_all * rates.decode_s / 2
    rest_s = (shares * at_all * met_s / 2 + (1 - shares) * single_s) / flow.stages
    made_up_s = _made_up_s(curves, flow, rates, share, per_stage) if flow.ahead else np.zeros_like(rest_s)
    busy = np.where(stable, rates.busy, 0.0)
    spread_s2 = (
        met_s**2 / 12 + lengthening_s**2 * per_stage * met_s + (0.5 + per_stage * lengthening_s) ** 2 * variance_s2
    )
    # A budget of k prompts overflows only if k arrive at once, which is rarer for larger k.
    overflows_s = busy**flow.most_together * rates.prompt_s
    return _Waits(
        shared_s=rest_s + shares * together_s + at_all * made_up_s,
        variance_s2=shares * spread_s2 + (1 - shares) * rest_s**2 / 3,
        queue=_Queue(
            share=busy,
            mean_s=(shares * overflows_s + (1 - shares) * flow.chunks * rates.chunk_s) / flow.stages / (2 * (1 - busy)),
            variation2=shares + (1 - shares) * (1 + 2 * busy) / 3,  # exponential where prompts share steps, else M/D/1
        ),
    )


def _made_up_s(curves: Curves, flow: Batching, rates: Rates, share: Array, per_s: Array) -> Array:
    """Seconds of the step that is made up already when a request arrives, a `share` of the time in a step with prefill.

    A step is made up as soon as the one before it is launched: by the host while it runs, where no graph holds it. It has
    prefill if a request came between the launches of the two steps before. Prompts of two steps take as long as in one, apart
    from launches that last longer than they do. After a step whose launches take all of its time there are two decode steps at least: of the decode
    steps a share (1-q)/(2-q) comes before one with prefill, where q is the probability that nobody came during one of them.
    """
    eager = flow.chunk_tokens > curves.captured_tokens
    launching_s = np.where(eager, np.minimum(curves.launch_s * curves.correction.prefill, rates.chunk_s), 0.0)
    after_launch = share * (1 - launching_s / np.maximum(rates.chunk_s, TINY))
    longer_s = np.maximum(np.minimum(launching_s, rates.chunk_s - rates.another_s) - rates.decode_s, 0.0)
    somebody = -np.expm1(-per_s * rates.decode_s)
    behind_decode_s: Array = (1 - share) * (rates.decode_s + somebody / (1 + somebody) * longer_s)
    behind_prefill_s: Array = after_launch * (rates.decode_s - np.expm1(-per_s * launching_s) * longer_s)
    return behind_decode_s + behind_prefill_s


def _waits_for_slot(flow: Batching, rates: Rates, service_s: Array) -> _Queue:
    """The wait for a free slot, where each request holds one for `service_s`: a queue of as many servers, M/D/c.

    Sakasegawa (1977): where a share r of the c slots is taken, a share r^(sqrt(2(c+1)) - 1) of the requests waits, for
    service_s/(2c(1-r)) on average.
    """
    slots = np.asarray(flow.slots)
    taken = np.minimum(rates.requests_per_s * service_s / slots, HEAVIEST_LOAD)
    return _Queue(
        share=taken ** (np.sqrt(2 * (slots + 1)) - 1),
        mean_s=service_s / (2 * slots * (1 - taken)),
        variation2=(1 + 2 * taken) / 3,
    )


def _lognormal_s(mean_s: Array, variance_s2: Array, q: float) -> Array:
    """Quantile of a lognormal time with a mean and a variance; 0 where the mean is 0."""
    safe_s = np.maximum(mean_s, TINY)
    sigma2 = np.log1p(np.minimum(variance_s2 / safe_s**2, WIDEST_SPREAD))
    return np.where(mean_s > TINY, safe_s * np.exp(NormalDist().inv_cdf(q) * np.sqrt(sigma2) - sigma2 / 2), 0.0)


def _seen_step_s(
    curves: Curves, flow: Batching, rates: Rates, decoding: Array, feedback: Array, delay_s: Array
) -> Array:
    """Mean step that a request sees, which exceeds the mean over time.

    The request and its companions add to the batch. An arrival finds b others (Poisson arrivals see time averages) and adds
    one. A group of arrivals slows the steps, so more prompts come in; the batch grows by v instead of 1 (v is `feedback`
    squared). Half of the prefill that this brings is over before the request decodes.
    """
    company = feedback**2
    seen_s = np.asarray(decode_step_s(curves, flow, decoding + company))
    return np.maximum(rates.step_s, seen_s + rates.step_s - rates.decode_s + (company - 1) / 2 * delay_s)


def _reaction(curves: Curves, flow: Batching, rates: Rates, decoding: Array) -> tuple[Array, Array]:
    """How the load reacts to one more request: (final increase in requests, prefill seconds added to a step).

    Because X = b/((o-1)*S), 1 % more requests/s means 1/(1 - dlnS/dlnb) % more sequences.
    """
    more = pace_of(curves, flow, decoding * (1 + NUDGE))
    growth = (more.step_s / rates.step_s - 1) / NUDGE
    delay_s = (more.step_s - more.decode_s - rates.step_s + rates.decode_s) / np.maximum(decoding * NUDGE, TINY)
    return 1 / np.maximum(1 - growth, 1 / MOST_FEEDBACK), delay_s


def _itl_spread_s(curves: Curves, flow: Batching, rates: Rates, decoding: Array) -> Array:
    """Standard deviation over requests of a request's mean step, taken as normal.

    Two Poisson numbers cause the spread: the prefills that occur during a request, and the sequences that decode with it.
    Both feed back: slower steps meet more prompts, by the factor S/d.
    """
    more_s = np.asarray(decode_step_s(curves, flow, decoding + np.sqrt(decoding))) - rates.decode_s
    by_hits_s = rates.hit_s * np.sqrt(rates.hits) / flow.decode_steps
    return rates.step_s / rates.decode_s * np.sqrt(by_hits_s**2 + more_s**2)


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
