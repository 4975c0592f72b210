"""Four factors of step times that explain someone's own runs of a GPU and an engine best.

Compute and bandwidth that kernels reach, and what a step takes more of itself and for each running sequence. Candidates are
judged by the closed form: its change multiplies what the simulator gave at the last round's factors. The simulator then
runs at the best of them, and what it says worse is tried by a shorter way. A factor is drawn to the base profile, so that
one that the runs hardly tell from the others stays near it; how far it may be is data (`own_runs` of _calibration.yaml).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray

from sizing.catalog.files import resolved
from sizing.catalog.measured import METRICS, LeftOut, MeasuredRow
from sizing.catalog.prices import today
from sizing.catalog.profiles import GPUS, load_engine
from sizing.catalog.shelf import Found, only
from sizing.evidence.errors import BAND_METRICS, is_driven
from sizing.evidence.predict import BAND_MODES, predict
from sizing.evidence.rows import Case, resolve
from sizing.replica import batching
from sizing.replica.kernels import Kernels
from sizing.replica.timing import Timed, timed_by
from sizing.specs.bands import BandMetric, Corrections, students
from sizing.specs.calibration import Calibration, OwnRunRules
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import Gpu
from sizing.specs.own_runs import FACTORS, HIGH_END, Factor, FactorRange, GpuExtension, OwnBand, OwnRuns
from sizing.specs.units import MILLI

Floats = NDArray[np.float64]
LOADS, LIGHTEST = (
    64,
    1e-3,
)  # loads of the closed form between which a run's own lies, the lightest as a share of the slots
TRIED, TURNS = (
    0.1,
    3,
)  # spreads by which a factor is changed to see its effect; changes of all until the closed form is met
SETTLED = 1e-3  # of the error: what less is gained by ends the search
SIGMAS_OF_8_IN_10 = 1.2816
LEAST_SETTINGS, MOST_REASONS, DIGITS = 2, 3, 4
HEAD = "# Written by llmsize calibrate: use it as --gpu, by its path.\n"
TINY = 1e-12  # in place of what is predicted as nothing, which has no logarithm


def metrics_of(case: Case) -> dict[str, float]:
    """What a run measured, each thing once: E2E follows from TTFT and ITL, tokens from requests; a rate of its own says nothing."""
    found = {name: value for name, value in case.row.measured().items() if not is_driven(case.row, name)}
    if {"ttft_ms", "itl_ms"} <= found.keys():
        found.pop("e2e_ms", None)
    if "req_per_s" in found:
        found.pop("output_tok_per_s", None)
    return found


@dataclass(frozen=True)
class MeasuredRuns:
    """Runs to explain, on one GPU under one engine; their n metrics stand in a row. Factors are in their spreads, shape (4,)."""

    cases: Sequence[Case]
    gpu: Gpu
    rules: OwnRunRules

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """What each run measured."""
        return [metrics_of(case) for case in self.cases]

    @cached_property
    def names(self) -> list[str]:
        """The column of each metric, n of them."""
        return [name for found in self.metrics for name in found]

    @cached_property
    def run(self) -> NDArray[np.int64]:
        """The number of each metric's run, shape (n,)."""
        return np.array([number for number, found in enumerate(self.metrics) for _ in found], dtype=np.int64)

    @cached_property
    def measured(self) -> Floats:
        """Logarithms of what was measured, shape (n,)."""
        return np.log([value for found in self.metrics for value in found.values()])

    @cached_property
    def weight(self) -> Floats:
        """One over the error of a measurement, shape (n,)."""
        return np.array([1 / self.rules.error[BAND_METRICS[name]] for name in self.names])

    def own(self, at: Floats) -> dict[str, float]:
        """The factors at a place; at zero they are the base profile's."""
        spread = self.rules.spread
        compute, bandwidth, step, sequence = (float(x) * spread[name] for x, name in zip(at, FACTORS, strict=True))
        values = (float(np.exp(compute)), float(np.exp(bandwidth)), step, sequence)
        return dict(zip(FACTORS, values, strict=True))

    def _kernels(self, case: Case, at: Floats) -> Kernels:
        own = OwnRuns.model_construct(engine=case.replica.service.engine.name, **self.own(at))  # type: ignore[arg-type]
        return replace(case.deployed.kernels, gpu=self.gpu.model_copy(update={"own_runs": own}))

    def simulated(self, at: Floats) -> Floats:
        """Logarithms of the metrics as simulated at a place, shape (n,)."""
        return self._predicted(lambda case: self._kernels(case, at))

    def corrected(self) -> Floats:
        """The same by the base profile, each run as published runs centre it."""

        def kernels(case: Case) -> Kernels:
            situation = case.replica.service.situation(self.gpu)._replace(mode=BAND_MODES[case.row.mode])
            return replace(case.deployed.kernels, correction=only(Corrections).of(situation))

        return self._predicted(kernels)

    def _predicted(self, kernels: Callable[[Case], Kernels]) -> Floats:
        values = [
            predict(replace(case, deployed=replace(case.deployed, kernels=kernels(case)))).values for case in self.cases
        ]
        return _logarithms(values, self.metrics)

    def steady(self, at: Floats) -> Floats:
        """The metrics at a place by the closed form, as logarithms, shape (n,)."""
        known: dict[Hashable, Timed] = {}
        values = []
        for case in self.cases:
            of, service = case.replica, case.replica.service
            key = (case.model, of.layout, of.settings, of.plan, service.isl, service.osl)
            if key not in known:
                known[key] = timed_by(of, self._kernels(case, at))
            values.append(steady(case, known[key]))
        return _logarithms(values, self.metrics)

    def slopes(self, at: Floats) -> Floats:
        """How the logarithm of each metric changes with each factor, shape (n, 4), by the closed form."""
        here = self.steady(at)
        return np.stack([(self.steady(at + TRIED * unit) - here) / TRIED for unit in np.eye(len(FACTORS))], axis=1)


