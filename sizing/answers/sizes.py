"""The sizes of a layout, from the closed form's size upwards: those that a simulation refuted, and the one it confirmed.

The size after a failure is the one that the closed form gives when corrected by the simulation. After a second failure, the
step is at least twice the last one. When a size holds after one that failed, the search continues between the two. Where only
a GPU budget is given, the steps reduce the load instead of adding replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sizing.answers.answer import Answer, Pool
from sizing.answers.search import at_share, replicas, with_count
from sizing.catalog import shelf
from sizing.engine.simulation import Run
from sizing.question.question import Question
from sizing.replica.capacity import Capacity, highest_stable, most_of, point_at_rate
from sizing.replica.capacity import batch_s as closed_batch_s
from sizing.replica.histories import IDLE_CACHES
from sizing.specs.data import Verification
from sizing.specs.errors import UntimedError
from sizing.specs.workload import Limits, Target

VERIFY = shelf.only(Verification)
LEAST_RATIO = 1e-6  # smaller ratios are replaced by this before the logarithm


class SizeVerdict(NamedTuple):
    """The verdict of a simulation on a size.

    `kept` says whether the size keeps the limits, `decided` whether chance had no part in that. `worst_ratio` is the largest
    ratio of a latency to its limit. `measured` is the size under the load by which it is judged, with its run. `corrected` is the
    size under the demand, with its capacity corrected by the run; it has the run where both loads are the same.
    """

    kept: bool
    worst_ratio: float
    decided: bool
    measured: Answer
    corrected: Answer

    def broken(self, limits: Limits) -> str | None:
        """The limit that the simulation exceeds by the largest factor; None where it exceeds none."""
        run = self.measured.run
        assert run is not None
        over = limits.used(run.latencies_s.__getitem__)
        worst = max(over, key=lambda name: over[name], default=None)
        return worst if worst is not None and over[worst] > 1 else None


@dataclass(slots=True)
class TriedSizes:
    """The sizes of one layout or pair: `reachable` is the best size that it may still reach, `next` the size to try.

    Steps count from the closed form's size; `tried` has the verdict on each. Where the search has narrowed down to a size on
    which chance may have decided, `next` is that size again, and `so_far` has its run.
    """

    first: Answer
    question: Question
    reachable: Answer
    next: Answer
    so_far: Answer | None = None
    step: int = 0
    tried: dict[int, SizeVerdict] = field(default_factory=dict)
    tries: int = 0

    @classmethod
    def of(cls, first: Answer, question: Question) -> TriedSizes:
        """The sizes of a layout, none of them tried."""
        return cls(first, question, first, first)

    @property
    def _refuted(self) -> list[int]:
        """The refuted steps in ascending order, after -1 as a sentinel."""
        return [-1, *sorted(step for step, verdict in self.tried.items() if not verdict.kept)]

    @property
    def low(self) -> int:
        """The largest refuted step; -1 without one."""
        return self._refuted[-1]

    @property
    def high(self) -> int | None:
        """The smallest confirmed step above `low`."""
        low = self.low
        return min((step for step, verdict in self.tried.items() if verdict.kept and step > low), default=None)

    @property
    def confirmed(self) -> SizeVerdict | None:
        """The verdict on the smallest size that holds."""
        return None if self.high is None else self.tried[self.high]

    @property
    def found(self) -> SizeVerdict | None:
        """The verdict on the smallest size that holds.

        If the next smaller size was refuted, the capacity is at most its load: a limit broke there, or chance could not be ruled out.
        """
        verdict, refuted = self.confirmed, self.tried.get(self.low)
        if verdict is None or verdict.corrected.separate or refuted is None:
            return verdict
        pool, over, target = verdict.corrected.pool, refuted.measured.pool, self.question.target
        raised = (1 + self.question.rules.headroom) * pool.margin
        rate = over.point.requests_per_s if self._scales else over.point.requests_per_s / pool.margin
        load = rate if target.amount is None else target.amount * raised / over.count
        if pool.capacity.amount <= load:
            return verdict
        broken = refuted.broken(target.limits) or pool.capacity.binding
        most = replace(pool.capacity, amount=load, requests_per_s=rate, binding=broken)
        return verdict._replace(corrected=replace(verdict.corrected, pools=(replace(pool, capacity=most),)))

    @property
    def settled(self) -> bool:
        """Whether the confirmed size is the smallest that holds, without doubt."""
        return self.high is not None and (self.first.separate or (self._narrowed(self.high) and self._doubtful is None))

    def _narrowed(self, high: int) -> bool:
        return high - self.low <= max(1, self._coarse(high))

    @property
    def _doubtful(self) -> int | None:
        """The step beside the boundary on which chance may have decided; with many replicas, only the upper one counts."""
        low, high = self.low, self.high
        assert high is not None
        if not self.tried[high].decided:
            return high
        return low if low in self.tried and not self.tried[low].decided and self._coarse(high) < 1 else None

    def judge(self, verdict: SizeVerdict) -> bool:
        """Record the verdict on the next size and go on; False where there is no other size to try."""
        self.tries += 1
        self.tried[self.step] = verdict
        if self.high is not None:
            self._onward(self.high)
            return True
        if self.first.separate:
            following = (_larger if self._scales else _lighter)(verdict.measured, self.question)
            if following is not None:
                self.reachable = self.next = following
            return following is not None and self.tries < VERIFY.tries_of_a_layout
        *_, before, low = self._refuted
        if len(self.tried) >= VERIFY.tries_of_a_layout:
            return False
        more = self._corrected(verdict.measured) - low
        again = 2 * (low - before) if before >= 0 else 1
        return self._at(low + max(1, again, more if before >= 0 else more // 2))

    def _onward(self, high: int) -> None:
        """Go to where the two nearest sizes predict that the limit is met; every third time to the middle."""
        if self.settled:
            self.reachable = self.tried[high].corrected
        elif self._narrowed(high):
            assert self._doubtful is not None
            self._at(self._doubtful)
            self.so_far = self.tried[self.step].measured
        else:
            low, aim = self.low, (self.low + high) / 2
            over = {
                step: math.log(max(of.worst_ratio, LEAST_RATIO))
                for step, of in self.tried.items()
                if of.worst_ratio < math.inf
            }
            nearest = sorted(over, key=lambda step: abs(over[step]))[:2]
            if self.tries % 3 and len(nearest) > 1:
                one, other = nearest
                slope = (over[one] - over[other]) / (one - other)
                aim = one - over[one] / slope if slope < 0 else aim
            self._at(min(high - 1, max(low + 1, math.ceil(aim))))

    def _at(self, step: int) -> bool:
        """Go to a step; False where the demand has no such size."""
        pool = self._sized(step)
        if pool is None:
            return False
        self.step, self.next, self.so_far = step, Answer((pool,)), None
        least = self._sized(self.low + 1) if self.low + 1 < step else pool
        assert least is not None
        self.reachable = Answer((least,))
        return True

    @property
    def _scales(self) -> bool:
        """Whether the demand sets the number of replicas."""
        return self.question.target.amount is not None

    @property
    def _share(self) -> int | None:
        """Requests in flight of a replica at the first size; None where sizes do not count by requests in flight."""
        target = self.question.target
        if target.concurrency is None or self.question.rules.headroom or self.first.pool.margin != 1.0:
            return None
        return -(-target.concurrency // self.first.pool.count)

    def _sized(self, step: int) -> Pool | None:
        pool = self.first.pool
        if not self._scales:
            return at_share(pool, VERIFY.less_load**step)
        count, share, in_flight = pool.count + step, self._share, self.question.target.concurrency
        if share is not None and in_flight is not None and step:
            if step >= share:
                return None
            count = -(-in_flight // (share - step))
        return pool if count == pool.count else with_count(pool, count, self.question)

    def _corrected(self, measured: Answer) -> int:
        """The step that the closed form gives when corrected by a simulation."""
        pool, run = measured.pool, measured.run
        assert run is not None
        most = _most(pool, tightened(pool, run, self.question.target.limits), self.question)
        if most is None:
            return 0
        if used := batch_used(measured, self.question.target):
            return math.ceil(pool.count * used) - self.first.pool.count
        if not self._scales:
            share = most.requests_per_s / pool.margin / self.first.pool.point.requests_per_s
            return math.ceil(math.log(min(share, 1.0)) / math.log(VERIFY.less_load))
        needed, share_before = replicas(self.question, pool.replica, most, pool.margin), self._share
        if share_before is None:
            return needed - self.first.pool.count
        in_flight = self.question.target.concurrency
        assert in_flight is not None
        return min(share_before - -(-in_flight // needed), share_before - 1)

    def _coarse(self, step: int) -> int:
        if not self._scales or self._share is not None:
            return 0
        return round(VERIFY.coarse * (self.first.pool.count + step))


# --- pairs of pools ---------------------------------------------------------------------------------------------------


def next_size(pool: Pool, run: Run, question: Question) -> int:
    """The replicas to try next, from the closed form corrected by the simulation; at least one more.

    Only half of the correction is applied at a time, because the correction falls with the load.
    """
    most = _most(pool, tightened(pool, run, question.target.limits), question)
    needed = pool.count if most is None else replicas(question, pool.replica, most)
    return pool.count + max(1, (needed - pool.count) // 2)


def _larger(pair: Answer, question: Question) -> Answer | None:
    """The pair with the replicas that the closed form, corrected by the simulation, gives; None where they are fixed.

    Where the pair outgrows its node, KV caches go over the network.
    """
    from sizing.answers.pools import fits_node, joined, phase_questions, with_counts

    asked = question.space.pools
    assert asked is not None and pair.transfer is not None
    phases = phase_questions(question, asked, None)
    more = lacking(pair, question)
    runs = _runs_of_phases(pair)
    counts = [
        next_size(pool, run, of) if grows else pool.count
        for pool, run, of, grows in zip(pair.pools, runs, phases, more, strict=True)
    ]
    if any(grows and fixed is not None for grows, fixed in zip(more, asked.given, strict=True)):
        return None
    grown = with_counts(pair, counts, phases)
    if not pair.transfer.link.within_node or fits_node(grown):
        return grown
    try:
        apart = joined(grown, question, asked, within_node=False)
    except UntimedError:  # no network to grow over
        return None
    return replace(apart, pools=(with_count(apart.prefill, counts[0], phases[0]), apart.decode))


def _runs_of_phases(pair: Answer) -> tuple[Run, Run]:
    """The run of each phase: TTFT as the client sees it for prefill, ITL and E2E of the decode pool alone for decode."""
    whole, prefill, decode = pair.run, pair.prefill.run, pair.decode.run
    assert whole is not None and prefill is not None and decode is not None
    return (
        replace(prefill, latencies_s=whole.latencies_s | {"itl": {}, "e2e": {}}),
        replace(decode, latencies_s=decode.latencies_s | {"ttft": {}}),
    )


def _lighter(pair: Answer, question: Question) -> Answer:
    from sizing.answers.pools import phase_questions, with_counts

    asked, at = question.space.pools, question.with_(requests_per_s=VERIFY.less_load * pair.requests_per_s)
    assert asked is not None
    return with_counts(pair, [pool.count for pool in pair.pools], phase_questions(at, asked, None))


def lacking(pair: Answer, question: Question) -> tuple[bool, bool]:
    """Whether each pool is too small by the simulation: it misses its limit, or its queue grows."""
    limits, run = question.target.limits, pair.run
    assert run is not None

    def short(pool: Pool, name: str) -> bool:
        limit, measured = getattr(limits, name), run.latencies_s[name]
        missed = limit is not None and bool(measured) and measured[limit.statistic] > limit.seconds
        return missed or (pool.run is not None and not pool.run.stable)

    prefill, decode = short(pair.prefill, "ttft"), short(pair.decode, "itl")
    if not prefill and not decode:  # only E2E is missed, or requests are refused
        return pair.tightest.phase == "prefill", pair.tightest.phase == "decode"
    return prefill, decode


# --- the most that a size serves, as corrected by a simulation --------------------------------------------------------


def corrected(answer: Answer, question: Question) -> Answer:
    """A simulated size with its capacity corrected by the simulation.

    Where a simulated latency exceeds the closed form's, the limit is tightened by that ratio, and the closed form gives the
    capacity within the tightened limit. The headroom and the latencies of an answer are then consistent. Of a batch of
    documents, the capacity is what the run does a second, if that is less. Separate pools are not changed.
    """
    if answer.separate or answer.run is None:
        return answer
    pool, limits = answer.pool, tightened(answer.pool, answer.run, question.target.limits)
    rate = pool.point.requests_per_s
    load = rate if question.target.amount is None else question.target.amount / pool.count
    if used := batch_used(answer, question.target):
        done_per_s = min(pool.capacity.amount, load / used)
        simulated = replace(pool.capacity, amount=done_per_s, requests_per_s=done_per_s)
        return replace(answer, pools=(replace(pool, capacity=simulated),))
    if limits is question.target.limits:
        return answer
    most = _most(pool, limits, question)
    if most is None or most.amount <= load:
        most = replace(pool.capacity, amount=load, requests_per_s=rate)
    else:
        most = replace(most, decoding=pool.capacity.decoding)
    return replace(answer, pools=(replace(pool, capacity=most),))


def _most(pool: Pool, limits: Limits, question: Question) -> Capacity | None:
    (most,) = most_of([pool.timed], question.with_(limits=limits).target)
    if most is not None and pool.capacity.binding == IDLE_CACHES and most.amount > pool.capacity.amount:
        return pool.capacity  # the caches of idle conversations are full at that load, whatever the limits
    return most


def tightened(pool: Pool, run: Run, limits: Limits) -> Limits:
    """The limits; where the simulated latency exceeds the closed form's, the limit is divided by that ratio."""
    for name, limit in limits.stated.items():
        if not run.latencies_s[name]:
            continue
        ratio = run.latencies_s[name][limit.statistic] / pool.closed_s(name)[limit.statistic]
        if ratio > 1:
            limits = limits.at(name, limit.seconds / ratio)
    return limits


