"""Layouts beside the answer, for the terminal: the others that meet the demand, and the nearest that do not."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from sizing.formats.text import Block
from sizing.formats.view import Line
from sizing.formats.words import milliseconds, money, plural
from sizing.report.documents import Alternative, Estimate, RejectedLayout
from sizing.report.parts.layouts import layout

T = TypeVar("T")

MOST_LAYOUTS = 6  # beside the answer, of one GPU type; JSON and CSV have them all
MOST_TYPES = 12
MOST_REJECTED = 4
LEAST_SAVING = 0.01  # of the price an hour, below which another layout is not called cheaper
HARD_REASONS = ("link", "split", "pipeline", "token_budget", "efficiency")  # no size and no limit would change these

Compared = tuple[int, str, str, str, str, str, str]  # GPUs, GPU, layout, weights, TTFT, ITL, $/h


def compared(document: Estimate) -> Block:
    """The layouts that meet the demand: the best few of one GPU type, or the best of each of several."""
    several = len(document.inputs["gpus_considered"]) > 1
    found = list(_distinct(document))
    if several:
        by_precision = _first_of(found, lambda row: (row[1], row[3]))
        found = by_precision if len(by_precision) <= MOST_TYPES else _first_of(found, lambda row: row[1])
    shown = found[: MOST_TYPES if several else MOST_LAYOUTS + 1]
    if len(shown) < 2:
        return Block()
    columns = ("GPUs", "GPU", "layout", "weights", "TTFT", "ITL", "$/h")
    right = (True, False, False, False, True, True, True)
    told = [i for i in range(len(columns)) if columns[i] not in ("GPU", "weights") or _differs(shown, i)]
    more = len(found) - len(shown)
    what = "GPU type" if several else "layout"
    notes = []
    if document.simulation is not None:
        notes.append("only the first row was simulated, the others are the closed form's")
    if more:
        notes.append(f"{plural(more, f'more {what}')}: --format csv")
    return Block(
        lines=(Line("; ".join(notes), style="dim"),) if notes else (),
        columns=tuple(columns[i] for i in told),
        right=tuple(right[i] for i in told),
        rows=tuple(tuple(str(row[i]) for i in told) for row in shown),
    )


def cheaper(document: Estimate) -> Iterator[Line]:
    """Yield a line for the cheapest layout where it costs clearly less than the answer, as the fewest GPUs favour dear ones.

    An answer without a price can't be compared; then the cheapest is named with its price alone.
    """
    cost, demand = document.cost, document.inputs["demand"]
    demanded = (
        demand["requests_per_s"] is not None or demand["concurrency"] is not None
    )  # else each serves another load
    priced = [a for a in document.alternatives if a.usd_per_hour is not None]
    if cost is None or not priced or not demanded or document.inputs["objective"] == "cost":
        return
    least = min(priced, key=lambda a: (a.usd_per_hour or 0.0, a.gpus))
    assert least.usd_per_hour is not None
    saved = ""
    if cost.usd_per_hour is not None:
        share = least.usd_per_hour / cost.usd_per_hour - 1
        if share > -LEAST_SAVING:
            return
        saved = f" ({share * 100:.0f} %)"
    weights = (
        f" {least.weight_precision.upper()}" if least.weight_precision != document.inputs["weight_precision"] else ""
    )
    checked = "" if document.simulation is None else ", not simulated"
    label = "Cheaper" if saved else "Cheapest known"
    shape = layout(least)
    yield Line(
        f"{label}: {least.gpus} x {least.gpu}{weights} = {plural(least.replicas, 'replica')} x {shape}, "
        f"{money(least.usd_per_hour)}/h{saved}{checked}; --objective cost"
    )


def _differs(rows: Sequence[Compared], column: int) -> bool:
    return len({row[column] for row in rows}) > 1


def _distinct(document: Estimate) -> Iterator[Compared]:
    """Yield the answer and the other layouts in order, without those that differ in expert parallelism and nothing else."""
    seen = set()
    for a in (*_as_alternative(document), *document.alternatives):
        numbers = (milliseconds(a.ttft_ms), milliseconds(a.itl_ms or None), money(a.usd_per_hour))
        key = (a.gpus, a.gpu, a.weight_precision, a.replicas, a.tp, a.pp, a.dp, a.cp, a.dcp, numbers)
        if key not in seen:
            seen.add(key)
            shape = f"{a.replicas} x {layout(a)}"
            yield (a.gpus, a.gpu, shape, a.weight_precision, *numbers)


def _as_alternative(document: Estimate) -> Iterator[Alternative]:
    d, latency, cost, throughput = document.deployment, document.latency, document.cost, document.throughput
    if d and latency and cost and throughput:
        yield Alternative(
            gpu=d.gpu,
            weight_precision=document.inputs["weight_precision"],
            tp=d.tp,
            pp=d.pp,
            ep=d.ep,
            dp=d.dp,
            cp=d.cp,
            dcp=d.dcp,
            replicas=d.replicas,
            gpus=d.gpus,
            requests_per_s_per_gpu=throughput.requests_per_s_per_gpu,
            ttft_ms=latency.ttft_ms.mean or 0.0,
            itl_ms=latency.itl_ms.mean or 0.0,
            e2e_ms=latency.e2e_ms.mean or 0.0,
            usd_per_hour=cost.usd_per_hour,
            power_w=cost.power_w,
            limit=document.limiting.limit,
        )


def rejected(document: Estimate) -> Iterator[Line]:
    """Yield the misses that teach something: of one GPU type the nearest, of several one for each type left out."""
    several = len(document.inputs["gpus_considered"]) > 1
    shown = _of_types(document) if several else _of_layouts(document)
    for index, r in enumerate(shown):
        label = "Not possible" if index == 0 else " "
        subject = f"{r.gpu} {layout(r)}" if several else layout(r)
        yield Line(f"{subject}: {r.detail}", label)
    more = len(document.rejected) - len(shown)
    if more:
        noun = "more layout" if shown else "layout"
        yield Line(f"{plural(more, noun)} rejected: --format csv lists each", " " if shown else "Not possible")


def _nearness(r: RejectedLayout) -> tuple[bool, float, int]:
    """Order of misses: what a limit or memory stopped by how little, then what the hardware or engine refuses."""
    over = float("inf") if r.shortfall is None else r.shortfall
    return (r.reason in HARD_REASONS, over, _gpus(r))


def _gpus(r: RejectedLayout) -> int:
    """GPUs of a replica."""
    return r.tp * r.pp * r.dp * r.cp


def _of_layouts(document: Estimate) -> list[RejectedLayout]:
    # What the hardware or engine refuses teaches nothing beside an answer, unless it is all there is.
    teaching = [r for r in document.rejected if r.reason not in HARD_REASONS]
    nearest = sorted(teaching or ([] if document.feasible else document.rejected), key=_nearness)
    distinct = _first_of(nearest, lambda r: (r.reason in HARD_REASONS or r.tp, r.reason))
    return distinct[:MOST_REJECTED]


def _of_types(document: Estimate) -> list[RejectedLayout]:
    """The nearest miss of every GPU type without a layout that meets the demand, fewest GPUs first."""
    feasible = {a.gpu for a in document.alternatives}
    if document.deployment is not None:
        feasible.add(document.deployment.gpu)
    nearest = sorted(document.rejected, key=_nearness)
    of_type = _first_of([r for r in nearest if r.gpu not in feasible], lambda r: r.gpu)
    return sorted(of_type, key=lambda r: (_gpus(r), r.gpu))


def _first_of(found: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """Return the first of those with one key, in order."""
    firsts: dict[Hashable, T] = {}
    for entry in found:
        firsts.setdefault(key(entry), entry)
    return list(firsts.values())
