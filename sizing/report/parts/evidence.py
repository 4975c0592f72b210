"""What published runs say about an answer: the sure number of GPUs, and the chance that the expected number suffices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sizing.answers.answer import Outcome, is_alike
from sizing.answers.confidence import NONE_SIMILAR
from sizing.catalog import shelf
from sizing.formats.view import Line, filled
from sizing.formats.words import between, money, plural
from sizing.report.parts import bands, screen
from sizing.report.parts.bands import Predicted
from sizing.report.parts.quantities import LATENCY_QUANTITIES
from sizing.specs.bands import ConfidentSize, ErrorBand, of_runs
from sizing.specs.data import Advice


class StepFactors(NamedTuple):
    """The factors applied to step times: medians over `groups` groups of published runs."""

    decode: float
    prefill: float
    groups: int
    source: str


class SurerType(NamedTuple):
    """Another layout or GPU type: the expected and the sure number of GPUs.

    `layout` (`3 x TP2 PP2`) and `replicas` are those of the sure ones.
    """

    gpu: str
    gpus: int
    gpus_sure: int
    usd_per_hour: float | None
    layout: str | None = None
    replicas: int | None = None

    def line(self, about: str = "about ") -> Line:
        """Write the sure number; `about` is empty if a simulation confirmed the GPUs."""
        usd_per_hour = None if self.usd_per_hour is None else self.usd_per_hour * self.gpus_sure / self.gpus
        price = "" if usd_per_hour is None else f", {money(usd_per_hour)}/h"
        shape = "" if self.layout is None else f" = {self.layout}"
        return Line(f"Another choice is sure: {about}{self.gpus_sure:,} x {self.gpu}{shape}{price}")

    def same_gpus(self, gpu: str, gpus: int) -> Line | None:
        """Write that the GPUs of an answer are sure in this layout, which is not searched first; None if it takes other GPUs."""
        if (self.gpu, self.gpus_sure) != (gpu, gpus) or self.layout is None:
            return None
        return Line(f"The same {plural(gpus, 'GPU')} as {self.layout} would be sure, not simulated")


class Evidence(NamedTuple):
    """The published runs similar to the answer: `groups` of runs, and the `chance` that its GPUs keep the limits and the rate.

    With `own`, the runs are the user's own runs in the GPU's profile, and each is a group. `why_not` says why there is no sure
    number of GPUs. `correction` has the factors that centre the prediction. `gpus_as_predicted` and `gpu_as_predicted` are the
    GPUs by the prediction alone, if the answer needs others for even odds. `surer` is another layout or GPU type whose sure
    number is cheaper, or the only one with a sure number. With `any_gpu`, the runs are of all GPU generations. `layout_sure` is
    the layout of a replica of the sure number (`TP4`), if it is not that of the answer. `by` is the quantity that sets the sure
    number, and `times` how long it took in the run that sets it, measured over predicted. Without a demand, `chance` is that of
    the rate served; `requests_per_s_sure` and `users_sure` are what the GPUs serve with the confidence. Fields that do not apply are null.
    """

    groups: int
    chance: float | None
    why_not: str | None
    correction: StepFactors | None
    gpus_as_predicted: int | None = None
    gpu_as_predicted: str | None = None
    own: bool = False
    surer: SurerType | None = None
    any_gpu: bool = False
    layout_sure: str | None = None
    by: str | None = None
    times: float | None = None
    requests_per_s_sure: float | None = None
    users_sure: int | None = None


def evidence(outcome: Outcome, predicted: Iterable[Predicted] = ()) -> Evidence | None:
    """The evidence of an outcome; None without an answer. It names the class of runs behind the ranges of `predicted`."""
    sure = outcome.sure
    if sure is None:
        return None
    ranges = bands.whose(predicted) if sure.why_not == NONE_SIMILAR else ""
    why_not = f"{sure.why_not}; {ranges}" if ranges else sure.why_not
    gpus, gpu = _as_predicted(outcome)
    surely, best = outcome.surely, outcome.answer
    other = None if surely is None or best is None or is_alike(surely, best) else surely.pool.replica.layout
    return filled(
        Evidence,
        sure,
        why_not=why_not,
        correction=_factors(outcome),
        gpus_as_predicted=gpus,
        gpu_as_predicted=gpu,
        surer=_surer(outcome),
        layout_sure=None if other is None else str(other),
    )


def _surer(outcome: Outcome) -> SurerType | None:
    found = outcome.surer
    if found is None:
        return None
    of, pool = found.answer, found.sure.pool
    shape = f"{pool.count} x {pool.replica.layout}"
    return SurerType(pool.replica.gpu_type.name, of.gpus, pool.gpus, of.usd_per_hour, shape, pool.count)


def is_own(found: Evidence | None) -> bool:
    """Whether ranges come from the user's own runs."""
    return found is not None and found.own


