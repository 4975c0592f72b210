"""`llmsize sweep`: an estimate for every combination of varied inputs, as a stream of rows."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.cli.estimate import to_size
from sizing.cli.options import FORMAT_OPTIONS, WorkloadName, takes
from sizing.question.options import (
    QUESTION_OPTIONS,
    WORKLOAD_OPTIONS,
    Field,
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


@takes((*OWN_OPTIONS, *QUESTION_OPTIONS, *ROW_FORMATS))
def command(workload: WorkloadName = None, **values: Any) -> int:
    """Estimate every combination of the inputs that vary.

    Rows are in order; the last input changes fastest. A combination that cannot be served has a row with the reason.

    With --disaggregate the rows show the separate pools.

    Exit codes: 0 at least one combination is feasible, 1 none is, 2 bad input.
    """
    return 0 if _written(_ask(workload, values)) else 1


def _written(sweeping: Sweeping) -> int:
    """Write all rows, and return the number of feasible rows. CSV and JSON lines are written as they come."""
    from sizing.cli.output import print_text, write
    from sizing.formats.tables import csv_lines, json_line
    from sizing.report.sweep import SCHEMA, cells, columns, document, flat

    streams = {
        "csv": lambda rows: csv_lines(map(cells, rows)),
        "jsonl": lambda rows: "\n".join(json_line({"schema": SCHEMA, **flat(row)}) for row in rows),
    }
    stream = streams.get(sweeping.format)
    head = (
        csv_lines([columns((axis.name for axis in sweeping.axes), sweeping.percentiles)])
        if sweeping.format == "csv"
        else None
    )
    feasible = 0
    kept: list[SweepRow] = []
    for rows in _rows(sweeping, streams=stream is not None):
        feasible += sum(row.feasible for row in rows)
        if head is not None:  # not before there is a row: a cluster may not answer
            print_text(head)
            head = None
        if stream is not None:
            print_text(stream(rows))
        else:
            kept += rows
    if stream is None:
        write(document(_record(sweeping, kept)), sweeping.format)
    return feasible


class SweepPart(NamedTuple):
    """Part number `part`, counted from 1, of `parts` equal parts of a sweep."""

    part: int
    parts: int

    def numbers(self, total: int) -> range:
        """The numbers of its combinations out of `total`. All parts together have each number once, in order."""
        return range((self.part - 1) * total // self.parts, self.part * total // self.parts)


class Sweeping(NamedTuple):
    """The combinations of a sweep, the part to answer, the processes or cluster to use, and the form of the output.

    Rows have the `percentiles` that limits name.
    """

    workload: Found[Workload] | None
    values: Mapping[str, Any]
    axes: tuple[Axis, ...]
    verified: bool
    format: str
    jobs: int
    shard: SweepPart
    dask: str | None
    percentiles: tuple[Percentile, ...] = ()

    @property
    def slow(self) -> bool:
        """Whether rows are slow, because they are simulated or have separate pools."""
        stated = self.workload is not None and self.workload.spec.optimisations.disaggregate is not None
        return self.verified or stated or self.values["disaggregate"] is not None


class Resolver:
    """Resolves combinations; it looks up each name only once."""

    def __init__(self, workload: Found[Workload] | None, options: tuple[Field, ...]) -> None:
        """Read the data that all combinations share."""
        from sizing.question.names import FILES, Catalog

        self.workload, self.options = workload, options
        self.catalog = Catalog(cache(FILES.model), cache(FILES.gpu), cache(FILES.engine))

    def question(self, values: Mapping[str, Any]) -> Question:
        """The question of `values`. Raises InputError for wrong values."""
        from sizing.question.ask import question_of
        from sizing.question.options import check_rules, of_kind

        options = options_of(self.options, values)
        found = question_of(self.workload, options, catalog=self.catalog, pooled=True)
        check_rules(of_kind(found, rows=True), self.options, values)
        return found

    def asked(self, values: Mapping[str, Any]) -> Part[Question]:
        """The question of `values` to size, or its faults."""
        return Part(lambda: to_size(self.question(values), values))


@dataclass
class Combinations:
    """The work of one process, which answers combinations by number and keeps its look-ups and tables."""

    asking: Sweeping
    resolver: Resolver | None = None
    searches: Searches | None = None

    def __call__(self, numbers: range) -> list[SweepRow]:
        """The rows of the combinations `numbers`."""
        from sizing.answers.sweep import Searches, combination
        from sizing.report import sweep as report

        if self.resolver is None or self.searches is None:
            self.resolver = _resolver(self.asking.workload, self.asking.axes)
            self.searches = Searches()
        every = [combination(self.asking.axes, number) for number in numbers]
        asked = [self.resolver.asked({**self.asking.values, **varied}) for varied in every]
        questions = [each.value for each in asked if not each.faults]
        outcomes = iter(self.searches.answers(questions, simulated=self.asking.verified))
        named = self.asking.percentiles
        return [
            report.row_of_faults(varied, InputError(each.faults), named)
            if each.faults
            else report.row(varied, next(outcomes), named)
            for varied, each in zip(every, asked, strict=True)
        ]


def _ask(workload: str | None, values: Mapping[str, Any]) -> Sweeping:
    """Resolve the sweep. Raises InputError for faults of the options, not for faults of a combination."""
    from sizing.answers.sweep import size
    from sizing.cli import axes as reading
    from sizing.cli.output import FORMATS, chosen_format
    from sizing.cli.workers import cores
    from sizing.question.configuration import without_settings
    from sizing.question.names import FILES, workload_at
    from sizing.report.sweep import percentiles

    output = Part(lambda: chosen_format(values, (*FORMATS, "jsonl")))
    found = Part(lambda: None if workload is None else workload_at(workload))
    axes = Part(lambda: reading.read(values["vary"] or (), WORKLOAD_OPTIONS, without_settings(values), FILES))
    shard = Part(lambda: _shard(values["shard"]))
    check(output, found, axes, shard)
    if any(axis.name in group("OF_DEMAND") for axis in axes.value):
        values = without_settings(values, group("OF_DEMAND"))
    if shard.value.parts > (total := size(axes.value)):
        message = f"makes empty parts of {total:,} rows"
        raise InputError(message, field="--shard", allowed=f"at most {total:,} parts")
    if values["dask"] is not None and values["jobs"] is not None:
        raise InputError("has no effect: the cluster's workers compute the rows", field="--jobs with --dask")
    raise_any(_always_wrong(_resolver(found.value, axes.value), axes.value, values))
    how = (bool(values["verify"]), output.value, values["jobs"] or cores(), shard.value, values["dask"])
    asking = Sweeping(found.value, values, axes.value, *how)
    return asking._replace(percentiles=percentiles(_each_varied(asking)))


def _shard(text: str | None) -> SweepPart:
    """The part that K/N names; the whole sweep without a text. Raises InputError for an invalid text."""
    if text is None:
        return SweepPart(1, 1)
    stated = SHARD.fullmatch(text.strip())
    shard = SweepPart(*map(int, stated.groups())) if stated else SweepPart(0, 0)
    if not 1 <= shard.part <= shard.parts:
        raise InputError(f"{text!r} is no part", field="--shard", allowed="K/N with K from 1 to N, as 3/16")
    return shard


def _resolver(workload: Found[Workload] | None, axes: Sequence[Axis]) -> Resolver:
    """A resolver whose faults name varied inputs by their axis."""
    from sizing.cli import axes as reading

    varied = {axis.name for axis in axes}
    options = (o._replace(flags=(reading.field_of(o),)) if o.name in varied else o for o in QUESTION_OPTIONS)
    return Resolver(workload, tuple(options))


def _always_wrong(resolver: Resolver, axes: Sequence[Axis], values: Mapping[str, Any]) -> list[Fault]:
    """The faults common to all combinations: faults of the first combination that remain without the varied values.

    Other inputs can be checked only with lengths and a model, so harmless stand-ins replace varied lengths and models.
    """
    from sizing.answers.sweep import combination

    combined = combination(axes, 0)
    first = set(map(str, resolver.asked({**values, **combined}).faults))
    stand_in = {name: SHORT if name in LENGTHS else combined[name] for name in NEEDED if name in combined}
    return [fault for fault in resolver.asked({**values, **stand_in}).faults if str(fault) in first] if first else []


def _rows(asking: Sweeping, *, streams: bool) -> Iterator[list[SweepRow]]:
    """Yield the rows in the order of the combinations, in batches."""
    from sizing.answers.sweep import size
    from sizing.cli.output import Bar
    from sizing.cli.workers import collect, on_cluster, ordered

    numbers = asking.shard.numbers(size(asking.axes))
    total = len(numbers)
    each = 1 if asking.slow else max(FEW, min(AT_ONCE, total // (2 * asking.jobs)))
    tasks = (numbers[start : start + each] for start in range(0, total, each))
    jobs = asking.jobs if total > (1 if asking.slow else FEW) else 1
    if jobs == 1 and asking.dask is None:
        collect()
    work, done = Combinations(asking), 0
    here = min(jobs, -(-total // each))
    found = ordered(work, tasks, here) if asking.dask is None else on_cluster(work, tasks, asking.dask)
    hidden = streams and sys.stdout.isatty()  # a bar would mix with the rows
    with Bar("Sweeping", total) as bar:
        for rows in found:
            done += len(rows)
            yield rows
            if not hidden:
                bar(done)


def _record(asking: Sweeping, rows: Sequence[SweepRow]) -> Sweep:
    from sizing.report import sweep as report

    questions = list(_each_varied(asking))
    varied = {axis.name: axis.values for axis in asking.axes}
    shard = asking.values["shard"] and f"{asking.shard.part}/{asking.shard.parts}"
    return report.record(rows, varied, questions, verified=asking.verified, shard=shard)


def _each_varied(asking: Sweeping) -> Iterator[Question]:
    """Yield the first combination, then variants of it with each other value of one input (for numbers, only the last)."""
    resolver = _resolver(asking.workload, asking.axes)
    first = {axis.name: axis.values[0] for axis in asking.axes}
    others = {axis.name: axis.values[1 if isinstance(axis.values[0], str) else -1 :] for axis in asking.axes}
    changed = ({**first, name: value} for name, values in others.items() for value in values)
    for varied in (first, *changed):
        with suppress(InputError):
            yield resolver.question({**asking.values, **varied})
