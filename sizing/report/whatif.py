"""`llmsize whatif`: the answer as it is, with each optimisation alone, and with the best combination."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from sizing.answers.advice import nearest_miss
from sizing.answers.answer import Answer, Outcome
from sizing.answers.whatif import Combination, TrialResult, Trials, VariedAssumption, is_better
from sizing.catalog.shelf import only
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
from sizing.formats.words import money, number, plural, rounded_usd
from sizing.question.question import Question
from sizing.report.parts import assumptions, pools
from sizing.report.parts.figures import a_month
from sizing.report.parts.layouts import Limited, figures_by_name
from sizing.report.parts.quantities import E2E, GPU, GPUS, ITL, LATENCY_QUANTITIES, TTFT, at_limit, of_task
from sizing.report.parts.question import Inputs, inputs, is_by_day, is_demanded, labels, not_replayed, replica_lines
from sizing.report.parts.screen import NEXT, assumption_lines, first_lines, next_line, unused
from sizing.specs.workload import Defaults

NOTE = "requests/s: the most of a row's GPUs within the limits{}; all rows in closed form"
OF_TOKENS = "; $/M: output tokens"
ADAPTERS = f"{NEXT}; with LoRA adapters: --lora 16x64"
AS_IT_IS, TOGETHER = "as it is", "best together"
MOST = "max_requests_per_s"
MOST_SHOWN = 6  # rows of a screen; more where the best combination has more changes
LEAST_FASTER = 0.1  # the share by which an option must shorten a latency to be named for it
MOST_SLOWER = 0.05  # the share by which it may make another figure worse without that being named beside it
EVEN_ODDS = "All by the prediction alone; with 50 % confidence, as it is takes {}"


class AnswerSummary(NamedTuple):
    """A short form of an answer. Latencies are means at its load.

    `max_requests_per_s_per_gpu` is the most that a GPU serves within all limits. If `verified`, a simulation confirmed the
    answer; otherwise it comes from the closed form. `limited` has the limited statistic of each latency with a limit.
    """

    gpus: int
    gpu: str
    layout: str
    weight_precision: str
    kv_precision: str
    requests_per_s_per_gpu: float
    max_requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float | None
    e2e_ms: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    verified: bool
    limited: dict[str, Limited | None] = {}  # noqa: RUF012 - never changed


class Sensitivity(NamedTuple):
    """The answer with the assumption one step lower or higher; null if no layout meets the demand."""

    assumption: str
    value: float
    gpus: int | None
    max_requests_per_s_per_gpu: float | None
    ttft_ms: float | None
    itl_ms: float | None


class OptionReport(NamedTuple):
    """One optimisation alone: its command-line options, answer, needs, risks and assumption, and the weights that it presumes.

    It `helps` if it is better than the answer without it: fewer GPUs, less cost, or 1 % more requests/s per GPU. `helps` and
    `gpus_saved` compare closed forms, even where the base was simulated.
    """

    name: str
    title: str
    options: str
    helps: bool
    gpus: int
    gpu: str
    gpus_saved: int | None
    layout: str
    requests_per_s_per_gpu: float
    max_requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float | None
    e2e_ms: float
    usd_per_hour: float | None
    usd_per_million_output_tokens: float | None
    needs: str
    risk: str
    source: str
    assumes: str | None
    sensitivity: tuple[Sensitivity, ...]
    presumes: str | None = None
    limited: dict[str, Limited | None] = {}  # noqa: RUF012 - never changed


class Together(NamedTuple):
    """The best combination: its names in the order in which they were added, its options and its answer."""

    names: tuple[str, ...]
    options: str
    answer: AnswerSummary
    gpus_saved: int | None


class NotTried(NamedTuple):
    """An optimisation that does not help here, with the reason."""

    name: str
    reason: str


class WhatIfReport(NamedTuple):
    """The record of `llmsize whatif`; `base` is null if no layout meets the demand without optimisations.

    Options are compared with `base_closed_form`, which is null if `base` is itself from the closed form. `best_closed_form` is
    the closed form of the best combination, null if that is not simulated or does not exist. The record is `feasible` if the base
    or the best combination keeps the GPU budget. All answers come from the prediction alone. An estimate without optimisations
    may need other GPUs, so that at least half of published runs keep the limits: `gpus_at_even_odds` counts these. Where `best`
    holds under an assumption or with other weights, `unconditional` is the best combination that does not, by the closed form. An
    answer of more than `most_sensible_gpus` is a data centre of its own, which `compare` leaves out.
    """

    inputs: Inputs
    base: AnswerSummary | None
    base_closed_form: AnswerSummary | None
    options: tuple[OptionReport, ...]
    best: Together | None
    not_possible: tuple[NotTried, ...]
    assumptions: tuple[Assumption, ...]
    feasible: bool = True
    best_closed_form: AnswerSummary | None = None
    gpus_at_even_odds: int | None = None
    unconditional: Together | None = None
    most_sensible_gpus: int | None = None
    schema: str = "llmsize.whatif/1"


def record(question: Question, trials: Trials, flags: Mapping[str, str]) -> WhatIfReport:
    """The record of trials. `flags` maps names of options to their spelling on the command line."""
    before, after, best = trials.base.best, trials.after.best, trials.best
    whole = None if before is None or before.separate else before.pool  # one pool, whose layout the inputs state
    return WhatIfReport(
        inputs=inputs(question, None) if whole is None else inputs(whole.question(question), whole.replica),
        base=_summary(trials.base, question),
        base_closed_form=_summary(trials.closed_form, question) if trials.base.verified else None,
        options=tuple(_options(trials, question, flags)),
        best=_combined(replace(best, outcome=trials.after), before, question, flags),
        not_possible=tuple(NotTried(one.name, _why_not(one)) for one in trials.tried if one.best is None),
        assumptions=tuple(dict.fromkeys(assumptions.of_answer(before or after, question))),
        feasible=any(each.best is not None and each.within_budget for each in (trials.base, trials.after)),
        best_closed_form=_summary(trials.best.outcome, question) if best.names and trials.after.verified else None,
        gpus_at_even_odds=None if trials.even is None else trials.even.gpus,
        unconditional=_combined(trials.unconditional, trials.closed_form.best, question, flags),
        most_sensible_gpus=only(Defaults).most_gpus_compared,
    )


def _combined(
    combination: Combination | None, base: Answer | None, question: Question, flags: Mapping[str, str]
) -> Together | None:
    """A combination of options, compared with the answer without it; None where it has no option or no answer."""
    found = None if combination is None or not combination.names else _summary(combination.outcome, question)
    if combination is None or found is None:
        return None
    return Together(
        combination.names, _spelled(combination.options, flags), found, None if base is None else base.gpus - found.gpus
    )


def _why_not(tried: TrialResult) -> str:
    outcome = tried.outcome
    if outcome is None:
        return "; ".join(map(str, tried.faults))
    if outcome.pairing is not None:
        return pools.why_not(outcome)
    nearest = nearest_miss(outcome)
    return "no layout meets the demand" if nearest is None else f"{nearest.layout}: {nearest.detail}"


def _spelled(options: Mapping[str, Any], flags: Mapping[str, str]) -> str:
    return " ".join(f"{flags[name]} {value}" for name, value in options.items())


def _summary(outcome: Outcome, question: Question) -> AnswerSummary | None:
    found = outcome.best
    if found is None:
        return None
    return filled(AnswerSummary, figures_by_name(found, question), verified=outcome.verified is True)


def _options(trials: Trials, question: Question, flags: Mapping[str, str]) -> Iterator[OptionReport]:
    base = trials.closed_form.best
    for tried in trials.tried:
        found, trial = tried.best, tried.trial
        if found is None:
            continue
        yield filled(
            OptionReport,
            trial,
            figures_by_name(found, question),
            name=tried.name,
            options=_spelled(trial.values(), flags),
            helps=is_better(found, base, question),
            gpus_saved=None if base is None else base.gpus - found.gpus,
            assumes=f"{trial.assumed.what} {trial.assumed.value:g}" if trial.assumed else None,
            sensitivity=tuple(_sensitivity(tried, varied, question) for varied in tried.sensitivity),
        )


def _sensitivity(tried: TrialResult, varied: VariedAssumption, question: Question) -> Sensitivity:
    what, nothing = tried.trial.assumed.what if tried.trial.assumed else "", dict.fromkeys(Sensitivity._fields)
    figures = nothing if varied.best is None else figures_by_name(varied.best, question)
    return filled(Sensitivity, figures, assumption=what, value=varied.value)


OTHERS = ("gpus", "gpu", "weight_precision", "kv_precision", "verified", "limited")
FIGURES = tuple(name for name in AnswerSummary._fields if name not in OTHERS)


def rows(record: WhatIfReport) -> Rows:
    """A row for the base answer, for each optimisation alone, and for the best combination."""
    base, best = record.base, record.best
    found: list[dict[str, Any]] = []
    if base is not None:
        found.append({**base._asdict(), "status": "base", "gpus_saved": 0})
    found += [{**one._asdict(), "status": "alone"} for one in record.options]
    if best is not None:
        found.append({**best.answer._asdict(), **best._asdict(), "status": "best", "name": " + ".join(best.names)})
    columns = ("status", "name", "options", "gpus", "gpus_saved", *FIGURES, "needs", "risk")
    return rows_of(found, columns, labels(record.inputs))


COLUMNS = (
    in_words("name", "optimisation"),
    GPU,
    GPUS,
    in_words("layout", "layout"),
    Quantity(MOST, "requests/s"),
    TTFT,
    ITL,
    Quantity("usd_per_month", "$/month", rounded_usd, lambda row: a_month(row["usd_per_hour"])),
    Quantity("usd_per_million_output_tokens", "$/M", money),
)


def sections(record: WhatIfReport) -> Iterator[Section]:
    """Yield the best combination, all answers, and what helpful options need."""
    i, best = record.inputs, record.best
    together = () if best is None else best.names
    unplayed = not_replayed(i.demand)
    how = f"confirmed by simulation{' of random arrivals' * bool(unplayed)}"
    checked = "" if best is None else f" ({how})" if best.answer.verified else " (not simulated)"
    lines = [] if best is None else [Line(f"{best.options}: {best.answer.layout}{checked}")]
    if unplayed:
        lines.append(Line(unplayed, "Trace"))
    shown = ((AS_IT_IS, record.base), (TOGETHER, None if best is None else best.answer))
    left = [(name, unused(i.gpu_budget, of.gpus, later=True)) for name, of in shown if of is not None]
    if any(words for _, words in left):
        lines.append(Line("; ".join(f"{name} {words}" for name, words in left if words), "Budget"))
    if best is not None and record.base is not None and record.feasible and (given := _conditions(record)):
        lines.insert(0, Line(f"{_changed(best, record.base)}, {given}"))
    yield Facts(tuple(lines), _verdict(record))
    answers = [{**answer._asdict(), "name": name, MOST: _most(answer)} for name, answer in _answers(record)]
    if answers:
        demanded, several = is_demanded(i.demand), len(i.gpus_considered) > 1
        # A demand is served around the clock at its mean load, which is not that of the tokens at the peak.
        without = {"gpu" if not several else "", COLUMNS[-1].key if demanded else COLUMNS[-2].key}
        columns = [column for column in COLUMNS if column.key not in without]
        note = NOTE.format("" if demanded else OF_TOKENS)
        yield Table(
            tuple(_in_force(columns, record)),
            answers,
            notes=(note, *_even(record)),
            spare_notes=tuple(_simulated(record)),
        ).cut(max(MOST_SHOWN, 2 + len(together)), "more change", "--verbose")
    helpful = [f"{option.options}: {option.needs}" for option in record.options if option.name in together]
    refused = [f"{one.name}: {one.reason}" for one in record.not_possible]
    helps = [
        line._replace(spare=rank if line.label == label else rank - 1)
        for label, said, rank in (("Faster", tuple(_faster(record)), 8), ("Needs", helpful, 6), ("Refused", refused, 2))
        for line in first_lines(label, said, "option", 1)
    ]
    after = next_line(NEXT if "lora" in i.optimisations else ADAPTERS)
    yield Facts((*replica_lines(i), *helps, *assumption_lines(record.assumptions, by_day=is_by_day(i.demand)), after))


def _simulated(record: WhatIfReport) -> Iterator[str]:
    """Yield the simulated figures of confirmed rows, as the table is in closed form."""
    best = None if record.best is None else record.best.answer
    times = tuple(_in_force((TTFT, ITL), record))
    said = [
        ", ".join((f"{name} {plural(each.gpus, 'GPU')}", *(f"{q.heading} {q.text(each)}" for q in times)))
        for name, each in ((AS_IT_IS, record.base), (TOGETHER, best))
        if each is not None and each.verified
    ]
    if said:
        yield f"Simulated: {'; '.join(said)}"


def _even(record: WhatIfReport) -> Iterator[str]:
    """Yield the GPUs at even odds, where they are others."""
    if record.gpus_at_even_odds is not None:
        yield EVEN_ODDS.format(plural(record.gpus_at_even_odds, "GPU"))


def _in_force(columns: Iterable[Quantity], record: WhatIfReport) -> Iterator[Quantity]:
    """Yield the columns of the task, each latency in the statistic of its limit."""
    for column in of_task(columns, record.inputs.task):
        limit = record.inputs.limits.get(column.key) if column in LATENCY_QUANTITIES else None
        yield column if limit is None or limit.statistic == "mean" else at_limit(column, limit.statistic)


def _verdict(record: WhatIfReport) -> str:
    base, best = record.base, record.best
    least = min((each.gpus for each in (base, None if best is None else best.answer) if each is not None), default=0)
    if least and not record.feasible:
        return f"Infeasible: {plural(least, 'GPU')} at best, the budget is {record.inputs.gpu_budget:,}"
    if best is None:
        return "Nothing that was tried helps" if base else "Infeasible, and no optimisation that was tried changes that"
    given = _conditions(record)
    if base is None:
        most, closed = record.most_sensible_gpus or math.inf, record.best_closed_form
        absurd = f", more than the {most:,} that compare takes for sensible" if best.answer.gpus > most else ""
        other = "" if closed is None or closed.gpus == best.answer.gpus else f" ({closed.gpus:,} by the closed form)"
        feasible = "Feasible only in theory" if absurd else "Feasible"
        return f"{feasible} with {_together(best)}{other}{absurd}{', ' * bool(given)}{given}; infeasible without"
    if not given:
        return _changed(best, base)
    if record.unconditional is not None and (record.unconditional.gpus_saved or not best.gpus_saved):
        return _changed(record.unconditional, record.base_closed_form or base)
    fewer = f"{best.answer.gpus:,} with" if best.gpus_saved else "no GPU is saved by"
    return f"{plural(base.gpus, 'GPU')} as it is; {fewer} changes that need what you did not state"


def _together(together: Together) -> str:
    return f"{' + '.join(together.names)}: {plural(together.answer.gpus, 'GPU')}"


def _changed(together: Together, base: AnswerSummary) -> str:
    """Write a combination and the GPUs with and without it. If their number is equal, write what they could serve."""
    if together.gpus_saved:
        return f"{_together(together)} instead of {base.gpus:,}"
    count = "the GPU" if base.gpus == 1 else f"the {base.gpus:,} GPUs"
    served = f"could serve {number(_most(together.answer))} instead of {number(_most(base))} requests/s"
    return f"No GPU is saved; {count} {served} with {' + '.join(together.names)}"


def _most(answer: AnswerSummary | OptionReport) -> float:
    """The most requests/s that all GPUs of an answer serve within the limits."""
    return answer.max_requests_per_s_per_gpu * answer.gpus


def _conditions(record: WhatIfReport) -> str:
    """Write what the best combination takes for granted."""
    names = () if record.best is None else record.best.names
    return _given([option for option in record.options if option.name in names])


def _given(options: Sequence[OptionReport]) -> str:
    """Write what options take for granted: assumed shares, and weights other than the model's."""
    shares = ["the {} is {}".format(*option.assumes.rsplit(" ", 1)) for option in options if option.assumes]
    presumed = ", ".join(option.presumes for option in options if option.presumes)
    given = [f"if {' and '.join(shares)}"] * bool(shares) + [f"with {presumed}"] * bool(presumed)
    return ", ".join(given)


