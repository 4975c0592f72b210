"""Profiles by name: GPUs and slices of them, efficiencies that they borrow, measured kernels, engines by version.

An engine's name may have a version (`vllm`, `vllm:0.19.0`). The rows of a user's own engine profile are validated as settings
before any of them is resolved.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from sizing.catalog.files import DataFile, data_folder, expanded, read_text, read_yaml, validate
from sizing.catalog.shelf import Found, Shelf, is_path, load, named, of_document, only
from sizing.specs.engine import Engine, EngineSettings
from sizing.specs.engine_time import GpuExtension
from sizing.specs.errors import Fault, FieldPath, InputError, nearest, placed, raise_any
from sizing.specs.gpu import AssumedEfficiencies, AssumedEfficiency, Gpu, Slices
from sizing.specs.kernels import ExpertKernel, MeasuredKernel, MeasuredKernels, Surface
from sizing.specs.spec import SpecError
from sizing.specs.units import parse_version
from sizing.specs.values import Sourced
from sizing.specs.workload import Precision

if TYPE_CHECKING:
    from sizing.specs.launch import EngineFlags

# Precisions that efficiency rows may state: formats, and modes in which products with such weights run.
PRECISIONS = tuple(dict.fromkeys((*get_args(Precision), "int8_weight_only", "mxfp4_bf16", "mxfp4_fp8")))


def check_profile(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError if a user's own profile has rows that no step reads, or has an unknown architecture."""
    _check_precisions(gpu, document)
    _check_family(gpu, document)


