"""`--from`: answers of several commands from measured rows instead of predictions."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sizing.cli.options import COST_OPTIONS, GROWTH, PLAN_OPTIONS, RESERVES, WAYS_TO_PAY
from sizing.question.options import QUESTION_OPTIONS, GivenOptions
from sizing.specs.errors import Fault, InputError, raise_any

if TYPE_CHECKING:
    from sizing.answers.measured_lines import Filter, Measured
    from sizing.catalog.shelf import Found
    from sizing.planning.cost import Ways
    from sizing.planning.rules import ProvisionRules
    from sizing.report.measured import MeasuredAnswer
    from sizing.specs.errors import Part
    from sizing.specs.workload import Workload


class RowOptions(NamedTuple):
    """The options that select rows, by what rows say themselves. Settings select no row."""

    model: str | None
    gpu: str | None
    precision: str | None
    tp: int | None
    pp: int | None
    isl: int | None
    osl: int | None


FILTERS = RowOptions._fields
OF_WORKLOAD = ("model", "isl", "osl")  # what a workload states too
# Options that filter the rows or state the question. All others affect only predictions.
TAKEN = (*FILTERS, "mode", "ttft", "itl", "e2e", "max_utilisation", "headroom", "price",
         "users", "think_time", "requests_per_session", "session_length", "rps", "concurrency", "closed_loop", "dau", "mean_rps",
         "requests_per_user", "active_hours", "peak_to_mean", "percentile")  # fmt: skip
RESERVED = tuple(option.name for option in PLAN_OPTIONS if option.panel in (RESERVES, GROWTH))
PAID = (*(option.name for option in COST_OPTIONS if option.panel == WAYS_TO_PAY), "provider")
RESULT_ENDINGS = (".json", ".jsonl")
COUNTED = re.compile(r"\d+x")
ORDERS = ("gpus", "cost")  # orders of measured layouts
NO_EFFECT = "has no effect with --from: measured rows say what a replica serves"


class Additions(NamedTuple):
    """Additions to the sizing by rows: a plan by `rules`, `ways` to pay, or all layouts (`whole`) in the order `sort`.

    `taken` are further options of a command that have an effect with `--from`.
    """

    taken: tuple[str, ...] = ()
    rules: ProvisionRules | None = None
    ways: Ways | None = None
    whole: bool = False
    sort: str | None = None


def print_from(file: str, workload: str | None, given: GivenOptions, added: Additions | None = None) -> int:
    """Size by the rows of `file`, and print the answer with its additions. The exit code is 1 if no load keeps the limits."""
    from sizing.cli.output import OutputOptions, chosen_format, complain, print_text, write
    from sizing.report.measured import document
    from sizing.specs.errors import Part

    output = Part(lambda: chosen_format(given))
    answer = answer_from(file, workload, given, added or Additions(), output)
    counted = answer.plan or answer.deployment
    if not given.read(OutputOptions).quiet:
        write(document(answer), output.value)
    elif counted is not None:
        print_text(str(counted.gpus))
    else:
        complain(f"infeasible: {answer.limiting}")
    return 0 if answer.feasible else 1


def answer_from(
    file: str, workload: str | None, given: GivenOptions, added: Additions, *parts: Part[Any]
) -> MeasuredAnswer:
    """The record of the answer from the rows of `file`, with its additions.

    Raises InputError with all faults, including those of `parts` and of options without effect here.
    """
    from sizing.answers.measured_size import measured_sizes
    from sizing.cli.output import say_unread
    from sizing.question.ask import measured_question
    from sizing.question.names import workload_at
    from sizing.question.options import options_of
    from sizing.report.measured import by_cost, planned, priced, record
    from sizing.specs.errors import Part, check

    if added.sort not in (None, *ORDERS):
        allowed = ", ".join(ORDERS)
        raise InputError(f"{added.sort!r} is no order of measured layouts", field="--sort", allowed=allowed)
    taken = {*TAKEN, *added.taken}
    given = given.without_settings(given.settings.keys() - (taken - set(FILTERS)))
    wanted, closed = given.read(RowOptions), given.any_of(["closed_loop"])
    idle = Part(lambda: _check_idle(given, taken))
    found = Part(lambda: workload_at(workload) if workload is not None else None)
    rows = Part(lambda: _rows(file, wanted, found.value))
    check(*parts, idle, found, rows)
    measured = rows.value
    say_unread(measured.rows)
    of_clients = closed and given.any_of(["concurrency"])  # with other demands it says how to read the rows
    of_rows = given._replace(fields=QUESTION_OPTIONS).with_(**_of_rows(measured), closed_loop=of_clients)
    question = measured_question(found.value, options_of(of_rows))
    sizes, short = measured_sizes(measured.lines, question.target, question.headroom, closed=closed)
    answer = record(measured, question, sizes, short, closed=closed, whole=added.whole)
    if added.rules is not None:
        from sizing.planning.measured import fleets

        answer = planned(answer, fleets(sizes, question, added.rules))
    if added.ways is not None:
        from sizing.planning.measured import bill

        answer = priced(answer, bill(sizes, measured, question, added.ways) if sizes else ())
    return by_cost(answer) if added.sort == "cost" else answer


def is_rows(text: str | None) -> bool:
    """Whether the value of a plan's `--from` is a file of rows, and not the start date of the plan."""
    return text is not None and ("/" in text or text.lower().endswith((".csv", *RESULT_ENDINGS)))


