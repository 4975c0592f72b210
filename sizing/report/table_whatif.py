"""`llmsize whatif` for the terminal: before, each optimisation alone, the best of them together, needs and risks."""

from __future__ import annotations

from collections.abc import Iterator

from sizing.formats.text import Block, blocks_of
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, money, number, plural
from sizing.report.documents_whatif import OptionReport, Sensitivity, Sized, WhatIfReport
from sizing.report.parts.assumptions import assumed
from sizing.report.parts.question import lengths, optimised

COLUMNS = ("optimisation", "GPU", "GPUs", "req/s/GPU", "TTFT", "ITL", "$/M tokens")
NOTE = "req/s/GPU is the most that a GPU serves within the limits; latencies are means at the demand"
SIMULATED = "; as it is and best together are simulated, the others the closed form's, held against its own"
NOTHING = "-"
RIGHT = (False, False, True, True, True, True, True)


def blocks(document: WhatIfReport) -> Iterator[Block]:
    """Yield the blocks of the report."""
    i, base = document.inputs, document.base
    weights = i["weight_precision"] if base is None else base.weight_precision
    cache = i["kv_precision"] if base is None else base.kv_precision
    yield Block((Line(_verdict(document), style="bold"),))
    yield Block(
        (
            Line(f"{i['model']}, {weights.upper()} weights, {cache.upper()} KV cache", "Model"),
            Line(lengths(i), "Workload"),
            Line(f"{i['engine_title']} {i['engine_version']}", "Engine"),
            *optimised(i),
            *_layouts(document),
        )
    )
    rows = tuple(_rows(document))
    if rows:
        several = len(i["gpus_considered"]) > 1
        note = NOTE + (SIMULATED if document.base is not None and document.base.verified else "")
        columns = [k for k, name in enumerate(COLUMNS) if several or name != "GPU"]
        kept = [k for k in columns if any(row[k] != NOTHING for row in rows)]
        yield Block(
            (Line(note, style="dim"),),
            tuple(COLUMNS[k] for k in kept),
            tuple(RIGHT[k] for k in kept),
            tuple(tuple(row[k] for k in kept) for row in rows),
        )
    helpful = [option for option in document.options if option.helps]
    told = [line for option in helpful for line in _told(option)]
    if len(helpful) < len(document.options):
        told.append(Line("--json has what the others need and risk", "More"))
    told += [
        Line(f"{one.name}: {one.reason}", "Not possible" if n == 0 else " ")
        for n, one in enumerate(document.not_possible)
    ]
    if told:
        yield Block(tuple(told))
    yield from blocks_of(assumed(document.assumptions, sources=False))


def _layouts(document: WhatIfReport) -> Iterator[Line]:
    """Yield what runs before and after."""
    if document.base is not None:
        yield Line(document.base.layout, "As it is")
    if document.best is not None:
        yield Line(document.best.answer.layout, "Best together")


def _verdict(document: WhatIfReport) -> str:
    base, best = document.base, document.best
    if best is None:
        return "Nothing that was tried helps" if base else "Infeasible, and no optimisation that was tried changes that"
    checked = "" if best.answer.verified else " (not simulated)"
    what = f"{' + '.join(best.names)}: {plural(best.answer.gpus, 'GPU')}{checked}"
    if base is None:
        return f"Feasible with {what}; infeasible without"
    if best.gpus_saved:
        return f"{what} in place of {base.gpus:,}"
    return f"{what}, as without; each could serve {number(best.answer.max_requests_per_s_per_gpu)} in place of {number(base.max_requests_per_s_per_gpu)} requests/s"


def _rows(document: WhatIfReport) -> Iterator[tuple[str, ...]]:
    if document.base is not None:
        yield ("as it is", *_figures(document.base))
    closed = document.base_closed_form
    if document.base is not None and closed is not None and closed.gpus != document.base.gpus:
        yield ("closed form", *_figures(closed))  # which the others are held against
    for option in document.options:
        yield (option.name, *_figures(option))
    if document.best is not None:
        yield ("best together", *_figures(document.best.answer))


def _figures(found: Sized | OptionReport) -> tuple[str, ...]:
    return (
        found.gpu,
        f"{found.gpus:,}",
        number(found.max_requests_per_s_per_gpu),
        milliseconds(found.ttft_ms),
        milliseconds(found.itl_ms),
        money(found.usd_per_million_output_tokens),
    )


def _told(option: OptionReport) -> Iterator[Line]:
    yield Line(f"{option.options}  ({option.title})", option.name)
    yield Line(f"needs {option.needs}", " ")
    yield Line(f"risk: {option.risk}", " ", "dim")
    if option.sensitivity:
        parts = ", ".join(map(_varied, option.sensitivity))
        yield Line(f"assumes {option.assumes}; {parts}", " ")


def _varied(one: Sensitivity) -> str:
    if one.gpus is None:
        return f"{one.value:g} is infeasible"
    return f"{one.value:g} gives {plural(one.gpus, 'GPU')} and {number(one.max_requests_per_s_per_gpu)} req/s/GPU"
