"""`llmsize compare`: one demand on several GPU types and precisions, each at its best, serving as one or from separate pools.

Every figure is that of `estimate`. Where prefill and decode have pools of their own, what one replica alone has is null.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sizing.formats.view import Document, Facts, Line, Quantity, Rows, Section, Table, in_words, labelled, rows_of
from sizing.formats.words import between, milliseconds, money, number, percent, plural
from sizing.report.compare_record import BANDS, LATENCIES, Compare, CompareCandidate
from sizing.report.parts import assumptions, bands
from sizing.report.parts.layouts import layout
from sizing.report.parts.pools import shape_words
from sizing.report.parts.question import LABELS, LimitInMs, LimitsInMs, lengths, limits_in_words, steps_line

SORTED = {"gpus": "fewest GPUs", "cost": "lowest cost an hour", "energy": "lowest power"}


def document(record: Compare) -> Document[Compare]:
    """The document of a comparison."""
    return Document(record, sections, rows)


OWN_COLUMNS = ("limited", "bands", "limit", "reason", "notes", "pools")  # of CSV, made below
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


def _range(name: str) -> Quantity:
    def words(c: CompareCandidate) -> str | None:
        band = c.bands.get(name)
        return None if band is None else between(band.low, band.high, milliseconds)

    return in_words(f"bands.{name}", f"{_title(name)} range", words)


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


NAME = in_words("gpu", "GPU, weights", called)
SIZES = (
    bands.GPUS,
    Quantity("gpus_per_replaced_gpu", "for each"),
    NAME,
    in_words("layout", "layout", _shape),
    Quantity("usd_per_hour", "$/h", str, _price),
    bands.HEADROOM,
    in_words("limit", "limit", lambda c: c.limit if c.feasible else f"no: {c.limit}"),
)
RATES = (
    NAME,
    bands.REQUESTS_PER_S,
    bands.REQUESTS_PER_S_PER_GPU,
    bands.USD_PER_MILLION_OUTPUT_TOKENS,
    bands.USD_PER_MILLION_TOKENS,
    bands.POWER_W,
    bands.KWH_PER_MILLION_OUTPUT_TOKENS,
)
RANGES = (NAME, *map(_range, LATENCIES))


def sections(record: Compare) -> Iterator[Section]:
    """Yield the best candidate, the question, all candidates, latencies with their bands, and why others fail."""
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
    for quantity in bands.LATENCY_QUANTITIES:
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
    """Yield the limits that the best candidate may miss, and the load of the replaced GPUs."""
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
    """Yield each mean latency with a range beyond its limit, and whether the whole range is beyond."""
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
    if asked["concurrent_users"] is not None:
        in_flight = f"{asked['concurrent_users']:,g} users, {asked['think_time_s']:g} s between answer and next request"
    grown = f", {percent(i['headroom'])} headroom asked" if i["headroom"] else ""
    yield Line(f"{rate or in_flight}{grown}", "Demand")
    steps = steps_line(asked)
    if steps is not None:
        yield steps._replace(label=" ")
    yield Line(limits_in_words(i["limits"]), "Limits")


def _notes(record: Compare, served: Sequence[CompareCandidate]) -> Iterator[Line]:
    """Yield why candidates fail, the assumptions of the others, and whether they were simulated."""
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
    """Whether a latency lies outside its own band: predictions of its class are known to be biased."""
    values = ((getattr(c, name), c.bands.get(name)) for name in LATENCIES)
    return any(band is not None and not band.low <= value <= band.high for value, band in values)
