"""`llmsize memory`: what one GPU's memory holds, and whether a sequence fits."""

from __future__ import annotations

from typing import Any

import typer

from sizing.cli.options import EXPLAIN_OPTIONS, FORMAT_OPTIONS, MEMORY_OPTIONS, takes


@takes((*MEMORY_OPTIONS, *FORMAT_OPTIONS, *EXPLAIN_OPTIONS))
def command(**values: Any) -> None:
    """Show what the memory of one GPU holds, and what fits.

    These are weights, activation, framework, CUDA graphs, KV cache, and the longest sequence that fits.

    Exit codes: 0 fits, 1 does not fit, 2 bad input. The length is the model's maximum without --max-model-len.
    """
    from sizing.answers.deployment import deployment
    from sizing.cli.output import chosen_format, write
    from sizing.cli.rules import check_rules
    from sizing.question.ask import layout_question
    from sizing.question.question import load_data
    from sizing.question.values import Part, options_of
    from sizing.report.memory import document, record

    output = Part(lambda: chosen_format(values))
    rules = Part(lambda: check_rules(("one cache",), MEMORY_OPTIONS, values))
    question = layout_question(options_of(MEMORY_OPTIONS, values), output, rules)
    found = record(deployment(question, load_data()), explained=values["explain"])
    write(document(found), output.value)
    if not found.fits:
        raise typer.Exit(1)
