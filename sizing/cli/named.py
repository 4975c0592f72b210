"""What a command names: workload, model, GPU types, engine and precisions, each looked up on its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

from sizing.catalog import engines, gpus, models, workloads
from sizing.catalog.models import FoundModel
from sizing.catalog.paths import resolved
from sizing.catalog.prices import typical_price
from sizing.catalog.shelf import Found
from sizing.cli.collecting import Part
from sizing.cli.options import Opt, comma_separated, overrides
from sizing.cli.origin import Origin
from sizing.model import settings
from sizing.specs.engine import Engine
from sizing.specs.errors import Fault, InputError, nearest
from sizing.specs.gpu import Gpu, GpuType
from sizing.specs.values import LEAST_USD_PER_HOUR, MOST_USD_PER_HOUR
from sizing.specs.workload import Precision, Serving, Workload, is_pooled

ALL = "all"
NO_MODEL = Fault("no workload and no model", field="--model", allowed="a workload file or name, or --model")
ONE_GPU = "one name (llmsize gpus), or a profile's path"


def engine_of(text: str) -> tuple[Engine, str]:
    """Return an engine and its version, the newest known where none is named."""
    found, version = engines.load_engine(text)
    return found.spec, settings.check_version(found.spec, version)


class Catalog(NamedTuple):
    """How what is named is looked up; a command that looks up the same names over and over keeps what it found."""

    model: Callable[[str], FoundModel] = models.load_model
    gpu: Callable[[str], Found[Gpu]] = gpus.load_gpu
    engine: Callable[[str], tuple[Engine, str]] = engine_of


FILES = Catalog()


class Named(NamedTuple):
    """What a command names; each part is read, or has its faults."""

    origin: Origin
    found: Part[Found[Workload] | None]
    workload: Part[Workload]
    model: Part[FoundModel]
    gpus: Part[tuple[Found[Gpu], ...]]
    price: Part[float | None]
    engine: Part[tuple[Engine, str]]
    precisions: Part[tuple[str | None, ...]]

    @property
    def parts(self) -> tuple[Part[Any], ...]:
        """Every part, to check them together."""
        return (self.found, self.workload, self.model, self.gpus, self.price, self.engine, self.precisions)

    @property
    def name(self) -> str | None:
        """The workload's name, None without one."""
        found = self.found.value
        return found.id if found else None

    @property
    def options(self) -> tuple[GpuType, ...]:
        """The GPU types with the prices to plan with."""
        price = self.price.value
        return tuple(
            GpuType(found.id, found.spec, *((price, "as asked") if price is not None else typical_price(found.spec)))
            for found in self.gpus.value
        )

    @property
    def gpus_matched(self) -> dict[str, str]:
        """What was asked for where it is not the profile's own name, by the profile's id."""
        return {found.id: found.matched_from for found in self.gpus.value if found.matched_from}


def named(
    workload: str | Found[Workload] | None,
    options: Iterable[Opt],
    values: Mapping[str, Any],
    *,
    single: bool = False,
    tokens: Mapping[str, int] | None = None,
    no_model: Fault = NO_MODEL,
    catalog: Catalog = FILES,
) -> Named:
    """Look up what a workload (file or ready name, or one that was found already) and the options over it name.

    `single` takes one GPU type and one precision; `tokens` stand in for lengths that the command has from elsewhere;
    `no_model` is the fault where nothing names a model.
    """
    given, names = overrides(options, values)
    if tokens is not None:
        given["tokens"] = tokens
    found = Part(lambda: workloads.load_workload(workload) if isinstance(workload, str) else workload)
    precisions = Part(lambda: precisions_of(values, single=single))
    if not precisions.faults and len(precisions.value) == 1 and precisions.value[0] is not None:
        given["precision"], names["precision"] = precisions.value[0], "--precision"
    origin = Origin(given, names, _path_of(found))

    def stated(field: str, default: Any = None) -> Any:
        if field in given:
            return given[field]
        file = found.value
        value: Any = file.spec if file is not None else None
        for step in field.split("."):
            value = getattr(value, step, None)
        return default if value is None else value

    def model_name() -> str:
        name = stated("model")
        if name is None:  # nor is there a workload, which would state the rest too
            raise InputError(no_model)
        return str(name)

    def whole() -> Workload:
        model_name()
        return workload_of(found.value, given, names)

    return Named(
        origin=origin,
        found=found,
        workload=Part(whole),
        model=Part(lambda: served_as(catalog.model(model_name()), stated("task")), origin.at(("model",))),
        gpus=Part(lambda: _gpus(tuple(stated("gpu", ())), origin, catalog, single=single)),
        price=Part(lambda: checked_price(values.get("price"))),
        engine=Part(
            lambda: catalog.engine(stated("serving.engine", Serving().engine)), origin.at(("serving", "engine"))
        ),
        precisions=precisions,
    )


