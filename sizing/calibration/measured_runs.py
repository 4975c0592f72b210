"""A user's own runs as vectors of metrics, measured and as predicted with factors on step times of a GPU and an engine.

A run beyond the roofs of its GPU's datasheet cannot have been measured.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sizing.catalog.imports.run import PREFIXES_KEPT
from sizing.catalog.shelf import only
from sizing.evidence.errors import BAND_METRICS, is_driven
from sizing.evidence.predict import BAND_MODES, predict
from sizing.evidence.rows import Case
from sizing.replica import batching
from sizing.replica.intensity import StepWork, work
from sizing.replica.kernels import Kernels
from sizing.replica.step import Batch, batch_operations
from sizing.replica.timing import Timed, timed_by
from sizing.specs.bands import Corrections
from sizing.specs.calibration import OwnRunRules
from sizing.specs.engine_time import FACTORS, MOST_REACHED, OwnRuns
from sizing.specs.errors import Fault
from sizing.specs.frozen import Frozen
from sizing.specs.gpu import Gpu
from sizing.specs.units import MILLI

Floats = NDArray[np.float64]
LOADS, LIGHTEST = 64, 1e-3  # loads of the closed form to interpolate between, and the lightest as a share of the slots
TRIED = 0.1  # step, in spreads, for the effect of a factor
TINY = 1e-12  # replaces predictions of 0, which have no logarithm


def metrics_of(case: Case) -> dict[str, float]:
    """The independent metrics of a run: no E2E beside TTFT and ITL, no tokens/s beside requests/s, no rate that the run sets."""
    found = {name: value for name, value in case.row.measured().items() if not is_driven(case.row, name)}
    if {"ttft_ms", "itl_ms"} <= found.keys():
        found.pop("e2e_ms", None)
    if "req_per_s" in found:
        found.pop("output_tok_per_s", None)
    return found


class MeasuredRuns(Frozen):
    """Runs to explain, on one GPU with one engine. Their n metrics form a vector. Factors are in units of spread, shape (4,)."""

    cases: Sequence[Case]
    gpu: Gpu
    rules: OwnRunRules

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """The measured metrics of each run."""
        return [metrics_of(case) for case in self.cases]

    @cached_property
    def names(self) -> list[str]:
        """The column name of each metric, n names."""
        return [name for found in self.metrics for name in found]

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """The number of each metric's run, shape (n,)."""
        return np.array([number for number, found in enumerate(self.metrics) for _ in found], dtype=np.int64)

    @cached_property
    def measured(self) -> Floats:
        """Logarithms of the measured metrics, shape (n,)."""
        return np.log([value for found in self.metrics for value in found.values()])

    @cached_property
    def weight(self) -> Floats:
        """One over what factors leave of a measurement, shape (n,)."""
        return np.array([1 / self.rules.unexplained[BAND_METRICS[name]] for name in self.names])

    @cached_property
    def most(self) -> Floats:
        """The furthest that each factor may be from the base profile, within the bounds of a profile, shape (4,)."""
        reached = float(np.log(MOST_REACHED))
        bounds = {"compute": reached, "bandwidth": reached}
        spread = self.rules.spread
        return np.array([min(self.rules.most, bounds.get(name, np.inf) / spread[name]) for name in FACTORS])

    def own(self, at: Floats) -> dict[str, float]:
        """The factors at the point `at`. At zero they leave the base profile unchanged."""
        spread = self.rules.spread
        compute, bandwidth, step, sequence = (float(x) * spread[name] for x, name in zip(at, FACTORS, strict=True))
        values = (float(np.exp(compute)), float(np.exp(bandwidth)), step, sequence)
        return dict(zip(FACTORS, values, strict=True))

    def _kernels(self, case: Case, at: Floats) -> Kernels:
        service, unsaid = case.replica.service, dict.fromkeys(("settings", "source", "date"), "")
        stated = {"engine": service.engine.name, "engine_version": service.engine_version, "points": len(self.cases)}
        own = OwnRuns(**stated, **unsaid, **self.own(at))  # type: ignore[arg-type]
        return replace(case.deployed.kernels, gpu=self.gpu.model_copy(update={"own_runs": own}))

    def simulated(self, at: Floats) -> Floats:
        """Logarithms of the metrics simulated with the factors `at`, shape (n,)."""
        return self._predicted(lambda case: self._kernels(case, at))

    def corrected(self) -> Floats:
        """Logarithms of the metrics simulated with the base profile and the correction by published runs, shape (n,)."""

        def kernels(case: Case) -> Kernels:
            situation = case.replica.service.situation(self.gpu)._replace(mode=BAND_MODES[case.row.mode])
            return replace(case.deployed.kernels, correction=only(Corrections).of(situation))

        return self._predicted(kernels)

    def _predicted(self, kernels: Callable[[Case], Kernels]) -> Floats:
        deployed = (replace(case.deployed, kernels=kernels(case)) for case in self.cases)
        cases = (replace(case, deployed=of) for case, of in zip(self.cases, deployed, strict=True))
        return _logarithms([predict(case).values for case in cases], self.metrics)

    def steady(self, at: Floats) -> Floats:
        """Logarithms of the metrics from the closed form with the factors `at`, shape (n,)."""
        known: dict[Hashable, Timed] = {}
        values = []
        for case in self.cases:
            of, service = case.replica, case.replica.service
            key = (case.model, of.layout, of.settings, of.plan, service.isl, service.osl)
            if key not in known:
                known[key] = timed_by(of, self._kernels(case, at))
            values.append(steady(case, known[key]))
        return _logarithms(values, self.metrics)

    def slopes(self, at: Floats, here: Floats | None = None) -> Floats:
        """The derivative of the logarithm of each metric by each factor, from the closed form, shape (n, 4).

        `here` is `steady(at)` where it is known.
        """
        here = self.steady(at) if here is None else here
        return np.stack([(self.steady(at + TRIED * unit) - here) / TRIED for unit in np.eye(len(FACTORS))], axis=1)


