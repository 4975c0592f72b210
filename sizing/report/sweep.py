"""`llmsize sweep`: a row for each combination of varied inputs, with the figures of `estimate`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.answers.answer import Outcome
from sizing.formats.view import (
    Assumption,
    Document,
    Facts,
    Line,
    Quantity,
    Rows,
    Section,
    Table,
    fields,
    filled,
    in_words,
    plain,
)
from sizing.formats.words import plural, stated
from sizing.model.architecture import Layout
from sizing.question.question import Question
from sizing.report.parts import assumptions, quantities
from sizing.report.parts.figures import mean_ms
from sizing.report.parts.layouts import figures_by_name, layout_in, shape
from sizing.report.parts.limits import limit_words
from sizing.report.parts.pools import limit_and_reason
from sizing.report.parts.quantities import NoSizes, flat_names
from sizing.report.parts.question import inputs, not_replayed
from sizing.report.parts.screen import assumption_lines, first_lines, next_line, verdict
from sizing.specs.errors import InputError
from sizing.specs.workload import LATENCIES, Metric

SCHEMA = "llmsize.sweep/1"
INPUT = "input"
MOST_ROWS = 15  # on a screen
FEW_TYPES = 3  # that a line names
SPARE = ("req/s per GPU", "mean TTFT", "mean ITL", "sure", "ITL")  # columns that a narrow terminal drops first


class SweepRow(NamedTuple):
    """One combination: the varied values, and the figures of their `estimate`, which are null where infeasible.

    Latencies are means; `at_limits` has them in the percentiles that limits name, by column. `gpus_sure` and `chance` are those
    of `estimate`: null where too few published runs are similar. `limit` is the limit on a replica's load. If infeasible, `limit`
    is the reason (`input` for an invalid combination) and `detail` explains it. For separate `pools`, the layouts are text and
    the layout of one replica is null. `limit` is then the limit of the pool nearer to its maximum load, or `pools` if infeasible.
    """

    varied: dict[str, Any]
    feasible: bool
    gpu: str | None
    weight_precision: str | None
    gpus: int | None
    replicas: int | None
    sizes: Layout | NoSizes
    pools: str | None
    requests_per_s: float | None
    requests_per_s_per_gpu: float | None
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    power_w: float | None
    limit: str
    detail: str
    usd_per_month: float | None
    gpus_sure: int | None
    chance: float | None
    at_limits: dict[str, float | None]


APART = ("varied", "at_limits")  # fields whose own columns are named by the user's options
FIGURES = tuple(name for name in flat_names(SweepRow) if name not in APART)


class Percentile(NamedTuple):
    """A percentile of a latency that a limit names."""

    latency: Metric
    statistic: str

    @property
    def column(self) -> str:
        """Its name in JSON and CSV: ttft_p95_ms."""
        return f"{self.latency}_{self.statistic}_ms"


def percentiles(questions: Iterable[Question]) -> tuple[Percentile, ...]:
    """The percentiles that limits of any of the questions name, in order."""
    limits = [limit for question in questions for limit in question.target.limits.stated.items()]
    named = {Percentile(latency, limit.statistic) for latency, limit in limits if limit.statistic != "mean"}
    return tuple(sorted(named, key=lambda each: (LATENCIES.index(each.latency), each.statistic)))


class Sweep(NamedTuple):
    """The record of `llmsize sweep`. `inputs` and `assumptions` are common to all rows. It is `feasible` if any row is.

    `shard` names the part of the sweep (`3/16`) that the rows belong to; null for the whole sweep.
    """

    feasible: bool
    inputs: dict[str, Any]
    varied: dict[str, tuple[Any, ...]]
    verified: bool
    feasible_rows: int
    rows: tuple[dict[str, Any], ...]
    assumptions: tuple[Assumption, ...]
    shard: str | None = None
    schema: str = SCHEMA


def row(varied: dict[str, Any], outcome: Outcome, named: Sequence[Percentile]) -> SweepRow:
    """The row of a combination from its outcome, with the latencies in the percentiles `named`."""
    best, question, sure, (limit, reason) = (
        outcome.answer,
        outcome.question,
        outcome.by_runs.odds,
        limit_and_reason(outcome),
    )
    nothing = _unserved(varied, limit, reason or "", named)
    if best is None:
        return nothing
    return filled(
        SweepRow,
        figures_by_name(best, question),
        nothing,
        feasible=True,
        pools=shape(best) if question.space.pools else None,
        gpus_sure=sure and sure.gpus,
        chance=sure and sure.chance,
        at_limits={each.column: mean_ms(best, f"{each.latency}_ms", question, each.statistic) for each in named},
    )


def row_of_faults(varied: dict[str, Any], error: InputError, named: Sequence[Percentile]) -> SweepRow:
    """The row of an invalid combination, with its faults."""
    return _unserved(varied, INPUT, "; ".join(map(str, error.faults)), named)


def _unserved(varied: dict[str, Any], limit: str, detail: str, named: Sequence[Percentile]) -> SweepRow:
    own = {"varied": varied, "feasible": False, "sizes": NoSizes(), "limit": limit, "detail": detail}
    return filled(SweepRow, own, dict.fromkeys(SweepRow._fields), at_limits={each.column: None for each in named})


def record(
    rows: Sequence[SweepRow],
    varied: Mapping[str, tuple[Any, ...]],
    questions: Sequence[Question],
    *,
    verified: bool,
    shard: str | None = None,
) -> Sweep:
    """The record of all rows. `questions` are combinations in which each varied input differs in turn."""
    feasible = sum(row.feasible for row in rows)
    rests_on = [tuple(assumptions.of_answer(None, question)) for question in questions]
    return Sweep(
        feasible=feasible > 0,
        inputs=_shared([dict(fields(inputs(question, None))) for question in questions]),
        varied=dict(varied),
        verified=verified,
        feasible_rows=feasible,
        rows=tuple(map(flat, rows)),
        assumptions=tuple(assumptions.shared(rests_on)),
        shard=shard,
    )


def _shared(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The entries with the same value in all of `found`."""
    first, *others = found or [{}]
    return {name: value for name, value in first.items() if all(other.get(name) == value for other in others)}