def _logarithms(values: Sequence[dict[str, float]], metrics: Sequence[dict[str, float]]) -> Floats:
    wanted = [found[name] for found, names in zip(values, metrics, strict=True) for name in names]
    logarithms: Floats = np.log(np.maximum(wanted, TINY))
    return logarithms


def steady(case: Case, timed: Timed) -> dict[str, float]:
    """The metrics of a run by the closed form, by column."""
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
    rates = {
        "req_per_s": points.requests_per_s * count,
        "output_tok_per_s": points.requests_per_s * count * case.row.osl,
    }
    return {name: float(np.interp(at, place, of)) for name, of in {**times, **rates}.items()}


# --- the search ------------------------------------------------------------------------------------------------------


class FactorFit(NamedTuple):
    """Factors that explain runs, in their spreads, shape (4,); `told` are those that the runs tell from the others, by number.

    `base` and `predicted` are the logarithms of what the simulator says without and with them, shape (n,); `left_out` those
    of each run by factors that the others alone gave; `sigma` the standard deviation of each factor, shape (4,).
    """

    at: Floats
    told: tuple[int, ...]
    base: Floats
    predicted: Floats
    left_out: Floats
    sigma: Floats


def told(slopes: Floats, rules: OwnRunRules) -> tuple[int, ...]:
    """The factors that runs tell from the others, by number; `slopes`, shape (n, 4), are in errors of a measurement.

    The least known goes first, and as a factor that is held lets others be known better, they are asked again.
    """
    free = list(range(len(FACTORS)))
    while free:
        left = np.sqrt(np.diag(_covariance(slopes[:, free])))
        if left.max() <= rules.most_left:
            break
        free.pop(int(np.argmax(left)))
    return tuple(free)


def _covariance(slopes: Floats) -> Floats:
    """Of factors in their spreads, to which they are drawn as strongly as to one measurement."""
    return np.asarray(np.linalg.inv(slopes.T @ slopes + np.eye(slopes.shape[1])), dtype=np.float64)


def fit(runs: MeasuredRuns) -> FactorFit:
    """The factors that explain runs best. Raises InputError where they tell none.

    What four factors cannot explain is taken for scatter: a metric counts the less, the further off it stays at the best factors.
    """
    at = np.zeros(len(FACTORS))
    base = runs.simulated(at)
    if not told(runs.slopes(at) * runs.weight[:, np.newaxis], runs.rules):
        raise InputError("tell none of the factors: nothing that they measured depends on one alone")
    at, predicted = _best(runs, at, base)
    runs = replace(runs, rules=_with_scatter(runs, predicted))
    at, predicted = _best(runs, at, predicted)
    slopes = runs.slopes(at)
    weighted = slopes * _weight(runs, predicted)[:, np.newaxis]
    known, sigma = told(weighted, runs.rules), np.sqrt(np.diag(_covariance(weighted)))
    return FactorFit(at, known, base, predicted, _left_out(runs, at, predicted, slopes), sigma)


