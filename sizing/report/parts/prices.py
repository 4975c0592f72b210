"""GPU types compared by typical prices, which are of different providers or dates: the same at providers that offer several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from sizing.answers.answer import Answer
from sizing.catalog.prices import providers_offers, typical_offer, usd_per_gpu_hour
from sizing.formats.view import Line
from sizing.formats.words import money
from sizing.question.question import Question
from sizing.report.parts.screen import DIM
from sizing.report.parts.sentences import line

MOST_NAMED = 3  # providers on a screen; JSON has them all


class AtProvider(NamedTuple):
    """What answers cost at one provider, on demand: $/h by the id of their GPU type, the cheapest first."""

    provider: str
    usd_per_hour: dict[str, float]

    def cheaper_than(self, first: str) -> bool:
        """Whether another GPU type costs less here, as money is written."""
        least, usd = min(self.usd_per_hour.values()), self.usd_per_hour[first]
        return least < usd and money(least) != money(usd)


class Turn(NamedTuple):
    """The price of the cheapest GPU type from which the `next` one costs less, and its typical, lowest and highest known price."""

    next: str
    usd_per_gpu_hour: float
    typical: float
    lowest: float
    highest: float

    @property
    def near(self) -> bool:
        """Whether a provider's price is as high, so that buyers may meet the other order."""
        return self.usd_per_gpu_hour <= self.highest


class PriceOrder(NamedTuple):
    """The order of GPU types by typical prices, the cheapest first, and what each provider of the first and another type charges."""

    typical: tuple[str, ...]
    providers: tuple[AtProvider, ...]
    turn: Turn | None = None

    def turning(self) -> Iterator[Line]:
        """Yield from which price on another GPU type costs less."""
        if (turn := self.turn) is not None:
            yield line("other price", turn, first=self.typical[0])._replace(style=DIM)

    def line(self) -> Line:
        """Write that the prices are of different providers, who offers several of the types in which order, and a near turn."""
        (first, *others), turn, all_ = self.typical, self.turn, self.providers
        near = turn is not None and turn.near
        turns = [each for each in all_ if each.cheaper_than(first)]
        stays = [each.provider for each in all_ if each not in turns]
        there = next(iter(turns), None)
        other, usd = (None, None) if there is None else next(iter(there.usd_per_hour.items()))
        own: dict[str, object] = {"there": there, "more": len(turns) - 1 or None, "other": other, "usd": usd}
        own["usd_first"] = None if there is None else there.usd_per_hour[first]
        apart = len(others) > 1 and all_ and not any(others[0] in each.usd_per_hour for each in all_)
        own |= {"second": others[0] if apart else None, "many": len(self.typical) if len(others) > 1 else 0}
        own |= {"stays": _named(stays) if stays and not near else None, "none": not all_}
        own |= {"above": turn.usd_per_gpu_hour if near and turn else None, "next": turn and turn.next}
        return line("prices", first=first, **own)._replace(style=DIM)


def price_order(answers: Iterable[Answer], question: Question) -> PriceOrder | None:
    """The order of the GPU types of answers by price; None unless typical prices of several providers or dates are compared.

    Where the order is by the cost of a request, prices by the hour do not say it.
    """
    if question.rules.objective == "request-cost":
        return None
    of_type: dict[str, Answer] = {}
    for each in answers:
        if not each.separate and each.usd_per_hour is not None and each.pool.replica.gpu_type.price_providers:
            known = of_type.setdefault(each.pool.replica.gpu_type.id, each)
            if each.gpus < known.gpus:
                of_type[each.pool.replica.gpu_type.id] = each
    offers = [typical_offer(each.pool.replica.gpu_type.gpu) for each in of_type.values()]
    if len({(offer.provider, offer.date) for offer in offers if offer is not None}) < 2:
        return None
    typical = sorted(of_type, key=lambda id_: of_type[id_].usd_per_hour or 0.0)
    ordered = [of_type[id_] for id_ in typical]
    return PriceOrder(tuple(typical), tuple(_at_providers(ordered)), _turn(*ordered[:2]))


def _turn(first: Answer, following: Answer | None = None) -> Turn | None:
    """From which price of the first answer's GPU type the following answer costs less; None without one."""
    if following is None or following.usd_per_hour is None or first.usd_per_hour is None:
        return None
    known = [usd_per_gpu_hour(offer) for offer in providers_offers(first.pool.replica.gpu_type.gpu)]
    type_ = following.pool.replica.gpu_type.id
    usd = following.usd_per_hour / first.gpus, first.usd_per_hour / first.gpus
    return Turn(type_, *usd, min(known), max(known)) if known else None


def _at_providers(ordered: Sequence[Answer]) -> Iterable[AtProvider]:
    """Yield the costs at each provider that offers the GPU type of the first answer and another."""
    found: dict[str, dict[str, float]] = {}
    for each in ordered:
        gpu_type = each.pool.replica.gpu_type
        for offer in providers_offers(gpu_type.gpu):
            found.setdefault(offer.provider, {})[gpu_type.id] = usd_per_gpu_hour(offer) * each.gpus
    first = ordered[0].pool.replica.gpu_type.id
    for provider, costs in sorted(found.items()):
        if first in costs and len(costs) > 1:
            yield AtProvider(provider, dict(sorted(costs.items(), key=lambda item: item[1])))


def _named(providers: Sequence[str]) -> str:
    """The first of several names, and how many others there are."""
    more = len(providers) - MOST_NAMED
    return ", ".join(providers[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
