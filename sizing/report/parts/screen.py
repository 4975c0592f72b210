"""The first screen of every command: headline, verdict, figures with their limits, the binding limit, and next commands.

A screen has at most 24 lines of 80 columns. --verbose adds everything else in the record (`formats.details`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sizing.formats.details import KINDS
from sizing.formats.view import Assumption, Line, Segment, Table, Whole, in_words, labelled
from sizing.formats.words import between, gib, money, number, number_down, percent, plural, rounded_usd
from sizing.model.memory import MemoryUse, over_gib, used_gib
from sizing.report.parts.assumptions import LEFT_OUT, PRECISION, beside_weights
from sizing.report.parts.quantities import E2E, ITL, LATENCY_QUANTITIES, TTFT, write_gib
from sizing.report.parts.question import LimitsInMs
from sizing.report.parts.sentences import asked_for
from sizing.specs.bands import ConfidentSize, ErrorBand, of_runs
from sizing.specs.units import HOURS_PER_MONTH, missing_gib

KEPT, MISSED, DIM = "green", "red", "dim"
OK, BINDS, OVER, NONE = "ok", "ok, binds", "missed", "does not apply"
MEAN = "mean"
UNKNOWN = "No published runs like this: how far off the predictions are is not known"
MEASURE = "measure one replica first"
MEASURE_FIRST = f"{MEASURE} (llmsize deploy --benchmark, import, calibrate)"
WAITS = "offline, TTFT has the wait in the queue"
OWN_TIMES = "of a batch, TTFT and E2E begin when the engine takes a document up"
NO_LIMIT = "No latency limit is set"
SINGLE = "one replica: no redundancy"
LIMITS_HOLD, RATE_KEPT, SERVED = "the limits hold", "the rate is kept", "the demand is served"
KEEP = {LIMITS_HOLD: "keep the limits", RATE_KEPT: "keep the rate", SERVED: "serve the demand"}
OBJECTIVES = {
    "gpus": "fewest GPUs",
    "cost": "lowest cost",
    "request-cost": "lowest cost per request",
    "energy": "lowest power",
}
ASSUMED, PRECISION_LAST = 9, 12  # the ranks among spare lines of what is assumed, and of a format that a GPU lacks
LONG_ASSUMED = 140  # characters of assumptions, of which a short screen has only the prices if they are more
MOST_LINES = 3  # for each of: alternatives, refusals
MOST_CHANGES = 5  # helpful changes, on the screen of a question without an answer
MOST_REASONS = 12  # reasons why rows are left out; JSON has the rest
PRICE, IMAGE_ENCODER = "price", "image encoder"
HABITS = ("requests per user per day", "active hours", "peak to mean")
BORROWED, STATED = "borrowed", "as stated in"
NEXT = "--verbose shows the rest"
EXPLAINS = "--explain derives it"
DERIVED = f"{NEXT}, {EXPLAINS}"


class LimitRow(NamedTuple):
    """A predicted figure, its range in 8 of 10 similar published runs, its limit, and whether it keeps the limit."""

    name: str
    predicted: str
    span: str | None
    limit: str | None
    verdict: str

    def style(self) -> str:
        """Green if the limit is kept, red if it is missed."""
        return {OK: KEPT, BINDS: KEPT, OVER: MISSED}.get(self.verdict, "")


JUDGED = (
    in_words("name", "", shown="always"),
    in_words("predicted", "predicted")._replace(is_number=True),
    in_words("span", "likely range", nothing=""),
    in_words("limit", "limit", nothing=""),
    in_words("verdict", "", nothing="", style=LimitRow.style),
)


def figures(rows: Iterable[LimitRow], known: str = "predicted", *, banded: bool = True, note: str = "") -> Table:
    """The table of figures and limits, with a `note`.

    `known` is the heading of the figures. If `banded` and no figure has a range, the table says so.
    """
    found = tuple(rows)
    unknown = banded and not any(row.span for row in found)
    name, value, *others = JUDGED
    columns = (name, value._replace(heading=known), *others)
    notes = [text for text in (UNKNOWN if unknown else "", note) if text]
    return Table(columns, found, notes=tuple(notes))


def latencies(
    value: Callable[[str, str], float | None],
    limits: LimitsInMs,
    band: Callable[[str, str], ErrorBand | None] = lambda name, statistic: None,
    binding: str = "",
) -> Iterator[LimitRow]:
    """Yield TTFT, ITL and E2E, each in the statistic of its limit (the mean without a limit).

    `value` (ms) and `band` take the name of the latency (`ttft_ms`) and the statistic. A task with a single result has one
    latency, from request to result.
    """
    single = value(ITL.key, MEAN) is None and limits[ITL.key] is None and value(E2E.key, MEAN) is not None
    seen: set[tuple[str, float | None]] = set()
    for quantity in LATENCY_QUANTITIES:
        limit = limits[quantity.key]
        statistic = MEAN if limit is None else limit.statistic
        found, error = value(quantity.key, statistic), band(quantity.key, statistic)
        if limit is None and (found is None or (single and (quantity is TTFT or (statistic, found) in seen))):
            continue
        seen.add((statistic, found))
        verdict = ""
        if limit is not None:
            kept = BINDS if binding == quantity.heading.lower() else OK
            verdict = NONE if found is None else kept if found <= limit.ms else OVER
        yield LimitRow(
            f"{'latency' if single else quantity.heading} {statistic}",
            quantity.text_of(found),
            None if error is None else between(error.low, error.high, quantity.write),
            None if limit is None else quantity.write(limit.ms),
            verdict,
        )


def by_name(of: object) -> Callable[[str, str], float | None]:
    """The figures of a record by the name of a latency and a statistic."""
    return lambda name, statistic: getattr(getattr(of, name), statistic)


def bands_in(found: Mapping[str, ErrorBand], path: str = "") -> Callable[[str, str], ErrorBand | None]:
    """The bands of latencies at `path` by their name and statistic."""
    return lambda name, statistic: found.get(f"{path}{name}.{statistic}")


def rate(
    name: str,
    value: float | None,
    least: float | None = None,
    band: ErrorBand | None = None,
    *,
    binds: bool = False,
    down: bool = False,
) -> LimitRow:
    """A rate, or requests in flight, and the `least` value that is asked for; it `binds` where no latency ends the load.

    What is rounded `down` is served if it is asked for.
    """
    kept = least is None or value is None or value >= least * (1 - 1e-9)
    return LimitRow(
        name,
        number_down(value) if down and value else number(value),
        None if band is None else between(band.low, band.high, number),
        None if least is None else f"{number(least)} asked",
        "" if least is None else OVER if not kept else BINDS if binds else OK,
    )


def missed(rows: Iterable[LimitRow]) -> list[str]:
    """The names of figures that miss their limits."""
    return [row.name for row in rows if row.verdict == OVER]


def verdict(text: str, *, good: bool) -> Line:
    """The sentence that states the same verdict as the exit code."""
    return Line(text, style=f"bold {KEPT if good else MISSED}")


def limits_verdict(limited: bool, verified: bool, unreplayed: str = "") -> str:
    """Write that the limits are kept (if `limited`), whether a simulation confirmed it (`verified`), and what of a trace it left out."""
    how = "confirmed by simulation" if verified else "not simulated (--no-verify)"
    if unreplayed:
        how = f"{how}{' of random arrivals' * verified}; {unreplayed}"
    if limited:
        return f"Every limit is kept, {how}"
    return f"{NO_LIMIT}; {'rate ' * verified}{how}"


def unused(budget: int | None, gpus: int, *, later: bool = False) -> str:
    """Write how many GPUs of a budget are to spare; empty if none are. Some figures may be of a `later` size."""
    if budget is None or budget <= gpus:
        return ""
    return f"{budget - gpus:,} of {budget:,} to spare" + ("" if later else f", all figures are of {gpus:,}")


def sure_line(gpus: int, found: ConfidentSize, keeps: str, without: str = "", shape: str = "", first: str = "") -> Line:
    """The expected number of GPUs and the sure number, with which most published runs keep the limits; or why it is unknown.

    The share of runs that the expected number suffices in is said wherever it is known.

    `keeps` comes from `kept_by_runs`. `without` describes the GPUs that suffice without the confidence. `shape` is the layout of
    a replica of the sure number, if it is another than the answer's, and what it costs. `first` is what is better done before a
    sure number that no buyer can use, which is left out then.
    """
    more = f"; {without} without --confidence" if without else ""
    if found.gpus is None and not found.groups:
        return Line(f"Confidence is not known: {found.why_not or 'no published runs like this'}{more}")
    share, count = percent(found.confidence), plural(gpus, "GPU")
    if found.gpus is None:
        runs, groups = of_runs(found.own, any_gpu=found.any_gpu), plural(found.groups, "run" if found.own else "group")
        odds = "" if found.chance is None else f": {keeps} in {percent(found.chance)} of {runs} ({groups})"
        return Line(f"{count}{odds}; no count is sure, {found.why_not}{f'; {first}' if first else ''}{more}")
    alike = of_runs(found.own, any_gpu=found.any_gpu, short=True)
    if found.gpus <= gpus:
        if not shape and found.chance is not None:
            share = percent(max(found.chance, found.confidence))
        far = f"; as runs differ widely, {first}" if first else ""
        return Line(f"{count}{shape} {_keep(keeps, gpus)} in {share} of {alike}{more}{far}")
    sure_of = f"{found.gpus:,}{shape} in {share} or more"
    if found.chance is None:
        said = f"{plural(found.gpus, 'GPU')}{shape} {_keep(keeps, found.gpus)} in {share} of {alike}"
    else:
        said = f"{count} {_keep(keeps, gpus)} in {percent(found.chance)} of {alike}" + ("" if first else f", {sure_of}")
    far = f"; they are too far apart for a sure count: {first}" if first else ""
    return Line(f"{said}{far}{more}")


def _keep(keeps: str, gpus: int) -> str:
    """Write that `gpus` keep what runs keep."""
    verb, _, what = KEEP[keeps].partition(" ")
    return f"{verb}s {what}" if gpus == 1 else f"{verb} {what}"


def served(odds: ConfidentSize, limited: bool, without: float | None) -> Iterator[Line]:
    """Yield the share of published runs that keep the rate of given GPUs, and the load that most keep; why it is unknown.

    `without` is the rate without a confidence, where one was asked for.
    """
    if odds.chance is None:
        yield Line(f"Confidence is not known: {odds.why_not or 'no published runs like this'}")
        return
    rate, users, share = odds.requests_per_s_sure, odds.users_sure, percent(odds.confidence)
    more, people = "", f", or {users:,} users," if users else ""
    if without is not None:
        more = f"; {number(without)} requests/s without --confidence"
    elif odds.chance < odds.confidence:
        more = f"; no rate in {share}" if rate is None else f", {number(rate)} requests/s{people} in {share} or more"
    keeps = "The limits hold at this rate" if limited else "This rate is kept"
    yield Line(f"{keeps} in {percent(odds.chance)} of {of_runs(odds.own, any_gpu=odds.any_gpu, short=True)}{more}")


def kept_by_runs(limited: bool, by_rate: bool) -> str:
    """Write what published runs keep: the limits (if `limited`), else the rate (if `by_rate`), else the demand."""
    return LIMITS_HOLD if limited else RATE_KEPT if by_rate else SERVED


def dollars(usd_per_hour: float | None) -> str:
    """Write the cost of GPUs an hour and a month, around the clock."""
    if usd_per_hour is None:
        return "no price known"
    return f"{money(usd_per_hour)}/h, {rounded_usd(usd_per_hour * HOURS_PER_MONTH)} a month"


def load_words(share: float, *, by_rate: bool) -> str:
    """Write the traffic as a share of the most requests/s that a deployment serves within the limits.

    Where the demand is not stated `by_rate`, its share of the most users or requests in flight is another: more make each slower.
    """
    return f"at {percent(share)} of capacity" + ("" if by_rate else " in requests/s")


def less_margin(most: float, margin: float, what: str = "") -> str:
    """Write how a rate follows from `what` it is before a margin for published runs lowers it; nothing without a margin."""
    if margin == 1:
        return ""
    before = f"{number(most * margin, 3)} {what}".rstrip()
    return f" ({before}, less a margin of {number(margin, 3)} times)"


def of_gpus(count: int) -> str:
    """Write the GPUs that a share refers to."""
    return "one GPU" if count == 1 else f"the {count:,} GPUs"


def memory_line(m: MemoryUse, serving: Mapping[str, Any] | None = None, optimisations: Iterable[str] = ()) -> Line:
    """The weights and KV cache of one GPU, its capacity, and the sequences to which recurrent states lower the engine's own.

    The capacity is in requests of the longest length, as the engine must have room for one. What `optimisations` add to the
    weights is named.
    """
    weights = f"weights {gib(m.weights_gib)}"
    if m.beside_gib and (named := beside_weights(optimisations)):
        weights += f" ({named} {gib(m.beside_gib)})"
    holds = f"{number(m.max_concurrency)} requests up to {m.max_model_len:,} tokens"
    if not m.fits:
        holds = f"{m.max_model_len:,} tokens need {missing_gib(m.deficit_gib)} more"
    parts = f"{weights}, cache {gib(m.kv_cache_gib)} of {gib(m.visible_gib)} GiB"
    if not m.sequence_gib:
        return Line(f"{weights} of {gib(m.visible_gib)} GiB, no KV cache", "Memory")
    own, states = (serving or {}).get("max_num_seqs_lowered_from"), ""
    if serving is not None and own is not None:
        states = f"; --max-num-seqs {serving['max_num_seqs']:,} in place of {own:,}, as recurrent states allow"
    return Line(f"{parts}: {holds}{states}", "Memory")


def share_gib(m: MemoryUse) -> float:
    """The memory that a model takes of a shared card: its engine's budget, or its parts where some come on top of it."""
    return max(m.budget_gib, used_gib(m))


