"""Reading the texts of a measured row: engine version, formats, facts that only its notes state, and what makes it doubtful.

A row that no run can have produced is refused with the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from sizing.catalog.measured import (
    BOUNDS,
    BURSTINESS,
    PERCENT,
    RATE_PER_S,
    SHARE,
    TOKENS_PER_STEP,
    MeasuredRow,
    benchmark_of,
    read_number,
)
from sizing.catalog.models import FoundModel
from sizing.catalog.workloads import load_workload
from sizing.model import settings
from sizing.model.architecture import Layout
from sizing.specs.calibration import NotFitted
from sizing.specs.engine import Engine
from sizing.specs.errors import InputError, nearest
from sizing.specs.measurements import Agreement, Conventions, NoteRule, OfEngine
from sizing.specs.model import Model
from sizing.specs.units import parse_version

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)+")


class NoteFacts(NamedTuple):
    """Facts read from notes; None if the notes do not state them."""

    rate_per_s: float | None = None  # infinite if all requests are sent at once
    attention_dp: int | str | None = None  # a number or `ranks`
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    of_worker: int | None = None  # requests in flight of one of several workers, where the row's are those of all
    capped: str | None = None  # that a client kept requests back
    scheduler_steps: int | None = None  # decode steps that the host schedules at once
    graphs: str | None = None  # `off` without CUDA graphs
    memory_fraction: float | None = None
    statistic: str | None = None
    itl_definition: str | None = None
    lengths: tuple[float, float] | None = None  # the smallest and the largest length, as shares of the stated one
    tailed: str | None = None  # that lengths fall off exponentially
    policy: str | None = None
    speculative: str | None = None  # the method with its drafted tokens, as in --speculative
    tokens_per_step: float | None = None  # the mean that a step gave with `speculative`
    prefix_hit: float | None = None  # in percent of the prompt tokens
    refused: str | None = None
    ran_with: str | None = None  # what tells the run from a plain one, in words
    arrivals: str | None = None  # those at a rate that were not random, in words
    burstiness: float | None = None  # shape of `arrivals`; without it they were even
    pools: str | None = None  # separate pools of prefill and decode, in words


RANKS = "ranks"  # as many as a pipeline stage has GPUs
NUMBERS = {
    "rate_per_s": RATE_PER_S,
    **{name: BOUNDS[name] for name in ("attention_dp", "max_num_seqs", "max_num_batched_tokens")},
    "of_worker": BOUNDS["concurrency"],
    "scheduler_steps": BOUNDS["arrival_poll_steps"],
    "memory_fraction": SHARE,
    "burstiness": BURSTINESS,
    "tokens_per_step": TOKENS_PER_STEP,
    "prefix_hit": PERCENT,
}


def facts_of(notes: str, rules: Iterable[NoteRule]) -> NoteFacts:
    """The facts in `notes`. The first matching rule decides each fact; what a run `ran_with` is all that match.

    Raises InputError for text that is not a number, and for a number that the column with the same meaning would refuse.
    """
    found: dict[str, Any] = {}
    ran_with: list[str] = []
    for rule in rules:
        match = re.search(rule.pattern, notes) if rule.sets not in found else None
        if match and rule.sets == "ran_with":
            ran_with.append((rule.value or "{}").format(*match.groups()))
        elif match:
            found[rule.sets] = rule.spread or _numeric(rule.sets, rule.value or match[1])
    return NoteFacts(**found, ran_with=", ".join(ran_with) or None)


def _numeric(name: str, text: str) -> float | str:
    """The number in `text` if the fact `name` is a number, otherwise `text`."""
    if name not in NUMBERS or text == RANKS:
        return text
    if name == "rate_per_s" and text.lower() == "inf":
        return math.inf
    try:
        return read_number(text, NUMBERS[name])
    except ValueError as error:
        raise InputError(f"{name} {text!r} is {error}", field="notes", allowed=str(NUMBERS[name])) from None


NO_VERSION = "states no version"


def version_of(engine: Engine, stated: str, source: str, conventions: Conventions) -> tuple[str, str | None]:
    """(version to resolve, a note if the profile does not know `stated`).

    The table of spellings is tried first, then the number in the text, clamped to the known range. Otherwise the newest version
    is used.
    """
    for entry in conventions.versions:
        of_source = entry.rows_of is None or entry.rows_of in source
        if entry.engine == engine.name and entry.stated == stated and of_source:
            return entry.version, f"{engine.name} {stated!r} taken as {entry.version}: {entry.why}"
    try:
        return settings.check_version(engine, stated), None
    except InputError:
        pass
    if not stated:
        return engine.newest, f"{engine.name} {NO_VERSION}, taken as the newest, {engine.newest}"
    number = _NUMBER.search(stated)
    if number is None:
        return engine.newest, f"{engine.name} {stated!r} is not known, taken as the newest, {engine.newest}"
    version = held_to_range(engine, number[0])
    known = "" if version == number[0] else "is not known, "
    return version, f"{engine.name} {stated!r} {known}taken as {version}"


def held_to_range(engine: Engine, version: str) -> str:
    """`version`, clamped to the range of the profile."""
    try:
        return settings.check_version(engine, version)
    except InputError:
        older = parse_version(version) < parse_version(engine.oldest)
        return engine.oldest if older else engine.newest


class Setup(NamedTuple):
    """The properties of a row's run that select conventions: engine, version, model, layout and shape."""

    engine: Engine
    version: str
    model_id: str
    layout: Layout
    isl: float
    osl: float

    def is_of(self, entry: OfEngine) -> bool:
        """Whether `entry` of the conventions applies to this setup; its `tp` counts the GPUs of attention."""
        return (
            entry.engine == self.engine.name
            and settings.is_within(self.version, entry.since, entry.until)
            and entry.model in (None, self.model_id)
            and entry.tp in (None, self.layout.tp * self.layout.dp)
            and entry.isl in (None, self.isl)
            and entry.osl in (None, self.osl)
            and (entry.longest is None or self.isl + self.osl <= entry.longest)
        )


