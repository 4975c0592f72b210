"""GPU profiles, and what holds for all GPUs: assumed efficiencies and number formats."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from sizing.catalog.files import data_folder, read_yaml, validate
from sizing.catalog.names import Found, Shelf, find, ids, is_path, matched_from
from sizing.specs.gpu import AssumedEfficiencies, AssumedEfficiency, Assumptions, Gpu
from sizing.specs.workload import Formats

SHELF = Shelf("GPU", "hardware_profiles", "gpus", "llmsize gpus")


def gpu_names() -> tuple[str, ...]:
    """Return the names (file stems) of all GPU profiles, sorted."""
    return ids(SHELF)


def load_gpu(name_or_path: str) -> Found[Gpu]:
    """Return the profile of a GPU by name (`h100-sxm`, `H100 SXM`, an alias) or by the path of a user's own
    file.

    Raises InputError for an unknown or ambiguous name and for every fault of the file.
    """
    if is_path(name_or_path):
        path = Path(name_or_path)
        return Found(validate(Gpu, read_yaml(path)), path.stem, path)
    entry = find(name_or_path, SHELF)
    spec = validate(Gpu, read_yaml(entry.path))
    return Found(spec, entry.id, entry.path, matched_from(name_or_path, entry))


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