def memory_bar(m: MemoryUse, optimisations: Iterable[str] = (), *, shared: bool = False) -> Whole:
    """The memory of one GPU as a bar of its parts, with what `optimisations` add to the weights. If the parts do not fit the engine's share, the bar is that share.

    So it is on a card that is `shared`, where the rest of the card belongs to other models.

    SGLang keeps activation outside its share, so the missing memory, not the sum of the parts, says what the share holds.
    """
    named = beside_weights(optimisations)
    beside_gib = min(m.beside_gib, m.weights_gib) if named else 0.0
    parts = (
        Segment("weights", m.weights_gib - beside_gib, "W"),
        *([Segment(named, beside_gib, "L")] if beside_gib else []),
        Segment("activation", m.activation_gib, "a"),
        Segment("CUDA graphs and other", m.non_torch_gib + m.cuda_graphs_gib, "o"),
        *([Segment("KV cache", m.kv_cache_gib + m.beyond_card_gib, "K")] if m.sequence_gib else []),
        *([Segment("recurrent states", m.state_cache_gib, "s")] if m.state_cache_gib else []),
    )
    missing = m.deficit_gib - m.sequence_gib - m.shared_prefix_gib  # before any sequence
    if missing > 0 and not m.beyond_card_gib:
        return Whole("Engine", parts, used_gib(m) - missing, write_gib)
    filled = sum(part.size for part in parts)
    if shared:
        return Whole("Share", parts, max(share_gib(m), filled), write_gib)
    return Whole("One GPU", parts, m.visible_gib if over_gib(m) else max(m.visible_gib, filled), write_gib)


