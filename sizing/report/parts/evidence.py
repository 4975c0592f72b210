"""What published runs say about an answer: the range of each figure, the sure number of GPUs, the chance of the expected number."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.answers.answer import Answer, Outcome, is_alike
from sizing.answers.confidence import NONE_SIMILAR, least_of, likely
from sizing.catalog import shelf
from sizing.formats.view import Explanation, Line, filled
from sizing.formats.words import between, money, plural
from sizing.model.extras import NOTHING
from sizing.model.memory import MemoryUse
from sizing.question.question import Question
from sizing.replica.replica import Replica, memory_kind
from sizing.report.parts import screen
from sizing.report.parts.figures import Figures, Latency, LoadFigures, Throughput
from sizing.report.parts.quantities import KV_CACHE_GIB, LATENCY_QUANTITIES, WEIGHTS_GIB
from sizing.report.parts.sentences import derived
from sizing.specs.bands import (
    Band,
    BandMetric,
    Bands,
    ConfidentSize,
    ErrorBand,
    Situation,
    find,
    of_runs,
    region,
)
from sizing.specs.data import Advice
from sizing.specs.units import MILLI, Statistics
from sizing.specs.workload import LATENCIES

if TYPE_CHECKING:
    from sizing.report.parts.layouts import Limited  # which loads the search

TITLES: dict[BandMetric, str] = {
    **{name: name.upper() for name in LATENCIES},
    "throughput": "throughput",
    "weights": "weights",
    "kv_cache": "KV cache",
}
STATISTICS = Statistics._fields  # one class for all: too few percentiles were published for classes of their own
ALL_LOGS = "engine logs of all kinds, as too few are like this"
WIDER = {"engine": "engines", "vendor": "GPUs", "architecture": "GPUs", "kind": "kinds of model", "mode": "modes"}
MEMORY = tuple(q._replace(key=f"memory.{q.key}") for q in (WEIGHTS_GIB, KV_CACHE_GIB))


class Predicted(NamedTuple):
    """A predicted number in a report: its path, its value (if any), its metric and its situation.

    A rate of people who wait for answers falls as their latency rises, which is the share `waited` of the time between their
    requests (Little's law); its metric is that of the latency. `likely` is the range by the runs of the sure count, where known.
    `least` is the low end of the range of a lone request's latency, below which a load's latency can't lie.
    """

    path: str
    value: float | None
    metric: BandMetric
    situation: Situation
    waited: float | None = None
    likely: Band | None = None
    least: float = 0.0

    def band(self) -> Band | None:
        """The range of the number's class: by the runs of the sure count, else by those of the narrowest class of its metric."""
        return self.likely or find(known(), self.metric, self.situation)

    def bound(self, value: float, band: Band) -> ErrorBand:
        """The band of the number in its own unit."""
        low, high = band.low, band.high
        if self.waited is not None:
            low, high = (1 / (1 - self.waited + self.waited * error) for error in (high, low))
        return ErrorBand(max(value * low, min(value, self.least)), value * high, band.n)


def known() -> tuple[Band, ...]:
    """The bands derived from published measurements."""
    return shelf.only(Bands).bands


def bounds(numbers: Iterable[Predicted]) -> dict[str, ErrorBand]:
    """The band of each number by its path. Unmeasured metrics and values that are not positive have no band."""
    found = {}
    for number in numbers:
        band = number.band()
        if band is not None and number.value is not None and number.value > 0:
            found[number.path] = number.bound(number.value, band)
    return found


def memory_logs(numbers: Iterable[Predicted]) -> str:
    """Write whose engine logs the ranges of memory are of: of the same kind of memory, or of all kinds where too few are."""
    used = [band for n in numbers if n.value and (band := n.band()) is not None]
    return "engine logs like this" if all(band.memory is not None for band in used) else ALL_LOGS


def memory_situation(question: Question, replica: Replica) -> Situation:
    """The class of a replica's memory."""
    return question.service.situation(replica.gpu_type.gpu)._replace(memory=memory_kind(replica))


def of_memory(memory: MemoryUse, situation: Situation, *, stated: bool = False) -> Iterator[Predicted]:
    """Yield the weights and, of a model with a cache that is not `stated`, the pool of one GPU and the tokens that it holds."""
    yield Predicted("memory.weights_gib", memory.weights_gib, "weights", situation)
    if memory.sequence_gib and not stated:  # an encoder keeps no cache
        yield Predicted("memory.kv_cache_gib", memory.kv_cache_gib, "kv_cache", situation)
        yield Predicted("memory.kv_cache_tokens", memory.kv_cache_tokens, "kv_cache", situation)


def of_answer(best: Answer, outcome: Outcome, figures: Figures) -> Iterator[Predicted]:
    """Yield the predictions of an answer.

    A rate that the user asks for is no prediction. The highest rate is one, unless it already is the edge of its band.
    Published runs generated text without optimisations, so times of other tasks, or with optimisations, have no band.
    """
    yield from of_load(best, outcome, figures.load, figures.throughput, figures.latency)
    stated = best.pool.replica.service.serving.kv_cache_bytes is not None
    yield from of_memory(figures.memory, memory_situation(outcome.question, best.pool.replica), stated=stated)


def of_load(
    best: Answer, outcome: Outcome, load: LoadFigures, throughput: Throughput, latency: Latency
) -> Iterator[Predicted]:
    """Yield the predicted latencies and rates of an answer."""
    request, gpu = outcome.question, best.pool.replica.gpu_type.gpu
    if request.service.extras != NOTHING or request.service.model.pooled:
        return
    here = request.service.situation(gpu, region(load.concurrency_per_replica))
    found = {band.metric: band for band in likely(best, request)}
    alone = here._replace(mode="served", load="solo")  # a single request does not depend on the arrivals of others
    least = least_of(latency.solo_ttft_ms, latency.solo_itl_ms, alone)
    yield from of_latencies(latency, "latency.", here, found, {name: ms for name, ms in least.items() if name in found})
    yield Predicted("latency.solo_ttft_ms", latency.solo_ttft_ms, "ttft", alone)
    yield Predicted("latency.solo_itl_ms", latency.solo_itl_ms, "itl", alone)
    waited = _waited(request, latency)
    if request.target.requests_per_s is None and (best.pool.margin == 1.0 or waited is not None):
        of: BandMetric = "throughput" if waited is None else "e2e"
        yield Predicted("load.requests_per_s", load.requests_per_s, of, here, waited, found.get(of))
        for name, value in throughput._asdict().items():
            yield Predicted(f"throughput.{name}", value, of, here, waited, found.get(of))
    if best.pool.margin == 1.0 or request.target.amount is not None:
        heaviest = best.pool.capacity.amount if request.target.concurrency is not None else best.pool.capacity.decoding
        at_most = request.service.situation(gpu, region(max(load.concurrency_per_replica, heaviest)))
        most = found.get("throughput")
        yield Predicted("load.max_requests_per_s", load.max_requests_per_s, "throughput", at_most, likely=most)


def of_latencies(
    record: object,
    prefix: str,
    situation: Situation,
    found: Mapping[BandMetric, Band],
    least: Mapping[BandMetric, float],
) -> Iterator[Predicted]:
    """Yield every statistic of the latencies of a record, with the range that was `found` for each and its low end."""
    for metric in LATENCIES:
        for statistic in STATISTICS:
            name, low = f"{metric}_ms", least.get(metric, 0.0)
            value = getattr(getattr(record, name), statistic)
            yield Predicted(
                f"{prefix}{name}.{statistic}", value, metric, situation, likely=found.get(metric), least=low
            )


def _waited(question: Question, latency: Latency) -> float | None:
    """The E2E's share of the time between two requests of a user, or of a place in flight; None for other demands."""
    target, e2e_ms = question.target, latency.e2e_ms.mean
    if e2e_ms is None or (target.population is None and target.concurrency is None):
        return None
    return e2e_ms / (e2e_ms + target.think_time_s / MILLI)


def whose(numbers: Iterable[Predicted]) -> str:
    """Write the class of the runs behind the ranges of latencies and rates, if it is wider than the numbers' own; else empty."""
    used = (n.band() for n in numbers if n.value and n.metric in (*LATENCIES, "throughput"))
    own = {band for number in numbers for band in number.situation.own}
    wider = {
        name for band in used if band is not None and band not in own for name in WIDER if getattr(band, name) is None
    }
    others = " or ".join(dict.fromkeys(WIDER[name] for name in WIDER if name in wider))
    return f"ranges: runs of other {others}" if others else ""


def explanations(numbers: Iterable[Predicted]) -> Iterator[Explanation]:
    """Yield the width and the class of each band, once for all numbers of a class."""
    found = shelf.only(Bands)
    classes = {(n.metric, n.situation, n.likely): n for n in numbers if n.value is not None}
    for (metric, situation, likely_), number in classes.items():
        own = {"title": TITLES[metric], "alone": situation.load == "solo", "source": found.source}
        if (band := number.band()) is None:
            named = [_word(*each) for each in situation.named().items()]
            yield derived("no band", "none", named=named, **own)
        elif band in situation.own:
            yield derived("own band", f"{band.low:g} to {band.high:g}", band, **own)
        else:
            own |= {"likely": likely_, "least": number.least, "class": _class(band, situation)}
            yield derived("band", f"{band.low:.3g} to {band.high:.3g}", band, **own)


def _class(band: Band, situation: Situation) -> str:
    """Write the class of a band: the number's own class, or a wider one if there are too few measurements."""
    stated = situation.named()
    own = [_word(name, value) for name, value in stated.items() if getattr(band, name) is not None]
    wider = [f"any {name}" for name in stated if getattr(band, name) is None]
    if not own:
        return "all there are"
    return ", ".join(own) + (f" (a wider class: {', '.join(wider)})" if wider else "")


def _word(name: str, value: str) -> str:
    return f"{name} {value}" if name == "load" else value


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

    def line(self) -> Line:
        """Write the sure number, which no simulation confirmed."""
        usd_per_hour = None if self.usd_per_hour is None else self.usd_per_hour * self.gpus_sure / self.gpus
        price = "" if usd_per_hour is None else f", {money(usd_per_hour)}/h"
        shape = "" if self.layout is None else f" = {self.layout}"
        return Line(f"Another choice is sure: about {self.gpus_sure:,} x {self.gpu}{shape}{price}")

    def same_gpus(self, gpu: str, gpus: int) -> Line | None:
        """Write that the GPUs of an answer are sure in this layout, which is not searched first; None if it takes other GPUs."""
        if (self.gpu, self.gpus_sure) != (gpu, gpus) or self.layout is None:
            return None
        return Line(f"The same {plural(gpus, 'GPU')} as {self.layout} would be sure, not simulated")


class Evidence(NamedTuple):
    """The published runs similar to the answer: `groups` of runs, and the `chance` that its GPUs keep the limits and the rate.

    With `own`, the runs are the user's own runs in the GPU's profile, and each is a group. `why_not` says why there is no
    sure number of GPUs. `correction` has the factors that centre the prediction. `gpus_as_predicted` and `gpu_as_predicted`
    are the GPUs by the prediction alone, if the answer needs others for even odds, and `requests_per_s_as_predicted` the rate
    of given GPUs, if even odds lower it. `surer` is another layout or GPU type whose sure number is cheaper, or the only one
    with a sure number. With `any_gpu`, the runs are of all GPU generations. `layout_sure` is the layout of a replica of the
    sure number (`TP4`), if it is not that of the answer. `by` is the quantity that sets the sure number, and `times` how long
    it took in the run that sets it, measured over predicted. Without a demand, `chance` is that of the rate served;
    `requests_per_s_sure` and `users_sure` are what the GPUs serve with the confidence. Fields that do not apply are null.
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
    requests_per_s_as_predicted: float | None = None


def of_outcome(outcome: Outcome, predicted: Iterable[Predicted] = ()) -> Evidence | None:
    """The evidence of an outcome; None without an answer. It names the class of runs behind the ranges of `predicted`."""
    sure = outcome.by_runs.odds
    if sure is None:
        return None
    ranges = whose(predicted) if sure.why_not == NONE_SIMILAR.why else ""
    why_not = f"{sure.why_not}; {ranges}" if ranges else sure.why_not
    (gpus, gpu), given = _as_predicted(outcome), outcome.question.target.amount is None
    without = outcome.by_runs.predicted if outcome.by_runs.even and given else None
    surely, best = outcome.by_runs.sure_answer, outcome.answer
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
        requests_per_s_as_predicted=None if without is None else without.requests_per_s,
    )


def by_runs(outcome: Outcome, predicted: Iterable[Predicted] = ()) -> dict[str, Any]:
    """What published runs say of an outcome, by the names in records: the sure GPUs, the confidence, the evidence; None without."""
    sure = outcome.by_runs.odds
    size = {"gpus_sure": sure and sure.gpus, "confidence": sure and sure.confidence}
    return size | {"evidence": of_outcome(outcome, predicted)}


def _surer(outcome: Outcome) -> SurerType | None:
    found = outcome.by_runs.cheaper_when_sure
    if found is None:
        return None
    of, pool = found.answer, found.sure_answer.pool
    shape, name = f"{pool.count} x {pool.replica.layout}", pool.replica.gpu_type.name
    own = outcome.answers[0].decode.replica.plan.weight_format
    if pool.replica.plan.weight_format != own:
        name += f" {pool.replica.plan.weight_format.upper()}"
    return SurerType(name, of.gpus, pool.gpus, of.usd_per_hour, shape, pool.count)


def is_own(evidence: Evidence | None) -> bool:
    """Whether ranges come from the user's own runs."""
    return evidence is not None and evidence.own


def runs_of(evidence: Evidence | None) -> str:
    """Name the runs that a range comes from. Where none are like the answer, `why_not` says which others they are."""
    why_not = None if evidence is None else evidence.why_not
    if why_not is not None and why_not.startswith(NONE_SIMILAR.why):
        return "published runs" if why_not == NONE_SIMILAR.why else "of those other runs"
    return of_runs(is_own(evidence))


def _factors(outcome: Outcome) -> StepFactors | None:
    if outcome.best is None or outcome.best.separate:
        return None
    by = outcome.best.pool.timed.kernels.correction
    return filled(StepFactors, by) if by.groups else None


def _as_predicted(outcome: Outcome) -> tuple[int | None, str | None]:
    """The number and type of GPUs by the prediction alone, if the answer needs others for even odds; else None."""
    best, without = outcome.answer, outcome.by_runs.predicted
    if not outcome.by_runs.even or best is None or without is None:
        return None, None
    size, own = ((each.gpus, each.pool.replica.gpu_type.name) for each in (without, best))
    return (None, None) if size == own else size


def is_to_measure(gpus: int, gpus_sure: int | None, evidence: Evidence | None) -> bool:
    """Whether runs are too far apart for a sure count that a buyer can use: it is many times the GPUs, or no count is sure.

    Runs that are the user's own are measured already.
    """
    if evidence is None or evidence.own or not evidence.groups:
        return False
    return gpus_sure is None or gpus_sure > shelf.only(Advice).measure_first * gpus


class SureOf(NamedTuple):
    """The sure count of an answer: the expected and sure GPUs, the confidence, and the kinds of limits that runs must keep.

    Also its GPU type, and what a GPU costs.
    """

    gpus: int
    gpus_sure: int | None
    confidence: float | None
    evidence: Evidence | None
    limited: bool
    by_rate: bool
    gpu: str = ""
    usd_per_gpu_hour: float | None = None

    def lines(
        self,
        limited: Iterable[LimitedLatency] | None = None,
        *,
        without: str = "",
        gpus_without: int | None = None,
        ranged: bool = False,
    ) -> Iterable[Line]:
        """Yield the sure number of GPUs (or why it is unknown), a surer choice, and doubts, if latencies are `limited`.

        `without` describes the `gpus_without` that suffice without the confidence.
        """
        found, sure = self.evidence, self.gpus_sure
        unsized = is_to_measure(gpus_without or self.gpus, sure, found)
        if found is not None and self.confidence is not None:
            known = filled(ConfidentSize, found, gpus=sure, confidence=self.confidence)
            keeps, first = screen.kept_by_runs(self.limited, self.by_rate), screen.MEASURE_FIRST if unsized else ""
            shape = "" if found.layout_sure is None else f" (as {found.layout_sure})"
            if sure is not None and sure > self.gpus and self.usd_per_gpu_hour is not None:
                shape += f", {money(self.usd_per_gpu_hour * sure)}/h,"
            if sure is None and found.groups and found.why_not is None:  # of given GPUs the rate is sure
                yield from screen.served(known, self.limited, None)
            else:
                yield screen.sure_line(self.gpus, known, keeps, without, shape, first)
            if found.surer is not None:
                yield found.surer.same_gpus(self.gpu, self.gpus) or found.surer.line()
        if limited is not None:
            yield from doubts(found, self.gpu, limited, said=unsized, ranged=ranged)


class LimitedLatency(NamedTuple):
    """A latency with a limit, by its key: the limited statistic, its predicted value, and the range of published runs around it."""

    key: str
    statistic: str
    ms: float
    band: ErrorBand


def limited_latencies(
    limited: Mapping[str, Limited | None], bands: Mapping[str, ErrorBand], path: str
) -> Iterator[LimitedLatency]:
    """Yield the limited latencies with a range in `bands`; `path` has places for the latency and the statistic."""
    for key, of in limited.items():
        if of is not None and of.ms is not None and (band := bands.get(path.format(key, of.statistic))) is not None:
            yield LimitedLatency(key, of.statistic, of.ms, band)


def doubts(
    evidence: Evidence | None, gpu: str, limited: Iterable[LimitedLatency], *, said: bool = False, ranged: bool = False
) -> Iterator[Line]:
    """Yield why a prediction is less sure than its shares of runs look: runs of other GPUs, and latencies that may be far off.

    Every command says it in these words. Where it is `said` already that a replica is better measured first, it isn't repeated;
    where each latency is `ranged` in a table, the table has the figures.
    """
    any_gpu = evidence is not None and evidence.any_gpu
    if any_gpu:
        measure = "" if said else f": {screen.MEASURE}"
        yield Line(f"Too few of these runs are on GPUs like {gpu}{measure}")
    rules, of_key = shelf.only(Advice), {each.key: each for each in limited}
    found_far = [(each, of_key[each.key]) for each in LATENCY_QUANTITIES if each.key in of_key]
    far = [(each, of) for each, of in found_far if of.band.high >= of.ms * rules.far_off]
    if not far:
        return
    runs, spans = of_runs(is_own(evidence), any_gpu=any_gpu), []
    for quantity, of in far:
        statistic = "" if of.statistic == screen.MEAN else f"{of.statistic} "
        span = between(of.band.low, of.band.high, quantity.write)
        spans.append(f"{statistic}{quantity.heading} {span} in place of {quantity.write(of.ms)}")
    where = ", as the likely ranges show" if ranged else f": in 8 of 10 {runs} {', '.join(spans)}"
    slower = all(of.band.low >= of.ms for _, of in far)  # so a range begins at the prediction
    why = "; nearly all such runs are slower than predicted" if slower else ""
    if not any_gpu and not said and any(of.band.high >= of.ms * rules.measure_first for _, of in far):
        why += f"; {screen.MEASURE_FIRST}"
    yield Line(f"The prediction may be far off{where}{why}", spare=0 if ranged else 8)