def part_of(prefills: int, decodes: int) -> tuple[int, int, float]:
    """The replicas of each pool to simulate, and their share of the load: at least the true share of each replica."""
    common = math.gcd(prefills, decodes)
    part = prefills // common, decodes // common
    scale = max(1.0, sum(part) / VERIFY.most_replicas)
    part = max(1, math.floor(part[0] / scale)), max(1, math.floor(part[1] / scale))
    return *part, max(part[0] / prefills, part[1] / decodes)


def batch_s(answer: Answer, documents: float) -> float:
    """Seconds in which documents that are all offered at once are done: as simulated, else by the closed form.

    Separate pools do them at the rate of the slower one; the last document then takes its own time in both (`last_s`).
    """
    if not answer.separate:
        each = documents / answer.pool.count
        return closed_batch_s(answer.pool.timed, each) if answer.run is None else answer.run.batch_s(each)
    if answer.run is not None:
        *_, share = part_of(answer.prefill.count, answer.decode.count)
        return answer.run.batch_s(documents * share)
    return documents / answer.most_requests_per_s + answer.last_s


def batch_used(answer: Answer, target: Target) -> float:
    """The share of the time of a batch of documents in which a simulated answer does them; 0 where the demand is no batch."""
    return 0.0 if target.documents is None else batch_s(answer, target.documents) / (target.within_s or math.inf)


