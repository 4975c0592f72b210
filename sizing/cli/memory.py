"""`llmsize memory`: the contents of one GPU's memory, and whether a sequence fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from sizing.cli.options import EXPLAIN_OPTIONS, FORMAT_OPTIONS, MEMORY_OPTIONS, takes
from sizing.question.options import GivenOptions, option_table
from sizing.specs.errors import InputError, check
from sizing.specs.units import parse_share

if TYPE_CHECKING:  # loaded when the command runs
    from sizing.answers.deployment import Resolved

HAIR = 1e-9  # rounding tolerance for decimal shares


OPTIONS = (
    *(option._replace(type=list[str] | None) if option.name == "model" else option for option in MEMORY_OPTIONS),
    *option_table("memory"),
)


class CardOptions(NamedTuple):
    """The options of several models on one card."""

    model: list[str] | None
    share: str | None
    memory_fraction: float | None
    engine: str | None


@takes((*OPTIONS, *FORMAT_OPTIONS, *EXPLAIN_OPTIONS))
def command(given: GivenOptions, sequences: int | None, explain: bool, prefix_shared: int | None) -> int:
    """Show what the memory of one GPU holds, and what fits.

    It shows weights, activation, framework, CUDA graphs and KV cache, and the longest sequence that fits. Without
    --max-model-len, one sequence of the model's maximum length must fit.

    Exit codes: 0 fits, 1 does not fit, 2 bad input.
    """
    from sizing.answers.deployment import deployment
    from sizing.answers.memory_changes import fit
    from sizing.cli.output import chosen_format, write
    from sizing.question.ask import layout_question
    from sizing.question.options import check_rules, options_of
    from sizing.report.memory import document, on_one_card, record, shared
    from sizing.specs.errors import Part, positive

    output = Part(lambda: chosen_format(given))
    situations = ("one cache", "a memory", *(() if prefix_shared is not None else ("nothing is shared",)))
    rules = Part(lambda: check_rules(situations, given))
    most = Part(lambda: positive(sequences, "--sequences"))
    members = Part(lambda: _members(given))
    if members.faults:
        check(output, rules, most, members)
    questions = [layout_question(options_of(member), output, rules, most) for member in members.value]
    deployed = [deployment(question) for question in questions]
    check_rules(set.intersection(*(set(_idle(each)) for each in deployed)), given)
    count = most.value or 1
    if len(deployed) == 1:
        write(document(record(deployed[0], count, explained=explain)), output.value)
    else:
        write(shared(on_one_card(deployed, count, explained=explain)), output.value)
    return 0 if fit(deployed, count) else 1


def _idle(deployed: Resolved) -> Iterator[str]:
    """Yield the situations of one layout in which options change nothing of its memory."""
    from sizing.model.footprint import why_no_exchange
    from sizing.question.options import of_service

    yield from of_service(deployed.question.service)
    without = why_no_exchange(deployed.replica.shard)
    if without is not None:
        yield f"buffers of no {without}"


def _members(given: GivenOptions) -> list[GivenOptions]:
    """The options of each model on a shared card. Raises InputError unless there is one share for each model."""
    card = given.read(CardOptions)
    stated = card.share
    names: list[str | None] = [*card.model] if card.model else [None]
    if stated is None and len(names) == 1:
        return [given.with_(model=names[0])]
    try:
        shares = [parse_share(part.strip()) for part in (stated or "").split(",") if part.strip()]
    except ValueError:
        shares = []
    if len(shares) != len(names) or not all(0 < share <= 1 for share in shares) or sum(shares) > 1 + HAIR:
        allowed = f"{len(names)} numbers above 0, one a model, which add up to 1 at most: 0.5,0.3"
        what = f"{stated!r} are no shares of the models" if stated else "is needed"
        raise InputError(what, field="--share", allowed=allowed)
    if card.memory_fraction is not None:
        raise InputError(
            "contradicts --share, which is it", field="--gpu-memory-utilization", remedy="state one of them"
        )
    if card.engine and not card.engine.lower().startswith("vllm"):
        what = "is the memory fraction of vLLM, which is of the whole card"
        raise InputError(what, field="--share", remedy="use --engine vllm")
    return [given.with_(model=name, memory_fraction=share) for name, share in zip(names, shares, strict=True)]
