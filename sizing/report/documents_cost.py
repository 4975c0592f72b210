"""The document of `llmsize cost`: plain values with their units in the names, ready for JSON. All money is US dollars."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from sizing.formats.view import Assumption
from sizing.planning.break_even import CostCurve
from sizing.report.documents import Deployment
from sizing.report.parts.bands import ErrorBand


class Loads(NamedTuple):
    """A figure at the highest rate within the limits around the clock, at the load that the report is of, and at the mean load.

    The last two are the same where the mean is known; where it is not, the last is null.
    """

    full_use: float
    at_load: float
    mean_load: float | None = None


class TokenLoads(NamedTuple):
    """$ per million tokens: input and output as the cost is split between them, all tokens alike, outputs bearing all."""

    input: Loads
    output: Loads
    total: Loads
    output_bearing_all: Loads


class Parts(NamedTuple):
    """What owned servers cost a year, by part, at the load of the report."""

    capital: float
    network: float
    hosting: float
    power: float
    licence: float
    staff: float


Load = Literal["mean_load", "stated_demand", "as_sized"]


class CostOption(NamedTuple):
    """One way to serve: `own`, `cloud` (rented around the clock, or following the load) or `api`.

    `units` whole servers or instances of `gpus_per_unit` hold the replicas; `capacity_requests_per_s` is what all GPUs paid for
    serve within the limits. $ an hour, a month and a year are at `load_requests_per_s`, the same for all ways to serve with one
    type of GPU. `load` says what that is: `mean_load`; where no mean is known `stated_demand`, served around the clock; without
    a demand `as_sized`, the most of the replicas sized. `utilisation_at_load` is its share of the capacity.
    `curves` are the yearly cost against the load, in requests a day: the cheapest of them counts.
    """

    name: str
    kind: str
    provider: str | None
    contract: str | None
    follows_load: bool
    gpu: str | None
    sku: str | None
    units: int | None
    gpus_per_unit: int | None
    gpus: int | None
    usd_per_gpu_hour: float | None
    capacity_requests_per_s: float
    utilisation_at_load: float | None
    load: Load
    load_requests_per_s: float
    usd_per_hour: float
    usd_per_month: float
    usd_per_year: float
    usd_per_year_by_load: Loads
    usd_per_1k_requests: Loads
    usd_per_million_tokens: TokenLoads
    parts_usd_per_year: Parts | None
    upfront_usd: float | None
    depreciation_years: float | None
    date: str
    source: str
    note: str | None
    curves: tuple[CostCurve, ...]


class BreakEven(NamedTuple):
    """From which load on `one` costs no more than `other`, at a day's shape like that of the demand.

    `requests_per_day`: it does so at this load and every higher one; `first_requests_per_day`: at this load for the first time;
    both are 0 where it does at every load, null where there is none, with the reason. `months`: after so many the purchase of
    `one` and its running cost are no more than what `other` costs, at the load of the report; with `months_reason` where that
    is later than it is written off, or never.
    """

    one: str
    other: str
    requests_per_day: float | None
    first_requests_per_day: float | None
    reason: str | None
    cheaper_at_this_load: str
    months: float | None
    months_reason: str | None


class Energy(NamedTuple):
    """Energy at the meter of the servers of one option, PUE in it."""

    of: str
    server_power_w: Loads
    pue: float
    kwh_per_year: Loads
    kwh_per_million_output_tokens: Loads
    kwh_per_million_tokens: Loads
    source: str


class CostReport(NamedTuple):
    """The document of `llmsize cost`. Figures at the top are those of the option that `basis` names, null where nothing is sized.

    `full_use_requests_per_s` is what the deployment itself serves within its limits, before whole servers or instances; `sized_to_mean`
    is the rate sized for, headroom in it, over the mean; `demand` says which rate is stated, and how. `load` and `load_requests_per_s` are as in an option. Of what is
    infeasible `problems` say what is in the way, and `suggestions` are single changes that help.
    """

    feasible: bool
    inputs: dict[str, Any]
    basis: str | None
    currency: str
    load: Load | None
    usd_per_hour: float | None
    usd_per_month: float | None
    usd_per_year: float | None
    usd_per_1k_requests: Loads | None
    usd_per_million_tokens: TokenLoads | None
    split: str | None
    load_requests_per_s: float | None
    demand: str | None
    mean_requests_per_s: float | None
    peak_requests_per_s: float | None
    full_use_requests_per_s: float | None
    sized_to_mean: float | None
    deployments: tuple[Deployment, ...]
    verified: bool | None
    options: tuple[CostOption, ...]
    break_even: tuple[BreakEven, ...]
    energy: Energy | None
    bands: dict[str, ErrorBand]
    problems: tuple[str, ...]
    suggestions: tuple[str, ...]
    assumptions: tuple[Assumption, ...]
    schema: str = "llmsize.cost/1"


def with_mean(value: Any, known: bool) -> Any:
    """Return a part of the document with its figures at the mean load filled in, where that is the load of the report."""
    if isinstance(value, Loads):
        return value._replace(mean_load=value.at_load if known else None)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(with_mean(entry, known) for entry in value))
    if isinstance(value, tuple):
        return tuple(with_mean(entry, known) for entry in value)
    return value