WITHIN = math.log1p(VERIFY.population_within)


def serves_population(answer: Answer, target: Target) -> bool:
    """Whether a simulated answer serves the users or requests in flight of the demand; True where the demand has neither."""
    if target.population is None:
        return True
    assert answer.run is not None
    return answer.run.stable and abs(_beyond(answer, target)) <= WITHIN


def at_population(first: Answer, target: Target, drive: Callable[[Answer], Answer]) -> Answer:
    """The answer, simulated by `drive` at the rate that serves the population; else the nearest of the rates tried.

    The first step follows the slope of the closed form, and the next ones that of the last two runs. A queue may seem to grow by
    chance, so that such a run counts by its E2E too; where it has the population, a lower rate is tried.
    """
    low, high, slope = -math.inf, math.inf, _closed_slope(first.pool, target)
    tried = [drive(first)]
    before: tuple[float, float] | None = None
    while not serves_population(found := tried[-1], target) and len(tried) < VERIFY.population_rounds:
        at, beyond = math.log(found.pool.point.requests_per_s), _beyond(found, target)
        if beyond == math.inf:
            break
        if before is not None:
            slope = max(1.0, (beyond - before[1]) / (at - before[0]))
        before = at, beyond
        beyond = 2 * WITHIN if abs(beyond) <= WITHIN else beyond
        low, high = (low, at) if beyond > 0 else (at, high)
        aim = at - beyond / slope
        pool = _at_rate(found.pool, math.exp(aim if low < aim < high else (low + high) / 2))
        if pool.point.requests_per_s == found.pool.point.requests_per_s:  # no higher rate is stable
            break
        tried.append(drive(replace(found, pools=(pool,), run=None)))
    return min(tried, key=lambda each: (not serves_population(each, target), abs(_beyond(each, target))))


