"""Latency limits held against operating points.

Layouts that differ in size and speed alone, stacked: the closed form answers for all of them at once, a row each.

How much one replica serves within the limits, and what stops it there.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sizing.model import memory
from sizing.model.attention.terms import Numeric
from sizing.model.extras import Extras, cached_tokens
from sizing.question.question import Data, Question, situation_of
from sizing.replica import batching
from sizing.replica import step as step_model
from sizing.replica.batching import PERCENTILES, Array, Point, Service
from sizing.replica.kernels import Kernels
from sizing.replica.replica import Replica
from sizing.replica.step import Curves
from sizing.specs.bands import AS_PREDICTED, Edge, worse_edge
from sizing.specs.workload import Limits


def quantiles(limits: Limits) -> dict[str, float]:
    """Return the percentiles that limits bound: a search over loads needs no others."""
    bounded = (limits.ttft, limits.itl, limits.e2e)
    wanted = {limit.statistic for limit in bounded if limit is not None}
    return {name: q for name, q in PERCENTILES.items() if name in wanted}


def within(point: Point, limits: Limits) -> NDArray[np.bool_]:
    """Return, for each operating point, whether it keeps every limit on the statistic that it bounds."""
    ok = np.ones(point.requests_per_s.shape, dtype=bool)
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ok &= getattr(point, f"{name}_s")[limit.statistic] <= limit.seconds
    return ok


def violated(point: Point, limits: Limits, index: int) -> str:
    """Return which limit a point breaks the most, or an empty string."""
    worst, name_of_worst = 1.0, ""
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ratio = float(getattr(point, f"{name}_s")[limit.statistic][index]) / limit.seconds
            if ratio > worst:
                worst, name_of_worst = ratio, name
    return name_of_worst


class Stack(NamedTuple):
    """Step curves and service of several layouts: what differs between them is a column, the tables a matrix."""

    curves: Curves
    service: Service


def shared(curves: Curves, service: Service) -> Hashable:
    """Return what layouts must have in common to be stacked: the host's part, lengths, chunks, order of steps."""
    own = (curves.host, curves.front_end_s, curves.launch_s, curves.captured_tokens)
    has = (curves.again_s is None, curves.joined_s is None, curves.shared_s is None)
    return *own, curves.verified, *has, replace(service, pp=1, dp=1, even_stages=None)


def stack(curves: Sequence[Curves], services: Sequence[Service]) -> Stack:
    """Stack layouts that are alike in all that `shared` says."""
    return Stack(
        replace(
            curves[0],
            body_s=np.stack([one.body_s for one in curves]),
            head_s=np.stack([one.head_s for one in curves]),
            decode_floor_s=column([one.decode_floor_s for one in curves]),
            decode_slope_s=column([one.decode_slope_s for one in curves]),
            prompt_attention_s=column([one.prompt_attention_s for one in curves]),
            largest_stage=column([one.largest_stage for one in curves]),
            last_stage=column([one.last_stage for one in curves]),
            again_s=_rows([one.again_s for one in curves]),
            joined_s=_rows([one.joined_s for one in curves]),
            shared_s=_rows([one.shared_s for one in curves]),
        ),
        replace(
            services[0],
            pp=column([service.pp for service in services]),
            dp=column([service.dp for service in services]),
            even_stages=column([service.stages for service in services]),
        ),
    )


def _rows(tables: Sequence[NDArray[np.float64] | None]) -> NDArray[np.float64] | None:
    """Return tables that all of the layouts have, a row each, or None where none has."""
    found = [table for table in tables if table is not None]
    return np.stack(found) if found else None


def column(values: Sequence[Numeric]) -> NDArray[np.float64]:
    """Return one value a layout as a column, which loads in rows go along with."""
    return np.array(values, dtype=float)[:, np.newaxis]


