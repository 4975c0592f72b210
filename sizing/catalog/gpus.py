"""GPU profiles, the efficiencies that a GPU without measurements borrows, and the offers of a GPU-hour with their sources."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import get_args

from sizing.catalog.files import DataFile
from sizing.catalog.shelf import Found, Shelf, load, only
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.gpu import AssumedEfficiencies, AssumedEfficiency, Gpu, Price, Slices
from sizing.specs.workload import Precision

ON_DEMAND = "on-demand"


def offers(gpu: Gpu, provider: str | None = None, kind: str | None = None) -> tuple[Price, ...]:
    """The hourly offers of a profile, of `provider` and `kind` where given; names match in any case."""
    return tuple(
        price
        for price in gpu.prices
        if price.usd_per_gpu_hour is not None
        and (provider is None or _same(price.provider, provider))
        and (kind is None or _same(price.kind, kind))
    )


def offers_of(gpu: Gpu, provider: str, kind: str = ON_DEMAND, *, field: str = "--cloud") -> tuple[Price, ...]:
    """A provider's hourly offers of a kind, at least one.

    Raises InputError, naming `field`, for an unknown provider, and for one without a price of the kind.
    """
    found = offers(gpu, provider, kind)
    if found:
        return found
    if offers(gpu, provider):
        kinds = sorted({price.kind for price in offers(gpu, provider)})
        message = f"no {kind} price of {gpu.name} by {provider!r} is known"
        raise InputError(Fault(message, field=field, allowed=", ".join(kinds), nearest=nearest(kind, kinds)))
    known = sorted({price.provider for price in offers(gpu, kind=kind)})
    message = f"no {kind} price of {gpu.name} by {provider!r} is known"
    allowed = ", ".join(known) or "none is known of this GPU; --price"
    raise InputError(Fault(message, field=field, allowed=allowed, nearest=nearest(provider, known)))


def price_of(gpu: Gpu, provider: str, kind: str = ON_DEMAND, *, field: str = "--cloud") -> tuple[float, str]:
    """($ per GPU-hour, source) of a provider's cheapest offer of a kind. Raises InputError as `offers_of` does."""
    cheapest = min(offers_of(gpu, provider, kind, field=field), key=usd_per_gpu_hour)
    return usd_per_gpu_hour(cheapest), source_of(cheapest)


def usd_per_gpu_hour(offer: Price) -> float:
    """The price of an hourly offer."""
    if offer.usd_per_gpu_hour is None:
        raise ValueError(f"{offer.sku} is no hourly offer")
    return offer.usd_per_gpu_hour


def source_of(price: Price) -> str:
    """Write the source of a price: provider, product, date and address."""
    return f"{price.provider} {price.sku} {price.kind}, {price.date} ({price.source})"


