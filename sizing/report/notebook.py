"""A library result in the forms of the command line: a table in a notebook, a data frame, or JSON."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, TypeGuard, TypeVar

from sizing.answers.answer import Outcome
from sizing.answers.curve import Curve
from sizing.answers.curve_lines import Grid
from sizing.answers.deployment import deployment
from sizing.answers.simulate import Runs, Scenario
from sizing.formats.tables import as_json, as_markdown
from sizing.formats.text import render
from sizing.formats.view import Document, plain
from sizing.launch.findings import Checked
from sizing.model.memory import MemoryUse
from sizing.planning.cost import Bill
from sizing.planning.plan import Plan
from sizing.question.question import Question
from sizing.specs.errors import Fault, InputError
from sizing.specs.frozen import Frozen

T = TypeVar("T")


class Shown(Frozen):
    """A result as a document: a notebook shows its table, `print` shows its text, and programs read its record."""

    document: Document[Any]

    @property
    def record(self) -> Any:
        """The record that `--json` writes, a named tuple."""
        return self.document.record

    def to_dict(self) -> dict[str, Any]:
        """The record in plain types, equal to `--json`."""
        found: dict[str, Any] = plain(self.record)
        return found

    def to_json(self) -> str:
        """The text of `--json`."""
        return as_json(self.document)

    def to_dataframe(self) -> Any:
        """The rows of `--format csv` as a pandas.DataFrame. Raises InputError where pandas is not installed."""
        try:
            pandas = import_module("pandas")  # optional: only this method needs it
        except ImportError:
            raise InputError(Fault("pandas is not installed", remedy="run pip install pandas")) from None
        rows = self.document.rows(self.record)
        return pandas.DataFrame([list(row) for row in rows.rows], columns=list(rows.columns))

    def _repr_markdown_(self) -> str:
        return as_markdown(self.document)

    def __str__(self) -> str:
        return render(self.document)

    __repr__ = __str__


def shown(
    result: Outcome | Runs | Plan | Bill | Curve | MemoryUse | Sequence[Checked] | Sequence[Outcome],
    scenario: Scenario | None = None,
    *,
    question: Question | None = None,
    grid: Grid | None = None,
) -> Shown:
    """A result of `estimate`, `check`, `plan` or `cost`; of others with what they were asked.

    Of `simulate` with its scenario, of `compare` and `memory` with their question, of `curve` with its question and, where it has
    one, its grid. Raises InputError for another result, and for a result without what it was asked.

    >>> from sizing import ask, estimate
    >>> shown(estimate(ask("chat", gpu="h100-sxm", rps=2), simulated=False)).to_dict()["deployment"]["gpus"]
    2
    """
    if isinstance(result, Outcome):
        return _of("estimate", result)
    if isinstance(result, Runs) and scenario is not None:
        return _of("simulate", scenario, result)
    if isinstance(result, Plan):
        from sizing.report.plan import record as of_plan
        from sizing.report.plan import sections as plan_sections

        return Shown(plan_sections.document(of_plan.record(result, title=None, is_fleet=False)))
    if isinstance(result, Bill):
        return _of("cost", result)
    if isinstance(result, Curve) and question is not None:
        from sizing.answers.curve_lines import default_grid
        from sizing.report.curve import record as of_curve
        from sizing.report.curve import sections as curve_sections

        return Shown(curve_sections.document(of_curve.record(result, question, grid or default_grid(question))))
    if isinstance(result, MemoryUse) and question is not None:
        asked = deployment(question)
        if asked.memory != result._replace(max_model_len_that_fits=asked.memory.max_model_len_that_fits):
            raise InputError(Fault("is not the memory of this question", field="question"))
        return _of("memory", asked)
    if _are(result, Checked):
        return _of("check", result)
    if _are(result, Outcome) and question is not None:
        return _of("compare", result, question, question.rules.objective)
    what = f"{type(result).__name__} is no result that can be shown"
    allowed = "of estimate, check, plan and cost; of simulate with its scenario, of compare and memory with their question, of curve with its question and grid"
    raise InputError(Fault(what, allowed=allowed))


def _of(command: str, *answer: Any) -> Shown:
    """An answer as the document of a command, whose file is loaded only then."""
    report = import_module(f"sizing.report.{command}")
    return Shown(report.document(report.record(*answer)))


def _are(result: Any, kind: type[T]) -> TypeGuard[Sequence[T]]:
    """Whether a result is several of a kind, and none of another."""
    several = isinstance(result, (list, tuple)) and not hasattr(result, "_fields")
    return several and bool(result) and all(isinstance(each, kind) for each in result)
