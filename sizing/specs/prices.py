"""Prices as files state them: APIs per million tokens, and owned servers with power, licences and staff, each number with its source.

Every field of a server may be absent. A user's own file states what is known, and default numbers fill the rest.
"""

from typing import Annotated

from sizing.specs.gpu import Confidence
from sizing.specs.spec import Before, Spec
from sizing.specs.values import NO_ENTRIES, AsShare, Kind, OneFile, PositiveInt, ShareOfAll, Sourced, Text, within

AsFloat = Before(lambda value: float(value) if type(value) is int else value)
UsdPerMillion = Annotated[float, within(0, 100_000), AsFloat]


class ApiModel(Spec):
    """One model of a provider: $ per million input, output and cached input tokens, and the confidence in them."""

    model: Text
    input: UsdPerMillion
    output: UsdPerMillion
    cached: UsdPerMillion | None = None
    confidence: Confidence
    closed: bool = False
    note: Text | None = None


class ApiProvider(Spec):
    """One provider: its page of prices, and its models."""

    name: Text
    page: Text
    models: tuple[ApiModel, ...]


class ApiPriceList(OneFile, Sourced):
    """The price lists of all providers, with their date and source."""

    FILE = "hardware_profiles/_api_prices.yaml"

    providers: tuple[ApiProvider, ...]


# Bounds that reveal a value in a wrong unit.
Dollars = Annotated[float, within(0, 1e9, "$, from 0 to 1,000,000,000")]
_OF_A_PRICE = "$ for the whole server, from 1,000 to 100,000,000 (320 thousand is 320000)"
ServerPrice = Annotated[float, within(1000, 1e8, _OF_A_PRICE)]
Years = Annotated[float, within(0.25, 50, "years, from 0.25 to 50")]
Uptime = Annotated[float, within(0.01, 1, "a share of the year, from 0.01 to 1"), AsShare]
PowerFactor = Annotated[float, within(1, 5, "server power over the sum of its GPUs' TDP, from 1 to 5")]
ServerWatts = Annotated[float, within(50, 1e6, "watts of the whole server, from 50 to 1,000,000 (10.2 kW is 10200)")]
Pue = Annotated[float, within(1, 5, "power at the meter over that of the servers, from 1 to 5")]
Tariff = Annotated[float, within(0, 5, "$ per kWh, from 0 to 5 (12 cents are 0.12)")]


class Basis(Spec):
    """The basis of a number: its kind, its source, and the date when it was read or published."""

    kind: Kind = "assumed"
    source: Text
    date: Text


class Server(Spec):
    """One server, a file of hardware_profiles/servers or a user's own.

    `gpu` is the profile of its GPUs. `network_share` is the cost of switches and cables as a share of the price. Full power is
    `server_power_w`, or the GPUs' TDP times `server_factor`; an idle server draws the share `idle_share` of it. `staff_share` is
    the part of one person's time that the server takes. `uptime` is the share of the year in which it serves.
    """

    name: Text | None = None
    aliases: tuple[Text, ...] = ()
    gpu: Text | None = None
    gpus: PositiveInt | None = None
    price_usd: ServerPrice | None = None
    network_share: ShareOfAll | None = None
    residual_usd: Dollars | None = None
    depreciation_years: Years | None = None
    interest_rate: ShareOfAll | None = None
    hosting_usd_per_year: Dollars | None = None
    licence_usd_per_gpu_year: Dollars | None = None
    staff_share: ShareOfAll | None = None
    staff_usd_per_year: Dollars | None = None
    server_factor: PowerFactor | None = None
    server_power_w: ServerWatts | None = None
    idle_share: ShareOfAll | None = None
    pue: Pue | None = None
    usd_per_kwh: Tariff | None = None
    uptime: Uptime | None = None
    sources: dict[str, Basis] = NO_ENTRIES

    def validate(self) -> None:
        """Refuse sources of what is no field, and a server that is worth more than it cost."""
        unknown = [name for name in self.sources if name not in type(self).model_fields]
        if unknown:
            raise ValueError(f"sources are of {', '.join(unknown)}, which is no field of a server")
        if self.residual_usd is not None and self.price_usd is not None and self.residual_usd > self.price_usd:
            raise ValueError(f"residual_usd ({self.residual_usd:g}) is more than price_usd ({self.price_usd:g})")


# Fields that grow with the number of GPUs. Their values hold only for a server of that size.
OF_THE_SIZE = ("price_usd", "residual_usd", "server_power_w")
# The numbers of a server with their units, in display order. Each has a basis.
NUMBERS = {
    "gpus": "GPUs", "price_usd": "$", "network_share": "of the price", "residual_usd": "$", "depreciation_years": "years",
    "interest_rate": "a year", "hosting_usd_per_year": "$ a year", "licence_usd_per_gpu_year": "$ per GPU and year",
    "staff_share": "of a person", "staff_usd_per_year": "$ a year", "server_factor": "x TDP of its GPUs", "server_power_w": "W",
    "idle_share": "of full power", "pue": "", "usd_per_kwh": "$ per kWh", "uptime": "",
}  # fmt: skip
