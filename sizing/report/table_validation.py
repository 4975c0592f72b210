"""Errors of predictions for the terminal: a table a metric, then what was left out and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.formats.words import plural
from sizing.report.documents_validation import Named, ValidationReport
from sizing.validation.errors import ErrorFigures

TITLES = {
    "ttft_ms": "TTFT",
    "itl_ms": "ITL",
    "e2e_ms": "E2E",
    "req_per_s": "requests/s",
    "output_tok_per_s": "output tokens/s",
}
MOST_REASONS = 12  # the rest is in JSON


def blocks(document: ValidationReport) -> Iterator[Block]:
    """Yield the blocks of the report."""
    yield Block(
        (
            Line(
                f"{plural(document.rows, 'row')}: {document.predicted:,} predicted, {len(document.missed):,} of them "
                f"missed, {len(document.skipped):,} skipped",
                style="bold",
            ),
            Line(
                "Relative error of the prediction in %: median of |error|, its 90th percentile, bias (median); share of "
                "measurements inside their error band in %; rows."
            ),
        )
    )
    by = tuple(document.inputs["by"])
    for metric, of_all in document.metrics.items():
        rows = [
            (*(group.by[name] or "-" for name in by), *_cells(group.metrics[metric]))
            for group in document.groups
            if metric in group.metrics
        ]
        yield Block(
            columns=(*by, "median", "p90", "bias", "inside", "n"),
            right=(*(False for _ in by), True, True, True, True, True),
            rows=(*rows, (f"all, {TITLES[metric]}", *("" for _ in by[1:]), *_cells(of_all))),
        )
    yield from _reasons("Missed", document.missed)
    yield from _reasons("Skipped", document.skipped)
    yield Block(tuple(Line(f"{taken.what} ({plural(taken.rows, 'row')})", "Taken") for taken in document.assumptions))


def _cells(found: ErrorFigures) -> tuple[str, str, str, str, str]:
    return (
        f"{100 * found.median_ape:.1f}",
        f"{100 * found.p90_ape:.1f}",
        f"{100 * found.bias:+.1f}",
        f"{100 * found.band_coverage:.0f}" if found.band_coverage is not None else "-",
        f"{found.n:,}",
    )


def _reasons(label: str, named: Iterable[Named]) -> Iterator[Block]:
    counted: dict[str, list[str]] = {}
    for entry in named:
        counted.setdefault(entry.reason, []).append(entry.id)
    most = Counter({reason: len(ids) for reason, ids in counted.items()}).most_common()
    lines = [
        Line(f"{plural(number, 'row')}: {reason} ({counted[reason][0]}{', ...' if number > 1 else ''})", label)
        for reason, number in most[:MOST_REASONS]
    ]
    if len(most) > MOST_REASONS:
        lines.append(Line(f"and {len(most) - MOST_REASONS} more reasons, see --json", label))
    yield Block(tuple(lines))
