"""In-flight batching in closed form: from the step time to TTFT, ITL, E2E and throughput at any load.

Let b sequences decode, each with o-1 tokens to come after its first, prompts of i tokens be prefilled c at a time, d(b)
be a decode step and m(b, c) a step that carries a chunk. A finished prompt costs the running sequences p = (i/c)(m-d)
seconds (mixed steps) or (i/c)*prefill(c) (prefill-only steps). With X prompts a second a step lasts S = d + X*S*p on
average, and b = X*(o-1)*S, so

    ITL = S = d(b) + b*p/(o-1),    X = b/((o-1)*S).

All is explicit in b; arrays over b (or over layouts) go through unchanged. Waiting: under Poisson arrivals prompts queue
for the prefill capacity as M/D/1 (Pollaczek-Khinchine with constant service); in a closed loop whose requests start
together and have equal lengths they stay grouped, so a prompt waits for half of the group's prefill on average.
Percentiles follow from the same picture (exponential tail of the wait with the exact mean; normal spread of the
number of prefills that a request sits through) and are approximations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from sizing.attention.terms import Numeric
from sizing.step import Curves, lookup, with_host_s

Array = NDArray[np.float64]
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
Quantiles = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Service:
    """What a layout serves: lengths, chunk of prefill, pipeline depth, attention-data ranks, scheduler's step order.

    `chunk_tokens` is the prompt's share of one step's token budget; `prefill_only` says that a step with a prompt
    carries no decodes (SGLang, vLLM V0).
    """

    isl: float
    osl: float
    chunk_tokens: float
    budget_tokens: float
    prefill_only: bool
    pp: int = 1
    dp: int = 1


@dataclass(frozen=True, slots=True)
class Point:
    """Operating points, one entry a load: seconds, requests a second of one replica, sequences in flight.

    `ttft_s`, `itl_s`, `e2e_s` map `mean` and percentiles to arrays; ITL is NaN-free: zero where OSL is 1 and no second
    token exists. `stable` is False where prompts arrive faster than they can be prefilled.
    """

    requests_per_s: Array
    decoding: Array
    running: Array
    ttft_s: dict[str, Array]
    itl_s: dict[str, Array]
    e2e_s: dict[str, Array]
    prefill_share: Array
    stable: NDArray[np.bool_]


def decode_step_s(curves: Curves, service: Service, decoding: Numeric) -> Numeric:
    """Seconds between two tokens of a sequence while nothing is prefilled: one pass of a microbatch of b/pp."""
    micro = np.maximum(np.asarray(decoding, dtype=float) / service.pp, 1.0)
    gpu_s = (
        lookup(curves.grid, curves.body_s, micro)
        + lookup(curves.grid, curves.head_s, micro)
        + curves.decode_floor_s
        + curves.decode_slope_s * micro
    )
    return with_host_s(gpu_s, curves.host, micro)


def prefill_step_s(curves: Curves, service: Service, decoding: Numeric) -> Numeric:
    """Seconds of a step that carries a chunk of prefill, with `decoding` sequences beside it (0: prefill only)."""
    micro = np.asarray(decoding, dtype=float) / service.pp
    chunks = service.isl / service.chunk_tokens
    tokens = micro + service.chunk_tokens
    attention_s = np.where(micro > 0, curves.decode_floor_s + curves.decode_slope_s * micro, 0.0)
    gpu_s = (
        lookup(curves.grid, curves.body_s, tokens)
        + lookup(curves.grid, curves.head_s, np.maximum(micro + 1 / chunks, 1.0))
        + attention_s
        + curves.prompt_attention_s / chunks
    )
    return with_host_s(gpu_s, curves.host, micro + 1)


def solo_ttft_s(curves: Curves, service: Service) -> float:
    """Seconds to the first token of a request that is alone."""
    return float(service.isl / service.chunk_tokens * prefill_step_s(curves, service, 0.0))


def solo_itl_s(curves: Curves, service: Service) -> float:
    """Seconds between tokens of a request that is alone."""
    return float(decode_step_s(curves, service, 1.0))


@dataclass(frozen=True, slots=True)
class _Rates:
    """The quantities that both kinds of load share, for arrays of decoding sequences."""

    step_s: Array
    decode_s: Array
    prompt_s: Array
    delay_s: Array
    requests_per_s: Array
    hits: Array
    prefill_share: Array


def _rates(curves: Curves, service: Service, decoding: Array) -> _Rates:
    chunks = service.isl / service.chunk_tokens
    decode_s = np.asarray(decode_step_s(curves, service, decoding))
    beside = np.zeros_like(decoding) if service.prefill_only else decoding
    chunk_s = np.asarray(prefill_step_s(curves, service, beside))
    lengthening_s = chunk_s if service.prefill_only else np.maximum(chunk_s - decode_s, 0.0)
    # A pipeline prefills pp prompts at once, one a stage, and attention-data ranks one each.
    parallel = service.pp * service.dp
    delay_s = chunks * lengthening_s / parallel
    after_first = max(service.osl - 1, 0)
    step_s = decode_s + (decoding * delay_s / after_first if after_first else 0.0)
    occupied_s = chunks * chunk_s / parallel
    if after_first:
        requests_per_s = decoding / (after_first * step_s)
    else:
        requests_per_s = decoding / occupied_s  # `decoding` then is the prefill's utilisation, 0..1
    return _Rates(
        step_s=step_s,
        decode_s=decode_s,
        prompt_s=chunks * chunk_s,
        delay_s=delay_s,
        requests_per_s=requests_per_s,
        hits=requests_per_s * after_first * step_s * chunks / parallel,
        prefill_share=requests_per_s * occupied_s,
    )


def open_loop(curves: Curves, service: Service, decoding: Array, quantiles: Quantiles = PERCENTILES) -> Point:
    """Operating points under Poisson arrivals, as many as keep `decoding` sequences decoding on average.

    With OSL 1 nothing decodes, and `decoding` is the utilisation of the prefill capacity, below 1.
    """
    rates = _rates(curves, service, decoding)
    busy = rates.prefill_share
    stable = busy < 1
    share = np.where(stable, busy, 0.0)
    # An arrival waits for the rest of the step in progress, then for the prompts before it.
    wait_s = share * rates.prompt_s / (2 * (1 - share))
    rest_s = (1 - share) * rates.decode_s / 2 if service.osl > 1 else 0.0
    base_s = rates.prompt_s + rest_s
    ttft_s = {"mean": base_s + wait_s}
    itl_s = {"mean": rates.step_s if service.osl > 1 else np.zeros_like(rates.step_s)}
    for name, q in quantiles.items():
        ttft_s[name] = base_s + _wait_quantile_s(wait_s, share, q)
        itl_s[name] = _itl_quantile_s(rates, service, q)
    after_first = max(service.osl - 1, 0)
    e2e_s = {name: ttft_s[name] + after_first * itl_s[name] for name in ttft_s}
    return Point(
        requests_per_s=rates.requests_per_s,
        decoding=decoding if service.osl > 1 else np.zeros_like(decoding),
        running=rates.requests_per_s * e2e_s["mean"],
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=e2e_s,
        prefill_share=busy,
        stable=stable,
    )


def _wait_quantile_s(mean_s: Array, busy: Array, q: float) -> Array:
    """Quantile of a wait that is zero with probability 1-busy, else exponential, with the given mean."""
    with np.errstate(divide="ignore", invalid="ignore"):
        tail = mean_s / busy * np.log(busy / (1 - q))
    return np.where((busy > 1 - q) & (mean_s > 0), tail, 0.0)


def _itl_quantile_s(rates: _Rates, service: Service, q: float) -> Array:
    """Quantile over requests of a request's mean ITL: the prefills it sits through are about Poisson, so normal."""
    after_first = max(service.osl - 1, 0)
    if not after_first:
        return np.zeros_like(rates.step_s)
    chunks = service.isl / service.chunk_tokens
    one_hit_s = rates.delay_s * service.pp * service.dp / chunks
    spread_s = one_hit_s * np.sqrt(rates.hits) / after_first
    return np.maximum(rates.decode_s, rates.step_s + NormalDist().inv_cdf(q) * spread_s)


