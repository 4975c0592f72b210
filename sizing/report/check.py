"""`llmsize check`: deployments that exist against demand, limits and policy, and what changed since an earlier check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sizing.formats.ci import Remark
from sizing.formats.view import DIGITS, Document, Facts, Line, Quantity, Rows, Section, Table, filled, in_words, rows_of
from sizing.formats.words import money, number, percent, plural
from sizing.launch.deployment import COMMAND
from sizing.launch.findings import Checked
from sizing.launch.terms import layout_of
from sizing.report.parts import screen
from sizing.specs.bands import of_runs
from sizing.specs.workload import LATENCIES

SCHEMA = "llmsize.check/1"


class FindingRecord(NamedTuple):
    """One rule that a deployment must keep, with its verdict."""

    deployment: str
    rule: str
    verdict: str
    detail: str
    file: str
    line: int | None


class PoolOfCheck(NamedTuple):
    """The equal replicas of one pool, and the part of a request that they serve: whole, prefill or decode."""

    role: str
    replicas: int
    layout: str
    gpu: str | None


class CheckedRecord(NamedTuple):
    """A deployment with its figures at the demand. A figure is null where it is unknown or no demand was checked.

    `gpus` are those that its containers reserve, at least those on which it runs; `idle_gpus` are those reserved beyond. With
    `gpus_at_least` it takes all GPUs of its server, which may be more: cost and changes count the fewest. The cost of a million
    output tokens is at the demand, null where the demand is more than it serves. A latency is in the statistic of its limit, or
    the mean without a limit. `needed_gpus` are the GPUs that the demand needs in the same layout, `gpus_sure` those for the
    policy's confidence (default 90 %); both count GPUs that are reserved and idle too. `chance` is a share of the runs that
    `chance_of` names; where none is known, `why_no_chance` says why.
    """

    name: str
    passed: bool
    model: str
    engine: str
    gpu: str | None
    gpus: int
    replicas: int
    layout: str
    requests_per_s: float | None
    max_requests_per_s: float | None
    utilisation: float | None
    headroom: float | None
    ttft_ms: float | None
    itl_ms: float | None
    e2e_ms: float | None
    usd_per_hour: float | None
    usd_per_million_tokens: float | None
    needed_gpus: int | None
    gpus_sure: int | None
    chance: float | None
    simulated: bool | None
    assumed: tuple[str, ...]
    findings: tuple[FindingRecord, ...]
    idle_gpus: int
    pools: tuple[PoolOfCheck, ...]
    gpus_at_least: bool
    chance_of: str | None = None
    why_no_chance: str | None = None


class FigureChange(NamedTuple):
    """A figure of a deployment now and in an earlier check; null where the check has no such figure."""

    deployment: str
    figure: str
    before: float | None
    now: float | None
    change: float | None


class CheckReport(NamedTuple):
    """The record of `llmsize check`; `changes` is null without an earlier check."""

    passed: bool
    deployments: tuple[CheckedRecord, ...]
    changes: tuple[FigureChange, ...] | None = None
    schema: str = SCHEMA


def record(checked: Sequence[Checked], baseline: Mapping[str, Any] | None = None) -> CheckReport:
    """The record of checked deployments, with the changes since the earlier record `baseline`."""
    found = tuple(map(_deployment, checked))
    changes = None if baseline is None else tuple(_changes(found, baseline))
    return CheckReport(all(each.passed for each in found), found, changes)


def _deployment(checked: Checked) -> CheckedRecord:
    held, launched = checked.held, [part.launched for part in checked.parts]
    answer, sure, used = (None, None, None) if held is None else (held.answer, held.odds, held.utilisation)
    demanded = checked.question.target.requests_per_s if checked.question else None
    return filled(
        CheckedRecord,
        checked,
        launched[0],
        replicas=checked.replicas,
        engine=launched[0].serving.engine,
        layout=" + ".join(str(layout_of(of)) for of in launched),
        requests_per_s=answer.requests_per_s if answer else demanded,
        max_requests_per_s=None if held is None else held.most_requests_per_s,
        utilisation=used,
        headroom=None if not used else 1 / used - 1,
        **{f"{name}_ms": _latency(checked, name) for name in LATENCIES},
        needed_gpus=None if held is None or held.needed is None else checked.gpus_of(held.needed),
        gpus_sure=None if held is None or held.sure_answer is None else checked.gpus_of(held.sure_answer),
        chance=None if sure is None else sure.chance,
        chance_of=None if sure is None or sure.chance is None else of_runs(sure.own, any_gpu=sure.any_gpu),
        why_no_chance=None if sure is None or sure.chance is not None else sure.why_not,
        simulated=None if held is None else held.verified,
        assumed=tuple(dict.fromkeys(note for part in checked.parts for note in part.assumed)),
        findings=tuple(
            FindingRecord(checked.name, f.rule, f.level, f.message, f.file, f.line) for f in checked.findings
        ),
        pools=tuple(PoolOfCheck(of.role, of.replicas or 0, str(layout_of(of)), of.gpu) for of in launched),
    )


def _latency(checked: Checked, name: str) -> float | None:
    held, question = checked.held, checked.question
    if held is None or held.answer is None or question is None:
        return None
    limit, found = getattr(question.target.limits, name), held.answer.latency_s(name)
    seconds = found.get("mean" if limit is None else limit.statistic)
    return None if seconds is None else seconds * 1e3


# One in the last digit of a figure in JSON: a smaller relative difference is only rounding.
NOISE = 10.0 ** (1 - DIGITS)
COMPARED = {
    "gpus": "GPUs",
    "usd_per_hour": "$ an hour",
    "usd_per_million_tokens": "$ per million output tokens",
    "max_requests_per_s": "most requests/s",
    "utilisation": "share used",
    "ttft_ms": "TTFT, ms",
    "itl_ms": "ITL, ms",
    "e2e_ms": "E2E, ms",
}


def _changes(records: Sequence[CheckedRecord], baseline: Mapping[str, Any]) -> Iterator[FigureChange]:
    """Yield each figure of each deployment with its value in an earlier record, equal values included."""
    earlier = {each["name"]: each for each in baseline["deployments"]}
    for each in records:
        before = earlier.pop(each.name, {})
        for name, words in COMPARED.items():
            old, new = before.get(name), getattr(each, name)
            if old is not None or new is not None:
                change = new / old - 1 if old and new is not None else None
                yield FigureChange(each.name, words, old, new, change if change is None or abs(change) > NOISE else 0.0)
    for name, before in earlier.items():
        for key in ("gpus", "usd_per_hour"):
            if before.get(key) is not None:
                yield FigureChange(name, COMPARED[key], before[key], None, None)


def _changed(share: float | None) -> str:
    return "" if share is None else f"{share:+.1%}" if share else "same"


def remarks(checked: Sequence[Checked]) -> tuple[Remark, ...]:
    """The findings for continuous integration, each with its file and line."""
    return tuple(
        Remark(each.name, f.rule, f.level, f.message, None if f.file == COMMAND else f.file, f.line, number, f.judged)
        for number, each in enumerate(checked)
        for f in each.findings
    )


def rows(record: CheckReport) -> Rows:
    """A row for each finding, or for each change where an earlier check is given."""
    if record.changes is not None:
        return rows_of(record.changes, FigureChange._fields)._replace(in_words={"change": _changed})
    return rows_of((found for each in record.deployments for found in each.findings), FindingRecord._fields)


VERDICTS = {"ok": (screen.OK, screen.KEPT), "warning": ("look", ""), "error": (screen.OVER, screen.MISSED)}
FINDINGS = (
    in_words("rule", "check", shown="always"),
    in_words("verdict", "", lambda found: VERDICTS[found.verdict][0], style=lambda found: VERDICTS[found.verdict][1]),
    in_words("detail", "", shown="always"),
    in_words("place", "line", lambda found: str(found.line) if found.line else None, nothing=""),
)
CHANGES = (
    in_words("deployment", "", shown="differs"),
    in_words("figure", "", shown="always"),
    Quantity("before", "before", number, shown="always"),
    Quantity("now", "now", number, shown="always"),
    Quantity("change", "change", _changed, nothing=""),
)


def sections(record: CheckReport) -> Iterator[Section]:
    """Yield each deployment with its verdict and findings, and what changed."""
    for each in record.deployments:
        failed = [found.rule for found in each.findings if found.verdict == "error"]
        said = f"{each.name}: fails {', '.join(failed)}" if failed else f"{each.name}: passes"
        yield Facts((screen.verdict(said, good=each.passed), *_about(each)))
        files = ", ".join(dict.fromkeys(found.file for found in each.findings))
        notes = (*(f"Assumed: {note}" for note in each.assumed), f"Line numbers are those of {files}")
        yield Table(FINDINGS, each.findings, "/deployments", notes=notes)
    if record.changes is not None:
        yield Table(CHANGES, record.changes, "/changes", "Since the earlier check")


def _about(record: CheckedRecord) -> Iterator[Line]:
    types = dict.fromkeys(pool.gpu for pool in record.pools)
    pools = " + ".join(
        f"{pool.replicas} x {pool.layout} ({pool.role}{f', {pool.gpu}' * (len(types) > 1)})" for pool in record.pools
    )
    layout = f"{plural(record.replicas, 'replica')} of {record.layout}" if len(record.pools) == 1 else pools
    gpus = f"{record.gpus} {f'x {record.gpu}' if len(types) == 1 else 'GPUs'}: {layout}, {record.engine}"
    gpus += f", {record.idle_gpus} of them idle" * (record.idle_gpus > 0)
    least = "at least " * record.gpus_at_least
    price = "" if record.usd_per_hour is None else f", {least}{money(record.usd_per_hour)}/h"
    yield Line(f"{least}{gpus}{price}", "Runs")
    yield Line(record.model, "Model")
    if record.chance is not None:
        yield Line(f"demand and limits are kept in {percent(record.chance)} of {record.chance_of}", "Chance")
    elif record.why_no_chance is not None:
        yield Line(f"not known: {record.why_no_chance}", "Chance")


document = partial(Document, sections=sections, rows=rows)
