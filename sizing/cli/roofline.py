"""`llmsize roofline`: operations under the GPU's roof, and the batch at which decoding becomes compute-bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sizing.cli.options import FORMAT_OPTIONS, STEP_OPTIONS, takes
from sizing.question.options import option_table

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.report.roofline import StepSizes

OWN_OPTIONS, LENGTH_OPTIONS = option_table("roofline"), option_table("lengths")


@takes((*OWN_OPTIONS, *STEP_OPTIONS, *LENGTH_OPTIONS, *FORMAT_OPTIONS))
def command(**values: Any) -> None:
    """Show how near operations come to the limits of the GPU.

    It also finds the batch size from which compute limits decode, and no longer memory bandwidth."""
    from sizing.answers.deployment import deployment
    from sizing.cli.output import chosen_format, write, write_picture
    from sizing.question.ask import layout_question
    from sizing.question.options import check_rules, of_layout, options_of
    from sizing.report.roofline import document, figure, record
    from sizing.specs.errors import Part

    output, asked = Part(lambda: chosen_format(values)), Part(lambda: _asked(values))
    new = Part(lambda: check_rules(("a roofline",), STEP_OPTIONS, values))
    question = layout_question(options_of(STEP_OPTIONS, values), output, asked, new)
    sizes, picture = asked.value
    deployed = deployment(question)
    check_rules(of_layout(deployed.replica.layout), STEP_OPTIONS, values)
    found = record(deployed, sizes)
    write(document(found), output.value)
    if picture is not None:
        write_picture(picture, (figure(found),))


def _asked(given: dict[str, Any]) -> tuple[StepSizes, Path | None]:
    """The sizes to show and the picture to draw. Raises InputError with all faults."""
    from sizing.cli.reader import MOST, MOST_CONTEXT, Reader
    from sizing.report.roofline import StepSizes
    from sizing.specs.units import LISTED_NUMBERS, whole_numbers

    read = Reader(given)
    batches, prompts = (
        read.parsed(name, lambda text: whole_numbers(text, MOST), LISTED_NUMBERS) for name in ("batch", "prefill")
    )
    isl, osl = read.whole("isl"), read.whole("osl")
    context = read.whole("context", most=MOST_CONTEXT)
    if given["context"] is not None and (given["isl"] is not None or given["osl"] is not None):
        read.fault("is stated by --isl and --osl already", "--context", "either of the two")
    elif (given["isl"] is None) != (given["osl"] is None):
        read.fault("are the mean context together", "--isl, --osl", "both, or --context")
    picture = read.picture()
    read.check()
    if isl is not None and osl is not None:
        context = isl + osl // 2
    return StepSizes(batches, prompts, context), picture
