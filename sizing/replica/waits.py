"""What a request waits for: its prompt before the prefill, and its tokens for the prompts that it meets while it decodes.

A prompt waits for the front end, the current step, earlier prompts and a free slot. A request of few tokens meets few prompts or
none, so its ITL is one of few values. Its mean is not that of all steps: the prompts of its first decode steps came during its own
prefill, and those that come during its last steps are met no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sizing.replica.curves import Array, Batching, Curves
from sizing.replica.timing import TINY, Rates
from sizing.specs.frozen import Frozen

Quantiles = Mapping[str, float]
HEAVIEST_LOAD = 0.999  # cap on the load of a nearly unstable queue
# shape = cv^-1.086 to within 1 % for a coefficient of variation of 0.3 to 1 (Justus et al. 1978)
WEIBULL_SHAPE = -0.543
LOGISTIC = 1.702  # a logistic distribution of this scale is within 0.01 of the normal one (Camilli 1994)

# Gamma(1 + x) for x from 0 to 1, to 5e-5 (Abramowitz and Stegun 6.1.35)
GAMMA = (1.0, -0.5748646, 0.9512363, -0.6998588, 0.4245549, -0.1010678)


def _weibull_s(mean_s: Array, variation2: Array, q: Array) -> Array:
    """Quantile of a Weibull time with a given mean and squared coefficient of variation (at most 1); 0 where `q` <= 0."""
    seconds, waits = np.zeros_like(q), q > 0
    shape = variation2[waits] ** WEIBULL_SHAPE
    scale_s = mean_s[waits] / np.polyval(GAMMA[::-1], 1 / shape)
    seconds[waits] = scale_s * (-np.log1p(-q[waits])) ** (1 / shape)
    return seconds


class Queue(Frozen):
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


class StepWait(Frozen):
    """The wait of the `share` of requests that meet a step of `step_s`: for its rest, and for `then_s`, which may have a deviation.

    The rest is spread evenly over the step.
    """

    share: Array
    step_s: Array
    then_s: Array
    deviation_s: Array | None = None

    @property
    def overall_s(self) -> Array:
        """The mean over all requests, of which some do not wait."""
        return self.share * (self.step_s / 2 + self.then_s)

    def quantile_s(self, q: float) -> Array:
        """Quantile over all requests, of which some do not wait."""
        among = 1 - (1 - q) / np.maximum(self.share, TINY)
        mean_s, beyond_s = self.step_s / 2 + self.then_s, self.step_s * (among - 0.5)
        longer_s = np.maximum(beyond_s, 0.0)
        if self.deviation_s is not None:
            upper = np.clip(among, 0.5, 1 - TINY)
            longer_s = np.hypot(longer_s, np.log(upper / (1 - upper)) / LOGISTIC * self.deviation_s)
        return np.where(among < 0.5, 2 * np.maximum(among, 0.0) * mean_s, mean_s + longer_s)


class Waits(Frozen):
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

    def times(self, share: Array) -> Waits:
        """The waits where only a share of the requests that are met run at all."""
        decode, prefill = (replace(part, share=part.share * share) for part in (self.decode, self.prefill))
        return Waits(decode, prefill, self.company_s * share, replace(self.queue, share=self.queue.share * share))

    def quantile_s(self, q: float) -> Array:
        """Quantile of the wait for steps. Steps with prefill are longer, so the longest waits are for them."""
        every = replace(self.decode, share=self.decode.share + self.prefill.share)
        return np.maximum(every.quantile_s(q), self.prefill.quantile_s(q))


def front_end(curves: Curves, rates: Rates) -> tuple[Queue, NDArray[np.bool_]]:
    """The wait for the front end's one thread, an M/D/1 queue, and whether the thread keeps up."""
    busy = rates.requests_per_s * curves.serial_s
    waits = np.minimum(busy, HEAVIEST_LOAD)
    return Queue(waits, curves.serial_s / (2 * (1 - waits)), (1 + 2 * waits) / 3), busy < 1


