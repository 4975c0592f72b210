"""Four factors on step times that best explain a user's own runs of a GPU and an engine.

The factors are the compute and the bandwidth that kernels reach, and the time added to each step and for each running sequence.
Each round uses the closed form to find better factors: its changes are applied to the last simulated metrics. The simulator then
runs with these factors; if the result is worse, a shorter move is tried. Factors are pulled towards the base profile, so a factor
that the runs hardly determine stays near it. How far a factor may move is data (`own_runs` of _calibration.yaml).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import yaml

from sizing.calibration.measured_runs import TINY, Floats, MeasuredRuns, impossible, metrics_of
from sizing.catalog.files import resolved
from sizing.catalog.measured import METRICS, MOST_FAULTS, LeftOut, MeasuredRow
from sizing.catalog.prices import today
from sizing.catalog.profiles import GPUS, load_engine
from sizing.catalog.runs import students
from sizing.catalog.shelf import Found, only
from sizing.evidence.errors import BAND_METRICS
from sizing.evidence.notes import NO_VERSION
from sizing.evidence.rows import Case, case_of_row
from sizing.specs.bands import BandMetric
from sizing.specs.calibration import Calibration, OwnRunRules
from sizing.specs.engine_time import FACTORS, HIGH_END, Factor, FactorRange, GpuExtension, OwnBand, OwnRuns
from sizing.specs.errors import Fault, InputError, raise_any
from sizing.specs.gpu import Gpu

TURNS = 3  # iterations of the closed form in a round
SETTLED = 1e-3  # the search ends if a round lowers the cost by less than this share
SIGMAS_OF_8_IN_10 = 1.2816
LEAST_SETTINGS, MOST_REASONS, DIGITS = 2, 3, 4
HEAD = "# Written by llmsize calibrate: use it as --gpu, by its path.\n"


# --- the search ------------------------------------------------------------------------------------------------------


class FactorFit(NamedTuple):
    """Fitted factors `at`, in units of spread, shape (4,). `told` numbers the factors that the runs determine.

    `base` and `predicted` are logarithms of the simulated metrics without and with the factors, shape (n,). `left_out` predicts
    each run with factors from runs of other settings, shape (n,). `sigma` is the standard deviation of each factor, shape (4,).
    """

    at: Floats
    told: tuple[int, ...]
    base: Floats
    predicted: Floats
    left_out: Floats
    sigma: Floats


def told(slopes: Floats, rules: OwnRunRules) -> tuple[int, ...]:
    """The numbers of the factors that the runs determine. `slopes`, shape (n, 4), are in units of what factors leave.

    The least known factor is dropped first. Fixing it makes the others better known, so they are tested again.
    """
    free = list(range(len(FACTORS)))
    while free:
        left = np.sqrt(np.diag(_covariance(slopes[:, free])))
        if left.max() <= rules.most_left:
            break
        free.pop(int(np.argmax(left)))
    return tuple(free)


def _covariance(slopes: Floats) -> Floats:
    """The covariance of the factors, in units of spread. The prior counts as much as one measurement of each factor."""
    return np.asarray(np.linalg.inv(slopes.T @ slopes + np.eye(slopes.shape[1])), dtype=np.float64)


def fit(runs: MeasuredRuns) -> FactorFit:
    """The factors that explain the runs best. Raises InputError if the runs determine none.

    Errors that four factors cannot explain count as scatter. A metric with larger remaining errors gets less weight.
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
    """The point of least cost, searched from `at`, and the metrics simulated there."""
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
    """The rules with what is left of each metric raised to the scatter of these runs. It never falls."""
    off = (_weight(runs, predicted) * (runs.measured - predicted)) ** 2
    free = max(0.1, 1 - len(FACTORS) / len(off))  # degrees of freedom left, as a share of the measurements
    metrics = np.array([BAND_METRICS[name] for name in runs.names])
    scatter = {name: float(np.sqrt(np.mean(off[metrics == name]) / free)) for name in set(metrics)}
    raised = {name: left * max(1.0, scatter.get(name, 1.0)) for name, left in runs.rules.unexplained.items()}
    return runs.rules.model_copy(update={"unexplained": raised})


