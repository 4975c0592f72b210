"""`llmsize compare`: one demand on several GPU types and precisions, each at its best, serving as one or from separate pools.

Every figure is that of `estimate`. Where prefill and decode have pools of their own, what one replica alone has is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from sizing.answers.answer import Answer, Outcome
from sizing.answers.compare import place
from sizing.formats.view import (
    Assumption,
    Document,
    Facts,
    Line,
    Quantity,
    Rows,
    Section,
    Table,
    in_words,
    labelled,
    rows_of,
)
from sizing.formats.words import between, milliseconds, money, number, percent, plural
from sizing.question.question import Question
from sizing.report.parts import assumptions, bands, pools, quantities
from sizing.report.parts.answers import (
    as_one,
    kwh_per_million_output_tokens,
    usd_per_million_output_tokens,
    usd_per_million_tokens,
)
from sizing.report.parts.bands import ErrorBand
from sizing.report.parts.figures import latency, load_figures, mean_ms, throughput
from sizing.report.parts.layouts import layout, sizes
from sizing.report.parts.limiting import unmet
from sizing.report.parts.pools import PoolShapes, shape_words
from sizing.report.parts.question import (
    LABELS,
    LimitInMs,
    LimitsInMs,
    demand,
    inputs,
    lengths,
    limits,
    limits_in_words,
    steps_line,
)
from sizing.specs.gpu import GpuType
from sizing.specs.workload import Objective

LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")
NUMBERS = (  # what is null where nothing serves the demand, besides the layout
    "gpus", "gpus_per_replaced_gpu", "requests_per_s", "requests_per_s_per_gpu", "concurrency", "max_requests_per_s", "headroom",
    *LATENCIES, "usd_per_hour", "usd_per_million_output_tokens", "usd_per_million_tokens", "power_w",
    "kwh_per_million_output_tokens", "assumed",
)  # fmt: skip
BANDS = (*LATENCIES, "requests_per_s", "max_requests_per_s")
SORTED = {"gpus": "fewest GPUs", "cost": "lowest cost an hour", "energy": "lowest power"}


class Limited(NamedTuple):
    """A latency in the statistic that its limit bounds, and the limit."""

    statistic: str
    ms: float | None
    limit_ms: float


class CompareCandidate(NamedTuple):
    """One GPU type and weight precision at its best, or a pair of pools; figures are null where it can't serve the demand.

    Then `reason` says why.

    Latencies are means; `limited` holds each that has a limit in the limit's statistic. `bands` are by the name of a number,
    of `limited` ones as `limited.ttft_ms`. `assumed` counts the assumptions that the figures rest on; `borrowed_kernels`
    tells that kernel efficiencies of another GPU stand in for this one's. `gpus_per_replaced_gpu` is null where none are replaced.
    Where prefill and decode are `disaggregated`, `pools` has the layouts, and what a replica alone has is null: its layout, an id
    or a price of two GPU types, bands; `limit` is then what ends the load of the pool nearer to its most, `pools` without any.
    """

    gpu: str
    gpu_id: str | None
    weight_precision: str
    feasible: bool
    gpus: int | None
    replicas: int | None
    gpus_per_replica: int | None
    tp: int | None
    pp: int | None
    ep: int | None
    dp: int | None
    cp: int | None
    dcp: int | None
    gpus_per_replaced_gpu: float | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    concurrency: float | None
    max_requests_per_s: float | None
    headroom: float | None
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    limited: dict[str, Limited | None]
    bands: dict[str, ErrorBand]
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_tokens: float | None
    price_source: str | None
    power_w: float | None
    kwh_per_million_output_tokens: float | None
    limit: str
    reason: str | None
    verified: bool
    assumed: int | None
    borrowed_kernels: bool | None
    notes: tuple[str, ...]
    disaggregated: bool
    pools: PoolShapes | None


class Replaced(NamedTuple):
    """GPUs to replace, and the most that they serve within the limits: the demand of the comparison.

    `gpus_used` are those of whole replicas; `verified` says whether a simulation confirmed what they serve.
    """

    gpu: str
    gpu_id: str
    gpus: int
    gpus_used: int
    weight_precision: str
    replicas: int
    tp: int
    pp: int
    ep: int
    dp: int
    cp: int
    dcp: int
    requests_per_s: float
    verified: bool


class Compare(NamedTuple):
    """The record of `llmsize compare`: candidates in the order of `sort`, those that can't serve the demand last.

    `best` is the first of them, null where none serves it. `assumptions` are those that all feasible ones share.
    """

    feasible: bool
    inputs: dict[str, Any]
    demand: dict[str, Any]
    sort: str
    replaces: Replaced | None
    best: CompareCandidate | None
    candidates: tuple[CompareCandidate, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.compare/1"


class Ranked(NamedTuple):
    """A candidate, its place in the order, and the assumptions that it rests on."""

    place: tuple[float, ...]
    candidate: CompareCandidate
    assumptions: tuple[Assumption, ...]


def ranked(outcome: Outcome, sort: Objective, replaced: int | None = None) -> Ranked:
    """Return a candidate from its outcome; `replaced` is how many GPUs it is to take the place of."""
    best, candidate = outcome.answer, _unserved(outcome)
    if best is None:
        return Ranked(place(None, sort), candidate, ())
    rests_on = tuple(dict.fromkeys(_rests_on(outcome, best)))
    candidate = _served(candidate, outcome, best)._replace(
        gpus_per_replaced_gpu=best.gpus / replaced if replaced else None,
        assumed=sum(entry.kind == "assumed" for entry in rests_on),
    )
    return Ranked(place(best, sort), candidate, rests_on)


def _unserved(outcome: Outcome) -> CompareCandidate:
    """Return a candidate with what is known of it without an answer, and its layout where it has one."""
    question, gpu_types = outcome.question, _gpu_types(outcome)
    limit, reason = _limit(outcome)
    return CompareCandidate(
        gpu=" + ".join(dict.fromkeys(gpu_type.name for gpu_type in gpu_types)),
        gpu_id=_common(gpu_type.id for gpu_type in gpu_types),
        weight_precision=question.space.precisions[0] or question.service.model.quantisation.precision,
        feasible=False,
        gpus_per_replica=None,
        **as_one(outcome.answer),
        **dict.fromkeys(NUMBERS),
        limited=dict(_limited(outcome.answer, question)),
        bands={},
        price_source=None,
        limit=limit,
        reason=reason,
        verified=False,
        borrowed_kernels=None,
        notes=(),
        disaggregated=question.space.pools is not None,
        pools=None,
    )


def _served(candidate: CompareCandidate, outcome: Outcome, best: Answer) -> CompareCandidate:
    """Return a candidate with the figures of its answer."""
    question = outcome.question
    in_flight, most, headroom = _load(best, outcome)
    return candidate._replace(
        weight_precision=best.decode.replica.plan.weight_format,
        feasible=True,
        gpus=best.gpus,
        gpus_per_replica=None if best.separate else best.pool.replica.layout.gpus,
        requests_per_s=best.requests_per_s,
        requests_per_s_per_gpu=best.requests_per_s / best.gpus,
        concurrency=in_flight,
        max_requests_per_s=most,
        headroom=headroom,
        ttft_ms=mean_ms(best, "ttft_ms", question),
        itl_ms=mean_ms(best, "itl_ms", question),
        e2e_ms=mean_ms(best, "e2e_ms", question),
        bands={} if best.separate else dict(_bands(best, outcome)),
        usd_per_hour=best.usd_per_hour,
        usd_per_million_output_tokens=usd_per_million_output_tokens(best, question),
        usd_per_million_tokens=usd_per_million_tokens(best, question),
        price_source=_common(gpu_type.price_source for gpu_type in _gpu_types(outcome)),
        power_w=best.power_w,
        kwh_per_million_output_tokens=kwh_per_million_output_tokens(best, question),
        verified=outcome.tries > 0,
        borrowed_kernels=any(pool.load.borrows for pool in best.pools),
        notes=tuple(dict.fromkeys(note for pool in best.pools for note in pool.replica.plan.notes)),
        pools=pools.shapes(best) if best.separate else None,
    )


def _gpu_types(outcome: Outcome) -> tuple[GpuType, ...]:
    space = outcome.question.space
    if space.pools is None:
        return space.gpu_types
    return space.pools.prefill.gpu_types[0], space.pools.decode.gpu_types[0]


def _common(values: Iterable[str | None]) -> str | None:
    """Return what all values are, None where they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _load(best: Answer, outcome: Outcome) -> tuple[float, float, float]:
    """Return requests in flight by Little's law, the most requests/s within the limits and the headroom up to these."""
    if not best.separate:
        load = load_figures(best, outcome)
        return load.concurrency, load.max_requests_per_s, load.headroom
    per_s, most = best.requests_per_s, best.most_requests_per_s
    return per_s * best.latency_s("e2e")["mean"], most, max(0.0, most / per_s - 1)


