"""Replicas with tabulated step times, and the requests/s that these allow at any load.

All pipeline depths of a split share its tables. `batching` has the derivation of the rates and computes latencies from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sizing.model.attention import Numeric
from sizing.model.extras import cached_tokens
from sizing.replica import curves as curves_of
from sizing.replica import step as step_model
from sizing.replica.curves import Array, Batching, Curves, StepLengths, decode_step_s, prefill_steps
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.specs.errors import UntimedError
from sizing.specs.frozen import Frozen

MOST_KEPT = 1024  # splits whose tables are kept, some ten kB each


class Timed(Frozen):
    """A replica with its timing constants, step-time curves and batching, and the most requests that it runs at once.

    Each is equal to itself alone, so that what is computed of it can be kept as long as it lives.

    `slots_bound` says what limits `slots`: `kv_cache` or `max_num_seqs`.
    """

    replica: Replica
    kernels: Kernels
    curves: Curves
    batching: Batching
    slots: int
    slots_bound: str

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    @property
    def borrows(self) -> bool:
        """Whether any operation is timed by a row of another GPU."""
        rows = self.kernels.choices(step_model.every_operation(self.kernels.shard)).values()
        return any(row.borrowed_from for row in rows)

    @property
    def solo_ttft_s(self) -> float:
        """Seconds to the first token of a request that runs alone."""
        return float(curves_of.solo_ttft_s(self.curves, self.batching))

    @property
    def solo_itl_s(self) -> float:
        """Seconds between tokens of a request that runs alone; 0 if there is no second token."""
        return float(curves_of.solo_itl_s(self.curves, self.batching))

    def phases_s(self, decoding: float) -> tuple[float, float]:
        """Replica seconds that one request takes for prefill, and for decode in a batch of `decoding` sequences."""
        flow = self.batching
        full_s = curves_of.prefill_step_s(self.curves, flow, 0.0, flow.dp)  # each rank has a prompt
        prefill_s = float(flow.chunks * full_s / (flow.stages * flow.dp))
        together = max(1.0, decoding)
        step_s = float(curves_of.decode_step_s(self.curves, flow, together)) if flow.osl > 1 else 0.0
        return prefill_s, float(flow.osl - 1) * step_s / together

    @property
    def most_decoding(self) -> float:
        """The most sequences that decode at once, at any latency."""
        return decoding_limit(self.batching, self.slots)

    @property
    def highest_per_s(self) -> float:
        """Requests/s of one replica with all slots full, or with prefill taking all the time; latency limits are ignored."""
        return float(highest_per_s(self.curves, self.batching, np.array([self.most_decoding]))[0])


class _Key(NamedTuple):
    """What the step times of a split at one stage depend on."""

    split: Kernels
    isl: int
    osl: int


@lru_cache(maxsize=MOST_KEPT)
def _without_lengths(split: Kernels) -> tuple[Kernels, Curves]:
    return split, curves_of.without_lengths(split)


class Timing(Frozen):
    """Step tables of one search, by all that a split and its kernels depend on, and by lengths.

    What does not depend on lengths is tabulated once per process.
    """

    _splits: dict[_Key, tuple[Kernels, Curves]] = field(default_factory=dict)

    def of(self, replica: Replica) -> Timed:
        """A replica with its step times for its service's lengths. Raises UntimedError if an operation has no timing data."""
        (found,) = self.of_each([replica])
        if isinstance(found, UntimedError):
            raise found
        return found

    def of_each(self, replicas: Sequence[Replica]) -> list[Timed | UntimedError]:
        """`of` for many replicas, with its error as a value. Equal splits of different lengths are evaluated in one batch."""
        keys = [self._key(replica) for replica in replicas]
        groups: dict[Kernels, dict[_Key, Replica]] = {}
        for key, replica in zip(keys, replicas, strict=True):
            if key not in self._splits:
                groups.setdefault(key.split, {})[key] = replica
        for group in groups.values():
            with suppress(UntimedError):  # what cannot be timed is found again for each replica
                self._tabulate(group)
        return [self._timed(key, replica) for key, replica in zip(keys, replicas, strict=True)]

    def _timed(self, key: _Key, replica: Replica) -> Timed | UntimedError:
        try:
            if key not in self._splits:
                self._tabulate({key: replica})
            kernels, split = self._splits[key]
            return _timed(replica, kernels.at(replica.layout), split)
        except UntimedError as error:
            return error

    def _key(self, replica: Replica) -> _Key:
        split = Kernels.of(replica).at(replica.layout._replace(pp=1))
        return _Key(split, replica.service.isl, replica.service.osl)

    def _tabulate(self, group: Mapping[_Key, Replica]) -> None:
        """Tabulate equal splits of different lengths at one stage."""
        kernels, tables = _without_lengths(next(iter(group)).split)
        found = curves_of.with_lengths(tables, kernels, [_lengths(each) for each in group.values()])
        self._splits.update((key, (kernels, curves)) for key, curves in zip(group, found, strict=True))


