"""`llmsize deploy`: the launch command or manifests for the answer of `estimate`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import QUESTION_OPTIONS, GivenOptions, option_table

if TYPE_CHECKING:
    from sizing.question.question import Question

DEPLOY_OPTIONS = option_table("deploy")


class DeployOptions(NamedTuple):
    """The options of the command itself, and the engine, which follows from the target."""

    target: str | None
    checkpoint: str | None
    draft_model: str | None
    benchmark: str | None
    output: str | None
    json: bool
    no_verify: bool
    engine: str | None


@takes((*QUESTION_OPTIONS, *DEPLOY_OPTIONS, *VERIFY_OPTIONS))
def command(given: GivenOptions, workload: WorkloadName = None) -> int:
    """Write the launch command or manifests of what `estimate` answers.

    The flags are those of the engine version. `llmsize check` reads the result back.

    Exit codes: 0 written, 1 infeasible, 2 bad input.
    """
    from sizing.cli.estimate import answered, with_trace
    from sizing.cli.output import complain, print_text, write_file
    from sizing.cli.reader import written_apart
    from sizing.formats.tables import json_line
    from sizing.launch.answer import Checkpoints, at_rank
    from sizing.launch.deploy import check_target, check_tool, deploy
    from sizing.question.ask import question_of, with_confidence
    from sizing.question.options import check_rules, of_kind, options_of
    from sizing.report.parts.pools import limit_and_reason
    from sizing.specs.errors import Part

    own = given.read(DeployOptions)
    target = own.target or "kubernetes"
    asked, known = Part(lambda: check_target(target)), Part(lambda: check_tool(own.benchmark))
    stated = options_of(given.with_(engine=_engine(own, target, workload, given)))
    stated = stated._replace(configured=stated.configured | {"prefix_caching"})  # which is written, whatever it changes
    apart = [] if workload is None else [workload]
    file = Part(lambda: written_apart(None if own.output == "-" else own.output, apart, option="--output"))
    traced = with_trace(workload, stated, given, asked, known, file)
    stated = traced.options
    question = question_of(workload, stated, asked, known, file, pooled=True)
    check_rules((*of_kind(question, rows=True), *_idle(question, own)), given)
    sized = with_confidence(at_rank(question), stated)
    outcome = answered(sized, traced.minute, simulated=not own.no_verify, relaxed=False)
    if outcome.answer is None:
        complain(f"infeasible: {limit_and_reason(outcome)[1]}")
        return 1
    checkpoints = Checkpoints(own.checkpoint, own.draft_model)
    unplayed = traced.minute is not None and own.no_verify
    written = deploy(outcome, target, checkpoints=checkpoints, tool=own.benchmark, unplayed=unplayed)
    text = json_line(written) if own.json else written.benchmark or written.text
    if file.value is None:
        print_text(text)
    else:
        write_file(file.value, "--output", lambda: f"{text}\n")
    return 0


def _idle(question: Question, own: DeployOptions) -> Iterator[str]:
    """Yield the situations in which options of this command change nothing that it writes."""
    from sizing.launch.deploy import ENGINES

    if question.service.extras.speculation is None:
        yield "nothing is drafted"
    if own.benchmark and not own.json and own.target not in ENGINES:
        yield "a benchmark of any target"


def _engine(own: DeployOptions, target: str, workload: str | None, given: GivenOptions) -> str | None:
    """The engine: that of an option or the workload, else the target's engine."""
    from sizing.launch.deploy import ENGINES
    from sizing.question.names import workload_at
    from sizing.specs.errors import InputError

    stated, of_target = own.engine, ENGINES.get(target)
    if any(text.startswith("serving.engine") for text in given.texts_of_set):
        return None
    if stated is not None and not _gives_way(stated, of_target, given):
        return stated
    try:
        has_own = workload is not None and "engine" in workload_at(workload).spec.serving.model_fields_set
    except InputError:  # reported later with all other faults
        has_own = False
    return None if has_own else of_target


def _gives_way(stated: str, own: str | None, given: GivenOptions) -> bool:
    """Whether a stated engine comes from a setting and differs from the target's own."""
    from sizing.catalog.profiles import load_engine

    return own is not None and "engine" in given.settings and load_engine(stated)[0].id != own