def _limited(best: Answer | None, question: Question) -> Iterator[tuple[str, Limited | None]]:
    """Yield each latency that has a limit in the limit's statistic; None of those without."""
    for name, limit in limits(question).items():
        if limit is None:
            yield name, None
        else:
            value = None if best is None else mean_ms(best, name, question, limit.statistic)
            yield name, Limited(limit.statistic, value, limit.ms)


def _bands(best: Answer, outcome: Outcome) -> Iterator[tuple[str, ErrorBand]]:
    """Yield the bands of a candidate's figures, by their names."""
    load = load_figures(best, outcome)
    known = bands.bounds(bands.of_load(best, outcome, load, throughput(best, outcome), latency(best)))
    paths = {name: f"latency.{name}.mean" for name in LATENCIES}
    for name, limited in _limited(best, outcome.question):
        if limited is not None:
            paths[f"limited.{name}"] = f"latency.{name}.{limited.statistic}"
    paths |= {name: f"load.{name}" for name in ("requests_per_s", "max_requests_per_s")}
    yield from ((name, known[path]) for name, path in paths.items() if path in known)


def _limit(outcome: Outcome) -> tuple[str, str | None]:
    """Return what ends the load, and without an answer why there is none."""
    best = outcome.answer
    if outcome.question.space.pools is not None:
        return pools.binding_limit(best), pools.unserved(outcome)
    if best is not None:
        return best.pool.capacity.binding, None
    nearest = unmet(outcome)
    return nearest.limit, nearest.detail