def _cost(runs: MeasuredRuns, at: Floats, predicted: Floats) -> float:
    """The cost to minimise: squared errors (linear beyond `bend`, Huber), and the squared distance from the base profile."""
    off, bend = np.abs(runs.weight * (runs.measured - predicted)), runs.rules.bend
    return float(np.sum(np.where(off <= bend, off**2, bend * (2 * off - bend))) + np.sum(at**2))


def _weight(runs: MeasuredRuns, predicted: Floats) -> Floats:
    """Weights, shape (n,), with which least squares around a prediction approximates `_cost`."""
    off = np.abs(runs.weight * (runs.measured - predicted))
    return np.asarray(runs.weight * np.sqrt(np.minimum(1.0, runs.rules.bend / np.maximum(off, TINY))))


def _nearest(runs: MeasuredRuns, at: Floats, predicted: Floats) -> Floats:
    """The point that explains the runs best, with changes from the closed form applied to the metrics simulated at `at`."""
    here, error = runs.steady(at), runs.measured - predicted
    tried = at.copy()
    for turn in range(TURNS):
        now = runs.steady(tried) if turn else here
        left = error - (now - here)
        tried = tried + _change(runs.slopes(tried, now), left, _weight(runs, runs.measured - left), tried)
        tried = np.clip(tried, -runs.most, runs.most)
    return tried


def _change(slopes: Floats, error: Floats, weight: Floats, at: Floats) -> Floats:
    """The change of the factors, shape (4,), that explains errors best with linear slopes. The sum is pulled towards zero."""
    rows = np.concatenate([slopes * weight[:, np.newaxis], np.eye(len(at))])
    return np.asarray(np.linalg.lstsq(rows, np.concatenate([error * weight, -at]), rcond=None)[0], dtype=np.float64)


def _left_out(runs: MeasuredRuns, at: Floats, predicted: Floats, slopes: Floats) -> Floats:
    """Logarithms of each run's metrics with factors from runs of other settings, linearised at the best point."""
    found, error, weight = predicted.copy(), runs.measured - predicted, _weight(runs, predicted)
    ran = [_setting(case) for case in runs.cases]  # a repeated run, or one read twice, must not predict itself
    setting = np.array([ran.index(one) for one in ran])[runs.run]
    for number in set(setting):
        others, own = setting != number, setting == number
        change = _change(slopes[others], error[others], weight[others], at)
        found[own] += slopes[own] @ change
    return found


# --- what is written ---------------------------------------------------------------------------------------------------


def ranges(runs: MeasuredRuns, fit: FactorFit) -> tuple[FactorRange, ...]:
    """The 8-in-10 range of each factor."""
    low, high = (runs.own(fit.at + side * SIGMAS_OF_8_IN_10 * fit.sigma) for side in (-1, 1))
    return tuple(FactorRange(factor=name, low=_short(low[name]), high=_short(high[name])) for name in FACTORS)


def bands(runs: MeasuredRuns, fit: FactorFit) -> tuple[OwnBand, ...]:
    """The error bands of the measured metrics, with each run predicted from the others.

    The error that other lengths, loads and layouts add is included. E2E and rates follow from other metrics if not measured.
    """
    made = []
    for metric, ratios in _errors(runs, fit.left_out).items():
        n = len(ratios)
        spread = float(np.hypot(np.sqrt(np.mean(np.square(ratios))), runs.rules.elsewhere[metric]))
        width = max(float(students(HIGH_END, max(1, n - 1))) * spread, SIGMAS_OF_8_IN_10 * runs.rules.error[metric])
        ends = {"low": _short(np.exp(-width)), "high": _short(np.exp(width))}
        made.append(OwnBand.model_validate({"metric": metric, "n": n, **ends}))
    return tuple(made)


def _errors(runs: MeasuredRuns, predicted: Floats) -> dict[BandMetric, list[float]]:
    """Logarithms of measured/predicted, by metric.

    The E2E of a run follows from its TTFT and ITL, and the throughput of a closed loop from its E2E.
    """
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


# --- from rows to a profile --------------------------------------------------------------------------------------------


class MetricErrors(NamedTuple):
    """Medians of |error| of n measurements: base profile, correction by published runs, factors, factors of other runs."""

    n: int
    base: float
    corrected: float
    own: float
    left_out: float


