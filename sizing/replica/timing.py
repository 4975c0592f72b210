"""Replicas with tabulated step times. All pipeline depths of a split share its tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from sizing.model.extras import cached_tokens
from sizing.replica import curves as curves_of
from sizing.replica import step as step_model
from sizing.replica import throughput
from sizing.replica.curves import Curves, StepLengths
from sizing.replica.kernels import Kernels
from sizing.replica.points import Batching
from sizing.replica.replica import Replica
from sizing.specs.data import Data
from sizing.specs.errors import UntimedError

MOST_KEPT = 1024  # splits whose tables are kept, some ten kB each


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Timed:
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
        return throughput.decoding_limit(self.batching, self.slots)

    @property
    def highest_per_s(self) -> float:
        """Requests/s of one replica with all slots full, or with prefill taking all the time; latency limits are ignored."""
        return float(throughput.highest_per_s(self.curves, self.batching, np.array([self.most_decoding]))[0])


class _Key(NamedTuple):
    """What the step times of a split at one stage depend on."""

    split: Kernels
    isl: int
    osl: int


@lru_cache(maxsize=MOST_KEPT)
def _without_lengths(split: Kernels) -> tuple[Kernels, Curves]:
    return split, curves_of.without_lengths(split)


@dataclass(frozen=True, slots=True)
class Timing:
    """Step tables of one search, by all that a split and its kernels depend on, and by lengths.

    What does not depend on lengths is tabulated once per process.
    """

    data: Data
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
        split = Kernels.of(replica, self.data).at(replica.layout._replace(pp=1))
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


def timed(replica: Replica, data: Data) -> Timed:
    """One replica with its step times. Raises UntimedError if an operation has no timing data."""
    return Timing(data).of(replica)
