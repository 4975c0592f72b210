"""`llmsize roofline`: operations under the GPU's roof, and the batch at which decoding becomes compute-bound."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import FORMAT_OPTIONS, STEP_OPTIONS, takes
from sizing.question.options import GivenOptions, option_table

if TYPE_CHECKING:
    from pathlib import Path

    from sizing.report.roofline import StepSizes

OWN_OPTIONS, LENGTH_OPTIONS = option_table("roofline"), option_table("lengths")


class RooflineOptions(NamedTuple):
    """The options of the command itself."""

    batch: str | None
    prefill: str | None
    context: int | None
    plot: str | None
    isl: int | None
    osl: int | None


@takes((*OWN_OPTIONS, *STEP_OPTIONS, *LENGTH_OPTIONS, *FORMAT_OPTIONS))
def command(given: GivenOptions) -> None:
    """Show how near operations come to the limits of the GPU.

    It also finds the batch size from which compute limits decode, and no longer memory bandwidth."""
    from sizing.answers.deployment import deployment
    from sizing.cli.output import chosen_format, write, write_picture
    from sizing.question.ask import layout_question
    from sizing.question.options import check_rules, of_layout, options_of
    from sizing.report.roofline import document, figure, record
    from sizing.specs.errors import Part

    output, read = Part(lambda: chosen_format(given)), Part(lambda: _read(given.read(RooflineOptions)))
    new = Part(lambda: check_rules(("a roofline",), given))
    question = layout_question(options_of(given), output, read, new)
    sizes, picture = read.value
    deployed = deployment(question)
    check_rules(of_layout(deployed.replica.layout), given)
    found = record(deployed, sizes)
    write(document(found), output.value)
    write_picture(picture, lambda: [figure(found)])


def _read(own: RooflineOptions) -> tuple[StepSizes, Path | None]:
    """The sizes to show and the picture to draw. Raises InputError with all faults."""
    from sizing.cli.reader import MOST, MOST_CONTEXT, Reader
    from sizing.report.roofline import StepSizes
    from sizing.specs.units import LISTED_NUMBERS, whole_numbers

    def listed(text: str | None, option: str) -> tuple[int, ...] | None:
        return read.parsed(text, option, lambda text: whole_numbers(text, MOST), LISTED_NUMBERS)

    with Reader() as read:
        batches, prompts = listed(own.batch, "--batch"), listed(own.prefill, "--prefill")
        isl, osl = read.whole(own.isl, "--isl"), read.whole(own.osl, "--osl")
        context = read.whole(own.context, "--context", most=MOST_CONTEXT)
        if own.context is not None and (own.isl is not None or own.osl is not None):
            read.fault("is stated by --isl and --osl already", "--context", "either of the two")
        elif (own.isl is None) != (own.osl is None):
            read.fault("are the mean context together", "--isl, --osl", "both, or --context")
        picture = read.picture(own.plot)
    if isl is not None and osl is not None:
        context = isl + osl // 2
    return StepSizes(batches, prompts, context), picture
