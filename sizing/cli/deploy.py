"""`llmsize deploy`: the launch command or manifests for the answer of `estimate`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sizing.cli.options import VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import QUESTION_OPTIONS, option_table

if TYPE_CHECKING:
    from sizing.question.question import Question

DEPLOY_OPTIONS = option_table("deploy")


@takes((*QUESTION_OPTIONS, *DEPLOY_OPTIONS, *VERIFY_OPTIONS))
def command(workload: WorkloadName = None, **values: Any) -> int:
    """Write the launch command or manifests of what `estimate` answers.

    The flags are those of the engine version. `llmsize check` reads the result back.

    Exit codes: 0 written, 1 infeasible, 2 bad input.
    """
    from sizing.answers.estimate import estimate
    from sizing.cli.estimate import to_size
    from sizing.cli.output import complain, print_text, write_file
    from sizing.cli.reader import written_apart
    from sizing.formats.tables import json_line
    from sizing.launch.answer import Checkpoints, at_rank
    from sizing.launch.deploy import check_target, check_tool, deploy
    from sizing.question.ask import question_of
    from sizing.question.options import check_rules, of_kind, options_of
    from sizing.report.parts.pools import limit_and_reason
    from sizing.specs.errors import Part

    target, tool, output = values["target"] or "kubernetes", values["benchmark"], values["output"]
    asked = Part(lambda: check_target(target))
    known = Part(lambda: check_tool(tool))
    stated = options_of(QUESTION_OPTIONS, {**values, "engine": _engine(target, workload, values)})
    stated = stated._replace(configured=stated.configured | {"prefix_caching"})  # which is written, whatever it changes
    apart = [] if workload is None else [workload]
    file = Part(lambda: written_apart(None if output == "-" else output, apart, option="--output"))
    question = question_of(workload, stated, asked, known, file, pooled=True)
    situations = (*of_kind(question, rows=True), *_idle(question, values))
    check_rules(situations, (*QUESTION_OPTIONS, *DEPLOY_OPTIONS), values)
    outcome = estimate(to_size(at_rank(question), values), simulated=not values["no_verify"], relaxed=False)
    if outcome.answer is None:
        complain(f"infeasible: {limit_and_reason(outcome)[1]}")
        return 1
    checkpoints = Checkpoints(values["checkpoint"], values["draft_model"])
    written = deploy(outcome, target, checkpoints=checkpoints, tool=tool)
    text = json_line(written) if values["json"] else written.benchmark or written.text
    if file.value is None:
        print_text(text)
    else:
        write_file(file.value, "--output", f"{text}\n")
    return 0


def _idle(question: Question, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the situations in which options of this command change nothing that it writes."""
    from sizing.launch.deploy import ENGINES

    if question.service.extras.speculation is None:
        yield "nothing is drafted"
    if values["benchmark"] and not values["json"] and values["target"] not in ENGINES:
        yield "a benchmark of any target"


def _engine(target: str, workload: str | None, values: Mapping[str, Any]) -> str | None:
    """The engine: that of an option or the workload, else the target's engine."""
    from sizing.launch.deploy import ENGINES
    from sizing.question.names import workload_at
    from sizing.specs.errors import InputError

    stated, own_engine = values["engine"], ENGINES.get(target)
    if any(text.startswith("serving.engine") for text in values["set"] or ()):
        return None
    if isinstance(stated, str) and not _gives_way(stated, own_engine, values):
        return stated
    try:
        own = workload is not None and "engine" in workload_at(workload).spec.serving.model_fields_set
    except InputError:  # reported later with all other faults
        own = False
    return None if own else own_engine


def _gives_way(stated: str, own: str | None, values: Mapping[str, Any]) -> bool:
    """Whether a stated engine comes from a setting and differs from the target's own."""
    from sizing.catalog.profiles import load_engine
    from sizing.question.options import CONFIGURED

    return own is not None and "engine" in values.get(CONFIGURED, ()) and load_engine(stated)[0].id != own
