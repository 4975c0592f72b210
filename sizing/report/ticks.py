"""`llmsize simulate --ticks`: figures and timelines of the teaching simulator for each policy. It has no model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

from sizing.engine.ticks import DECODE, EMPTY, PREFILL, TickFigures, TickResult, TickStep
from sizing.formats.view import (
    Bars,
    Document,
    Facts,
    Figure,
    Line,
    Mark,
    Prose,
    Quantity,
    Rows,
    Section,
    Series,
    Table,
    in_words,
    rows_of,
)
from sizing.formats.words import percent, stated
from sizing.report.parts.sentences import line
from sizing.report.parts.traffic import latencies

NOTES = (
    "Mean TTFT of requests with a first token, mean E2E of those done, in ticks",
    "Rates in 1,000 ticks; wasted: slots empty while requests waited",
)
MARKS = {PREFILL: "p", DECODE: "d", EMPTY: "."}
STATES = {PREFILL: "prefill", DECODE: "decode", EMPTY: "empty"}
LEGEND = "p prefill, d decode, . empty; one character a tick"
BAND_TICKS = 50  # a band with its label fits the narrowest terminal
MOST_TICKS = 4 * BAND_TICKS
MOST_SLOTS = 16
MOST_APART = 400  # steps that a picture of the slots shows one by one


class TickRun(NamedTuple):
    """One run of the teaching simulator; `timeline` has one text for each slot, one character for each tick."""

    policy: str
    figures: TickFigures
    timeline: tuple[str, ...] | None


class TickInputs(NamedTuple):
    """The runs in ticks: the policies, the engine, and one load up to a limit.

    Batches are those of dynamic batching alone. `osl_drawn_mean` is null where all outputs are equal.
    """

    clock: str
    policies: tuple[str, ...]
    slots: int
    prefill: float
    prefill_chunks: int
    itl: float
    osl_mean: float
    osl_std: float
    requests: int | None
    concurrency: int | None
    rate: float | None
    seed: int
    limit: float | None
    batch_size: int | None
    batch_window: float | None
    osl_drawn_mean: float | None = None


class TickReport(NamedTuple):
    """The record of `llmsize simulate --ticks`: a run for each policy."""

    inputs: TickInputs
    runs: tuple[TickRun, ...]
    schema: str = "llmsize.simulation/1"


def record(inputs: TickInputs, results: Mapping[str, TickResult]) -> TickReport:
    """The record of runs in ticks by policy.

    All policies draw the same lengths in the order of arrival. The mean length is taken from the run with the most arrivals.
    """
    osl = max((result.requests.osl for result in results.values()), key=len)
    drawn = sum(osl) / len(osl) if osl and inputs.osl_std else None
    runs = (TickRun(policy, result.figures, slot_rows(result.timeline)) for policy, result in results.items())
    return TickReport(inputs._replace(osl_drawn_mean=drawn), tuple(runs))


def rows(record: TickReport) -> Rows:
    """One row for each policy, without its timeline."""
    return rows_of(record.runs, ("policy", *TickFigures._fields))


SPARE = ("requests/1k", "wasted", "queued at end")
COLUMNS = (
    in_words("policy", "policy"),
    Quantity("completed", "done", "{:,}".format),
    Quantity("end_tick", "end", lambda tick: stated(tick, 12)),
    *(Quantity(f"mean_{name}", name.upper(), "{:,.2f}".format, shown="always") for name in ("ttft", "e2e", "itl")),
    Quantity("requests_per_1k_ticks", "requests/1k", "{:,.1f}".format),
    Quantity("queue_end", "queued at end", "{:,}".format),
    Quantity("gpu_utilisation", "busy", percent),
    Quantity("wasted_slot_share", "wasted", percent),
)


def sections(record: TickReport) -> Iterator[Section]:
    """Yield latencies and rates by policy, the question, and each timeline that is short enough."""
    yield Table(COLUMNS, record.runs, "/runs", notes=NOTES, spare=SPARE)
    yield Facts(tuple(_asked(record.inputs)))
    drawn = [run for run in record.runs if run.timeline]
    for run in drawn:
        yield Prose(tuple(map(Line, bands(run.timeline or ()))), run.policy if len(record.runs) > 1 else "")
    yield Prose((Line(LEGEND if drawn else "The timeline is too long for text; --plot FILE draws it", style="dim"),))


def _asked(i: TickInputs) -> Iterator[Line]:
    chunks = i.prefill_chunks if i.prefill_chunks > 1 else None
    yield line("ticks of engine", i, chunks=chunks, short=i.prefill < i.prefill_chunks)
    yield line("ticks of load", i)


def slot_rows(timeline: Sequence[TickStep]) -> tuple[str, ...] | None:
    """One text for each slot, or None for too many ticks or slots. The mark of a tick is the step at its start."""
    if not timeline:
        return None
    ticks, slots = math.ceil(timeline[-1].end), len(timeline[0].states)
    if ticks > MOST_TICKS or slots > MOST_SLOTS:
        return None
    marks = [[MARKS[EMPTY]] * ticks for _ in range(slots)]
    for step in timeline:
        for tick in range(math.ceil(step.start), math.ceil(step.end)):
            for slot, state in enumerate(step.states):
                marks[slot][tick] = MARKS[state]
    return tuple("".join(row) for row in marks)


def bands(rows: Sequence[str]) -> Iterator[str]:
    """The lines of a timeline, folded into bands of `BAND_TICKS`. A scale of ticks stands above each band."""
    label = len(f"slot {len(rows)}")
    for start in range(0, len(rows[0]), BAND_TICKS):
        ticks = range(start, min(len(rows[0]), start + BAND_TICKS), 10)
        yield f"{'tick':<{label}} {''.join(f'{tick:<10}' for tick in ticks)}".rstrip()
        for slot, row in enumerate(rows, start=1):
            yield f"{f'slot {slot}':<{label}} {row[start : start + BAND_TICKS]}"


def figures(results: Mapping[str, TickResult]) -> Iterator[Figure]:
    """Yield two figures for each policy: the slots with steps of their real duration, and the latencies with the queue."""
    for policy, result in results.items():
        timeline, found = result.timeline, result.figures
        span = (0, max(found.end_tick, 1))
        slots = range(len(timeline[0].states) if timeline else 0)
        apart = len(timeline) <= MOST_APART
        bars = [
            Bars(name, tuple(tuple(_spans(timeline, slot, state, apart=apart)) for slot in slots), apart)
            for state, name in STATES.items()
        ]
        title = f"{policy}: {found.completed:,} of {found.arrived:,} requests by tick {found.end_tick:,g}"
        yield Figure("", "slot", logarithmic="", title=title, span=span, bars=tuple(bars))
        marks = [Mark(step.start, step.queue) for step in timeline]
        marks += [Mark(step.end, step.queue) for step in timeline[-1:]]
        queue = (Series("queue size", tuple(marks), 6, look="steps"),)
        waiting = Figure("", "queue size (requests)", queue, logarithmic="", span=span)
        measured = tuple(latencies(result.requests, found.end_tick))
        yield Figure("ticks", "TTFT, E2E (ticks)", measured, logarithmic="", span=span, right=waiting)


def _spans(timeline: Sequence[TickStep], slot: int, state: str, *, apart: bool) -> Iterator[tuple[float, float]]:
    """Yield (start, width) of a slot's steps in a state; neighbours are joined unless `apart`."""
    for _, found in groupby(timeline, lambda step: (step.states[slot], apart and step.start)):
        steps = list(found)
        if steps[0].states[slot] == state:
            yield steps[0].start, steps[-1].end - steps[0].start


document = partial(Document, sections=sections, rows=rows)
