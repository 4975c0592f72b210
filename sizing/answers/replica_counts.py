"""The number of replicas where it changes the cache hit rate.

With random routing, the hit rate falls as replicas are added, so more replicas are needed than one replica alone suggests.
With affinity routing, each of many replicas has fewer prefixes to hold. The idle conversations that a cache must keep depend
on the load of its replica: the capacity of a replica is the highest load at which the cache keeps the share of histories that it
is taken to keep. A cache that is too small for all prefixes and the live requests keeps a part of the prefixes, so more than one
part is tried. The answer is the fewest replicas that suffice with the hit rate at their number. The search
evaluates each trial; this module chooses the trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from sizing.model.extras import Cached, Extras
from sizing.replica.capacity import Capacity, points_of
from sizing.replica.histories import idle_conversations
from sizing.replica.replica import Refusal, Replica, fitting, with_extras
from sizing.replica.timing import timed
from sizing.specs.optimisations import MOST_REPLICAS
from sizing.specs.workload import Target

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
    of a replica, and `room` the rate at which idle conversations fill its cache, over the rate that the limits allow.
    `least` replicas are needed if no cache is ever full. `kept` is None without a demand.
    """

    needed: int | None
    kept: float | None = 0.0
    memory: bool = False
    most: float = 0.0
    room: float = math.inf
    least: int | None = None

    @property
    def rank(self) -> tuple[float, float]:
        """The order of replies: the fewest replicas first, then the highest capacity."""
        return math.inf if self.needed is None else self.needed, -self.most


class Settled(NamedTuple):
    """The trial that a number of replicas settles at, and the trial in which a replica serves the most."""

    trial: Trial
    most: Trial


Result = TypeVar("Result")
Trials = Generator[Trial, Reply, Settled | None]
Replies = Generator[Trial, Reply, tuple[Settled, Reply]]
Combined = Callable[[Result, Result, Settled], Result]  # a result, with the capacity of the other one


def settling(replicas: int, cached: Cached, most_kept: float | None = None, *, sizes: bool = False) -> Replies:
    """Try `replicas` replicas: find their capacity, and the share of histories that they keep under the demand.

    `most_kept` is the share at which they serve the most, if it is known. A search that `sizes` needs no capacity of replicas
    that are too few for the limits alone.
    """
    if cached.evicts:
        return (yield from _most_kept(replicas))
    most = Trial(replicas, 1.0 if most_kept is None else most_kept)
    highest = yield most
    if cached.think_time_s is None:
        return Settled(most, most), highest
    if sizes and highest.least is not None and highest.least > replicas:
        return Settled(most, most), highest._replace(needed=highest.least)
    if most_kept is None:
        most, highest = yield from _most_served(most, highest)
    if highest.needed is None or highest.needed > replicas or highest.kept is None:
        return Settled(most, most), highest
    return Settled((yield from _kept_under_demand(most, highest)), most), highest


def _most_served(trial: Trial, reply: Reply) -> Generator[Trial, Reply, tuple[Trial, Reply]]:
    """The trial in which a replica serves the most, from the one that keeps all histories.

    Caches that keep more histories find more, so the limits allow a higher rate; but at a higher rate more histories are
    idle. A replica serves the most where the limits and the room for idle histories allow the same rate.
    """
    best, full, loose = (trial, reply), _Side(trial.kept, reply.room, reply.most), _Side(0.0, math.inf, 0.0)
    for _ in range(KEPT_ROUNDS if reply.room < 1 else 0):
        tried = Trial(trial.replicas, _between(loose, full))
        found = yield tried
        side = _Side(tried.kept, found.room, found.most)
        if found.most > best[1].most:
            best = tried, found
        if side.room >= 1:  # a side that stays counts half, so that the interpolation comes nearer to it (Illinois)
            loose, full = side, full._replace(room=math.sqrt(full.room))
        elif side.most > full.most:
            full, loose = side, loose._replace(room=math.sqrt(loose.room))
        else:  # fewer histories leave no room for a higher rate
            break
        if abs(math.log(side.room)) <= KEPT_CLOSE or full.kept - loose.kept <= KEPT_CLOSE * full.kept:
            break
    return best


class _Side(NamedTuple):
    """A share of histories on one side of the one at which a replica serves the most: `room` is below 1 on the upper side."""

    kept: float
    room: float
    most: float


def _between(loose: _Side, full: _Side) -> float:
    """The share of histories to try between two: by interpolation in logarithms, or as if the limits allowed one rate."""
    if not loose.kept:
        return full.kept * max(full.room, KEPT_CLOSE)
    if math.isinf(loose.room):  # rejected
        return math.sqrt(loose.kept * full.kept)
    above, below = math.log(loose.room), math.log(full.room)
    return loose.kept * math.exp(math.log(full.kept / loose.kept) * above / (above - below))


