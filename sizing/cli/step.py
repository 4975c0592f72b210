"""`llmsize step`: one step, operation by operation."""

from __future__ import annotations

from sizing.cli.options import FORMAT_OPTIONS, STEP_OPTIONS, takes
from sizing.question.options import DISAGGREGATION_OPTIONS, GivenOptions, option_table, with_help

OWN_OPTIONS = option_table("step")
OPTIONS = (*STEP_OPTIONS, *with_help(DISAGGREGATION_OPTIONS, "one layout"))


@takes((*OWN_OPTIONS, *OPTIONS, *FORMAT_OPTIONS))
def command(
    given: GivenOptions, decode: int | None, context: int | None, prefill: int | None, prior: int | None
) -> None:
    """Time one step of the engine, operation by operation.

    A step has decoding sequences, prompt tokens, or both.

    With --disaggregate, the prompt is timed on the prefill pool, the sequences on the decode pool, and the transfer of the cache
    between them.
    """
    from sizing.answers.deployment import deployment
    from sizing.cli.output import chosen_format, write
    from sizing.cli.reader import MOST_CONTEXT, Reader
    from sizing.question.ask import layout_question
    from sizing.question.names import Layers
    from sizing.question.options import check_rules, of_layout, options_of
    from sizing.report import step as report
    from sizing.specs.errors import InputError, Part, check

    def batch_of() -> report.StepLoad:
        with Reader() as read:
            load = report.StepLoad(
                read.whole(decode, "--decode", least=0) or 0,
                read.whole(context, "--context", least=0, most=MOST_CONTEXT) or 0,
                read.whole(prefill, "--prefill", least=0) or 0,
                read.whole(prior, "--prior", least=0, most=MOST_CONTEXT) or 0,
            )
        if load.decode == 0 and load.prefill == 0:
            remedy = "use --decode N (sequences), --prefill N (tokens), or both"
            raise InputError("the step is empty", field="--decode, --prefill", remedy=remedy)
        if load.decode and load.context == 0:
            raise InputError("decoding sequences need a context", field="--context", allowed="tokens above zero")
        if load.context and load.decode == 0:
            raise InputError("is that of decoding sequences", field="--context", remedy="use it with --decode")
        if load.prior and load.prefill == 0:
            raise InputError("is that of a prompt", field="--prior", remedy="use it with --prefill")
        return load

    output, batch = Part(lambda: chosen_format(given)), Part(batch_of)
    new = Part(lambda: check_rules(("a step",), given))
    options = options_of(given)
    question = layout_question(options, output, batch, new)
    work = batch.value
    if work.decode and question.service.model.pooled:
        raise InputError(f"{question.service.task} decodes nothing", field="--decode", remedy="use --prefill alone")
    if question.space.pools is None:
        deployed = deployment(question)
        check_rules(of_layout(deployed.replica.layout), given)
        write(report.document(report.record(deployed, work)), output.value)
        return
    from sizing.answers.pools import pair_of_layouts

    pair = Part(lambda: pair_of_layouts(question), Layers(options.fields, options.flags, None).by_field)
    check(pair)
    write(report.document_of_pools(report.record_of_pools(pair.value, work)), output.value)