def _check_precisions(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError for a row with an unknown precision. It would never be read."""
    keys = ("precision", "cache_precision")
    stated = [(index, key, getattr(row, key, None)) for index, row in enumerate(gpu.efficiency) for key in keys]
    allowed = ", ".join(PRECISIONS)
    raise_any(
        document.fault(("efficiency", index, key), f"is not known: {name!r}", allowed, nearest(name, PRECISIONS))
        for index, key, name in stated
        if name is not None and name not in PRECISIONS
    )


def _check_family(gpu: Gpu, document: DataFile) -> None:
    """Raise InputError for an unknown architecture, or one of another vendor. It selects kernels, settings and borrowed rows."""
    family = borrowed(gpu.architecture)
    if family is not None and gpu.vendor != family.vendor:
        message = f"{gpu.architecture} is of {family.vendor}, not of {gpu.vendor!r}"
        raise InputError(document.fault(("vendor",), message, family.vendor))
    if family is not None:
        return
    known = [entry.architecture for entry in only(AssumedEfficiencies).architectures]
    message = f"unknown architecture {gpu.architecture!r}, by which kernels and engine settings are known"
    allowed = f"{', '.join(known)}: of a newer GPU its nearest relative"
    raise InputError(document.fault(("architecture",), message, allowed, nearest(gpu.architecture, known)))


def borrowed(architecture: str) -> AssumedEfficiency | None:
    """The rows that GPUs of an architecture borrow if they lack their own; None without such a set."""
    sets = only(AssumedEfficiencies).architectures
    return next((entry for entry in sets if entry.architecture == architecture), None)


GPUS = Shelf(Gpu, "GPU", "hardware_profiles", "gpus", "llmsize gpus", check_profile, own="gpus")


@cache
def named_gpu(name: str) -> tuple[str, str]:
    """The id and name of the GPU profile that a source's name means. Without a profile: the name in lower case, and as given."""
    try:
        found = load_gpu(name)
    except InputError:
        return name.strip().lower(), name
    return found.id, found.spec.name


def load_gpu(name_or_path: str) -> Found[Gpu]:
    """The profile of a GPU by name (`h100-sxm`, `H100 SXM`, an alias) or by the path of a user's own file.

    `h100-sxm:3g.40gb` is a slice of a card (MIG). Raises InputError for an unknown or ambiguous name, for every fault of the
    file, for an unknown architecture, and for an unknown slice.
    """
    sliced = SLICED.fullmatch(name_or_path.strip())
    if sliced is None:
        return _profile(name_or_path)
    whole = load(GPUS, sliced["name"])
    part = f"{sliced['parts']}g.{sliced['gigabytes']}gb"
    spec = slice_of(whole.spec, int(sliced["parts"]), int(sliced["gigabytes"]))
    return replace(whole, spec=spec, id=f"{whole.id}:{part}", matched_from=None)


def _profile(name_or_path: str) -> Found[Gpu]:
    """The profile with a name or path. A file may extend another profile by own runs; the result is that profile with them."""
    if not is_path(name_or_path):
        return named(GPUS, name_or_path)
    path = expanded(name_or_path)
    document = read_yaml(path)
    if "extends" not in document.data:
        return of_document(GPUS, document, path)
    stated = validate(GpuExtension, document)
    file, line, field, _ = document.place(("extends",))
    with placed(lambda fault: fault if fault.file else replace(fault, file=file, line=line, field=field)):
        extended = read_yaml(expanded(stated.extends)).data if is_path(stated.extends) else {}
        if "extends" in extended:
            own = str(extended["extends"])
            without = "a profile without" if is_path(own) else own
            raise InputError(f"{stated.extends!r} has own runs itself", allowed=without)
        base = load_gpu(stated.extends)
    more = {"aliases": (), "extends": stated.extends, "own_runs": stated.own_runs}
    return Found(base.spec.model_copy(update=more), path.stem, path)


def stands_for(gpu: Found[Gpu], name: str, load: Callable[[str], Found[Gpu]] = load_gpu) -> bool:
    """Whether `name` means the GPU of this profile, or of the profile that it extends. Raises as `load` does."""
    if GPUS.key(name) in map(GPUS.key, (gpu.id, gpu.spec.name, *gpu.spec.aliases)):
        return True
    own = load(gpu.spec.extends) if gpu.spec.extends else gpu
    other = load(name)
    return (other.id, other.path) == (own.id, own.path)


SLICED = re.compile(r"(?P<name>.+):(?P<parts>[0-9])g\.(?P<gigabytes>[0-9]+)gb", re.IGNORECASE)
EIGHTHS = 8  # a slice has whole eighths of the memory


def slice_of(gpu: Gpu, parts: int, gigabytes: int) -> Gpu:
    """A slice of a multi-instance GPU (MIG), with its part of multiprocessors, memory and power, alone in its server.

    Raises InputError for a card without slices, and for a slice that the card does not have.
    """
    cuts = only(Slices).slices
    known = next((each for each in cuts if each.architecture == gpu.architecture and each.name in gpu.name), None)
    sheet, memory = gpu.datasheet, gpu.datasheet.memory
    eighths = round(EIGHTHS * gigabytes / memory.marketed_gb)
    if known is None or str(parts) not in known.of or not parts <= eighths <= EIGHTHS:
        allowed = f"cards of {', '.join(dict.fromkeys(each.architecture for each in cuts))}"
        if known is not None:
            allowed = f"{', '.join(known.of)} parts, and at least as many eighths of memory"
        raise InputError(f"{gpu.name} has no slice {parts}g.{gigabytes}gb", field="--gpu", allowed=allowed)
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


def check_settings(engine: Engine, document: DataFile) -> None:
    """Raise InputError with every fault of a profile's rows: a missing, unknown or wrong setting, an invalid version."""
    # Settings are validated with the first row of each, then with the second, and so on.
    most = max(map(len, engine.settings.values()), default=1)
    values = (fault for number in range(most) for fault in _faults_of_rows(number, engine, document))
    raise_any(sorted((*_version_faults(engine, document), *values), key=lambda fault: fault.line or 0))


def _version_faults(engine: Engine, document: DataFile) -> Iterator[Fault]:
    stated: dict[FieldPath, str | None] = {("oldest",): engine.oldest, ("newest",): engine.newest}
    for setting, rows in engine.settings.items():
        for index, row in enumerate(rows):
            stated["settings", setting, index, "since"] = row.since
            stated["settings", setting, index, "until"] = row.until
    for path, version in stated.items():
        try:
            if version is not None:
                parse_version(version)
        except ValueError as error:
            yield document.fault(path, str(error))


def _faults_of_rows(number: int, engine: Engine, document: DataFile) -> list[Fault]:
    """The faults of the values in row `number` of each setting, or in its last row."""
    chosen = {name: min(number, len(rows) - 1) for name, rows in engine.settings.items() if rows}
    values = {name: engine.settings[name][index].value for name, index in chosen.items()}

    def place(path: FieldPath) -> tuple[str | None, int | None, str, str | None]:
        setting, *inside = path
        if setting not in values or setting not in EngineSettings.model_fields:
            return document.place(("settings", setting))
        return document.place(("settings", setting, chosen[str(setting)], "value", *inside))

    try:
        EngineSettings.model_validate(values)
    except SpecError as error:
        from sizing.catalog.faults import faults_of  # loaded only for a fault

        return faults_of(error, place)
    return []


ENGINES = Shelf(Engine, "engine", "hardware_profiles", "engines", "llmsize engines", check_settings, own="engines")


@cache
def launches() -> Shelf[EngineFlags]:
    """The flags of engines by name."""
    from sizing.specs.launch import EngineFlags  # loaded where flags are read or written

    return Shelf(EngineFlags, "engine with flags", "hardware_profiles", "launch", "llmsize engines")


# The version follows the last colon. The colon of a drive letter does not count: a separator follows it.
_VERSIONED = re.compile(r"(?P<name>.+?)(?:(?::|\s+(?=[\d.]+\Z))(?P<version>[^:/\\]*))?\Z", re.DOTALL)


def load_engine(text: str) -> tuple[Found[Engine], str | None]:
    """The profile of an engine and the stated version, as written (None: the profile's newest).

    Raises InputError for an unknown or ambiguous name, an empty version, and for every fault of the file.
    """
    parts, form = _VERSIONED.match(text.strip()), "as vllm or vllm:0.19.0"
    if parts is None:
        raise InputError("the engine has no name", allowed=form)
    version = parts["version"]
    if version is not None and not version.strip():
        raise InputError(f"{text!r} has no version after the colon", allowed=form)
    return load(ENGINES, parts["name"].strip()), version.strip() if version else None


K = TypeVar("K", bound=MeasuredKernel)
# How a cell of a measured kernel is read, by the type of its field.
_READ: dict[Any, Callable[[str], Any]] = {
    str: str,
    int: int,
    float: float,
    bool: "yes".__eq__,
    tuple[int, ...]: lambda text: tuple(map(int, text.split())),
    tuple[str, ...]: lambda text: tuple(text.split() if "x" in text else ()),  # otherwise how many were measured
    Mapping[str, float]: lambda text: {
        name: float(value) for name, value in (pair.split("=") for pair in text.split())
    },
}


def _kernels(kind: type[K], file: str, about: Sourced) -> Iterator[K]:
    """Yield the measured kernels of a file of `hardware_profiles/kernels`; none if there is no such file."""
    path = data_folder("hardware_profiles") / "kernels" / f"{file}.csv"
    head, *lines = csv.reader(read_text(path).splitlines()) if path.is_file() else ([],)
    types = {each.name: _READ[each.type] for each in fields(kind)}
    columns = [(place, name, types[name]) for place, name in enumerate(head) if name in types]
    for line in lines:
        cells = {name: read(line[place]) for place, name, read in columns}
        yield kind(**cells, source=about.source, date=about.date)


@cache
def expert_kernels(architecture: str) -> tuple[ExpertKernel, ...]:
    """The measured expert kernels on GPUs of an architecture; empty if nothing was measured."""
    return tuple(_kernels(ExpertKernel, architecture, only(MeasuredKernels).experts))


@cache
def surfaces(architecture: str) -> tuple[Surface, ...]:
    """The measured kernels of products and attention on GPUs of an architecture; empty if nothing was measured."""
    about = only(MeasuredKernels)
    chips = about.chips.get(architecture)
    return tuple(kernel for file in (chips.files if chips else ()) for kernel in _kernels(Surface, file, about.forms))


def card_of(gpu: Gpu) -> str:
    """The name of the card whose measured kernels a GPU uses: its own, or a measured card with the same facts.

    So a renamed copy of a profile keeps the measured kernels. A GPU with other peaks, bandwidth or power, such as a slice,
    borrows kernels at its own peaks.
    """
    return _card_of(gpu.name, gpu.architecture, _deciding(gpu))


@cache
def _card_of(name: str, architecture: str, deciding: tuple[object, ...]) -> str:
    kernels: tuple[MeasuredKernel, ...] = (*surfaces(architecture), *expert_kernels(architecture))
    measured = dict.fromkeys(row.gpu for row in kernels)
    if name in measured:
        return name
    return next((card for card in measured if _deciding(named(GPUS, card).spec) == deciding), name)


def _deciding(gpu: Gpu) -> tuple[object, ...]:
    sheet = gpu.datasheet
    return gpu.vendor, gpu.compute_capability, sheet.memory.bandwidth_gb_per_s, sheet.dense_tflops, sheet.tdp_w
