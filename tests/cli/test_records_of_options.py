"""The records that commands read their options into have the types of these options, by the same names."""

from __future__ import annotations

from importlib import import_module
from typing import Any, get_type_hints

import pytest

from sizing.question.options import COUNT, PRICE, SHARE, option_table, table_rows

# Types of options that are checked when they are read, and the plain types that their values have then.
PLAIN = {COUNT: int | None, SHARE: float | None, PRICE: float | str | None}
RECORDS = {
    "check": "CheckOptions", "compare": "CompareOptions", "cost": "WayOptions", "curve": "CurveOptions", "deploy": "DeployOptions",
    "estimate": "EstimateOptions", "measured": "RowOptions", "options": "SimulateOptions", "output": "OutputOptions",
    "plan": "PlanOptions", "roofline": "RooflineOptions", "sweep": "SweepOptions", "validate": "ValidateOptions",
}  # fmt: skip


def types_by_name() -> dict[str, set[Any]]:
    """The types of the options of each name, over all tables: a command may take one of them as text or as a number."""
    found: dict[str, set[Any]] = {}
    for table in {row[0] for row in table_rows("options.csv")}:
        for option in option_table(table):
            found.setdefault(option.name, set()).add(PLAIN.get(option.type, option.type))
    return found


@pytest.mark.parametrize("module", RECORDS)
def test_a_record_has_the_types_of_its_options(module: str) -> None:
    known, fields = types_by_name(), get_type_hints(getattr(import_module(f"sizing.cli.{module}"), RECORDS[module]))
    assert fields
    assert {name: kind for name, kind in fields.items() if kind not in known.get(name, ())} == {}