def waits(mode: str, *, batch: bool) -> str:
    """Write what latencies of offline work count; empty for other work."""
    return "" if mode != "offline" else OWN_TIMES if batch else WAITS


def first_lines(
    label: str, texts: Sequence[str], noun: str, most: int = MOST_LINES, of: str = "", *, spare: int = 0
) -> Iterator[Line]:
    """Yield the first `most` of `texts`, a line each, and on a screen the number of the others, which `of` describes.

    With all details, the others are there too.
    """
    yield from labelled(label, texts[:most], spare)
    if len(texts) > most:
        more = f"{plural(len(texts) - most, f'more {noun}')}{of}: --verbose"
        yield Line(more, " ", spare=spare, of_screen=True, detailed=tuple(texts[most:]))


def reasons(label: str, found: Iterable[tuple[str, str]]) -> Iterator[Line]:
    """Yield each reason with the number of its rows and one example; `found` has (row, reason)."""
    counted: dict[str, list[str]] = {}
    for name, reason in found:
        counted.setdefault(reason, []).append(name)
    for reason, names in sorted(counted.items(), key=lambda item: -len(item[1]))[:MOST_REASONS]:
        yield Line(f"{plural(len(names), 'row')}: {reason} ({names[0]}{', ...' if len(names) > 1 else ''})", label)
    if len(counted) > MOST_REASONS:
        yield Line(f"and {len(counted) - MOST_REASONS} more reasons, see --json", label)