def timed_by(replica: Replica, kernels: Kernels) -> Timed:
    """A replica with the step times of given kernels for its service's lengths."""
    split = kernels.at(replica.layout._replace(pp=1))
    (curves,) = curves_of.with_lengths(curves_of.without_lengths(split), split, [_lengths(replica)])
    return _timed(replica, kernels, curves)


def _lengths(replica: Replica) -> StepLengths:
    service, settings = replica.service, replica.settings
    cached = cached_tokens(service.isl, service.extras.cached.share)
    return StepLengths(
        context_tokens=service.isl + service.osl / 2,
        prompt_tokens=service.isl,
        chunk_tokens=min(service.isl - cached, settings.max_num_batched_tokens),
        cached_tokens=cached,
    )


def _timed(replica: Replica, kernels: Kernels, split: Curves) -> Timed:
    service, layout, settings = replica.service, replica.layout, replica.settings
    curves = curves_of.at_depth(split, kernels)
    longest, used = service.isl + service.output_tokens, replica.memory
    by_cache = int(used.max_concurrency if used.max_model_len == longest else replica.concurrency_at(longest))
    by_engine = settings.most_sequences(layout.pp) * layout.dp
    to_prefill = service.isl - cached_tokens(service.isl, service.extras.cached.share)
    prefilled = service.phase == "decode"  # the front end time of these prompts was spent before their prefill
    flow = Batching(
        isl=to_prefill,
        osl=service.osl,
        chunk_tokens=min(to_prefill, settings.max_num_batched_tokens),
        budget_tokens=settings.max_num_batched_tokens,
        prefill_only=settings.step_order == "prefill_first" and not prefilled,
        pp=layout.pp,
        dp=layout.dp,
        tokens_per_step=service.extras.tokens_per_step,
        prefilled=prefilled,
        even_stages=1 / float(curves.largest_stage) if layout.pp > 1 else None,
        slots=max(1, min(by_cache, by_engine)),
        ahead=settings.host.ahead and settings.host.overlapped and layout.pp == 1 and not prefilled,
    )
    return Timed(
        replica,
        kernels,
        replace(curves, front_end_s=0.0, serial_s=0.0) if prefilled else curves,
        flow,
        max(1, min(by_cache, by_engine)),
        "kv_cache" if by_cache < by_engine else "max_num_seqs",
    )


def timed(replica: Replica) -> Timed:
    """One replica with its step times. Raises UntimedError if an operation has no timing data."""
    return Timing().of(replica)


PrefillSteps = Callable[[Numeric], Numeric]  # seconds of a step with prefill, by the prompts that share it
TINY = 1e-12  # avoids 0/0 where nothing arrives
PACKING_ROUNDS = 32  # rounds of a fixed point; at up to 0.8 utilisation its error is then below 0.1 %


class Rates(Frozen):
    """The quantities of an open loop, for arrays of decoding sequences.

    `prompt_s` lasts from the start of a prompt's prefill to its first token. `hit_s` is what prefill adds to a decode step,
    and `another_s` what one more prompt adds to such a step. `in_prefill` is the share of time in steps with prefill. `busy` is
    the share of the prefill capacity with full budgets.
    """

    decoding: Array
    step_s: Array
    decode_s: Array
    chunk_s: Array
    full_s: Array
    prompt_s: Array
    hit_s: Array
    another_s: Array
    requests_per_s: Array
    in_prefill: Array
    busy: Array


