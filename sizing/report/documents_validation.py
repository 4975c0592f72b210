"""What `llmsize validate` prints: predictions against measured rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from sizing.evidence.errors import ErrorFigures, Group


class Named(NamedTuple):
    """A row and the reason why it was skipped, or predicted as nothing."""

    id: str
    reason: str


class Taken(NamedTuple):
    """What was assumed where rows leave it unsaid, and for how many rows."""

    what: str
    rows: int


class ValidationReport(NamedTuple):
    """The document of `llmsize validate`.

    `rows` were read, `predicted` of them compared; `missed` ones count among these as predicted 0, for the model can't
    run them; `skipped` ones are not compared. Errors are shares: 0.1 is 10 %.
    """

    inputs: dict[str, Any]
    rows: int
    predicted: int
    skipped: tuple[Named, ...]
    missed: tuple[Named, ...]
    metrics: dict[str, ErrorFigures]
    groups: tuple[Group, ...]
    assumptions: tuple[Taken, ...]
    schema: str = "llmsize.validation/1"