def _check_idle(given: GivenOptions, taken: Collection[str]) -> None:
    every = (*QUESTION_OPTIONS, *PLAN_OPTIONS, *COST_OPTIONS)
    own = ("no_verify", "explain", "verbose", "jobs", "replace", "trace")
    flags = {field.name: field.flags[0] for field in every} | {name: f"--{name.replace('_', '-')}" for name in own}
    idle = (flag for name, flag in flags.items() if name not in taken and given.any_of([name]))
    raise_any(Fault(NO_EFFECT, field=flag) for flag in idle)


def _rows(file: str, wanted: RowOptions, workload: Found[Workload] | None) -> Measured:
    """The rows in the file that match the options and the workload. Raises InputError if no row is left."""
    from sizing.answers.measured_lines import EVERY_LOAD, measured
    from sizing.specs.units import comma_separated, whole_numbers

    if not file.lower().endswith(".csv"):
        _refuse_results(file)
    counted = [name for name in comma_separated(wanted.gpu or "") if COUNTED.match(name)]
    if counted:
        message = f"{counted[0]!r} states a number of GPUs, which --from finds"
        raise InputError(message, field="--gpu", allowed="a GPU type")
    tp, pp = (whole_numbers(str(size), 4096) if size else () for size in (wanted.tp, wanted.pp))
    return measured(file, rows_wanted(wanted, workload, tp, pp), "--from", EVERY_LOAD)


def _refuse_results(file: str) -> None:
    """Raise InputError for a file that `import` reads; a start-up log has no performance to size from."""
    from sizing.catalog.imports.results import read_results

    try:
        logs = read_results(file).facts
    except InputError:
        if not file.lower().endswith(RESULT_ENDINGS):
            return  # rows under another name, or no file
        logs = ()
    if not logs:
        allowed = "measured rows: llmsize import FILE -o rows.csv"
        raise InputError("is a tool's result file", file=file, field="--from", allowed=allowed)
    allowed = f"rows of runs on this engine; llmsize import RESULTS {file} -o rows.csv takes its settings too"
    message = f"is a start-up log of {logs[0].engine}, which has no performance, only {logs[0].holds}"
    raise InputError(message, file=file, field="--from", allowed=allowed)


def rows_wanted(wanted: RowOptions, workload: Found[Workload] | None, tp: Sequence[int], pp: Sequence[int]) -> Filter:
    """The filter for the rows that the options ask for, or else the workload. `all` GPU types or precisions means no filter."""
    from sizing.answers.measured_lines import Filter
    from sizing.question.names import ALL
    from sizing.specs.units import comma_separated

    gpus, precisions = (comma_separated((text or "").lower()) for text in (wanted.gpu, wanted.precision))
    spec = None if workload is None else workload.spec
    tokens = None if spec is None else spec.tokens
    return Filter(
        model=wanted.model or (spec.model if spec else None),
        gpus=() if ALL in gpus else tuple(comma_separated(wanted.gpu or "")),
        precisions=() if ALL in precisions else tuple(precisions),
        tp=tuple(tp),
        pp=tuple(pp),
        isl=wanted.isl or (tokens.isl if tokens else None),
        osl=wanted.osl or (tokens.osl if tokens else None),
        stated={} if workload is None else {name: workload.id for name in OF_WORKLOAD if not getattr(wanted, name)},
    )


def _of_rows(measured: Measured) -> dict[str, Any]:
    """The options that the rows state: model, lengths, and the GPU types with a profile."""
    from sizing.catalog import profiles
    from sizing.catalog.profiles import named_gpu

    ids = dict.fromkeys(named_gpu(line.gpu)[0] for line in measured.lines)
    known = [name for name in ids if name in profiles.GPUS.ids]
    return {"model": measured.model, "isl": measured.isl, "osl": measured.osl, "precision": None, "gpu": ",".join(known) or None,
            "tp": None, "pp": None}  # fmt: skip
