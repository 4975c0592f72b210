"""Layouts of replicas in records and in words: the answer, alternatives that meet the demand, and rejected layouts.

`figures_by_name` gives the figures of any answer, from one pool or from separate pools, under the names in records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from sizing.answers.advice import UNSURE
from sizing.answers.answer import Answer, OtherAnswer, Outcome, Pool
from sizing.catalog import shelf
from sizing.formats.view import Line, filled, labelled
from sizing.formats.words import joined, milliseconds, money, number, plural
from sizing.model.architecture import SIZES, Layout
from sizing.question.question import Question
from sizing.replica.replica import Refusal, cache_format
from sizing.report.parts.figures import mean_ms
from sizing.report.parts.quantities import NoSizes
from sizing.report.parts.question import limits_in_ms, of_replica
from sizing.report.parts.screen import dollars
from sizing.report.parts.sentences import line, said
from sizing.specs.data import Advice
from sizing.specs.units import MILLI, kwh_per_million_tokens, usd_per_million_tokens
from sizing.specs.workload import LATENCIES

T = TypeVar("T")

MOST_OTHERS = 3  # other layouts on a screen; --verbose, JSON and CSV have them all
OTHER, CHEAPER = 8, 16  # the ranks at which a short screen leaves out the first of them, and one that takes fewer GPUs
HARD_REASONS = ("link", "split", "pipeline", "token_budget", "efficiency")  # no other size or limit removes these
UNASKED = ("split", "gpu_budget")  # refusals of sizes that only a user who asks for a size needs to know


class SizedLayout(NamedTuple):
    """The answer: all GPUs, replicas, the layout of one replica, and the nodes (or larger link domains) that it spans.

    With `gpus_sure` GPUs, most similar published runs would keep the limits; null if too few runs are similar.
    """

    gpu: str
    gpu_id: str
    gpus: int
    replicas: int
    gpus_per_replica: int
    sizes: Layout
    nodes_per_replica: int
    gpus_sure: int | None = None


class FewerGpus(NamedTuple):
    """Another layout on the candidate's GPU type that costs less, by the closed form; `--layouts` of `asks` searches for it."""

    layout: str
    gpus: int
    usd_per_hour: float | None
    ttft_ms: float
    itl_ms: float | None
    asks: str

    def words(self) -> str:
        """Write the layout, and the option that asks for it."""
        return f"about {plural(self.gpus, 'GPU')} = {self.layout}; --layouts {self.asks}"


class Limited(NamedTuple):
    """A latency with a limit: the limited statistic, its value and the limit."""

    statistic: str
    ms: float | None
    limit_ms: float


class Alternative(NamedTuple):
    """Another layout that also meets the demand. Latencies are means; `limited` has the limited statistic of each with a limit."""

    gpu: str
    weight_precision: str
    sizes: Layout
    replicas: int
    gpus: int
    requests_per_s_per_gpu: float
    ttft_ms: float
    itl_ms: float
    e2e_ms: float
    usd_per_hour: float | None
    power_w: float
    limit: str
    limited: dict[str, Limited | None] = {}  # noqa: RUF012 - never changed


class RejectedLayout(NamedTuple):
    """A rejected layout and the reason. A `shortfall` of 0.1 is 10 % over a limit or the memory; null if no size helps."""

    gpu: str
    weight_precision: str
    sizes: Layout
    reason: str
    detail: str
    shortfall: float | None


def layout_in(row: Mapping[str, Any]) -> str:
    """Write the layout of a row with the sizes as fields."""
    return str(Layout(**{name: row[name] or 1 for name in SIZES}))


