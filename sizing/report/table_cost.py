"""`llmsize cost` for the terminal: the answer in words, the ways to serve side by side, break-even, energy, then sources."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import number, percent, plural, rounded_usd
from sizing.planning.bill import BreakEven, Energy
from sizing.planning.offers import CostOption
from sizing.planning.usage import ByLoad, LoadKind
from sizing.report.cost import FULL_USE, LOADS, CostReport
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.layouts import layout

DIGITS = 2  # of a break-even, which rests on a predicted rate
KWH_PER_MWH = 1000
CENT, LEAST_SHARE = 0.01, 0.005  # below them a part, or a share in whole per cent, would read as nothing
COLUMNS: dict[LoadKind, str] = {"mean_load": "mean load", "stated_demand": "stated demand", "as_sized": "as sized"}


def blocks(document: CostReport) -> Iterator[Block]:
    """Yield the blocks of a cost report."""
    if not document.options:
        yield Block((Line("Infeasible: no cost, as no layout meets the demand within the limits", style="bold"),))
        helps = document.suggestions or ("no single change that was tried makes it feasible",)
        lines = [Line(text, "Nearest" if index == 0 else " ") for index, text in enumerate(document.problems)]
        lines += [Line(text, "What would help" if index == 0 else " ") for index, text in enumerate(helps)]
        yield Block(tuple(lines))
        return
    yield Block(tuple(_answer(document)))
    yield _years(document)
    yield _tokens(document)
    yield Block(tuple(_notes(document)))
    yield Block(tuple(line for pair in document.break_even for line in _break_even(pair)))
    if document.energy is not None:
        yield Block(tuple(_energy(document.energy, _at(document), decodes=document.inputs["osl"] > 1)))
    yield Block(tuple(_prices(document)))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _answer(document: CostReport) -> Iterator[Line]:
    top, run = document.options[0], document.deployments[0]
    usd = document.usd_per_1k_requests
    assert usd is not None
    each = f"{rounded_usd(usd.at_load)} per 1,000 requests at {_at(document)}"
    if usd.full_use != usd.at_load:
        each += f", {rounded_usd(usd.full_use)} at full use of all GPUs paid for"
    yield Line(f"{_units(top)}: {rounded_usd(top.usd_per_year)} a year; {each}", style="bold")
    shape = layout(run)
    checked = {True: "confirmed by simulation", False: "not confirmed", None: "not simulated"}[document.verified]
    yield Line(
        f"{run.gpus:,} x {run.gpu} = {plural(run.replicas, 'replica')} x {shape} serve {document.inputs['model']} "
        f"({checked}, as by llmsize estimate)",
        "Sized",
    )
    yield Line(_loads(document), "Load")
    if document.demand is not None:
        yield Line(document.demand, "Demand")
    if len(document.options) > 1:
        least = min(document.options, key=lambda option: option.usd_per_1k_requests.at_load)
        each = f"{rounded_usd(least.usd_per_1k_requests.at_load)} per 1,000 requests"
        yield Line(f"{least.name}, {rounded_usd(least.usd_per_year)} a year, {each} at {_at(document)}", "Cheapest")
    for problem in document.problems:
        yield Line(problem, "Without")
    band = document.bands.get(FULL_USE)
    if band is not None:
        yield Line(
            f"{rounded_usd(band.low)} to {rounded_usd(band.high)} per 1,000 requests at full use, where 8 in 10 of "
            f"{band.n:,} published measurements put it",
            "Error band",
        )
    off = _off(document)
    if off:
        yield Line(
            f"{', '.join(off)}: predictions of this kind have been off to one side, by more than the range; --conservative "
            "sizes on their worse edges",
            "Outside it",
        )


def _off(document: CostReport) -> list[str]:
    """Return the types of GPU whose cost at full use lies outside its own band, and to which side measurements put it."""
    found: dict[str, None] = {}
    for index, option in enumerate(document.options):
        band, usd = document.bands.get(f"options.{index}.{FULL_USE}"), option.usd_per_1k_requests.full_use
        if band is not None and not band.low <= usd <= band.high:
            found[f"{option.gpu} ({'dearer' if usd < band.low else 'cheaper'} as measured)"] = None
    return list(found)


def _units(option: CostOption) -> str:
    if option.units is None:
        return option.name
    if option.kind == "own":
        return f"{option.name}: {plural(option.units, 'server')} of {plural(option.gpus_per_unit or 0, 'GPU')}"
    return f"{option.name}: {plural(option.gpus or 0, 'GPU')}"


def _loads(document: CostReport) -> str:
    full = f"full use {number(document.full_use_requests_per_s)} requests/s of the replicas sized"
    if document.load == "as_sized":
        return f"{full}, around the clock: no demand is given"
    if document.load == "stated_demand":
        return (
            f"{_rates(document)} requests/s, {LOADS['stated_demand']}; nothing says how far the mean is below it "
            "(--active-hours and --peak-to-mean, or --profile), so this is the most that the load can be, which favours "
            f"owned and rented GPUs over an API; {full}"
        )
    return (
        f"mean {_rates(document)} requests/s, {number(document.sized_to_mean)} x lower than sized for; {full}; "
        "at full use all GPUs paid for serve, around the clock"
    )


def _rates(document: CostReport) -> str:
    """Write the load, that of each type of GPU where they differ: requests in flight come back as fast as they are answered."""
    rates = {option.gpu: number(option.load_requests_per_s) for option in document.options if option.gpu is not None}
    if len(set(rates.values())) < 2:
        return number(document.load_requests_per_s)
    return ", ".join(f"{rate} ({gpu})" for gpu, rate in rates.items())


def _at(document: CostReport) -> str:
    return LOADS[document.load or "mean_load"]


def _years(document: CostReport) -> Block:
    """What each way costs, an hour to a year at the load of the figures, and per 1,000 requests at both."""
    rows = tuple(
        (
            option.name,
            _count(option),
            *map(rounded_usd, (option.usd_per_hour, option.usd_per_month, option.usd_per_year)),
            *map(rounded_usd, option.usd_per_1k_requests),
        )
        for option in document.options
    )
    here = COLUMNS[document.load or "mean_load"]
    columns = (f"at {_at(document)}", "GPUs", "$/h", "$/month", "$/year", "per 1,000 full use", f"per 1,000 {here}")
    return _kept(columns, rows)


def _count(option: CostOption) -> str:
    if option.units is None or option.gpus_per_unit is None:
        return "-"
    return f"{option.gpus:,}" if option.gpus_per_unit == 1 else f"{option.units:,} x {option.gpus_per_unit}"


def _tokens(document: CostReport) -> Block:
    """$ per million tokens, at full use and at the load."""
    here = COLUMNS[document.load or "mean_load"]
    rows = tuple(
        (
            option.name,
            *(
                text
                for loads in option.usd_per_million_tokens[:3]
                for text in (rounded_usd(loads.full_use), rounded_usd(loads.at_load))
            ),
        )
        for option in document.options
    )
    columns = ("per million tokens", "input full use", here, "output full use", here, "total full use", here)
    return _kept(columns, rows)._replace(lines=(Line(f"Input and output: {document.split}", style="dim"),))


def _kept(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> Block:
    """Return columns that say something: an API has no GPUs to count."""
    kept = [i for i in range(len(columns)) if any(row[i] != "-" for row in rows)]
    return Block(
        columns=tuple(columns[i] for i in kept),
        right=tuple(i > 0 for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in rows),
    )


def _notes(document: CostReport) -> Iterator[Line]:
    """What the own servers' cost is made of, how busy GPUs are, and what was noted of an offer."""
    for option in document.options:
        parts = option.parts_usd_per_year
        if parts is not None:
            told = [f"{name} {rounded_usd(usd)}" for name, usd in parts._asdict().items() if usd >= CENT]
            yield Line(
                f"{option.name} a year: {', '.join(told) or 'nothing'}; to buy {rounded_usd(option.upfront_usd)}",
                "Made of",
            )
    busy = [
        f"{option.name} {_share(option.utilisation_at_load)}"
        for option in document.options
        if option.utilisation_at_load is not None and not option.follows_load
    ]
    if busy:
        yield Line(f"share of full use at {_at(document)}: {', '.join(busy)}", "Busy")
    notes = dict.fromkeys(note for option in document.options if option.note for note in option.note.split("; "))
    for index, note in enumerate(notes):
        yield Line(note, "Note" if index == 0 else " ")


