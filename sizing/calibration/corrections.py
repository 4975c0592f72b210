"""Corrections of step times: factors for decode and for prefill that centre the predictions of groups left out.

Every time of a row follows from its steps. If decode steps take d times as long and prefill p times, a time t becomes
t * (p * (1 - s) + d * s), where s is the share of decode steps. A second simulation with longer decode steps gives s.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import date
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from sizing.calibration.command import in_processes
from sizing.calibration.fit import group_of
from sizing.catalog.measured import MeasuredRow
from sizing.evidence.errors import BAND_METRICS, is_driven
from sizing.evidence.predict import BAND_MODES, Prediction, predict
from sizing.evidence.rows import case_of_row
from sizing.model.attention import Numeric
from sizing.specs.bands import CLASS, COLUMNS, TIMES, UNCORRECTED, BandMetric, Correction, ModelKind, Situation, region
from sizing.specs.calibration import CorrectionRules
from sizing.specs.errors import InputError
from sizing.specs.frozen import Frozen

Floats = NDArray[np.float64]
TRIED = Correction(decode=1.25)  # longer decode steps, to find their share of a time
# Logarithms of the factors that are tried, 0.6 to 2.5. Steps with measured kernels are not off by more. A larger error comes from
# a queue or from a setting that a source does not state, and no factor on steps corrects that.
LOG_FACTORS = np.round(np.arange(-0.52, 0.93, 0.04), 2)
NONE = int(np.argmin(np.abs(LOG_FACTORS)))  # the place of the factor 1
MODES = ("served", "offline")  # the modes of questions
# The fields of a correction's class, the narrowest class first.
CLASSES: tuple[tuple[str, ...], ...] = (
    ("mode", "vendor", "engine", "architecture", "kind"),
    ("mode", "vendor", "engine", "kind"),
    ("mode", "vendor", "engine"),
)
FITTED: tuple[BandMetric, ...] = ("ttft", "itl", "throughput")
RUNS_PER_LOAD = 4


class TimeRatio(NamedTuple):
    """Measured over predicted time (for a rate: predicted over measured), and the share of decode steps in this time."""

    ratio: float
    decode_share: float

    def at(self, decode: Numeric, prefill: Numeric) -> Numeric:
        """The ratio with predictions whose decode and prefill steps take these factors longer."""
        return self.ratio / (prefill * (1 - self.decode_share) + decode * self.decode_share)

    def corrected(self, correction: Correction) -> float:
        """The ratio after the correction `correction` of the prediction."""
        return float(self.at(correction.decode, correction.prefill))


class Seen(NamedTuple):
    """A measured row, its class and group, and the ratio of its times to predictions, by metric of bands."""

    row: MeasuredRow
    situation: Situation
    group: str
    timings: dict[BandMetric, TimeRatio]
    correction: Correction = UNCORRECTED

    def ratio(self, metric: BandMetric) -> float | None:
        """Measured over predicted time, corrected by other groups; None if the metric was not measured."""
        timing = self.timings.get(metric)
        return None if timing is None else timing.corrected(self.correction)


def observe(rows: Sequence[MeasuredRow], jobs: int) -> list[Seen]:
    """The rows that can be predicted. Served rows are simulated twice: with predicted and with longer decode steps."""
    order = sorted(range(len(rows)), key=lambda i: (rows[i].gpu, rows[i].model, rows[i].engine, rows[i].tp or 1))
    found = in_processes(_observe, [rows[i] for i in order], jobs)
    return [one for one in found if one is not None]


def _observe(row: MeasuredRow) -> Seen | None:
    try:
        case = case_of_row(row)
    except InputError:
        return None
    plain = predict(case)
    if plain.missed:
        return None
    gpu, slower, mode = case.replica.gpu_type.gpu, plain, BAND_MODES[row.mode]
    if mode == "served":
        kernels = replace(case.deployed.kernels, correction=TRIED)
        slower = predict(replace(case, deployed=replace(case.deployed, kernels=kernels)))
    kind: ModelKind = "moe" if case.is_moe else "dense"
    engine = case.replica.service.engine.name
    situation = Situation(mode, gpu.vendor, engine, gpu.architecture, kind, region(plain.in_flight))
    return Seen(row, situation, group_of(row), _timings(row, plain, slower))


def _timings(row: MeasuredRow, plain: Prediction, slower: Prediction) -> dict[BandMetric, TimeRatio]:
    found: dict[BandMetric, TimeRatio] = {}
    for name, measured in row.measured().items():
        predicted, later = plain.values.get(name, 0.0), slower.values.get(name, 0.0)
        if predicted <= 0 or later <= 0 or is_driven(row, name):
            continue
        metric = BAND_METRICS[name]
        ratio, longer = measured / predicted, later / predicted
        if metric == "throughput":
            ratio, longer = 1 / ratio, 1 / longer
        found[metric] = TimeRatio(ratio, min(1.0, max(0.0, (longer - 1) / (TRIED.decode - 1))))
    if "e2e" not in found and {"ttft", "itl"} <= found.keys():  # E2E = TTFT + ITL * (OSL - 1)
        times = (row.measured(), plain.values, slower.values)
        measured, predicted, later = (of["ttft_ms"] + (row.osl - 1) * of["itl_ms"] for of in times)
        share = min(1.0, max(0.0, (later / predicted - 1) / (TRIED.decode - 1)))
        found["e2e"] = TimeRatio(measured / predicted, share)
    return found


# --- the factors of a class --------------------------------------------------------------------------------------------


class CentredErrors(Frozen):
    """Mean absolute logarithmic errors for every pair of factors, shape (metrics, groups, decode, prefill); NaN without rows."""

    groups: tuple[str, ...]
    of: Floats

    @classmethod
    def find(cls, observations: Sequence[Seen]) -> CentredErrors:
        """Compute the errors of the rows `observations`."""
        groups = tuple(dict.fromkeys(one.group for one in observations))
        decode, prefill = np.exp(LOG_FACTORS)[:, np.newaxis], np.exp(LOG_FACTORS)[np.newaxis, :]
        found = np.full((len(FITTED), len(groups), LOG_FACTORS.size, LOG_FACTORS.size), np.nan)
        for (number, name), (place, group) in product(enumerate(FITTED), enumerate(groups)):
            known = [one.timings[name] for one in observations if one.group == group and name in one.timings]
            if known:
                found[number, place] = np.mean([np.abs(np.log(t.at(decode, prefill))) for t in known], axis=0)
        return cls(groups, found)

    def known_groups(self, metric: BandMetric) -> int:
        """The number of groups in which a metric was measured."""
        return int(np.sum(~np.isnan(self.of[FITTED.index(metric), :, NONE, NONE])))

    def at(self, group: int, correction: Correction) -> Floats:
        """The errors of a group by metric, interpolated between the factors that were tried."""
        (i, u), (j, v) = (
            divmod(float(np.interp(np.log(factor), LOG_FACTORS, np.arange(LOG_FACTORS.size))), 1.0)
            for factor in (correction.decode, correction.prefill)
        )
        (i, k), (j, m) = ((int(at), min(int(at) + 1, LOG_FACTORS.size - 1)) for at in (i, j))
        of = self.of[:, group]
        low, high = (of[:, at, j] * (1 - v) + of[:, at, m] * v for at in (i, k))
        return np.asarray(low * (1 - u) + high * u)


Form = Callable[[Floats], tuple[int, int]]


def _one(errors: Floats) -> tuple[int, int]:
    place = int(np.argmin(np.diagonal(errors)))
    return place, place


def _two(errors: Floats) -> tuple[int, int]:
    decode, prefill = np.unravel_index(int(np.argmin(errors)), errors.shape)
    return int(decode), int(prefill)


def _decode(errors: Floats) -> tuple[int, int]:
    return int(np.argmin(errors[:, NONE])), NONE


def _prefill(errors: Floats) -> tuple[int, int]:
    return NONE, int(np.argmin(errors[NONE]))


# One factor for all steps, one each for prefill and decode, or one for either alone: each with the times that tell of its factors.
# Saturated runs do not tell prefill and decode apart.
FORMS: dict[str, dict[Form, tuple[BandMetric, ...]]] = {
    "served": {_one: (), _two: ("ttft", "itl"), _decode: ("itl",), _prefill: ("ttft",)},
    "offline": {_one: ()},
}


def fitted(errors: Floats, form: Form, rules: CorrectionRules) -> Correction:
    """The factors with the least mean error over groups, shrunk towards 1. Fewer groups mean more shrinkage."""
    groups = errors.shape[1]
    kept = groups / (groups + rules.shrink_groups)
    of_groups = np.nanmean(errors, axis=0)
    decode, prefill = (float(np.exp(kept * LOG_FACTORS[place])) for place in form(of_groups.mean(axis=0)))
    return Correction(decode=float(f"{decode:.3g}"), prefill=float(f"{prefill:.3g}"), groups=groups)


def class_of(situation: Situation, conditions: Sequence[str]) -> tuple[str, ...]:
    """The fields of a situation that name a class."""
    return tuple(getattr(situation, name) for name in conditions)


def corrections_of(observations: Sequence[Seen], rules: CorrectionRules) -> tuple[list[Correction], list[Seen]]:
    """The corrections of all classes with enough groups, and the rows, each corrected by the other groups of its class.

    A class uses the form with the least error on groups left out, of those whose times enough groups have measured. If no form
    helps, the factors are 1, and no wider class applies.
    """
    found: list[Correction] = []
    corrected: dict[int, Correction] = {}
    for conditions in CLASSES:
        classes: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for number, one in enumerate(observations):
            if one.situation.mode in MODES and any(name in one.timings for name in FITTED):
                classes[class_of(one.situation, conditions)].append(number)
        for key, members in sorted(classes.items(), key=str):
            of_class = [observations[number] for number in members]
            errors = CentredErrors.find(of_class)
            if len(errors.groups) < rules.least_groups:
                continue
            forms = [
                form
                for form, metrics in FORMS[str(key[0])].items()
                if all(errors.known_groups(metric) >= rules.least_groups for metric in metrics)
            ]
            whole, without = _judged(errors, _left_out(of_class, errors.groups, conditions), forms, rules)
            sources = ", ".join(dict.fromkeys(one.row.source for one in of_class))
            stated = dict(zip(conditions, key, strict=True))
            found.append(Correction.model_validate({**whole.model_dump(), **stated, "source": sources}))
            for number in members:
                corrected.setdefault(number, without[observations[number].group])
    return found, [
        one._replace(correction=corrected.get(number, UNCORRECTED)) for number, one in enumerate(observations)
    ]


def _left_out(of_class: Sequence[Seen], groups: Sequence[str], conditions: Sequence[str]) -> list[list[int]]:
    """The places of the groups that are left out together: those that agree in what their class does not state.

    The narrowest class leaves out one group at a time. A wider class is for questions of other architectures (or kinds of
    models) than its groups', so that all groups of one architecture are left out together.
    """
    unstated = [name for name in CLASSES[0] if name not in conditions]
    situations = {one.group: one.situation for one in of_class}
    blocks: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, group in enumerate(groups):
        blocks[class_of(situations[group], unstated) or (group,)].append(place)
    return list(blocks.values())


def _judged(
    errors: CentredErrors, left_out: Sequence[list[int]], forms: Sequence[Form], rules: CorrectionRules
) -> tuple[Correction, dict[str, Correction]]:
    """The correction of a class, and for each group the correction found without the groups that are `left_out` with it.

    A form is accepted only if it lowers the mean error on groups left out by more than chance, and raises the median error in no
    metric. Of these forms, the one with the least mean error is used. No form is accepted where all groups would be left out at
    once.
    """
    places, nothing = range(len(errors.groups)), Correction(groups=len(errors.groups))
    before = np.array([errors.at(place, nothing) for place in places])
    seen = ~np.isnan(before).all(axis=0)
    found, least = (nothing, dict.fromkeys(errors.groups, nothing)), _mean(before)
    for form in forms if len(left_out) > 1 else ():
        found_without = [fitted(np.delete(errors.of, block, axis=1), form, rules) for block in left_out]
        of_place = {place: by for block, by in zip(left_out, found_without, strict=True) for place in block}
        others = [of_place[place] for place in places]
        off = np.array([errors.at(place, by) for place, by in zip(places, others, strict=True)])
        worse = np.nanmedian(off[:, seen], axis=0) > np.nanmedian(before[:, seen], axis=0) + rules.most_loss
        gain = np.nanmean(before - off, axis=1)
        sure = gain.mean() > rules.least_standard_errors * gain.std(ddof=1) / np.sqrt(gain.size)
        if sure and _mean(off) < least * (1 - rules.least_gain) and not worse.any():
            least = _mean(off)
            found = fitted(errors.of, form, rules), dict(zip(errors.groups, others, strict=True))
    return found


def _mean(errors: Floats) -> float:
    return float(np.nanmean(errors, axis=1).mean())


# --- what is written and shown ------------------------------------------------------------------------------------------


def corrections_table(corrections: Sequence[Correction]) -> Table:
    """The corrections by class."""
    table = Table(*CLASSES[0], "decode", "prefill", "groups", title="corrections")
    for one in corrections:
        stated = (getattr(one, name) or "any" for name in CLASSES[0])
        table.add_row(*stated, str(one.decode), str(one.prefill), str(one.groups))
    return table


def centred_table(observations: Sequence[Seen]) -> Table:
    """Medians over groups of measured/predicted times and of absolute errors, before and after correction."""
    title = "measured over predicted time: median of groups, median error; uncorrected, and corrected by other groups"
    table = Table("mode", "metric", "groups", "ratio", "corrected", "error, %", "corrected", title=title)
    for mode, metric in product(MODES, (*FITTED, "e2e")):
        groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for one in observations:
            timing = one.timings.get(metric)
            if one.situation.mode == mode and timing is not None:
                groups[one.group].append((timing.ratio, timing.corrected(one.correction)))
        if groups:
            ratios = np.array([np.median(values, axis=0) for values in groups.values()])
            off = np.array([np.median(np.abs(1 / np.array(values) - 1), axis=0) for values in groups.values()])
            middle, error = np.median(ratios, axis=0), 100 * np.median(off, axis=0)
            table.add_row(mode, metric, str(len(groups)), *(f"{x:.2f}" for x in middle), *(f"{x:.0f}" for x in error))
    return table


def rendered_corrections(corrections: Sequence[Correction]) -> str:
    """The file of corrections as text, a line a correction."""
    lines = []
    for one in corrections:
        stated = {name: value for name, value in one.model_dump().items() if value is not None and name != "source"}
        fields = ", ".join(f"{name}: {value}" for name, value in stated.items())
        lines.append(f'  - {{{fields}, source: "{one.source}"}}')
    return _file(
        "Factors of step times that centre predictions, by class, the narrowest first: medians of published runs.",
        ["corrections:", *lines] if lines else ["corrections: []"],
    )


def rendered_runs(observations: Sequence[Seen], least_groups: int, tail: float) -> str:
    """The file of published runs as text: a few runs of each group and load, from the fastest to the slowest.

    `tail` is the share of runs beyond each end of a range of latencies.
    """
    spread: dict[tuple[Situation, str], list[Seen]] = defaultdict(list)
    for one in observations:
        if one.situation.mode in MODES:
            spread[one.situation, one.group].append(one)
    names = sorted({group for _, group in spread})
    lines = []
    for (situation, group), members in sorted(spread.items(), key=str):
        members.sort(key=lambda one: one.ratio("e2e") or one.ratio("throughput") or 1.0)
        places = np.linspace(0, len(members) - 1, min(RUNS_PER_LOAD, len(members)))
        for one in (members[int(place)] for place in places):
            lines.append(" ".join((*class_of(situation, CLASS), str(names.index(group)), *_times(one))))
    return _file(
        "Published runs: times measured over predicted, as corrected by the runs of other groups; a dash: not measured.",
        [
            f"least_groups: {least_groups}",
            f"tail: {tail:g}",
            "groups:",
            *(f'  - "{name}"' for name in names),
            f"# {' '.join(COLUMNS)}",
            "runs: |",
            *(f"  {line}" for line in lines),
        ],
    )


def _times(one: Seen) -> list[str]:
    """The times of a run. A missing throughput ratio is replaced by that of E2E: in a closed loop they agree by Little's law."""
    times = {name: one.ratio(name) for name in TIMES}
    if times["throughput"] is None:
        times["throughput"] = times["e2e"]
    return ["-" if time is None else f"{time:.3g}" for time in times.values()]


def _file(what: str, lines: Sequence[str]) -> str:
    return "\n".join(
        (
            f"# {what}",
            "# Written by `python -m sizing.calibration.bands`.",
            *lines,
            'source: "published benchmark runs, each with its source beside the measurement"',
            f'date: "{date.today().isoformat()}"',
            "",
        )
    )
