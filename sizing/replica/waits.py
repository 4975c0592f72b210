"""What a prompt waits for before its prefill: the front end, the current step, earlier prompts, a free slot.

Each wait has a mean and a distribution, so that percentiles follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sizing.replica.curves import Curves
from sizing.replica.points import Array, Batching
from sizing.replica.throughput import TINY, Rates

HEAVIEST_LOAD = 0.999  # cap on the load of a nearly unstable queue
# shape = cv^-1.086 to within 1 % for a coefficient of variation of 0.3 to 1 (Justus et al. 1978)
WEIBULL_SHAPE = -0.543
LOGISTIC = 1.702  # a logistic distribution of this scale is within 0.01 of the normal one (Camilli 1994)

# Gamma(1 + x) for x from 0 to 1, to 5e-5 (Abramowitz and Stegun 6.1.35)
GAMMA = (1.0, -0.5748646, 0.9512363, -0.6998588, 0.4245549, -0.1010678)


def _weibull_s(mean_s: Array, variation2: Array, q: Array) -> Array:
    """Quantile of a Weibull time with a given mean and squared coefficient of variation (at most 1); 0 where `q` <= 0."""
    shape = variation2**WEIBULL_SHAPE
    scale_s = mean_s / np.polyval(GAMMA[::-1], 1 / shape)
    seconds: Array = scale_s * (-np.log1p(-np.clip(q, 0.0, None))) ** (1 / shape)
    return seconds


@dataclass(frozen=True, slots=True)
class Queue:
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
class StepWait:
    """The wait of the `share` of requests that meet a step of `step_s`: for its rest, and for `then_s` with a deviation.

    The rest is spread evenly over the step.
    """

    share: Array
    step_s: Array
    then_s: Array
    deviation_s: Array

    @property
    def overall_s(self) -> Array:
        """The mean over all requests, of which some do not wait."""
        return self.share * (self.step_s / 2 + self.then_s)

    def quantile_s(self, q: float) -> Array:
        """Quantile over all requests, of which some do not wait."""
        among = 1 - (1 - q) / np.maximum(self.share, TINY)
        mean_s, beyond_s = self.step_s / 2 + self.then_s, self.step_s * (among - 0.5)
        upper = np.clip(among, 0.5, 1 - TINY)
        deviations = np.log(upper / (1 - upper)) / LOGISTIC
        longer_s = np.hypot(np.maximum(beyond_s, 0.0), deviations * self.deviation_s)
        return np.where(among < 0.5, 2 * np.maximum(among, 0.0) * mean_s, mean_s + longer_s)


@dataclass(frozen=True, slots=True)
class Waits:
    """What a prompt waits beyond its own prefill: for the current step, a decode step or one with prefill, and for the prompts
    that share its own, `company_s`; in the `queue` for earlier prompts where the budget is short.
    """

    decode: StepWait
    prefill: StepWait
    company_s: Array
    queue: Queue

    @property
    def shared_s(self) -> Array:
        """The mean wait for steps."""
        return self.decode.overall_s + self.prefill.overall_s

    def quantile_s(self, q: float) -> Array:
        """Quantile of the wait for steps. Steps with prefill are longer, so the longest waits are for them."""
        every = replace(self.decode, share=self.decode.share + self.prefill.share)
        return np.maximum(every.quantile_s(q), self.prefill.quantile_s(q))


def front_end(curves: Curves, rates: Rates) -> tuple[Queue, NDArray[np.bool_]]:
    """The wait for the front end's one thread, an M/D/1 queue, and whether the thread keeps up."""
    busy = rates.requests_per_s * curves.serial_s
    waits = np.minimum(busy, HEAVIEST_LOAD)
    return Queue(waits, curves.serial_s / (2 * (1 - waits)), (1 + 2 * waits) / 3), busy < 1


