"""Rows that fits leave out, and why: what is known of their runs makes their figures doubtful."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from sizing.catalog.measured import MeasuredRow
from sizing.specs.calibration import NotFitted


def known_of(row: MeasuredRow, rules: Iterable[NotFitted]) -> MeasuredRow | None:
    """The row without the figures that rules exclude; None if a rule excludes the row, or all its figures are."""
    fitting = [rule for rule in rules if rules_out(rule, row)]
    if not all(rule.figures for rule in fitting):
        return None
    known = replace(row, **dict.fromkeys((name for rule in fitting for name in rule.figures), None))  # type: ignore[arg-type]
    return known if known.measured() else None


def rules_out(rule: NotFitted, row: MeasuredRow) -> bool:
    """Whether a rule excludes a row, or figures of it."""
    p99_over_mean = (row.ttft_p99_ms or 0.0) / row.ttft_ms if row.ttft_ms else 0.0
    return (
        (rule.source or "") in row.source
        and re.search(rule.id or "", row.id) is not None
        and (rule.model or "") in row.model
        and rule.isl in (None, row.isl)
        and rule.concurrency in (None, row.concurrency)
        and (rule.notes or "") in row.notes
        and (rule.gpu or "") in row.gpu
        and rule.engine_version in (None, row.engine_version)
        and p99_over_mean >= (rule.p99_over_mean or 0.0)
    )


def doubts(row: MeasuredRow, rules: Iterable[NotFitted]) -> tuple[str, ...]:
    """Why fits leave out a row, or figures of it; empty for a row that nothing is known against."""
    return tuple(
        f"{', '.join(rule.figures)}: {rule.why}" if rule.figures else rule.why
        for rule in rules
        if rule.is_doubt and rules_out(rule, row)
    )