class Pace(NamedTuple):
    """Speed of an open loop: seconds of steps, prompts that share a step, what prefill adds to a step, throughput."""

    step_s: Array
    decode_s: Array
    chunk_s: Array
    together: Array
    hit_s: Array
    requests_per_s: Array


def _beside(flow: Batching, decoding: Array) -> Array:
    """Sequences that decode in a step with prefill."""
    return np.zeros_like(decoding) if flow.prefill_only else decoding


def pace_of(curves: Curves, flow: Batching, decoding: Array, queued: bool = False) -> Pace:
    """The pace of Poisson arrivals that keep `decoding` sequences decoding.

    `queued` means that other requests wait for a slot.
    """
    return _pace(curves, flow, decoding, prefill_steps(curves, flow, _beside(flow, decoding)), queued=queued)


def _pace(curves: Curves, flow: Batching, decoding: Array, steps: PrefillSteps, *, queued: bool = False) -> Pace:
    decode_s = np.asarray(decode_step_s(curves, flow, decoding))
    # With a mean of m Poisson arrivals within a step on each stage, a step with any arrival has m/(1 - exp(-m)). With
    # several ranks, the prompts in prefill at once are those that came during all the steps of one prompt.
    within = np.maximum(decoding * flow.chunks / (flow.decode_steps * flow.stages), TINY)
    together = np.clip(within / -np.expm1(-within), 1.0, flow.most_together)
    pace = _paced(flow, decoding, decode_s, together, np.asarray(steps(together)))
    if flow.flat and not queued:
        for _ in range(PACKING_ROUNDS):
            before, together = together, _packed(flow, pace)
            if np.array_equal(together, before):
                break
            pace = _paced(flow, decoding, decode_s, together, np.asarray(steps(together)))
    return pace


def _paced(flow: Batching, decoding: Array, decode_s: Array, together: Array, chunk_s: Array) -> Pace:
    hit_s = chunk_s if flow.prefill_only else np.maximum(chunk_s - decode_s, 0.0)
    delay_s = flow.chunks * hit_s / together / flow.stages
    step_s = decode_s + decoding * delay_s / flow.decode_steps
    return Pace(step_s, decode_s, chunk_s, together, hit_s, decoding / (flow.decode_steps * step_s))


def _packed(flow: Batching, pace: Pace) -> Array:
    """The mean number of prompts in a prefill step, where prefill goes before decode.

    A step takes the prompts that came during the step before. Let m be the mean number of arrivals in a prefill step. Another
    prefill step follows with probability 1 - exp(-m), so a run has exp(m) prefill steps on average. The first step of a run
    takes what came during a decode step, given that anything came.
    An engine that plans ahead has made up one more decode step by then. The second prefill step takes its arrivals too; where
    steps are mixed that changes little.
    """
    per_s = pace.requests_per_s * flow.chunks / flow.stages
    within_decode, within_prefill = per_s * pace.decode_s, per_s * pace.chunk_s
    first = within_decode / -np.expm1(-np.maximum(within_decode, TINY))
    late = within_decode * (flow.ahead and flow.prefill_only)
    with np.errstate(over="ignore"):  # far above any stable rate, where steps without end are right
        steps = 1 - np.expm1(-late - within_prefill) * np.exp(within_prefill)
    together: Array = np.clip((first + late) / steps + within_prefill, 1.0, flow.most_together)
    return together


def rates_of(curves: Curves, flow: Batching, decoding: Array) -> Rates:
    """The quantities of Poisson arrivals that keep `decoding` sequences decoding."""
    steps = prefill_steps(curves, flow, _beside(flow, decoding))
    step_s, decode_s, chunk_s, together, hit_s, requests_per_s = _pace(curves, flow, decoding, steps)
    full_s = np.asarray(steps(flow.most_together))
    # The launch time outside CUDA graphs hides the first prompts of a step, so one more adds less to few than to many.
    more = np.minimum(together + 1.0, flow.most_together)
    more_s = np.asarray(steps(more))
    steps_per_s = requests_per_s * flow.chunks / flow.stages
    return Rates(
        decoding=decoding,
        step_s=step_s,
        decode_s=decode_s,
        chunk_s=chunk_s,
        full_s=full_s,
        prompt_s=flow.passes * chunk_s,
        hit_s=hit_s,
        another_s=more_s - chunk_s,
        requests_per_s=requests_per_s,
        in_prefill=steps_per_s * chunk_s / together,
        busy=steps_per_s * full_s / flow.most_together,
    )