def _column(name: str) -> str:
    """The column name of a varied input, with the prefix `asked_` if a figure has the same name."""
    return f"asked_{name}" if name in FIGURES else name


def flat(row: SweepRow) -> dict[str, Any]:
    """A row as a flat mapping: varied values, then figures."""
    figures = {name: value for name, value in fields(row) if name not in APART}
    return {_column(name): value for name, value in row.varied.items()} | figures | row.at_limits


def columns(varied: Iterable[str], named: Iterable[Percentile]) -> tuple[str, ...]:
    """The CSV columns of a sweep over `varied` inputs, with the percentiles that limits name."""
    return (*map(_column, varied), *FIGURES, *(each.column for each in named))


def cells(row: SweepRow) -> tuple[Any, ...]:
    """The CSV cells of a row."""
    return tuple(plain(list(flat(row).values())))


def rows(record: Sweep) -> Rows:
    """A row for each combination, in order."""
    return Rows(tuple(record.rows[0]), [tuple(plain(list(row.values()))) for row in record.rows])


def _shape(row: dict[str, Any]) -> str | None:
    if row["pools"] is not None:
        return str(row["pools"])
    return f"{row['replicas']:,} x {layout_in(row)}" if row["feasible"] else None


ANSWER = (
    quantities.GPUS._replace(shown="always"),
    quantities.GPUS._replace(key="gpus_sure", heading="sure", shown="differs"),
    quantities.GPU._replace(shown="differs"),
    quantities.WEIGHTS._replace(shown="differs"),
    in_words("layout", "layout", _shape, shown="always"),
    quantities.TTFT._replace(shown="always"),
    quantities.ITL._replace(shown="always"),
    quantities.REQUESTS_PER_S_PER_GPU._replace(heading="req/s per GPU", shown="always"),
    quantities.USD_PER_HOUR._replace(shown="always"),
    in_words("limit", "limit", lambda row: f"{'' if row['feasible'] else 'no: '}{limit_words(row['limit'])}"),
)


def _with_percentiles(column: Quantity, row: Mapping[str, Any]) -> Iterator[Quantity]:
    """Yield a column and, of a latency, the percentiles that limits name."""
    latency = column.key.removesuffix("ms")
    names = [name for name in row if name.startswith(latency) and name != column.key and name.endswith("_ms")]
    yield column._replace(heading=f"mean {column.heading}") if names else column
    for name in names:
        statistic = name.removeprefix(latency).removesuffix("_ms")
        yield column._replace(key=name, heading=f"{statistic} {column.heading}")


def sections(record: Sweep) -> Iterator[Section]:
    """Yield the number of feasible combinations, the first of these, and why others are infeasible."""
    part = f" of part {record.shard}" if record.shard else ""
    served = f"{record.feasible_rows:,} of {plural(len(record.rows), 'combination')}{part} can be served"
    how, unplayed = "each confirmed by simulation" if record.verified else "not simulated (--verify)", _unplayed(record)
    how += f"{' of random arrivals' * record.verified}; {unplayed}" if unplayed else ""
    yield Facts((verdict(f"{served}, {how}", good=record.feasible), *_asked(record)))
    varied = (
        Quantity(_column(name), name, stated, is_number=not isinstance(values[0], str), shown="always")
        for name, values in record.varied.items()
    )
    answer = [column for each in ANSWER for column in _with_percentiles(each, record.rows[0])]
    own = tuple(column for column in answer if column.key not in record.varied)  # what is varied has its column
    spare = tuple(name for name in SPARE if name.lower() not in record.varied)
    yield Table((*varied, *own), record.rows, "/rows", spare=spare).cut(
        MOST_ROWS, "more row", "--verbose, --format csv"
    )
    reasons = list(dict.fromkeys(row["detail"] for row in record.rows if not row["feasible"]))
    yield Facts(
        (*first_lines("Refused", reasons, "reason"), *assumption_lines(record.assumptions, counted=False), next_line())
    )


def _unplayed(record: Sweep) -> str:
    """Write that only the rate of a trace was taken; nothing of other demands."""
    demand = record.inputs.get("demand")
    return "" if demand is None else not_replayed(demand)


def _asked(record: Sweep) -> Iterator[Line]:
    """Yield what is the same in all rows."""
    names = ("model", "workload", "gpu", "engine_title", "engine_version")
    shared = [str(record.inputs[name]) for name in names if record.inputs.get(name) is not None]
    for name in ("gpu", "weight_precision"):  # a column with one value is not shown
        found = {row[name] for row in record.rows if row["feasible"]}
        if len(found) == 1 and record.inputs.get(name) is None and name not in record.varied:
            shared += found
    if shared:
        yield Line(", ".join(shared), "For all")
    types = record.inputs.get("gpu_ids") or ()
    if len(types) > 1:
        each = f"--vary gpu={','.join(types)}" if len(types) <= FEW_TYPES else "--vary gpu=..."
        yield Line(f"has the best of {len(types)} GPU types; {each} gives each type its own rows", "Each row")


document = partial(Document, sections=sections, rows=rows)
