"""How much one replica serves within the limits, and what stops it there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sizing import memory, steady_state
from sizing import step as step_model
from sizing.candidates import Candidate
from sizing.kernels import Kernels
from sizing.request import Data, Request
from sizing.specs.workload import Limits
from sizing.steady_state import Point, Service

LOAD_POINTS = 160  # loads tried on one layout, evenly spaced in the logarithm
REFINED_POINTS = 48  # loads tried again between the last that meets the limits and the next
SOLVING_POINTS, SOLVING_ROUNDS = 256, 2  # brackets narrow 255-fold a round; the last is interpolated
LIGHTEST_LOAD = 1e-3  # of a layout's slots: practically one request at a time


@dataclass(frozen=True, slots=True)
class Most:
    """The most that one replica serves: requests/s (or requests in flight under a concurrency demand), and why no more."""

    amount: float
    requests_per_s: float
    decoding: float
    binding: str


@dataclass(frozen=True, slots=True)
class Load:
    """A candidate's step curves and the loads that its slots allow."""

    kernels: Kernels
    curves: step_model.Curves
    service: Service
    slots: int
    slots_bound: str

    @classmethod
    def of(cls, candidate: Candidate, request: Request, data: Data) -> Load:
        """Tabulate the step time of a candidate for the request's lengths."""
        kernels = Kernels(
            candidate.option.gpu,
            data.assumptions,
            data.borrowed,
            request.engine.name,
            candidate.settings,
            candidate.plan,
        )
        layout, resolved = candidate.layout, candidate.settings
        budget = resolved.max_num_batched_tokens
        chunk = min(request.isl, budget)
        curves = step_model.curves(
            request.model,
            layout,
            kernels,
            context_tokens=request.isl + request.osl / 2,
            prompt_tokens=request.isl,
            chunk_tokens=chunk,
        )
        mean_len = memory.use(
            request.model,
            candidate.option.gpu,
            layout,
            candidate.plan,
            resolved,
            max_model_len=request.isl + request.osl,
            cuda_graphs_gib=request.serving.cuda_graphs_gib,
        )
        by_cache = int(mean_len.max_concurrency)
        by_engine = resolved.max_num_seqs * layout.dp
        service = Service(
            isl=request.isl,
            osl=request.osl,
            chunk_tokens=chunk,
            budget_tokens=budget,
            prefill_only=resolved.step_order == "prefill_first",
            pp=layout.pp,
            dp=layout.dp,
        )
        return cls(
            kernels,
            curves,
            service,
            max(1, min(by_cache, by_engine)),
            "kv_cache" if by_cache < by_engine else "max_num_seqs",
        )

    @property
    def solo_ttft_s(self) -> float:
        """Seconds to the first token of a request that is alone."""
        return steady_state.solo_ttft_s(self.curves, self.service)

    @property
    def solo_itl_s(self) -> float:
        """Seconds between tokens of a request that is alone; 0 where there is no second token."""
        return steady_state.solo_itl_s(self.curves, self.service) if self.service.osl > 1 else 0.0

    def most(self, request: Request) -> Most | None:
        """Return the most that one replica serves within the limits, or None when not even the lightest load does."""
        if request.concurrency is not None:
            return self._most_in_flight(request)
        return self._most_rate(request)

    def _most_in_flight(self, request: Request) -> Most | None:
        in_flight = np.arange(1.0, self.slots + 1)
        point = steady_state.closed_loop(self.curves, self.service, in_flight, _quantiles(request.limits))
        ok = within(point, request.limits)
        if not ok[0]:
            return None
        last = _last_of_leading(ok)
        binding = _violated(point, request.limits, last + 1) if last + 1 < self.slots else self.slots_bound
        return Most(float(in_flight[last]), float(point.requests_per_s[last]), float(point.decoding[last]), binding)

    def _most_rate(self, request: Request) -> Most | None:
        ceiling = steady_state.decoding_limit(self.service, self.slots)
        full = steady_state.open_loop(self.curves, self.service, np.array([ceiling]))
        if request.offline:
            return Most(float(full.requests_per_s[0]), float(full.requests_per_s[0]), ceiling, self.slots_bound)
        # The highest stable rate is that of full slots, or that at which prefill alone fills the time.
        capacity_per_s = float(full.requests_per_s[0] / max(1.0, float(full.prefill_share[0])))
        stable_per_s = request.max_utilisation * capacity_per_s
        grid = np.geomspace(LIGHTEST_LOAD * min(1.0, ceiling), ceiling, LOAD_POINTS)
        point, last = self._heaviest(grid, request, stable_per_s)
        if last < 0:
            return None
        if last + 1 < grid.size:
            grid = np.linspace(grid[last], grid[last + 1], REFINED_POINTS)
            point, last = self._heaviest(grid, request, stable_per_s)
        rate = float(point.requests_per_s[last])
        return Most(rate, rate, float(grid[last]), self._binding(point, request.limits, last + 1))

    def _heaviest(self, grid: NDArray[np.float64], request: Request, stable_per_s: float) -> tuple[Point, int]:
        """Evaluate ascending loads; return them and the index of the heaviest allowed before the first refused, or -1."""
        point = steady_state.open_loop(self.curves, self.service, grid, _quantiles(request.limits))
        allowed = within(point, request.limits) & point.stable & (point.requests_per_s <= stable_per_s)
        return point, _last_of_leading(allowed & (point.running <= self.slots))

    def _binding(self, point: Point, limits: Limits, refused: int) -> str:
        """Return what the first refused load breaks: a latency limit, the slots, or stable utilisation."""
        if refused >= point.requests_per_s.size:
            return "utilisation"
        slots = self.slots_bound if point.running[refused] > self.slots else "utilisation"
        return _violated(point, limits, refused) or slots

    def at(self, request: Request, most: Most, replicas: int) -> Point:
        """Return the operating point of one of `replicas` equal replicas under the demand."""
        if request.concurrency is not None:
            share = np.array([max(1.0, request.concurrency / replicas)])
            return steady_state.closed_loop(self.curves, self.service, share)
        if request.requests_per_s is None:
            return steady_state.open_loop(self.curves, self.service, np.array([most.decoding]))
        return self.at_rate(request.requests_per_s / replicas, most)

    def at_rate(self, rate: float, most: Most) -> Point:
        """Solve for the load whose throughput is `rate` by narrowing a bracket (throughput grows with load)."""
        low, high = LIGHTEST_LOAD**2 * most.decoding, most.decoding
        grid = np.geomspace(low, high, SOLVING_POINTS)
        for _ in range(SOLVING_ROUNDS):
            reached = steady_state.requests_per_s(self.curves, self.service, grid)
            above = int(np.clip(np.searchsorted(reached, rate), 1, grid.size - 1))
            exact = float(np.interp(rate, reached[above - 1 : above + 1], grid[above - 1 : above + 1]))
            grid = np.linspace(grid[above - 1], grid[above], SOLVING_POINTS)
        return steady_state.open_loop(self.curves, self.service, np.array([exact]))