def _logarithms(values: Sequence[dict[str, float]], metrics: Sequence[dict[str, float]]) -> Floats:
    wanted = [found[name] for found, names in zip(values, metrics, strict=True) for name in names]
    logarithms: Floats = np.log(np.maximum(wanted, TINY))
    return logarithms


def steady(case: Case, timed: Timed) -> dict[str, float]:
    """The metrics of a run from the closed form, by column."""
    traffic, count = case.traffic, case.deployed.count
    in_flight = min((traffic.in_flight or traffic.count) / count, timed.slots)
    if traffic.rate_per_s is None and traffic.isl.shape == "fixed":
        points = batching.closed_loop(timed.curves, timed.batching, np.array([in_flight]), {})
        along, at = points.running, in_flight
    else:
        decoding = np.geomspace(LIGHTEST, 1.0, LOADS) * timed.most_decoding
        points = batching.open_loop(timed.curves, timed.batching, decoding, {})
        along, at = points.running, in_flight
        if traffic.rate_per_s is not None:
            along, at = points.requests_per_s, traffic.rate_per_s / count
    place = np.maximum.accumulate(along)
    times = {f"{name}_ms": getattr(points, f"{name}_s")["mean"] / MILLI for name in ("ttft", "itl", "e2e")}
    rate = points.requests_per_s * count
    columns = {**times, "req_per_s": rate, "output_tok_per_s": rate * case.row.osl}
    return {name: float(np.interp(at, place, of)) for name, of in columns.items()}


ALLOWED = "figures in ms and requests/s, with the GPU, the precision, the layout and the lengths that were run"


def impossible(case: Case) -> Iterator[Fault]:
    """Yield a fault for each metric of a run that is better than the memory and the compute of its GPU allow.

    The bounds are those of one request alone, so that no batch is faster. Prompts that were found in cache have no bound.
    """
    row, replica = case.row, case.replica
    asked = replica.service.optimisations
    if asked.speculative is not None or asked.prefix is not None or PREFIXES_KEPT in row.notes:
        return
    shortest = 1.0 if row.length_ratio_min is None else row.length_ratio_min
    isl, osl = max(1.0, row.isl * shortest), max(1.0, row.osl * shortest)
    gpu, layout = replica.gpu_type.gpu.name, replica.layout
    decode = _work(case, Batch(decode_sequences=1.0, decode_context_tokens=isl))
    prefill = _work(case, Batch(prefill_sequences=1.0, prefill_tokens=isl, finishing=1.0))
    bounds = {"itl_ms": decode, "ttft_ms": prefill}
    for name, least in bounds.items():
        value, least_ms = getattr(row, name), least.least_s / MILLI
        if value is not None and value < least_ms:
            bound = "read the weights and the cache" if least.memory_s >= least.compute_s else "compute the prompt"
            message = f"row {row.id}: {value:,.3g} ms are less than {gpu} as {layout} takes to {bound} at the datasheet's peak, {least_ms:,.3g} ms"
            yield Fault(message, field=name, allowed=ALLOWED)
    compute_s = prefill.compute_s + (osl - 1) * decode.compute_s
    most = case.deployed.count * layout.gpus / layout.tp / compute_s
    rate = row.req_per_s if row.req_per_s is not None else (row.output_tok_per_s or 0.0) / row.osl
    if rate > most:
        message = f"row {row.id}: {rate:,.4g} requests/s are more than {case.deployed.count} x {gpu} as {layout} compute at the datasheet's peak, {most:,.4g}"
        yield Fault(message, field="req_per_s", allowed=ALLOWED)


def _work(case: Case, batch: Batch) -> StepWork:
    kernels = case.deployed.kernels
    return work(batch_operations(kernels.shard, batch), kernels)