def would_help(suggestions: Sequence[str]) -> Iterator[Line]:
    """Yield the changes that make a question feasible, or a line that none was found."""
    yield from first_lines("Try", suggestions or ("no single change that was tried",), "change", MOST_CHANGES)


def assumption_lines(assumptions: Sequence[Assumption], *, counted: bool = True, by_day: bool = True) -> Iterator[Line]:
    """Yield the assumptions that a user could have stated, and how the inputs are known.

    The assumptions are `counted` if the list has all assumptions of an answer. The habits of users are left out unless the
    demand is of users or requests `by_day`: no figure on the screen rests on them.
    """
    assumptions = [a for a in assumptions if by_day or a.what not in HABITS]
    for note in dict.fromkeys(str(a.value) for a in assumptions if a.what == PRECISION):  # it changes the numbers
        yield Line(note, "Precision", spare=PRECISION_LAST)
    if left := dict.fromkeys(str(a.value) for a in assumptions if a.what == LEFT_OUT):
        yield Line("; ".join(left), "Left out")
    askable = [a for a in assumptions if a.kind == KINDS[0] and not a.source.startswith(STATED)]
    said = {words: a.what.endswith(PRICE) for a in askable if (words := asked_for(a))}
    borrowed = [a for a in assumptions if str(a.value).startswith(BORROWED)]
    encoders = [f"an image encoder ({a.value})" for a in borrowed if a.what == IMAGE_ENCODER]
    kernels = len(borrowed) - len(encoders)
    texts = [*encoders, *said, *([f"{plural(kernels, 'kernel speed')} of another GPU"] if kernels else [])]
    prices = [text for text in texts if said.get(text)]
    if prices and len(", ".join(texts)) > LONG_ASSUMED:
        yield Line(", ".join(prices), "Assumed", DIM)
        yield Line(", ".join(text for text in texts if text not in prices), " ", DIM, spare=ASSUMED)
    elif texts:
        yield Line(", ".join(texts), "Assumed", DIM)
    counts = [(sum(a.kind == kind for a in assumptions), kind) for kind in reversed(KINDS)]
    words = ", ".join(f"{count} {kind}" for count, kind in counts if count)
    if words and counted:
        yield Line(f"{plural(len(assumptions), 'input')}: {words}", "Rests on", DIM, spare=5)


def next_line(text: str = NEXT, *detailed: str) -> Line:
    """The line with options and commands to try next; `detailed` are the ones that are left with --verbose."""
    return Line(text, "Next", DIM, detailed=detailed)