def _rests_on(outcome: Outcome, best: Answer) -> Iterator[Assumption]:
    yield from assumptions.of_answer(best, outcome.question)
    if outcome.question.space.pools is not None:
        yield from pools.assumptions(outcome.question.space.pools.facts)


def replaced(outcome: Outcome, gpus: int) -> Replaced | None:
    """Return the most that `gpus` GPUs serve within the limits; None where that is nothing."""
    best = outcome.answer
    if best is None:
        return None
    return Replaced(
        gpu=best.pool.replica.gpu_type.name,
        gpu_id=best.pool.replica.gpu_type.id,
        gpus=gpus,
        gpus_used=best.gpus,
        weight_precision=best.pool.replica.plan.weight_format,
        replicas=best.pool.count,
        **sizes(best.pool.replica.layout),
        requests_per_s=best.requests_per_s,
        verified=outcome.tries > 0,
    )


def record(
    outcomes: Sequence[Outcome], question: Question, sort: Objective, replaces: Replaced | None = None
) -> Compare:
    """Return the record of all candidates, in order."""
    found = [ranked(outcome, sort, None if replaces is None else replaces.gpus) for outcome in outcomes]
    candidates = tuple(entry.candidate for entry in sorted(found, key=lambda entry: entry.place))
    best = next((candidate for candidate in candidates if candidate.feasible), None)
    return Compare(
        feasible=best is not None,
        inputs=inputs(question, None),
        demand=demand(question),
        sort=sort,
        replaces=replaces,
        best=best,
        candidates=candidates,
        assumptions=tuple(_shared([entry.assumptions for entry in found if entry.candidate.feasible])),
    )


def _shared(lists: Sequence[Sequence[Assumption]]) -> Iterator[Assumption]:
    """Yield the assumptions that are in every list, in the order of the first."""
    if lists:
        rest = [set(other) for other in lists[1:]]
        yield from (entry for entry in lists[0] if all(entry in other for other in rest))


def document(record: Compare) -> Document[Compare]:
    """Return the document of a comparison."""
    return Document(record, sections, rows)


OWN_COLUMNS = ("limited", "bands", "limit", "reason", "notes", "pools")  # of CSV, made below
FIGURES = tuple(name for name in CompareCandidate._fields if name not in OWN_COLUMNS)


def rows(record: Compare) -> Rows:
    """Return a row for each candidate; a limited latency adds its statistic's column."""
    labels = {key: record.inputs.get(key) for key in LABELS if key != "weight_precision"}
    at_limit = [_at_limit(name, limit.statistic) for name, limit in _percentiles(record)]
    edges = [_edge(name, edge) for name in BANDS for edge in ("low", "high")]
    notes = Quantity("notes", of=lambda c: "; ".join(c.notes))
    in_pools = Quantity("pools", of=lambda c: None if c.pools is None else _shape(c))
    return rows_of(record.candidates, (*FIGURES, *at_limit, *edges, "limit", "reason", notes, in_pools), labels)