def _kept_under_demand(most: Trial, highest: Reply) -> Generator[Trial, Reply, Trial]:
    """The trial with the share of histories that replicas keep under their demand: at least that at their capacity."""
    least, before = most.kept if most.kept < 1 else 0.0, None
    trial, reply = most, highest
    if least:
        reply = yield (trial := Trial(most.replicas, 1.0))
    for _ in range(KEPT_ROUNDS):
        kept, after = trial.kept, reply.kept or 0.0
        if kept <= least or after >= kept - KEPT_CLOSE:
            return trial
        limit = _limit(before, kept, after)
        before, kept = (kept, after) if limit is None else (None, limit)
        trial = Trial(most.replicas, max(least, kept))
        reply = yield trial
    if not least:
        yield (most := Trial(most.replicas, 0.0))
    return most


def _most_kept(replicas: int) -> Replies:
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
        best = trial, reply
    return Settled(best[0], best[0]), best[1]


def _limit(before: float | None, kept: float, after: float) -> float | None:
    """The limit of a falling share from three values (Aitken's delta-squared); None where they do not converge."""
    if before is None or (kept - after) >= (before - kept):
        return None
    first, second = kept - before, after - kept
    return max(0.0, before - first * first / (second - first))


def fewest(cached: Cached) -> Trials:
    """Find the fewest replicas that suffice. Returns what they settle at; None where no number suffices.

    The search starts at one replica, and then tries the number that the last trial needed. Where more replicas have a lower
    hit rate, no number in between suffices. Where more replicas have less to keep (`cached.is_relieved`), a bisection between the
    last number that failed and the first that sufficed follows.
    """
    low, count = 0, 1
    most_kept: float | None = None
    while True:
        settled, reply = yield from settling(count, cached, most_kept, sizes=True)
        if reply.needed is not None and reply.needed <= count:
            break
        if cached.evicts and not cached.affinity and reply.needed is not None:  # each replica is like a lone one
            trial = Trial(reply.needed, settled.trial.kept)
            yield trial
            return Settled(trial, trial)
        if cached.affinity and not cached.is_relieved and reply.needed != reply.least:  # every number has this capacity
            most_kept = settled.most.kept
        low = count
        if reply.needed is not None:
            count = reply.needed
        elif cached.is_relieved and count < MOST_REPLICAS and (reply.memory or settled.trial.kept < 1):
            count = min(2 * count, MOST_REPLICAS)
        else:
            return None
    while cached.is_relieved and count - low > 1:
        middle = (low + count) // 2
        other, reply = yield from settling(middle, cached)
        if reply.needed is not None and reply.needed <= middle:
            count, settled = middle, other
        else:
            low = middle
    return settled


def fewest_of(
    layouts: int,
    cached: Cached,
    tried: Callable[[Mapping[int, Trial]], Sequence[tuple[Result, Reply]]],
    combined: Combined[Result],
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
                done[number] = result, None
                if stop.value is not None:
                    one, most = (seen[number, each] for each in stop.value)
                    done[number] = combined(one, most, stop.value), stop.value.trial
    return [done[number] for number in range(layouts)]


def settled(
    replicas: int, cached: Cached, tried: Callable[[Trial], tuple[Result, Reply]], combined: Combined[Result]
) -> Result:
    """The result for `replicas` replicas at the share of histories that they keep."""
    trials = settling(replicas, cached)
    trial, seen = next(trials), dict[Trial, Result]()
    while True:
        seen[trial], reply = tried(trial)
        try:
            trial = trials.send(reply)
        except StopIteration as stop:
            found: Settled = stop.value[0]
            return combined(seen[found.trial], seen[found.most], found)


def with_hit_rate(replica: Replica, trial: Trial) -> Replica | Refusal:
    """A layout as one of the trial's replicas, with the hit rate of each attention-data rank.

    Its cache memory excludes the shared prefixes.
    """
    return fitting(with_extras(replica, extras_under(replica, trial)))


def extras_under(replica: Replica, trial: Trial) -> Extras:
    """The extras of `replica` under `trial`."""
    return replica.service.extras.over(trial.replicas * replica.layout.dp, trial.kept)


def extras_at(replica: Replica, target: Target, replicas: int) -> Extras:
    """The extras of `replica` with the hit rate of `replicas` replicas under a demand.

    Raises UntimedError where the data cannot time the layout.
    """

    def tried(trial: Trial) -> tuple[Extras, Reply]:
        layout = with_hit_rate(replica, trial)
        if isinstance(layout, Refusal):
            return extras_under(replica, trial), Reply(None)
        load = timed(layout)
        most = Capacity(0.0, 0.0, load.most_decoding, "")
        (point,) = points_of([load], [target], [most], [replicas])
        idle = idle_conversations(layout, target, point, replicas)
        return layout.service.extras, Reply(replicas, 1.0 if idle is None else idle.kept)

    return settled(replicas, replica.service.extras.cached, tried, lambda found, most, at: found)