def closed_loop(
    curves: Curves, service: Service, in_flight: Array, quantiles: Quantiles = PERCENTILES
) -> Point:
    """Operating points with a fixed number of requests in flight that start together and have equal lengths.

    The group is prefilled prompt after prompt, as many in a step as the budget takes, then decodes together; early
    prompts wait for late ones while they decode. Little's law gives the throughput: X = n/E2E.
    """
    together = np.maximum(1.0, np.floor(service.budget_tokens / service.isl))
    per_rank = np.maximum(in_flight / (service.pp * service.dp), 1.0)
    rounds = np.ceil(per_rank / together)
    batch = np.minimum(per_rank, together)
    round_s = _prompts_step_s(curves, service, batch)
    after_first = max(service.osl - 1, 0)
    prefill_s = rounds * round_s
    e2e_mean = prefill_s + after_first * np.asarray(decode_step_s(curves, service, in_flight))
    ttft_s = {"mean": (rounds + 1) / 2 * round_s}
    for name, q in quantiles.items():
        ttft_s[name] = np.ceil(q * rounds) * round_s
    itl_s = {"mean": _per_token(e2e_mean - ttft_s["mean"], after_first)}
    for name, q in quantiles.items():
        # The prompt that is prefilled first waits longest for its second token.
        first_token_s = np.maximum(1, np.ceil((1 - q) * rounds)) * round_s
        itl_s[name] = _per_token(e2e_mean - first_token_s, after_first)
    return Point(
        requests_per_s=in_flight / e2e_mean,
        decoding=in_flight * (1 - prefill_s / e2e_mean) if after_first else np.zeros_like(in_flight),
        running=in_flight,
        ttft_s=ttft_s,
        itl_s=itl_s,
        e2e_s=dict.fromkeys(("mean", *quantiles), e2e_mean),
        prefill_share=prefill_s / e2e_mean,
        stable=np.ones(in_flight.shape, dtype=bool),
    )


def _prompts_step_s(curves: Curves, service: Service, prompts: Array) -> Array:
    """Seconds to prefill `prompts` whole prompts together, in as many steps as the budget asks for."""
    chunks = service.isl / service.chunk_tokens
    tokens = np.where(chunks > 1, service.chunk_tokens, prompts * service.isl)
    gpu_s = chunks * (
        lookup(curves.grid, curves.body_s, tokens) + lookup(curves.grid, curves.head_s, prompts)
    )
    return np.asarray(with_host_s(gpu_s + prompts * curves.prompt_attention_s, curves.host, prompts))


def _per_token(seconds: Array, after_first: float) -> Array:
    return seconds / after_first if after_first else np.zeros_like(seconds)


def decoding_limit(service: Service, running: float) -> float:
    """Most sequences that can decode at once: `running` slots, and what one chunk a step can replenish (f <= 1).

    Every step carries at most one chunk a pipeline stage, so prompts arrive in decode at most at
    chunk/isl a step, and leave after osl-1 steps.
    """
    if service.osl <= 1:
        return 1.0
    replenished = service.chunk_tokens / service.isl * (service.osl - 1) * service.pp * service.dp
    return float(running) if service.prefill_only else min(float(running), replenished)
