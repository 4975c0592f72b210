"""`llmsize calibrate`: the factors for a GPU's profile from the user's own runs, their errors, and the rows left out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.calibration.own_runs import CalibratedProfile, MetricErrors
from sizing.catalog.measured import LeftOut
from sizing.formats.view import Document, Facts, Line, Prose, Quantity, Rows, Section, Table, filled, in_words, rows_of
from sizing.formats.words import number, plural
from sizing.report.parts.evidence import TITLES as BAND_TITLES
from sizing.report.parts.quantities import COLUMN_TITLES
from sizing.report.parts.screen import reasons
from sizing.specs.bands import ErrorBand
from sizing.specs.engine_time import FACTORS, Factor

MEANINGS: dict[Factor, tuple[str, str]] = {
    "compute": ("compute that kernels reach", "x base"),
    "bandwidth": ("bandwidth that kernels reach", "x base"),
    "step_us": ("host time of every step", "us more than base"),
    "sequence_us": ("host time of each sequence in it", "us more than base"),
}


class FittedFactor(NamedTuple):
    """A factor with its 80 % range.

    It is `told` if the runs separate it from the other factors; otherwise it is drawn towards the base profile. It is `far` if
    it differs more from the base profile than machines with the same GPU differ from each other.
    """

    factor: Factor
    value: float
    low: float | None
    high: float | None
    unit: str
    told: bool = True
    far: bool = False


class CalibrationReport(NamedTuple):
    """The record of `llmsize calibrate`. Errors are shares: 0.1 is 10 %. `bands` are multiples of a prediction.

    For `left_out`, the other runs predict each run.
    """

    inputs: dict[str, Any]
    gpu: str
    engine: str
    engine_version: str
    settings: str
    points: int
    layouts: int
    factors: tuple[FittedFactor, ...]
    errors: dict[str, MetricErrors]
    bands: dict[str, ErrorBand]
    aside: tuple[LeftOut, ...]
    taken: dict[str, int]
    written: str | None
    schema: str = "llmsize.calibration/1"


def record(
    profile: CalibratedProfile, gpu: str, inputs: dict[str, Any], written: str | None, unread: Iterable[LeftOut]
) -> CalibrationReport:
    """The record of a calibration of `gpu`. `written` is the file of the profile; `unread` has skipped rows and reasons."""
    own = profile.own
    known: dict[Factor, tuple[float | None, float | None]] = {one.factor: (one.low, one.high) for one in own.ranges}

    def factor(name: Factor) -> FittedFactor:
        low, high = known.get(name, (None, None))
        told, far = name not in profile.untold, name in profile.far
        return FittedFactor(name, getattr(own, name), low, high, MEANINGS[name][1], told, far)

    return filled(
        CalibrationReport,
        own,
        profile,
        inputs=inputs,
        gpu=gpu,
        factors=tuple(map(factor, FACTORS)),
        bands={band.metric: ErrorBand(band.low, band.high, band.n) for band in own.bands},
        aside=(*profile.aside, *unread),
        written=written,
    )


FACTOR = in_words("factor", "factor")
VALUE = Quantity("value", "value", lambda value: number(value, 3))
UNIT = in_words("unit", "unit")
LOW, HIGH = (
    Quantity(name, heading, lambda value: number(value, 3), shown="always")
    for name, heading in (("low", "from"), ("high", "to"))
)


def rows(record: CalibrationReport) -> Rows:
    """A row for each factor."""
    return rows_of(record.factors, (FACTOR, VALUE, LOW, HIGH, UNIT))


ERRORS_SAY = (
    "base: the base profile; corrected: the same, corrected by published runs; fitted: the new profile; left out: each run "
    "predicted by a profile that was fitted to the other runs.",
)


def _percent(name: str, heading: str) -> Quantity:
    return Quantity(name, heading, lambda share: f"{100 * share:.1f}", shown="always")


ERRORS = (
    in_words("metric", "metric"),
    _percent("base", "base"),
    _percent("corrected", "corrected"),
    _percent("own", "fitted"),
    _percent("left_out", "left out"),
    Quantity("n", "n"),
)


def sections(record: CalibrationReport) -> Iterator[Section]:
    """Yield the factors, the errors before and after, the bands, and the rows left out."""
    head = f"{record.gpu} under {record.engine} {record.engine_version}: {plural(record.points, 'own run')}"
    yield Prose((Line(record.settings),), head)
    what = in_words("what", "factor", lambda one: MEANINGS[one.factor][0])
    yield Table(
        (what, VALUE, LOW, HIGH, UNIT), record.factors, "/factors", notes=("from, to: the range of 8 in 10 values.",)
    )
    yield Facts(tuple(_held(record.factors, record.layouts)))
    errors = [{"metric": COLUMN_TITLES[name], **each._asdict()} for name, each in record.errors.items()]
    yield Table(ERRORS, errors, "/errors", "Median error in %", ERRORS_SAY)
    yield Facts(tuple(_worse(record.errors)))
    spans = ", ".join(f"{BAND_TITLES[name]} x {band.low:.2f} to {band.high:.2f}" for name, band in record.bands.items())  # type: ignore[index]
    written = (Line(f"{record.written}: use it as --gpu, by its path", "Written"),) if record.written else ()
    yield Facts((Line(f"measured over predicted, 8 in 10: {spans}", "Error bands"), *written))
    yield Facts(tuple(reasons("Left aside", record.aside)))
    yield Facts(tuple(Line(f"{what} ({plural(rows, 'row')})", "Taken") for what, rows in record.taken.items()))


def _held(factors: Sequence[FittedFactor], layouts: int) -> Iterator[Line]:
    """Yield the factors that the runs hardly determine, and the factors far from the base profile."""
    if far := [MEANINGS[one.factor][0] for one in factors if one.far]:
        why = "further from the base profile than machines of one GPU are; look whether GPU, engine, layout, precision and lengths are those of the runs"
        yield Line(f"{', '.join(far)}: {why}", "Mind")
    names = [MEANINGS[one.factor][0] for one in factors if not one.told and not one.far]
    if names:
        apart = "; add two runs at another TP" if layouts == 1 else ""
        kept = f"kept near the base profile, because these runs do not determine it{apart}"
        yield Line(f"{', '.join(names)}: {kept}", "Uncertain")


def _worse(errors: dict[str, MetricErrors]) -> Iterator[Line]:
    """Yield the metrics that the left-out runs show to be no better than before."""
    worse = [COLUMN_TITLES[name] for name, found in errors.items() if found.left_out > found.corrected]
    if worse:
        why = "other runs predict each run no better than the base profile does; measure more loads and lengths"
        yield Line(f"{', '.join(worse)}: {why}", "Mind")


document = partial(Document, sections=sections, rows=rows)