def nodes(pool: Pool) -> int:
    """Nodes, or larger link domains, that a replica of a pool spans."""
    return -(-pool.replica.layout.gpus // pool.replica.gpu_type.gpu.datasheet.island_gpus)


def deployment(best: Answer, outcome: Outcome) -> SizedLayout:
    """The deployment of an answer from one pool, with its sure number of GPUs."""
    return filled(
        SizedLayout,
        figures_by_name(best, outcome.question),
        of_replica(best.pool.replica),
        nodes_per_replica=nodes(best.pool),
        gpus_sure=None if (odds := outcome.by_runs.odds) is None else odds.gpus,
    )


def alternative(answer: Answer, question: Question) -> Alternative:
    """An answer from one pool with the closed-form means of its latencies."""
    closed = {f"{name}_ms": answer.closed_s(name)["mean"] / MILLI for name in LATENCIES}
    return filled(
        Alternative,
        figures_by_name(answer, question),
        **closed,
        limit=answer.pool.capacity.binding,
        limited=limited_statistics(Answer(answer.pools), question),
    )


def limited_statistics(best: Answer | None, question: Question) -> dict[str, Limited | None]:
    """Each latency by name with the statistic that its limit is of; None where it has no limit."""
    found: dict[str, Limited | None] = {}
    for name, limit in limits_in_ms(question.target.limits).items():
        ms = None if best is None or limit is None else mean_ms(best, name, question, limit.statistic)
        found[name] = None if limit is None else Limited(limit.statistic, ms, limit.ms)
    return found


def rejected(refusal: Refusal) -> RejectedLayout:
    """The record of a refusal."""
    shortfall = refusal.shortfall if math.isfinite(refusal.shortfall) else None
    gpu, weights, layout = refusal.gpu_type.name, refusal.precision, refusal.layout
    return RejectedLayout(gpu, weights, layout, refusal.reason, refusal.detail, shortfall)


def instead(best: Alternative, alternatives: Sequence[Alternative], *, demanded: bool = True) -> Iterator[Line]:
    """Yield the nearest other layouts that meet the demand: the best of each shape, and the cheapest of all.

    Unless a rate is `demanded`, each has the rate that it serves. Their number of GPUs is marked as approximate because it comes
    from the closed form; only the answer is simulated. With several GPU types, the best layout of each type and precision comes
    first.
    """
    distinct = _first_of((best, *alternatives), lambda a: (a.gpu, a.weight_precision, a.gpus, a.sizes._replace(ep=1)))[
        1:
    ]
    distinct = [a for a in distinct if is_taken(a, best)]
    by_type = _first_of(distinct, lambda a: (a.gpu, a.weight_precision))
    ordered = _first_of((*by_type, *distinct), lambda a: (a.gpu, a.weight_precision, a.gpus, a.sizes))
    priced = [a for a in ordered if a.usd_per_hour is not None]
    least = min(priced, key=lambda a: a.usd_per_hour or 0.0, default=None)
    shown = ordered[:MOST_OTHERS]
    if least is not None and least not in shown and (least.usd_per_hour or 0.0) < (best.usd_per_hour or math.inf):
        shown[-1] = least
    shown.sort(key=list(alternatives).index)  # the order of the record
    first = CHEAPER if shown and shown[0].gpus < best.gpus else OTHER
    lines = labelled("Instead", [_called(best, a, demanded) for a in shown])
    yield from (each._replace(spare=(MOST_OTHERS + 1 - at) if at else first) for at, each in enumerate(lines))


def is_taken(a: Alternative, best: Alternative) -> bool:
    """Whether a buyer might take another layout. One on another GPU type or in other weights always counts.

    Any other takes at most `most_gpus` times the GPUs, leaves no GPU of a node unused unless the answer does, and with more
    GPUs has a lower latency. Replicas that fill no node may fill nodes together.
    """
    if (a.gpu, a.weight_precision) != (best.gpu, best.weight_precision):
        return True
    rules = shelf.only(Advice)
    slower = all(getattr(a, f"{name}_ms") >= getattr(best, f"{name}_ms") for name in LATENCIES)
    fills = rules.fills_nodes(a.sizes.gpus) or rules.fills_nodes(a.gpus) or not rules.fills_nodes(best.sizes.gpus)
    return fills and a.gpus <= rules.most_gpus * best.gpus and not (slower and a.gpus > best.gpus)


def other_types(
    best: Alternative, alternatives: Sequence[Alternative], refused: Sequence[RejectedLayout], *, demanded: bool = True
) -> Iterator[Line]:
    """Yield a line with the price of each GPU type that is not in the answer, and the types that cannot serve the demand.

    Unless a rate is `demanded`, each has the rate that it serves. A single other type that serves it is among the other
    layouts, so it yields no line.
    """
    served = [a for a in _first_of((best, *alternatives), lambda a: a.gpu) if a.gpu != best.gpu]
    able = {best.gpu, *(a.gpu for a in served)}
    left = dict.fromkeys(r.gpu for r in refused if r.gpu not in able)
    unsure = [name for name in left if any(r.reason == UNSURE for r in refused if r.gpu == name)]
    unable = [name for name in left if name not in unsure]
    if len(served) < 2 and not left:
        return
    prices = ("no price" if a.usd_per_hour is None else f"{money(a.usd_per_hour)}/h" for a in served)
    costs = [
        f"{a.gpus:,} x {a.gpu} {price}{_rate(a, ' for ', demanded)}" for a, price in zip(served, prices, strict=True)
    ]
    texts = [f"about {_some(costs)}"] if costs else []
    if unable:
        texts.append(f"{_some(unable)} cannot serve it")
    if unsure:
        texts.append(f"no count of {_some(unsure)} is sure")
    yield Line("; ".join(texts), "Others")


def _some(texts: Sequence[str]) -> str:
    """The first of several texts, and how many others there are."""
    more = len(texts) - MOST_OTHERS
    return ", ".join(texts[:MOST_OTHERS]) + (f" and {more} more" if more > 0 else "")


def _rate(a: Alternative, after: str, demanded: bool) -> str:
    """Write the rate that a layout serves `after` a word, unless all serve the demand."""
    return "" if demanded else f"{after}{number(a.requests_per_s_per_gpu * a.gpus)}/s"


def _called(best: Alternative, a: Alternative, demanded: bool) -> str:
    gpus = plural(a.gpus, "GPU") if a.gpu == best.gpu else f"{a.gpus} x {a.gpu}"
    fewer = a.sizes.pp > 1 and a.gpu == best.gpu and a.gpus < best.gpus
    own = {
        "weights": None if a.weight_precision == best.weight_precision else a.weight_precision,
        "rate": None if demanded else a.requests_per_s_per_gpu * a.gpus,
        "first": _latency(a, "ttft_ms", "TTFT" if a.itl_ms else "latency"),
        "itl": _latency(a, "itl_ms", "ITL") if a.itl_ms else None,
        "asks": None if not fewer else "pipelines" if best.sizes.pp == 1 else "all",
    }
    return said("other layout", a, gpus=gpus, **own)


def _latency(a: Alternative, name: str, called: str) -> str:
    """Write a latency in the statistic of its limit, named unless it is the mean."""
    limited: Limited | None = a.limited.get(name)
    if limited is None or limited.ms is None or limited.statistic == "mean":
        return f"{called} {milliseconds(getattr(a, name))}"
    return f"{called} {limited.statistic} {milliseconds(limited.ms)}"


def not_possible(rejected: Sequence[RejectedLayout], said: str, *, asked: bool) -> list[str]:
    """The nearest refusal of each GPU type and reason, in words. Refusals that another size or limit would remove come first.

    The reason that is already `said` is left out. Unless a size is `asked` for, so are sizes that do not divide the model or
    are beyond the budget.
    """
    shown = (r for r in rejected if r.reason != said and (asked or r.reason not in UNASKED))
    nearest = sorted(shown, key=_nearness)
    return [f"{r.gpu} {r.sizes}: {r.detail}" for r in _first_of(nearest, lambda r: (r.gpu, r.reason))]


def _nearness(r: RejectedLayout) -> tuple[bool, float, int]:
    """The order of refusals: the smallest excess over a limit or memory first, then refusals by hardware or engine."""
    return (
        r.reason in HARD_REASONS,
        math.inf if r.shortfall is None else r.shortfall,
        r.sizes.tp * r.sizes.pp * r.sizes.dp * r.sizes.cp,
    )


def _first_of(found: Iterable[T], key: Callable[[T], Hashable]) -> list[T]:
    """The first layout with each key, in order."""
    firsts: dict[Hashable, T] = {}
    for entry in found:
        firsts.setdefault(key(entry), entry)
    return list(firsts.values())


def shape(answer: Answer) -> str:
    """Write replicas and layouts: `2 x TP4`, or `prefill 2 x TP4 + decode 1 x TP8` with GPU types if they differ."""
    mixed = len({pool.replica.gpu_type.id for pool in answer.pools}) > 1

    def called(pool: Pool) -> str:
        gpu = f" {pool.replica.gpu_type.name}" if mixed else ""
        return f"{pool.name} {pool.count} x {pool.replica.layout}{gpu}".strip()

    return " + ".join(map(called, answer.pools))


def figures_by_name(answer: Answer, question: Question) -> dict[str, Any]:
    """The figures of an answer under the names in records. Figures of a single layout are null for two pools.

    Equal GPU types and formats are named once. Latencies are means at the answer's load. Money and energy are around the clock.
    Costs are null without a price, and figures by output token are null without output tokens.
    """
    replicas = [pool.replica for pool in answer.pools]
    whole = None if answer.separate else answer.pool
    outputs_per_s = answer.requests_per_s * question.service.output_tokens
    tokens_per_s, pooled = outputs_per_s + answer.requests_per_s * question.service.isl, question.service.model.pooled
    usd = answer.usd_per_hour
    return {
        "gpu": joined(replica.gpu_type.name for replica in replicas),
        "weight_precision": joined(replica.plan.weight_format for replica in replicas),
        "kv_precision": joined(cache_format(replica) for replica in replicas),
        "layout": shape(answer),
        "replicas": None if whole is None else whole.count,
        "sizes": NoSizes() if whole is None else whole.replica.layout,
        "gpus": answer.gpus,
        "gpus_per_replica": None if whole is None else whole.replica.layout.gpus,
        "requests_per_s": answer.requests_per_s,
        "requests_per_s_per_gpu": answer.requests_per_s / answer.gpus,
        "max_requests_per_s_per_gpu": answer.most_per_gpu,
        **{f"{name}_ms": mean_ms(answer, f"{name}_ms", question) for name in LATENCIES},
        "usd_per_hour": usd,
        "power_w": answer.power_w,
        "usd_per_month": answer.usd_per_month,
        "usd_per_million_output_tokens": None if pooled else usd_per_million_tokens(usd, outputs_per_s),
        "usd_per_million_tokens": usd_per_million_tokens(usd, tokens_per_s),
        "limited": limited_statistics(answer, question),
        "kwh_per_million_output_tokens": None if pooled else kwh_per_million_tokens(answer.power_w, outputs_per_s),
    }


def headline(gpus: int, gpu: str | None, shape: str, usd_per_hour: float | None) -> str:
    """Write an answer: `10 x H100 = 5 replicas x TP2, $61.55/h, $44,900 a month`; `gpu` is None for pools of two types."""
    return f"{plural(gpus, 'GPU') if gpu is None else f'{gpus} x {gpu}'} = {shape}, {dollars(usd_per_hour)}"


def fewer(outcome: Outcome, best: Answer) -> FewerGpus | None:
    """The cheaper layout after the answer of `outcome`."""
    if best.separate or len(outcome.answers) < 2:
        return None
    other = outcome.answers[1]
    asks = "pipelines" if best.pool.replica.layout.pp == 1 else "all"
    return filled(FewerGpus, figures_by_name(other, outcome.question), asks=asks)


class BesideAnswer(NamedTuple):
    """What serves the demand with further `options`, by the closed form; null figures where nothing does."""

    options: str
    gpus: int | None = None
    gpu: str | None = None
    layout: str | None = None
    requests_per_s: float | None = None
    usd_per_hour: float | None = None


def beside(answer: OtherAnswer | None, question: Question) -> BesideAnswer | None:
    """The record of an answer with further options."""
    if answer is None:
        return None
    figures = {} if answer.answer is None else figures_by_name(answer.answer, question)
    return filled(BesideAnswer, figures, BesideAnswer(answer.options))


def at_usual_limits(beside: BesideAnswer | None, *, demanded: bool = True) -> Iterator[Line]:
    """Yield what usual limits take; without a demand, the rate of the GPUs given."""
    if beside is None:
        return
    usd, size = beside.usd_per_hour, None
    if demanded and beside.gpus is not None and beside.layout is not None:
        size = f"about {headline(beside.gpus, beside.gpu, beside.layout, usd)}"
    yield line("usual limits", beside, size=size)


def with_fp8(beside: BesideAnswer | None, rank: int) -> Iterator[Line]:
    """Yield what FP8 weights take, of a `rank` among spare lines."""
    if beside is not None and beside.gpus is not None:
        yield line("FP8", beside)._replace(spare=rank)