def _faster(record: WhatIfReport) -> Iterator[str]:
    """Yield each option that saves nothing, takes no more GPUs, and shortens a latency, with what it makes worse."""
    base, latencies = record.base_closed_form or record.base, tuple(_in_force((TTFT, ITL, E2E), record))
    waited_for = record.inputs.mode != "offline"  # nobody waits for a token of offline work
    for option in record.options if base is not None and waited_for else ():
        if base is None or option.helps or option.gpus > base.gpus or option.gpu != base.gpu:
            continue
        found = [(each, each.value(option), each.value(base)) for each in latencies]
        said = [
            (f"{each.heading} {each.text(option)} in place of {each.text(base)}", now / was, each.key == E2E.key)
            for each, now, was in found
            if now and was
        ]
        shorter = [text for text, times, whole in said if times < 1 - LEAST_FASTER and not whole]
        if shorter:
            worse = [text for text, times, _ in said if times > 1 + MOST_SLOWER]
            if _most(option) < _most(base) * (1 - MOST_SLOWER):
                worse.append(f"at most {number(_most(option))} requests/s in place of {number(_most(base))}")
            given = _given([option])
            fewer = "no GPU fewer" if option.gpus == base.gpus else plural(option.gpus, "GPU")
            but = f"; but {', '.join(worse)}" if worse else ""
            yield f"{option.options}: {fewer}, {', '.join(shorter)}{but}" + (f"; {given}" if given else "")


def _answers(record: WhatIfReport) -> Iterator[tuple[str, AnswerSummary | OptionReport]]:
    """Yield the rows of the table, all by the closed form: each change of the best combination, then the others that help."""
    base = record.base_closed_form or record.base
    if base is not None:
        yield AS_IT_IS, base
    if record.best is not None:
        yield TOGETHER, record.best_closed_form or record.best.answer
    names = () if record.best is None else record.best.names
    members = [option for option in record.options if option.name in names]
    others = [option for option in record.options if option.helps and option.name not in names]
    yield from ((option.name, option) for option in (*members, *others))


document = partial(Document, sections=sections, rows=rows)
