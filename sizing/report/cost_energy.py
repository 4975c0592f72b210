"""The energy of the servers that an option takes."""

from __future__ import annotations

from sizing.catalog.servers import Resolved
from sizing.planning import cost
from sizing.planning.cost import WATTS_PER_KW
from sizing.report.cost_service import Service
from sizing.report.documents_cost import CostOption, Energy, Loads
from sizing.specs import demand
from sizing.specs.gpu import Gpu
from sizing.specs.server import Server


def energy_of(
    option: CostOption, service: Service, server: Resolved | None, gpu: Gpu, defaults: Server
) -> Energy | None:
    """Return the energy of an option at full use and at the load; None of an API, whose servers are not known.

    Rented servers draw what the default server does: their GPUs' TDP times its factor.
    """
    if option.gpus is None or option.units is None:
        return None
    if option.kind == "own" and server is not None:
        stated = server.numbers.get("server_power_w")
        factor, basis = server.value("server_factor"), server.numbers["server_factor"].basis.source
        full_w = option.units * (
            stated.value if stated is not None else server.value("gpus") * gpu.datasheet.tdp_w * factor
        )
        basis = stated.basis.source if stated is not None else basis
        idle, pue, uptime = (server.value(name) for name in ("idle_share", "pue", "uptime"))
    else:
        found = defaults.server_factor, defaults.idle_share, defaults.pue, defaults.uptime
        factor, idle, pue, uptime = (1.0 if value is None else value for value in found)
        full_w, basis = option.gpus * gpu.datasheet.tdp_w * factor, defaults.sources["server_factor"].source

    def at(utilisation: float, rate: float) -> tuple[float, float, float, float]:
        """Return power in W, energy a year in kWh, and kWh per million output tokens and all tokens."""
        drawn = cost.power_w(full_w, idle, utilisation)
        year = drawn * pue / WATTS_PER_KW * demand.hours_per_year() * uptime
        output = cost.kwh_per_million_tokens(drawn * pue, rate * service.osl)
        return drawn, year, output, cost.kwh_per_million_tokens(drawn * pue, rate * (service.isl + service.osl))

    full = at(1.0, option.capacity_requests_per_s)
    here = at(service.busy(option.capacity_requests_per_s), service.load_per_s)
    power, year, output, total = (Loads(*pair) for pair in zip(full, here, strict=True))
    return Energy(option.name, power, pue, year, output, total, basis)