def _best(runs: MeasuredRuns, at: Floats, predicted: Floats) -> tuple[Floats, Floats]:
    """The place where the cost is least, from one on, and what is simulated there."""
    least, way = _cost(runs, at, predicted), 1.0
    for _ in range(runs.rules.rounds):
        tried = at + way * (_nearest(runs, at, predicted) - at)
        found = runs.simulated(tried)
        cost = _cost(runs, tried, found)
        gained = least - cost
        if gained > 0:
            at, predicted, least, way = tried, found, cost, 1.0
            if gained < SETTLED * cost:
                break
        else:
            way /= 3
    return at, predicted


def _with_scatter(runs: MeasuredRuns, predicted: Floats) -> OwnRunRules:
    """The rules with the error of each metric as large as what factors leave of it, and no smaller than a measurement's own."""
    off = (_weight(runs, predicted) * (runs.measured - predicted)) ** 2
    free = max(0.1, 1 - len(FACTORS) / len(off))  # the share of measurements that the factors have not used up
    metrics = np.array([BAND_METRICS[name] for name in runs.names])
    scatter = {name: float(np.sqrt(np.mean(off[metrics == name]) / free)) for name in set(metrics)}
    return runs.rules.model_copy(
        update={"error": {name: error * max(1.0, scatter.get(name, 1.0)) for name, error in runs.rules.error.items()}}
    )


def _cost(runs: MeasuredRuns, at: Floats, predicted: Floats) -> float:
    """What is least: squared errors, large ones linearly (Huber), and the squared distance from the base profile."""
    off, bend = np.abs(runs.weight * (runs.measured - predicted)), runs.rules.bend
    return float(np.sum(np.where(off <= bend, off**2, bend * (2 * off - bend))) + np.sum(at**2))


def _weight(runs: MeasuredRuns, predicted: Floats) -> Floats:
    """Weights, shape (n,), by which squared errors around a prediction are those of `_cost`."""
    off = np.abs(runs.weight * (runs.measured - predicted))
    return np.asarray(runs.weight * np.sqrt(np.minimum(1.0, runs.rules.bend / np.maximum(off, TINY))))


def _nearest(runs: MeasuredRuns, at: Floats, predicted: Floats) -> Floats:
    """The place where the closed form, started from what was simulated at a place, explains the runs best."""
    here, error = runs.steady(at), runs.measured - predicted
    tried = at.copy()
    for _ in range(TURNS):
        left = error - (runs.steady(tried) - here)
        tried = tried + _change(runs.slopes(tried), left, _weight(runs, runs.measured - left), tried)
        tried = np.clip(tried, -runs.rules.most, runs.rules.most)
    return tried


def _change(slopes: Floats, error: Floats, weight: Floats, at: Floats) -> Floats:
    """The change of factors, shape (4,), that linear slopes explain errors by, drawn to zero in all."""
    rows = np.concatenate([slopes * weight[:, np.newaxis], np.eye(len(at))])
    return np.asarray(np.linalg.lstsq(rows, np.concatenate([error * weight, -at]), rcond=None)[0], dtype=np.float64)


def _left_out(runs: MeasuredRuns, at: Floats, predicted: Floats, slopes: Floats) -> Floats:
    """Logarithms of each run's metrics by the factors that runs of other settings give, from the slopes at the best."""
    found, error, weight = predicted.copy(), runs.measured - predicted, _weight(runs, predicted)
    ran = [_setting(case) for case in runs.cases]  # a run that was repeated, or read twice, says nothing new of itself
    setting = np.array([ran.index(one) for one in ran])[runs.run]
    for number in set(setting):
        others, own = setting != number, setting == number
        change = _change(slopes[others], error[others], weight[others], at)
        found[own] += slopes[own] @ change
    return found


# --- what is written of it ---------------------------------------------------------------------------------------------


def ranges(runs: MeasuredRuns, found: FactorFit) -> tuple[FactorRange, ...]:
    """8 in 10 values of each factor."""
    low, high = (runs.own(found.at + side * SIGMAS_OF_8_IN_10 * found.sigma) for side in (-1, 1))
    return tuple(FactorRange(factor=name, low=_short(low[name]), high=_short(high[name])) for name in FACTORS)