def met_shares(rates: Rates) -> tuple[Array, Array]:
    """The shares of requests that meet a step with prefill and a decode step as they come."""
    share = np.minimum(rates.in_prefill, 1.0)
    return share, (1 - share) * -np.expm1(-rates.decoding)


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
    share, at_all = met_shares(rates)
    shares = flow.sharing
    variance_s2 = more_s**2 * per_stage * rates.step_s / (1 - load**2)
    met_s = rates.chunk_s if flow.flat else rates.chunk_s + variance_s2 / rates.chunk_s
    busy, nothing = np.where(stable, rates.busy, 0.0), np.zeros_like(share)
    behind_decode_s, behind_prefill_s = _planned_s(curves, flow, rates, per_stage) if flow.ahead else (nothing, nothing)
    spread_s2 = more_s**2 * per_stage * met_s + (0.5 + per_stage * more_s) ** 2 * variance_s2
    together = shares * per_stage * more_s
    # A budget of k prompts overflows only if k arrive at once, which is rarer for larger k.
    overflows_s = busy**flow.most_together * rates.prompt_s
    return Waits(
        decode=StepWait(at_all, rates.decode_s / flow.stages, together * rates.decode_s + behind_decode_s),
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


def _planned_s(curves: Curves, flow: Batching, rates: Rates, per_s: Array) -> tuple[Array, Array]:
    """Seconds of the step that is made up already when a request arrives in a decode step, and in a step with prefill.

    A step is made up as soon as the one before it is launched: by the host while it runs, where no graph holds it. It has
    prefill if a request came between the launches of the two steps before. Prompts of two steps take as long as in one, apart
    from launches that last longer than they do. After a step whose launches take all of its time there are at least two decode
    steps. With q, the probability that nobody comes during a decode step, a share (1-q)/(2-q) of them precedes one with prefill.
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


COUNTED = 16  # prompts that a request meets, counted one by one
MOST_SLOTS = 1e9  # where slots are without end
STEEPEST = 10.0  # cap on how much longer a nearly endless run of steps with prefill becomes
LONGEST_RUN = 50.0  # cap on the prompts that come during a step with prefill, in an exponent


class PromptsMet(Frozen):
    """What the prompts that a request meets add to its mean step.

    Their number has a negative binomial distribution with a `mean` and a `dispersion`, the variance by the mean: 1 (Poisson)
    where prompts come by chance alone, more where some bring others. Each adds `each_s` to the mean step, all together at
    most `most_s`. Each of the `steps` that has any prompt adds `first_s` beyond that, divided by all steps.
    """

    mean: Array
    dispersion: Array
    each_s: Array
    first_s: Array
    most_s: Array
    steps: Array

    @property
    def overall_s(self) -> Array:
        """The mean over all requests."""
        bring = np.maximum(self.dispersion - 1, TINY)
        none = np.exp(-self.mean / bring * np.log1p(bring * np.minimum(1 / self.steps, 1.0)))  # in one of the steps
        overall_s: Array = np.minimum(self.mean * self.each_s, self.most_s) + self.first_s * (1 - none)
        few = self.most_s < COUNTED * self.each_s
        if few.any():
            overall_s[few] = PromptsMet(*(getattr(self, field.name)[few] for field in fields(self)))._few_s()
        return overall_s

    def quantiles_s(self, quantiles: Quantiles) -> dict[str, Array]:
        """Exact below `COUNTED` prompts; for more, from the first three moments (Cornish and Fisher)."""
        found = {}
        for name, number in self._counts(quantiles).items():
            z = NormalDist().inv_cdf(quantiles[name])
            skewed = (z * z - 1) / 6 * (2 * self.dispersion - 1)  # the skewness of the distribution times its deviation
            many = self.mean + z * np.sqrt(self.mean * self.dispersion) + skewed
            found[name] = self._added_s(np.where(number < COUNTED, number, np.maximum(many, COUNTED)))
        return found

    def _added_s(self, number: Array) -> Array:
        """What a number of prompts adds to the mean step; each is in any of the steps."""
        empty = np.maximum(1 - 1 / self.steps, 0.0) ** number
        added_s: Array = np.minimum(number * self.each_s, self.most_s) + self.first_s * (1 - empty)
        return added_s

    def _few_s(self) -> Array:
        """The mean where a few prompts fill all steps, so that it counts how many they are."""
        seconds, left = np.zeros_like(self.mean), np.ones_like(self.mean)
        for number, chance in enumerate(self._chances()):
            seconds += chance * self._added_s(np.full_like(chance, number))
            left -= chance
        return seconds + np.maximum(left, 0.0) * self._added_s(np.maximum(self.mean, COUNTED))

    def _counts(self, quantiles: Quantiles) -> dict[str, Array]:
        """The least number of prompts that is not exceeded with each probability, at most `COUNTED`."""
        below, counts = np.zeros_like(self.mean), {name: np.zeros_like(self.mean) for name in quantiles}
        for chance in self._chances() if quantiles else ():
            below += chance
            for name, q in quantiles.items():
                counts[name] += below < q
        return counts

    def _chances(self) -> Iterator[Array]:
        """Yield the probability of each number of prompts below `COUNTED`, from 0 on."""
        more, first = 1 - 1 / self.dispersion, self.mean / self.dispersion
        factor = np.where(more > TINY, np.log1p(-more) / np.minimum(-more, -TINY), 1.0)
        chance = np.exp(-first * factor)
        for number in range(COUNTED):
            yield chance
            chance = chance * (first + more * number) / (number + 1)


class PromptDelay(Frozen):
    """What a prompt adds to the decode steps of other sequences, in all its steps together.

    A prompt adds `each_s` and the first one of a step `first_s` more: launches outside CUDA graphs hide the first prompts.
    `brought` is the number of others that come while one more prompt lengthens steps.
    """

    each_s: Array
    first_s: Array
    brought: Array


def lengthening(flow: Batching, rates: Rates) -> PromptDelay:
    """What a prompt adds to decode steps."""
    within = np.maximum(rates.decoding / flow.decode_steps, TINY)  # prompts that come within a step
    added_s, hit_s = (rates.step_s - rates.decode_s) / within, flow.chunks * rates.hit_s / flow.stages
    if flow.prefill_only:
        nothing = np.zeros_like(added_s)
        return PromptDelay(added_s, nothing, 1 - rates.decode_s / rates.step_s)
    shared = flow.sharing
    more_s = np.minimum(flow.chunks * rates.another_s / flow.stages, added_s)
    first_s = shared * np.maximum(hit_s - hit_s / np.maximum(added_s, TINY) * more_s, 0.0)
    each_s = shared * more_s + (1 - shared) * added_s
    marginal_s = each_s + first_s * np.exp(-within * flow.chunks / flow.stages)
    brought = np.minimum(rates.requests_per_s * marginal_s, 1 - rates.decode_s / rates.step_s)
    return PromptDelay(each_s, first_s, brought)


def met_of(
    curves: Curves, flow: Batching, rates: Rates, wait: Waits, by_prompt: PromptDelay, seen_s: Array
) -> PromptsMet:
    """The prompts that a request meets in its decode steps, each of which takes `seen_s` without them.

    On average a request meets as many prompts as meet it: the others that decode at a prompt, at most all other slots.
    """
    if flow.prefill_only:
        met = _runs_met(curves, flow, rates, wait)
    else:
        met = _prompts_met(curves, flow, rates, wait, by_prompt, seen_s)
    others = np.minimum(flow.slots, MOST_SLOTS) - 1
    return replace(met, most_s=np.minimum(met.most_s, others * np.maximum(met.each_s, 0.0)))


def _before_s(flow: Batching, rates: Rates, launch_s: Array) -> Array:
    """Seconds of the step before a request's own during which prompts come that are taken one step after its own.

    An engine that plans ahead takes in a step those that came between the launches of the two steps before. The step before
    the request's own was decided when the request came: it has prefill if somebody came in the step before that.
    """
    share, decode_share = met_shares(rates)
    busy = share + decode_share
    step_s = busy / np.maximum(share / rates.chunk_s + decode_share / rates.decode_s, TINY)
    somebody = -np.expm1(-rates.requests_per_s * flow.chunks / flow.stages * busy * step_s)
    before_s: Array = busy * (rates.decode_s + somebody * (rates.chunk_s - launch_s - rates.decode_s))
    return before_s


def _prompts_met(
    curves: Curves, flow: Batching, rates: Rates, wait: Waits, by_prompt: PromptDelay, seen_s: Array
) -> PromptsMet:
    """Where prompts share steps with decodes.

    A step takes the prompts that came during the step before it. So the prompts of the first decode steps came during the
    request's own prefill, and those that come during its last steps are met no more; with an engine that plans ahead, those of
    one step more. Where the budget holds one prompt, those that came while the request itself waited follow it.

    Each prompt lengthens the time in which others come. So their number has the mean and variance of Consul's generalised
    Poisson distribution.
    """
    steps = np.asarray(flow.decode_steps)
    own_s = rates.prompt_s + wait.company_s + wait.queue.overall_s + (1 - flow.sharing) * wait.shared_s
    later = flow.later_steps
    if flow.ahead:
        launch_s = launching_s(curves, flow, rates)
        last_s = (flow.chunks - np.ceil(flow.chunks) + 1) * rates.chunk_s
        too_late_s = np.maximum(2 - steps, 0.0) * np.maximum(last_s + wait.company_s - launch_s, 0.0)
        own_s = _before_s(flow, rates, launch_s) + own_s - too_late_s
    part = later / steps
    left = 1 - np.minimum(by_prompt.brought * part, HEAVIEST_LOAD)
    on_average = 1 - np.minimum((1 - rates.decode_s / rates.step_s) * part, HEAVIEST_LOAD)
    open_s = later * rates.decode_s / on_average + (own_s + later * (seen_s - rates.decode_s)) / left
    return PromptsMet(
        mean=rates.requests_per_s * open_s,
        dispersion=1 / left**2,
        each_s=by_prompt.each_s / steps,
        first_s=by_prompt.first_s,
        most_s=np.maximum(rates.full_s - rates.decode_s, 0.0),
        steps=np.broadcast_to(steps, open_s.shape),
    )


def _runs_met(curves: Curves, flow: Batching, rates: Rates, wait: Waits) -> PromptsMet:
    """Where steps with prefill hold no decodes: runs of such steps, counted in steps of one prompt.

    A request waits for the rest of the run of its own prefill, and for a run now and then after a decode step. Where the
    budget holds one prompt, a run ends when no prompt waits.
    """
    steps, per_s = np.asarray(flow.decode_steps), rates.requests_per_s * flow.chunks / flow.stages
    shared = flow.sharing
    launch_s = launching_s(curves, flow, rates) if flow.ahead else rates.chunk_s
    one_s, on_s = _run_s(rates, wait, per_s, launch_s)
    fill_s = np.minimum(flow.slots, MOST_SLOTS) / np.maximum(rates.requests_per_s, TINY)  # a full engine ends a run
    on_s = fill_s * -np.expm1(-on_s / fill_s)
    begins: Array | float = 1.0
    if flow.ahead:  # those that came after the launch follow after one decode step
        during_s = (_before_s(flow, rates, launch_s) + launch_s, rates.chunk_s - launch_s)
        now, then = (-np.expm1(-per_s * seconds) for seconds in during_s)
        begins = (now + np.minimum(1.0, steps - 1) * then) / np.maximum(-np.expm1(-per_s * one_s), TINY)
    runs = (rates.step_s - rates.decode_s) / one_s * flow.later_steps
    busy = np.minimum(rates.busy, HEAVIEST_LOAD)
    own_s = rates.prompt_s + wait.queue.overall_s + wait.shared_s
    one_by_one = rates.requests_per_s * own_s / (1 - busy) + runs / flow.chunks
    on = on_s / (on_s + one_s)
    return PromptsMet(
        mean=shared * (begins * on_s / one_s + runs) + (1 - shared) * one_by_one,
        dispersion=shared * (1 + on) / (1 - on) + (1 - shared) / (1 - busy) ** 2,
        each_s=(shared * one_s + (1 - shared) * flow.chunks * rates.chunk_s) / steps,
        first_s=np.zeros_like(on),
        most_s=fill_s / steps + rates.step_s - rates.decode_s,
        steps=np.broadcast_to(steps, on.shape),
    )


def _run_s(rates: Rates, wait: Waits, per_s: Array, launch_s: Array) -> tuple[Array, Array]:
    """Seconds of a step with one prompt, and for how long a run of such steps goes on after it.

    Let L be that step, D what another prompt adds to it and f = L - D. Where each step takes the prompts that came during the
    step before, the run goes on for T(L) = sum over n > 0 prompts that came, Poisson with mean XL, of f + nD + T(f + nD). T is
    nearly linear in L; with u = XD and v = XL its slope is v(1 + u)/(1 - uv). That is exact where f or D is 0. Where steps are
    made up before the step before has ended, the lengths of two that follow each other are independent, so T is that of mean
    steps m: m(exp(Xm) - 1).
    """
    more_s, mean_s = rates.another_s, rates.chunk_s
    together = per_s * mean_s / np.maximum(rates.in_prefill, TINY)
    one_s = mean_s - (together - 1) * more_s
    more, one = per_s * more_s, per_s * one_s
    slope = one * (1 + more) / np.maximum(1 - more * one, 1 / STEEPEST)
    none = np.maximum(np.exp(-one), 1 - HEAVIEST_LOAD)
    on_s = ((1 - none) * (one_s - more_s - slope * more_s) + one * more_s * (1 + slope)) / none
    on_s = np.maximum(on_s + slope * wait.company_s, 0.0)
    at_once = launch_s / mean_s
    return one_s, at_once * on_s + (1 - at_once) * mean_s * np.expm1(np.minimum(per_s * mean_s, LONGEST_RUN))