def _share(share: float) -> str:
    return "below 1 %" if 0 < share < LEAST_SHARE else percent(share)


def _prices(document: CostReport) -> Iterator[Line]:
    """Whose prices these are, and from when."""
    for option in document.options:
        if option.kind == "api" or not option.follows_load:
            date = f", {option.date}" if option.date not in option.source else ""
            yield Line(f"{option.name}: {option.source}{date}", "Price", style="dim")


def _break_even(pair: BreakEven) -> Iterator[Line]:
    against = f"{pair.one} against {pair.other}"
    first = pair.first_requests_per_day
    if not pair.requests_per_day:
        text = f"{against}: {pair.reason}"
        if pair.requests_per_day is None and first:
            text += f" (first at {number(first, DIGITS)} requests a day)"
    else:
        text = f"{against}: cheaper from {number(pair.requests_per_day, DIGITS)} requests a day on"
        if first is not None and first < pair.requests_per_day:
            text += f" (first at {number(first, DIGITS)}; in between whole units decide)"
    if pair.months is not None and pair.months_reason is None:
        text += f"; bought, it has paid after {number(pair.months, DIGITS)} months at this load"
    elif pair.months is not None:
        text += f"; bought, it has not paid at this load within {pair.months_reason}"
    yield Line(text, "Break-even")


def _energy(energy: Energy, at: str, *, decodes: bool) -> Iterator[Line]:
    def both(loads: ByLoad, unit: str) -> str:
        return f"{number(loads.full_use)} {unit} at full use, {number(loads.at_load)} at {at}"

    a_year = energy.kwh_per_year
    tokens = both(energy.kwh_per_million_tokens, "kWh per million tokens")
    if decodes:
        tokens = both(energy.kwh_per_million_output_tokens, "kWh per million output tokens")
    megawatt_hours = ByLoad(a_year.full_use / KWH_PER_MWH, a_year.at_load / KWH_PER_MWH)
    yield Line(
        f"{energy.of}: {tokens}; {both(megawatt_hours, 'MWh a year')}; PUE {energy.pue:g}",
        "Energy",
    )