def bands(runs: MeasuredRuns, found: FactorFit) -> tuple[OwnBand, ...]:
    """The error bands of what the runs measured, each run predicted by the others, and of what other lengths and layouts add.

    E2E and rates follow where not measured.
    """
    made = []
    for metric, ratios in _errors(runs, found.left_out).items():
        n = len(ratios)
        spread = float(np.hypot(np.sqrt(np.mean(np.square(ratios))), runs.rules.elsewhere[metric]))
        width = max(float(students(HIGH_END, max(1, n - 1))) * spread, SIGMAS_OF_8_IN_10 * runs.rules.error[metric])
        ends = {"low": _short(np.exp(-width)), "high": _short(np.exp(width))}
        made.append(OwnBand.model_validate({"metric": metric, "n": n, **ends}))
    return tuple(made)


def _errors(runs: MeasuredRuns, predicted: Floats) -> dict[BandMetric, list[float]]:
    """Logarithms of measured over predicted, by metric; of each run the E2E of its TTFT and ITL, and by it the rate of a loop."""
    found: dict[BandMetric, list[float]] = {}
    for number, (case, measured) in enumerate(zip(runs.cases, runs.metrics, strict=True)):
        said = dict(zip(measured, np.exp(predicted[runs.run == number]), strict=True))
        own = {BAND_METRICS[name]: float(np.log(value / said[name])) for name, value in measured.items()}
        if {"ttft_ms", "itl_ms"} <= measured.keys():
            whole = [of["ttft_ms"] + (case.row.osl - 1) * of["itl_ms"] for of in (measured, said)]
            own["e2e"] = float(np.log(whole[0] / whole[1]))
        if "e2e" in own and case.row.mode == "closed_loop":
            own.setdefault("throughput", -own["e2e"])
        for metric, ratio in own.items():
            found.setdefault(metric, []).append(ratio)
    return found


# --- rows to a profile -------------------------------------------------------------------------------------------------


class MetricErrors(NamedTuple):
    """Medians of |error| of n measurements: by the base profile, as published runs correct it, by the factors, by those of other runs."""

    n: int
    base: float
    corrected: float
    own: float
    left_out: float


class CalibratedProfile(NamedTuple):
    """What own runs say: the factors as a profile states them, those that they hardly tell, those that are rather of another
    machine, errors by column, rows not fitted.
    """

    own: OwnRuns
    untold: tuple[Factor, ...]
    far: tuple[Factor, ...]
    errors: dict[str, MetricErrors]
    aside: tuple[LeftOut, ...]


def calibrate(rows: Sequence[MeasuredRow], on: Found[Gpu], engine: str | None, source: str) -> CalibratedProfile:
    """The factors of a GPU's profile under an engine, `vllm` or `vllm:0.19.0` (None: that of the rows), by measured rows of both.

    Raises InputError for a profile with own runs, rows of several engines or versions, and rows that tell no factor.
    """
    if on.spec.own_runs is not None:
        base = on.spec.extends or "the profile without them"
        raise InputError(f"{on.spec.name} has own runs already", field="--gpu", allowed=base)
    cases, aside = _cases(rows, on, engine)
    versions = sorted({(case.replica.service.engine.name, case.replica.service.engine_version) for case in cases})
    if len(versions) != 1:
        _refuse_mixed(versions, aside)
    if len({_setting(case) for case in cases}) < LEAST_SETTINGS:
        message = f"{len(cases)} of the rows are runs of {on.spec.name}, all at one load and one length"
        allowed = (
            f"at least {LEAST_SETTINGS} loads or lengths; best a light and a heavy load, and short and long prompts"
        )
        raise InputError(f"{message}: nothing tells compute, bandwidth and the host's time apart", allowed=allowed)
    runs = MeasuredRuns(cases, on.spec, only(Calibration).own_runs)
    _refuse_contradictions(runs)
    found = fit(runs)
    (name, version), factors = versions[0], runs.own(found.at)
    own = OwnRuns(
        engine=name,
        engine_version=version,
        **{key: _short(value) for key, value in factors.items()},
        ranges=ranges(runs, found),
        bands=bands(runs, found),
        points=len(cases),
        settings=_settings(cases),
        source=source,
        date=today().isoformat(),
    )
    untold = tuple(name for number, name in enumerate(FACTORS) if number not in found.told)
    far = tuple(name for name, at in zip(FACTORS, found.at, strict=True) if abs(at) > runs.rules.far)
    return CalibratedProfile(own, untold, far, _of_metrics(runs, found), aside)


