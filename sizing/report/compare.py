"""`llmsize compare`: one demand on several GPU types and precisions, each at its best, serving as one or from separate pools.

Every figure is that of `estimate`. Where prefill and decode have pools of their own, what one replica alone has is null.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from sizing.answers.advice import UNSURE
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
    filled,
    in_words,
    rows_of,
)
from sizing.formats.words import joined, money, number, percent, plural
from sizing.model.architecture import Layout
from sizing.question.question import Question
from sizing.report.parts import assumptions, evidence, pools, quantities
from sizing.report.parts.evidence import Evidence, SureOf, limited_latencies
from sizing.report.parts.figures import latency, load_figures, throughput
from sizing.report.parts.layouts import (
    BesideAnswer,
    FewerGpus,
    Limited,
    at_usual_limits,
    beside,
    fewer,
    figures_by_name,
    limited_statistics,
    with_fp8,
)
from sizing.report.parts.limits import limit_words
from sizing.report.parts.memory import queue_of
from sizing.report.parts.pools import PoolShapes, shape_words
from sizing.report.parts.prices import PriceOrder, price_order
from sizing.report.parts.quantities import NoSizes, flat_names
from sizing.report.parts.question import (
    DemandInputs,
    Inputs,
    demand,
    demand_line,
    inputs,
    is_by_day,
    is_limited,
    is_rate,
    labels,
    limits_in_words,
    not_replayed,
    of_replica,
    replica_lines,
)
from sizing.report.parts.screen import (
    DIM,
    NEXT,
    OBJECTIVES,
    SINGLE,
    assumption_lines,
    dollars,
    first_lines,
    limits_verdict,
    next_line,
    unused,
    verdict,
)
from sizing.specs.bands import ErrorBand
from sizing.specs.gpu import GpuType
from sizing.specs.workload import GENERATE, Aim, latency_name

LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")
BANDS = (*LATENCIES, "requests_per_s", "max_requests_per_s")


class CompareCandidate(NamedTuple):
    """The best layout of one GPU type and weight precision, or the best pair of pools.

    If it can't serve the demand, its figures are null and `reason` says why. Latencies are means. `limited` has the limited
    statistic of each latency with a limit. The keys of `bands` are names of numbers; a limited latency is `limited.ttft_ms`.
    `borrowed_kernels` is True where kernel efficiencies come from another GPU.

    If prefill and decode are `disaggregated`, `pools` has both layouts. The fields of a single replica (layout, bands, and the
    id and price source of two GPU types) are then null. `limit` is the limit of the pool nearer to its maximum load, or `pools`
    where no pair serves the demand. With `gpus_sure` GPUs, most similar published runs would keep the limits; it is null where
    too few runs are similar, as `evidence` says. `queue` says that most requests in flight wait.
    """

    gpu: str
    gpu_id: str | None
    weight_precision: str
    feasible: bool = False
    gpus: int | None = None
    replicas: int | None = None
    gpus_per_replica: int | None = None
    sizes: Layout | NoSizes = NoSizes()
    gpus_per_replaced_gpu: float | None = None
    requests_per_s: float | None = None
    requests_per_s_per_gpu: float | None = None
    concurrency: float | None = None
    max_requests_per_s: float | None = None
    headroom: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None
    limited: dict[str, Limited | None] = {}  # noqa: RUF012 - never changed
    bands: dict[str, ErrorBand] = {}  # noqa: RUF012 - never changed
    usd_per_hour: float | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_million_tokens: float | None = None
    price_source: str | None = None
    power_w: float | None = None
    kwh_per_million_output_tokens: float | None = None
    limit: str = ""
    reason: str | None = None
    verified: bool = False
    assumed: int | None = None
    borrowed_kernels: bool | None = None
    notes: tuple[str, ...] = ()
    disaggregated: bool = False
    pools: PoolShapes | None = None
    gpus_sure: int | None = None
    usd_per_month: float | None = None
    evidence: Evidence | None = None
    fewer: FewerGpus | None = None
    price_providers: int | None = None
    queue: str | None = None


class Replaced(NamedTuple):
    """The GPUs to replace, and the most that they serve within the limits, which is the demand of the comparison.

    `gpus_used` counts the GPUs in whole replicas. `verified` says whether a simulation confirmed the rate.
    """

    gpu: str
    gpu_id: str
    gpus: int
    gpus_used: int
    weight_precision: str
    replicas: int
    sizes: Layout
    requests_per_s: float
    verified: bool


class Compare(NamedTuple):
    """The record of `llmsize compare`: candidates in the order of `sort`, infeasible candidates last.

    `best` is the first candidate, or null if none is feasible. `assumptions` are shared by all feasible candidates.
    """

    feasible: bool
    inputs: Inputs
    demand: DemandInputs
    sort: str
    replaces: Replaced | None
    best: CompareCandidate | None
    candidates: tuple[CompareCandidate, ...]
    assumptions: tuple[Assumption, ...]
    confidence: float | None = None
    prices: PriceOrder | None = None
    usual_limits: BesideAnswer | None = None
    with_fp8: BesideAnswer | None = None
    schema: str = "llmsize.compare/1"


def candidate(outcome: Outcome, replaced: int | None = None) -> CompareCandidate:
    """A candidate from its outcome; it replaces `replaced` GPUs."""
    best, question, nothing = outcome.answer, outcome.question, _unserved(outcome)
    if best is None:
        return nothing
    most, headroom = best.most_requests_per_s, best.most_requests_per_s / best.requests_per_s - 1
    of_pools = {"concurrency": best.in_flight, "max_requests_per_s": most, "headroom": max(0.0, headroom)}
    return filled(
        CompareCandidate,
        evidence.by_runs(outcome),
        best,
        of_pools if best.separate else load_figures(best, outcome),
        figures_by_name(best, question),
        nothing,
        gpu=nothing.gpu,
        weight_precision=best.decode.replica.plan.weight_format,
        pools=pools.shapes(best) if best.separate else None,
        feasible=True,
        gpus_per_replaced_gpu=best.gpus / replaced if replaced else None,
        bands={} if best.separate else dict(_bands(best, outcome)),
        price_source=_common(gpu_type.price_source for gpu_type in _gpu_types(outcome)),
        price_providers=None if best.separate else best.pool.replica.gpu_type.price_providers,
        verified=outcome.verified is not None,
        assumed=sum(entry.kind == "assumed" for entry in _rests_on(outcome)),
        borrowed_kernels=any(pool.timed.borrows for pool in best.pools),
        notes=tuple(dict.fromkeys(note for pool in best.pools for note in pool.replica.plan.notes)),
        fewer=fewer(outcome, best),
        queue=queue_of(best, outcome) or None,
    )


def _rests_on(outcome: Outcome) -> tuple[Assumption, ...]:
    of_answer, in_pools = assumptions.of_answer(outcome.answer, outcome.question), outcome.question.space.pools
    return tuple(dict.fromkeys((*of_answer, *(() if in_pools is None else pools.assumptions(in_pools.facts)))))


def _unserved(outcome: Outcome) -> CompareCandidate:
    """A candidate without an answer: its GPU type and precision, its limits, and the reason."""
    question, gpu_types = outcome.question, _gpu_types(outcome)
    limit, reason = pools.limit_and_reason(outcome)
    return CompareCandidate(
        gpu=joined(gpu_type.name for gpu_type in gpu_types),
        gpu_id=_common(gpu_type.id for gpu_type in gpu_types),
        weight_precision=question.space.precisions[0] or question.service.model.quantisation.precision,
        limited=limited_statistics(outcome.answer, question),
        limit=limit,
        reason=reason,
        disaggregated=question.space.pools is not None,
    )


def _gpu_types(outcome: Outcome) -> tuple[GpuType, ...]:
    space = outcome.question.space
    if space.pools is None:
        return space.gpu_types
    return space.pools.prefill.gpu_types[0], space.pools.decode.gpu_types[0]


def _common(values: Iterable[str | None]) -> str | None:
    """The common value of all values; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _bands(best: Answer, outcome: Outcome) -> Iterator[tuple[str, ErrorBand]]:
    """The bands of a candidate's figures, by name."""
    load = load_figures(best, outcome)
    known = evidence.bounds(evidence.of_load(best, outcome, load, throughput(best, outcome), latency(best)))
    paths = {name: f"latency.{name}.mean" for name in LATENCIES}
    for name, limited in limited_statistics(best, outcome.question).items():
        if limited is not None:
            paths[f"limited.{name}"] = f"latency.{name}.{limited.statistic}"
    paths |= {name: f"load.{name}" for name in ("requests_per_s", "max_requests_per_s")}
    yield from ((name, known[path]) for name, path in paths.items() if path in known)


