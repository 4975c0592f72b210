"""`llmsize compare` for the terminal: the best candidate, all of them side by side, latencies with their bands, and why others fail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import between, milliseconds, money, number, percent, plural, rounded_usd
from sizing.report import table_pools
from sizing.report.documents_compare import Compare, CompareCandidate
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.layouts import layout
from sizing.report.parts.question import lengths, steps_line

Cell = Callable[[CompareCandidate], str]
Column = tuple[str, bool, Cell]  # heading, right-aligned, cell

SORTED = {"gpus": "fewest GPUs", "cost": "lowest cost an hour", "energy": "lowest power"}
NO_PRICE = "no price"
LATENCIES = ("ttft_ms", "itl_ms", "e2e_ms")


def called(c: CompareCandidate) -> str:
    """Write which candidate it is: GPU type and weight precision, and whether prefill and decode have pools of their own."""
    return f"{c.gpu} {c.weight_precision.upper()}{', pools' if c.disaggregated else ''}"


OF: Column = ("GPU, weights", False, called)


def blocks(document: Compare) -> Iterator[Block]:
    """Yield the blocks of a comparison."""
    yield Block(tuple(_verdict(document)))
    yield Block(tuple(_asked(document)))
    served = [line for line in document.candidates if line.feasible]
    yield _table(document.candidates, tuple(_sizes(document)))
    if served:
        yield Block((Line("At this load around the clock", style="bold"),))
        yield _table(served, _RATES)
        yield Block((Line("Mean latency, and the range of 8 in 10 published runs like it", style="bold"),))
        yield _table(served, tuple(_latencies(document)))
        yield _table(served, _RANGES)
    yield Block(tuple(_notes(document)))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _verdict(document: Compare) -> Iterator[Line]:
    best, old = document.best, document.replaces
    if best is None:
        yield Line("Infeasible: no candidate meets the demand within the limits", style="bold")
    else:
        price = f"{money(best.usd_per_hour)}/h" if best.usd_per_hour is not None else "no price known"
        gpus = f"{best.gpus} x" if best.gpu_id is not None else f"{plural(best.gpus or 0, 'GPU')},"
        yield Line(
            f"{gpus} {called(best)} = {_shape(best)}, {price}: "
            f"the {SORTED[document.sort]} of {plural(len(document.candidates), 'candidate')}",
            style="bold",
        )
        beyond = tuple(_beyond(best, document.inputs["limits"]))
        if beyond:
            missed = any(wholly for _, wholly in beyond)
            sure = "Likely to miss its limits" if missed else "Not sure to keep its limits"
            ranges = " and ".join(text for text, _ in beyond)
            yield Line(f"{sure}: published runs like it put {ranges}; --conservative sizes on that")
    if old is not None:
        left = f", {plural(old.gpus - old.gpus_used, 'GPU')} idle" if old.gpus > old.gpus_used else ""
        shape = f"{old.weight_precision.upper()}, {old.replicas} x {layout(old)}{left}"
        yield Line(
            f"{old.gpus} x {old.gpu} ({shape}) serve at most {number(old.requests_per_s)} requests/s within the limits",
            "Replaced",
        )


def _shape(c: CompareCandidate) -> str:
    if c.pools is not None:
        return table_pools.shapes(c.pools)
    if c.replicas is None or c.tp is None:
        return "-"
    return f"{c.replicas:,} x {layout(c)}"


def _asked(document: Compare) -> Iterator[Line]:
    i, demand = document.inputs, document.demand
    yield Line(f"{i['model']}, KV cache {i['kv_precision']}", "Model")
    yield Line(f"{lengths(i)}; {i['engine_title']} {i['engine_version']}", "Workload")
    rate = f"{number(demand['requests_per_s'])} requests/s" if demand["requests_per_s"] is not None else ""
    in_flight = f"{demand['concurrency']:,} requests in flight" if demand["concurrency"] is not None else ""
    grown = f", {percent(i['headroom'])} headroom asked" if i["headroom"] else ""
    yield Line(f"{rate or in_flight}{grown}", "Demand")
    steps = steps_line(demand)
    if steps is not None:
        yield steps._replace(label=" ")
    limits = [
        f"{name.removesuffix('_ms').upper()} {limit['statistic']} <= {milliseconds(limit['ms'])}"
        for name, limit in i["limits"].items()
        if limit is not None
    ]
    yield Line(", ".join(limits) or "none", "Limits")


def _table(lines: Sequence[CompareCandidate], columns: Sequence[Column]) -> Block:
    """Return the columns that say anything of these candidates."""
    told = [(heading, right, [cell(line) for line in lines]) for heading, right, cell in columns]
    told = [column for column in told if any(cell != "-" for cell in column[2])]
    return Block(
        columns=tuple(heading for heading, _, _ in told),
        right=tuple(right for _, right, _ in told),
        rows=tuple(zip(*(cells for _, _, cells in told), strict=True)),
    )


def _sizes(document: Compare) -> Iterator[Column]:
    yield ("GPUs", True, lambda c: number(c.gpus))
    if document.replaces is not None:
        yield ("for each", True, lambda c: number(c.gpus_per_replaced_gpu))
    yield OF
    yield ("layout", False, _shape)
    yield ("$/h", True, lambda c: money(c.usd_per_hour) if c.usd_per_hour is not None or not c.feasible else NO_PRICE)
    yield ("headroom", True, lambda c: percent(c.headroom))
    yield ("limit", False, lambda c: c.limit if c.feasible else f"no: {c.limit}")


def _latencies(document: Compare) -> Iterator[Column]:
    yield OF
    for name in LATENCIES:
        yield (name.removesuffix("_ms").upper(), True, _mean(name))
        limit = document.inputs["limits"][name]
        if limit is not None and limit["statistic"] != "mean":
            yield (f"{limit['statistic']} {name.removesuffix('_ms').upper()}", True, _at_limit(name))


def _mean(name: str) -> Cell:
    return lambda c: milliseconds(getattr(c, name))


def _at_limit(name: str) -> Cell:
    def cell(c: CompareCandidate) -> str:
        limited = c.limited[name]
        return milliseconds(limited.ms if limited is not None else None)

    return cell


def _range(name: str) -> Cell:
    def cell(c: CompareCandidate) -> str:
        band = c.bands.get(name)
        return between(band.low, band.high, milliseconds) if band is not None else "-"

    return cell


_RANGES: tuple[Column, ...] = (
    OF,
    *((f"{name.removesuffix('_ms').upper()} range", False, _range(name)) for name in LATENCIES),
)
_RATES: tuple[Column, ...] = (
    OF,
    ("requests/s", True, lambda c: number(c.requests_per_s)),
    ("per GPU", True, lambda c: number(c.requests_per_s_per_gpu)),
    ("$/M output tokens", True, lambda c: rounded_usd(c.usd_per_million_output_tokens)),
    ("$/M tokens in all", True, lambda c: rounded_usd(c.usd_per_million_tokens)),
    ("W (TDP)", True, lambda c: number(c.power_w)),
    ("kWh/M output tokens", True, lambda c: number(c.kwh_per_million_output_tokens)),
)


def _is_biased(line: CompareCandidate) -> bool:
    """Tell whether a latency lies outside of its own band: those of its class are known to be off to one side."""
    values = ((getattr(line, name), line.bands.get(name)) for name in LATENCIES)
    return any(band is not None and not band.low <= value <= band.high for value, band in values)


def _beyond(line: CompareCandidate, limits: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Yield each mean latency whose range reaches beyond the limit on it, and whether all of the range is beyond."""
    for name in LATENCIES:
        limit, band = limits.get(name), line.bands.get(name)
        if limit is not None and band is not None and limit["statistic"] == "mean" and band.high > limit["ms"]:
            span = f"at {milliseconds(band.low)} to" if band.low > limit["ms"] else "up to"
            text = f"{name.removesuffix('_ms').upper()} {span} {milliseconds(band.high)}, limit {milliseconds(limit['ms'])}"
            yield text, band.low > limit["ms"]


