"""The number of replicas where it changes the cache hit rate.

With random routing, the hit rate falls as replicas are added, so more replicas are needed than one replica alone suggests.
With affinity routing, each of many replicas has fewer prefixes to hold. The idle conversations that a cache must keep depend
on the load of its replica. A cache that is too small for all prefixes and the live requests keeps a part of the prefixes, so
more than one part is tried. The answer is the fewest replicas that suffice with the hit rate at their number. The search
evaluates each trial; this module chooses the trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sizing.model.extras import Cached, Extras
from sizing.replica.capacity import Capacity, idle_conversations, points_of
from sizing.replica.replica import Refusal, Replica, fitting, with_extras
from sizing.replica.timing import timed
from sizing.specs.data import Data
from sizing.specs.workload import Target

MOST_REPLICAS = 4096  # the largest number tried for a layout
# Of all prefixes, tried in this order; the last is a cache that finds nothing.
PARTS_KEPT = 1.0, 0.5, 0.25, 0.1, 0.05, 0.02, 0.0
KEPT_ROUNDS, KEPT_CLOSE = 24, 1e-3  # rounds and precision in the search for the share kept


class Trial(NamedTuple):
    """What to evaluate: a number of replicas, and the share of conversation histories or prefixes that their caches keep."""

    replicas: int
    kept: float


class Reply(NamedTuple):
    """The result of a trial: the replicas that the demand then needs, and the share of histories that the tried ones keep.

    A rejected layout has no `needed`; `memory` says that it might fit if its cache had less to hold. `most` is the capacity
    of a replica.
    """

    needed: int | None
    kept: float = 0.0
    memory: bool = False
    most: float = 0.0

    @property
    def rank(self) -> tuple[float, float]:
        """The order of replies: the fewest replicas first, then the highest capacity."""
        return math.inf if self.needed is None else self.needed, -self.most


Result = TypeVar("Result")
Trials = Generator[Trial, Reply, Trial | None]


def settling(replicas: int, cached: Cached, kept: float = 1.0) -> Generator[Trial, Reply, tuple[Trial, Reply]]:
    """Try `replicas` replicas; find the share of histories that they keep, starting from `kept`."""
    if cached.evicts:
        return (yield from _most_kept(replicas))
    before: float | None = None
    for _ in range(KEPT_ROUNDS if cached.think_time_s is not None else 0):
        trial = Trial(replicas, kept)
        reply = yield trial
        if reply.needed is None or reply.needed > replicas or reply.kept >= kept - KEPT_CLOSE:
            return trial, reply
        limit = _limit(before, kept, reply.kept)
        before, kept = (kept, reply.kept) if limit is None else (None, limit)
    trial = Trial(replicas, 0.0 if cached.think_time_s is not None else 1.0)
    return trial, (yield trial)


def _most_kept(replicas: int) -> Generator[Trial, Reply, tuple[Trial, Reply]]:
    """Try parts of the prefixes, the largest first, until a smaller one is no better. Live requests have the rest of the cache.

    A cache that finds nothing is tried in any case, so that prefix caching never takes more than none.
    """
    best: tuple[Trial, Reply] | None = None
    for part in PARTS_KEPT[:-1]:
        reply = yield (trial := Trial(replicas, part))
        if best is not None and best[1].needed is not None and reply.rank >= best[1].rank:
            break
        best = trial, reply
    assert best is not None
    reply = yield (trial := Trial(replicas, PARTS_KEPT[-1]))
    if best[1].needed is None or reply.rank < best[1].rank:
        return trial, reply
    yield best[0]
    return best


def _limit(before: float | None, kept: float, after: float) -> float | None:
    """The limit of a falling share from three values (Aitken's delta-squared); None where they do not converge."""
    if before is None or (kept - after) >= (before - kept):
        return None
    first, second = kept - before, after - kept
    return max(0.0, before - first * first / (second - first))


def fewest(cached: Cached) -> Trials:
    """Find the fewest replicas that suffice. Returns their trial; None where no number suffices.

    The search starts at one replica, and then tries the number that the last trial needed. Where more replicas have a lower
    hit rate, no number in between suffices. Where more replicas have less to keep (`cached.is_relieved`), a bisection between the
    last number that failed and the first that sufficed follows.
    """
    low, count = 0, 1
    while True:
        trial, reply = yield from settling(count, cached)
        if reply.needed is not None and reply.needed <= count:
            break
        if cached.evicts and not cached.affinity and reply.needed is not None:  # each replica is like a lone one
            yield (trial := Trial(reply.needed, trial.kept))
            return trial
        low = count
        if reply.needed is not None:
            count = reply.needed
        elif cached.is_relieved and count < MOST_REPLICAS and (reply.memory or trial.kept < 1):
            count = min(2 * count, MOST_REPLICAS)
        else:
            return None
    while cached.is_relieved and count - low > 1:
        middle = (low + count) // 2
        other, reply = yield from settling(middle, cached, trial.kept)  # more replicas keep at least as much
        if reply.needed is not None and reply.needed <= middle:
            count, trial = middle, other
        else:
            low = middle
    return trial


def fewest_of(
    layouts: int, cached: Cached, tried: Callable[[Mapping[int, Trial]], Sequence[tuple[Result, Reply]]]
) -> list[tuple[Result, Trial | None]]:
    """Find the fewest replicas for each of `layouts` layouts. `tried` evaluates the next trials of all layouts together.

    For each layout, returns the result and trial that sufficed; where none did, the last result and None.
    """
    searches = [fewest(cached) for _ in range(layouts)]
    trials = {number: next(each) for number, each in enumerate(searches)}
    seen: dict[tuple[int, Trial], Result] = {}
    done: dict[int, tuple[Result, Trial | None]] = {}
    while trials:
        for (number, trial), (result, reply) in zip(list(trials.items()), tried(trials), strict=True):
            seen[number, trial] = result
            try:
                trials[number] = searches[number].send(reply)
            except StopIteration as stop:
                del trials[number]
                done[number] = (result, None) if stop.value is None else (seen[number, stop.value], stop.value)
    return [done[number] for number in range(layouts)]


def settled(replicas: int, cached: Cached, tried: Callable[[Trial], tuple[Result, Reply]]) -> Result:
    """The result for `replicas` replicas at the share of histories that they keep."""
    trials = settling(replicas, cached)
    trial = next(trials)
    while True:
        result, reply = tried(trial)
        try:
            trial = trials.send(reply)
        except StopIteration:
            return result


def with_hit_rate(replica: Replica, trial: Trial) -> Replica | Refusal:
    """A layout as one of the trial's replicas, with the hit rate of each attention-data rank.

    Its cache memory excludes the shared prefixes.
    """
    return fitting(with_extras(replica, extras_under(replica, trial)))


def extras_under(replica: Replica, trial: Trial) -> Extras:
    """The extras of `replica` under `trial`."""
    return replica.service.extras.over(trial.replicas * replica.layout.dp, trial.kept)


def extras_at(replica: Replica, target: Target, replicas: int, data: Data) -> Extras:
    """The extras of `replica` with the hit rate of `replicas` replicas under a demand.

    Raises UntimedError where the data cannot time the layout.
    """

    def tried(trial: Trial) -> tuple[Extras, Reply]:
        layout = with_hit_rate(replica, trial)
        if isinstance(layout, Refusal):
            return extras_under(replica, trial), Reply(None)
        load = timed(layout, data)
        most = Capacity(0.0, 0.0, load.most_decoding, "")
        (point,) = points_of([load], [target], [most], [replicas])
        idle = idle_conversations(layout, target, point, replicas)
        return layout.service.extras, Reply(replicas, 1.0 if idle is None else idle.kept)

    return settled(replicas, replica.service.extras.cached, tried)
