"""Ways to pay, predicted or measured: the load of their figures, and a table of them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from sizing.formats.view import Quantity, Table, in_words
from sizing.formats.words import number, rounded_usd
from sizing.planning.offers import CostOption
from sizing.planning.usage import LoadKind
from sizing.report.parts import quantities

LOADS: dict[LoadKind, str] = {
    "mean_load": "the mean load",
    "stated_demand": "the stated demand around the clock",
    "as_sized": "full use of the replicas sized",
}
FOLLOWS, PER_GPU_HOUR = "same, following the load", " per GPU-hour"


def table(options: Sequence[CostOption], path: str, *, crowded: bool = False) -> Table:
    """The cost of each way: an hour to a year at the load of the figures, and per 1,000 requests; `path` is that of `options`.

    On a `crowded` screen the note on what follows the load may be left out.
    """
    columns = (
        in_words("name", f"at {LOADS[options[0].load]}", _called),
        Quantity("gpus", "GPUs", str, _count),
        quantities.USD_PER_HOUR._replace(write=rounded_usd),
        _usd("usd_per_month", "$/month"),
        _usd("usd_per_year", "$/year"),
        _usd("usd_per_1k_requests.at_load", "$/1,000 requests"),
        _usd("usd_per_million_tokens.total.at_load", "$/M tokens in + out"),
    )
    parts = dict.fromkeys(part for o in options if _follows(o) and o.note for part in o.note.split("; "))
    following = (f"Following the load: {'; '.join(parts)}",) if parts else ()
    notes = tuple(f"Note: {o.note}" for o in options if o.kind == "api" and o.note)
    made = Table(columns, options, path, spare=("$/h", "$/month"), notes=notes, spare_notes=following)
    return made if crowded else made._replace(notes=(*following, *notes), spare_notes=())


def _called(option: CostOption) -> str:
    """The name of a way in a table. A way that follows the load stands below the same way around the clock."""
    return FOLLOWS if _follows(option) else option.name.replace(PER_GPU_HOUR, "/GPU-hour")


def _follows(option: CostOption) -> bool:
    """Whether rented GPUs follow the load; an API always does, and has no other way beside it."""
    return option.kind == "cloud" and option.follows_load


def _usd(path: str, heading: str) -> Quantity:
    return Quantity(path, heading, rounded_usd, attrgetter(path))


def _count(option: CostOption) -> str | None:
    if option.units is None or option.gpus_per_unit is None:
        return None
    if option.follows_load:
        return f"{number(option.mean_gpus)} mean"
    return f"{option.gpus:,}" if option.gpus_per_unit == 1 else f"{option.units:,} x {option.gpus_per_unit}"