def formats_of(
    row: MeasuredRow, engine: Engine, found_model: FoundModel, known: Iterable[str], conventions: Conventions
) -> tuple[str | None, str, str | None]:
    """(weight precision, cache format or `auto`, note if a convention chose the cache format).

    Raises InputError for a spelling that is neither a format nor in the table.
    """
    names = tuple(known)
    weights = weights_of(row, names, conventions) or found_model.precision
    cache = _spelt(row.kv_precision, conventions.cache, (*names, "auto"), "kv_precision") or "auto"
    if cache != "auto":
        return weights, cache, None
    for entry in conventions.unstated_cache:
        of_model = entry.model_of is None or row.model.startswith(entry.model_of)
        of_source = entry.rows_of is None or entry.rows_of in row.source
        if entry.engine == engine.name and weights in entry.weights and of_model and of_source:
            return weights, entry.cache, f"{engine.name}: {entry.cache} cache with {weights} weights"
    return weights, "auto", None


def weights_of(row: MeasuredRow, known: Iterable[str], conventions: Conventions) -> str | None:
    """The weight precision of a row, None where it states none. Raises InputError for an unknown spelling."""
    return _spelt(row.weight_precision, conventions.weights, tuple(known), "weight_precision")


def _spelt(text: str, spellings: Mapping[str, str], known: tuple[str, ...], column: str) -> str | None:
    """The format for a spelling, or None for an empty text. Raises InputError for an unknown spelling."""
    name = text.strip().lower()
    if name in spellings:
        return spellings[name]
    if not name or name in known:
        return name or None
    raise InputError(f"{text!r} is no known format", field=column, nearest=nearest(name, known))


SHORTEST_DECODE = 2  # fewest output tokens for which an ITL exists


