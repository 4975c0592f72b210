"""`llmsize whatif`: the effect of each optimisation, alone and together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sizing.cli.options import FORMAT_OPTIONS, VERIFY_OPTIONS, WorkloadName, takes
from sizing.question.options import QUESTION_OPTIONS, GivenOptions, without

if TYPE_CHECKING:
    from sizing.question.question import Question

NOT_TAKEN = ("confidence", "conservative")  # sizes are compared as predicted
OPTIONS = without(QUESTION_OPTIONS, *NOT_TAKEN)


@takes((*OPTIONS, *FORMAT_OPTIONS, *VERIFY_OPTIONS))
def command(given: GivenOptions, no_verify: bool, workload: WorkloadName = None) -> int:
    """Try each optimisation that applies, alone and together.

    For each it shows GPUs, latency and cost before and after, what the optimisation needs and what it risks.

    Exit codes: 0 feasible with or without optimisations, 1 infeasible in both cases, 2 bad input.
    """
    from sizing.answers.whatif import whatif
    from sizing.cli.output import chosen_format, write
    from sizing.question.ask import question_of
    from sizing.question.options import options_of
    from sizing.report.whatif import document, record
    from sizing.specs.errors import Part

    output = Part(lambda: chosen_format(given))
    question = question_of(workload, options_of(given), output, pooled=True)

    def changed(options: Mapping[str, Any]) -> Question:
        return question_of(workload, options_of(given.with_(**options)), pooled=True)

    trials = whatif(question, changed, simulated=not no_verify)
    found = record(question, trials, {option.name: option.flags[0] for option in OPTIONS})
    write(document(found), output.value)
    return 0 if found.feasible else 1
