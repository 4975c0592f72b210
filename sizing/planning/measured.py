"""Plans and bills from measured rows: reserves, growth and cost of measured replicas instead of predicted ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sizing.answers.measured_lines import Measured
from sizing.answers.measured_size import MeasuredSize
from sizing.catalog.profiles import named_gpu
from sizing.planning.cost import Ways, options_of_type, prices_of, split_of
from sizing.planning.growth import Growing, GrownSize, growing
from sizing.planning.nodes import Fit, UnreachableError
from sizing.planning.offers import CostOption, api
from sizing.planning.rules import ProvisionRules
from sizing.planning.size import Need, Size, size_of
from sizing.planning.usage import BY_TIME, ByLoad, Split, Usage, load_of
from sizing.question.ask import MeasuredQuestion
from sizing.specs.errors import Fault, InputError
from sizing.specs.gpu import GpuType


class MeasuredFleet(NamedTuple):
    """A measured layout with its reserve and its growth; `usd_per_hour` uses the planning price."""

    of: MeasuredSize
    gpu_type: GpuType
    need: Need
    size: Size
    growth: Growing | None

    @property
    def usd_per_hour(self) -> float | None:
        """$ an hour of all GPUs; None without a price."""
        price = self.gpu_type.usd_per_gpu_hour
        return None if price is None else price * self.size.gpus


def type_of(size: MeasuredSize, question: MeasuredQuestion) -> GpuType:
    """The GPU type of a measured layout.

    Raises InputError where the GPU has no profile: the profile says how many GPUs a server holds.
    """
    known = next((found for found in question.gpu_types if found.id == named_gpu(size.line.gpu)[0]), None)
    if known is None:
        what = f"{size.line.gpu} has no profile, so nothing says how many a server holds, nor what they cost"
        raise InputError(Fault(what, field="--from", allowed="rows of a GPU that llmsize gpus shows"))
    return known


def need_of(size: MeasuredSize, question: MeasuredQuestion, gpu_type: GpuType) -> Need:
    """The need of a measured layout: its demand, and the measured capacity of one replica."""
    target, fit = question.target, Fit(size.line.gpus or 1, gpu_type.gpu.datasheet.node.gpus)
    by_users = target.population is not None and not size.by_flight
    demand = size.requests_per_s if by_users or target.amount is None else target.amount
    headroom = 0.0 if by_users else question.headroom  # for users, the demand already includes it
    return Need(demand, size.most, headroom, fit, size.replicas, size.by_flight).with_replicas(size.replicas)


def fleets(
    sizes: Sequence[MeasuredSize], question: MeasuredQuestion, rules: ProvisionRules
) -> tuple[MeasuredFleet, ...]:
    """Every measured layout with its reserve, fewest GPUs first. Raises InputError where no reserve reaches the availability."""
    found: list[MeasuredFleet] = []
    faults: list[Fault] = []
    for size in sizes:
        gpu_type = type_of(size, question)
        need = need_of(size, question, gpu_type)
        try:
            planned = size_of(need, rules)
        except UnreachableError as error:
            faults.append(Fault(str(error), field="--availability"))
            continue
        found.append(MeasuredFleet(size, gpu_type, need, planned, _growth(need, rules)))
    if not found and faults:
        raise InputError(faults)
    return tuple(sorted(found, key=lambda each: each.size.gpus))


def _growth(need: Need, rules: ProvisionRules) -> Growing | None:
    if rules.growth_per_month is None:
        return None

    def size(times: float) -> GrownSize:
        grown = size_of(replace(need, base=need.replicas(times)), rules)
        return grown.replicas, grown.gpus, grown.nodes, None, None

    return growing(rules.growth_per_month, rules.start, rules.until, size, rules.lead_time)


def bill(
    sizes: Sequence[MeasuredSize], measured: Measured, question: MeasuredQuestion, ways: Ways
) -> tuple[CostOption, ...]:
    """Every way to pay for the first measured layout of each GPU type, sorted by cost per year.

    Raises InputError where no type has prices for these ways.
    """
    split = split_of(ways)
    found: list[CostOption] = []
    faults: list[Fault] = []
    taken: dict[str, MeasuredSize] = {}
    for size in sizes:
        taken.setdefault(type_of(size, question).id, size)
    for size in taken.values():
        gpu_type = type_of(size, question)
        usage = usage_of(size, measured, question, split)
        try:
            options = options_of_type(prices_of(ways, gpu_type), usage, gpu_type.gpu)
            mark = f" ({usage.gpu})" if len(taken) > 1 else ""
            found += [option._replace(name=option.name + mark) for option in options]
        except InputError as error:
            faults += error.faults
        if size is next(iter(taken.values())):
            found += [api(usage, each) for each in ways.api]
    if not found:
        raise InputError(faults)
    return tuple(sorted(found, key=lambda option: option.usd_per_year))


def usage_of(size: MeasuredSize, measured: Measured, question: MeasuredQuestion, split: Split) -> Usage:
    """The usage of a measured layout; the measured mean TTFT / E2E is prefill's share of a request's time."""
    per_s = size.most if not size.by_flight else size.load.requests_per_s
    found = question.demanded and question.demanded.at_rate(size.requests_per_s, question.planning)
    load = load_of(found, question.headroom, size.requests_per_s)
    share = _input_share(size) if split == BY_TIME else 0.0
    deployed = (size.line.gpu, measured.isl, measured.osl, size.replicas, size.line.gpus or 1)
    return Usage(*deployed, per_s, split, ByLoad(share, share), *load)


def _input_share(size: MeasuredSize) -> float:
    """Prefill's share of a request's time at the load. Raises InputError where the rows state no mean TTFT or E2E."""
    ttft, e2e = (size.load.latencies_s.get((name, "mean")) for name in ("ttft", "e2e"))
    if ttft is None or e2e is None:
        what = "the rows state no mean TTFT and E2E, by which input and output would share the cost"
        raise InputError(
            Fault(what, field="--split", allowed="the price of an output token over that of an input token")
        )
    return ttft / e2e