def _notes(document: Compare) -> Iterator[Line]:
    """Yield why candidates fail, what the others rest on, and whether they were simulated."""
    failed = [line for line in document.candidates if not line.feasible]
    for index, line in enumerate(failed):
        reason = str(line.reason)  # of a layout, it names the GPU itself
        text = reason if reason.startswith(line.gpu) else f"{called(line)}: {reason}"
        yield Line(text, " " if index else "Not possible")
    served = [line for line in document.candidates if line.feasible]
    borrowed = [called(line) for line in served if line.borrowed_kernels]
    if borrowed:
        yield Line(f"with kernel efficiencies of other GPUs: {', '.join(borrowed)}", "Less sure")
    off = [called(line) for line in served if _is_biased(line)]
    if off:
        said = "predictions of this kind have been off to one side, by more than the range; --conservative"
        yield Line(f"{', '.join(off)}: {said}", "Out of range")
    for note in dict.fromkeys(note for line in served for note in line.notes):
        yield Line(note, "Precision")
    if document.replaces is not None:
        yield Line("GPUs that take the place of each one of those replaced", "for each")
    if any(line.verified for line in served):
        yield Line("every size above, by the engine's scheduler", "Simulated")
    elif served:
        yield Line("no: latencies are the closed form's (--no-verify)", "Simulated")
    if any(line.disaggregated for line in document.candidates):
        yield Line(
            "prefill and decode on GPUs of their own, of one GPU type unless --disaggregate prefill=GPU,decode=GPU names two; "
            "no error band",
            "Pools",
        )
    if served:
        yield Line("llmsize estimate -g GPU --precision WEIGHTS gives each in full", "More")