def _quantiles(limits: Limits) -> dict[str, float]:
    """Return the percentiles that limits bound: a search over loads needs no others."""
    bounded = (limits.ttft, limits.itl, limits.e2e)
    wanted = {limit.statistic for limit in bounded if limit is not None}
    return {name: q for name, q in steady_state.PERCENTILES.items() if name in wanted}


def within(point: Point, limits: Limits) -> NDArray[np.bool_]:
    """Return, for each operating point, whether it keeps every limit on the statistic that it bounds."""
    ok = np.ones(point.requests_per_s.shape, dtype=bool)
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ok &= getattr(point, f"{name}_s")[limit.statistic] <= limit.seconds
    return ok


def _violated(point: Point, limits: Limits, index: int) -> str:
    """Return which limit a point breaks the most, or an empty string."""
    worst, name_of_worst = 1.0, ""
    for name in ("ttft", "itl", "e2e"):
        limit = getattr(limits, name)
        if limit is not None:
            ratio = float(getattr(point, f"{name}_s")[limit.statistic][index]) / limit.seconds
            if ratio > worst:
                worst, name_of_worst = ratio, name
    return name_of_worst


def _last_of_leading(ok: NDArray[np.bool_]) -> int:
    """Index of the last True before the first False, or -1 where the first entry is False."""
    return int(np.argmin(ok)) - 1 if not ok.all() else ok.size - 1


def solo_over(load: Load, limits: Limits) -> tuple[str, float, float] | None:
    """Return (limit, seconds, limit seconds) of the limit that a lone request breaks by the largest factor, or None."""
    ttft, itl = load.solo_ttft_s, load.solo_itl_s
    alone = {"ttft": ttft, "itl": itl, "e2e": ttft + (load.service.osl - 1) * itl}
    over = [
        (name, alone[name], limit.seconds)
        for name in alone
        if (limit := getattr(limits, name)) is not None and alone[name] > limit.seconds
    ]
    return max(over, key=lambda entry: entry[1] / entry[2], default=None)