def _beyond(answer: Answer, target: Target) -> float:
    """The logarithm of the population that a simulated answer serves, over the one asked for; infinite where none was answered."""
    run = answer.run
    assert run is not None and target.population is not None
    if not run.latencies_s["e2e"]:
        return math.inf
    return math.log(target.population_of(answer.requests_per_s, run.latencies_s["e2e"]["mean"]) / target.population)


def _closed_slope(pool: Pool, target: Target) -> float:
    """How fast the population grows with the rate by the closed form, both in logarithms; at least 1."""
    lighter = _at_rate(pool, pool.point.requests_per_s * VERIFY.less_load)
    one, less = (
        target.population_of(each.point.requests_per_s, each.closed_s("e2e")["mean"]) for each in (pool, lighter)
    )
    rates = pool.point.requests_per_s / lighter.point.requests_per_s
    return max(1.0, math.log(one / less) / math.log(rates)) if rates > 1 else 1.0


def _at_rate(pool: Pool, requests_per_s: float) -> Pool:
    """The pool at a rate of each replica, which may exceed its capacity within the limits but not its highest stable rate."""
    most = pool.capacity if requests_per_s <= pool.capacity.requests_per_s else highest_stable(pool.timed)
    return replace(pool, point=point_at_rate(pool.timed, requests_per_s, most))
