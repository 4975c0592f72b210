"""GPU profiles, and the efficiencies that a GPU without measurements borrows."""

from __future__ import annotations

from typing import get_args

from sizing.catalog.files import DataFile
from sizing.catalog.shelf import Found, Shelf, load, only
from sizing.specs.errors import InputError, nearest
from sizing.specs.gpu import AssumedEfficiencies, AssumedEfficiency, Gpu
from sizing.specs.workload import Precision

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

    Raises InputError for an unknown or ambiguous name, for every fault of the file, and for an architecture
    that lends nothing to a profile without measured rows of its own.
    """
    return load(SHELF, name_or_path)