def _percentiles(record: Compare) -> Iterator[tuple[str, LimitInMs]]:
    """Yield the limits on other statistics than means."""
    for name in LATENCIES:
        limit = record.inputs["limits"][name]
        if limit is not None and limit.statistic != "mean":
            yield name, limit


def _at_limit(name: str, statistic: str) -> Quantity:
    def value(c: CompareCandidate) -> float | None:
        limited = c.limited[name]
        return None if limited is None else limited.ms

    heading = f"{statistic} {_title(name)}"
    return Quantity(f"{name.removesuffix('_ms')}_{statistic}_ms", heading, milliseconds, value)


def _edge(name: str, edge: str) -> Quantity:
    return Quantity(f"{name}_{edge}", of=lambda c: getattr(c.bands.get(name), edge, None))


def _range(name: str) -> Quantity:
    def words(c: CompareCandidate) -> str | None:
        band = c.bands.get(name)
        return None if band is None else between(band.low, band.high, milliseconds)

    return in_words(f"bands.{name}", f"{_title(name)} range", words)


def _title(name: str) -> str:
    return name.removesuffix("_ms").upper()


def called(c: CompareCandidate) -> str:
    """Write which candidate it is: GPU type and weight precision, and whether prefill and decode have pools of their own."""
    return f"{c.gpu} {c.weight_precision.upper()}{', pools' if c.disaggregated else ''}"


def _shape(c: CompareCandidate) -> str | None:
    if c.pools is not None:
        return shape_words(c.pools)
    return None if c.replicas is None else f"{c.replicas:,} x {layout(c)}"


def _price(c: CompareCandidate) -> str | None:
    return (
        "no price"
        if c.usd_per_hour is None and c.feasible
        else None
        if c.usd_per_hour is None
        else money(c.usd_per_hour)
    )


NAME = in_words("gpu", "GPU, weights", called)
SIZES = (
    quantities.GPUS,
    Quantity("gpus_per_replaced_gpu", "for each"),
    NAME,
    in_words("layout", "layout", _shape),
    Quantity("usd_per_hour", "$/h", str, _price),
    quantities.HEADROOM,
    in_words("limit", "limit", lambda c: c.limit if c.feasible else f"no: {c.limit}"),
)
RATES = (
    NAME,
    quantities.REQUESTS_PER_S,
    quantities.REQUESTS_PER_S_PER_GPU,
    quantities.USD_PER_MILLION_OUTPUT_TOKENS,
    quantities.USD_PER_MILLION_TOKENS,
    quantities.POWER_W,
    quantities.KWH_PER_MILLION_OUTPUT_TOKENS,
)
RANGES = (NAME, *map(_range, LATENCIES))


def sections(record: Compare) -> Iterator[Section]:
    """Yield the best candidate, what was asked, all candidates side by side, latencies with their bands, and why others fail."""
    at = "/candidates"
    served = [candidate for candidate in record.candidates if candidate.feasible]
    yield Facts(tuple(_verdict(record)), _headline(record))
    yield Facts(tuple(_asked(record)))
    yield Table(SIZES, record.candidates, at)
    if served:
        yield Table(RATES, served, at, "At this load around the clock")
        title = "Mean latency, and the range of 8 in 10 published runs like it"
        yield Table((NAME, *_latencies(record)), served, at, title)
        yield Table(RANGES, served, at)
    yield Facts(tuple(_notes(record, served)))
    yield assumptions.assumed(record.assumptions)


def _latencies(record: Compare) -> Iterator[Quantity]:
    percentiles = dict(_percentiles(record))
    for quantity in quantities.LATENCIES:
        yield quantity
        if quantity.key in percentiles:
            yield _at_limit(quantity.key, percentiles[quantity.key].statistic)


def _headline(record: Compare) -> str:
    best = record.best
    if best is None:
        return "Infeasible: no candidate meets the demand within the limits"
    price = f"{money(best.usd_per_hour)}/h" if best.usd_per_hour is not None else "no price known"
    gpus = f"{best.gpus} x" if best.gpu_id is not None else f"{plural(best.gpus or 0, 'GPU')},"
    first = f"the {SORTED[record.sort]} of {plural(len(record.candidates), 'candidate')}"
    return f"{gpus} {called(best)} = {_shape(best)}, {price}: {first}"