def replaced(outcome: Outcome, gpus: int) -> Replaced | None:
    """The most that `gpus` GPUs serve within the limits; None if they serve nothing."""
    best = outcome.answer
    if best is None:
        return None
    return filled(
        Replaced,
        figures_by_name(best, outcome.question),
        of_replica(best.pool.replica),
        gpus=gpus,
        gpus_used=best.gpus,
        verified=outcome.verified is not None,
    )


def record(outcomes: Sequence[Outcome], question: Question, sort: Aim, replaces: Replaced | None = None) -> Compare:
    """The record of all candidates, in the order of `sort`."""
    ordered = sorted(outcomes, key=lambda outcome: place(outcome.answer, sort))
    candidates = tuple(candidate(each, None if replaces is None else replaces.gpus) for each in ordered)
    best = next((each for each in candidates if each.feasible), None)
    return Compare(
        feasible=best is not None,
        inputs=inputs(question, None),
        demand=demand(question),
        sort=sort,
        replaces=replaces,
        best=best,
        candidates=candidates,
        assumptions=tuple(assumptions.shared([_rests_on(each) for each in outcomes if each.answer is not None])),
        confidence=next((odds.confidence for each in outcomes if (odds := each.by_runs.odds) is not None), None),
        prices=price_order((each.answer for each in ordered if each.answer is not None), question),
        usual_limits=beside(ordered[0].hints.usual, question),
        with_fp8=beside(ordered[0].hints.in_fp8, ordered[0].question),
    )