class CalibratedProfile(NamedTuple):
    """The result of own runs: the factors as a profile states them, factors that the runs hardly determine, factors that suggest
    another machine, errors by column, rows not fitted, the number of layouts that were run, and what was taken for values that
    rows do not state, with the number of rows.
    """

    own: OwnRuns
    untold: tuple[Factor, ...]
    far: tuple[Factor, ...]
    errors: dict[str, MetricErrors]
    aside: tuple[LeftOut, ...]
    layouts: int
    taken: dict[str, int]


def calibrate(rows: Sequence[MeasuredRow], on: Found[Gpu], engine: str | None, source: str) -> CalibratedProfile:
    """Fit the factors of a GPU profile to measured rows of that GPU and an engine.

    `engine` is `vllm` or `vllm:0.19.0` (None: the engine of the rows). Raises InputError for a profile that already has own runs,
    for rows of several engines or versions, and for rows that determine no factor.
    """
    if on.spec.own_runs is not None:
        base = on.spec.extends or "the profile without them"
        raise InputError(f"{on.spec.name} has own runs already", field="--gpu", allowed=base)
    cases, aside = _cases(rows, on, engine)
    versions = sorted({(case.replica.service.engine.name, case.replica.service.engine_version) for case in cases})
    if len(versions) != 1:
        _refuse_mixed(versions, aside)
    if len({_setting(case) for case in cases}) < LEAST_SETTINGS:
        ran = "a single row is a run" if len(cases) == 1 else f"{len(cases)} of the rows are runs"
        message = f"{ran} of {on.spec.name}, all at one load and one length"
        best = "best a light and a heavy load, and short and long prompts"
        allowed = f"at least {LEAST_SETTINGS} loads or lengths; {best}"
        raise InputError(f"{message}: nothing tells compute, bandwidth and the host's time apart", allowed=allowed)
    runs = MeasuredRuns(cases, on.spec, only(Calibration).own_runs)
    if faults := [fault for case in cases for fault in impossible(case)]:
        raise InputError(faults[:MOST_FAULTS])
    _refuse_contradictions(runs)
    found = fit(runs)
    errors = _of_metrics(runs, found)
    _refuse_unexplained(errors, on.spec.name, runs.rules.most_off)
    (name, version), factors = versions[0], runs.own(found.at)
    own = OwnRuns(
        engine=name,
        engine_version=version,
        **{key: _short(value) for key, value in factors.items()},
        ranges=ranges(runs, found),
        bands=bands(runs, found),
        points=len(cases),
        settings=_settings(cases),
        closed_loop=any(case.row.mode == "closed_loop" for case in cases),
        source=source,
        date=today().isoformat(),
    )
    untold = tuple(name for number, name in enumerate(FACTORS) if number not in found.told)
    far = tuple(name for name, at in zip(FACTORS, found.at, strict=True) if abs(at) > runs.rules.far)
    layouts = len({case.replica.layout for case in cases})
    taken = Counter(note for case in cases for note in case.notes)
    return CalibratedProfile(own, untold, far, errors, aside, layouts, dict(taken))


def _cases(rows: Sequence[MeasuredRow], on: Found[Gpu], engine: str | None) -> tuple[list[Case], tuple[LeftOut, ...]]:
    """The rows of a GPU and an engine that can be predicted, and the other rows."""
    wanted, version = (None, None) if engine is None else load_engine(engine)
    cases, aside = [], []
    known: set[MeasuredRow] = set()
    for row in rows:
        try:
            if row in known:
                raise InputError("stands twice, and counts once")
            known.add(row)
            case = case_of_row(row, on)
            service = case.replica.service
            if wanted is not None and service.engine.name != wanted.spec.name:
                raise InputError(f"a run of {service.engine.name}")
            if version is not None and service.engine_version != version:
                taken = next((note for note in case.notes if NO_VERSION in note), None)
                ran = f"a run of {service.engine.name} {service.engine_version}"
                stated = f"{taken}: add a column engine_version, or leave out :{version}"
                raise InputError(ran if taken is None else stated)
            if case.missed is not None:
                raise InputError(case.missed)
            if case.itl_definition or case.statistic != "mean":
                raise InputError("states no means of TTFT and ITL")
            if not metrics_of(case):
                raise InputError("states nothing that depends on the engine")
            cases.append(case)
        except InputError as error:
            aside.append(LeftOut(row.id, "; ".join(map(str, error.faults))))
    return cases, tuple(aside)