def runs_of(found: Evidence | None) -> str:
    """Name the runs that a range comes from. Where none are like the answer, `why_not` says which others they are."""
    why_not = None if found is None else found.why_not
    if why_not is not None and why_not.startswith(NONE_SIMILAR):
        return "published runs" if why_not == NONE_SIMILAR else "of those other runs"
    return of_runs(is_own(found))


def _factors(outcome: Outcome) -> StepFactors | None:
    if outcome.best is None or outcome.best.separate:
        return None
    by = outcome.correction
    return filled(StepFactors, by) if by.groups else None


def _as_predicted(outcome: Outcome) -> tuple[int | None, str | None]:
    """The number and type of GPUs by the prediction alone, if the answer needs others for even odds; else None."""
    best, without = outcome.answer, outcome.predicted
    if not outcome.even or best is None or without is None:
        return None, None
    size, own = ((each.gpus, each.pool.replica.gpu_type.name) for each in (without, best))
    return (None, None) if size == own else size


def is_to_measure(gpus: int, gpus_sure: int | None, found: Evidence | None) -> bool:
    """Whether runs are too far apart for a sure count that a buyer can use: it is many times the GPUs, or no count is sure.

    Runs that are the user's own are measured already.
    """
    if found is None or found.own or not found.groups:
        return False
    return gpus_sure is None or gpus_sure > shelf.only(Advice).measure_first * gpus


class SureOf(NamedTuple):
    """The sure count of an answer: the expected and sure GPUs, the confidence, the kinds of limits that runs must keep; its GPU type."""

    gpus: int
    gpus_sure: int | None
    confidence: float | None
    evidence: Evidence | None
    limited: bool
    by_rate: bool
    gpu: str = ""

    def lines(self, without: str = "", gpus_without: int | None = None) -> Iterable[Line]:
        """Yield the sure number of GPUs (or why it is unknown) and a surer choice; nothing if nothing was asked for.

        `without` describes the `gpus_without` that suffice without the confidence.
        """
        if self.evidence is None or self.confidence is None:
            return
        found = self.evidence
        known = filled(ConfidentSize, found, gpus=self.gpus_sure, confidence=self.confidence)
        keeps = screen.kept_by_runs(self.limited, self.by_rate)
        unsized = is_to_measure(gpus_without or self.gpus, self.gpus_sure, found)
        first = screen.MEASURE_FIRST if unsized else ""
        yield screen.sure(self.gpus, known, keeps, without, found.layout_sure, first)
        if found.surer is not None:
            yield found.surer.same_gpus(self.gpu, self.gpus) or found.surer.line()


class LimitedLatency(NamedTuple):
    """A latency with a limit, by its key: the limited statistic, its predicted value, and the range of published runs around it."""

    key: str
    statistic: str
    ms: float
    band: ErrorBand


def doubts(
    found: Evidence | None, gpu: str, limited: Iterable[LimitedLatency], *, said: bool = False, ranged: bool = False
) -> Iterator[Line]:
    """Yield why a prediction is less sure than its shares of runs look: runs of other GPUs, and latencies that may be far off.

    Every command says it in these words. Where it is `said` already that a replica is better measured first, it isn't repeated;
    where each latency is `ranged` in a table, the table has the figures.
    """
    any_gpu = found is not None and found.any_gpu
    if any_gpu:
        measure = "" if said else f": {screen.MEASURE_FIRST}"
        yield Line(f"Too few of these runs are on GPUs like the {gpu}{measure}")
    at_least, of_key = shelf.only(Advice).far_off, {each.key: each for each in limited}
    found_far = [(each, of_key[each.key]) for each in LATENCY_QUANTITIES if each.key in of_key]
    far = [(each, of) for each, of in found_far if of.band.high >= of.ms * at_least]
    if not far:
        return
    runs, spans = of_runs(is_own(found), any_gpu=any_gpu), []
    for quantity, of in far:
        statistic = "" if of.statistic == screen.MEAN else f"{of.statistic} "
        span = between(of.band.low, of.band.high, quantity.write)
        spans.append(f"{statistic}{quantity.heading} {span} in place of {quantity.write(of.ms)}")
    where = ", as the likely ranges show" if ranged else f": in 8 of 10 {runs} {', '.join(spans)}"
    slower = all(of.band.low >= of.ms for _, of in far)  # so a range begins at the prediction
    why = "; nearly all such runs are slower than predicted" if slower else ""
    yield Line(f"The prediction may be far off{where}{why}", spare=0 if ranged else 8)
