"""`llmsize init`: the discovery questions, a workload's file of the answers, and its estimate."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sizing.specs.errors import Fault, InputError

if TYPE_CHECKING:
    from sizing.question.discovery import DiscoveryQuestion

STDIN = STDOUT = "-"


def command(
    answers: Annotated[
        str | None,
        typer.Option("--answers", help="File of answers, one a line, in place of questions; - for standard input."),
    ] = None,
    output: Annotated[
        str, typer.Option("--output", "-o", help="Workload file to write; - for standard output, without an estimate.")
    ] = "workload.yaml",
    force: Annotated[bool, typer.Option("--force", help="Write over a file that exists.")] = False,
) -> None:
    """Ask what a sizing needs, write a workload and estimate it.

    Each question says why it is asked and suggests an answer, which an empty line takes; ... takes all that follow. They are: use
    case, streaming, model, tokens in and out (or words, pages, a sample), demand, peak (of users a day), TTFT and ITL (of a
    stream), E2E, place, GPUs. It asks on a terminal alone.

    Exit codes: 0 feasible, 1 infeasible, 2 bad input.
    """
    from sizing.catalog.files import exists, expanded
    from sizing.cli.output import complain, print_text, write_file
    from sizing.question.discovery import next_options, workload_text

    path = expanded(output)
    if output != STDOUT and exists(path) and not force:
        raise InputError(Fault(f"{output!r} exists", field="--output", allowed="another file, or --force"))
    found = _from_file(answers) if answers is not None else _asked()
    text = workload_text(found)
    _check(text)
    if output == STDOUT:
        print_text(text.removesuffix("\n"))
        return
    write_file(path, "--output", text.encode())
    complain(f"wrote {output}")
    from sizing.cli.main import run

    code = run(["estimate", str(path), *next_options(found)])
    if code:
        raise typer.Exit(code)


def _check(text: str) -> None:
    """Raise InputError where the answers do not go together."""
    from sizing.catalog.files import DataFile, validate
    from sizing.catalog.yaml import parse
    from sizing.specs.workload import Workload

    validate(Workload, DataFile(parse(text, "answers"), "answers", text))


def _from_file(name: str) -> dict[str, Any]:
    """The answers of a file, one a line. Raises InputError with the line of one that is none, and for too many."""
    from sizing.catalog.files import expanded, read_text
    from sizing.question.discovery import QUESTIONS, REST

    file = "standard input" if name == STDIN else name
    lines = read_text(expanded(name)).splitlines()
    found: dict[str, Any] = {}
    number, rest = 0, False
    for question in QUESTIONS:
        if not question.applies(found):
            continue
        if not rest and number == len(lines):
            allowed = f"an empty line for what is suggested, {REST} for all that follow"
            raise InputError(Fault("has no answer", file=file, line=number + 1, field=question.key, allowed=allowed))
        text = "" if rest else lines[number].strip()
        number += not rest
        rest = rest or text == REST
        said = text if text and text != REST else question.suggests(found)
        try:
            found[question.key] = question.read(said, found)
        except (ValueError, InputError) as error:
            raise InputError(list(_at(error, file, number, question.key))) from None
    over = [line for line in lines[number:] if line.strip()]
    if over:
        raise InputError(Fault(f"{over[0]!r} answers no question", file=file, line=number + 1))
    return found


def _at(error: ValueError | InputError, file: str, line: int, key: str) -> Iterator[Fault]:
    if isinstance(error, InputError):
        yield from (Fault(each.message, file, line, key, each.allowed, each.nearest) for each in error.faults)
    else:
        yield Fault(str(error), file, line, key)


def _asked() -> dict[str, Any]:
    """The answers of a person at a terminal. Raises InputError where there is none."""
    from sizing.question.discovery import QUESTIONS, REST

    if sys.stdin is None or not sys.stdin.isatty():
        allowed = "--answers FILE, or --answers - for standard input"
        raise InputError(Fault("asks questions, and nobody is at a terminal to answer", field="init", allowed=allowed))
    found: dict[str, Any] = {}
    rest = False
    for question in QUESTIONS:
        if question.applies(found):
            rest = _answer(question, found, suggested=rest) == REST or rest
    return found


def _answer(question: DiscoveryQuestion, found: dict[str, Any], *, suggested: bool) -> str:
    """Ask until an answer is one; the text that was given."""
    from sizing.cli.output import complain
    from sizing.question.discovery import REST

    suggestion = question.suggests(found)
    while True:
        text = "" if suggested else _line(question, suggestion)
        try:
            found[question.key] = question.read(text if text and text != REST else suggestion, found)
        except (ValueError, InputError) as error:
            for fault in _at(error, "", 0, question.key):
                complain(f"{fault.message}" + (f"; did you mean {fault.nearest}?" if fault.nearest else ""))
            continue
        said = getattr(found[question.key], "said", None)
        if said and not suggested:
            complain(f"{getattr(found[question.key], 'length', '')} {said}".strip())
        return text


def _line(question: DiscoveryQuestion, suggestion: str) -> str:
    from sizing.cli.output import print_text

    print_text(f"\n{question.text} {question.why}")
    try:
        return input(f"[{suggestion}] ").strip()
    except EOFError:
        raise KeyboardInterrupt from None