def prefill_rates(curves: Curves, flow: Batching, utilisation: Array) -> Rates:
    """The quantities of Poisson arrivals where nothing decodes (OSL 1).

    `utilisation` is the share of the prefill capacity with full budgets.
    """
    nothing = np.zeros_like(utilisation)
    steps = prefill_steps(curves, flow, nothing)
    full_s = np.asarray(steps(flow.most_together))
    requests_per_s = utilisation * flow.most_together * flow.stages / (flow.chunks * full_s)
    per_stage = requests_per_s * flow.chunks / flow.stages
    together = np.ones_like(utilisation)
    chunk_s = full_s
    for _ in range(PACKING_ROUNDS):  # prompts that arrive within a step share the next one
        chunk_s = np.asarray(steps(together))
        before, together = together, np.clip(per_stage * chunk_s, 1.0, flow.most_together)
        if np.array_equal(together, before):
            break
    return Rates(
        decoding=nothing,
        step_s=nothing,
        decode_s=nothing,
        chunk_s=chunk_s,
        full_s=full_s,
        prompt_s=flow.passes * chunk_s,
        hit_s=chunk_s,
        another_s=chunk_s,
        requests_per_s=requests_per_s,
        in_prefill=np.minimum(1.0, per_stage * chunk_s / together),
        busy=utilisation,
    )


def queued_per_s(curves: Curves, flow: Batching, decoding: Array) -> Array:
    """Requests/s with `decoding` sequences decoding while other requests always wait for a slot.

    A request that ends within a decode step is replaced at once. Where prefill goes first, the b/(o-1) replacements share
    one prefill step; Poisson arrivals that find a free slot do not.
    """
    if not flow.decodes:
        return prefill_rates(curves, flow, decoding).requests_per_s
    pace = pace_of(curves, flow, decoding, queued=True)
    share = pace.requests_per_s * flow.chunks / flow.stages * pace.chunk_s / pace.together
    return pace.requests_per_s / np.maximum(1.0, share)


def requests_per_s(curves: Curves, flow: Batching, decoding: Array) -> Array:
    """Requests/s that keep `decoding` sequences decoding on average; see `batching.open_loop`."""
    return (pace_of if flow.decodes else prefill_rates)(curves, flow, decoding).requests_per_s


def highest_per_s(curves: Curves, flow: Batching, decoding: Array) -> Array:
    """The most requests/s that keep up to `decoding` sequences decoding, at any latency.

    It is the larger of two rates. One is what Poisson arrivals bring, limited by the time for prefill. The other is what is
    served while requests wait; it is larger where arrivals delay decoding so much that slots fill up. The front end's thread
    limits both.
    """
    rates = (rates_of if flow.decodes else prefill_rates)(curves, flow, decoding)
    brought: Array = rates.requests_per_s / np.maximum(1.0, rates.in_prefill)
    served = np.maximum(brought, queued_per_s(curves, flow, decoding))
    return np.minimum(served, 1 / curves.serial_s) if curves.serial_s else served


def decoding_limit(flow: Batching, running: float) -> float:
    """Most sequences that can decode at once: limited by the `running` slots, and by how fast prefill replaces sequences.

    With full budgets, most_together/chunks prompts finish per step on each stage, and sequences leave after `decode_steps`
    steps. With OSL 1 the limit is a utilisation of 1.
    """
    if not flow.decodes:
        return 1.0
    if flow.prefilled:
        return float(running)
    replenished = flow.most_together / flow.chunks * flow.decode_steps * flow.stages
    return float(running) if flow.prefill_only else float(min(running, replenished))