def waits(curves: Curves, flow: Batching, rates: Rates, stable: NDArray[np.bool_]) -> Waits:
    """Waits of an arrival at a random time.

    Notation: L is the length of a step, lambda the arrivals per second, h the time that one more prompt adds to a step.

    - The step that an arrival meets is a decode step, a step with prefill, or none. Long steps are met more often than short
      ones: a step with prefill that is met has the mean length E[L^2]/E[L]. The arrival waits for half of it.
    - The arrival shares its own step with the prompts that came during the step before. Each of them adds h. Their number is
      Poisson with mean lambda times the length of that step, so Var(L) = h^2 lambda E[L]/(1-(lambda h)^2).
    - Where the budget holds at most one prompt, prompts queue one after another as in M/D/1: an arrival waits for all steps
      that are left of the prompt before it.
    - An engine that plans ahead has made up the next step too.
    - The first stage of a pipeline is free again after 1/pp of a step.
    """
    per_stage, more_s = rates.requests_per_s / flow.stages, rates.another_s
    load = np.minimum(per_stage * more_s, 1 - rates.decode_s / np.maximum(rates.step_s, TINY))
    load = np.clip(load, 0.0, HEAVIEST_LOAD)
    share = np.minimum(rates.in_prefill, 1.0)
    at_all = (1 - share) * -np.expm1(-rates.decoding)
    shares = flow.sharing
    variance_s2 = more_s**2 * per_stage * rates.step_s / (1 - load**2)
    met_s = rates.chunk_s if flow.flat else rates.chunk_s + variance_s2 / rates.chunk_s
    busy, nothing = np.where(stable, rates.busy, 0.0), np.zeros_like(share)
    behind_decode_s, behind_prefill_s = _made_up_s(curves, flow, rates, per_stage) if flow.ahead else (nothing, nothing)
    spread_s2 = more_s**2 * per_stage * met_s + (0.5 + per_stage * more_s) ** 2 * variance_s2
    together = shares * per_stage * more_s
    # A budget of k prompts overflows only if k arrive at once, which is rarer for larger k.
    overflows_s = busy**flow.most_together * rates.prompt_s
    return Waits(
        decode=StepWait(at_all, rates.decode_s / flow.stages, together * rates.decode_s + behind_decode_s, nothing),
        prefill=StepWait(
            share, shares * met_s / flow.stages, together * met_s + behind_prefill_s, np.sqrt(shares * spread_s2)
        ),
        company_s=together * (at_all * rates.decode_s + share * met_s),
        queue=Queue(
            share=busy,
            mean_s=(shares * overflows_s + (1 - shares) * flow.chunks * rates.chunk_s) / flow.stages / (2 * (1 - busy)),
            variation2=shares + (1 - shares) * (1 + 2 * busy) / 3,  # exponential where prompts share steps, else M/D/1
        ),
    )


def launching_s(curves: Curves, flow: Batching, rates: Rates) -> Array:
    """Seconds for which the host launches a step with prefill: none where a graph holds it."""
    eager = flow.chunk_tokens > curves.captured_tokens
    return np.where(eager, np.minimum(curves.launch_s * curves.correction.prefill, rates.chunk_s), 0.0)


def _made_up_s(curves: Curves, flow: Batching, rates: Rates, per_s: Array) -> tuple[Array, Array]:
    """Seconds of the step that is made up already when a request arrives in a decode step, and in a step with prefill.

    A step is made up as soon as the one before it is launched: by the host while it runs, where no graph holds it. It has
    prefill if a request came between the launches of the two steps before. Prompts of two steps take as long as in one, apart
    from launches that last longer than they do. After a step whose launches take all of its time there are two decode steps at least: of the decode
    steps a share (1-q)/(2-q) comes before one with prefill, where q is the probability that nobody came during one of them.
    """
    launch_s = launching_s(curves, flow, rates)
    after_launch = 1 - launch_s / np.maximum(rates.chunk_s, TINY)
    longer_s = np.maximum(np.minimum(launch_s, rates.chunk_s - rates.another_s) - rates.decode_s, 0.0)
    somebody = -np.expm1(-per_s * rates.decode_s)
    behind_prefill_s: Array = after_launch * (rates.decode_s - np.expm1(-per_s * launch_s) * longer_s)
    return rates.decode_s + somebody / (1 + somebody) * longer_s, behind_prefill_s


def for_slot(flow: Batching, rates: Rates, service_s: Array) -> Queue:
    """The wait for a free slot, where each request holds one for `service_s`: a queue of as many servers, M/D/c.

    Sakasegawa (1977): where a share r of the c slots is taken, a share r^(sqrt(2(c+1)) - 1) of the requests waits, for
    service_s/(2c(1-r)) on average.
    """
    slots = np.asarray(flow.slots)
    taken = np.minimum(rates.requests_per_s * service_s / slots, HEAVIEST_LOAD)
    return Queue(
        share=taken ** (np.sqrt(2 * (slots + 1)) - 1),
        mean_s=service_s / (2 * slots * (1 - taken)),
        variation2=(1 + 2 * taken) / 3,
    )
