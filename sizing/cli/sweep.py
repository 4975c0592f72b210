"""`llmsize sweep`: an estimate for every combination of varied inputs, as a stream of rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import FORMAT_OPTIONS, WorkloadName, takes
from sizing.question.options import (
    QUESTION_OPTIONS,
    WORKLOAD_OPTIONS,
    GivenOptions,
    group,
    option_table,
    options_of,
    with_help,
)
from sizing.specs.errors import Fault, InputError, Part, check, raise_any

if TYPE_CHECKING:  # loaded only to run a sweep
    from sizing.answers.sweep import Axis, Searches
    from sizing.catalog.shelf import Found
    from sizing.question.question import Question
    from sizing.report.sweep import Percentile, Sweep, SweepRow
    from sizing.specs.workload import Workload

OWN_OPTIONS = option_table("sweep")
ROW_FORMATS = with_help(FORMAT_OPTIONS, "sweep")
AT_ONCE = 512  # combinations in a task of a process; a slow combination is a task of its own
LENGTHS = ("isl", "osl")
SHORT = 2  # stand-in for a varied length in tokens: long enough to decode
SHARD = re.compile(r"(\d{1,9})/(\d{1,9})", re.ASCII)
NEEDED = ("model", *LENGTHS)  # inputs that every question needs
FEW = 64  # so few combinations take less time than starting another process


class SweepOptions(NamedTuple):
    """The options of the command itself, and separate pools, whose rows take long."""

    vary: list[str] | None
    verify: bool | None
    jobs: int | None
    shard: str | None
    dask: str | None
    disaggregate: str | None


@takes((*OWN_OPTIONS, *QUESTION_OPTIONS, *ROW_FORMATS))
def command(given: GivenOptions, workload: WorkloadName = None) -> int:
    """Estimate every combination of the inputs that vary.

    Rows are in order; the last input changes fastest. A combination that cannot be served has a row with the reason.

    With --disaggregate the rows show the separate pools.

    Exit codes: 0 at least one combination is feasible, 1 none is, 2 bad input.
    """
    return 0 if _written(_request(workload, given)) else 1


def _written(sweep: SweepRequest) -> int:
    """Write all rows, and return the number of feasible rows. CSV and JSON lines are written as they come."""
    from sizing.cli.output import print_text, write
    from sizing.formats.tables import csv_lines, json_line
    from sizing.report.sweep import SCHEMA, cells, columns, document, flat

    streams = {
        "csv": lambda rows: csv_lines(map(cells, rows)),
        "jsonl": lambda rows: "\n".join(json_line({"schema": SCHEMA, **flat(row)}) for row in rows),
    }
    stream = streams.get(sweep.format)
    names = (axis.name for axis in sweep.axes)
    head = csv_lines([columns(names, sweep.percentiles)]) if sweep.format == "csv" else None
    feasible = 0
    kept: list[SweepRow] = []
    for rows in _rows(sweep, streams=stream is not None):
        feasible += sum(row.feasible for row in rows)
        if head is not None:  # not before there is a row: a cluster may not answer
            print_text(head)
            head = None
        if stream is not None:
            print_text(stream(rows))
        else:
            kept += rows
    if stream is None:
        write(document(_record(sweep, kept)), sweep.format)
    return feasible


class SweepPart(NamedTuple):
    """Part number `part`, counted from 1, of `parts` equal parts of a sweep."""

    part: int
    parts: int

    def numbers(self, total: int) -> range:
        """The numbers of its combinations out of `total`. All parts together have each number once, in order."""
        return range((self.part - 1) * total // self.parts, self.part * total // self.parts)


class SweepRequest(NamedTuple):
    """The combinations of a sweep, with its own options, the part to answer, and the form of the output.

    Rows have the `percentiles` that limits name.
    """

    workload: Found[Workload] | None
    given: GivenOptions
    own: SweepOptions
    axes: tuple[Axis, ...]
    format: str
    part: SweepPart
    percentiles: tuple[Percentile, ...] = ()

    @property
    def verified(self) -> bool:
        """Whether the answers are simulated."""
        return bool(self.own.verify)

    @property
    def slow(self) -> bool:
        """Whether rows are slow, because they are simulated or have separate pools."""
        stated = self.workload is not None and self.workload.spec.optimisations.disaggregate is not None
        return self.verified or stated or self.own.disaggregate is not None


class Resolver:
    """Resolves combinations; it looks up each name only once."""

    def __init__(self, workload: Found[Workload] | None, axes: Sequence[Axis]) -> None:
        """Read the data that all combinations share. Faults name varied inputs by their axis."""
        from sizing.cli.axes import field_of
        from sizing.question.names import FILES, Catalog

        varied = {axis.name for axis in axes}
        options = (o._replace(flags=(field_of(o),)) if o.name in varied else o for o in QUESTION_OPTIONS)
        self.workload, self.options = workload, tuple(options)
        self.catalog = Catalog(cache(FILES.model), cache(FILES.gpu), cache(FILES.engine))

    def question(self, given: GivenOptions, *, as_predicted: bool = False) -> Question:
        """The question of the options: for their confidence, or as predicted. Raises InputError for wrong values."""
        from sizing.question.ask import question_of, with_confidence
        from sizing.question.options import check_rules, of_kind

        named = given._replace(fields=self.options)
        options = options_of(named)
        found = question_of(self.workload, options, catalog=self.catalog, pooled=True)
        check_rules(of_kind(found, rows=True), named)
        return found if as_predicted else with_confidence(found, options)

    def asked(self, given: GivenOptions) -> Part[Question]:
        """The question of the options to size, or its faults."""
        return Part(lambda: self.question(given))


@dataclass
class Combinations:
    """The work of one process, which answers combinations by number and keeps its look-ups and tables."""

    sweep: SweepRequest
    resolver: Resolver | None = None
    searches: Searches | None = None

    def __call__(self, numbers: range) -> list[SweepRow]:
        """The rows of the combinations `numbers`."""
        from sizing.answers.sweep import Searches, combination
        from sizing.report import sweep as report

        if self.resolver is None or self.searches is None:
            self.resolver = Resolver(self.sweep.workload, self.sweep.axes)
            self.searches = Searches()
        every = [combination(self.sweep.axes, number) for number in numbers]
        asked = [self.resolver.asked(self.sweep.given.with_(**varied)) for varied in every]
        questions = [each.value for each in asked if not each.faults]
        outcomes = iter(self.searches.answers(questions, simulated=self.sweep.verified))
        named = self.sweep.percentiles
        return [
            report.row_of_faults(varied, InputError(each.faults), named)
            if each.faults
            else report.row(varied, next(outcomes), named)
            for varied, each in zip(every, asked, strict=True)
        ]


def _request(workload: str | None, given: GivenOptions) -> SweepRequest:
    """Resolve the sweep. Raises InputError for faults of the options, not for faults of a combination."""
    from sizing.answers.sweep import size
    from sizing.cli import axes as reading
    from sizing.cli.output import FORMATS, chosen_format
    from sizing.question.names import FILES, workload_at
    from sizing.report.sweep import percentiles

    own, output = given.read(SweepOptions), Part(lambda: chosen_format(given, (*FORMATS, "jsonl")))
    found = Part(lambda: None if workload is None else workload_at(workload))
    axes = Part(lambda: reading.read(own.vary or (), WORKLOAD_OPTIONS, given.without_settings(), FILES))
    part = Part(lambda: _part(own.shard))
    check(output, found, axes, part)
    if any(axis.name in group("OF_DEMAND") for axis in axes.value):
        given = given.without_settings(group("OF_DEMAND"))
    if part.value.parts > (total := size(axes.value)):
        message = f"makes empty parts of {total:,} rows"
        raise InputError(message, field="--shard", allowed=f"at most {total:,} parts")
    if own.dask is not None and own.jobs is not None:
        raise InputError("has no effect: the cluster's workers compute the rows", field="--jobs with --dask")
    raise_any(_always_wrong(Resolver(found.value, axes.value), axes.value, given))
    sweep = SweepRequest(found.value, given, own, axes.value, output.value, part.value)
    return sweep._replace(percentiles=percentiles(_each_varied(sweep)))


def _part(text: str | None) -> SweepPart:
    """The part that K/N names; the whole sweep without a text. Raises InputError for an invalid text."""
    if text is None:
        return SweepPart(1, 1)
    stated = SHARD.fullmatch(text.strip())
    found = SweepPart(*map(int, stated.groups())) if stated else SweepPart(0, 0)
    if not 1 <= found.part <= found.parts:
        raise InputError(f"{text!r} is no part", field="--shard", allowed="K/N with K from 1 to N, as 3/16")
    return found


def _always_wrong(resolver: Resolver, axes: Sequence[Axis], given: GivenOptions) -> list[Fault]:
    """The faults common to all combinations: faults of the first combination that remain without the varied values.

    Other inputs can be checked only with lengths and a model, so harmless stand-ins replace varied lengths and models.
    """
    from sizing.answers.sweep import combination

    combined = combination(axes, 0)
    first = set(map(str, resolver.asked(given.with_(**combined)).faults))
    stand_in = {name: SHORT if name in LENGTHS else combined[name] for name in NEEDED if name in combined}
    return [fault for fault in resolver.asked(given.with_(**stand_in)).faults if str(fault) in first] if first else []


def _rows(sweep: SweepRequest, *, streams: bool) -> Iterator[list[SweepRow]]:
    """Yield the rows in the order of the combinations, in batches."""
    from sizing.answers.sweep import size
    from sizing.cli.output import Bar
    from sizing.cli.workers import collect, cores, on_cluster, ordered

    numbers, jobs = sweep.part.numbers(size(sweep.axes)), sweep.own.jobs or cores()
    total = len(numbers)
    each = 1 if sweep.slow else max(FEW, min(AT_ONCE, total // (2 * jobs)))
    tasks = (numbers[start : start + each] for start in range(0, total, each))
    here = min(jobs, -(-total // each)) if total > (1 if sweep.slow else FEW) else 1
    dask, work, done = sweep.own.dask, Combinations(sweep), 0
    if here == 1 and dask is None:
        collect()
    found = ordered(work, tasks, here) if dask is None else on_cluster(work, tasks, dask)
    hidden = streams and sys.stdout.isatty()  # a bar would mix with the rows
    with Bar("Sweeping", total) as bar:
        for rows in found:
            done += len(rows)
            yield rows
            if not hidden:
                bar(done)


def _record(sweep: SweepRequest, rows: Sequence[SweepRow]) -> Sweep:
    from sizing.report import sweep as report

    questions = list(_each_varied(sweep))
    varied = {axis.name: axis.values for axis in sweep.axes}
    shard = sweep.own.shard and f"{sweep.part.part}/{sweep.part.parts}"
    return report.record(rows, varied, questions, verified=sweep.verified, shard=shard)


def _each_varied(sweep: SweepRequest) -> Iterator[Question]:
    """Yield the first combination, then variants of it with each other value of one input (for numbers, only the last)."""
    resolver = Resolver(sweep.workload, sweep.axes)
    first = {axis.name: axis.values[0] for axis in sweep.axes}
    others = {axis.name: axis.values[1 if isinstance(axis.values[0], str) else -1 :] for axis in sweep.axes}
    changed = ({**first, name: value} for name, values in others.items() for value in values)
    for varied in (first, *changed):
        with suppress(InputError):
            yield resolver.question(sweep.given.with_(**varied), as_predicted=True)
