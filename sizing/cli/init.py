"""`llmsize init`: asks the discovery questions, writes the answers to a workload file, and estimates it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.specs.errors import Fault, InputError

if TYPE_CHECKING:
    from sizing.question.discovery import DiscoveryQuestion

STDIN = STDOUT = "-"


def command(
    answers: Annotated[
        str | None,
        typer.Option(
            "--answers",
            help="Read the answers from this file, one on each line, and ask nothing; - for standard input.",
        ),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Workload file to write; - prints it and makes no estimate.")
    ] = "workload.yaml",
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> int:
    """Ask what a sizing needs, write a workload and estimate it.

    Each question says why it is asked, and suggests an answer. An empty line takes the suggestion; ... takes it for all questions
    that follow. The questions are: use case, streaming, model, tokens in and out (or words, pages, a sample), demand, peak (for
    daily users), TTFT and ITL (for streaming), E2E, place, GPUs. Without a terminal, use --answers.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.catalog.files import exists
    from sizing.cli.output import complain, print_text, write_file
    from sizing.cli.reader import written_apart
    from sizing.question.discovery import QUESTIONS, SUGGESTED, next_options, workload_text

    read = [] if answers in (None, STDIN) else [answers]
    path = written_apart(None if output == STDOUT else output, read, option="--output")
    if path is not None and exists(path) and not force:
        raise InputError(Fault(f"{output!r} exists", field="--output", remedy="use another file, or --force"))
    found = _from_file(answers) if answers is not None else _asked()
    text = workload_text(found)
    _check(text)
    if path is None:
        print_text(text.removesuffix("\n"))
        return 0
    write_file(path, "--output", lambda: text)
    complain(f"wrote {output}")
    if taken := [question.key for question in QUESTIONS if question.key in found[SUGGESTED]]:
        complain(f"assumed as suggested: {', '.join(taken)}")
    from sizing.cli.main import run

    return run(["estimate", str(path), *next_options(found)])


def _check(text: str) -> None:
    """Raise InputError if the answers contradict each other."""
    from sizing.catalog.files import DataFile, validate
    from sizing.catalog.yaml import parse
    from sizing.specs.workload import Workload

    validate(Workload, DataFile(parse(text, "answers"), "answers", text))


def _answers(
    ask: Callable[[DiscoveryQuestion, str], str],
    wrong: Callable[[str, Iterable[Fault]], None],
    heard: Callable[[object], None] = lambda answer: None,
) -> dict[str, Any]:
    """The answers to all questions that apply.

    `ask` returns the text of an answer. `wrong` receives the faults of an invalid text, and `heard` the value of a valid one.
    """
    from sizing.question.discovery import QUESTIONS, REST, SUGGESTED

    found: dict[str, Any] = {SUGGESTED: set[str]()}
    rest = False
    for question in QUESTIONS:
        while question.key not in found and question.applies(found):
            suggestion = question.suggests(found)
            text = REST if rest else ask(question, suggestion)
            rest = text == REST
            try:
                found[question.key] = question.read(suggestion if text in ("", REST) else text, found)
                if text in ("", REST):
                    found[SUGGESTED].add(question.key)
                if not rest:
                    heard(found[question.key])
            except InputError as error:
                wrong(question.key, error.faults)
            except ValueError as error:
                wrong(question.key, (Fault(str(error)),))
    return found


def _from_file(name: str) -> dict[str, Any]:
    """The answers in a file, one a line. Raises InputError for invalid or missing answers, with their line, and for too many."""
    from sizing.catalog.files import expanded, read_text
    from sizing.question.discovery import REST

    file = "standard input" if name == STDIN else name
    lines = read_text(expanded(name)).splitlines()
    read: list[str] = []

    def ask(question: DiscoveryQuestion, suggestion: str) -> str:
        if len(read) == len(lines):
            allowed = f"an empty line for what is suggested, {REST} for all that follow"
            raise InputError("has no answer", file=file, line=len(read) + 1, field=question.key, allowed=allowed)
        read.append(lines[len(read)].strip())
        return read[-1]

    def wrong(key: str, faults: Iterable[Fault]) -> None:
        raise InputError(replace(fault, file=file, line=len(read), field=key) for fault in faults)

    found = _answers(ask, wrong)
    over = [line for line in lines[len(read) :] if line.strip()]
    if over:
        raise InputError(f"{over[0]!r} answers no question", file=file, line=len(read) + 1)
    return found


def _asked() -> dict[str, Any]:
    """The answers of a person at a terminal. Each question repeats until its answer is valid. Raises InputError without one."""
    from sizing.cli.output import complain, print_text

    if sys.stdin is None or not sys.stdin.isatty():
        remedy = "use --answers FILE, or --answers - for standard input"
        raise InputError("asks questions, and nobody is at a terminal to answer", field="init", remedy=remedy)

    def ask(question: DiscoveryQuestion, suggestion: str) -> str:
        print_text(f"\n{question.text} {question.why}")
        try:
            return input(f"[{suggestion}] ").strip()
        except EOFError:
            raise KeyboardInterrupt from None

    def heard(answer: object) -> None:
        if said := getattr(answer, "said", None):
            complain(f"{getattr(answer, 'length', '')} {said}".strip())

    def wrong(key: str, faults: Iterable[Fault]) -> None:
        for fault in faults:
            complain(fault.message + (f"; did you mean {fault.nearest}?" if fault.nearest else ""))

    return _answers(ask, wrong, heard)
