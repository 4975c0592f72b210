"""Total cost of ownership: formulas for cost and energy of owned servers, rented GPUs and an API, per year, request and token.

All money is in US dollars. A year has 365 days. Full use is the highest rate within the limits, around the clock. At the
mean load the same GPUs are paid for, and fewer requests share their cost.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from sizing.specs.demand import hours_per_year
from sizing.specs.units import MILLION_TOKENS, SECONDS_PER_HOUR, WATTS_PER_KW

SECONDS_PER_YEAR = hours_per_year() * SECONDS_PER_HOUR
REQUESTS = 1_000  # the number for which prices are quoted


class OwnServer(NamedTuple):
    """The cost parameters of an owned server in $, years, and watts at full load; shares are fractions of 1."""

    gpus: int
    price_usd: float
    network_share: float
    residual_usd: float
    depreciation_years: float
    interest_rate: float
    hosting_usd_per_year: float
    licence_usd_per_gpu_year: float
    staff_share: float
    staff_usd_per_year: float
    power_w: float
    idle_share: float
    pue: float
    usd_per_kwh: float
    uptime: float


class ServerYear(NamedTuple):
    """The yearly cost of one server, by part, in $."""

    capital: float
    network: float
    hosting: float
    power: float
    licence: float
    staff: float

    @property
    def running(self) -> float:
        """The running cost: all parts except server and network."""
        return self.hosting + self.power + self.licence + self.staff

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.capital + self.network + self.running


class TokenPrices(NamedTuple):
    """$ per million tokens: of input and output by the split, and averaged over all tokens (`total`).

    `output_bearing_all` is the whole cost divided by the output tokens, the usual figure of serving benchmarks.
    """

    input: float
    output: float
    total: float
    output_bearing_all: float


def capital_recovery_factor(rate: float, years: float) -> float:
    """The yearly payment as a share of a loan: r(1+r)^n / ((1+r)^n - 1); 1/n without interest.

    Source: the annuity formula, as used in https://inferecon.com/assumptions; 8 % over 4 years give 0.301921.
    """
    if rate == 0:
        return 1 / years
    return -rate / math.expm1(-years * math.log1p(rate))


def capital_usd_per_year(price_usd: float, residual_usd: float, rate: float, years: float) -> float:
    """Yearly $ of a purchase: the loss of value is paid off over `years`, and the residual value bears interest."""
    return capital_recovery_factor(rate, years) * (price_usd - residual_usd) + rate * residual_usd


def power_w(full_w: float, idle_share: float, utilisation: float) -> float:
    """Power in W of a server: `idle_share` of its full power when idle, rising linearly with `utilisation`."""
    return full_w * (idle_share + (1 - idle_share) * utilisation)


def power_usd_per_year(power_w: float, pue: float, usd_per_kwh: float, hours: float) -> float:
    """Yearly $ of power at the meter: power x PUE x tariff x hours."""
    return power_w / WATTS_PER_KW * pue * usd_per_kwh * hours


def server_year(server: OwnServer, utilisation: float) -> ServerYear:
    """Yearly cost of a server at a mean utilisation (0 to 1).

    Price/years + hosting + GPUs x licence is the formula of NVIDIA's "LLM Inference Benchmarking: How Much Does Your LLM
    Inference Cost?"; interest, power, network and staff are added.
    """
    rate, years = server.interest_rate, server.depreciation_years
    load_w = power_w(server.power_w, server.idle_share, utilisation)
    return ServerYear(
        capital=capital_usd_per_year(server.price_usd, server.residual_usd, rate, years),
        network=capital_usd_per_year(server.price_usd * server.network_share, 0.0, rate, years),
        hosting=server.hosting_usd_per_year,
        power=power_usd_per_year(load_w, server.pue, server.usd_per_kwh, hours_per_year() * server.uptime),
        licence=server.gpus * server.licence_usd_per_gpu_year,
        staff=server.staff_share * server.staff_usd_per_year,
    )


def usd_per_1k_requests(usd_per_year: float, requests_per_s: float, uptime: float = 1.0) -> float:
    """$ per 1,000 requests at a yearly cost and a rate; `uptime` is the share of the year in which requests are served."""
    return REQUESTS * usd_per_year / (requests_per_s * SECONDS_PER_YEAR * uptime)


def api_usd_per_1k_requests(usd_per_million_in: float, usd_per_million_out: float, isl: float, osl: float) -> float:
    """$ per 1,000 requests of an API that charges by the token."""
    return REQUESTS * (usd_per_million_in * isl + usd_per_million_out * osl) / MILLION_TOKENS


def split_by_ratio(usd_per_1k: float, isl: float, osl: float, ratio: float) -> TokenPrices:
    """Split the cost of requests so that an output token costs `ratio` times an input token, as APIs charge.

    c_in = 1000 cost_per_1k / (ISL + k OSL) and c_out = k c_in, with k = `ratio`. With `ratio` 0 only inputs are charged.
    """
    per_request_in_millionths = usd_per_1k / REQUESTS * MILLION_TOKENS
    each = per_request_in_millionths / (isl + ratio * osl)
    return _with_totals(each, ratio * each, per_request_in_millionths, isl, osl)


def split_by_time(usd_per_1k: float, isl: float, osl: float, input_share: float) -> TokenPrices:
    """Split the cost of requests by time: prefill takes `input_share` of a request's time, decode the rest."""
    per_request_in_millionths = usd_per_1k / REQUESTS * MILLION_TOKENS
    each_in = per_request_in_millionths * input_share / isl
    each_out = per_request_in_millionths * (1 - input_share) / osl
    return _with_totals(each_in, each_out, per_request_in_millionths, isl, osl)


def _with_totals(each_in: float, each_out: float, per_request: float, isl: float, osl: float) -> TokenPrices:
    return TokenPrices(each_in, each_out, per_request / (isl + osl), per_request / osl)
