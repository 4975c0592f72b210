"""`llmsize explain`: a page on one term or optimisation, or the list of pages."""

from __future__ import annotations

from typing import Annotated

import typer

from sizing.cli.options import FORMAT_OPTIONS, takes
from sizing.question.options import GivenOptions


@takes(FORMAT_OPTIONS)
def command(
    given: GivenOptions,
    topic: Annotated[str | None, typer.Argument(help="Topic. Without one, all topics are listed.")] = None,
) -> None:
    """Explain a term or a line of the answers, or an optimisation.

    A page has the meaning, the formula and the sources; for an optimisation also when it helps and when it does not."""
    from sizing.catalog.shelf import named
    from sizing.catalog.topics import TOPICS, load_topic
    from sizing.cli.output import chosen_format, write
    from sizing.report.listings import Listing, TopicReport, document_of_list, document_of_topic
    from sizing.specs.errors import Part, check

    output = Part(lambda: chosen_format(given))
    if topic is None:
        check(output)
        specs = [(name, named(TOPICS, name).spec) for name in TOPICS.ids]
        rows = sorted(((name, spec.name, spec.kind) for name, spec in specs), key=lambda row: row[2], reverse=True)
        write(document_of_list(Listing("topics", ("topic", "about", "kind"), tuple(rows))), output.value)
        return
    found = Part(lambda: load_topic(topic))
    check(output, found)
    stated = found.value.spec.model_dump(exclude={"aliases"})
    write(document_of_topic(TopicReport(topic=found.value.id, **stated)), output.value)
