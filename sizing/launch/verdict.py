"""What a check says of a deployment: its findings, with its GPUs and their cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from sizing.answers.answer import Answer
from sizing.answers.check import Held
from sizing.catalog.profiles import load_gpu
from sizing.launch.existing import Existing
from sizing.launch.terms import layout_of
from sizing.question.question import Question
from sizing.specs.gpu import GpuType
from sizing.specs.launch import Launched
from sizing.specs.units import SECONDS_PER_HOUR

Level = Literal["ok", "warning", "error"]
MILLION = 1e6


class CheckFinding(NamedTuple):
    """The finding for one rule that a deployment must keep: the rule, its level, a message, and its file and line.

    It is `judged` unless what the rule bounds is not known.
    """

    rule: str
    level: Level
    message: str
    file: str
    line: int | None = None
    judged: bool = True


class Checked(NamedTuple):
    """A deployment with its findings; `held` is None if it was not compared with the demand."""

    name: str
    parts: tuple[Existing, ...]
    question: Question | None
    held: Held | None
    findings: tuple[CheckFinding, ...]

    @property
    def passed(self) -> bool:
        """Whether no finding is an error."""
        return all(finding.level != "error" for finding in self.findings)

    @property
    def replicas(self) -> int:
        """The replicas of all its pools."""
        return sum(part.launched.replicas or 0 for part in self.parts)

    @property
    def gpus(self) -> int:
        """The GPUs that all its replicas take: those that their containers reserve, at least those on which they run."""
        return sum(_taken(part.launched) for part in self.parts)

    @property
    def idle_gpus(self) -> int:
        """The GPUs that are reserved beyond those on which replicas run."""
        return self.gpus - sum(_runs_on(part.launched) for part in self.parts)

    def gpus_of(self, size: Answer) -> int:
        """The GPUs that another number of its replicas takes, reserved ones included."""
        each = {part.launched.role: _taken_by_one(part.launched) for part in self.parts}
        return sum(pool.count * each[pool.phase] for pool in size.pools)

    @property
    def gpus_at_least(self) -> bool:
        """Whether it takes all GPUs of its server, more than it needs: `gpus` are then the fewest, and nothing states the number."""
        return any(part.whole and not fills(part) for part in self.parts)

    @property
    def usd_per_hour(self) -> float | None:
        """The cost of its GPUs an hour; None unless every price is known."""
        types = () if self.question is None else tuple(_types(self.question))
        prices = {each.id: each.usd_per_gpu_hour for each in types}
        costs = [(prices.get(_profile(part.launched)), _taken(part.launched)) for part in self.parts]
        known = [price * gpus for price, gpus in costs if price is not None]
        return sum(known) if len(known) == len(costs) else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """The cost of a million output tokens (prompt tokens for a task without output).

        They are those of the demand, or without one of the most within the limits. None without a price, where neither is known,
        and where the demand is more than it serves.
        """
        found = self.held
        if self.question is None or self.usd_per_hour is None or found is None or (found.utilisation or 0.0) > 1:
            return None
        most, served = found.most_requests_per_s, None if found.answer is None else found.answer.requests_per_s
        asked = self.question.target.requests_per_s if served is None else served
        rate = 0.0 if most is None and served is None else min(each for each in (asked, most) if each is not None)
        service = self.question.service
        tokens = (service.output_tokens or service.isl) * rate * SECONDS_PER_HOUR
        return self.usd_per_hour / tokens * MILLION if tokens else None


def _runs_on(launched: Launched) -> int:
    return (launched.replicas or 0) * layout_of(launched).gpus


def fills(part: Existing) -> bool:
    """Whether its replicas run on all GPUs of a usual server."""
    gpu = part.launched.gpu
    return gpu is not None and _runs_on(part.launched) == load_gpu(gpu).spec.datasheet.node.gpus


def _profile(launched: Launched) -> str:
    """The id of the profile of its GPUs, which are named by a path if the profile is the user's own."""
    return "" if launched.gpu is None else load_gpu(launched.gpu).id


def _taken(launched: Launched) -> int:
    return (launched.replicas or 0) * _taken_by_one(launched)


def _taken_by_one(launched: Launched) -> int:
    """The GPUs that a replica takes: those that its containers reserve, also where it runs on fewer."""
    return max(layout_of(launched).gpus, launched.reserved_gpus or 0)


def _types(question: Question) -> Iterator[GpuType]:
    pools = question.space.pools
    yield from question.space.gpu_types if pools is None else (*pools.prefill.gpu_types, *pools.decode.gpu_types)


def finding(
    part: Existing, rule: str, kept: bool, words: str, *fields: str, level: Literal["warning", "error"] = "error"
) -> CheckFinding:
    """The finding for a rule on a part. Its line is that of the first of `fields` with a line, else of the command."""
    return CheckFinding(rule, "ok" if kept else level, words, part.file, part.line(*fields, "command"))
