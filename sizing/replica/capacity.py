"""The most that one replica serves within the limits and what binds it there; its operating points under a demand.

Replicas that differ only in size and speed are stacked: the closed form computes all of them at once, one row each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from sizing.model.attention import Numeric
from sizing.replica import batching, timing
from sizing.replica.batches import by_kind
from sizing.replica.batching import Point, Points
from sizing.replica.curves import Array, Batching, Curves, solo_itl_s, solo_ttft_s
from sizing.replica.timing import Timed
from sizing.replica.waits import Quantiles
from sizing.specs.frozen import Frozen
from sizing.specs.units import PERCENTILES
from sizing.specs.workload import Limits, Target

LOAD_POINTS = 160  # loads tried on one layout, evenly spaced in the logarithm
REFINED_POINTS = 48  # loads tried between the last that meets the limits and the next one
SOLVING_POINTS, SOLVING_ROUNDS = 256, 2  # brackets narrow 255-fold per round; the last is interpolated
COARSE = 15  # of the points of a round, every 15th is tried first, then those between two of these
FEW_LOADS = 1024  # layouts evaluated together at a load each, or a few
AT_ONCE = 128  # layouts evaluated together, so that the arrays fit a core's cache
ROUNDING = 1e-6  # relative tolerance of a rate for which a load is solved
LIGHTEST_LOAD = 1e-3  # share of a layout's slots: practically one request at a time

Solved = TypeVar("Solved")
Measure = Callable[[Curves, Batching, Array], Array]  # values at ascending loads


class Capacity(Frozen):
    """The most that one replica serves: `amount` in the unit of the demand (`Target.unit`), and what is `binding`."""

    amount: float
    requests_per_s: float
    decoding: float
    binding: str

    def times(self, share: float) -> Capacity:
        """A share of this capacity, which the same limit binds."""
        return replace(self, amount=self.amount * share, requests_per_s=self.requests_per_s * share)


def quantiles(limits: Limits) -> dict[str, float]:
    """The percentiles that the limits use. A search over loads needs no others."""
    wanted = {limit.statistic for limit in limits.stated.values()}
    return {name: q for name, q in PERCENTILES.items() if name in wanted}


def within(points: Points, limits: Limits) -> NDArray[np.bool_]:
    """Whether each operating point meets every limit, on the statistic that the limit names."""
    ok = np.ones(points.requests_per_s.shape, dtype=bool)
    for name, limit in limits.stated.items():
        ok &= getattr(points, f"{name}_s")[limit.statistic] <= limit.seconds
    return ok


def violated(points: Points, limits: Limits, index: int | tuple[int, int]) -> str:
    """The limit that a point exceeds by the largest factor, or an empty string."""
    worst, name_of_worst = 1.0, ""
    for name, limit in limits.stated.items():
        ratio = float(getattr(points, f"{name}_s")[limit.statistic][index]) / limit.seconds
        if ratio > worst:
            worst, name_of_worst = ratio, name
    return name_of_worst


class Exceeded(NamedTuple):
    """A limit that a lone request exceeds."""

    limit: str
    value_s: float
    limit_s: float


def solo_over(timed: Sequence[Timed], limits: Limits) -> list[Exceeded | None]:
    """For each layout the limit that a lone request exceeds by the largest factor, or None."""
    asked = limits.stated
    if not asked:
        return [None] * len(timed)
    over = []
    for ttft_s, itl_s, e2e_s in _together(timed, lambda some, rows: _alone_s(*_stacked(some)), FEW_LOADS):
        alone = {"ttft": ttft_s, "itl": itl_s, "e2e": e2e_s}
        missed = [Exceeded(name, alone[name], limit.seconds) for name, limit in asked.items()]
        worst = max(missed, key=lambda entry: entry.value_s / entry.limit_s)
        over.append(worst if worst.value_s > worst.limit_s else None)
    return over


def _alone_s(stacked: Curves, flow: Batching) -> list[tuple[float, ...]]:
    """(TTFT, ITL, E2E) in seconds of a lone request on each stacked layout."""
    ttft_s, itl_s = solo_ttft_s(stacked, flow), solo_itl_s(stacked, flow)
    found = np.broadcast_arrays(ttft_s, itl_s, ttft_s + (flow.osl - 1) * itl_s)
    return list(zip(*(each[:, 0].tolist() for each in found), strict=True))


# --- the most within the limits -------------------------------------------------------------------------------------


def most_of(found: Sequence[Timed], target: Target) -> list[Capacity | None]:
    """The most that one replica of each layout serves within the limits; None if even the lightest load exceeds a limit."""
    if target.concurrency is not None:
        return [_most_in_flight(timed, target.limits) for timed in found]
    if target.offline:
        full = _together(found, lambda some, rows: _full(some))
        return [_of_batch(timed, most, target.within_s) for timed, most in zip(found, full, strict=True)]
    mosts = _together(found, lambda some, rows: _most_rates(some, target))
    if target.population is None:
        return mosts
    return [
        None if most is None else as_population(timed, most, target) for timed, most in zip(found, mosts, strict=True)
    ]


def as_population(timed: Timed, capacity: Capacity, target: Target) -> Capacity:
    """The same capacity with its amount counted as a population: requests in flight plus users who think."""
    e2e_s = point_at_rate(timed, capacity.requests_per_s, capacity).e2e_s["mean"]
    return replace(capacity, amount=target.population_of(capacity.requests_per_s, e2e_s))


def highest_stable(timed: Timed) -> Capacity:
    """What a replica serves with all slots taken, or with prefill taking all the time; latency limits are ignored."""
    rate = timed.highest_per_s
    return Capacity(rate, rate, timed.most_decoding, "utilisation")


def _most_in_flight(timed: Timed, limits: Limits) -> Capacity | None:
    in_flight = np.arange(1.0, timed.slots + 1)
    points = batching.closed_loop(timed.curves, timed.batching, in_flight, quantiles(limits))
    ok = within(points, limits)
    if not ok[0]:
        return None
    last = last_of_leading(ok)
    binding = violated(points, limits, last + 1) if last + 1 < timed.slots else timed.slots_bound
    return Capacity(float(in_flight[last]), float(points.requests_per_s[last]), float(points.decoding[last]), binding)


class _Around(NamedTuple):
    """Ascending loads of one layout, a row of stacked operating points.

    `last` is the last load before the first refused one, or -1.
    """

    decoding: Array
    points: Points
    row: int
    last: int


class _Tried(NamedTuple):
    """Stacked operating points at loads up to the most, with these quantiles, and the highest rates. A layout has the row `row`."""

    quantiles: Quantiles
    grid: Array
    points: Points
    highest_per_s: Array
    row: int


_TRIED: WeakKeyDictionary[Timed, _Tried] = WeakKeyDictionary()


def _tried(found: Sequence[Timed], wanted: Quantiles) -> list[_Tried]:
    """Evaluate layouts at loads up to their most. The result is kept as long as a layout, for its capacity and its margins."""
    stacked, ceiling = _stacked(found), np.array([timed.most_decoding for timed in found])
    grid = _geometric(ceiling)
    points = batching.open_loop(*stacked, grid, wanted)
    highest_per_s = timing.highest_per_s(*stacked, ceiling[:, np.newaxis])
    tried = [_Tried(wanted, grid, points, highest_per_s, row) for row in range(len(found))]
    _TRIED.update(zip(found, tried, strict=True))
    return tried


def _most_rates(found: Sequence[Timed], target: Target) -> list[Capacity | None]:
    limits, full = target.limits, not target.limits.stated and target.population is None
    wanted = quantiles(limits)
    _, grid, points, highest_per_s, _ = _tried(found, wanted)[0]
    stable_per_s = target.max_utilisation * highest_per_s
    around = _heaviest(found, grid, points, limits, stable_per_s)
    between = [index for index, bracket in enumerate(around) if 0 <= bracket.last < LOAD_POINTS - 1]
    if between:
        last = np.array([around[index].last for index in between])
        finer = np.linspace(grid[between, last], grid[between, last + 1], REFINED_POINTS, axis=-1)
        some = [found[index] for index in between]
        refined_points = batching.open_loop(*_stacked(some), finer, wanted)
        refined = _heaviest(some, finer, refined_points, limits, stable_per_s[between])
        for index, bracket in zip(between, refined, strict=True):
            around[index] = bracket
    return [
        _most_bracket(timed, bracket, limits, float(most_per_s) if full and fills(timed) else 0.0)
        if bracket.last >= 0
        else None
        for timed, bracket, (most_per_s,) in zip(found, around, stable_per_s, strict=True)
    ]


def _geometric(ceiling: Array) -> Array:
    return np.geomspace(LIGHTEST_LOAD * np.minimum(1.0, ceiling), ceiling, LOAD_POINTS, axis=-1)


def _most_bracket(timed: Timed, loads: _Around, limits: Limits, filled_per_s: float) -> Capacity:
    """What the heaviest allowed load serves, and what the next load breaks: a limit, the slots, or stable utilisation.

    The result is at least `filled_per_s`, the rate with full slots.
    """
    points, refused = loads.points, (loads.row, loads.last + 1)
    rate, binding = float(points.requests_per_s[loads.row, loads.last]), "utilisation"
    if rate >= filled_per_s and loads.last + 1 < loads.decoding.size:
        slots = timed.slots_bound if points.running[refused] > timed.slots else "utilisation"
        binding = violated(points, limits, refused) or slots
    most_per_s = max(rate, filled_per_s)
    return Capacity(most_per_s, most_per_s, float(loads.decoding[loads.last]), binding)


def _heaviest(
    found: Sequence[Timed], grid: Array, points: Points, limits: Limits, stable_per_s: Array
) -> list[_Around]:
    """Find the heaviest allowed load before the first refused one, of ascending loads in one row per layout."""
    allowed = within(points, limits) & points.stable & (points.requests_per_s <= stable_per_s)
    allowed &= points.running <= column([timed.slots for timed in found])
    return [_Around(decoding, points, row, last_of_leading(allowed[row])) for row, decoding in enumerate(grid)]


def _full(found: Sequence[Timed]) -> list[Capacity]:
    """What replicas serve when their slots are always full, with sequences in prefill and in decode."""
    stacked, grid = _stacked(found), _geometric(np.array([timed.most_decoding for timed in found]))
    running = batching.open_loop(*stacked, grid, {}).running
    decoding = np.array(
        [np.interp(timed.slots, held, tried) for timed, held, tried in zip(found, running, grid, strict=True)]
    )
    rates = timing.queued_per_s(*stacked, decoding[:, np.newaxis])[:, 0]
    return [
        Capacity(float(rate), float(rate), float(at), timed.slots_bound)
        for timed, rate, at in zip(found, rates, decoding, strict=True)
    ]


def _of_batch(timed: Timed, full: Capacity, within_s: float | None) -> Capacity | None:
    """What a replica serves of documents that are all offered at once, per second of the time that they may take.

    They are done in rounds of full slots, and a last round of those that are left, whose requests take an E2E too.
    """
    if within_s is None:
        return full
    rounds, left_s = divmod(within_s, timed.slots / full.requests_per_s)
    last = last_of_leading(_rounds_s(timed) <= left_s) + 1
    rate = min((rounds * timed.slots + last) / within_s, full.requests_per_s)
    return replace(full, amount=rate, requests_per_s=rate) if rate > 0 else None


def batch_s(timed: Timed, documents: float) -> float:
    """Seconds in which a replica does documents that are all offered at once, as `_of_batch` counts them."""
    (full,) = _full([timed])
    rounds, left = divmod(math.ceil(documents - ROUNDING), timed.slots)
    last_s = np.interp(left, np.arange(1.0, timed.slots + 1), _rounds_s(timed)) if left > ROUNDING else 0.0
    return float(rounds * timed.slots / full.requests_per_s + last_s)


def _rounds_s(timed: Timed) -> Array:
    """E2E in seconds of 1, 2, ... requests that start together."""
    return batching.closed_loop(timed.curves, timed.batching, np.arange(1.0, timed.slots + 1), {}).e2e_s["mean"]


def loads_of(found: Sequence[Timed], target: Target) -> list[tuple[Array, Points]]:
    """Ascending loads of one replica of each layout up to its maximum: the amount served, and the operating points.

    Latency limits are ignored. The amount is in requests/s, or in requests in flight under a concurrency demand.
    """
    if target.concurrency is not None:
        each = [(timed, np.arange(1.0, timed.slots + 1)) for timed in found]
        wanted = quantiles(target.limits)
        return [(held, batching.closed_loop(of.curves, of.batching, held, wanted)) for of, held in each]
    return _together(found, lambda some, rows: _served(some, target))


def _served(found: Sequence[Timed], target: Target) -> list[tuple[Array, Points]]:
    wanted = quantiles(target.limits)
    known = {timed: of for timed in found if (of := _TRIED.get(timed)) is not None and of.quantiles == wanted}
    new = [timed for timed in found if timed not in known]
    known.update(zip(new, _tried(new, wanted) if new else (), strict=True))
    loads = []
    for timed in found:
        _, _, every, highest_per_s, row = known[timed]
        points, stable_per_s = every.row(row), target.max_utilisation * float(highest_per_s[row, 0])
        served, running = points.requests_per_s, np.maximum.accumulate(points.running)
        most_per_s = min(stable_per_s, float(np.interp(timed.slots, running, served)))
        kept = last_of_leading(points.stable & (served < most_per_s)) + 2  # up to the first load beyond the maximum
        loads.append((np.minimum(served[:kept], most_per_s), points.row(slice(0, kept))))
    return loads


def last_of_leading(ok: NDArray[np.bool_]) -> int:
    """Index of the last True before the first False, or -1 where the first entry is False."""
    return int(np.argmin(ok)) - 1 if not ok.all() else ok.size - 1


# --- operating points under a demand --------------------------------------------------------------------------------


def points_of(
    found: Sequence[Timed], targets: Sequence[Target], capacities: Sequence[Capacity], replicas: Sequence[int]
) -> list[Point]:
    """The operating point of one replica of each layout, where the layout's equal replicas share the demand.

    Each layout has its own target. The targets may differ in limits and in the amount of the demand.
    """
    if not found:
        return []
    target = targets[0]
    if target.concurrency is not None:
        asked = [each.concurrency or 0 for each in targets]
        shares = [np.array([max(1.0, amount / count)]) for amount, count in zip(asked, replicas, strict=True)]
        return [
            batching.closed_loop(timed.curves, timed.batching, share).at(0)
            for timed, share in zip(found, shares, strict=True)
        ]
    heaviest = np.array([most.decoding for most in capacities])
    if target.amount is None:
        rates = np.array([most.requests_per_s for most in capacities])
        points = _together(found, lambda some, rows: _points(some, heaviest[rows]))
    else:
        rates = np.array([each.amount for each in targets], dtype=float) / np.array(replicas, dtype=float)
        measure = timing.requests_per_s if target.population is None else _population(target)
        points = _together(
            found, lambda of, rows: _points(of, _loads_at(of, rates[rows], heaviest[rows], measure)), FEW_LOADS
        )
    if target.population is not None:
        return points
    return [_filled(*each, backlog=target.offline) for each in zip(found, points, rates, strict=True)]


def fills(timed: Timed) -> bool:
    """Whether arrivals can fill the slots at a lower rate than is served while requests wait (`timing.highest_per_s`)."""
    return timed.batching.flat and timed.batching.decodes


def _filled(timed: Timed, point: Point, requests_per_s: float, *, backlog: bool = False) -> Point:
    """The point with all slots taken where Poisson arrivals do not reach the rate; otherwise `point` unchanged.

    With a `backlog`, slots are full whenever `point` falls short of the rate.
    """
    is_short, is_over = point.requests_per_s < requests_per_s * (1 - ROUNDING), point.running > timed.slots
    if not fills(timed) or not (is_short or is_over):
        return point
    ceiling = np.array([timed.most_decoding])
    brought = timing.requests_per_s(timed.curves, timed.batching, ceiling)[0]
    if not (is_over or backlog) and brought >= requests_per_s:
        return point  # the limits allow less
    return batching.full_slots(timed.curves, timed.batching, ceiling, timed.slots, np.array([requests_per_s])).at(0)


def _population(target: Target) -> Measure:
    """A measure of the load: requests in flight plus users who think."""

    def count(curves: Curves, flow: Batching, decoding: Array) -> Array:
        points = batching.open_loop(curves, flow, decoding, {})
        return points.in_flight + points.requests_per_s * target.think_time_s

    return count


def point_at_rate(timed: Timed, requests_per_s: float, capacity: Capacity) -> Point:
    """The operating point of a replica at a throughput, which is at most that of `capacity`."""
    return points_at_rates(timed, np.array([requests_per_s]), capacity)[0]


def points_at_rates(timed: Timed, requests_per_s: Array, capacity: Capacity) -> list[Point]:
    """The operating point of a replica at each of several rates."""
    alike = [timed] * requests_per_s.size
    points = _points(alike, _loads_at(alike, requests_per_s, np.full(requests_per_s.size, capacity.decoding)))
    return [_filled(timed, *each) for each in zip(points, requests_per_s, strict=True)]


def _loads_at(
    timed: Sequence[Timed], wanted: Array, heaviest: Array, measure: Measure = timing.requests_per_s
) -> Array:
    """Solve for the loads at which `measure` equals `wanted`, by narrowing a bracket.

    `measure` is throughput or another quantity that grows with the load.
    """
    stacked = _stacked(timed)
    lightest = LIGHTEST_LOAD**2 * heaviest
    least = measure(*stacked, lightest[:, np.newaxis])[:, 0]
    # at so light a load the measure is proportional to the load
    lightest = lightest * np.minimum(1.0, LIGHTEST_LOAD * wanted / least)
    grid = np.geomspace(lightest, heaviest, SOLVING_POINTS, axis=-1)
    exact, rows = heaviest, np.arange(len(timed))[:, np.newaxis]
    for _ in range(SOLVING_ROUNDS):
        coarse = grid[:, ::COARSE]
        _, above = _bracket(measure(*stacked, coarse), wanted)
        fine = grid[rows, COARSE * (above[:, np.newaxis] - 1) + np.arange(COARSE + 1)]
        reached, above = _bracket(measure(*stacked, fine), wanted)
        low, high = fine[rows[:, 0], above - 1], fine[rows[:, 0], above]
        exact = np.array(
            [np.interp(*each) for each in zip(wanted, reached, np.stack((low, high), axis=-1), strict=True)]
        )
        grid = np.linspace(low, high, SOLVING_POINTS, axis=-1)
    return exact


def _bracket(reached: Array, wanted: Array) -> tuple[Array, NDArray[np.intp]]:
    """The two values of each row around the one wanted, and the place of the second of them."""
    places = [row.searchsorted(value) for row, value in zip(reached, wanted, strict=True)]
    above = np.clip(places, 1, reached.shape[1] - 1)
    return np.take_along_axis(reached, np.stack((above - 1, above), axis=-1), axis=1), above


def _points(timed: Sequence[Timed], decoding: Array) -> list[Point]:
    """The operating point of each layout at its own load."""
    return batching.open_loop(*_stacked(timed), decoding[:, np.newaxis]).firsts


# --- layouts stacked ------------------------------------------------------------------------------------------------


class Stack(NamedTuple):
    """Step curves and batching of several layouts: values that differ between layouts are columns, tables are matrices."""

    curves: Curves
    batching: Batching


def _together(
    found: Sequence[Timed], solve: Callable[[list[Timed], list[int]], list[Solved]], at_once: int = AT_ONCE
) -> list[Solved]:
    """Call `solve` for groups of layouts that can be stacked. It gets the layouts of a group and their numbers."""

    def in_turn(numbers: list[int]) -> list[Solved]:
        groups = (numbers[start : start + at_once] for start in range(0, len(numbers), at_once))
        return [each for some in groups for each in solve([found[number] for number in some], some)]

    return by_kind(range(len(found)), lambda number: shared(found[number].curves, found[number].batching), in_turn)


def shared(curves: Curves, flow: Batching) -> Hashable:
    """What layouts must have in common to be stacked: host times, a second token or none, order of steps."""
    factors = (curves.correction.decode, curves.correction.prefill)
    own = (curves.host, curves.serial_s, curves.captured_tokens, factors)
    has = (curves.again_s is None, curves.joined_s is None, curves.shared_s is None)
    return *own, curves.verified, *has, flow.decodes, ALIKE(flow)


def _stacked(found: Sequence[Timed]) -> Stack:
    return stack([timed.curves for timed in found], [timed.batching for timed in found])


COLUMNS = ("prompt_attention_s", "prompt_floor_s", "largest_stage", "last_stage", "launch_s", "front_end_s")
TABLES = ("body_s", "head_s", "decode_s", "again_s", "joined_s", "shared_s")
OF_FLOW = {name: name for name in ("isl", "osl", "chunk_tokens", "pp", "dp", "slots")} | {"even_stages": "stages"}
ALIKE = attrgetter(*(field.name for field in fields(Batching) if field.name not in OF_FLOW))


def stack(curves: Sequence[Curves], flows: Sequence[Batching]) -> Stack:
    """Stack layouts for which `shared` returns the same value."""
    columns: dict[str, Any] = {name: column([getattr(curve, name) for curve in curves]) for name in COLUMNS}
    tables: dict[str, Any] = {name: _rows([getattr(curve, name) for curve in curves]) for name in TABLES}
    lengths: dict[str, Any] = {of: column([getattr(flow, name) for flow in flows]) for of, name in OF_FLOW.items()}
    return Stack(replace(curves[0], **columns, **tables), replace(flows[0], **lengths))


def _rows(tables: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    """The tables of all layouts, one row each, or None if no layout has the table."""
    found = [table for table in tables if table is not None]
    return np.stack(found) if found else None


def column(values: Sequence[Numeric]) -> NDArray[np.float64]:
    """One value per layout as a column, which broadcasts over loads in rows."""
    return np.array(values, dtype=float)[:, np.newaxis]