MOST_SHOWN = 10  # candidates on a screen
LESS = " with a layout that needs less"
FP8_LAST = 12  # a short screen leaves it out after all other spare lines

OWN_COLUMNS = ("limited", "bands", "limit", "reason", "notes", "pools", "evidence", "fewer")  # of CSV, made below
FIGURES = tuple(name for name in flat_names(CompareCandidate) if name not in OWN_COLUMNS)


def rows(record: Compare) -> Rows:
    """A row for each candidate. A limit on a percentile adds a column for that percentile."""
    percentiles = quantities.limited_percentiles(record.inputs.limits)
    at_limits = [quantities.at_limit(quantity, limit.statistic) for quantity, limit in percentiles]
    edges = [_edge(name, edge) for name in BANDS for edge in ("low", "high")]
    notes = Quantity("notes", of=lambda c: "; ".join(c.notes))
    in_pools = Quantity("pools", of=lambda c: None if c.pools is None else shape(c))
    own: tuple[str | Quantity, ...] = (*FIGURES, *at_limits, *edges, "limit", "reason", notes, in_pools)
    return rows_of(record.candidates, own, labels(record.inputs))


def _edge(name: str, edge: str) -> Quantity:
    return Quantity(f"{name}_{edge}", of=lambda c: getattr(c.bands.get(name), edge, None))


def called(c: CompareCandidate) -> str:
    """Write the name of a candidate: GPU type, weight precision, and whether its pools are separate."""
    return f"{c.gpu} {c.weight_precision.upper()}{', pools' if c.disaggregated else ''}"


def shape(c: CompareCandidate) -> str | None:
    """Write the replicas of a candidate and the layout of each, or both pools; None without an answer."""
    if c.pools is not None:
        return shape_words(c.pools)
    return None if c.replicas is None else f"{c.replicas:,} x {c.sizes}"


SURE = "gpus_sure"
SCREEN = (
    quantities.GPUS,
    Quantity(SURE, "sure"),
    Quantity("gpus_per_replaced_gpu", "for each"),
    quantities.GPU,
    quantities.WEIGHTS._replace(write=str.upper, shown="differs"),
    in_words("layout", "layout", shape),
    quantities.USD_PER_HOUR._replace(nothing="no price", shown="always"),
    quantities.REQUESTS_PER_S._replace(shown="differs"),
    *quantities.LATENCY_QUANTITIES,
    quantities.USD_PER_MILLION_OUTPUT_TOKENS,
    Quantity("headroom", "used", percent, lambda c: None if c.headroom is None else 1 / (1 + c.headroom)),
    in_words("limit", "binds", lambda c: limit_words(c.limit)),
)
SPARE = ("$/M output tokens", "E2E", "used", *(f"mean {each.heading}" for each in quantities.LATENCY_QUANTITIES))