def _cases(rows: Sequence[MeasuredRow], on: Found[Gpu], engine: str | None) -> tuple[list[Case], tuple[LeftOut, ...]]:
    """The rows of a GPU and an engine that can be predicted, and the others."""
    wanted, version = (None, None) if engine is None else load_engine(engine)
    cases, aside = [], []
    for row in rows:
        try:
            case = resolve(row, on)
            service = case.replica.service
            if wanted is not None and service.engine.name != wanted.spec.name:
                raise InputError(f"a run of {service.engine.name}")
            if version is not None and service.engine_version != version:
                raise InputError(f"a run of {service.engine.name} {service.engine_version}")
            if case.missed is not None:
                raise InputError(case.missed)
            if case.first_token_in_itl or case.statistic != "mean":
                raise InputError("states no means of TTFT and ITL")
            if not metrics_of(case):
                raise InputError("states nothing that depends on the engine")
            cases.append(case)
        except InputError as error:
            aside.append(LeftOut(row.id, "; ".join(map(str, error.faults))))
    return cases, tuple(aside)


def _refuse_mixed(versions: Sequence[tuple[str, str]], aside: Sequence[LeftOut]) -> None:
    """Raise InputError: no row is left, or rows of several versions."""
    if not versions:
        reasons = dict.fromkeys(one.reason for one in aside)
        allowed = "runs of this GPU and a plain engine, of a model that llmsize knows, with means of TTFT, ITL or E2E"
        raise InputError(f"no row can be fitted: {'; '.join(list(reasons)[:MOST_REASONS])}", allowed=allowed)
    names = [f"{name}:{version}" for name, version in versions]
    allowed = f"one of them, as {names[-1]}"
    raise InputError(f"the rows are of {', '.join(names)}", field="--engine", allowed=allowed)


def _refuse_contradictions(runs: MeasuredRuns) -> None:
    """Raise InputError for runs of one setting whose results are further apart than measurements repeat."""
    first: dict[Hashable, tuple[str, float]] = {}
    faults: dict[tuple[str, str], Fault] = {}
    for name, number, value in zip(runs.names, runs.run, runs.measured, strict=True):
        case = runs.cases[number]
        key = (name, case.model, case.replica.precision, case.replica.layout, case.deployed.rules, case.traffic)
        other, known = first.setdefault(key, (case.row.id, value))
        if abs(value - known) > runs.rules.most_apart * runs.rules.error[BAND_METRICS[name]]:
            message = f"{other} and {case.row.id} ran the same, and their {name} is {np.exp(known):,.4g} and {np.exp(value):,.4g}"
            allowed = "one of them; or columns that say what differs, as num_requests"
            faults.setdefault((other, case.row.id), Fault(message, allowed=allowed))
    if faults:
        raise InputError(list(faults.values()))


def _setting(case: Case) -> Hashable:
    row, traffic = case.row, case.traffic
    load = traffic.in_flight or traffic.rate_per_s or traffic.count
    return case.model, case.replica.precision, case.replica.layout, row.isl, row.osl, load


def _settings(cases: Sequence[Case]) -> str:
    """Write what was run, in one line: models and layouts, lengths, loads."""
    ran = dict.fromkeys(f"{case.model} {case.replica.precision} as {case.replica.layout}" for case in cases)
    lengths = dict.fromkeys(f"{case.row.isl:,.0f}/{case.row.osl:,.0f}" for case in cases)
    loads = sorted(load for case in cases if (load := case.row.concurrency or case.row.batch) is not None)
    flight = [f"{loads[0]:,} to {loads[-1]:,} in flight"] if loads else []
    return ", ".join([*ran, f"ISL/OSL {' '.join(lengths)}", *flight])


def _of_metrics(runs: MeasuredRuns, found: FactorFit) -> dict[str, MetricErrors]:
    corrected, names = runs.corrected(), np.array(runs.names)

    def median(predicted: Floats, name: str) -> float:
        return float(np.median(np.abs(np.expm1((predicted - runs.measured)[names == name]))))

    return {
        name: MetricErrors(
            int(np.sum(names == name)),
            *(median(predicted, name) for predicted in (found.base, corrected, found.predicted, found.left_out)),
        )
        for name in METRICS
        if name in runs.names
    }


def profile(calibrated: CalibratedProfile, on: Found[Gpu]) -> str:
    """The file of a profile that is a GPU's with own runs."""
    in_catalogue = on.path.parent == GPUS.path
    extension = GpuExtension(extends=on.id if in_catalogue else str(resolved(on.path)), own_runs=calibrated.own)
    stated = extension.model_dump(mode="json", exclude_none=True)
    return HEAD + yaml.safe_dump(stated, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
