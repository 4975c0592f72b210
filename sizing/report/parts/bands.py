"""Error bands of the predicted numbers in a report. Each number has a class, and a band in its own unit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.answers.confidence import least_of, likely
from sizing.catalog import shelf
from sizing.formats.view import Explanation
from sizing.model.extras import NOTHING
from sizing.model.memory import MemoryUse
from sizing.question.question import Question
from sizing.replica.replica import Replica, memory_kind
from sizing.report.parts import quantities
from sizing.report.parts.figures import Figures, Latency, LoadFigures, Throughput
from sizing.specs.bands import Band, BandMetric, Bands, ErrorBand, PublishedRuns, Situation, find, region
from sizing.specs.units import MILLI, Statistics
from sizing.specs.workload import LATENCIES

TITLES: dict[BandMetric, str] = {
    **{name: name.upper() for name in LATENCIES},
    "throughput": "throughput",
    "weights": "weights",
    "kv_cache": "KV cache",
}
STATISTICS = Statistics._fields  # one class for all: too few percentiles were published for classes of their own
ALL_LOGS = "engine logs of all kinds, as too few are like this"
AT_DEMAND = (
    "measured / predicted, each run at the load that it has under the demand or the rate shown: 8 in 10 of similar runs"
)
NO_LOWER = "; no lower than the range of a lone request"
FAR_OFF = "How far off published runs are"  # the heading of bands
WIDER = {"engine": "engines", "vendor": "GPUs", "architecture": "GPUs", "kind": "kinds of model", "mode": "modes"}
MEMORY = tuple(q._replace(key=f"memory.{q.key}") for q in (quantities.WEIGHTS_GIB, quantities.KV_CACHE_GIB))


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
    found = {band.metric: band for band in likely(best, request, shelf.only(PublishedRuns))}
    alone = here._replace(mode="served", load="solo")  # a single request does not depend on the arrivals of others
    least = least_of(latency.solo_ttft_ms, latency.solo_itl_ms, alone)
    for metric in LATENCIES:
        for statistic in STATISTICS:
            name, low = f"{metric}_ms", least.get(metric, 0.0) if metric in found else 0.0
            value = getattr(getattr(latency, name), statistic)
            yield Predicted(f"latency.{name}.{statistic}", value, metric, here, likely=found.get(metric), least=low)
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
        what = f"error band of {TITLES[metric]}{', alone' if situation.load == 'solo' else ''}"
        band = number.band()
        unit, source = "times the prediction" if band else "", found.source
        if band is None:
            value, formula = "none", "measured / predicted"
            inputs = f"nothing published of {', '.join(_word(*each) for each in situation.named().items())}"
        elif band in situation.own:
            value, formula = f"{band.low:g} to {band.high:g}", "measured / predicted, each run left out: 8 in 10"
            inputs, source = f"{band.n:,} own runs", "the GPU's profile"
        else:
            value, formula = f"{band.low:.3g} to {band.high:.3g}", "measured / predicted: the range of about 8 in 10"
            if likely_ is not None:
                formula = AT_DEMAND + (NO_LOWER if number.least else "")
            groups = f"{band.groups:,} groups (source, model, GPU): {_class(band, situation)}"
            inputs = f"{band.n:,} published measurements of {groups}"
        yield Explanation(what, value, unit, "measured", formula, inputs, source, FAR_OFF)


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