def row(points: Point, index: int) -> Point:
    """Return the operating points of one layout."""

    def of(statistics: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
        return {name: values[index] for name, values in statistics.items()}

    return Point(
        requests_per_s=points.requests_per_s[index],
        decoding=points.decoding[index],
        running=points.running[index],
        ttft_s=of(points.ttft_s),
        itl_s=of(points.itl_s),
        e2e_s=of(points.e2e_s),
        prefill_share=points.prefill_share[index],
        stable=points.stable[index],
    )


LOAD_POINTS = 160  # loads tried on one layout, evenly spaced in the logarithm
REFINED_POINTS = 48  # loads tried again between the last that meets the limits and the next
SOLVING_POINTS, SOLVING_ROUNDS = 256, 2  # brackets narrow 255-fold a round; the last is interpolated
AT_ONCE = 64  # layouts whose loads are tried together: arrays that a core's cache holds
LIGHTEST_LOAD = 1e-3  # of a layout's slots: practically one request at a time

Solved = TypeVar("Solved")


@dataclass(frozen=True, slots=True)
class Capacity:
    """The most that one replica serves: requests/s (or requests in flight under a concurrency demand), and why no more."""

    amount: float
    requests_per_s: float
    decoding: float
    binding: str


@dataclass(frozen=True, slots=True)
class Load:
    """A candidate's step curves and the loads that its slots allow; by its `edge` it may turn out worse than predicted."""

    kernels: Kernels
    curves: Curves
    service: Service
    slots: int
    slots_bound: str
    edge: Edge = AS_PREDICTED

    @classmethod
    def of(cls, replica: Replica, question: Question, data: Data) -> Load:
        """Tabulate the step time of a candidate for the request's lengths."""
        return Timing(question, data).of(replica)

    @property
    def solo_ttft_s(self) -> float:
        """Seconds to the first token of a request that is alone."""
        return float(batching.solo_ttft_s(self.curves, self.service))

    @property
    def solo_itl_s(self) -> float:
        """Seconds between tokens of a request that is alone; 0 where there is no second token."""
        return float(batching.solo_itl_s(self.curves, self.service))

    def phases_s(self, decoding: float) -> tuple[float, float]:
        """Seconds that a replica is busy with one request's prefill, and with its decoding beside `decoding` - 1 others."""
        service = self.service
        full_s = batching.prefill_step_s(self.curves, service, 0.0, service.dp)  # each rank has a prompt
        prefill_s = float(service.chunks * full_s / (service.stages * service.dp))
        together = max(1.0, decoding)
        step_s = float(batching.decode_step_s(self.curves, service, together)) if service.osl > 1 else 0.0
        return prefill_s, (service.osl - 1) * step_s / together

    @property
    def highest_per_s(self) -> float:
        """Requests/s of one replica with every slot full, or with nothing but prefill in its time; no limit asked."""
        ceiling = np.array([batching.decoding_limit(self.service, self.slots)])
        full = batching.open_loop(self.curves, self.service, ceiling, {})
        return float(full.requests_per_s[0] / max(1.0, float(full.prefill_share[0])))

    def most(self, question: Question) -> Capacity | None:
        """Return the most that one replica serves within the limits, or None when not even the lightest load does."""
        return most_of([self], question)[0]

    def most_in_flight(self, question: Question) -> Capacity | None:
        """Return the same under a demand in requests in flight."""
        question = _at_edge(question, self.edge)
        in_flight = np.arange(1.0, self.slots + 1)
        point = batching.closed_loop(self.curves, self.service, in_flight, quantiles(question.target.limits))
        ok = within(point, question.target.limits)
        if not ok[0]:
            return None
        last = _last_of_leading(ok)
        binding = violated(point, question.target.limits, last + 1) if last + 1 < self.slots else self.slots_bound
        return Capacity(float(in_flight[last]), float(point.requests_per_s[last]), float(point.decoding[last]), binding)

    def most_around(self, loads: _Around, limits: Limits) -> Capacity:
        """Return what the heaviest allowed load serves, and what the next one breaks."""
        rate = float(loads.point.requests_per_s[loads.last])
        return Capacity(
            rate, rate, float(loads.decoding[loads.last]), self._binding(loads.point, limits, loads.last + 1)
        )

    def _binding(self, point: Point, limits: Limits, refused: int) -> str:
        """Return what the first refused load breaks: a latency limit, the slots, or stable utilisation."""
        if refused >= point.requests_per_s.size:
            return "utilisation"
        slots = self.slots_bound if point.running[refused] > self.slots else "utilisation"
        return violated(point, limits, refused) or slots

    def at(self, question: Question, most: Capacity, replicas: int) -> Point:
        """Return the operating point of one of `replicas` equal replicas under the demand."""
        return points_of([self], question, [most], [replicas])[0]

    def at_rate(self, rate: float, most: Capacity) -> Point:
        """Return the operating point whose throughput is `rate`, at most that of `most`."""
        return _at_rates([self], np.array([rate]), np.array([most.decoding]))[0]


class _Around(NamedTuple):
    """Ascending loads of one layout with their operating points, and the last before the first refused (-1: none)."""

    decoding: Array
    point: Point
    last: int


@dataclass(frozen=True, slots=True)
class Timing:
    """Loads of a request's candidates. A split's step times are tabulated once, for all depths of a pipeline."""

    question: Question
    data: Data
    _splits: dict[tuple[Hashable, ...], tuple[Kernels, Curves]] = field(default_factory=dict)

    def of(self, replica: Replica) -> Load:
        """Return the load of one candidate. Raises UntimedError where the data hold nothing to time it by."""
        request, layout, settings = self.question, replica.layout, replica.settings
        kernels, split = self._split(replica)
        extras = kernels.extras
        curves = step_model.at_depth(split, request.service.model, layout, kernels)
        mean_len = memory.use(
            request.service.model,
            replica.gpu_type.gpu,
            layout,
            replica.plan,
            settings,
            max_model_len=request.service.isl + request.service.output_tokens,
            cuda_graphs_gib=request.service.serving.cuda_graphs_gib,
            extras=extras,
        )
        by_cache = int(mean_len.max_concurrency)
        by_engine = settings.max_num_seqs * layout.dp
        to_prefill = request.service.isl - self._cached(extras)
        prefilled = request.service.phase == "decode"  # whose prompts were in a front end before their prefill
        service = Service(
            isl=to_prefill,
            osl=request.service.osl,
            chunk_tokens=min(to_prefill, settings.max_num_batched_tokens),
            budget_tokens=settings.max_num_batched_tokens,
            prefill_only=settings.step_order == "prefill_first" and not prefilled,
            pp=layout.pp,
            dp=layout.dp,
            tokens_per_step=extras.tokens_per_step,
            prefilled=prefilled,
            prefill_pool=request.service.phase == "prefill",
            even_stages=1 / float(curves.largest_stage) if layout.pp > 1 else None,
        )
        return Load(
            kernels,
            replace(curves, front_end_s=0.0) if prefilled else curves,
            service,
            max(1, min(by_cache, by_engine)),
            "kv_cache" if by_cache < by_engine else "max_num_seqs",
            worse_edge(request.target.pessimistic, situation_of(request, replica.gpu_type.gpu)),
        )

    def _cached(self, extras: Extras) -> int:
        """Tokens of a prompt that are in cache when it comes, or restored to it."""
        return cached_tokens(self.question.service.isl, extras.cached.share)

    def _split(self, replica: Replica) -> tuple[Kernels, Curves]:
        """Return a candidate's kernels and the curves of its split at one stage."""
        request, settings, plan = self.question, replica.settings, replica.plan
        split = replace(replica.layout, pp=1)
        key = (replica.gpu_type.id, settings, plan, split)
        if key not in self._splits:
            kernels = Kernels(
                replica.gpu_type.gpu,
                self.data.assumptions,
                self.data.borrowed,
                request.service.engine.name,
                settings,
                plan,
                request.service.extras.on(split.dp, settings.block_tokens),
            )
            cached = self._cached(kernels.extras)
            curves = step_model.curves(
                request.service.model,
                split,
                kernels,
                context_tokens=request.service.isl + request.service.osl / 2,
                prompt_tokens=request.service.isl,
                chunk_tokens=min(request.service.isl - cached, settings.max_num_batched_tokens),
                cached_tokens=cached,
            )
            self._splits[key] = kernels, curves
        return self._splits[key]


def most_of(loads: Sequence[Load], question: Question) -> list[Capacity | None]:
    """Return the most that one replica of each layout serves within the limits, None where not even the lightest load."""
    if question.target.concurrency is not None:
        return [load.most_in_flight(question) for load in loads]
    return _together(loads, lambda some, _: _most_at_edge(some, question))


def _most_at_edge(loads: Sequence[Load], question: Question) -> list[Capacity | None]:
    """Return the most where latencies and rates turn out worse: the limits hold still, and what is predicted as the most
    shrinks by the factor of rates.
    """
    edge = loads[0].edge
    found = _most_rates(loads, _at_edge(question, edge))
    if question.target.offline or edge.throughput == 1.0:
        return found
    hoped = _most_rates(loads, question)
    return [
        most if most is None or plain is None else _at_most(load, most, plain.requests_per_s * edge.throughput)
        for load, most, plain in zip(loads, found, hoped, strict=True)
    ]


def _at_most(load: Load, most: Capacity, rate_per_s: float) -> Capacity:
    if most.amount <= rate_per_s:
        return most
    lighter = _loads_at([load], np.array([rate_per_s]), np.array([most.decoding]))
    return Capacity(rate_per_s, rate_per_s, float(lighter[0]), most.binding)


def _at_edge(question: Question, edge: Edge) -> Question:
    """Return a request that asks of predicted latencies that they keep the limits where they turn out worse."""
    return question if edge == AS_PREDICTED else question.with_(limits=edge.limits(question.target.limits))


def points_of(
    loads: Sequence[Load], question: Question, mosts: Sequence[Capacity], replicas: Sequence[int]
) -> list[Point]:
    """Return the operating point of one of each layout's equal replicas under the demand."""
    if question.target.concurrency is not None:
        shares = [np.array([max(1.0, question.target.concurrency / count)]) for count in replicas]
        return [
            batching.closed_loop(load.curves, load.service, share) for load, share in zip(loads, shares, strict=True)
        ]
    heaviest = np.array([most.decoding for most in mosts])
    if question.target.requests_per_s is None:
        return _together(loads, lambda some, rows: _points(some, heaviest[rows]))
    rates = question.target.requests_per_s / np.array(replicas)
    return _together(loads, lambda some, rows: _at_rates(some, rates[rows], heaviest[rows]))


def _together(loads: Sequence[Load], solve: Callable[[list[Load], list[int]], list[Solved]]) -> list[Solved]:
    """Return what `solve` says of each load: it gets those that can be stacked at once, and their numbers."""
    alike: dict[Hashable, list[int]] = {}
    for number, load in enumerate(loads):
        alike.setdefault((load.edge, shared(load.curves, load.service)), []).append(number)
    solved: dict[int, Solved] = {}
    for numbers in alike.values():
        for start in range(0, len(numbers), AT_ONCE):
            some = numbers[start : start + AT_ONCE]
            solved.update(zip(some, solve([loads[number] for number in some], some), strict=True))
    return [solved[number] for number in range(len(loads))]


def _most_rates(loads: Sequence[Load], question: Question) -> list[Capacity | None]:
    ceiling = np.array([batching.decoding_limit(load.service, load.slots) for load in loads])
    if question.target.offline:
        return _full(loads, ceiling)
    full = batching.open_loop(*_stacked(loads), ceiling[:, np.newaxis], {})
    # The highest stable rate is that of full slots, or that at which prefill alone fills the time.
    stable_per_s = question.target.max_utilisation * (full.requests_per_s / np.maximum(1.0, full.prefill_share))
    grid = np.geomspace(LIGHTEST_LOAD * np.minimum(1.0, ceiling), ceiling, LOAD_POINTS, axis=-1)
    around = _heaviest(loads, grid, question, stable_per_s)
    between = [index for index, found in enumerate(around) if 0 <= found.last < LOAD_POINTS - 1]
    if between:
        last = np.array([around[index].last for index in between])
        finer = np.linspace(grid[between, last], grid[between, last + 1], REFINED_POINTS, axis=-1)
        refined = _heaviest([loads[index] for index in between], finer, question, stable_per_s[between])
        for index, found in zip(between, refined, strict=True):
            around[index] = found
    return [
        load.most_around(found, question.target.limits) if found.last >= 0 else None
        for load, found in zip(loads, around, strict=True)
    ]


def _full(loads: Sequence[Load], ceiling: Array) -> list[Capacity | None]:
    """Return what replicas serve whose slots are always full, of those in prefill and decoding together."""
    stacked = _stacked(loads)
    grid = np.geomspace(LIGHTEST_LOAD * np.minimum(1.0, ceiling), ceiling, LOAD_POINTS, axis=-1)
    running = batching.open_loop(*stacked, grid, {}).running
    decoding = np.array(
        [np.interp(load.slots, held, tried) for load, held, tried in zip(loads, running, grid, strict=True)]
    )
    rates = batching.requests_per_s(*stacked, decoding[:, np.newaxis])[:, 0]
    return [
        Capacity(float(rate) * load.edge.throughput, float(rate) * load.edge.throughput, float(at), load.slots_bound)
        for load, rate, at in zip(loads, rates, decoding, strict=True)
    ]


def _heaviest(loads: Sequence[Load], grid: Array, question: Question, stable_per_s: Array) -> list[_Around]:
    """Evaluate ascending loads, a row for each layout, and find the heaviest allowed before the first refused."""
    points = batching.open_loop(*_stacked(loads), grid, quantiles(question.target.limits))
    allowed = within(points, question.target.limits) & points.stable & (points.requests_per_s <= stable_per_s)
    allowed &= points.running <= column([load.slots for load in loads])
    return [
        _Around(decoding, row(points, index), _last_of_leading(allowed[index])) for index, decoding in enumerate(grid)
    ]


def _at_rates(loads: Sequence[Load], rates: Array, heaviest: Array) -> list[Point]:
    """Return the operating points whose throughput is `rates`."""
    return _points(loads, _loads_at(loads, rates, heaviest))


def _loads_at(loads: Sequence[Load], rates: Array, heaviest: Array) -> Array:
    """Solve for the loads whose throughput is `rates` by narrowing a bracket (throughput grows with load)."""
    stacked, rows = _stacked(loads), np.arange(len(loads))
    lightest = LIGHTEST_LOAD**2 * heaviest
    least_per_s = batching.requests_per_s(*stacked, lightest[:, np.newaxis])[:, 0]
    lightest = lightest * np.minimum(
        1.0, LIGHTEST_LOAD * rates / least_per_s
    )  # so light, throughput grows as load does
    grid = np.geomspace(lightest, heaviest, SOLVING_POINTS, axis=-1)
    exact = heaviest
    for _ in range(SOLVING_ROUNDS):
        reached = batching.requests_per_s(*stacked, grid)
        found = [np.searchsorted(*each) for each in zip(reached, rates, strict=True)]
        above = np.clip(found, 1, SOLVING_POINTS - 1)
        around = [slice(index - 1, index + 1) for index in above]
        exact = np.array([np.interp(rates[i], reached[i, two], grid[i, two]) for i, two in enumerate(around)])
        grid = np.linspace(grid[rows, above - 1], grid[rows, above], SOLVING_POINTS, axis=-1)
    return exact


def _points(loads: Sequence[Load], decoding: Array) -> list[Point]:
    """Return the operating point of each layout at its own load."""
    points = batching.open_loop(*_stacked(loads), decoding[:, np.newaxis])
    return [row(points, index) for index in range(len(loads))]


def _stacked(loads: Sequence[Load]) -> Stack:
    return stack([load.curves for load in loads], [load.service for load in loads])


def _last_of_leading(ok: NDArray[np.bool_]) -> int:
    """Index of the last True before the first False, or -1 where the first entry is False."""
    return int(np.argmin(ok)) - 1 if not ok.all() else ok.size - 1


def solo_over(load: Load, limits: Limits) -> tuple[str, float, float] | None:
    """Return (limit, seconds, limit seconds) of the limit that a lone request breaks by the largest factor, or None.

    At the load's edge the limit is on what is predicted, so tighter than the one given.
    """
    limits = load.edge.limits(limits)
    ttft, itl = load.solo_ttft_s, load.solo_itl_s
    alone = {"ttft": ttft, "itl": itl, "e2e": ttft + (load.service.osl - 1) * itl}
    over = [
        (name, alone[name], limit.seconds)
        for name in alone
        if (limit := getattr(limits, name)) is not None and alone[name] > limit.seconds
    ]
    return max(over, key=lambda entry: entry[1] / entry[2], default=None)
