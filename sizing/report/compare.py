"""`llmsize compare`: one demand on several GPU types and precisions, each at its best, serving as one or from separate pools.

Every figure is that of `estimate`. Where prefill and decode have pools of their own, what one replica alone has is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.view import Document, Facts, Line, Quantity, Rows, Section, Table, in_words, rows_of
from sizing.formats.words import milliseconds, money, number, percent, plural
from sizing.report.compare_record import BANDS, LATENCIES, Compare, CompareCandidate
from sizing.report.parts import bands
from sizing.report.parts.evidence import SureOf
from sizing.report.parts.layouts import layout
from sizing.report.parts.limiting import limit_words
from sizing.report.parts.pools import shape_words
from sizing.report.parts.question import LABELS, LimitInMs, demand_line, limits_in_words, replica_lines
from sizing.report.parts.screen import OBJECTIVES, SINGLE, dollars, few, following, kept, rests_on, verdict

MOST_SHOWN = 10  # candidates on a screen


def document(record: Compare) -> Document[Compare]:
    """The document of a comparison."""
    return Document(record, sections, rows)


OWN_COLUMNS = ("limited", "bands", "limit", "reason", "notes", "pools", "evidence")  # of CSV, made below
FIGURES = tuple(name for name in CompareCandidate._fields if name not in OWN_COLUMNS)


def rows(record: Compare) -> Rows:
    """A row for each candidate; a limited latency adds its statistic's column."""
    labels = {key: record.inputs.get(key) for key in LABELS if key != "weight_precision"}
    at_limit = [_at_limit(name, limit.statistic) for name, limit in _percentiles(record)]
    edges = [_edge(name, edge) for name in BANDS for edge in ("low", "high")]
    notes = Quantity("notes", of=lambda c: "; ".join(c.notes))
    in_pools = Quantity("pools", of=lambda c: None if c.pools is None else _shape(c))
    return rows_of(record.candidates, (*FIGURES, *at_limit, *edges, "limit", "reason", notes, in_pools), labels)


def _percentiles(record: Compare) -> Iterator[tuple[str, LimitInMs]]:
    """Yield the limits on statistics other than means."""
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


def _title(name: str) -> str:
    return name.removesuffix("_ms").upper()


def called(c: CompareCandidate) -> str:
    """Write the name of a candidate: GPU type, weight precision, and whether its pools are separate."""
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


SCREEN = (
    bands.GPUS,
    Quantity("gpus_sure", "sure"),
    Quantity("gpus_per_replaced_gpu", "for each"),
    bands.GPU,
    bands.WEIGHTS._replace(write=str.upper, shown="differs"),
    in_words("layout", "layout", _shape),
    Quantity("usd_per_hour", "$/h", str, _price),
    *bands.LATENCY_QUANTITIES,
    bands.USD_PER_MILLION_OUTPUT_TOKENS,
    Quantity("headroom", "used", percent, lambda c: None if c.headroom is None else 1 / (1 + c.headroom)),
    in_words("limit", "binds", lambda c: limit_words(c.limit)),
)
SPARE = ("$/M output tokens", "E2E", "used", "binds")


def sections(record: Compare) -> Iterator[Section]:
    """Yield the best candidate and the verdict, the candidates, the question, and why others fail."""
    served = [candidate for candidate in record.candidates if candidate.feasible]
    yield Facts(tuple(_verdict(record)), _headline(record))
    if served:
        more = len(served) - MOST_SHOWN
        notes = (Line(f"{plural(more, 'more candidate')}: --verbose", style="dim"),) if more > 0 else ()
        yield Table(
            (*SCREEN[:8], *_limited(record), *SCREEN[8:]), served[:MOST_SHOWN], "/candidates", notes=notes, spare=SPARE
        )
    lines = [
        demand_line(record.inputs, record.demand),
        Line(limits_in_words(record.inputs["limits"]), "Limits", spare=3),
    ]
    failures = [_failure(c) for c in record.candidates if not c.feasible]
    yield Facts(
        (
            *lines,
            *(line._replace(spare=6) for line in replica_lines(record.inputs)),
            *(line._replace(spare=2) for line in _notes(record, served[:MOST_SHOWN])),
            *(line._replace(spare=1) for line in few("Refused", failures, "candidate", 1)),
            *rests_on(record.assumptions),
            following(*_helped(record)),
        )
    )


def _helped(record: Compare) -> Iterator[str]:
    """Yield the command that says what would help, where no candidate serves the demand."""
    nearest = next((c.gpu_id for c in record.candidates if c.gpu_id is not None), None)
    if record.best is None and nearest is not None:
        yield f"llmsize estimate -g {nearest}: what would help; --verbose: the rest"


def _limited(record: Compare) -> Iterator[Quantity]:
    """Yield TTFT in the statistic that a limit bounds, where that is not the mean."""
    yield from (_at_limit(name, limit.statistic) for name, limit in _percentiles(record))


def _headline(record: Compare) -> str:
    best = record.best
    if best is None:
        return "Infeasible: no candidate meets the demand within the limits"
    gpus = f"{best.gpus} x" if best.gpu_id is not None else f"{plural(best.gpus or 0, 'GPU')},"
    several = len(record.candidates)
    first = f", the {OBJECTIVES[record.sort]} of {several} candidates" if several > 1 else ""
    return f"{gpus} {called(best)} = {_shape(best)}, {dollars(best.usd_per_hour)}{first}"


def _verdict(record: Compare) -> Iterator[Line]:
    """Yield whether the best candidate keeps the limits, how sure that is, and the load of the replaced GPUs."""
    best, old = record.best, record.replaces
    if best is not None:
        single = f"; {SINGLE}" if best.replicas == 1 else ""
        yield verdict(kept(any(record.inputs["limits"].values()), best.verified) + single, good=True)
        by_rate = record.inputs["demand"]["requests_per_s"] is not None
        limited = any(record.inputs["limits"].values())
        yield from SureOf(best.gpus or 0, best.gpus_sure, record.confidence, best.evidence, limited, by_rate).lines()
    if old is not None:
        left = f", {plural(old.gpus - old.gpus_used, 'GPU')} idle" if old.gpus > old.gpus_used else ""
        shape = f"{old.weight_precision.upper()}, {old.replicas} x {layout(old)}{left}"
        most = number(old.requests_per_s)
        yield Line(f"{old.gpus} x {old.gpu} ({shape}) serve at most {most} requests/s within the limits", "Replaced")


def _notes(record: Compare, served: Sequence[CompareCandidate]) -> Iterator[Line]:
    """Yield which candidates are less sure, and what is special about them."""
    borrowed = dict.fromkeys(c.gpu for c in served if c.borrowed_kernels)
    if borrowed:
        yield Line(f"{', '.join(borrowed)}: by kernel speeds of other GPUs", "Less sure")
    if any(c.disaggregated for c in record.candidates):
        yield Line("prefill and decode on GPUs of their own, of one type unless --disaggregate names two", "Pools")


def _failure(c: CompareCandidate) -> str:
    reason = str(c.reason)  # of a layout, it names the GPU itself
    return reason if reason.startswith(c.gpu) else f"{called(c)}: {reason}"