def check_stated(row: MeasuredRow, facts: NoteFacts) -> None:
    """Raise InputError for a row that states no result, or too little about its run."""
    if facts.refused:
        raise InputError(facts.refused)
    if not row.measured():
        raise InputError("states no result")
    if row.itl_ms is not None and row.osl < SHORTEST_DECODE:
        raise InputError(f"there is none within outputs of {row.osl:g} tokens", field="itl_ms")
    if row.mode == "closed_loop" and row.concurrency is None:
        raise InputError("states no concurrency", field="concurrency")
    if row.mode == "static_batch" and row.batch is None:
        raise InputError("states no batch", field="batch")
    if row.mode == "open_loop" and facts.rate_per_s is None:
        raise InputError("states no rate", field="notes", allowed="rate=...")


def as_sent(row: MeasuredRow, facts: NoteFacts, allowed: Agreement) -> tuple[MeasuredRow, str | None]:
    """The row with the load that one server saw, and a note that says so where it is another than the row states.

    A rate above capacity keeps every client busy that a cap allows, so the run is a closed loop of them. Raises InputError where
    the cap held back some requests alone: then the run is neither.
    """
    if facts.capped is None or row.mode != "open_loop":
        return of_one_worker(row, facts)
    clients, served, rate = row.concurrency, row.req_per_s, facts.rate_per_s
    busy = row.in_flight is not None and clients is not None and row.in_flight >= allowed.least_busy * clients
    if not busy or served is None or rate is None or served >= allowed.saturated * rate:
        raise InputError(facts.capped)
    note = f"{rate:g} requests/s are above capacity: a closed loop of the {clients:,} that the client allowed"
    return replace(row, mode="closed_loop"), note


def of_one_worker(row: MeasuredRow, facts: NoteFacts) -> tuple[MeasuredRow, str | None]:
    """The row as one worker saw it, and a note that says so; the row as it is where it states the load of one."""
    stated, own = row.concurrency, facts.of_worker
    if own is None or stated is None or stated <= own:
        return row, None
    share = own / stated
    requests = row.num_requests and max(own, round(row.num_requests * share))
    warm_up = row.warmup_requests and round(row.warmup_requests * share)
    note = f"{stated:g} in flight over {round(stated / own)} workers: {own} on each"
    return replace(row, concurrency=own, num_requests=requests, warmup_requests=warm_up), note


def check_layout(row: MeasuredRow, ranks: int, layout: Layout, replicas: int) -> None:
    """Raise InputError unless a layout matches the GPUs, the expert parallelism and the attention ranks of a row."""
    if row.n_gpus not in (None, layout.gpus * replicas):
        tp, pp = row.tp or 1, row.pp or 1
        message = f"{row.n_gpus} GPUs are no whole number of replicas of tp {tp} x pp {pp}"
        raise InputError(message, field="n_gpus", allowed=f"a multiple of {max(layout.gpus, tp * pp)}")
    if row.ep not in (None, layout.ep):
        raise InputError(f"{row.ep} does not divide the {layout.tp * layout.dp} GPUs of a stage", field="ep")
    if ranks not in (1, layout.dp):
        raise InputError(f"{ranks} ranks are more than the GPUs hold, {layout.dp}", field="attention_dp")


def longest_of(row: MeasuredRow) -> int:
    """Tokens of the longest request, prompt and output: from nominal lengths, or from the workload of a system benchmark."""
    of = benchmark_of(row.source, row.model)
    if of is not None:
        return load_workload(of.workload).spec.longest
    return max(2, round(row.isl) + round(row.osl))


def stretched(model: Model, row: MeasuredRow, factor: float) -> tuple[Model, str | None]:
    """A model long enough for the row's requests, and a note if its config states fewer positions.

    Raises InputError for requests longer than `factor` times the stated positions.
    """
    longest, held = longest_of(row), model.max_position
    if longest <= held:
        return model, None
    if longest > factor * held:
        message = f"{longest:,} tokens (ISL + OSL) exceed the {held:,} positions of {model.name}"
        scaled = f"at most {factor * held:,.0f}, with positions scaled by {factor:g}"
        raise InputError(message, field="isl, osl", allowed=scaled)
    return replace(model, max_position=longest), f"requests beyond the {held:,} positions of {model.name}: scaled"


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