def served_as(found: FoundModel, task: str | None) -> FoundModel:
    """Return a model as a task serves it: without its output head where that pools."""
    return replace(found, spec=replace(found.spec, pooled=True)) if is_pooled(task) else found


def _path_of(found: Part[Found[Workload] | None]) -> Path | None:
    file = None if found.faults else found.value
    return None if file is None else file.path


def workload_of(found: Found[Workload] | None, given: Mapping[str, Any], names: Mapping[str, str]) -> Workload:
    """Return the workload of a file with the options over it, or one of the options alone."""
    return workloads.override(found.spec if found else None, given, names)


def precisions_of(values: Mapping[str, Any], *, single: bool = False) -> tuple[str | None, ...]:
    """Return the weight precisions asked for with commas; (None,) leaves the choice to workload and checkpoint."""
    text = values.get("precision")
    if text is None:
        return (None,)
    known = get_args(Precision)
    names = [name for part in comma_separated(text.lower()) for name in (known if part == ALL else (part,))]
    wrong = [name for name in names if name not in known]
    if wrong or not names:
        raise InputError(
            Fault(
                f"{name!r} is no weight precision",
                field="--precision",
                allowed=", ".join(known),
                nearest=nearest(name, known),
            )
            for name in wrong or ("",)
        )
    found = tuple(dict.fromkeys(names))
    if single and len(found) > 1:
        raise InputError(Fault("looks at one precision at a time", field="--precision", allowed="one name"))
    return found


def _gpus(wanted: tuple[str, ...], origin: Origin, catalog: Catalog, *, single: bool) -> tuple[Found[Gpu], ...]:
    """Return the profiles named, each once; all of the catalogue for none. Raises InputError with every fault of them."""
    if not wanted and "gpu" in origin.given:
        raise InputError(Fault("names no GPU type", field="--gpu", allowed=f"a name (llmsize gpus), a path, or {ALL}"))
    if single and not wanted:
        raise InputError(Fault("is needed", field="--gpu", allowed=ONE_GPU))
    choice = f"-g with one of {', '.join(wanted)}" if len(wanted) > 1 else ONE_GPU
    several = Fault("looks at one GPU type at a time", allowed=choice)
    is_several = single and (len(wanted) > 1 or wanted[0].strip().lower() == ALL)
    faults = [origin.at(("gpu",))(several)] if is_several else []
    parts = [part for index, name in enumerate(wanted) for part in _profiles(name, origin.at(("gpu", index)), catalog)]
    faults += [fault for part in parts for fault in part.faults]
    if faults:
        raise InputError(dict.fromkeys(faults))
    return _distinct(part.value for part in (parts or _profiles(ALL, None, catalog)))


def _profiles(name: str, placed: Callable[[Fault], Fault] | None, catalog: Catalog) -> tuple[Part[Found[Gpu]], ...]:
    names = gpus.SHELF.ids if name.strip().lower() == ALL else (name,)
    return tuple(Part(partial(catalog.gpu, each), placed) for each in names)


def _distinct(found: Iterable[Found[Gpu]]) -> tuple[Found[Gpu], ...]:
    """Return each profile once; of several files with one stem the later ones go by their path."""
    by_path = {resolved(one.path): one for one in found}
    taken: set[str] = set()
    distinct = []
    for one in by_path.values():
        unique = one if one.id not in taken else replace(one, id=str(one.path))
        taken.add(unique.id)
        distinct.append(unique)
    return tuple(distinct)


def checked_price(price: float | None) -> float | None:
    """Return a price in $ per GPU-hour as given. Raises InputError where it is out of range."""
    if price is not None and not LEAST_USD_PER_HOUR <= price <= MOST_USD_PER_HOUR:
        allowed = f"$ per GPU-hour, from {LEAST_USD_PER_HOUR:g} to {MOST_USD_PER_HOUR:,}"
        raise InputError(Fault(f"{price:g} is out of range", field="--price", allowed=allowed))
    return price