def typical_offer(gpu: Gpu) -> Price | None:
    """The median on-demand offer of a profile, the lower of two in the middle; None without any.

    Rentals by contract and owners' cost are other kinds, and mixing them would compare unlike things.
    """
    found = sorted(offers(gpu, kind=ON_DEMAND), key=usd_per_gpu_hour)
    return found[(len(found) - 1) // 2] if found else None


def typical_price(gpu: Gpu) -> tuple[float | None, str | None]:
    """($ per GPU-hour, source) of the typical offer, with the number of offers; (None, None) without one."""
    chosen = typical_offer(gpu)
    if chosen is None:
        return None, None
    values = [usd_per_gpu_hour(offer) for offer in offers(gpu, kind=ON_DEMAND)]
    lowest, highest = min(values), max(values)
    among = (
        f"median of {len(values)} offers from ${lowest:g} to ${highest:g}"
        if len(values) > 1
        else "the only offer known"
    )
    return usd_per_gpu_hour(
        chosen
    ), f"{chosen.provider} {chosen.sku} on demand, {chosen.date}; {among} ({chosen.source})"


def _same(one: str, other: str) -> bool:
    return one.lower() == other.strip().lower()


# Every step needs these; only some models need the others (experts, latent attention, collectives).
NEEDED_ROWS = frozenset({"gemm", "decode_attention", "prefill_attention"})

# In which rows of efficiency may be stated: formats, and how products run whose weights are in one of them.
PRECISIONS = tuple(dict.fromkeys((*get_args(Precision), "int8_weight_only", "mxfp4_bf16", "mxfp4_fp8")))


def check_profile(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError where a user's own profile has rows that no step reads, or lacks rows that every step needs."""
    _check_precisions(gpu, document)
    _check_can_be_timed(gpu, document)


def _check_precisions(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError for a row in a precision of neither products nor caches: it would never be read."""
    faults = []
    for index, row in enumerate(gpu.efficiency):
        for key in ("precision", "cache_precision"):
            given = getattr(row, key, None)
            if given is not None and given not in PRECISIONS:
                path, near = ("efficiency", index, key), nearest(given, PRECISIONS)
                faults.append(document.fault(path, f"is not known: {given!r}", ", ".join(PRECISIONS), near))
    if faults:
        raise InputError(faults)


def _check_can_be_timed(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError where a profile neither has nor can borrow the rows that every step needs."""
    if {row.operation for row in gpu.efficiency} >= NEEDED_ROWS or borrowed(gpu.architecture) is not None:
        return
    known = [entry.architecture for entry in only(AssumedEfficiencies).architectures]
    message = f"unknown architecture {gpu.architecture!r}, from which no efficiency can be borrowed"
    allowed = f"{', '.join(known)}; or rows of the profile's own for {', '.join(sorted(NEEDED_ROWS))}"
    raise InputError(document.fault(("architecture",), message, allowed, nearest(gpu.architecture, known)))


def borrowed(architecture: str) -> AssumedEfficiency | None:
    """The rows that GPUs of an architecture borrow where they lack their own; None without such a set."""
    sets = only(AssumedEfficiencies).architectures
    return next((entry for entry in sets if entry.architecture == architecture), None)


SHELF = Shelf(Gpu, "GPU", "hardware_profiles", "gpus", "llmsize gpus", check_profile)


def load_gpu(name_or_path: str) -> Found[Gpu]:
    """The profile of a GPU by name (`h100-sxm`, `H100 SXM`, an alias) or by the path of a user's own file.

    `h100-sxm:3g.40gb` is a slice of it (MIG). Raises InputError for an unknown or ambiguous name, for every fault of the
    file, for an architecture that lends nothing to a profile without measured rows of its own, and for an unknown slice.
    """
    sliced = SLICED.fullmatch(name_or_path.strip())
    if sliced is None:
        return load(SHELF, name_or_path)
    whole = load(SHELF, sliced["name"])
    part = f"{sliced['parts']}g.{sliced['gigabytes']}gb"
    spec = slice_of(whole.spec, int(sliced["parts"]), int(sliced["gigabytes"]))
    return replace(whole, spec=spec, id=f"{whole.id}:{part}", matched_from=None)


SLICED = re.compile(r"(?P<name>.+):(?P<parts>[0-9])g\.(?P<gigabytes>[0-9]+)gb", re.IGNORECASE)
EIGHTHS = 8  # of memory; a slice has whole ones


def slice_of(gpu: Gpu, parts: int, gigabytes: int) -> Gpu:
    """A slice of a card, as multi-instance GPUs are cut: its part of multiprocessors, memory and power, alone in its server.

    Raises InputError for a card that is not cut, and for a slice that it does not have.
    """
    cuts = only(Slices).slices
    known = next((each for each in cuts if each.architecture == gpu.architecture and each.name in gpu.name), None)
    sheet, memory = gpu.datasheet, gpu.datasheet.memory
    eighths = round(EIGHTHS * gigabytes / memory.marketed_gb)
    if known is None or str(parts) not in known.of or not parts <= eighths <= EIGHTHS:
        cards = ", ".join(dict.fromkeys(each.architecture for each in cuts))
        allowed = (
            f"cards of {cards}"
            if known is None
            else f"{', '.join(known.of)} parts, and at least as many eighths of memory"
        )
        raise InputError(Fault(f"{gpu.name} has no slice {parts}g.{gigabytes}gb", field="--gpu", allowed=allowed))
    compute, held = known.of[str(parts)] / known.multiprocessors, eighths / EIGHTHS
    sizes = {
        "marketed_gb": memory.marketed_gb * held,
        "cuda_visible_gib": memory.cuda_visible_gib * held,
        "nvidia_smi_mib": memory.nvidia_smi_mib and memory.nvidia_smi_mib * held,
        "bandwidth_gb_per_s": memory.bandwidth_gb_per_s * held,
    }
    peaks = {name: peak and peak * compute for name, peak in sheet.dense_tflops.model_dump().items()}
    cut = {
        "memory": memory.model_copy(update=sizes),
        "dense_tflops": sheet.dense_tflops.model_copy(update=peaks),
        "link": None,
        "node": sheet.node.model_copy(update={"gpus": 1, "inter_node_gbit_per_s_per_gpu": None}),
        "tdp_w": sheet.tdp_w * compute,
        "sources": (*sheet.sources, only(Slices).source),
    }
    name = f"{gpu.name} slice {parts}g.{gigabytes}gb"
    return gpu.model_copy(update={"name": name, "aliases": (), "datasheet": sheet.model_copy(update=cut), "prices": ()})