def _refuse_mixed(versions: Sequence[tuple[str, str]], aside: Sequence[LeftOut]) -> None:
    """Raise InputError if no row is left, or if rows are of several versions."""
    if not versions:
        reasons = dict.fromkeys(one.reason for one in aside)
        allowed = "runs of this GPU and a plain engine, of a model that llmsize knows, with means of TTFT, ITL or E2E"
        raise InputError(f"no row can be fitted: {'; '.join(list(reasons)[:MOST_REASONS])}", allowed=allowed)
    names = [f"{name}:{version}" for name, version in versions]
    remedy = f"state one of them, as {names[-1]}"
    raise InputError(f"the rows are of {', '.join(names)}", field="--engine", remedy=remedy)


def _refuse_contradictions(runs: MeasuredRuns) -> None:
    """Raise InputError for runs of one setting whose results differ by more than repeated measurements do."""
    first: dict[Hashable, tuple[str, float]] = {}
    faults: dict[tuple[str, str], Fault] = {}
    for name, number, value in zip(runs.names, runs.run, runs.measured, strict=True):
        case = runs.cases[number]
        key = (name, case.model, case.replica.precision, case.replica.layout, case.deployed.rules, case.traffic)
        other, known = first.setdefault(key, (case.row.id, value))
        if abs(value - known) > runs.rules.most_apart * runs.rules.error[BAND_METRICS[name]]:
            message = f"{other} and {case.row.id} ran the same, and their {name} is {np.exp(known):,.4g} and {np.exp(value):,.4g}"
            remedy = "state one of them; or columns that say what differs, as num_requests"
            faults.setdefault((other, case.row.id), Fault(message, remedy=remedy))
    raise_any(faults.values())


def _refuse_unexplained(errors: dict[str, MetricErrors], gpu: str, most_off: float) -> None:
    """Raise InputError for metrics that stay far off with the best factors: a profile of them would predict nothing."""
    allowed = "figures in ms and requests/s; the GPU, engine, layout, precision and lengths that were run"
    off = "off the runs (median) with the best factors of"
    why = "another machine ran them, or a unit is wrong"
    raise_any(
        Fault(f"is predicted {each.own:.0%} {off} {gpu}: {why}", field=name, allowed=allowed)
        for name, each in errors.items()
        if each.own > most_off
    )


def _setting(case: Case) -> Hashable:
    row, traffic = case.row, case.traffic
    load = traffic.in_flight or traffic.rate_per_s or traffic.count
    return case.model, case.replica.precision, case.replica.layout, row.isl, row.osl, load


def _settings(cases: Sequence[Case]) -> str:
    """Describe the runs in one line: models and layouts, lengths, loads."""
    models = (f"{case.model} {case.replica.precision or ''}".rstrip() for case in cases)
    ran = dict.fromkeys(f"{model} as {case.replica.layout}" for model, case in zip(models, cases, strict=True))
    lengths = dict.fromkeys(f"{case.row.isl:,.0f}/{case.row.osl:,.0f}" for case in cases)
    loads = sorted(load for case in cases if (load := case.row.concurrency or case.row.batch) is not None)
    flight = [f"{loads[0]:,} to {loads[-1]:,} in flight"] if loads else []
    return ", ".join([*ran, f"ISL/OSL {' '.join(lengths)}", *flight])


def _of_metrics(runs: MeasuredRuns, fit: FactorFit) -> dict[str, MetricErrors]:
    corrected, names = runs.corrected(), np.array(runs.names)

    def median(predicted: Floats, name: str) -> float:
        return float(np.median(np.abs(np.expm1((predicted - runs.measured)[names == name]))))

    return {
        name: MetricErrors(
            int(np.sum(names == name)),
            *(median(predicted, name) for predicted in (fit.base, corrected, fit.predicted, fit.left_out)),
        )
        for name in METRICS
        if name in runs.names
    }


def profile(calibrated: CalibratedProfile, on: Found[Gpu]) -> str:
    """The text of a profile file that extends a GPU's profile by own runs."""
    in_catalogue = on.path.parent == GPUS.path
    extension = GpuExtension(extends=on.id if in_catalogue else str(resolved(on.path)), own_runs=calibrated.own)
    stated = extension.model_dump(json=True, exclude_none=True)
    return HEAD + yaml.safe_dump(stated, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
