"""Whole instances: which of a provider's offers holds the pools of a type of GPU, and how many of it each hour takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sizing.plan.fleet import Pool
from sizing.prices import offers_of, usd_per_gpu_hour
from sizing.specs.gpu import Gpu, Price


class Instances(NamedTuple):
    """Instances of one offer, by hour; `joined` says that one of them holds the largest replica, or a node's part of it."""

    offer: Price
    by_hour: tuple[int, ...]
    joined: bool

    @property
    def gpus_by_hour(self) -> tuple[int, ...]:
        """GPUs paid for at each hour."""
        return tuple(count * self.offer.gpus for count in self.by_hour)

    @property
    def usd_per_hour(self) -> float:
        """What the busiest hour costs, and so all of it around the clock."""
        return max(self.gpus_by_hour) * usd_per_gpu_hour(self.offer)


def instances(pools: Sequence[Pool], gpu: Gpu, provider: str) -> Instances:
    """Return the provider's cheapest offer for pools of one type of GPU, each on instances of its own.

    An offer counts that holds a replica in one instance; where none does, GPUs count as if instances were joined. Raises
    InputError where the provider has no price of the type.
    """
    largest = max(size for pool in pools for held in pool.held_by_hour for size, _ in held)
    found = offers_of(gpu, provider)
    holding = [offer for offer in found if offer.gpus >= min(largest, gpu.datasheet.node.gpus)]

    def held(offer: Price) -> Instances:
        hours = zip(*(pool.units_by_hour(offer.gpus) for pool in pools), strict=True)
        return Instances(offer, tuple(map(sum, hours)), bool(holding))

    return min(map(held, holding or found), key=lambda one: one.usd_per_hour)