def _verdict(record: Compare) -> Iterator[Line]:
    """Yield which limits the best may miss, and what the replaced GPUs serve."""
    best, old = record.best, record.replaces
    beyond = [] if best is None else list(_beyond(best, record.inputs["limits"]))
    if beyond:
        sure = "Likely to miss its limits" if any(wholly for _, wholly in beyond) else "Not sure to keep its limits"
        ranges = " and ".join(text for text, _ in beyond)
        yield Line(f"{sure}: published runs like it put {ranges}; --conservative sizes on that")
    if old is not None:
        left = f", {plural(old.gpus - old.gpus_used, 'GPU')} idle" if old.gpus > old.gpus_used else ""
        shape = f"{old.weight_precision.upper()}, {old.replicas} x {layout(old)}{left}"
        most = number(old.requests_per_s)
        yield Line(f"{old.gpus} x {old.gpu} ({shape}) serve at most {most} requests/s within the limits", "Replaced")


def _beyond(c: CompareCandidate, limits: LimitsInMs) -> Iterator[tuple[str, bool]]:
    """Yield each mean latency whose range reaches beyond the limit on it, and whether all of the range is beyond."""
    for name in LATENCIES:
        limit, band = limits.get(name), c.bands.get(name)
        if limit is not None and band is not None and limit.statistic == "mean" and band.high > limit.ms:
            span = f"at {milliseconds(band.low)} to" if band.low > limit.ms else "up to"
            text = f"{_title(name)} {span} {milliseconds(band.high)}, limit {milliseconds(limit.ms)}"
            yield text, band.low > limit.ms


def _asked(record: Compare) -> Iterator[Line]:
    i, asked = record.inputs, record.demand
    yield Line(f"{i['model']}, KV cache {i['kv_precision']}", "Model")
    yield Line(f"{lengths(i)}; {i['engine_title']} {i['engine_version']}", "Workload")
    rate = f"{number(asked['requests_per_s'])} requests/s" if asked["requests_per_s"] is not None else ""
    in_flight = f"{asked['concurrency']:,} requests in flight" if asked["concurrency"] is not None else ""
    grown = f", {percent(i['headroom'])} headroom asked" if i["headroom"] else ""
    yield Line(f"{rate or in_flight}{grown}", "Demand")
    steps = steps_line(asked)
    if steps is not None:
        yield steps._replace(label=" ")
    yield Line(limits_in_words(i["limits"]), "Limits")


def _notes(record: Compare, served: Sequence[CompareCandidate]) -> Iterator[Line]:
    """Yield why candidates fail, what the others rest on, and whether they were simulated."""
    yield from labelled("Not possible", (_failure(c) for c in record.candidates if not c.feasible))
    borrowed = [called(c) for c in served if c.borrowed_kernels]
    if borrowed:
        yield Line(f"with kernel efficiencies of other GPUs: {', '.join(borrowed)}", "Less sure")
    off = [called(c) for c in served if _is_biased(c)]
    if off:
        biased = "predictions of this kind have been off to one side, by more than the range; --conservative"
        yield Line(f"{', '.join(off)}: {biased}", "Out of range")
    for note in dict.fromkeys(note for c in served for note in c.notes):
        yield Line(note, "Precision")
    if record.replaces is not None:
        yield Line("GPUs that take the place of each one of those replaced", "for each")
    if any(c.verified for c in served):
        yield Line("every size above, by the engine's scheduler", "Simulated")
    elif served:
        yield Line("no: latencies are the closed form's (--no-verify)", "Simulated")
    if any(c.disaggregated for c in record.candidates):
        yield Line(
            "prefill and decode on GPUs of their own, of one GPU type unless --disaggregate prefill=GPU,decode=GPU names two; "
            "no error band",
            "Pools",
        )
    if served:
        yield Line("llmsize estimate -g GPU --precision WEIGHTS gives each in full", "More")


def _failure(c: CompareCandidate) -> str:
    reason = str(c.reason)  # of a layout, it names the GPU itself
    return reason if reason.startswith(c.gpu) else f"{called(c)}: {reason}"


def _is_biased(c: CompareCandidate) -> bool:
    """Tell whether a latency lies outside of its own band: those of its class are known to be off to one side."""
    values = ((getattr(c, name), c.bands.get(name)) for name in LATENCIES)
    return any(band is not None and not band.low <= value <= band.high for value, band in values)