def sections(record: Compare) -> Iterator[Section]:
    """Yield the best candidate and the verdict, the candidates, the question, and why others fail."""
    served = [candidate for candidate in record.candidates if candidate.feasible]
    yield Facts(tuple(_verdict(record)), _headline(record))
    if served:
        yield _table(record, served)
    lines = [
        demand_line(record.inputs, record.demand),
        Line(limits_in_words(record.inputs.limits, single=record.inputs.single_result), "Limits", spare=3),
    ]
    failures = [_failure(c) for c in record.candidates if not c.feasible and c.limit != UNSURE]
    unsure = [_failure(c) for c in record.candidates if c.limit == UNSURE]
    helped = tuple(_helped(record))
    fewer = [f"{called(c)}: {c.fewer.words()}" for c in served[:MOST_SHOWN] if c.fewer is not None]
    yield Facts(
        (
            *lines,
            *replica_lines(record.inputs),
            *raised(served[:MOST_SHOWN]),
            *(line._replace(spare=2) for line in notes(record, served[:MOST_SHOWN])),
            *first_lines("Refused", failures[: 1 if served else None], "candidate", 1, spare=1),
            *first_lines("Unknown", unsure, "candidate", 1, spare=2),
            *first_lines("Fewer", fewer, "GPU type", 1, LESS, spare=9),
            *with_fp8(record.with_fp8, FP8_LAST),
            *_prices(served[:MOST_SHOWN]),
            *(() if record.prices is None else (record.prices.line(),)),
            *assumption_lines(record.assumptions, by_day=is_by_day(record.inputs.demand)),
            next_line("; ".join((*helped, NEXT)), *helped),
        )
    )


def _table(record: Compare, candidates: Sequence[CompareCandidate]) -> Table:
    """The first candidates that serve the demand, and how many others do and do not."""
    task = record.inputs.task
    percentiles = tuple(quantities.limited_percentiles(record.inputs.limits))
    named = (
        (each._replace(heading=latency_name(each.heading, single=task != GENERATE)), at) for each, at in percentiles
    )
    at_limits = (quantities.at_limit(each, at.statistic) for each, at in named)
    binds = SCREEN[-1]._replace(of=lambda c: limit_words(c.limit, single=task != GENERATE))
    columns = quantities.of_task((*SCREEN[:9], *at_limits, *SCREEN[9:-1], binds), task)
    if record.confidence is not None:
        sure = f"{percent(record.confidence)} sure"
        columns = tuple(each._replace(heading=sure) if each.key == SURE else each for each in columns)
    twice = {each.key for each, _ in percentiles} - {quantities.E2E.key}
    columns = tuple(c._replace(heading=f"mean {c.heading}") if c.key in twice else c for c in columns)
    if len({c.weight_precision for c in record.candidates}) > 1:
        columns = tuple(each._replace(shown="always") if each.key == "weight_precision" else each for each in columns)
    fail = tuple(_unable(record, candidates))
    # What binds is left out where cells would fold over several lines beside it.
    table = Table(columns, candidates, "/candidates", spare=(*SPARE, SCREEN[-1].heading))
    if len(candidates) > MOST_SHOWN:
        return table.cut(MOST_SHOWN, "more candidate", "; ".join(("--verbose", *fail)))
    return table._replace(screen_notes=(f"{'; '.join(fail)}: --verbose",) if fail else ())


def _unable(record: Compare, candidates: Sequence[CompareCandidate]) -> Iterator[str]:
    """Yield how many candidates cannot serve the demand, and of how many no count is sure, so that they may serve it."""
    unsure = sum(each.limit == UNSURE for each in record.candidates)
    if unable := len(record.candidates) - len(candidates) - unsure:
        yield f"{plural(unable, 'candidate')} cannot serve this"
    if unsure:
        yield f"no count of {plural(unsure, 'candidate')} is sure: measure first"


def _helped(record: Compare) -> Iterator[str]:
    """Yield the command that names helpful changes, if no candidate serves the demand."""
    nearest = next((c.gpu_id for c in record.candidates if c.gpu_id is not None), None)
    if record.best is None and nearest is not None:
        yield f"llmsize estimate -g {nearest}: what would help"


