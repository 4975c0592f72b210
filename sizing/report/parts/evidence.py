"""What published runs say of an answer: how many GPUs are sure to do, and how likely the expected GPUs are to do."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sizing.answers.answer import Outcome
from sizing.answers.counts import NONE_ALIKE
from sizing.formats.view import Line
from sizing.formats.words import money
from sizing.report.parts import bands, screen
from sizing.report.parts.bands import Predicted
from sizing.specs.bands import Sure


class StepFactors(NamedTuple):
    """What step times were multiplied by: medians of so many groups of published runs."""

    decode: float
    prefill: float
    groups: int
    source: str


class SurerType(NamedTuple):
    """Another layout or GPU type: about how many GPUs do, and how many are sure to, as `layout` (`3 x TP2 PP2`)."""

    gpu: str
    gpus: int
    gpus_sure: int
    usd_per_hour: float | None
    layout: str | None = None

    def line(self, about: str = "About ") -> Line:
        """Say so; `about` is empty where a simulation confirmed the GPUs."""
        usd_per_hour = None if self.usd_per_hour is None else self.usd_per_hour * self.gpus_sure / self.gpus
        price = "" if usd_per_hour is None else f", {money(usd_per_hour)}/h"
        shape = "" if self.layout is None else f" = {self.layout}"
        verb = "is" if self.gpus_sure == 1 else "are"
        return Line(f"{about}{self.gpus_sure:,} x {self.gpu}{shape} {verb} sure{price}")


class Evidence(NamedTuple):
    """Published runs like the answer: groups of them, and the share in which its GPUs would keep limits and rate.

    With `own` they are the user's own, of the GPU's profile, each a group.

    `why_not` says why there are no sure GPUs, `correction` what centres the prediction; each is null without. So are
    `gpus_as_predicted` and their type, what the prediction alone needs where the answer takes others for even odds. `surer` is
    another layout or GPU type that is sure at less than the answer, or alone has a sure count.
    """

    groups: int
    chance: float | None
    why_not: str | None
    correction: StepFactors | None
    gpus_as_predicted: int | None = None
    gpu_as_predicted: str | None = None
    own: bool = False
    surer: SurerType | None = None


def evidence(outcome: Outcome, predicted: Iterable[Predicted] = ()) -> Evidence | None:
    """The evidence of an outcome, with whose runs the ranges of `predicted` are; None without an answer."""
    sure = outcome.sure
    if sure is None:
        return None
    ranges = bands.whose(predicted) if sure.why_not == NONE_ALIKE else ""
    why_not = f"{sure.why_not}; {ranges}" if ranges else sure.why_not
    return Evidence(
        sure.groups, sure.chance, why_not, _factors(outcome), *_as_predicted(outcome), sure.own, _surer(outcome)
    )


def _surer(outcome: Outcome) -> SurerType | None:
    found = outcome.surer
    if found is None or found.sure.gpus is None:
        return None
    of, count = found.answer, found.sure.gpus
    replica = of.pool.replica
    shape = f"{count // replica.layout.gpus} x {replica.layout}"
    return SurerType(replica.gpu_type.name, of.gpus, count, of.usd_per_hour, shape)


def is_own(found: Evidence | None) -> bool:
    """Whether ranges are of the user's own runs."""
    return found is not None and found.own


def _factors(outcome: Outcome) -> StepFactors | None:
    if outcome.best is None or outcome.best.separate:
        return None
    by = outcome.correction
    return StepFactors(by.decode, by.prefill, by.groups, by.source) if by.groups else None


def _as_predicted(outcome: Outcome) -> tuple[int | None, str | None]:
    """The GPUs that the prediction alone needs and their type, where the answer takes others for even odds."""
    best, without = outcome.answer, outcome.predicted
    if not outcome.even or best is None or without is None:
        return None, None
    size, own = ((each.gpus, each.pool.replica.gpu_type.name) for each in (without, best))
    return (None, None) if size == own else size


class SureOf(NamedTuple):
    """The sure count of an answer as a record has it: GPUs expected and sure, the confidence, and what runs are to keep."""

    gpus: int
    gpus_sure: int | None
    confidence: float | None
    evidence: Evidence | None
    limited: bool
    by_rate: bool

    def lines(self, without: str = "") -> Iterable[Line]:
        """Yield how many GPUs are sure to do, or why it is not known, and what is surer; nothing where nothing was asked for.

        `without` is what would do without the confidence that was asked for.
        """
        if self.evidence is None or self.confidence is None:
            return
        found = self.evidence
        known = Sure(self.gpus_sure, self.confidence, found.groups, found.chance, found.why_not, found.own)
        yield screen.sure(self.gpus, known, screen.kept_by_runs(self.limited, self.by_rate), without)
        if found.surer is not None:
            yield found.surer.line()
