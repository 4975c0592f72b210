"""Costs as rows: one an option, at each load that is known."""

from __future__ import annotations

from sizing.formats.view import Row, Rows, plain
from sizing.planning.offers import CostOption
from sizing.report.cost import CostReport

COLUMNS = (
    "option", "kind", "provider", "contract", "gpu", "sku", "units", "gpus", "load", "requests_per_s", "usd_per_year", "usd_per_1k_requests",
    "usd_per_million_input_tokens", "usd_per_million_output_tokens", "usd_per_million_tokens", "capacity_requests_per_s",
    "utilisation_at_load", "date", "source",
)  # fmt: skip


def of(document: CostReport) -> Rows:
    """Return one row an option and load, with the requests/s that its year is of; money is in US dollars."""
    return Rows(COLUMNS, tuple(row for option in document.options for row in _rows(option)))


def _rows(option: CostOption) -> list[Row]:
    found = []
    loads = (("full_use", option.capacity_requests_per_s), (option.load, option.load_requests_per_s))
    for index, (load, per_s) in enumerate(loads):
        tokens = option.usd_per_million_tokens
        row = (
            option.name, option.kind, option.provider, option.contract, option.gpu, option.sku, option.units, option.gpus, load, per_s,
            option.usd_per_year_by_load[index], option.usd_per_1k_requests[index], tokens.input[index], tokens.output[index],
            tokens.total[index], option.capacity_requests_per_s, option.utilisation_at_load, option.date, option.source,
        )  # fmt: skip
        found.append(tuple(plain(value) for value in row))
    return found