def _headline(record: Compare) -> str:
    best = record.best
    if best is None:
        return "Infeasible: no candidate meets the demand within the limits"
    gpus = f"{best.gpus} x" if best.gpu_id is not None else f"{plural(best.gpus or 0, 'GPU')},"
    several = len(record.candidates)
    first = f", the {OBJECTIVES[record.sort]} of {several} candidates" if several > 1 else ""
    return f"{gpus} {called(best)} = {shape(best)}, {dollars(best.usd_per_hour)}{first}"


def _verdict(record: Compare) -> Iterator[Line]:
    """Yield whether the best candidate keeps the limits, how sure that is, and the load of the replaced GPUs."""
    best, old = record.best, record.replaces
    if best is not None:
        single, gpus = SINGLE if best.replicas == 1 else "", best.gpus or 0
        limited, by_rate = is_limited(record.inputs.limits), is_rate(record.inputs.demand)
        holds = limits_verdict(limited, best.verified, not_replayed(record.demand))
        left = unused(record.inputs.gpu_budget, gpus, later=True)
        yield verdict("; ".join(filter(None, (holds, best.queue, left, single))), good=not best.queue)
        yield from at_usual_limits(record.usual_limits)
        known, usd = (best.gpus_sure, record.confidence, best.evidence), best.usd_per_hour
        yield from SureOf(gpus, *known, limited, by_rate, best.gpu, usd and usd / gpus).lines(
            limited_latencies(best.limited, best.bands, "limited.{}")
        )
    if old is not None:
        left = f", {plural(old.gpus - old.gpus_used, 'GPU')} idle" if old.gpus > old.gpus_used else ""
        deployed = f"{old.weight_precision.upper()}, {old.replicas} x {old.sizes}{left}"
        most = number(old.requests_per_s)
        yield Line(f"{old.gpus} x {old.gpu} ({deployed}) serve at most {most} requests/s within the limits", "Replaced")


def notes(record: Compare, candidates: Sequence[CompareCandidate]) -> Iterator[Line]:
    """Yield which candidates are less sure, and what is special about them."""
    borrowed = dict.fromkeys(c.gpu for c in candidates if c.borrowed_kernels)
    if borrowed:
        yield Line(f"{', '.join(borrowed)}: by kernel speeds of other GPUs", "Less sure")
    shared = {str(a.value) for a in record.assumptions if a.what == assumptions.PRECISION}
    own = [note for note in dict.fromkeys(note for c in candidates for note in c.notes) if note not in shared]
    yield from first_lines("Precision", own, "note", 1)
    if any(c.disaggregated for c in record.candidates):
        yield Line("prefill and decode on GPUs of their own, of one type unless --disaggregate names two", "Pools")


def raised(candidates: Iterable[CompareCandidate]) -> Iterator[Line]:
    """Yield the candidates whose GPUs are more than predicted, as fewer than half of the runs like them keep the limits with these."""
    for c in candidates:
        alone = None if c.evidence is None else c.evidence.gpus_as_predicted
        if alone is None or c.gpus is None:
            continue
        of_type = c.evidence is not None and c.evidence.gpu_as_predicted in (None, c.gpu)
        usd = "" if c.usd_per_hour is None or not of_type else f", {money(c.usd_per_hour / c.gpus * alone)}/h"
        why = f"{c.gpus:,} are for the slower half of runs like it"
        yield Line(f"{called(c)}: {plural(alone, 'GPU')} by the prediction alone{usd}; {why}", "Raised")


def _prices(candidates: Sequence[CompareCandidate]) -> Iterator[Line]:
    """Yield the price of each GPU type, where several differ; a price that all share is among the assumptions."""
    each = {
        c.gpu_id: (money(c.usd_per_hour / c.gpus), f" ({c.price_providers})" if c.price_providers else "")
        for c in candidates
        if c.usd_per_hour is not None and c.gpus and c.gpu_id is not None
    }
    if len(set(each.values())) > 1:
        prices = ", ".join(f"{gpu} {usd}{of}" for gpu, (usd, of) in each.items())
        said = "; medians (number of providers)" if any(of for _, of in each.values()) else ""
        yield Line(f"{prices}{said}", "$/GPU-hour", DIM, spare=7)


def _failure(c: CompareCandidate) -> str:
    reason = str(c.reason)  # the reason of a layout already names the GPU
    return reason if reason.startswith(c.gpu) else f"{called(c)}: {reason}"


document = partial(Document, sections=sections, rows=rows)
