"""GPU profiles, and what holds for all GPUs: assumed efficiencies and number formats."""

from __future__ import annotations

from functools import cache
from typing import get_args

from sizing.catalog.files import Document, data_folder, read_yaml, validate
from sizing.catalog.paths import expanded
from sizing.catalog.shelf import Found, Shelf, find, ids, is_path, matched_from
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.gpu import AssumedEfficiencies, AssumedEfficiency, Assumptions, Gpu
from sizing.specs.workload import Formats, Precision

# Without these a step can't be timed; all else (experts, latent attention, collectives) not every model needs.
NEEDED_ROWS = frozenset({"gemm", "decode_attention", "prefill_attention"})

# In which rows of efficiency may be stated: formats, and how products run whose weights are in one of them.
PRECISIONS = tuple(dict.fromkeys((*get_args(Precision), "int8_weight_only", "mxfp4_bf16", "mxfp4_fp8")))

SHELF = Shelf("GPU", "hardware_profiles", "gpus", "llmsize gpus")


def gpu_names() -> tuple[str, ...]:
    """Return the names (file stems) of all GPU profiles, sorted."""
    return ids(SHELF)


def load_gpu(name_or_path: str) -> Found[Gpu]:
    """Return the profile of a GPU by name (`h100-sxm`, `H100 SXM`, an alias) or by the path of a user's own
    file.

    Raises InputError for an unknown or ambiguous name, for every fault of the file, and for an architecture
    that lends nothing to a profile without measured rows of its own.
    """
    if is_path(name_or_path):
        path = expanded(name_or_path)
        document = read_yaml(path)
        spec = validate(Gpu, document)
        _check_precisions(spec, document)
        _check_can_be_timed(spec, document)
        return Found(spec, path.stem, path)
    entry = find(name_or_path, SHELF)
    spec = validate(Gpu, read_yaml(entry.path))
    return Found(spec, entry.id, entry.path, matched_from(name_or_path, entry))


def _check_precisions(gpu: Gpu, document: Document) -> None:
    """Raise InputError for rows in a precision that nothing multiplies or caches in: they would never be looked at."""
    faults = []
    for index, row in enumerate(gpu.efficiency):
        for key in ("precision", "cache_precision"):
            given = getattr(row, key, None)
            if given is not None and given not in PRECISIONS:
                file, line, name, _ = document.place(("efficiency", index, key))
                near = nearest(given, PRECISIONS)
                faults.append(Fault(f"is not known: {given!r}", file, line, name, ", ".join(PRECISIONS), near))
    if faults:
        raise InputError(faults)


def _check_can_be_timed(gpu: Gpu, document: Document) -> None:
    """Raise InputError where a profile neither brings the rows that every step needs nor can borrow them."""
    if {row.operation for row in gpu.efficiency} >= NEEDED_ROWS or borrowed(gpu.architecture) is not None:
        return
    known = [entry.architecture for entry in load_assumed().spec.architectures]
    message = f"unknown architecture {gpu.architecture!r}, from which no efficiency can be borrowed"
    allowed = f"{', '.join(known)}; or rows of the profile's own for {', '.join(sorted(NEEDED_ROWS))}"
    file, line, name, _ = document.place(("architecture",))
    raise InputError(Fault(message, file, line, name, allowed, nearest(gpu.architecture, known)))


def load_assumptions() -> Found[Assumptions]:
    """Return what holds for every GPU: small kernels, links, the network between nodes."""
    path = data_folder("hardware_profiles") / "_general.yaml"
    return Found(validate(Assumptions, read_yaml(path)), path.stem, path)


@cache
def load_assumed() -> Found[AssumedEfficiencies]:
    """Return the sets of rows that stand in where a GPU has nothing measured. A large file, read when needed."""
    path = data_folder("hardware_profiles") / "_assumed.yaml"
    return Found(validate(AssumedEfficiencies, read_yaml(path)), path.stem, path)


def borrowed(architecture: str) -> AssumedEfficiency | None:
    """Return the rows that GPUs of an architecture borrow where they lack their own, or None without such a set."""
    sets = load_assumed().spec.architectures
    return next((entry for entry in sets if entry.architecture == architecture), None)


def load_formats() -> Found[Formats]:
    """Return how each precision is stored and multiplied."""
    path = data_folder("hardware_profiles") / "_formats.yaml"
    return Found(validate(Formats, read_yaml(path)), path.stem, path)
